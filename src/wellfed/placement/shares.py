"""How are whole cores dealt to ranks?

Cores form a tree: nodes, L3 groups inside nodes, cores inside those. Ranks are dealt to the parts of one level in
proportion to their cores, and inside a part to its parts, so that a rank crosses as few borders as it can. Ranks keep
their order: the first ranks get the lowest CPU numbers. The same input gives the same shares.
"""

from __future__ import annotations

from wellfed.model.cpuset import CpuSet, union
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wellfed.model.cpuset import NodeSet


class Part(Value):
    """Some cores, and the smaller parts they lie in; without parts, the cores are the smallest."""

    cores: tuple[CpuSet, ...]
    parts: tuple[Part, ...] = ()

    @property
    def first(self) -> int:
        """Its smallest CPU number."""
        return min(core.first for core in self.cores)


def whole(parts: Sequence[Part]) -> Part:
    """Join parts into one, leaving out empty ones."""
    kept = tuple(sorted((part for part in parts if part.cores), key=lambda part: part.first))
    return Part(tuple(core for part in kept for core in part.cores), kept)


def deal(ranks: Sequence[int], part: Part) -> dict[int, CpuSet]:
    """Deal a part to ranks, at least one core each. There must be as many cores as ranks.

    Four L3 groups and two ranks: two groups each. Two L3 groups of 8 cores and four ranks: 4 cores each, none of them
    across a group's border. 7 cores and two ranks: 4 and 3.
    """
    if len(ranks) == 1:
        return {ranks[0]: union(part.cores)}
    if not part.parts:
        return _cut(ranks, part.cores)
    if len(ranks) < len(part.parts):
        return _several_parts_each(ranks, part.parts)
    dealt: dict[int, CpuSet] = {}
    start = 0
    for each, count in zip(part.parts, _seats(len(ranks), part.parts), strict=True):
        if count:
            dealt |= deal(ranks[start : start + count], each)
        start += count
    return dealt


def deal_overlapping(
    homes: Mapping[int, NodeSet], cores: Mapping[int, Sequence[CpuSet]]
) -> dict[int, CpuSet]:
    """Deal cores by node to ranks whose homes overlap without being equal, core by core to the poorest rank.

    ``homes`` are the nodes that a rank may have cores of. A rank that finds none left has no entry.
    """
    free = {node: len(found) for node, found in cores.items()}
    counts: dict[int, dict[int, int]] = {rank: dict.fromkeys(cores, 0) for rank in homes}
    choice = {rank: [node for node in homes[rank] if node in cores] for rank in homes}
    pressure = {node: sum(node in nodes for nodes in choice.values()) for node in cores}

    def take(rank: int) -> bool:
        open_nodes = [node for node in choice[rank] if free[node]]
        if not open_nodes:
            return False
        node = max(open_nodes, key=lambda node: (free[node] / pressure[node], -node))
        free[node] -= 1
        counts[rank][node] += 1
        return True

    room = {rank: sum(len(cores[node]) for node in choice[rank]) for rank in homes}
    hungry = [rank for rank in sorted(homes, key=lambda rank: (room[rank], rank)) if take(rank)]
    while hungry:
        poorest = min(hungry, key=lambda rank: (sum(counts[rank].values()), rank))
        if not take(poorest):
            hungry.remove(poorest)
    shares = dict.fromkeys(homes, 0)
    for node, found in cores.items():
        start = 0
        for rank in sorted(homes):
            end = start + counts[rank][node]
            shares[rank] |= union(found[start:end]).mask
            start = end
    return {rank: CpuSet.of_mask(mask) for rank, mask in shares.items() if mask}


def _cut(ranks: Sequence[int], cores: Sequence[CpuSet]) -> dict[int, CpuSet]:
    """Cut cores into runs that differ by one core at most, the longer ones first."""
    each, more = divmod(len(cores), len(ranks))
    dealt, start = {}, 0
    for position, rank in enumerate(ranks):
        end = start + each + (position < more)
        dealt[rank] = union(cores[start:end])
        start = end
    return dealt


def _seats(count: int, parts: Sequence[Part]) -> list[int]:
    """Tell how many ranks each part gets: one after the other where a rank would have most cores; never more than cores."""
    seats = [0] * len(parts)
    for _ in range(count):
        best = max(
            (index for index, part in enumerate(parts) if seats[index] < len(part.cores)),
            key=lambda index: (len(parts[index].cores) / (seats[index] + 1), -seats[index], -index),
        )
        seats[best] += 1
    return seats


def _several_parts_each(ranks: Sequence[int], parts: Sequence[Part]) -> dict[int, CpuSet]:
    """Give each rank one part or more: the largest first, always to the rank with fewest cores.

    Parts of one size are then handed out in order, so that a rank's parts are neighbours.
    """
    have = dict.fromkeys(ranks, 0)
    counts: dict[int, dict[int, int]] = {}
    for part in sorted(parts, key=lambda part: (-len(part.cores), part.first)):
        poorest = min(ranks, key=lambda rank: (have[rank], ranks.index(rank)))
        have[poorest] += len(part.cores)
        by_size = counts.setdefault(len(part.cores), dict.fromkeys(ranks, 0))
        by_size[poorest] += 1
    shares = dict.fromkeys(ranks, 0)
    for size, by_rank in counts.items():
        same = sorted((p for p in parts if len(p.cores) == size), key=lambda part: part.first)
        for rank in ranks:
            for part in same[: by_rank[rank]]:
                shares[rank] |= union(part.cores).mask
            same = same[by_rank[rank] :]
    return {rank: CpuSet.of_mask(mask) for rank, mask in shares.items()}
