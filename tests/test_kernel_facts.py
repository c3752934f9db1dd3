"""Which facts about the kernel does wellfed rest on? Kernel facts K1 to K15, each asked of the kernel that runs here."""

from __future__ import annotations

import ctypes
import errno
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from tests import numa_kit as kit
from tests.faults.seccomp import run_denied
from wellfed.host import syscalls
from wellfed.host.memory_policy import read_thread, set_policy
from wellfed.model.cpuset import CpuSet
from wellfed.model.placement import MemoryPolicy

INHERITED = """
import multiprocessing, os, pickle, subprocess, sys, threading
from tests.numa_kit import tell, told
from wellfed.host import syscalls
from wellfed.model.cpuset import CpuSet

def by(method):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=tell, args=(theirs,))
    process.start()
    answer = ours.recv()
    process.join()
    return answer

def by_exec():
    code = "from tests.numa_kit import told; print(told())"
    return eval(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)

def by_thread():
    answers = []
    thread = threading.Thread(target=lambda: answers.append(told()))
    thread.start()
    thread.join()
    return answers[0]

cpu, node, older = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "older"
if older:
    by("forkserver")
before = told()
go, asked = threading.Event(), []
waiting = threading.Thread(target=lambda: (go.wait(), asked.append(told())))
waiting.start()
os.sched_setaffinity(0, {cpu})
syscalls.set_mempolicy(syscalls.MPOL_BIND, CpuSet([node]))
go.set()
waiting.join()
after = {"existing thread": asked[0], "forkserver": by("forkserver")}
if not older:
    after |= {"thread": by_thread(), "fork": by("fork"), "spawn": by("spawn"), "exec": by_exec()}
print({"before": before, "bound": told(), **after})
"""


@pytest.fixture
def cpuset():
    """Give a cpuset for this test alone, and remove it."""
    made = kit.Cpuset()
    yield made
    made.remove()


def _inherited(older: str) -> dict[str, tuple[int, str, str]]:
    cpu, _ = kit.two_cpus()
    done = kit.python(INHERITED, str(cpu), str(kit.memory_nodes().first), older)
    assert done.returncode == 0, done.stderr
    return eval(done.stdout)


def test_k1_what_starts_after_the_bind_inherits_it():
    """Kernel fact K1: threads, fork, spawn, exec and a forkserver started later inherit mask and policy."""
    found = _inherited("none")

    started_later = {
        name: found[name] for name in ("thread", "fork", "spawn", "exec", "forkserver")
    }
    assert set(started_later.values()) == {found["bound"]}
    assert found["bound"][0] == kit.BIND


def test_k2_what_is_older_than_the_bind_keeps_its_own():
    """Kernel fact K2 (TensorRT-LLM#18701, xgboost#11538): existing threads and children of an old forkserver change nothing."""
    found = _inherited("older")

    assert found["existing thread"] == found["forkserver"] == found["before"]
    assert found["before"] != found["bound"]


def test_k3_a_mask_is_cut_silently():
    """Kernel fact K3 (util-linux#1701): a mask with impossible CPUs is reduced to the possible ones, without an error."""
    cpu = kit.allowed_cpus().first

    def act() -> set[int]:
        os.sched_setaffinity(0, {cpu, kit.absent_cpu()})
        return os.sched_getaffinity(0)

    assert kit.in_child(act) == {cpu}


@pytest.mark.parametrize("cpus", [set(), {kit.absent_cpu()}])
def test_k3_a_mask_without_a_usable_cpu_is_refused(cpus):
    """Kernel fact K3 (cosmos-predict1#11, numactl#204): an empty mask, or none but offline CPUs, is EINVAL."""
    found = kit.in_child(kit.refusal_of, os.sched_setaffinity, 0, cpus)

    assert found == errno.EINVAL


@pytest.mark.parametrize("mode", [kit.BIND, kit.PREFERRED, kit.INTERLEAVE, kit.MANY])
def test_k4_a_node_without_memory_is_refused(mode):
    """Kernel fact K4: no policy takes a node that is not there or has no memory, static or not."""
    bare = {kit.absent_node(), *(kit.cpu_nodes() - kit.read_set(kit.NODES / "has_memory"))}
    found = {
        kit.in_child(kit.refusal_of, syscalls.set_mempolicy, mode | flag, CpuSet([node]))
        for node in bare
        for flag in (0, kit.STATIC)
    }

    assert found == {errno.EINVAL}


