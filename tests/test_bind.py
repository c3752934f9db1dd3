"""Does binding take every thread, step down by errno, and say what the kernel really did?"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import numa_kit as kit
from tests.faults.seccomp import run_denied
from wellfed.host import bind, syscalls
from wellfed.host.memory_policy import (
    LADDERS,
    MODE_NAMES,
    PolicyInForce,
    of_number,
    parse_numa_maps_policy,
    read_own,
    read_thread,
    set_policy,
    why_refused,
)
from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.cpuset import EMPTY, CpuSet
from wellfed.model.errors import BindingError
from wellfed.model.placement import MEMORY_MODES, MemoryPolicy
from wellfed.model.tree import Unreadable

DENIED = """
import json
from wellfed.host.memory_policy import read_own, set_policy
from wellfed.model.cpuset import CpuSet
from wellfed.model.placement import MemoryPolicy
steps = set_policy(MemoryPolicy("preferred", CpuSet([0])))
print(json.dumps([[s.what, s.errno_name, s.explanation] for s in steps] + [str(read_own())]))
"""


def test_every_thread_takes_the_mask():
    """All threads that exist get the CPUs (TensorRT-LLM#18701), and each mask is read back."""
    cpu, _ = kit.two_cpus()

    def act() -> list[CpuSet]:
        go = threading.Event()
        threads = [threading.Thread(target=go.wait) for _ in range(5)]
        for thread in threads:
            thread.start()
        bind.bind_threads(CpuSet([cpu]))
        masks = [bind.mask_of(tid) for tid in bind.thread_ids(os.getpid())]
        go.set()
        return masks

    assert kit.in_child(act) == [CpuSet([cpu])] * 6


def test_threads_that_keep_appearing_are_taken_too():
    """While threads start threads, binding goes on until none is new: none is left outside."""
    cpu, _ = kit.two_cpus()

    def act() -> list[CpuSet]:
        stop = threading.Event()

        def breed(generations: int) -> None:
            if generations and not stop.is_set():
                threading.Thread(target=breed, args=(generations - 1,)).start()
            stop.wait(20)

        threading.Thread(target=breed, args=(30,)).start()
        bind.bind_threads(CpuSet([cpu]))
        masks = [bind.mask_of(tid) for tid in bind.thread_ids(os.getpid())]
        stop.set()
        return masks

    assert set(kit.in_child(act)) == {CpuSet([cpu])}


def test_a_thread_that_was_pinned_inside_is_not_widened():
    """Somebody put that thread on one of the planned CPUs: it keeps that (srt-slurm#326: never widen a mask)."""
    cpu, other = kit.two_cpus()

    def act() -> CpuSet:
        go, pinned = threading.Event(), threading.Event()
        tid: list[int] = []

        def pin() -> None:
            tid.append(threading.get_native_id())
            os.sched_setaffinity(0, {other})
            pinned.set()
            go.wait()

        threading.Thread(target=pin).start()
        pinned.wait()
        bind.bind_threads(CpuSet([cpu, other]))
        mask = bind.mask_of(tid[0])
        go.set()
        return mask

    assert kit.in_child(act) == CpuSet([other])


@pytest.mark.parametrize("cpus", [EMPTY, CpuSet([kit.absent_cpu()]), CpuSet([5000])])
def test_no_usable_cpu_is_an_error_with_what_there_is(cpus):
    """An empty or impossible set (cosmos-predict1#11) names what is online and allowed, and what to type."""
    with pytest.raises(BindingError) as refused:
        kit.in_child(bind.bind_threads, cpus)

    assert str(kit.read_set(kit.CPUS / "online")) in refused.value.message
    assert "wellfed topo" in refused.value.remedy


def test_a_mask_the_kernel_cut_is_told():
    """Part of the CPUs is not there (numactl#204): the step says which, instead of claiming all of them."""
    cpu, gone = kit.allowed_cpus().first, kit.absent_cpu()

    (step, *_) = kit.in_child(bind.bind_threads, CpuSet([cpu, gone]))

    assert step.explanation.startswith(f"the kernel kept {cpu}: CPU {gone} is offline or outside")


def test_cpu_numbers_above_1024_are_no_obstacle():
    """Masks of any length reach the kernel (tensorflow#56633, openvino#26303): a fixed cpu_set_t ends at 1024."""
    cpu = kit.allowed_cpus().first

    (step, *_) = kit.in_child(bind.bind_threads, CpuSet([cpu, 1279, 8000]))

    assert f"the kernel kept {cpu}" in step.explanation


def test_binding_leaves_this_process_as_it_was():
    """What a child binds is the child's: neither mask nor policy of this process changes."""
    before = (os.sched_getaffinity(0), syscalls.get_mempolicy())
    kit.in_child(bind.bind, CpuSet([kit.allowed_cpus().first]), MemoryPolicy("local"))

    assert (os.sched_getaffinity(0), syscalls.get_mempolicy()) == before


@pytest.mark.parametrize("mode", [mode for mode in MEMORY_MODES if mode != "none"])
def test_each_mode_is_in_force_or_stepped_down_from_aloud(mode):
    """The last step names what get_mempolicy confirms; a mode that this kernel lacks is a step with its errno."""
    node = kit.memory_nodes().first
    nodes = EMPTY if mode == "local" else CpuSet([node])

    def act() -> tuple[tuple, PolicyInForce]:
        return set_policy(MemoryPolicy(mode, nodes)), read_own()

    steps, found = kit.in_child(act)

    assert [step.errno_name for step in steps] == ["EINVAL"] * (len(steps) - 1) + [None]
    assert found.mode == LADDERS[mode][len(steps) - 1]
    assert found.nodes == nodes


def test_the_soft_default_is_static():
    """The default policy survives a cpuset that narrows and widens: it is PREFERRED_MANY with static nodes."""
    node = kit.memory_nodes().first
    steps = kit.in_child(set_policy, MemoryPolicy("preferred", CpuSet([node])))

    assert steps[-1].what in (
        f"set_mempolicy(MPOL_PREFERRED_MANY|MPOL_F_STATIC_NODES, {node})",
        f"set_mempolicy(MPOL_PREFERRED|MPOL_F_STATIC_NODES, {node})",
    )


def test_mode_none_touches_nothing():
    """Without a wish for memory no system call is made, and an inherited policy stays."""
    node = kit.memory_nodes().first

    def act() -> tuple[tuple, str]:
        syscalls.set_mempolicy(kit.BIND, CpuSet([node]))
        return set_policy(MemoryPolicy("none")), str(read_own())

    assert kit.in_child(act) == ((), f"bind:{node}")


def test_a_node_without_memory_is_named():
    """Every rung is tried, each says why (numactl#184), and the local policy is what is left."""
    bare = kit.absent_node()
    steps = kit.in_child(set_policy, MemoryPolicy("preferred", CpuSet([bare])))

    assert [step.errno_name for step in steps] == ["EINVAL", "EINVAL", None]
    assert steps[0].explanation == f"node {bare} has no memory"
    assert steps[-1].what == "set_mempolicy(MPOL_LOCAL)"


def test_a_hard_bind_is_never_replaced():
    """Who asks for MPOL_BIND and cannot have it gets the reason, not a softer policy."""
    steps = kit.in_child(set_policy, MemoryPolicy("bind", CpuSet([kit.absent_node()])))

    assert [step.errno_name for step in steps] == ["EINVAL"]


def test_a_denied_policy_is_not_bound_and_says_what_to_type():
    """Seccomp EPERM (moby#37241, vllm#24016): one step, no ladder, the container's flag, and the old policy in force."""
    done = run_denied("set_mempolicy", "EPERM", *_without_sys_nice(), sys.executable, "-c", DENIED)
    ((what, errno_name, explanation), found) = json.loads(done.stdout)

    assert what.startswith("set_mempolicy(MPOL_PREFERRED_MANY")
    assert errno_name == "EPERM"
    assert "--cap-add SYS_NICE" in explanation
    assert found == "default"


def _without_sys_nice() -> tuple[str, ...]:
    """Drop the capability as Docker does; who is not root has it not."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, to take CAP_SYS_NICE from root")
    return ("setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice")


def test_a_policy_that_cannot_be_asked_is_not_confirmed():
    """With get_mempolicy denied set_mempolicy works, and the last step says that nothing confirms it."""
    done = run_denied("get_mempolicy", "EPERM", sys.executable, "-c", DENIED)
    (set_step, ask_step, found) = json.loads(done.stdout)

    assert set_step[1] is None
    assert ask_step[:2] == ["get_mempolicy()", "EPERM"]
    assert found == "not permitted"


def test_a_denied_affinity_is_an_error_with_a_remedy():
    """A filter that denies sched_setaffinity ends in one sentence, not in a traceback of OSError."""
    code = """
from wellfed.host.bind import bind_threads
from wellfed.model.cpuset import CpuSet
from wellfed.model.errors import BindingError
try:
    bind_threads(CpuSet([0]))
except BindingError as refusal:
    print(refusal.message, "|", refusal.remedy)
"""
    done = run_denied("sched_setaffinity", "EPERM", sys.executable, "-c", code)

    assert done.stdout.startswith("sched_setaffinity(0) is refused: EPERM"), done.stderr
    assert "seccomp profile" in done.stdout


def _status(seccomp: str, capabilities: str, mems: str = "0-1") -> RecordedTree:
    text = (
        f"Name:\tpython\nCapEff:\t{capabilities}\nSeccomp:\t{seccomp}\nMems_allowed_list:\t{mems}\n"
    )
    files = {
        "/proc/self/status": text.encode(),
        "/sys/devices/system/node/has_memory": b"0-1\n",
    }
    return RecordedTree("a container", files)


DOCKER, ROOT = "00000000a80425fb", "000001ffffffffff"


@pytest.mark.parametrize(
    ("seccomp", "capabilities", "errno_name", "says"),
    [
        ("2", DOCKER, "EPERM", "--cap-add SYS_NICE"),
        ("2", DOCKER, "EPERM", 'capabilities: {add: ["SYS_NICE"]}'),
        ("2", DOCKER, "ENOSYS", "--cap-add SYS_NICE"),
        ("2", ROOT, "EPERM", "although CAP_SYS_NICE is held"),
        ("0", ROOT, "EPERM", "the kernel refuses"),
        ("0", ROOT, "ENOSYS", "built without NUMA"),
    ],
)
def test_the_cause_of_a_refusal_is_read_from_status(seccomp, capabilities, errno_name, says):
    """Docker's default filter and a missing CAP_SYS_NICE (containerd#13610) are told from every other cause."""
    tree = _status(seccomp, capabilities)

    assert says in why_refused("preferred", CpuSet([0]), Unreadable(errno_name), tree)


@pytest.mark.parametrize(
    ("mode", "nodes", "mems", "says"),
    [
        ("preferred", "1", "0", "node 1 is outside this process's Mems_allowed_list (0)"),
        ("bind", "2", "0-1", "node 2 has no memory"),
        ("bind", "1-2", "0", "node 2 has no memory; node 1 is outside"),
        ("preferred-many", "0", "0-1", "does not know the mode (since Linux 5.15)"),
        ("weighted", "0", "0-1", "does not know the mode (since Linux 6.9)"),
        ("bind", "0", "0-1", "invalid"),
    ],
)
def test_einval_is_traced_to_its_cause(mode, nodes, mems, says):
    """EINVAL has three causes (docker/for-linux#863, numactl#223): cpuset, empty node, old kernel; each is named."""
    tree = _status("0", ROOT, mems)

    assert says in why_refused(mode, CpuSet.parse(nodes), Unreadable("EINVAL"), tree)


@pytest.mark.parametrize(
    ("line", "policy"),
    [
        ("7f00 default file=/usr/bin/x mapped=2 N0=2", "default"),
        ("7f00 prefer:0 file=/usr/bin/x", "preferred:0"),
        ("7f00 prefer (many)=static:0-1 file=/usr/bin/prefer", "preferred-many:0-1 (static)"),
        ("7f00 prefer (many):0,8 anon=1", "preferred-many:0,8"),
        ("7f00 bind=static|balancing:1 heap anon=3", "bind:1 (static, balancing)"),
        ("7f00 bind=relative:0", "bind:0 (relative)"),
        ("7f00 interleave:0-3 stack", "interleave:0-3"),
        ("7f00 weighted interleave=static:0-1 file=/x", "weighted:0-1 (static)"),
        ("7f00 local anon=1", "local"),
        ("7f00 bind:1 anon=3\n7f01 bind:2 anon=1\n", "bind:1"),
    ],
)
def test_numa_maps_policies_are_read_as_the_kernel_writes_them(line, policy):
    """Each spelling of mm/mempolicy.c comes back as an operator's word."""
    assert str(parse_numa_maps_policy(line)) == policy


@pytest.mark.parametrize(
    "line",
    [
        "",
        "7f00",
        "7f00 prefers:0",
        "7f00 bind:x",
        "7f00 nonsense:0",
        "7f00 bind:" + "0,2," * 15 + "60",
    ],
)
def test_a_policy_that_is_cut_or_unknown_is_none(line):
    """The kernel cuts a long node list after 63 characters: half a list is no answer."""
    assert parse_numa_maps_policy(line) is None


def test_a_thread_tells_its_own_policy():
    """numa_maps of a thread shows that thread's policy, the way to ask about any thread of any process."""
    node = kit.memory_nodes().first

    def act() -> tuple[str, str]:
        done, go, tid = threading.Event(), threading.Event(), []

        def own() -> None:
            tid.append(threading.get_native_id())
            syscalls.set_mempolicy(kit.BIND | kit.STATIC, CpuSet([node]))
            done.set()
            go.wait()

        threading.Thread(target=own).start()
        done.wait()
        answers = str(read_thread(os.getpid(), tid[0])), str(read_thread(os.getpid(), os.getpid()))
        go.set()
        return answers

    assert kit.in_child(act) == (f"bind:{node} (static)", "default")


def test_a_process_that_is_gone_has_no_policy():
    """A missing process is an errno, not a default policy."""
    gone = subprocess.Popen(["true"])
    gone.wait()

    assert isinstance(read_thread(gone.pid, gone.pid), Unreadable)


def test_modes_are_named_by_number():
    """Names follow the kernel's numbers, and one that we do not know is said to be unknown."""
    named = [of_number(number, CpuSet([0])).mode for number in range(8)]

    assert tuple(named[:7]) == MODE_NAMES
    assert named[7] == "mode 7"


def test_local_as_old_kernels_tell_it_is_local():
    """Before v5.14 MPOL_LOCAL reads back as PREFERRED without nodes."""
    assert str(of_number(syscalls.MPOL_PREFERRED, EMPTY)) == "local"


@given(st.sets(st.integers(0, 1023), max_size=20), st.integers(0, 1100))
def test_a_mask_reaches_the_kernel_with_every_bit(nodes, at_least):
    """maxnode is one more than the bits given, whole words, and the words hold exactly the nodes."""
    mask, maxnode = syscalls._mask(CpuSet(nodes), at_least=at_least)
    bits = sum(word << 64 * i for i, word in enumerate(mask))

    assert CpuSet.of_mask(bits) == CpuSet(nodes)
    assert maxnode.value == len(mask) * 64 + 1 > at_least


@pytest.mark.parametrize(
    ("machine", "wide", "name", "number"),
    [
        ("x86_64", True, "set_mempolicy", 238),
        ("i686", True, "set_mempolicy", 238),
        ("aarch64", True, "set_mempolicy", 237),
        ("armv8l", True, "move_pages", 239),
        ("riscv64", True, "migrate_pages", 238),
        ("ppc64le", True, "get_mempolicy", 260),
        ("s390x", True, "move_pages", 310),
    ],
)
def test_call_numbers_follow_the_architecture(machine, wide, name, number):
    """Numbers are the process's, not the kernel's name for a 32-bit personality."""
    assert syscalls.number_of(name, machine, wide=wide) == number


@pytest.mark.parametrize(
    ("machine", "wide"), [("x86_64", False), ("armv7l", False), ("sparc64", True)]
)
def test_an_unknown_architecture_is_enosys(machine, wide):
    """Without a number no call is made: another call would be made by mistake."""
    with pytest.raises(OSError, match="no system call number") as refused:
        syscalls.number_of("mbind", machine, wide=wide)

    assert refused.value.errno == errno.ENOSYS
