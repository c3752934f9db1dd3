"""How does a training script bind itself beside its GPU, and learn what really holds?"""

from __future__ import annotations

import os

# Loaded with the function: ctypes costs 3 ms, which a script would else wait for in its first call.
import wellfed.host.syscalls  # noqa: F401
from wellfed.host.bind import bind as bind_here
from wellfed.host.bind import mask_of, own_tid
from wellfed.host.processes import bound_elsewhere, older_processes
from wellfed.model.cpuset import EMPTY, CpuSet
from wellfed.model.errors import BindingError, UsageError
from wellfed.model.job import Job
from wellfed.model.placement import Wishes
from wellfed.model.value import replace
from wellfed.placement.plan import plan
from wellfed.placement.ranks import job_from
from wellfed.placement.visible import main_vendor, visible_devices
from wellfed.workflows.plan import Plan
from wellfed.workflows.verify import verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wellfed.model.binding import Binding
    from wellfed.model.machine import Machine
    from wellfed.model.placement import RankPlacement

NUM_SAMPLES = 256
"""Pages sampled while a script waits for us; `verify` looks at more."""

PINNING_VARIABLES = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")
"""With one of these an OpenMP runtime pins the thread that loads it (pytorch#91989, pytorch#49971)."""


def bind(
    local_rank: int | None = None,
    *,
    num_local_ranks: int | None = None,
    policy: str = "node",
    memory: str = "preferred",
    smt: str = "on",
    reserve: str | CpuSet = EMPTY,
    reserve_cores_per_node: int = 0,
    roles: Sequence[tuple[str, int]] = (),
    gpus: Sequence[int] | None = None,
    memory_estimate_bytes: int | None = None,
    strict: bool = False,
    machine: Machine | None = None,
    environment: Mapping[str, str] | None = None,
) -> Binding:
    """Bind this process beside its GPU, CPUs of every thread and memory, and return what the kernel says holds.

    Call it first in the script: threads, pages and child processes that exist keep their memory where it is, and
    the result names them. CUDA is not initialised. The rank comes from the launcher's variables (torchrun, Slurm,
    MPI, Flux, JAX); without any the process is alone and is put beside all GPUs that it may see; without a GPU
    nothing is touched, and the notes say so. ``Binding.bound`` is True only when the kernel confirmed CPUs and memory.

    >>> binding = wellfed.bind()
    >>> binding.bound, str(binding.cpus), binding.memory
    (True, '0-23,48-71', 'preferred-many:0 (static)')

    ``machine`` (from a former call of `machine_of`) saves reading the host again. UsageError and PlacementError: what
    was asked for makes no sense here. BindingError only with ``strict``, where anything planned is not confirmed.
    """
    variables = os.environ if environment is None else environment
    host = _this_host() if machine is None else _live(machine)
    job = _job(local_rank, num_local_ranks, variables)
    wishes = Wishes(
        policy=policy,
        smt=smt,
        memory=memory,
        reserve=CpuSet.parse(reserve) if isinstance(reserve, str) else reserve,
        reserve_cores_per_node=reserve_cores_per_node,
        roles=tuple(roles),
        gpus=None if gpus is None else tuple(gpus),
        wanted_bytes=memory_estimate_bytes,
    )
    others: tuple[str, ...] = ()
    if policy != "none":
        elsewhere = bound_elsewhere(host.allowed.cpus)
        wishes, others = replace(wishes, taken=elsewhere.cpus), elsewhere.sentences
    # Not plan_launch: that puts mixed GPUs in PCI order, which `run` does for its children and nobody does for us.
    visible = visible_devices(host, variables, main_vendor(host))
    placement = plan(host, job, visible, wishes)
    rank = Plan(host, variables, job, visible, placement).own
    pinned = _pinned_at_import(variables)
    binding = bind_as_planned(rank)
    notes = (*placement.notes, *rank.notes, *others, *pinned, *binding.notes)
    binding = replace(binding, notes=tuple(dict.fromkeys(notes)))
    if strict and not binding.bound:
        raise not_bound(binding)
    return binding


def bind_as_planned(rank: RankPlacement) -> Binding:
    """Bind this process to a placement and verify it; what the kernel refuses is a step of the result, not an error."""
    older = older_processes(os.getpid()) if rank.cpus or rank.memory.mode != "none" else ()
    steps = bind_here(rank.cpus, rank.memory)
    found = verify(os.getpid(), rank, include_children=False, num_samples=NUM_SAMPLES)
    notes = found.notes
    if rank.memory.mode != "none" and own_tid() != os.getpid():
        notes = (
            "bind() ran in a thread: only that thread has the memory policy, call it in the main thread",
            *notes,
        )
    return replace(found, steps=steps, older_processes=older, notes=notes)


def not_bound(binding: Binding) -> BindingError:
    """Say in one sentence what of a binding the kernel did not confirm, and what to do about it."""
    if not binding.planned_cpus and binding.planned_memory == "none":
        return BindingError(
            f"process {binding.pid} is not bound: {'; '.join(binding.notes) or 'nothing was planned'}",
            remedy="start it as a rank of a launcher, or with a GPU visible, or drop strict=True",
        )
    said = []
    if binding.cpus != binding.planned_cpus:
        said.append(f"CPUs are {_shown(binding.cpus)}, planned were {binding.planned_cpus}")
    if not binding.memory_bound and binding.planned_memory != "none":
        said.append(f"memory is {_shown(binding.memory)}, planned was {binding.planned_memory}")
    reasons = [step.explanation for step in binding.steps if step.errno_name and step.explanation]
    found = "; ".join(said or binding.notes[-1:])
    return BindingError(
        f"process {binding.pid} is not bound as planned: {found}",
        remedy=reasons[0] if reasons else "run `wellfed doctor` to see what this host allows",
    )


def _this_host() -> Machine:
    from wellfed.host.live_tree import LiveTree
    from wellfed.workflows.machine import known_for_launch

    return known_for_launch(LiveTree()).machine


def _live(machine: Machine) -> Machine:
    if machine.live:
        return machine
    raise UsageError(
        f"bind() was given {machine.name}, which is not the running host",
        remedy="leave machine= out, or pass what machine_of(None) returned",
    )


def _job(
    local_rank: int | None, num_local_ranks: int | None, environment: Mapping[str, str]
) -> Job | None:
    """Take the rank from the arguments, else from the launcher's variables."""
    if local_rank is not None and num_local_ranks is not None:
        return Job(num_local_ranks, local_rank, source=f"bind({local_rank}, {num_local_ranks})")
    job = job_from(environment)
    if local_rank is None:
        return job
    if job is None:
        raise UsageError(
            f"bind(local_rank={local_rank}): nothing says how many ranks share this host",
            remedy="say it: wellfed.bind(local_rank, num_local_ranks=8)",
        )
    return replace(job, local_rank=local_rank)


def _pinned_at_import(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Notice an OpenMP runtime that had pinned this thread before we could look: the rest of the node seems forbidden."""
    named = [name for name in PINNING_VARIABLES if environment.get(name)]
    own, parents = mask_of(0), mask_of(os.getppid())
    if not (named and isinstance(own, CpuSet) and isinstance(parents, CpuSet)):
        return ()
    if len(own) > 1 or not own < parents:
        return ()
    return (
        f"this thread may use CPU {own} only, its parent {parents}: OpenMP pinned it at import ({', '.join(named)}); "
        "bind before importing torch, or unset the variable",
    )


def _shown(found: object) -> str:
    return "unknown" if found is None else str(found)
