"""Which threads and processes are there, what may they run on, and which belong to other jobs?"""

from __future__ import annotations

import os

from wellfed.host.bind import mask_of, own_tid
from wellfed.host.live_tree import LiveTree
from wellfed.host.memory_policy import field
from wellfed.model.cpuset import EMPTY, CpuSet, union
from wellfed.model.errors import MalformedTextError
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellfed.model.tree import HostTree

PF_KTHREAD = 0x00200000
"""include/linux/sched.h; field 9 of /proc/PID/stat."""

MARKER = "WELLFED_JOB"
"""Variable that `wellfed run` gives the ranks of one job, so that other jobs know their CPUs."""

RANK_VARIABLES = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MVP_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "PMI_LOCAL_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
    "JAX_PROCESS_ID",
)
"""A process with one of these is a rank of the job that the variables below name."""

JOB_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "FLUX_JOB_ID",
    "PALS_APID",
    "PBS_JOBID",
    "LSB_JOBID",
    "PMIX_NAMESPACE",
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JAX_COORDINATOR_ADDRESS",
)
"""What all ranks of a job have in common and other jobs on the host have not."""

GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")


class Stat(Value):
    """What wellfed needs of a /proc/…/stat line."""

    name: str
    parent: int
    group: int
    """Process group: what a shell treats as one command line."""
    kernel: bool
    """Whether it is a kernel thread."""
    last_cpu: int | None
    start: int
    """Clock ticks after boot; with the number it identifies a process."""
    ended: bool = False
    """Whether it is a zombie: it runs nowhere any more, and nobody has waited for it."""


class JobMark(Value):
    """By what the processes of one job are known as such."""

    marker: str | None
    """Value of WELLFED_JOB."""
    shared: str
    """What its launcher gave all ranks, else its process group."""
    ranked: bool
    """Whether a launcher made it a rank."""

    def is_same_job(self, other: JobMark) -> bool:
        """Compare; among ranks the marker may be missing on one side, because they look at each other while they start."""
        if self.marker is not None and self.marker == other.marker:
            return True
        return self.shared == other.shared and (self.ranked or self.marker == other.marker)

    def __str__(self) -> str:
        """Name it for a sentence."""
        return f"job {self.marker}" if self.marker else self.shared


class OtherJobs(Value):
    """CPUs to which processes of other jobs are bound."""

    cpus: CpuSet = EMPTY
    sentences: tuple[str, ...] = ()
    """One for each job, and one for bound processes that cannot be looked into."""


def parse_stat(text: str) -> Stat | None:
    """Read a stat line; the name may hold spaces, parentheses and line breaks. None where the line is cut."""
    opening, closing = text.find("("), text.rfind(")")
    words = text[closing + 1 :].split()
    # proc(5) counts from 1: words[0] is field 3. The last CPU is field 39.
    if opening < 0 or closing < opening or len(words) < 20:
        return None
    last_cpu = int(words[36]) if len(words) > 36 else None
    kernel = bool(int(words[6]) & PF_KTHREAD)
    name = text[opening + 1 : closing]
    ended = words[0] in "ZX"
    return Stat(name, int(words[1]), int(words[2]), kernel, last_cpu, int(words[19]), ended)


def stat_of(pid: int, tid: int | None = None, *, tree: HostTree | None = None) -> Stat | None:
    """Return a process's or one of its threads' stat, None where it is gone."""
    thread = "" if tid is None else f"task/{tid}/"
    return parse_stat((tree or LiveTree()).read(f"/proc/{pid}/{thread}stat") or "")


def children_of(pid: int, *, tree: HostTree | None = None) -> tuple[int, ...]:
    """Return the processes that a process started and that still run."""
    host = tree or LiveTree()
    found: list[int] = []
    for tid in host.list(f"/proc/{pid}/task") or ():
        text = host.read(f"/proc/{pid}/task/{tid}/children")
        if not isinstance(text, str):
            # CONFIG_PROC_CHILDREN is missing, or the thread ended.
            return _children_by_parent(pid, host)
        found += [int(each) for each in text.split()]
    return tuple(sorted(found))