@pytest.mark.host
@pytest.mark.parametrize("mode", [kit.BIND, kit.PREFERRED, kit.INTERLEAVE, kit.MANY])
def test_k4_a_node_outside_the_cpuset_is_refused(mode, cpuset):
    """Kernel fact K4 (numactl#223, docker/for-linux#863): a node outside Mems_allowed is EINVAL."""
    inside, outside = kit.two_memory_nodes()
    cpuset.set(mems=CpuSet([inside]))

    found = kit.in_child(
        kit.refusal_of, syscalls.set_mempolicy, mode, CpuSet([outside]), before=cpuset.add
    )

    assert found == errno.EINVAL


@pytest.mark.parametrize("mode", [kit.BIND, kit.INTERLEAVE, kit.MANY])
def test_k4_a_mixed_set_is_reduced_silently(mode):
    """Kernel fact K4 (numactl#184): good and bad nodes together become the good ones, without an error."""
    good, bad = kit.memory_nodes().first, kit.absent_node()

    def act() -> tuple[int, str]:
        syscalls.set_mempolicy(mode, CpuSet([good, bad]))
        found_mode, nodes = syscalls.get_mempolicy()
        return found_mode, str(nodes)

    assert kit.in_child(act) == (mode, str(good))


def test_k4_a_static_set_is_reported_as_it_was_asked():
    """Kernel fact K4: a static policy reports the nodes that were asked for; only numa_maps tells which work."""
    good, bad = kit.memory_nodes().first, kit.absent_node()

    def act() -> tuple[str, str]:
        syscalls.set_mempolicy(kit.MANY | kit.STATIC, CpuSet([good, bad]))
        return str(syscalls.get_mempolicy()[1]), str(read_thread(os.getpid(), os.getpid()))

    asked, works = kit.in_child(act)

    assert asked == str(CpuSet([good, bad]))
    assert works == f"preferred-many:{good} (static)"


@pytest.mark.host
def test_k5_static_and_relative_masks_are_kept(cpuset):
    """Kernel fact K5: with one node allowed a static mask of two is kept; a relative mask is kept as it was given."""
    first, second = kit.two_memory_nodes()
    cpuset.set(mems=CpuSet([second]))

    def act() -> list[str]:
        said = []
        wanted = ((kit.STATIC, [first, second]), (syscalls.MPOL_F_RELATIVE_NODES, [0]))
        for flag, nodes in wanted:
            syscalls.set_mempolicy(kit.BIND | flag, CpuSet(nodes))
            said.append(str(syscalls.get_mempolicy()[1]))
            said.append(str(read_thread(os.getpid(), os.getpid())))
        return said

    static, static_works, relative, relative_works = kit.in_child(act, before=cpuset.add)

    assert static == str(CpuSet([first, second]))
    assert static_works == f"bind:{second} (static)"
    assert relative == "0"
    assert relative_works == f"bind:{second} (relative)"


def test_k6_preferred_keeps_one_node():
    """Kernel fact K6: of several preferred nodes only the first is kept, without an error."""
    first, second = kit.two_memory_nodes()

    def act() -> str:
        syscalls.set_mempolicy(kit.PREFERRED, CpuSet([first, second]))
        return str(syscalls.get_mempolicy()[1])

    assert kit.in_child(act) == str(first)


@pytest.mark.parametrize(("maxnode", "wanted"), [(1, errno.EINVAL), (2, 0), (65, 0)])
def test_k7_maxnode_is_one_more_than_the_bits(maxnode, wanted):
    """Kernel fact K7: node 0 with maxnode 1 is EINVAL; the kernel looks at maxnode − 1 bits."""
    if kit.memory_nodes().first != 0:
        pytest.skip("needs memory on node 0")
    number = syscalls.number_of("set_mempolicy", os.uname().machine, wide=True)

    def act() -> int:
        mask = ctypes.c_ulong(1)
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = (ctypes.c_long(kit.BIND), ctypes.byref(mask), ctypes.c_ulong(maxnode))
        failed = libc.syscall(ctypes.c_long(number), *arguments)
        return ctypes.get_errno() if failed else 0

    assert kit.in_child(act) == wanted


@pytest.mark.host
def test_k8_a_cpuset_write_changes_the_mask(cpuset):
    """Kernel fact K8: a narrowed cpuset moves the mask; widened again, old kernels widen it too, newer ones restore it."""
    cpu, other = kit.two_cpus()
    everything = kit.allowed_cpus()

    def act(pid: int) -> list[CpuSet]:
        cpuset.add(pid)
        os.sched_setaffinity(pid, {cpu})
        seen = []
        for cpus in (everything - CpuSet([cpu]), everything):
            cpuset.set(cpus=cpus)
            seen.append(CpuSet(os.sched_getaffinity(pid)))
        return seen

    seen: list[CpuSet] = []
    kit.in_child(os.getpid, before=lambda pid: seen.extend(act(pid)))
    narrowed, widened = seen

    assert narrowed == everything - CpuSet([cpu])
    assert other in narrowed
    # Linux before 6.2 forgets what the thread had asked for.
    assert widened in (CpuSet([cpu]), everything)


