"""Is a binding believed only when the kernel confirms it, and is drift found and set right?"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

import wellfed
from tests import numa_kit as kit
from tests.faults.seccomp import run_denied
from wellfed.host import syscalls
from wellfed.host.bind import bind as bind_here
from wellfed.host.live_tree import LiveTree
from wellfed.host.memory_policy import PolicyInForce
from wellfed.host.topology import read_machine
from wellfed.model.binding import Binding, Drift, PageCount, Repair, Step, ThreadState
from wellfed.model.cpuset import EMPTY, CpuSet
from wellfed.model.errors import BindingError, UsageError
from wellfed.model.machine import Gpu, Machine
from wellfed.model.placement import MemoryPolicy
from wellfed.model.tree import Unreadable
from wellfed.model.value import replace
from wellfed.report.binding_json import as_json
from wellfed.report.binding_text import render, render_repair
from wellfed.workflows.bind import bind, bind_as_planned
from wellfed.workflows.verify import (
    all_confirmed,
    mask_shrank,
    masks_hold,
    policy_holds,
    remarks,
    share_on,
    verify,
)
from wellfed.workflows.watch_binding import repair, watch

ALONE = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
SOFT = MemoryPolicy("preferred", CpuSet([0]))


@pytest.fixture
def cpuset():
    """Give a cpuset for this test alone, and remove it."""
    made = kit.Cpuset()
    yield made
    made.remove()


def machine_with_gpu(node: int | None = None) -> Machine:
    """Give this host as it is, with one GPU beside a node (the last one with CPUs and memory)."""
    machine = read_machine(LiveTree())
    beside = list(kit.cpu_nodes() & kit.memory_nodes())[-1] if node is None else node
    return replace(machine, gpus=(Gpu(0, "0000:01:00.0", cpu_node=beside),))


BIND_HERE = """
import json, os, sys
from tests.test_verify import ALONE, machine_with_gpu
from wellfed.model.errors import WellfedError
from wellfed.report.binding_json import as_json
from wellfed.report.binding_text import render
import wellfed
try:
    found = wellfed.bind(machine=machine_with_gpu(), environment=ALONE, strict="strict" in sys.argv)
    print(json.dumps(as_json(found)))
    print(render(found), file=sys.stderr)
except WellfedError as refusal:
    print(type(refusal).__name__, refusal.message, "|", refusal.remedy)
