"""Give each rank last-level caches of its own: whole L3 groups on its GPU's node.

Threads of one rank then share an L3 and no other rank evicts their lines, which matters where a node has many small
L3s (EPYC: 4 to 16 cores each). With fewer ranks than L3s a rank gets several; with more, an L3 is split into runs of
whole cores. Where the kernel shows no L3, clusters (shared L2) are the groups, and else single cores.
"""

from __future__ import annotations

from wellfed.model.cpuset import CpuSet
from wellfed.placement.own_cores import give_own
from wellfed.placement.policies._base import Ground, Policy, Seat
from wellfed.placement.shares import Part, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.machine import Cpu


def give(ground: Ground, seats: tuple[Seat, ...]) -> dict[int, CpuSet]:
    """Cut each node at the borders of its L3 groups first, and inside a group only where ranks outnumber groups."""
    cpus = {cpu.cpu: cpu for cpu in ground.machine.cpus}

    def cut(cores: tuple[CpuSet, ...]) -> Part:
        groups: dict[CpuSet, list[CpuSet]] = {}
        for core in cores:
            groups.setdefault(_complex(cpus[core.first], core), []).append(core)
        return whole([Part(tuple(group)) for group in groups.values()])

    return give_own(ground, seats, cut)


def _complex(cpu: Cpu, core: CpuSet) -> CpuSet:
    """Return what names the group of a core: its L3, else its cluster, else itself."""
    return cpu.l3 or cpu.cluster or core


POLICY = Policy("core-complex", "gives each rank whole L3 caches on its GPU's node", give, True)
