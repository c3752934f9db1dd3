"""Which rank of which job is this process, and how many ranks has the job on this host?

Read from the variables that launchers set. Where several launchers have left theirs, the innermost is believed: it
started this very process, while the others started a shell, a daemon or an agent before it.
"""

from __future__ import annotations

from wellfed.model.errors import UsageError
from wellfed.model.job import Job
from wellfed.model.value import Value, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SAY_SIZE = "say how many ranks of the job run on this host: LOCAL_WORLD_SIZE=8"
REAL_STEPS_BELOW = 0xFFFFFFF0
"""Slurm numbers its own steps (batch script, interactive shell, extern) from here upward (slurm.h, SLURM_BATCH_SCRIPT)."""


class Launcher(Value):
    """The variables of one launcher; of several names the first that is set counts."""

    name: str
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    rank: tuple[str, ...] = ()
    size: tuple[str, ...] = ()


# torchrun's names are also those of Lightning, accelerate and wellfed itself; LOCAL_SIZE is DeepSpeed's. mpirun inside a
# Slurm job starts its daemons by srun, so every rank carries the SLURM_LOCALID of its daemon: Slurm's come last.
LAUNCHERS = (
    Launcher(
        "torchrun", ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"), ("RANK",), ("WORLD_SIZE",)
    ),
    Launcher(
        "openmpi",
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
    ),
    Launcher(
        "mvapich",
        ("MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "MVP_COMM_WORLD_LOCAL_SIZE"),
        ("MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK"),
        ("MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_SIZE"),
    ),
    Launcher(
        "mpich",
        ("MPI_LOCALRANKID",),
        ("MPI_LOCALNRANKS",),
        ("PMI_RANK", "PMIX_RANK"),
        ("PMI_SIZE",),
    ),
    Launcher(
        "pals",
        ("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        ("PALS_RANKID", "PMI_RANK"),
        ("PMI_SIZE",),
    ),
    Launcher("flux", ("FLUX_TASK_LOCAL_ID",), (), ("FLUX_TASK_RANK",), ("FLUX_JOB_SIZE",)),
    Launcher(
        "slurm", ("SLURM_LOCALID",), (), ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    ),
)


def job_from(environment: Mapping[str, str]) -> Job | None:
    """Return the job whose rank this process is, None where no launcher made it one.

    Raises UsageError where a rank does not say how many ranks share the host, or contradicts itself: a split of cores
    that every rank computes for itself needs the same numbers in all of them.
    """
    found = [job for launcher in LAUNCHERS if (job := _job(launcher, environment)) is not None]
    if not found:
        return _jax(environment) or _without_local_rank(environment)
    job = found[0]
    if job.num_local_ranks == 0:
        job = _sized_by_others(job, found[1:])
    if job.local_rank is None or job.local_rank >= job.num_local_ranks:
        raise UsageError(
            f"rank {job.local_rank} of this host is outside its {job.num_local_ranks} ranks ({job.source})",
            remedy=SAY_SIZE,
        )
    if (
        job.world_size is not None
        and max(job.num_local_ranks, (job.rank or 0) + 1) > job.world_size
    ):
        raise UsageError(
            f"{job.source}: rank {job.rank} and {job.num_local_ranks} ranks on this host do not fit in a job of"
            f" {job.world_size}",
            remedy="unset the variables that an earlier launcher left behind",
        )
    others = [
        f"{other.launcher} ({other.source})" for other in found[1:] if not _agrees(job, other)
    ]
    if not others:
        return job
    note = f"rank by {job.launcher}; not by {', '.join(others)}, which started what started it"
    return replace(job, notes=(note,))


def expand_tasks(text: str) -> tuple[int, ...]:
    """Read Slurm's tasks per node: ``2(x3),1`` is 2, 2, 2 and 1."""
    counts: list[int] = []
    for part in text.split(","):
        number, bracket, times = part.strip().partition("(x")
        repeats = times.removesuffix(")") if bracket and times.endswith(")") else bracket or "1"
        if not _is_number(number) or not _is_number(repeats) or int(repeats) > 100_000:
            raise UsageError(
                f"{text!r} is not Slurm's list of tasks per node, such as 2(x3),1", remedy=SAY_SIZE
            )
        counts += [int(number)] * int(repeats)
    return tuple(counts)


def _job(launcher: Launcher, environment: Mapping[str, str]) -> Job | None:
    """Read one launcher's variables; ``num_local_ranks`` 0 where it does not say it."""
    name, local_rank = _first(launcher.local_rank, environment)
    if local_rank is None:
        return None
    if launcher.name == "slurm" and not _is_slurm_task(environment, local_rank):
        return None
    size_name, num_local_ranks = _first(launcher.local_size, environment)
    _, rank = _first(launcher.rank, environment)
    world_name, world_size = _first(launcher.size, environment)
    if launcher.name == "slurm":
        size_name, num_local_ranks = _slurm_size(environment)
    elif launcher.name == "flux":
        size_name, num_local_ranks = _flux_size(environment, world_size)
    if num_local_ranks is None and world_size == 1:
        size_name, num_local_ranks = f"{world_name}=1", 1
    if size_name and "=" not in size_name:
        size_name = f"{size_name}={num_local_ranks}"
    if num_local_ranks == 0:
        raise UsageError(f"{size_name}: a job has at least one rank", remedy=SAY_SIZE)
    return Job(
        num_local_ranks or 0,
        local_rank,
        rank,
        world_size,
        launcher.name,
        f"{name}={local_rank}" + (f", {size_name}" if size_name else ""),
        gpus_per_rank=_slurm_gpus(environment) if launcher.name == "slurm" else None,
    )


def _sized_by_others(job: Job, others: list[Job]) -> Job:
    """Take the size from another launcher that gives this process the same rank, as in LOCAL_RANK=$SLURM_LOCALID."""
    for other in others:
        if other.local_rank == job.local_rank and other.num_local_ranks:
            return replace(
                job, num_local_ranks=other.num_local_ranks, source=f"{job.source}, {other.source}"
            )
    raise UsageError(
        f"{job.source}: this is a rank, and nothing says how many ranks share this host",
        remedy=SAY_SIZE,
    )


def _agrees(job: Job, other: Job) -> bool:
    return other.local_rank == job.local_rank and other.num_local_ranks in (0, job.num_local_ranks)


def _is_slurm_task(environment: Mapping[str, str], local_rank: int) -> bool:
    """Tell a task of srun from the batch script, which carries SLURM_LOCALID=0 and SLURM_PROCID=0 and is no rank."""
    _, rank = _first(("SLURM_PROCID",), environment)
    if local_rank > 0 or (rank or 0) > 0:
        return True
    _, step = _first(("SLURM_STEP_ID", "SLURM_STEPID"), environment)
    counted = environment.get("SLURM_STEP_NUM_TASKS") or environment.get(
        "SLURM_STEP_TASKS_PER_NODE"
    )
    return step is not None and step < REAL_STEPS_BELOW and bool(counted)


def _slurm_size(environment: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Find how many tasks of the step run on this node; of the step before what the job asked for."""
    _, node = _first(("SLURM_NODEID",), environment)
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        text = environment.get(name)
        counts = expand_tasks(text) if text else ()
        if node is not None and node < len(counts):
            return f"{name}={text}, SLURM_NODEID={node}", counts[node]
        if counts and len(set(counts)) == 1 and node is None:
            return f"{name}={text}", counts[0]
    _, nodes = _first(("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"), environment)
    found, tasks = _first(("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), environment)
    if nodes == 1 and tasks is not None:
        return f"{found}={tasks}", tasks
    return _first(("SLURM_NTASKS_PER_NODE",), environment)


def _slurm_gpus(environment: Mapping[str, str]) -> int | None:
    """Read ``--gpus-per-task``: ``2`` or ``a100:2``; Slurm then shows each task its own GPUs only."""
    count = environment.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2].strip()
    return int(count) if _is_number(count) and int(count) else None


def _flux_size(
    environment: Mapping[str, str], world_size: int | None
) -> tuple[str | None, int | None]:
    """Divide Flux's tasks by its nodes; where that leaves a rest, nodes differ and nothing says which is which."""
    _, nodes = _first(("FLUX_JOB_NNODES",), environment)
    if world_size is None or not nodes or world_size % nodes:
        return None, None
    return f"FLUX_JOB_SIZE={world_size}, FLUX_JOB_NNODES={nodes}", world_size // nodes


def _jax(environment: Mapping[str, str]) -> Job | None:
    """Read JAX's variables: a process without JAX_LOCAL_DEVICE_IDS owns every GPU of its host, so it is alone there."""
    _, rank = _first(("JAX_PROCESS_ID",), environment)
    if rank is None:
        return None
    _, world_size = _first(("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT"), environment)
    text = environment.get("JAX_LOCAL_DEVICE_IDS", "").strip()
    if not text:
        return Job(1, 0, rank, world_size, "jax", f"JAX_PROCESS_ID={rank}, all GPUs of its host")
    ids = tuple(_number(part, "JAX_LOCAL_DEVICE_IDS") for part in text.split(","))
    source = f"JAX_PROCESS_ID={rank}, JAX_LOCAL_DEVICE_IDS={text}"
    name, size = _first(("LOCAL_WORLD_SIZE",), environment)
    if size is None and world_size == 1:
        name, size = "JAX_NUM_PROCESSES", 1
    local_rank = ids[0] // len(ids)
    if size is None:
        raise UsageError(
            f"{source}: this process owns some GPUs, and nothing says how many processes share the host",
            remedy=SAY_SIZE,
        )
    if (
        ids != tuple(range(local_rank * len(ids), (local_rank + 1) * len(ids)))
        or local_rank >= size
    ):
        raise UsageError(
            f"{source}, {name}={size}: wanted the device ids of one process after the other, such as 0,1 and 2,3",
            remedy="set LOCAL_RANK and LOCAL_WORLD_SIZE yourself, or use --policy node --gpus",
        )
    return Job(size, local_rank, rank, world_size, "jax", f"{source}, {name}={size}", ids)


def _without_local_rank(environment: Mapping[str, str]) -> Job | None:
    """A rank by PMI alone: fine where the job has one rank, else nobody says which one of the host it is."""
    name, rank = _first(("PMI_RANK", "PMIX_RANK"), environment)
    if rank is None:
        return None
    _, world_size = _first(("PMI_SIZE", "PMIX_SIZE"), environment)
    if world_size == 1:
        return Job(1, 0, rank, 1, "pmi", f"{name}={rank}, PMI_SIZE=1")
    raise UsageError(
        f"{name}={rank}: this is a rank, and nothing says which one of this host it is",
        remedy="set LOCAL_RANK and LOCAL_WORLD_SIZE beside it: LOCAL_RANK=3 LOCAL_WORLD_SIZE=8",
    )


def _first(names: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Return the first variable that is set and not empty, as a number."""
    for name in names:
        text = environment.get(name, "").strip()
        if text:
            return name, _number(text, name)
    return None, None


def _number(text: str, name: str) -> int:
    if not _is_number(text.strip()):
        raise UsageError(
            f"{name}={text!r} is not a whole number from 0 upward",
            remedy=f"unset {name}, or let the launcher set it",
        )
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