"""


def test_a_bound_process_is_bound_by_the_kernels_own_word():
    """CPUs and memory beside the GPU: both are what the kernel reports, and fresh pages are there."""
    node = list(kit.cpu_nodes() & kit.memory_nodes())[-1]

    def act() -> tuple[Binding, set[int], str, dict[int, int]]:
        found = bind(machine=machine_with_gpu(), environment=ALONE)
        policy = str(syscalls.get_mempolicy()[1])
        return found, os.sched_getaffinity(0), policy, kit.Memory(128).by_node()

    found, mask, policy, pages = kit.in_child(act)

    assert found.bound
    assert found.memory_bound is True
    assert found.cpus == CpuSet(mask) == kit.cpus_of(node) & kit.allowed_cpus()
    assert policy == str(node)
    assert pages == {node: 128}


def test_the_face_has_the_same_bind():
    """`wellfed.bind` is loaded when it is asked for; other names are not there."""
    assert wellfed.bind is bind
    assert wellfed.Binding is Binding
    assert {"bind", "Binding", "WellfedError", "__version__"} <= set(dir(wellfed))
    with pytest.raises(AttributeError, match="no attribute 'numactl'"):
        getattr(wellfed, "numactl")  # noqa: B009


def test_a_denied_memory_policy_is_not_bound():
    """Seccomp EPERM on set_mempolicy (mindspore#186 logs success here): not bound, the CPUs are, and the step says why."""
    done = run_denied("set_mempolicy", "EPERM", sys.executable, "-c", BIND_HERE)
    found = json.loads(done.stdout)

    assert found["bound"] is False
    assert found["memory"]["bound"] is False
    assert found["memory"]["found"] == "default"
    assert found["cpus"]["found"] == found["cpus"]["planned"]
    assert [s["errno"] for s in found["steps"] if "set_mempolicy" in s["what"]] == ["EPERM"]
    assert "NOT bound" in done.stderr


def test_strict_makes_an_unconfirmed_binding_an_error():
    """Who asks for strict gets one sentence with planned and found, and the remedy."""
    done = run_denied("set_mempolicy", "EPERM", sys.executable, "-c", BIND_HERE, "strict")

    assert done.stdout.startswith("BindingError process")
    assert "memory is default, planned was preferred:" in done.stdout
    assert "seccomp" in done.stdout


def test_a_denied_mask_leaves_the_memory_policy_to_be_set():
    """Each part is tried for itself: with sched_setaffinity denied the policy holds, and the whole is not bound."""
    done = run_denied("sched_setaffinity", "EPERM", sys.executable, "-c", BIND_HERE)
    found = json.loads(done.stdout)

    assert found["steps"][0]["errno"] == "EPERM"
    assert found["memory"]["bound"] is True
    # On a host with one node the mask was the planned one before anybody set it.
    assert found["bound"] is (found["cpus"]["found"] == found["cpus"]["planned"])


def test_a_denied_get_mempolicy_is_confirmed_by_numa_maps():
    """With get_mempolicy denied the kernel still shows the policy, in numa_maps: that is an answer."""
    done = run_denied("get_mempolicy", "EPERM", sys.executable, "-c", BIND_HERE)
    found = json.loads(done.stdout)

    assert found["memory"]["bound"] is True
    assert found["memory"]["found"].startswith("preferred")
    assert [s["errno"] for s in found["steps"]][-1] == "EPERM"


def test_without_rank_and_gpu_nothing_is_touched():
    """No launcher, no GPU: mask and policy stay, it is not called bound, and a note says so."""
    machine = read_machine(LiveTree())

    def act() -> tuple[Binding, set[int], int]:
        found = bind(machine=replace(machine, gpus=()), environment={})
        return found, os.sched_getaffinity(0), syscalls.get_mempolicy()[0]

    found, mask, mode = kit.in_child(act)

    assert not found.bound
    assert found.steps == ()
    assert (CpuSet(mask), mode) == (kit.allowed_cpus(), kit.DEFAULT)
    assert any("no GPU is visible" in note for note in found.notes)


def test_without_rank_one_process_is_beside_all_its_gpus():
    """A script that nobody launched gets the nodes of every GPU that it may see."""
    machine = machine_with_gpu()
    found = kit.in_child(lambda: bind(machine=machine, environment={}))

    assert found.bound


def test_strict_without_anything_to_bind_to_is_an_error():
    """Nothing planned is nothing confirmed: strict says what is missing."""
    machine = replace(read_machine(LiveTree()), gpus=())

    with pytest.raises(BindingError, match="no GPU is visible"):
        kit.in_child(lambda: bind(machine=machine, environment={}, strict=True))


def test_a_rank_without_a_size_is_an_error():
    """A rank given by hand needs the number of ranks: a split that each rank computes needs the same number."""
    with pytest.raises(UsageError, match="how many ranks share this host"):
        bind(3, machine=machine_with_gpu(), environment={})


def test_a_rank_given_by_hand_wins():
    """bind(0, num_local_ranks=1) needs no launcher."""
    found = kit.in_child(
        lambda: bind(0, num_local_ranks=1, machine=machine_with_gpu(), environment={})
    )

    assert (found.bound, found.local_rank) == (True, 0)


def test_binding_does_not_load_torch_or_nvml():
    """CUDA is not initialised: neither torch nor NVML nor the CUDA driver is in the process afterwards."""
    code = (
        BIND_HERE
        + "\nprint(sorted({'torch', 'pynvml'} & set(sys.modules)), 'libcuda' in open('/proc/self/maps').read())"
    )

    assert kit.python(code).stdout.splitlines()[-1] == "[] False"


def test_a_narrower_affinity_is_kept_inside():
    """What taskset or Slurm allowed is never left (sglang#26983 skips it, srt-slurm#326 removes it): the plan lies inside."""
    _, other = kit.two_cpus()

    def act() -> Binding:
        os.sched_setaffinity(0, {other})
        node = next(n for n in kit.cpu_nodes() if other in kit.cpus_of(n))
        return bind(machine=machine_with_gpu(node), environment=ALONE)

    found = kit.in_child(act)

    assert found.cpus == found.planned_cpus == CpuSet([other])
    assert found.bound


def test_binding_starts_no_program():
    """Neither numactl nor a shell: a preloaded library or a parallel start cannot break it (pytorch#160163, #115305)."""
    code = (
        """
import sys
import tests.test_verify
started = []
sys.addaudithook(lambda event, _: started.append(event) if event.startswith(WATCHED) else None)
WATCHED = ("subprocess.", "os.exec", "os.posix_spawn", "os.fork", "os.system")
"""
        + BIND_HERE
        + "print(started)"
    )
    done = kit.python(code)

    assert json.loads(done.stdout.splitlines()[0])["bound"] is True
    assert done.stdout.splitlines()[1] == "[]"


def test_a_recorded_host_is_nothing_to_bind_to():
    """A machine that was read elsewhere has other CPUs: one sentence, and nothing is touched."""
    machine = replace(machine_with_gpu(), live=False, name="a recording")

    with pytest.raises(UsageError, match="bind\\(\\) was given a recording"):
        bind(machine=machine, environment=ALONE)


def test_a_bind_in_a_thread_says_what_it_cannot_do():
    """A memory policy belongs to the thread that sets it: from another thread the main thread is not bound, and that is told."""
    placement = kit.rank(
        kit.allowed_cpus(), MemoryPolicy("preferred", CpuSet([kit.memory_nodes().first]))
    )

    def act() -> Binding:
        found: list[Binding] = []
        thread = threading.Thread(target=lambda: found.append(bind_as_planned(placement)))
        thread.start()
        thread.join()
        return found[0]

    found = kit.in_child(act)

    assert (found.bound, found.memory) == (False, "default")
    assert "call it in the main thread" in found.notes[0]


def test_processes_older_than_the_bind_are_in_the_result():
    """Kernel fact K2: a child that runs already is named, since it keeps its CPUs and its policy."""
    code = """
import subprocess, sys
from tests.test_verify import ALONE, machine_with_gpu
import wellfed
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
found = wellfed.bind(machine=machine_with_gpu(), environment=ALONE)
child.communicate(b"end")
print(found.bound, child.pid, *found.older_processes)
"""
    done = kit.python(code)
    bound, pid, sentence = done.stdout.strip().split(" ", 2)

    assert bound == "True"
    assert sentence.startswith(f"process {pid} (python")
    assert sentence.endswith(
        "is older than the bind: it and what it starts keep the old CPUs and policy"
    )


def test_threads_older_than_the_bind_keep_their_policy_and_are_counted():
    """A thread that ran before has the mask and not the policy: numa_maps of that thread proves it."""
    placement = kit.rank(
        kit.allowed_cpus(), MemoryPolicy("preferred", CpuSet([kit.memory_nodes().first]))
    )

    def act() -> Binding:
        go = threading.Event()
        threading.Thread(target=go.wait).start()
        found = bind_as_planned(placement)
        go.set()
        return found

    found = kit.in_child(act)

    assert found.bound
    assert [state.memory for state in found.threads][1] == "default"
    assert "1 of 2 threads have another memory policy: default" in found.notes
    assert found.older_processes[0].startswith("1 thread runs already")


def test_another_process_is_verified_from_outside():
    """Mask, policy and pages of a process that is not ours to be: by sched_getaffinity, numa_maps, move_pages."""
    cpu, _ = kit.two_cpus()
    node = kit.memory_nodes().first
    placement = kit.rank([cpu], MemoryPolicy("preferred", CpuSet([node])))
    seen: list[Binding] = []
    kit.in_child(
        os.getpid,
        prepare=lambda: bind_here(placement.cpus, placement.memory),
        before=lambda pid: seen.append(verify(pid, placement)),
    )

    (found,) = seen
    assert found.bound
    assert found.memory.endswith(f":{node} (static)")
    assert found.pages_local is not None


def test_a_process_with_another_policy_is_not_bound():
    """Right CPUs and the kernel's default memory policy: found from outside, told as it is."""
    cpu, _ = kit.two_cpus()
    placement = kit.rank([cpu], SOFT)
    seen: list[Binding] = []
    kit.in_child(
        os.getpid,
        prepare=lambda: os.sched_setaffinity(0, {cpu}),
        before=lambda pid: seen.append(verify(pid, placement)),
    )

    assert [(b.bound, b.memory, b.memory_bound) for b in seen] == [(False, "default", False)]


def test_children_are_verified_with_their_parent():
    """A worker that left the planned CPUs makes the process not bound, and is named."""
    cpu, other = kit.two_cpus()
    placement = kit.rank([cpu])
    code = f"import os, sys; os.sched_setaffinity(0, {{{other}}}); print('ready', flush=True); sys.stdin.read()"

    def act() -> tuple[Binding, Binding, int]:
        os.sched_setaffinity(0, {cpu})
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as worker:
            worker.stdout.readline()
            both = verify(os.getpid(), placement)
            alone = verify(os.getpid(), placement, include_children=False)
            worker.stdin.close()
            return both, alone, worker.pid

    both, alone, worker = kit.in_child(act)

    assert (both.bound, alone.bound) == (False, True)
    assert [state.process for state in both.threads if not state.inside] == [worker]
    assert any(f"thread {worker} (" in note for note in both.notes)


def test_a_process_that_is_gone_is_an_error():
    """No process, no verdict: one sentence."""
    gone = subprocess.Popen(["true"])
    gone.wait()

    with pytest.raises(BindingError, match=f"process {gone.pid} has ended"):
        verify(gone.pid, kit.rank([0]))


def test_a_zombie_runs_nowhere():
    """It keeps its mask until somebody waits for it, and is neither verified nor watched any longer."""
    ended = subprocess.Popen(["sleep", "60"])
    looks = watch(ended.pid, kit.rank([0]), interval_seconds=0)
    ended.kill()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(BindingError, match="has ended"):
        verify(ended.pid, kit.rank([0]))

    assert list(looks) == []
    ended.wait()


GOMP_FOUND = any(pathlib.Path("/usr").glob("lib*/libgomp.so.1")) or any(
    pathlib.Path("/usr/lib").glob("*/libgomp.so.1")
)
GOMP = """
import ctypes, json, os
from tests import numa_kit as kit
from wellfed.report.binding_json import as_json
from wellfed.workflows.bind import bind_as_planned
from wellfed.workflows.verify import verify
placement = kit.rank(kit.allowed_cpus())
before = bind_as_planned(placement)
ctypes.CDLL("libgomp.so.1")
after = verify(os.getpid(), placement)
print(json.dumps([as_json(before), as_json(after)]))
"""


@pytest.mark.skipif(not GOMP_FOUND, reason="needs libgomp.so.1, which compilers bring")
@pytest.mark.parametrize("variable", ["OMP_PROC_BIND=true", "GOMP_CPU_AFFINITY=0"])
def test_an_openmp_runtime_that_shrinks_the_mask_is_found(variable):
    """OpenMP leaves the main thread on one CPU at import (pytorch#101850, #91989, #49971): bound before, not after."""
    kit.two_cpus()
    name, _, value = variable.partition("=")
    done = kit.python(GOMP, env=os.environ | {name: value})
    before, after = json.loads(done.stdout)

    assert before["bound"] is True
    assert after["bound"] is False
    assert "offline or outside its cpuset, or OpenMP took them at import" in after["notes"][0]


@pytest.mark.skipif(not GOMP_FOUND, reason="needs libgomp.so.1, which compilers bring")
def test_an_openmp_runtime_that_was_faster_is_found_too():
    """Bound after the import, only one CPU seems allowed: the parent's mask shows that it was OpenMP."""
    kit.two_cpus()
    code = """
import ctypes, os
ctypes.CDLL("libgomp.so.1")
from tests.test_verify import ALONE, machine_with_gpu
import wellfed
print(wellfed.bind(machine=machine_with_gpu(), environment=os.environ | ALONE).notes)
"""
    done = kit.python(code, env=os.environ | {"OMP_PROC_BIND": "true"})

    assert "OpenMP pinned it at import (OMP_PROC_BIND)" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("found", "shrank"),
    [
        ("0-7", False),
        ("0-3", False),
        ("4-7", False),
        ("4", True),
        ("0-5", True),
        ("0-9", False),
        ("8", False),
    ],
)
def test_a_part_of_the_cpus_is_a_shrunk_mask_unless_a_role_has_it(found, shrank):
    """Main may sit on main's cores of a role split; any other part means that something shrank the mask."""
    roles = (("main", CpuSet.parse("0-3")), ("loader", CpuSet.parse("4-7")))
    placement = kit.rank(range(8), roles=roles)

    assert mask_shrank(placement, CpuSet.parse(found)) is shrank