def descendants_of(pid: int, *, tree: HostTree | None = None) -> tuple[int, ...]:
    """Return children, their children and so on, without the process itself; parents before children."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = children_of(waiting.pop(0), tree=tree)
        fresh = [each for each in children if each not in found and each != pid]
        found += fresh
        waiting += fresh
    return tuple(found)


def ancestors_of(pid: int, *, tree: HostTree | None = None) -> tuple[int, ...]:
    """Return parent, its parent and so on."""
    found: list[int] = []
    stat = stat_of(pid, tree=tree)
    while stat is not None and stat.parent > 0 and stat.parent not in found:
        found.append(stat.parent)
        stat = stat_of(stat.parent, tree=tree)
    return tuple(found)


def older_processes(pid: int, *, tree: HostTree | None = None) -> tuple[str, ...]:
    """Name the children and threads that run before a bind, one sentence each.

    They and all they start later keep the old memory policy, and children the old CPUs too: what is inherited is what
    held when a process began. A forkserver or zygote started before the bind makes every later worker unbound.
    """
    host = tree or LiveTree()
    children = children_of(pid, tree=host)
    said = [sentence for child in children if (sentence := _say_child(child, host)) is not None]
    caller = own_tid() if pid == os.getpid() else pid
    names = [tid for tid in host.list(f"/proc/{pid}/task") or () if tid != str(caller)]
    if names:
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        count = f"{len(names)} threads run" if len(names) > 1 else "1 thread runs"
        said.append(
            f"{count} already ({shown}): the CPUs are set there too, the memory policy cannot be"
        )
    return tuple(said)


def bound_elsewhere(
    allowed: CpuSet,
    *,
    pid: int | None = None,
    tree: HostTree | None = None,
) -> OtherJobs:
    """Return the CPUs that other jobs on this host have bound themselves to, and one sentence for each job.

    Counted is a process that may run on some, not all, of the allowed CPUs, and holds a GPU open or carries our
    marker: a daemon that pinned itself owns no cores. Left out are kernel threads, this process with its ancestors
    and descendants, and every rank of the same job, by the variables that its launcher gave all ranks
    when they started: so that a rank that starts late plans what an early one planned. Processes without rank
    variables and marker are of one job when they are of one process group, as a shell makes for each command line.
    """
    host = tree or LiveTree()
    self_pid = os.getpid() if pid is None else pid
    own_job = job_of(self_pid, tree=host)
    if own_job is None:
        return OtherJobs(
            EMPTY, ("other jobs cannot be told from this one: its own environment is unreadable",)
        )
    own = {self_pid, *ancestors_of(self_pid, tree=host), *descendants_of(self_pid, tree=host)}
    jobs: dict[JobMark, tuple[CpuSet, list[int]]] = {}
    hidden: list[int] = []
    for other in _user_processes(host):
        mask = _bound_mask(other, allowed, host) if other not in own else None
        if mask is None:
            continue
        job = job_of(other, tree=host)
        if job is None:
            hidden += [other] if _may_not_look(other, host) else []
        elif not job.is_same_job(own_job) and (job.marker or holds_gpu(other, tree=host)):
            cpus, pids = jobs.get(job, (EMPTY, []))
            jobs[job] = cpus | mask, [*pids, other]
    sentences = [
        f"CPUs {cpus} are taken by {_name_pids(pids)} of another job ({job})"
        for job, (cpus, pids) in sorted(jobs.items(), key=lambda item: item[1][1])
    ]
    if hidden:
        bound = "is bound" if len(hidden) == 1 else "are bound"
        sentences.append(
            f"{_name_pids(hidden)} {bound} and may not be looked into: not counted as a job"
        )
    return OtherJobs(union(cpus for cpus, _ in jobs.values()), tuple(sentences))


def job_of(pid: int, *, tree: HostTree | None = None) -> JobMark | None:
    """Return by what a process's job is known, None where its environment cannot be read.

    Taken from the environment it started with: what a program sets later differs between early and late ranks.
    """
    host = tree or LiveTree()
    raw = host.read_bytes(f"/proc/{pid}/environ")
    stat = stat_of(pid, tree=host)
    if not isinstance(raw, bytes) or stat is None:
        return None
    pairs = (entry.partition("=") for entry in raw.decode("utf-8", "replace").split("\0"))
    return job_named({name: value for name, _, value in pairs}, stat.group)


def job_named(environment: Mapping[str, str], group: int) -> JobMark:
    """Return by what the job of a process with this environment and process group is known."""
    marker = environment.get(MARKER) or None
    shared = [f"{name}={environment[name]}" for name in JOB_VARIABLES if name in environment]
    ranked = any(name in environment for name in RANK_VARIABLES)
    if shared and ranked:
        return JobMark(marker, " ".join(shared), ranked)
    return JobMark(marker, f"{'ranks of ' if ranked else ''}process group {group}", ranked)


def holds_gpu(pid: int, *, tree: HostTree | None = None) -> bool:
    """Say whether a process has a GPU's device file open, as far as we may look."""
    host = tree or LiveTree()
    for descriptor in host.list(f"/proc/{pid}/fd") or ():
        target = host.link(f"/proc/{pid}/fd/{descriptor}")
        if isinstance(target, str) and target.startswith(GPU_FILES):
            return True
    return False


