"""What does this machine offer to tests of binding, and how are they kept from changing it?"""

from __future__ import annotations

import ctypes
import mmap
import os
import pathlib
import pickle
import subprocess
import sys
import time
import warnings

import pytest

from wellfed.host import syscalls
from wellfed.model.cpuset import CpuSet
from wellfed.model.placement import MemoryPolicy, RankPlacement

NODES = pathlib.Path("/sys/devices/system/node")
CPUS = pathlib.Path("/sys/devices/system/cpu")
ROOT = pathlib.Path(__file__).parent.parent

STATIC = syscalls.MPOL_F_STATIC_NODES
DEFAULT, BIND, PREFERRED = syscalls.MPOL_DEFAULT, syscalls.MPOL_BIND, syscalls.MPOL_PREFERRED
INTERLEAVE, MANY = syscalls.MPOL_INTERLEAVE, syscalls.MPOL_PREFERRED_MANY


def read_set(path: pathlib.Path) -> CpuSet:
    """Read a list of CPUs or nodes; a missing file is an empty list."""
    return CpuSet.parse(path.read_text()) if path.exists() else CpuSet()


def allowed_cpus() -> CpuSet:
    return CpuSet(os.sched_getaffinity(0))


def memory_nodes() -> CpuSet:
    """Give the nodes that have memory and that this process may use."""
    with_memory = read_set(NODES / "has_memory") or CpuSet([0])
    status = pathlib.Path("/proc/self/status").read_text()
    return with_memory & CpuSet.parse(status.partition("Mems_allowed_list:")[2].split()[0])


def cpu_nodes() -> CpuSet:
    return read_set(NODES / "has_cpu")


def cpus_of(node: int) -> CpuSet:
    return read_set(NODES / f"node{node}/cpulist")


def node_bytes(node: int, field: str = "MemTotal") -> int:
    for line in (NODES / f"node{node}/meminfo").read_text().splitlines():
        if f" {field}:" in line:
            return int(line.split()[-2]) * 1024
    return 0


def two_memory_nodes() -> tuple[int, int]:
    """Give two nodes with memory, or skip."""
    nodes = list(memory_nodes())
    if len(nodes) < 2:
        pytest.skip("needs 2 NUMA nodes with memory")
    return nodes[0], nodes[1]


def cpu_only_node() -> int:
    """Give a node with CPUs and without memory, or skip."""
    bare = cpu_nodes() - read_set(NODES / "has_memory")
    if not bare:
        pytest.skip("needs a NUMA node with CPUs and no memory")
    return bare.first


def two_cpus() -> tuple[int, int]:
    cpus = list(allowed_cpus())
    if len(cpus) < 2:
        pytest.skip("needs 2 CPUs")
    return cpus[0], cpus[1]


def throw_away_guest() -> None:
    """Skip unless this is a guest of the lab, which is thrown away afterwards."""
    if "WELLFED_LAB_GUEST" not in os.environ:
        pytest.skip("needs a throw-away guest: it takes a CPU offline, or fills a node")


def absent_node() -> int:
    """Give the smallest node number that has no memory here."""
    return next(n for n in range(1024) if n not in read_set(NODES / "has_memory") | CpuSet([0]))


def absent_cpu() -> int:
    return max(read_set(CPUS / "possible")) + 3


def in_child(act, *arguments, prepare=None, before=None):
    """Run a function in a forked child and return what it returned: neither mask nor policy leaks out of it.

    The child runs ``prepare()`` first and waits; ``before(pid)`` then runs in the parent.
    """
    result_end, write_end = os.pipe()
    wait_end, go_end = os.pipe()
    ready_end, prepared_end = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork beside threads (those of xdist); this child only runs the act.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(go_end)
        os.close(ready_end)
        _be_child(act, arguments, prepare, write_end, wait_end, prepared_end)
    for end in (write_end, wait_end, prepared_end):
        os.close(end)
    try:
        os.read(ready_end, 1)
        os.close(ready_end)
        if before is not None:
            before(pid)
    finally:
        os.close(go_end)
    try:
        with os.fdopen(result_end, "rb") as stream:
            answer = stream.read()
    finally:
        _, status = os.waitpid(pid, 0)
    if not answer:
        raise ChildKilledError(os.waitstatus_to_exitcode(status))
    failure, result = pickle.loads(answer)
    if failure is not None:
        raise failure
    return result


class ChildKilledError(Exception):
    """A child that ended without an answer; its argument is the exit code, negative for a signal."""


