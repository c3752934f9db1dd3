"""Whose processes are these, which are older than a bind, and which CPUs belong to other jobs?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import numa_kit as kit
from wellfed.host.processes import (
    MARKER,
    PF_KTHREAD,
    ancestors_of,
    bound_elsewhere,
    children_of,
    descendants_of,
    holds_gpu,
    job_named,
    parse_stat,
    stat_of,
)
from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.cpuset import CpuSet

WAIT = "import sys; print('ready', flush=True); sys.stdin.read()"


def stat_line(pid: int, name: str, parent: int, *, group: int, flags: int = 0, cpu: int = 0) -> str:
    """Write a stat line as the kernel does; what nobody reads is 0."""
    fields = [
        "S",
        parent,
        group,
        group,
        0,
        -1,
        flags,
        *[0] * 12,
        1000 + pid,
        *[0] * 16,
        cpu,
        *[0] * 13,
    ]
    return f"{pid} ({name}) {' '.join(map(str, fields))}\n"


class Host:
    """A /proc put together process by process."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.errnos: dict[str, str] = {}

    def process(
        self,
        pid: int,
        parent: int,
        cpus: str,
        *,
        group: int | None = None,
        name: str = "python",
        environment: dict[str, str] | None = None,
        opens: str | None = None,
        readable: bool = True,
        flags: int = 0,
    ) -> None:
        line = stat_line(pid, name, parent, group=group or pid, flags=flags)
        self.files[f"/proc/{pid}/stat"] = self.files[f"/proc/{pid}/task/{pid}/stat"] = line.encode()
        self.files[f"/proc/{pid}/status"] = f"Name:\t{name}\nCpus_allowed_list:\t{cpus}\n".encode()
        self.files[f"/proc/{pid}/task/{pid}/children"] = b""
        text = "\0".join(f"{key}={value}" for key, value in (environment or {}).items())
        if readable:
            self.files[f"/proc/{pid}/environ"] = text.encode()
        else:
            self.errnos[f"/proc/{pid}/environ"] = "EACCES"
            self.errnos[f"/proc/{pid}/fd"] = "EACCES"
        if opens:
            self.links[f"/proc/{pid}/fd/7"] = opens
            self.files[opens] = b""
        mother = f"/proc/{parent}/task/{parent}/children"
        self.files[mother] = self.files.get(mother, b"") + f"{pid} ".encode()

    def tree(self) -> RecordedTree:
        return RecordedTree("a host", self.files, links=self.links, errnos=self.errnos)


def torchrun(rank: int, port: int) -> dict[str, str]:
    return {
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "node7",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
    }


ALL = CpuSet.parse("0-15")


@pytest.mark.parametrize(
    "name", ["python3", "a b", "x) S 1 (y", "(sd-pam)", "line\nbreak", ") ) ) (", ""]
)
def test_any_name_leaves_the_fields_where_they_are(name):
    """A program may call itself anything; fields are counted from the last parenthesis."""
    found = parse_stat(stat_line(77, name, 5, group=6, cpu=1023))

    assert (found.name, found.parent, found.group, found.last_cpu) == (name, 5, 6, 1023)
    assert found.start == 1077


@given(st.text(max_size=200))
def test_a_text_that_is_no_stat_line_is_none(text):
    """Half a line of a process that just ended is no process."""
    assert parse_stat(text.replace("(", "")) is None


def test_own_stat_is_read_from_the_kernel():
    """The real line of this process gives its parent, its group and a CPU it may use."""
    found = stat_of(os.getpid())

    assert (found.parent, found.group) == (os.getppid(), os.getpgrp())
    assert found.last_cpu in kit.read_set(kit.CPUS / "online")
    assert not found.kernel


def test_kernel_threads_are_recognised():
    """The flag PF_KTHREAD tells them from processes."""
    assert parse_stat(stat_line(9, "kworker/0:1", 2, group=0, flags=PF_KTHREAD)).kernel


def test_children_are_found_with_and_without_the_children_file():
    """Where the kernel lists no children, every process is asked for its parent: the same answer."""
    host = Host()
    host.process(10, 1, "0-15")
    host.process(11, 10, "0-15")
    host.process(12, 11, "0-15")
    host.process(13, 10, "0-15")
    with_file = descendants_of(10, tree=host.tree())
    for path in [path for path in host.files if path.endswith("/children")]:
        del host.files[path]

    assert with_file == (11, 13, 12)
    assert descendants_of(10, tree=host.tree()) == with_file
    assert ancestors_of(12, tree=host.tree()) == (11, 10, 1)


def test_a_circle_of_parents_ends():
    """A recorded host that contradicts itself is read to an end."""
    host = Host()
    host.process(10, 11, "0-15")
    host.process(11, 10, "0-15")

    assert set(ancestors_of(10, tree=host.tree())) == {10, 11}
    assert descendants_of(10, tree=host.tree()) == (11,)