@pytest.mark.parametrize(
    ("planned", "found", "mems", "holds"),
    [
        ("preferred:0", "preferred-many:0", "0-1", True),
        ("preferred:0", "preferred:0", "0-1", True),
        ("preferred:0-1", "preferred:0", "0-1", False),
        ("preferred:0-1", "preferred-many:0-1", "0", False),
        ("preferred:0", "preferred-many:0-1", "0", True),
        ("preferred:0", "default", "0-1", False),
        ("preferred:0", "local", "0-1", False),
        ("preferred:0", "bind:0", "0-1", False),
        ("bind:1", "bind:0", "0-1", False),
        ("bind:1", "bind:1", None, True),
        ("interleave:0-1", "interleave:0-1", "0-1", True),
        ("weighted:0-1", "interleave:0-1", "0-1", False),
        ("local", "local", "0-1", True),
        ("none", "bind:1", "0-1", None),
    ],
)
def test_a_policy_holds_when_mode_and_nodes_are_the_planned_ones(planned, found, mems, holds):
    """One preferred node may be told by either mode; a lost node, a softer or a harder mode is another policy."""
    allowed = None if mems is None else CpuSet.parse(mems)
    wanted, in_force = _policy(planned), _policy(found)
    policy = MemoryPolicy(wanted.mode, wanted.nodes)

    assert policy_holds(policy, in_force, allowed) is holds


