"""What is a policy: how CPUs are given to the ranks of a job?"""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet
from wellfed.model.errors import PlacementError
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from wellfed.model.machine import Machine


class Seat(Value):
    """What a policy knows of one rank."""

    rank: int
    home: NodeSet | None
    """Nodes whose CPUs it shall have, all with allowed CPUs; None: where its GPUs are cannot be known."""


class Ground(Value):
    """What there is to give."""

    machine: Machine
    allowed: CpuSet
    """Online and allowed."""
    reserved: CpuSet = EMPTY
    taken: CpuSet = EMPTY

    @property
    def open(self) -> CpuSet:
        """What a policy that shares CPUs may give: not reserved."""
        return self.allowed - self.reserved

    def nodes(self, seat: Seat) -> NodeSet:
        """Return a seat's nodes; every node with allowed CPUs where its place is unknown."""
        if seat.home is not None:
            return seat.home
        return NodeSet(n.node for n in self.machine.nodes if n.cpus.mask & self.allowed.mask)

    def free_cores(self, node: int | None) -> tuple[CpuSet, ...]:
        """Return the cores of a node that nobody else has any thread of; None: the cores of CPUs without a node."""
        found = self.machine.node(node) if node is not None else None
        cpus = found.cpus if found is not None else self._homeless()
        busy = self.reserved | self.taken
        return tuple(
            core for core in self.machine.cores(cpus & self.allowed) if not core.mask & busy.mask
        )

    def _homeless(self) -> CpuSet:
        return self.allowed - self.machine.cpus_of(node.node for node in self.machine.nodes)


class Policy(Value):
    """One way. A file of this room exposes one as ``POLICY``; its name is the file's, with dashes."""

    name: str
    what: str
    """What it does, one sentence."""
    give: Callable[[Ground, tuple[Seat, ...]], dict[int, CpuSet]]
    """(ground, seats) -> CPUs by rank; a rank may have none only under ``none``. PlacementError where it cannot."""
    own: bool = False
    """Whether ranks get CPUs of their own, so that all ranks must be planned together."""


def too_few(ground: Ground, nodes: NodeSet, *, num_ranks: int, num_free: int) -> PlacementError:
    """Say with all figures why ranks cannot have a core each."""
    allowed = len(ground.machine.cores(_cpus_of(ground, nodes)))
    parts = [f"{allowed} allowed"]
    for what, busy in (("reserved", ground.reserved), ("taken by other jobs", ground.taken)):
        num_busy = len(
            [
                core
                for core in ground.machine.cores(_cpus_of(ground, nodes))
                if core.mask & busy.mask
            ]
        )
        parts += [f"{num_busy} {what}"] if num_busy else []
    ranks = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
    where = f"node {nodes}" if len(nodes) == 1 else f"nodes {nodes}"
    return PlacementError(
        f"{where if nodes else 'this host'} has {num_free} free whole cores for {ranks} ({', '.join(parts)})",
        remedy="start fewer ranks, reserve fewer cores, wait for the other job, or share CPUs: --policy node",
    )


def _cpus_of(ground: Ground, nodes: NodeSet) -> CpuSet:
    return ground.machine.cpus_of(nodes) & ground.allowed if nodes else ground.allowed