def test_another_job_that_is_bound_takes_its_cpus_away():
    """Two torchruns on a host: the second sees which cores the first one's ranks have (pids and job named)."""
    host = Host()
    host.process(100, 1, "0-15", name="torchrun")
    host.process(101, 100, "0-3", environment=torchrun(0, 29500), opens="/dev/nvidia0")
    host.process(102, 100, "4-7", environment=torchrun(1, 29500), opens="/dev/nvidia1")
    host.process(200, 1, "0-15", name="torchrun")
    host.process(201, 200, "0-15", environment=torchrun(0, 29501))
    found = bound_elsewhere(ALL, pid=201, tree=host.tree())

    assert found.cpus == CpuSet.parse("0-7")
    assert found.sentences == (
        "CPUs 0-7 are taken by 2 processes (101, 102) of another job "
        "(TORCHELASTIC_RUN_ID=none MASTER_ADDR=node7 MASTER_PORT=29500)",
    )


@pytest.mark.parametrize("num_bound", range(4))
def test_ranks_of_one_job_plan_alike_whoever_comes_first(num_bound):
    """However many ranks of this job are bound already, with or without a marker, the last one sees no taken CPU."""
    host = Host()
    host.process(100, 1, "0-15", name="torchrun")
    for rank in range(4):
        bound = rank < num_bound
        marked = {MARKER: "job-7"} if bound and rank % 2 else {}
        cpus = f"{rank * 4}-{rank * 4 + 3}" if bound else "0-15"
        environment = torchrun(rank, 29500) | marked
        host.process(101 + rank, 100, cpus, environment=environment, opens="/dev/nvidia0")

    assert bound_elsewhere(ALL, pid=104, tree=host.tree()).cpus == CpuSet()


def test_loaders_of_another_rank_of_this_job_are_ours():
    """Children that a rank forked carry its environment at start, so they are of its job."""
    host = Host()
    host.process(100, 1, "0-15", name="torchrun")
    host.process(101, 100, "0-3", environment=torchrun(0, 29500), opens="/dev/nvidia0")
    host.process(111, 101, "1", environment=torchrun(0, 29500), opens="/dev/nvidia0")
    host.process(102, 100, "0-15", environment=torchrun(1, 29500))

    assert bound_elsewhere(ALL, pid=102, tree=host.tree()).cpus == CpuSet()