def _policy(text: str) -> PolicyInForce:
    mode, _, nodes = text.partition(":")
    return PolicyInForce(mode, CpuSet.parse(nodes))


def test_a_relative_policy_is_another_policy():
    """In a cpuset with the nodes 1-2 the kernel's ``relative:1`` is node 2: its numbers are no nodes of the host."""
    relative = PolicyInForce("preferred-many", CpuSet([1]), ("relative",))

    assert policy_holds(MemoryPolicy("preferred", CpuSet([1])), relative, CpuSet([1, 2])) is False


def test_the_main_thread_is_not_another_thread():
    """get_mempolicy tells the nodes that were asked for, numa_maps those that the cpuset allows: one policy."""
    asked = PolicyInForce("preferred-many", CpuSet([0, 5]), ("static",))
    shown = "preferred-many:0 (static)"
    threads = [
        ThreadState(tid, "python", CpuSet([0]), 0, True, 7, memory)
        for tid, memory in ((7, shown), (8, shown), (9, "default"))
    ]

    said = remarks(kit.rank([0], SOFT), threads[0], threads, asked)

    assert said == ("1 of 3 threads have another memory policy: default",)


def test_a_policy_that_cannot_be_asked_is_neither_held_nor_lost():
    """EPERM is no answer, and what has no answer is not bound."""
    held = policy_holds(SOFT, Unreadable("EPERM"), None)

    assert held is None
    assert not all_confirmed(kit.rank([0], SOFT), True, held)


