"""Leave every mask as it is."""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY
from wellfed.placement.policies._base import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.cpuset import CpuSet
    from wellfed.placement.policies._base import Ground, Seat


def give(_ground: Ground, seats: tuple[Seat, ...]) -> dict[int, CpuSet]:
    """Give nothing: an empty set is "leave the mask alone"."""
    return {seat.rank: EMPTY for seat in seats}


POLICY = Policy("none", "leaves the CPU mask of every rank alone", give)
