"""Give each rank all CPUs of the processor package its GPU hangs on: every NUMA node of that socket.

For hosts cut into several nodes a socket (NPS2, NPS4, sub-NUMA clustering) whose GPU nodes are too small for the job's
loader workers. Memory still comes from the GPU's own node.
"""

from __future__ import annotations

from wellfed.model.cpuset import CpuSet
from wellfed.model.errors import PlacementError
from wellfed.placement.policies._base import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.placement.policies._base import Ground, Seat


def give(ground: Ground, seats: tuple[Seat, ...]) -> dict[int, CpuSet]:
    """Give the open CPUs of each rank's packages, and everything open where its place is unknown."""
    packages = {cpu.cpu: cpu.package for cpu in ground.machine.cpus if cpu.online}
    return {seat.rank: _of(ground, seat, packages) for seat in seats}


def _of(ground: Ground, seat: Seat, packages: dict[int, int | None]) -> CpuSet:
    whole = ground.open
    if seat.home is not None:
        here = ground.machine.cpus_of(seat.home)
        own = {packages.get(cpu) for cpu in here}
        if None in own:
            raise PlacementError(
                f"which package node {seat.home} belongs to is not recorded",
                remedy="use --policy node",
            )
        whole = CpuSet(cpu for cpu, package in packages.items() if package in own) & ground.open
    if not whole:
        raise PlacementError(
            f"nothing is left on the GPU's socket: CPUs {ground.reserved} are reserved",
            remedy="reserve fewer CPUs",
        )
    return whole if seat.home is None else (whole - ground.taken) or whole


POLICY = Policy("socket", "shares all CPUs of the GPU's processor package among its ranks", give)