def _be_child(act, arguments, prepare, write_end, wait_end, prepared_end) -> None:
    try:
        if prepare is not None:
            prepare()
        os.close(prepared_end)
        os.read(wait_end, 1)
        answer = (None, act(*arguments))
    except BaseException as failure:  # noqa: BLE001  (handed to the parent, whatever it is)
        answer = (failure, None)
    try:
        os.write(write_end, pickle.dumps(answer))
    finally:
        os._exit(0)


def refusal_of(act, *arguments) -> int:
    """Return the errno with which a call fails, 0 where it does not."""
    try:
        act(*arguments)
    except OSError as refusal:
        return refusal.errno
    return 0


def told() -> tuple[int, str, str]:
    """Tell what the calling thread inherited: policy, its nodes, its CPUs."""
    mode, nodes = syscalls.get_mempolicy()
    return mode, str(nodes), str(CpuSet(os.sched_getaffinity(0)))


def tell(connection) -> None:
    """Send `told`: the target of a process that multiprocessing starts."""
    connection.send(told())
    connection.close()


def python(code: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Run a fresh interpreter that can import wellfed and these tests."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, **options
    )


class Memory:
    """Pages of this process, freshly touched: the policy in force decides where they lie."""

    def __init__(self, num_pages: int) -> None:
        self.size = num_pages * mmap.PAGESIZE
        self.area = mmap.mmap(-1, self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # A huge page would be one placement for 512 pages.
        self.area.madvise(mmap.MADV_NOHUGEPAGE)
        for offset in range(0, self.size, mmap.PAGESIZE):
            self.area[offset] = 1
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.area))

    def nodes(self) -> list[int]:
        """Ask where every page is."""
        addresses = range(self.start, self.start + self.size, mmap.PAGESIZE)
        return syscalls.move_pages_query(0, list(addresses))

    def by_node(self) -> dict[int, int]:
        found = self.nodes()
        return {node: found.count(node) for node in set(found)}


class Cpuset:
    """A cpuset of its own for one test, in cgroup v2 or v1; it is removed afterwards."""

    def __init__(self) -> None:
        unified = pathlib.Path("/sys/fs/cgroup/cgroup.controllers")
        legacy = pathlib.Path("/sys/fs/cgroup/cpuset/cpuset.cpus")
        self.enabled_here = False
        if unified.exists() and "cpuset" in unified.read_text().split():
            self.parent = unified.parent
            control = self.parent / "cgroup.subtree_control"
            if "cpuset" not in control.read_text().split():
                _write_or_skip(control, "+cpuset")
                self.enabled_here = True
        elif legacy.exists():
            self.parent = legacy.parent
        else:
            pytest.skip("needs the cpuset controller of cgroup v2 or v1")
        self.path = self.parent / f"wellfed-test-{os.getpid()}"
        try:
            self.path.mkdir()
        except OSError as refusal:
            pytest.skip(f"needs the right to make a cgroup: {refusal}")
        self.set(cpus=self._parents("cpus"), mems=self._parents("mems"))

    def _parents(self, what: str) -> CpuSet:
        names = (f"cpuset.{what}.effective", f"cpuset.effective_{what}", f"cpuset.{what}")
        return next(found for name in names if (found := read_set(self.parent / name)))

    def set(self, *, cpus: CpuSet | None = None, mems: CpuSet | None = None) -> None:
        for name, value in (("cpuset.cpus", cpus), ("cpuset.mems", mems)):
            if value is not None:
                (self.path / name).write_text(str(value))

    def add(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Move what is left back and remove the cgroup; a process that just ended may hold it for a moment."""
        for pid in (self.path / "cgroup.procs").read_text().split():
            (self.parent / "cgroup.procs").write_text(pid)
        for _ in range(200):
            try:
                self.path.rmdir()
                break
            except OSError:
                time.sleep(0.01)
        if self.enabled_here:
            (self.parent / "cgroup.subtree_control").write_text("-cpuset")
        assert not self.path.exists()


def _write_or_skip(path: pathlib.Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as refusal:
        pytest.skip(f"needs to write {path}: {refusal}")


def rank(cpus, memory: MemoryPolicy | None = None, **more) -> RankPlacement:
    """Make a placement for verification."""
    policy = memory or MemoryPolicy("none")
    return RankPlacement(local_rank=0, gpus=(), cpus=CpuSet(cpus), memory=policy, **more)