def test_steps_of_one_slurm_allocation_are_jobs_of_their_own():
    """Two srun steps share a job id; the step id tells them apart."""

    def step(number: int) -> dict[str, str]:
        return {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": str(number), "SLURM_LOCALID": "0"}

    host = Host()
    host.process(101, 90, "0-3", environment=step(0), opens="/dev/nvidia0")
    host.process(201, 91, "0-15", environment=step(1))

    assert bound_elsewhere(ALL, pid=201, tree=host.tree()).cpus == CpuSet.parse("0-3")


def test_command_lines_without_ranks_are_told_apart_by_process_group():
    """`python a.py & python b.py &` at a prompt: two jobs; workers that one program spawned: one job."""
    host = Host()
    host.process(50, 1, "0-15", name="bash")
    host.process(60, 50, "0-3", group=60, opens="/dev/nvidia0")
    host.process(70, 50, "0-15", group=70)
    host.process(71, 70, "4-7", group=70, opens="/dev/nvidia1")
    host.process(72, 70, "0-15", group=70)

    assert bound_elsewhere(ALL, pid=72, tree=host.tree()).cpus == CpuSet.parse("0-3")


def test_a_daemon_that_pinned_itself_owns_no_core():
    """Without a GPU and without our marker a mask is a habit, not a job; kernel threads are neither."""
    host = Host()
    host.process(2, 0, "0-15", name="kthreadd", flags=PF_KTHREAD)
    host.process(3, 2, "0", name="ksoftirqd/0", flags=PF_KTHREAD)
    host.process(60, 1, "0", name="irqbalance")
    host.process(70, 1, "0-15")

    assert (
        bound_elsewhere(ALL, pid=70, tree=host.tree())
        == bound_elsewhere(ALL, pid=70, tree=Host().tree())
        or bound_elsewhere(ALL, pid=70, tree=host.tree()).sentences == ()
    )


def test_a_marked_job_without_a_gpu_counts():
    """Data jobs that wellfed launched have no GPU, and cores all the same."""
    host = Host()
    host.process(60, 1, "8-11", environment={MARKER: "loader-1"})
    host.process(70, 1, "0-15")
    found = bound_elsewhere(ALL, pid=70, tree=host.tree())

    assert found.cpus == CpuSet.parse("8-11")
    assert found.sentences == ("CPUs 8-11 are taken by process 60 of another job (job loader-1)",)


@pytest.mark.parametrize("cpus", ["0-15", "0-127", "16-31", ""])
def test_a_process_that_shares_all_our_cpus_or_none_is_not_bound_here(cpus):
    """A mask counts where it is a proper part of what we may use: an unbound neighbour takes nothing away."""
    host = Host()
    host.process(60, 1, cpus, opens="/dev/nvidia0")
    host.process(70, 1, "0-15")

    assert bound_elsewhere(ALL, pid=70, tree=host.tree()).cpus == CpuSet()


def test_bound_processes_that_may_not_be_looked_into_are_told():
    """Another user's process may hold a GPU or not: it is not counted, and it is said."""
    host = Host()
    host.process(60, 1, "0-3", readable=False)
    host.process(70, 1, "0-15")
    found = bound_elsewhere(ALL, pid=70, tree=host.tree())

    assert found.cpus == CpuSet()
    assert found.sentences == (
        "process 60 is bound and may not be looked into: not counted as a job",
    )


@pytest.mark.parametrize("errno_name", ["ESRCH", "ENOENT"])
def test_a_process_that_is_ending_is_not_told(errno_name):
    """It has a stat until somebody waits for it, and no environment any more: a rank of this very job, perhaps."""
    host = Host()
    host.process(60, 1, "0-3", readable=False)
    host.process(70, 1, "0-15")
    host.errnos["/proc/60/environ"] = errno_name

    assert bound_elsewhere(ALL, pid=70, tree=host.tree()).sentences == ()


@pytest.mark.parametrize(
    ("target", "holds"),
    [("/dev/nvidia3", True), ("/dev/nvidiactl", True), ("/dev/kfd", True), ("/dev/dri/renderD128", True),
     ("/dev/null", False), ("/dev/dri/card0", False), ("/data/dev/nvidia0", False)],
)  # fmt: skip
def test_gpus_are_recognised_by_their_device_files(target, holds):
    """NVIDIA, AMD and DRM render nodes are GPUs; a display's card node and other files are not."""
    host = Host()
    host.process(60, 1, "0-3", opens=target)

    assert holds_gpu(60, tree=host.tree()) is holds


def test_ranks_without_a_job_variable_go_by_their_process_group():
    """A launcher that gives ranks nothing in common still starts them in one process group."""
    first = job_named({"PMI_RANK": "0"}, 50)
    second = job_named({"PMI_RANK": "1"}, 50)

    assert first.is_same_job(second)
    assert not first.is_same_job(job_named({"PMI_RANK": "0"}, 51))


def test_two_launches_in_one_script_are_two_jobs():
    """`wellfed run a & wellfed run b &` share a process group; the first one's marker makes it another job."""
    first = job_named({MARKER: "a"}, 50)
    second = job_named({}, 50)

    assert not second.is_same_job(first)
    assert not first.is_same_job(job_named({MARKER: "b"}, 50))
    assert first.is_same_job(job_named({MARKER: "a"}, 51))
    assert job_named({"PMI_RANK": "1"}, 50).is_same_job(
        job_named({"PMI_RANK": "0", MARKER: "x"}, 50)
    )


def test_live_processes_of_another_job_are_seen():
    """A real process with a marker and a mask of its own takes that CPU from its neighbour, not from its parent."""
    cpu, _ = kit.two_cpus()
    allowed = kit.allowed_cpus()
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}}); {WAIT}"
    with (
        _waiting(code, {MARKER: "someone-else"}, start_new_session=True) as other,
        _waiting(WAIT, {}) as neighbour,
    ):
        found = bound_elsewhere(allowed, pid=neighbour.pid)
        own = bound_elsewhere(allowed)
        other.stdin.close()
        neighbour.stdin.close()

    assert cpu in found.cpus
    assert (
        f"CPUs {cpu} are taken by process {other.pid} of another job (job someone-else)"
        in found.sentences
    )
    assert "someone-else" not in str(own.sentences)


def _waiting(code: str, environment: dict[str, str], **options) -> subprocess.Popen:
    """Start a Python process and come back when it is ready."""
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | environment,
        **options,
    )
    assert other.stdout.readline() == b"ready\n"
    return other


def test_children_older_than_the_bind_are_named():
    """A live child is told with its number; the forkserver of multiprocessing by its name (kernel fact K2)."""
    code = """
import multiprocessing, os
from tests.numa_kit import tell
from wellfed.host.processes import older_processes
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=tell, args=(theirs,))
    process.start()
    ours.recv()
    process.join()
    print(*older_processes(os.getpid()), sep="\\n")
"""
    done = kit.python(code)

    assert "every worker that it starts is unbound" in done.stdout, done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_threads_older_than_the_bind_are_named():
    """Threads that run keep their policy: they are counted and numbered."""
    code = """
import os, threading
from wellfed.host.processes import older_processes
go = threading.Event()
threads = [threading.Thread(target=go.wait) for _ in range(2)]
[thread.start() for thread in threads]
print(*older_processes(os.getpid()), threads[0].native_id, sep="\\n")
go.set()
"""
    sentence, tid = kit.python(code).stdout.splitlines()

    assert sentence.startswith(f"2 threads run already ({tid}, ")


def test_a_process_alone_has_nothing_older():
    """A fresh interpreter has one thread and no child."""
    code = "import os; from wellfed.host.processes import older_processes; print(older_processes(os.getpid()))"

    assert kit.python(code).stdout == "()\n"


def test_live_children_are_seen():
    """The kernel's list of children holds a process that this one started."""
    with _waiting(WAIT, {}) as other:
        found = children_of(os.getpid())
        other.stdin.close()

    assert other.pid in found