def _user_processes(host: HostTree) -> tuple[int, ...]:
    """List processes without kernel threads; all of those are children of process 2, so that one read excludes them."""
    pids = {int(name) for name in host.list("/proc") or () if name.isdigit()}
    daemon = stat_of(2, tree=host)
    if daemon is not None and daemon.kernel:
        pids -= {2, *children_of(2, tree=host)}
    return tuple(sorted(pids))


def _bound_mask(pid: int, allowed: CpuSet, host: HostTree) -> CpuSet | None:
    """Return the allowed CPUs to which a process is confined, None where it may use all of them, or none."""
    mask = _mask_of(pid, host) & allowed
    stat = stat_of(pid, tree=host) if mask and mask < allowed else None
    return mask if stat is not None and not stat.kernel else None


def _mask_of(pid: int, host: HostTree) -> CpuSet:
    """Return a process's mask, empty where it is gone. Of a live process the scheduler is asked: 4 µs, not 40."""
    if host.live:
        found = mask_of(pid)
        return found if isinstance(found, CpuSet) else EMPTY
    text = field(host.read(f"/proc/{pid}/status") or "", "Cpus_allowed_list")
    try:
        return CpuSet.parse(text or "")
    except MalformedTextError:
        return EMPTY


def _may_not_look(pid: int, host: HostTree) -> bool:
    """Say whether looking is refused. A process that is ending has nothing to look at any more (ESRCH), and needs no CPUs."""
    raw = host.read_bytes(f"/proc/{pid}/environ")
    return not isinstance(raw, bytes) and raw.errno_name in ("EACCES", "EPERM")


def _children_by_parent(pid: int, host: HostTree) -> tuple[int, ...]:
    found = []
    for name in host.list("/proc") or ():
        stat = stat_of(int(name), tree=host) if name.isdigit() else None
        if stat is not None and stat.parent == pid:
            found.append(int(name))
    return tuple(sorted(found))


def _say_child(pid: int, host: HostTree) -> str | None:
    stat = stat_of(pid, tree=host)
    raw = host.read_bytes(f"/proc/{pid}/cmdline")
    command = raw.replace(b"\0", b" ").decode("utf-8", "replace") if isinstance(raw, bytes) else ""
    if stat is None or "resource_tracker" in command:
        # It unlinks shared memory when all others ended, and starts nothing.
        return None
    if "multiprocessing.forkserver" in command:
        return f"forkserver {pid} is older than the bind: every worker that it starts is unbound"
    return f"process {pid} ({stat.name}) is older than the bind: it and what it starts keep the old CPUs and policy"


def _name_pids(pids: list[int]) -> str:
    shown = ", ".join(map(str, pids[:4])) + (", …" if len(pids) > 4 else "")
    return f"process {shown}" if len(pids) == 1 else f"{len(pids)} processes ({shown})"
