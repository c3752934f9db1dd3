"""What does this host answer to questions that no file answers?"""

from __future__ import annotations

import errno
import os

from wellfed.model.cpuset import CpuSet, NodeSet
from wellfed.model.tree import Unreadable, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LAUNCH_PREFIXES = (
    "CUDA_", "NVIDIA_VISIBLE", "NVIDIA_DRIVER_CAPABILITIES", "ROCR_", "HIP_", "GPU_DEVICE_ORDINAL", "ZE_",
    "ONEAPI_DEVICE_SELECTOR", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "NCCL_", "UCX_",
    "PYTORCH_", "TORCH_", "TORCHELASTIC_", "LOCAL_", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCAL", "MV2_COMM_WORLD_",
    "PALS_", "FLUX_", "JAX_", "LD_PRELOAD", "MALLOC_", "GLIBC_TUNABLES", "TCMALLOC_", "MASTER_",
)  # fmt: skip
"""Variables that decide where a job's processes, threads and memory go, or which GPUs they see."""

SLURM_PREFIXES = (
    "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_", "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_TASKS_PER_NODE", "SLURM_CPUS_", "SLURM_JOB_CPUS_PER_NODE", "SLURM_CPU_BIND", "SLURM_MEM_BIND",
    "SLURM_GPU", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_TRES_PER_TASK", "SLURM_GTIDS", "SLURM_HINT",
    "SLURM_THREADS_PER_CORE", "SLURM_DISTRIBUTION", "SLURM_MEM_PER_", "SLURM_ARRAY_TASK_", "SLURM_HET_SIZE",
    "SLURM_OVERCOMMIT", "SLURM_EXACT", "SLURM_WHOLE",
)  # fmt: skip
"""Ids, counts and bindings of a Slurm job; not its name, its people, its hosts or its folders."""

SECRETS = ("TOKEN", "SECRET", "PASSW", "CREDENTIAL", "API_KEY", "ACCESS_KEY")

IO_URING_SETUP = 425
"""One number on every architecture: calls added after v5.0 share it (include/uapi/asm-generic/unistd.h)."""
IO_URING_PARAMS_BYTES = 120
"""sizeof(struct io_uring_params), include/uapi/linux/io_uring.h."""

MAX_CANDIDATES = 200
"""Names in a directory that are looked at for a file to open."""


def answer(question: str) -> str | Unreadable:
    """Answer one question about the running host, or about this process.

    =====================  ================================================================================
    ``sched_getaffinity``  CPUs of the calling thread, ``0-7,64-71``
    ``rlimit NAME``        ``SOFT HARD`` in the kernel's units, or ``unlimited``: ``rlimit memlock``
    ``statvfs PATH``       ``bsize=4096 blocks=… bavail=… files=… favail=…``; blocks count ``bsize`` bytes
    ``mempolicy``          ``ok`` if set_mempolicy(MPOL_PREFERRED) works here, else the errno
    ``mempolicy-many``     the same for MPOL_PREFERRED_MANY with MPOL_F_STATIC_NODES (kernel 5.15)
    ``fifo``               ``ok`` if this user may have SCHED_FIFO
    ``io_uring``           ``ok`` if io_uring_setup works: seccomp and kernel.io_uring_disabled forbid it
    ``odirect PATH``       ``ok`` if the file system takes O_DIRECT, ``EINVAL`` if it does not; another errno says
                           that it could not be asked, ``ENODATA`` that there was no file to ask with
    ``environ``            the variables that decide a launch, ``NAME=value`` one a line, sorted
    ``uname machine``      ``x86_64``; also ``uname release``
    ``page size``          bytes
    =====================  ================================================================================

    A question that nobody knows, and ``nvml``, which only recordings answer, are ``ENODATA``: not recorded.
    """
    word, _, rest = question.partition(" ")
    probe = PROBES.get(word)
    if probe is None:
        return Unreadable("ENODATA")
    try:
        return probe(rest)
    except OSError as refusal:
        return unreadable(refusal)
    except ValueError:
        return Unreadable("EINVAL")


