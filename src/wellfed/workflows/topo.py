"""Where are the CPUs, memory, GPUs, NICs and disks of a host, and where would ranks go?"""

from __future__ import annotations

from wellfed.model.placement import Wishes
from wellfed.model.value import Value
from wellfed.workflows.machine import host_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.machine import Machine
    from wellfed.model.placement import Placement


class Chart(Value):
    """What a map shows."""

    machine: Machine
    placement: Placement | None = None
    """Ranks as `wellfed run` would place them, where the person asked for them."""


def chart(
    where: str | None = None,
    *,
    num_ranks: int | None = None,
    per_gpu: bool = False,
    policy: str = "node",
) -> Chart:
    """Return this host (None), a recorded or a described one; with ranks, the plan that `wellfed run` would make.

    A WellfedError says why a host cannot be read, or why no plan can be made.
    """
    known = host_of(where)
    if num_ranks is None and not per_gpu:
        return Chart(known.machine)
    from wellfed.workflows.plan import Request, plan_launch

    request = Request(Wishes(policy=policy), num_ranks=num_ranks, per_gpu=per_gpu)
    plan = plan_launch(known, request)
    return Chart(plan.machine, plan.placement)
