"""How do the ranks of each node, or of several, get cores of their own?"""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet
from wellfed.placement.policies._base import Ground, Seat, too_few
from wellfed.placement.shares import deal, deal_overlapping, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from wellfed.placement.shares import Part


def give_own(
    ground: Ground, seats: tuple[Seat, ...], cut: Callable[[tuple[CpuSet, ...]], Part]
) -> dict[int, CpuSet]:
    """Split free cores among the ranks that share nodes; ``cut`` divides the cores of one node into parts.

    Ranks with the same nodes are dealt whole parts. Where the nodes of ranks overlap without being the same (a process
    beside several GPUs, a rank whose GPU's place is unknown) cores go one by one to the rank that has fewest.
    """
    cores: dict[int, tuple[CpuSet, ...]] = {}
    given: dict[int, CpuSet] = {}
    for group in _neighbours(ground, seats):
        homes = {seat.rank: ground.nodes(seat) for seat in group}
        nodes = NodeSet(node for home in homes.values() for node in home)
        for node in nodes:
            cores.setdefault(node, ground.free_cores(node))
        free = sum(len(cores[node]) for node in nodes)
        if not nodes:
            parts = cut(ground.free_cores(None))
            free = len(parts.cores)
        elif len(set(homes.values())) == 1:
            parts = whole([cut(cores[node]) for node in nodes])
        if free < len(group):
            raise too_few(ground, nodes, num_ranks=len(group), num_free=free)
        if len(set(homes.values())) == 1:
            given |= deal(sorted(homes), parts)
            continue
        dealt = deal_overlapping(homes, {node: cores[node] for node in nodes})
        for rank, home in homes.items():
            if rank not in dealt:
                raise too_few(
                    ground,
                    home,
                    num_ranks=sum(bool(home & other) for other in homes.values()),
                    num_free=sum(len(cores[node]) for node in home),
                )
        given |= dealt
    return given


def _neighbours(ground: Ground, seats: tuple[Seat, ...]) -> list[list[Seat]]:
    """Group ranks whose nodes overlap, directly or through others; groups and ranks keep their order."""
    groups: list[tuple[NodeSet, list[Seat]]] = []
    for seat in seats:
        nodes, members = ground.nodes(seat), [seat]
        apart = []
        for other_nodes, other in groups:
            if other_nodes & nodes or other_nodes == nodes == EMPTY:
                nodes, members = nodes | other_nodes, other + members
            else:
                apart.append((other_nodes, other))
        groups = [*apart, (nodes, members)]
    return [sorted(members, key=lambda seat: seat.rank) for _, members in groups]
