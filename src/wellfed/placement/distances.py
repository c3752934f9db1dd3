"""Which node is near, and which node do some CPUs belong to?"""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY, NodeSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.cpuset import CpuSet
    from wellfed.model.machine import Machine, NumaNode


def nearest(machine: Machine, start: NodeSet, among: NodeSet) -> NodeSet:
    """Return the nodes of ``among`` with the smallest firmware distance from any node of ``start``.

    Several where they are equally near; none where no distance is recorded, because the number of a node
    says nothing about where it is. The only candidate is always the nearest.
    """
    if len(among) == 1:
        return among
    best, found = None, EMPTY
    for here in start:
        for there in among:
            distance = _distance(machine, here, there)
            if distance is None or (best is not None and distance > best):
                continue
            found = found if distance == best else EMPTY
            best, found = distance, found | NodeSet([there])
    return found


def nodes_of(machine: Machine, cpus: CpuSet) -> NodeSet:
    """Return the nodes that have any of these CPUs."""
    return NodeSet(node.node for node in machine.nodes if node.cpus.mask & cpus.mask)


def lacks_cpus(node: NumaNode) -> bool:
    """Say whether a node surely has no online CPU; a description that does not list CPUs leaves it open."""
    return node.hbm_of is not None or (not node.cpus and node.cpus_recorded)


def _distance(machine: Machine, here: int, there: int) -> int | None:
    if here == there:
        return 0
    start, end = machine.node(here), machine.node(there)
    found = start.distance_to(there) if start is not None else None
    if found is None and end is not None:
        return end.distance_to(here)
    return found
