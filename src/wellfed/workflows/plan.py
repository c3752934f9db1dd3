"""What would ``wellfed run`` do with this command line on that host?"""

from __future__ import annotations

from wellfed.model.cpuset import CpuSet
from wellfed.model.errors import GpuError, UsageError
from wellfed.model.job import Job
from wellfed.model.machine import normal_pci_address
from wellfed.model.placement import Wishes
from wellfed.model.value import Value, replace
from wellfed.placement.environment import with_known_order
from wellfed.placement.plan import plan
from wellfed.placement.policies import policy_named
from wellfed.placement.ranks import job_from
from wellfed.placement.visible import main_vendor, visible_devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellfed.model.job import VisibleDevices
    from wellfed.model.machine import Gpu, Machine
    from wellfed.model.placement import Placement, RankPlacement
    from wellfed.workflows.machine import KnownHost

LAUNCHER = "wellfed"
AUTO = "auto"
"""As --gpus: choose them by the cores beside them."""


class Request(Value):
    """What was asked of a launch, as far as it decides where ranks go."""

    wishes: Wishes
    gpus: tuple[str, ...] = ()
    """By index, UUID, PCI address, or `AUTO`; empty: all that are visible."""
    num_ranks: int | None = None
    """Start so many ranks; None: be one process, or the rank that another launcher made."""
    per_gpu: bool = False
    """Start one rank for each GPU."""
    one_visible: bool = False

    @property
    def starts_ranks(self) -> bool:
        """Whether the ranks of this host are started here."""
        return self.per_gpu or self.num_ranks is not None


class Plan(Value):
    """A placement, and what it was made from."""

    machine: Machine
    environment: Mapping[str, str]
    job: Job | None
    visible: VisibleDevices
    placement: Placement
    starts_ranks: bool = False
    chosen_gpus: tuple[str, ...] = ()
    """PCI addresses that --gpus chose for the whole job."""
    asked_driver: tuple[str, ...] = ()
    other_jobs: tuple[str, ...] = ()
    """Whose CPUs were left to them, one sentence each."""

    @property
    def asked_notes(self) -> tuple[str, ...]:
        """Say that the driver was asked, and why."""
        return tuple(f"the NVIDIA driver was asked: {reason}" for reason in self.asked_driver)

    @property
    def own(self) -> RankPlacement:
        """The part of this process, which is one rank or all there is."""
        if self.job is None or self.job.local_rank is None:
            return self.placement.ranks[0]
        rank = self.placement.rank(self.job.local_rank)
        if rank is None:
            planned = ", ".join(str(each.local_rank) for each in self.placement.ranks)
            raise UsageError(
                f"rank {self.job.local_rank} is not in the plan, which has the ranks {planned or 'of nobody'}",
                remedy="give every rank a GPU that it sees, or start fewer ranks",
            )
        return rank


def plan_launch(known: KnownHost, request: Request) -> Plan:
    """Plan every rank of this host. UsageError, GpuError or PlacementError where that cannot be done as asked."""
    machine, environment = known.machine, known.environment
    found = job_from(environment)
    visible = visible_devices(machine, with_known_order(machine, environment), main_vendor(machine))
    wishes = request.wishes
    chosen: tuple[str, ...] = ()
    if request.gpus and request.gpus != (AUTO,):
        indices = tuple(gpu_named(machine, name).index for name in request.gpus)
        wishes = replace(wishes, gpus=indices)
    job = _started_job(request, found, visible) if request.starts_ranks else found
    if request.gpus == (AUTO,):
        wishes = replace(wishes, gpus=_choose(machine, visible, job, request))
    if wishes.gpus is not None and (request.starts_ranks or job is None):
        chosen = tuple(machine.gpus[i].pci_address for i in _positions(machine, wishes.gpus))
    others: tuple[str, ...] = ()
    if machine.live and _may_bind(wishes, visible, job):
        wishes, others = _beside_other_jobs(machine, wishes)
    return Plan(
        machine,
        environment,
        job,
        visible,
        plan(machine, job, visible, wishes),
        request.starts_ranks,
        chosen,
        known.asked_driver,
        others,
    )