def test_a_mask_that_cannot_be_read_is_not_inside():
    """One thread that nobody could ask about is enough not to call the process bound."""
    main = ThreadState(7, "python", CpuSet([0]), 0, True, 7)
    hidden = ThreadState(8, "python", None, None, None, 7)

    assert masks_hold(kit.rank([0]), main, [main]) is True
    assert masks_hold(kit.rank([0]), main, [main, hidden]) is False


def test_the_local_share_counts_planned_nodes():
    """Three pages of four on the planned node are 0.75; without pages or nodes there is no share."""
    pages = (PageCount(0, 3), PageCount(1, 1))

    assert share_on(pages, CpuSet([0])) == 0.75
    assert share_on((), CpuSet([0])) is None
    assert share_on(pages, EMPTY) is None


def test_drift_is_set_right_and_told():
    """A thread that left the plan (nccl#2033 leaks its mask into the caller) gets it back, and is an event."""
    cpu, other = kit.two_cpus()
    placement = kit.rank([cpu])

    def act() -> tuple[Repair, Repair, set[int]]:
        os.sched_setaffinity(0, {other})
        first = repair(os.getpid(), placement)
        return first, repair(os.getpid(), placement), os.sched_getaffinity(0)

    first, second, mask = kit.in_child(act)

    (drift,) = first.drifts
    assert (drift.found, drift.planned, drift.restored) == (CpuSet([other]), CpuSet([cpu]), True)
    assert drift.explanation == "outside of planned"
    assert second == Repair()
    assert mask == {cpu}