@pytest.mark.host
@pytest.mark.parametrize(("flag", "comes_back"), [(0, False), (kit.STATIC, True)])
def test_k8_a_cpuset_write_moves_a_policy_unless_it_is_static(cpuset, flag, comes_back):
    """Kernel fact K8: ``bind:1`` becomes ``bind:0`` in a cpuset narrowed to 0 and stays so; a static one comes back."""
    first, second = kit.two_memory_nodes()

    def act() -> tuple[str, dict[int, int]]:
        policy = read_thread(os.getpid(), os.getpid())
        return str(policy.nodes), kit.Memory(32).by_node()

    def prepare() -> None:
        syscalls.set_mempolicy(kit.BIND | flag, CpuSet([second]))

    def narrow_and_widen(pid: int) -> None:
        cpuset.add(pid)
        cpuset.set(mems=CpuSet([first]))
        cpuset.set(mems=CpuSet([first, second]))

    policy, pages = kit.in_child(act, prepare=prepare, before=narrow_and_widen)

    expected = second if comes_back else first
    assert policy == str(expected)
    assert pages == {expected: 32}


def test_k9_pages_stay_until_they_are_migrated():
    """Kernel fact K9: a new policy moves no page; migrate_pages moves them, and says how many it could not."""
    first, second = kit.two_memory_nodes()

    def act() -> tuple[dict[int, int], int, dict[int, int]]:
        syscalls.set_mempolicy(kit.BIND, CpuSet([first]))
        memory = kit.Memory(256)
        syscalls.set_mempolicy(kit.BIND, CpuSet([second]))
        stayed = memory.by_node()
        left = syscalls.migrate_pages(0, CpuSet([first]), CpuSet([second]))
        return stayed, left, memory.by_node()

    stayed, left, moved = kit.in_child(act)

    assert stayed == {first: 256}
    assert moved == {second: 256}
    assert left >= 0