def gpu_named(machine: Machine, name: str) -> Gpu:
    """Find a GPU by its index in PCI order, its UUID or the beginning of it, or its PCI address."""
    if name.isascii() and name.isdigit():
        found = [gpu for gpu in machine.gpus if gpu.index == int(name)]
        # Where two vendors have GPUs each counts its own; those of the job's vendor are meant.
        found = [gpu for gpu in found if gpu.vendor == main_vendor(machine)] or found
    elif ":" in name:
        found = [gpu for gpu in machine.gpus if gpu.pci_address == normal_pci_address(name)]
    else:
        wanted = name.lower()
        found = [gpu for gpu in machine.gpus if (gpu.uuid or "").lower().startswith(wanted)]
    if len(found) == 1:
        return found[0]
    have = ", ".join(f"{gpu.index} ({gpu.pci_address})" for gpu in machine.gpus) or "none"
    what = "names more than one GPU" if found else "is no GPU of this host"
    raise GpuError(f"{name!r} {what}; it has: {have}", remedy="choose by what `wellfed topo` shows")


def _started_job(request: Request, found: Job | None, visible: VisibleDevices) -> Job:
    """Make the job whose ranks are started here; none inside a job that has several ranks already."""
    option = "--per-gpu" if request.per_gpu else f"--ranks {request.num_ranks}"
    if request.per_gpu and request.num_ranks is not None:
        raise UsageError(
            "--per-gpu and --ranks were both given",
            remedy="say how many ranks once: --per-gpu, or --ranks N",
        )
    if found is not None and max(found.num_local_ranks, found.world_size or 1) > 1:
        raise UsageError(
            f"{option} was given to a process that is a rank of a job already ({found.source})",
            remedy="leave it out: this rank is then bound and becomes the command; or unset those variables",
        )
    count = request.num_ranks
    if count is None:
        count = len(request.gpus) if request.gpus and request.gpus != (AUTO,) else len(visible.gpus)
    if not count:
        raise GpuError(
            "--per-gpu starts one rank for each GPU, and no GPU is visible",
            remedy="say how many ranks there shall be: --ranks N; `wellfed topo` shows the GPUs",
        )
    if any(visible.mig_uuids) and count > 1 and not request.one_visible:
        raise UsageError(
            f"{option}: MIG slices are visible, and CUDA shows a process only the first of a list",
            remedy="add --one-visible, so that each rank is given its own slice",
        )
    return Job(count, None, None, count, LAUNCHER, option)


def _choose(
    machine: Machine, visible: VisibleDevices, job: Job | None, request: Request
) -> tuple[int, ...]:
    from wellfed.placement.choose import choose_gpus

    if request.per_gpu:
        return choose_gpus(machine, visible, len(visible.gpus))
    return choose_gpus(machine, visible, job.num_local_ranks if job is not None else 1)


def _positions(machine: Machine, indices: tuple[int, ...]) -> tuple[int, ...]:
    vendor = main_vendor(machine)
    where = {gpu.index: i for i, gpu in enumerate(machine.gpus) if gpu.vendor == vendor}
    return tuple(where[index] for index in indices if index in where)


def _may_bind(wishes: Wishes, visible: VisibleDevices, job: Job | None) -> bool:
    """Say whether masks will be set at all: looking through every process of a host costs milliseconds."""
    if wishes.policy == "none":
        return False
    return bool(visible.gpus) or (job is not None and policy_named(wishes.policy).own)


def _beside_other_jobs(machine: Machine, wishes: Wishes) -> tuple[Wishes, tuple[str, ...]]:
    from wellfed.host.processes import bound_elsewhere

    elsewhere = bound_elsewhere(machine.allowed.cpus)
    return replace(wishes, taken=wishes.taken | CpuSet(elsewhere.cpus)), elsewhere.sentences