def test_a_main_thread_that_shrank_is_widened_to_the_plan_and_no_further():
    """OpenMP's single CPU becomes the planned ones again; a worker on a part of them stays."""
    cpu, other = kit.two_cpus()
    placement = kit.rank([cpu, other])

    def act() -> tuple[Repair, CpuSet, CpuSet]:
        go, pinned, tids = threading.Event(), threading.Event(), []

        def worker() -> None:
            tids.append(threading.get_native_id())
            os.sched_setaffinity(0, {other})
            pinned.set()
            go.wait()

        threading.Thread(target=worker).start()
        pinned.wait()
        os.sched_setaffinity(0, {cpu})
        looked = repair(os.getpid(), placement)
        masks = CpuSet(os.sched_getaffinity(0)), CpuSet(os.sched_getaffinity(tids[0]))
        go.set()
        return looked, *masks

    looked, main, worker = kit.in_child(act)

    assert [drift.explanation for drift in looked.drifts] == ["narrower than planned"]
    assert (main, worker) == (CpuSet([cpu, other]), CpuSet([other]))


@pytest.mark.host
def test_a_cpuset_write_is_found_and_repaired(cpuset):
    """Kernel fact K8: narrowed under the job, the mask cannot be restored, and that is told; widened, it is restored."""
    cpu, _ = kit.two_cpus()
    everything = kit.allowed_cpus()
    placement = kit.rank([cpu])
    looks: list[Repair] = []
    verdicts: list[bool] = []

    def act(pid: int) -> None:
        cpuset.add(pid)
        os.sched_setaffinity(pid, placement.cpus)
        for cpus in (everything - CpuSet([cpu]), everything):
            cpuset.set(cpus=cpus)
            looks.append(repair(pid, placement))
            verdicts.append(verify(pid, placement).bound)

    kit.in_child(os.getpid, before=act)

    (narrowed,) = looks[0].drifts
    assert not narrowed.restored
    assert narrowed.explanation.startswith("outside of planned; ")
    # From Linux 6.2 on the kernel itself puts the mask back.
    assert all(drift.restored for drift in looks[1].drifts)
    assert verdicts == [False, True]


@pytest.mark.host
def test_a_policy_that_a_cpuset_moved_is_told_and_not_repaired(cpuset):
    """Kernel fact K8: ``bind:1`` has become ``bind:0``; nobody can set another process's policy, so that is said."""
    first, second = kit.two_memory_nodes()
    placement = kit.rank(kit.allowed_cpus(), MemoryPolicy("bind", CpuSet([second])))
    looks: list[Repair] = []

    def act(pid: int) -> None:
        cpuset.add(pid)
        cpuset.set(mems=CpuSet([first]))
        cpuset.set(mems=CpuSet([first, second]))
        looks.append(repair(pid, placement))

    kit.in_child(
        os.getpid,
        prepare=lambda: syscalls.set_mempolicy(kit.BIND, CpuSet([second])),
        before=act,
    )

    assert looks[0].notes[0].startswith("process ")
    assert f"has the memory policy bind:{first}, planned was bind:{second}" in looks[0].notes[0]


@pytest.mark.host
def test_the_default_policy_survives_a_cpuset_write(cpuset):
    """What wellfed sets is static: after the cpuset was narrowed and widened it is in force again, and pages follow."""
    first, second = kit.two_memory_nodes()
    placement = kit.rank(kit.allowed_cpus(), MemoryPolicy("preferred", CpuSet([second])))
    found: list[bool] = []

    def act(pid: int) -> None:
        cpuset.add(pid)
        cpuset.set(mems=CpuSet([first]))
        found.append(verify(pid, placement).bound)
        cpuset.set(mems=CpuSet([first, second]))
        found.append(verify(pid, placement).bound)

    pages = kit.in_child(
        lambda: kit.Memory(64).by_node(),
        prepare=lambda: bind_here(placement.cpus, placement.memory),
        before=act,
    )

    assert found == [False, True]
    assert pages == {second: 64}


def test_pages_that_were_there_before_are_reported_where_they_are():
    """A policy moves no page: memory touched on another node before the bind lowers the local share."""
    first, second = kit.two_memory_nodes()
    placement = kit.rank(kit.allowed_cpus(), MemoryPolicy("preferred", CpuSet([second])))

    def act() -> Binding:
        syscalls.set_mempolicy(kit.BIND, CpuSet([first]))
        memory = kit.Memory(8192)
        found = bind_as_planned(placement)
        assert memory.size
        return found

    found = kit.in_child(act)

    assert found.bound
    assert found.pages_local < 0.5


