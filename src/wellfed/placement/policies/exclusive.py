"""Give each rank whole physical cores of its own on its GPU's node.

The ranks of a node split its cores fairly: they differ by one core at most. Node 1 with 16 cores and GPUs 2 and 3:
rank 2 on the first eight, rank 3 on the others. A core of which another job or the operating system has one thread is
given to nobody, because hyper-threads of one core slow each other down.
"""

from __future__ import annotations

from wellfed.placement.own_cores import give_own
from wellfed.placement.policies._base import Ground, Policy, Seat
from wellfed.placement.shares import Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.cpuset import CpuSet


def give(ground: Ground, seats: tuple[Seat, ...]) -> dict[int, CpuSet]:
    """Cut the cores of each node into runs, one a rank."""
    return give_own(ground, seats, lambda cores: Part(cores))


POLICY = Policy("exclusive", "gives each rank whole cores of its own on its GPU's node", give, True)
