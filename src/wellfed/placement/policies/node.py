"""Give each rank all CPUs of its GPU's NUMA node, shared with the other ranks there.

The scheduler balances threads inside the node, so nothing idles while something waits, and pages touched first land
beside the GPU. DGX H100: ranks 0-3 on 0-55,112-167 and ranks 4-7 on 56-111,168-223.
"""

from __future__ import annotations

from wellfed.model.errors import PlacementError
from wellfed.placement.policies._base import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.cpuset import CpuSet
    from wellfed.placement.policies._base import Ground, Seat


def give(ground: Ground, seats: tuple[Seat, ...]) -> dict[int, CpuSet]:
    """Give the open CPUs of each rank's nodes, and everything open where its place is unknown.

    CPUs to which another job is bound are left to it, unless nothing else is left: sharing a node with another job
    is better than computing on the far side of the host.
    """
    return {seat.rank: _of(ground, seat) for seat in seats}


def _of(ground: Ground, seat: Seat) -> CpuSet:
    if seat.home is None:
        return _some(ground.open, ground)
    here = _some(ground.machine.cpus_of(seat.home) & ground.open, ground)
    return (here - ground.taken) or here


def _some(cpus: CpuSet, ground: Ground) -> CpuSet:
    if not cpus:
        raise PlacementError(
            f"nothing is left beside the GPU: CPUs {ground.reserved} are reserved",
            remedy="reserve fewer CPUs",
        )
    return cpus


POLICY = Policy("node", "shares all CPUs of the GPU's NUMA node among its ranks", give)