def test_a_gpu_beside_a_node_without_memory_is_bound_all_the_same():
    """CPUs of a memory-less node (numactl#165 calls it invalid), memory from the nearest node that has some."""
    node = kit.cpu_only_node()
    machine = machine_with_gpu(node)

    found = kit.in_child(lambda: bind(machine=machine, environment=ALONE))

    assert found.bound
    assert found.cpus == kit.cpus_of(node)
    assert found.memory_nodes <= kit.memory_nodes()


def test_watching_ends_with_the_process():
    """The watcher gives every drift, sleeps between looks, and stops when the process is gone."""
    cpu, other = kit.two_cpus()
    code = f"import os, sys; os.sched_setaffinity(0, {{{other}}}); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as watched:
        watched.stdout.readline()
        events = []
        for looked in watch(watched.pid, kit.rank([cpu]), interval_seconds=0.01):
            events += looked.drifts
            watched.stdin.close()
            watched.wait()

    assert [(drift.tid, drift.restored) for drift in events] == [(watched.pid, True)]


def _binding(**changes: object) -> Binding:
    made = Binding(
        pid=4711,
        local_rank=3,
        bound=True,
        planned_cpus=CpuSet.parse("0-23,48-71"),
        cpus=CpuSet.parse("0-23,48-71"),
        planned_memory="preferred:0",
        memory="preferred-many:0 (static)",
        memory_bound=True,
        memory_nodes=CpuSet([0]),
        threads=(ThreadState(4711, "python", CpuSet.parse("0-23,48-71"), 5, True, 4711, "x"),),
        pages=(PageCount(0, 1990), PageCount(1, 10)),
        pages_local=0.995,
    )
    return replace(made, **changes)


def test_the_table_shows_planned_found_and_verdict():
    """One line a part, nothing wider than a terminal, and a share that is not whole is never called 100 %."""
    text = render(_binding())

    assert text.splitlines()[0] == "rank 3, process 4711: bound"
    assert "CPUs     0-23,48-71" in text
    assert "node 0: 1990, node 1: 10" in text
    assert "99 % local" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_table_says_what_is_not_bound_and_why():
    """A refused policy is NO beside planned and found, with the step and its explanation below."""
    step = Step("set_mempolicy(MPOL_BIND, 0)", "EPERM", "a seccomp filter refuses it " * 5)
    text = render(_binding(bound=False, memory="default", memory_bound=False, steps=(step,)))

    assert "NOT bound" in text
    assert any(line.split()[-1] == "NO" and "default" in line for line in text.splitlines())
    assert "set_mempolicy(MPOL_BIND, 0): EPERM," in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_table_tells_unknown_from_no():
    """What cannot be asked says so, and is not called NO."""
    lost = _binding(
        bound=False,
        memory=None,
        memory_bound=None,
        pages=(),
        pages_unknown="no right",
        pages_local=None,
    )
    lines = render(lost).splitlines()

    assert [line.split()[-1] for line in lines if "cannot be asked" in line] == [
        "unknown",
        "unknown",
    ]
    assert "    pages: no right" in lines


def test_long_lists_are_broken_not_cut():
    """Every CPU of a long list is in the table, at 80 columns."""
    cpus = CpuSet(range(0, 256, 2))
    stray = ThreadState(1, "a name with spaces", CpuSet(range(1, 256, 2)), None, False, 1)
    text = render(_binding(planned_cpus=cpus, cpus=cpus, threads=(stray,)))

    assert max(map(len, text.splitlines())) <= 80
    assert all(f"{cpu}" in text for cpu in cpus)


def test_json_is_plain_and_complete():
    """Every part is in the JSON, sets as the kernel's lists, null where nothing is known."""
    found = json.loads(json.dumps(as_json(_binding(cpus=None))))

    assert found["schema"] == "wellfed/binding/1"
    assert found["cpus"] == {"planned": "0-23,48-71", "found": None}
    assert found["pages"]["by_node"] == [
        {"node": 0, "num_pages": 1990},
        {"node": 1, "num_pages": 10},
    ]
    assert found["threads"][0]["process"] == 4711


def test_drift_is_written_for_people():
    """An event names thread, process, both masks and what became of it."""
    drift = Drift(1, 2, "python", CpuSet([5]), CpuSet([4]), False, "outside of planned")
    looked = Repair((drift,), ("the policy drifted",))

    assert "thread 2 (python) of process 1 ran on 5, planned were 4: NOT restored" in " ".join(
        render_repair(looked).split()
    )
