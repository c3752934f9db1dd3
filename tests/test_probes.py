"""Do probes say what the kernel would say, and leave nothing behind?"""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading

import pytest

from tests.faults.seccomp import run_denied
from wellfed.host import probes
from wellfed.host.live_tree import LiveTree
from wellfed.model.cpuset import CpuSet
from wellfed.model.tree import Unreadable


def children():
    """Give the children of this process, zombies included."""
    with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
        return file.read().split()


def test_affinity_is_the_mask_of_this_process():
    """CPUs are written as the kernel writes them."""
    assert CpuSet.parse(probes.answer("sched_getaffinity")) == CpuSet(os.sched_getaffinity(0))


@pytest.mark.parametrize("name", ["memlock", "nofile", "nproc", "stack", "core", "rtprio", "nice"])
def test_limits_are_soft_and_hard(name):
    """A limit is two numbers in the kernel's units, or the word for none."""
    limits = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))

    expected = " ".join("unlimited" if limit < 0 else str(limit) for limit in limits)
    assert probes.answer(f"rlimit {name}") == expected


def test_statvfs_gives_sizes_that_multiply():
    """Blocks count in the block size that is given with them."""
    fields = dict(pair.split("=") for pair in probes.answer("statvfs /").split())
    found = os.statvfs("/")

    assert set(fields) == {"bsize", "blocks", "bavail", "files", "favail"}
    assert int(fields["bsize"]) * int(fields["blocks"]) == found.f_frsize * found.f_blocks


@pytest.mark.parametrize(
    ("question", "errno_name"),
    [
        ("statvfs /no/such/place", "ENOENT"),
        ("odirect /no/such/place", "ENOENT"),
        ("rlimit nonsense", "EINVAL"),
        ("uname nodename", "EINVAL"),
        ("page fault", "EINVAL"),
        ("statvfs a\0b", "EINVAL"),
        ("nvml", "ENODATA"),
        ("no such question", "ENODATA"),
        ("", "ENODATA"),
    ],
)
def test_questions_without_an_answer(question, errno_name):
    """An answer that is not there is an errno, never an exception or a default."""
    assert probes.answer(question) == Unreadable(errno_name)


@pytest.mark.parametrize("question", ["mempolicy", "mempolicy-many", "fifo", "io_uring"])
def test_forked_probes_change_nothing_here(question):
    """What is tried on a child leaves this process its scheduler, its policy and no zombie."""
    before = (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, policy(), children())

    said = probes.answer(question)

    assert said == "ok" or isinstance(said, Unreadable)
    after = (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, policy(), children())
    assert after == before


def policy():
    """Give the memory policy of this thread, or why it cannot be asked."""
    from wellfed.host import syscalls

    try:
        return syscalls.get_mempolicy()
    except OSError as refusal:
        return refusal.errno


def test_refusal_in_the_child_is_the_answer():
    """The errno of the child's call comes back, whatever it is."""

    def refuse():
        raise OSError(errno.EPERM, "not you")

    assert probes.in_child(refuse) == Unreadable("EPERM")
    assert probes.in_child(lambda: None) == "ok"


def test_child_that_dies_is_no_success():
    """A seccomp filter may kill instead of refusing."""
    before = children()

    said = probes.in_child(lambda: os.kill(os.getpid(), 9))

    assert said == Unreadable("ECHILD")
    assert children() == before


def test_child_that_raises_never_comes_back():
    """An exception in the child ends the child, not the test."""
    pid = os.getpid()

    def stumble():
        raise KeyError("our own mistake")

    assert probes.in_child(stumble) == Unreadable("ECHILD")
    assert os.getpid() == pid


def test_forked_probes_work_beside_threads():
    """A process with threads may be asked too: Python's warning about forking is not ours."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert probes.in_child(lambda: None) == "ok"
    finally:
        stop.set()
        thread.join()


def test_forked_probes_leave_no_descriptor():
    """Pipes are closed on both ends."""
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(5):
        probes.answer("fifo")

    assert len(os.listdir("/proc/self/fd")) == before


def test_odirect_leaves_nothing_behind(tmp_path):
    """An empty directory is asked with a file that has no name, and is empty afterwards."""
    said = probes.answer(f"odirect {tmp_path}")

    assert said == "ok" or said.errno_name in ("EINVAL", "ENODATA")
    assert list(tmp_path.iterdir()) == []


def test_odirect_opens_what_is_there_for_reading_only(tmp_path):
    """A directory that may not be written to is asked with a file in it."""
    file = tmp_path / "data"
    file.write_bytes(b"x" * 4096)
    before = file.stat()

    said = probes.answer(f"odirect {tmp_path}")

    assert said == probes.answer(f"odirect {file}")
    after = file.stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)


def test_odirect_on_procfs_is_refused():
    """A file system without direct I/O says EINVAL."""
    assert probes.answer("odirect /proc/cmdline") == Unreadable("EINVAL")


def test_environ_gives_the_launch_and_nothing_else(monkeypatch):
    """Only variables that decide a launch are told, sorted, one a line."""
    monkeypatch.setattr(
        os,
        "environ",
        {
            "RANK": "3",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "SLURM_LOCALID": "2",
            "SLURM_JOB_NAME": "secret-project",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_JOB_USER": "alice",
            "HOME": "/home/alice",
            "NCCL_API_KEY": "hunter2",
            "NCCL_DEBUG": "INFO\nTWO",
            "MASTER_PORT": "29500",
        },
    )

    assert probes.answer("environ") == (
        "CUDA_VISIBLE_DEVICES=0,1\nMASTER_PORT=29500\nNCCL_DEBUG=INFO TWO\nRANK=3\nSLURM_LOCALID=2"
    )


def test_environ_survives_bytes_that_are_no_text(monkeypatch):
    """A value that is no UTF-8 is told with U+FFFD."""
    monkeypatch.setattr(os, "environ", {"LD_PRELOAD": "/odd\udce9.so"})

    assert probes.answer("environ") == "LD_PRELOAD=/odd\ufffd.so"


def test_live_tree_asks_the_probes():
    """A live host answers by probe."""
    assert LiveTree().answer("page size") == str(os.sysconf("SC_PAGE_SIZE"))
    assert LiveTree().answer("uname machine") == os.uname().machine


@pytest.mark.parametrize(
    ("question", "denied"),
    [
        ("mempolicy", "set_mempolicy"),
        ("mempolicy-many", "set_mempolicy"),
        ("mempolicy", "set_mempolicy,get_mempolicy"),
        ("fifo", "sched_setscheduler"),
        ("io_uring", "io_uring_setup"),
    ],
)
def test_denied_calls_are_found_out(question, denied):
    """Where a seccomp filter denies a call, as Docker's does, the probe says EPERM (kernel fact K14)."""
    code = f"from wellfed.host import probes; print(probes.answer({question!r}))"
    done = run_denied(denied, "EPERM", sys.executable, "-c", code)

    assert done.stdout == "not permitted\n"