def launch_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that decide a launch, sorted; none whose name speaks of a secret."""
    return {
        name: environment[name]
        for name in sorted(environment)
        if name.startswith((*LAUNCH_PREFIXES, *SLURM_PREFIXES))
        and not any(secret in name for secret in SECRETS)
    }


def _affinity(_: str) -> str:
    return str(CpuSet(os.sched_getaffinity(0)))


def _rlimit(name: str) -> str:
    import resource

    number = getattr(resource, f"RLIMIT_{name.upper()}", None)
    if number is None:
        raise ValueError(name)
    return " ".join(
        "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
        for limit in resource.getrlimit(number)
    )


def _statvfs(path: str) -> str:
    found = os.statvfs(path)
    # POSIX counts f_blocks and f_bavail in units of f_frsize, which on some file systems is not f_bsize.
    size = found.f_frsize or found.f_bsize
    return f"bsize={size} blocks={found.f_blocks} bavail={found.f_bavail} files={found.f_files} favail={found.f_favail}"


def _mempolicy(_: str) -> str | Unreadable:
    from wellfed.host import syscalls

    return in_child(lambda: syscalls.set_mempolicy(syscalls.MPOL_PREFERRED, _allowed_nodes()))


def _mempolicy_many(_: str) -> str | Unreadable:
    from wellfed.host import syscalls

    mode = syscalls.MPOL_PREFERRED_MANY | syscalls.MPOL_F_STATIC_NODES
    return in_child(lambda: syscalls.set_mempolicy(mode, _allowed_nodes()))


def _allowed_nodes() -> NodeSet:
    """Return the nodes of our cpuset; none, which set_mempolicy takes for "here", where get_mempolicy is forbidden."""
    from wellfed.host import syscalls

    try:
        return syscalls.mems_allowed()
    except OSError:
        return NodeSet()


def _fifo(_: str) -> str | Unreadable:
    lowest = os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO))
    return in_child(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, lowest))


def _io_uring(_: str) -> str | Unreadable:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    parameters = ctypes.create_string_buffer(IO_URING_PARAMS_BYTES)

    def set_up() -> None:
        if libc.syscall(ctypes.c_long(IO_URING_SETUP), ctypes.c_uint(2), parameters) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")

    return in_child(set_up)


def in_child(attempt: Callable[[], None]) -> str | Unreadable:
    """Try something on a forked child, so that this process stays as it is: ``ok``, or the errno of its refusal.

    The child inherits the seccomp filter, the capabilities and the cpuset that a job would meet. It makes the one
    call and leaves by ``_exit``; whatever it was given goes with it. ``ECHILD``: the attempt killed the child.
    """
    import warnings

    reading, writing = os.pipe()
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of a child that forks from threads and then takes locks; this one takes none.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _try_and_exit(attempt, writing)
    finally:
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            said = file.read(20)
    try:  # noqa: SIM105 - contextlib is not needed for anything else here
        os.waitpid(child, 0)
    except ChildProcessError:
        # SIGCHLD is ignored here, or another thread waits for every child: the pipe has the answer all the same.
        pass
    if not said:
        return Unreadable("ECHILD")
    number = int(said)
    return "ok" if number == 0 else Unreadable(errno.errorcode.get(number, f"errno {number}"))


def _try_and_exit(attempt: Callable[[], None], writing: int) -> None:
    """Write the errno, 0 for success, and end the child whatever happens."""
    try:
        try:
            attempt()
            number = 0
        except OSError as refusal:
            number = refusal.errno or errno.EIO
        os.write(writing, b"%d" % number)
    finally:
        os._exit(0)


def _odirect(path: str) -> str | Unreadable:
    """Open a file for direct I/O: one that is there, read-only, or else one without a name that vanishes."""
    candidate = path if not os.path.isdir(path) else _a_file_in(path)
    if candidate is not None:
        os.close(os.open(candidate, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC | os.O_NONBLOCK))
        return "ok"
    try:
        os.close(os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC, 0o600))
    except OSError as refusal:
        # A file system without O_TMPFILE says EOPNOTSUPP, an old kernel EISDIR: neither speaks of O_DIRECT.
        if refusal.errno in (errno.EOPNOTSUPP, errno.EISDIR):
            return Unreadable("ENODATA")
        raise
    return "ok"


def _a_file_in(path: str) -> str | None:
    """Return a regular file of this directory that we may read, None where there is none among the first names."""
    device = os.stat(path).st_dev
    with os.scandir(path) as entries:
        for _, entry in zip(range(MAX_CANDIDATES), entries, strict=False):
            regular = entry.is_file(follow_symlinks=False)
            if regular and entry.stat().st_dev == device and os.access(entry.path, os.R_OK):
                return entry.path
    return None


def _environ(_: str) -> str:
    lines = (f"{name}={value}" for name, value in launch_environment(os.environ).items())
    # One line each: a line break inside a value, and bytes that are no text, would not come back as they went.
    return "\n".join(
        " ".join(line.encode("utf-8", "surrogateescape").decode("utf-8", "replace").split("\n"))
        for line in lines
    )


def _uname(field: str) -> str:
    names = os.uname()
    if field not in ("machine", "release"):
        raise ValueError(field)
    return names.machine if field == "machine" else names.release


def _page(what: str) -> str:
    if what != "size":
        raise ValueError(what)
    return str(os.sysconf("SC_PAGE_SIZE"))


PROBES: dict[str, Callable[[str], str | Unreadable]] = {
    "sched_getaffinity": _affinity,
    "rlimit": _rlimit,
    "statvfs": _statvfs,
    "mempolicy": _mempolicy,
    "mempolicy-many": _mempolicy_many,
    "fifo": _fifo,
    "io_uring": _io_uring,
    "odirect": _odirect,
    "environ": _environ,
    "uname": _uname,
    "page": _page,
}
"""First word of a question -> what answers it, given the rest."""