def _overfill(mode: int, node: int) -> dict[int, int]:
    """Touch more than a node has, under a policy; give where the last pages went."""
    pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
    syscalls.set_mempolicy(mode, CpuSet([node]))
    wanted = kit.node_bytes(node, "MemFree") + (48 << 20)
    return kit.Memory(wanted // 4096).by_node()


def _small_node() -> int:
    kit.throw_away_guest()
    kit.two_memory_nodes()
    smallest = min(kit.memory_nodes(), key=lambda node: kit.node_bytes(node, "MemFree"))
    if kit.node_bytes(smallest) > 2 << 30:
        pytest.skip("needs a NUMA node of 2 GiB at most, to fill it")
    return smallest


def test_k10_a_hard_bind_kills_where_a_soft_one_spills():
    """Kernel fact K10 (vllm#51584): MPOL_BIND beyond the node is SIGKILL; PREFERRED goes on to the next node."""
    node = _small_node()

    spilled = kit.in_child(_overfill, kit.PREFERRED | kit.STATIC, node)
    with pytest.raises(kit.ChildKilledError) as killed:
        kit.in_child(_overfill, kit.BIND | kit.STATIC, node)

    assert len(spilled) > 1
    assert killed.value.args == (-signal.SIGKILL,)
    log = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
    assert "CONSTRAINT_MEMORY_POLICY" in log


def test_k11_cpus_without_memory_take_it_from_the_nearest_node():
    """Kernel fact K11: on a node without memory the default policy falls to the node at the smallest distance."""
    bare = kit.cpu_only_node()
    distances = [int(d) for d in (kit.NODES / f"node{bare}/distance").read_text().split()]
    numbers = list(kit.read_set(kit.NODES / "online"))
    nearest = min(kit.memory_nodes(), key=lambda node: distances[numbers.index(node)])

    def act() -> dict[int, int]:
        os.sched_setaffinity(0, kit.cpus_of(bare))
        return kit.Memory(64).by_node()

    assert kit.in_child(act) == {nearest: 64}


@pytest.mark.host
def test_k12_an_offline_cpu_vanishes_from_topology_and_lists():
    """Kernel fact K12: offline, a CPU has no topology, leaves its node's list and its siblings, and counts shift."""
    kit.throw_away_guest()
    cpu = list(kit.allowed_cpus())[-2]
    switch = kit.CPUS / f"cpu{cpu}/online"
    siblings = kit.read_set(kit.CPUS / f"cpu{cpu}/topology/thread_siblings_list")
    node = next(node for node in kit.cpu_nodes() if cpu in kit.cpus_of(node))
    before = kit.read_set(kit.CPUS / "online")
    try:
        switch.write_text("0")
        topology = (kit.CPUS / f"cpu{cpu}/topology").exists()
        on_node = kit.cpus_of(node)
        left = [kit.read_set(kit.CPUS / f"cpu{s}/topology/thread_siblings_list") for s in siblings]
        count, largest = os.cpu_count(), max(kit.read_set(kit.CPUS / "online"))
    finally:
        switch.write_text("1")

    assert not topology
    assert cpu not in on_node
    assert all(cpu not in each for each in left)
    assert count == len(before) - 1 == largest
    assert kit.read_set(kit.CPUS / "online") == before


def test_k13_what_a_node_is_stands_in_its_own_files():
    """Kernel fact K13: nodes are numbered by firmware, so that only the node's files say whether it has CPUs or memory."""
    listed = CpuSet(int(path.name[4:]) for path in kit.NODES.glob("node[0-9]*"))
    with_memory = kit.read_set(kit.NODES / "has_memory")
    with_cpus = kit.read_set(kit.NODES / "has_cpu")

    assert listed == kit.read_set(kit.NODES / "online")
    assert CpuSet(node for node in listed if kit.node_bytes(node)) == with_memory
    assert CpuSet(node for node in listed if kit.cpus_of(node)) == with_cpus


def test_k14_a_denied_policy_can_be_asked_all_the_same():
    """Kernel fact K14 (mindspore#186): with set_mempolicy denied get_mempolicy answers, so a probe must really set."""
    code = """
import errno
from tests.numa_kit import refusal_of
from wellfed.host import syscalls
from wellfed.model.cpuset import CpuSet
print(refusal_of(syscalls.set_mempolicy, 2, CpuSet([0])) == errno.EPERM, syscalls.get_mempolicy()[0])
"""
    done = run_denied("set_mempolicy", "EPERM", sys.executable, "-c", code)

    assert done.stdout.split() == ["True", "0"], done.stderr


@pytest.mark.skipif(shutil.which("numactl") is None, reason="needs numactl, to show how it fails")
def test_k14_numactl_dies_where_the_policy_is_denied():
    """Kernel fact K14 (sglang#27368, vllm#45438): numactl -m ends before the command, numactl -C starts it."""
    cpu = str(kit.allowed_cpus().first)
    memory = run_denied("set_mempolicy", "EPERM", "numactl", "-m", "0", "echo", "started")
    cpus = run_denied("set_mempolicy", "EPERM", "numactl", "-C", cpu, "echo", "started")

    assert (memory.returncode, memory.stdout) == (1, "")
    assert (cpus.returncode, cpus.stdout) == (0, "started\n")


def test_k15_a_node_without_cpus_gives_an_empty_mask():
    """Kernel fact K15 (superbenchmark#658): the CPUs of a memory-only node are none, and none is EINVAL."""
    bare = kit.memory_nodes() - kit.cpu_nodes()
    if not bare:
        pytest.skip("needs a NUMA node with memory and no CPUs")

    found = kit.in_child(kit.refusal_of, os.sched_setaffinity, 0, kit.cpus_of(bare.first))

    assert found == errno.EINVAL


def test_k15_cpus_of_a_node_without_memory_can_be_bound_to():
    """Kernel fact K15 (numactl#165, #127, #67): numactl -N calls such a node invalid; its CPUs are as good as any."""
    bare = kit.cpu_only_node()

    def act() -> set[int]:
        os.sched_setaffinity(0, kit.cpus_of(bare))
        return os.sched_getaffinity(0)

    assert CpuSet(kit.in_child(act)) == kit.cpus_of(bare)
    if shutil.which("numactl"):
        done = subprocess.run(
            ["numactl", "-N", str(bare), "true"], check=False, capture_output=True
        )
        assert done.returncode != 0


def test_a_policy_accepted_here_puts_pages_where_it_says():
    """The ladder's result is what pages follow: a soft policy for the last node puts fresh pages there."""
    node = list(kit.memory_nodes())[-1]

    def act() -> tuple[str | None, dict[int, int]]:
        steps = set_policy(MemoryPolicy("preferred", CpuSet([node])))
        return steps[-1].errno_name, kit.Memory(64).by_node()

    assert kit.in_child(act) == (None, {node: 64})
