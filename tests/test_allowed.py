"""What may a process use? Affinity, cpusets, quotas and limits, in cgroup v1, v2 and both, wherever they are mounted."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trees import cpus, host, nodes, unreadable
from wellfed.host.allowed import read_allowed
from wellfed.host.facts import Facts
from wellfed.host.live_tree import LiveTree
from wellfed.host.topology import read_machine
from wellfed.model.cpuset import CpuSet, NodeSet
from wellfed.model.machine import Allowed

ONLINE = CpuSet.parse("0-15")
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
NO_LIMIT_V1 = "9223372036854771712"


def allowed(*files: dict[str, str], **more: object) -> Allowed:
    """Read what a process may use on a host with CPUs 0-15."""
    return read_allowed(Facts(host(*files, **more)), ONLINE)


def process(cgroup: str, mountinfo: str, **status: str) -> dict[str, str]:
    """Write the process's own files."""
    lines = "\n".join(f"{name}:\t{value}" for name, value in status.items())
    return {
        "/proc/self/cgroup": cgroup,
        "/proc/self/mountinfo": mountinfo,
        "/proc/self/status": lines,
    }


# ---- affinity -----------------------------------------------------------------------------------------------------


def test_the_kernel_is_asked_before_a_file_is_read():
    """sched_getaffinity leaves out CPUs that went offline; status may still list them."""
    found = allowed(
        {"/proc/self/status": "Cpus_allowed_list:\t0-31"}, answers={"sched_getaffinity": "2-3"}
    )

    assert found.affinity == CpuSet([2, 3])
    assert found.cpus == CpuSet([2, 3])


@pytest.mark.parametrize(
    "status",
    [
        "Cpus_allowed:\tff0\nCpus_allowed_list:\t4-11\nMems_allowed_list:\t1",
        "Cpus_allowed:\t00000000,00000ff0\nMems_allowed:\t2",
    ],
    ids=["list", "mask"],
)
def test_status_says_it_where_nobody_was_asked(status):
    """As a list, or as a mask before 2.6.26."""
    found = allowed(
        {"/proc/self/status": status}, answers={"sched_getaffinity": unreadable("ENODATA")}
    )

    assert found.cpus == CpuSet.parse("4-11")
    assert found.mems == NodeSet([1])


def test_what_is_not_recorded_is_named_and_not_all():
    """No affinity, no cpuset, no limits: CPUs are the online ones, and five sentences say what that leaves out."""
    found = allowed({})

    assert found.cpus == ONLINE
    assert (
        found.affinity,
        found.cpuset_cpus,
        found.mems,
        found.cpu_quota,
        found.memory_limit_bytes,
    ) == (None,) * 5
    assert [sentence.partition(":")[0] for sentence in found.unknown] == [
        "affinity",
        "cpuset CPUs",
        "cpuset memory nodes",
        "CPU quota",
        "memory limit",
    ]


def test_garbage_is_unknown():
    """Binary in status and cpuset is named, and narrows nothing."""
    found = allowed(
        process("0::/a", V2_MOUNT, Cpus_allowed_list="\x01\x02", Mems_allowed_list="0-x"),
        {
            "/sys/fs/cgroup/a/cpuset.cpus.effective": "zero",
            "/sys/fs/cgroup/a/cpu.max": "lots",
            "/sys/fs/cgroup/a/memory.max": "∞",
        },
    )

    assert found.cpus == ONLINE
    assert found.cpu_quota is None
    assert [s.partition(":")[0] for s in found.unknown] == [
        "affinity",
        "cpuset CPUs",
        "cpuset memory nodes",
        "CPU quota",
        "memory limit",
    ]


# ---- cgroup v2 ----------------------------------------------------------------------------------------------------


def test_v2_takes_the_smallest_limit_up_to_the_root():
    """A slice above the process's own scope may be narrower than it."""
    base = "/sys/fs/cgroup"
    found = allowed(
        process(
            "0::/user.slice/job.scope", V2_MOUNT, Cpus_allowed_list="0-15", Mems_allowed_list="0-1"
        ),
        {
            f"{base}/cpuset.cpus.effective": "0-15",
            f"{base}/user.slice/cpu.max": "400000 100000",
            f"{base}/user.slice/memory.max": "8589934592",
            f"{base}/user.slice/job.scope/cpuset.cpus.effective": "4-7",
            f"{base}/user.slice/job.scope/cpuset.mems.effective": "1",
            f"{base}/user.slice/job.scope/cpu.max": "800000 100000",
            f"{base}/user.slice/job.scope/memory.max": "max",
        },
    )

    assert found.cpus == CpuSet.parse("4-7")
    assert found.mems == NodeSet([1])
    assert found.cpuset_path == f"{base}/user.slice/job.scope"
    assert found.cpu_quota == 4.0
    assert found.memory_limit_bytes == 8 << 30
    assert found.unknown == ()


def test_v2_without_the_controller_has_the_cpuset_of_the_cgroup_above():
    """systemd does not enable cpuset for every scope: the nearest cgroup that has it holds."""
    base = "/sys/fs/cgroup"
    found = allowed(
        process("0::/user.slice/a.scope", V2_MOUNT),
        {
            f"{base}/cpuset.cpus.effective": "0-15",
            f"{base}/user.slice/cpuset.cpus.effective": "0-7",
            f"{base}/user.slice/a.scope/cgroup.controllers": "memory pids",
        },
    )

    assert found.cpuset_cpus == CpuSet.parse("0-7")
    assert found.cpuset_path == f"{base}/user.slice"


def test_v2_max_is_no_limit():
    """`max` is known to be no limit: nothing is unknown."""
    base = "/sys/fs/cgroup/a"
    found = allowed(
        process("0::/a", V2_MOUNT), {f"{base}/cpu.max": "max 100000", f"{base}/memory.max": "max"}
    )

    assert (found.cpu_quota, found.memory_limit_bytes) == (None, None)
    assert not [
        sentence for sentence in found.unknown if sentence.startswith(("CPU quota", "memory"))
    ]


@pytest.mark.parametrize(
    ("controllers", "named"), [("cpuset memory pids", False), ("cpu memory", True), (None, True)]
)
def test_v2_says_whether_a_limit_that_is_not_there_could_be(controllers, named):
    """Without cpu among its controllers a cgroup has no quota; with it, a missing cpu.max was not recorded."""
    files = {"/sys/fs/cgroup/a/cgroup.procs": ""}
    if controllers is not None:
        files["/sys/fs/cgroup/a/cgroup.controllers"] = controllers

    found = allowed(process("0::/a", V2_MOUNT), files)

    assert any(sentence.startswith("CPU quota") for sentence in found.unknown) is named


def test_the_v2_root_has_no_limits_of_its_own():
    """Bare metal at the root cgroup: cpu is a controller there, and cpu.max does not exist."""
    found = allowed(
        process("0::/", V2_MOUNT),
        {
            "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory",
            "/sys/fs/cgroup/cpuset.cpus.effective": "0-15",
        },
    )

    assert found.cpuset_path == "/sys/fs/cgroup"
    assert not [
        sentence for sentence in found.unknown if sentence.startswith(("CPU quota", "memory limit"))
    ]


def test_a_container_with_a_cgroup_namespace_reads_its_own_at_the_mount_point():
    """The path is `/`, and the limits of the container stand there."""
    base = "/sys/fs/cgroup"
    found = allowed(
        process("0::/", "645 640 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw"),
        {
            f"{base}/cpuset.cpus.effective": "8-11",
            f"{base}/cpu.max": "150000 100000",
            f"{base}/memory.max": "1073741824",
        },
    )

    assert found.cpus == CpuSet.parse("8-11")
    assert found.cpu_quota == 1.5
    assert found.memory_limit_bytes == 1 << 30


@pytest.mark.parametrize("point", ["/dev/cgroup", "/mnt/control groups", "/cgroup2", "/"])
def test_v2_at_whatever_mount_point(point):
    """Also one with a space, which the kernel writes as \\040."""
    folder = point.rstrip("/")
    mount = f"30 23 0:26 / {point.replace(' ', chr(92) + '040')} rw - cgroup2 none rw"

    found = allowed(process("0::/a", mount), {f"{folder}/a/cpuset.cpus.effective": "0-5"})

    assert found.cpus == CpuSet.parse("0-5")
    assert found.cpuset_path == f"{folder}/a"


# ---- cgroup v1 ----------------------------------------------------------------------------------------------------


V1_MOUNTS = (
    "31 23 0:27 {root} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "32 23 0:28 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 23 0:29 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 23 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
)
V1_CGROUP = (
    "9:cpu,cpuacct:{path}\n8:memory:{path}\n7:cpuset:{path}\n1:name=systemd:{path}\n0::{path}"
)


def v1_files(inside: str) -> dict[str, str]:
    """Write the limits of one v1 cgroup."""
    base = "/sys/fs/cgroup"
    return {
        f"{base}/cpuset{inside}/cpuset.cpus": "2-5",
        f"{base}/cpuset{inside}/cpuset.mems": "0",
        f"{base}/cpu,cpuacct{inside}/cpu.cfs_quota_us": "250000",
        f"{base}/cpu,cpuacct{inside}/cpu.cfs_period_us": "100000",
        f"{base}/memory{inside}/memory.limit_in_bytes": "4294967296",
    }


@pytest.mark.parametrize(
    ("path", "root", "inside"),
    [
        ("/slurm/uid_1/job_7", "/", "/slurm/uid_1/job_7"),
        ("/docker/4f", "/docker/4f", ""),
        ("/docker/4f/child", "/docker/4f", "/child"),
        ("/", "/", ""),
    ],
    ids=["host", "docker", "nested", "root"],
)
def test_v1_with_every_way_to_mount_it(path, root, inside):
    """The mount's own root is taken away from the process's path."""
    found = allowed(
        process(V1_CGROUP.format(path=path), V1_MOUNTS.format(root=root)), v1_files(inside)
    )

    assert found.cpus == CpuSet.parse("2-5")
    assert found.mems == NodeSet([0])
    assert found.cpu_quota == 2.5
    assert found.memory_limit_bytes == 4 << 30
    assert found.cpuset_path == f"/sys/fs/cgroup/cpuset{inside}"


def test_v1_takes_the_smallest_limit_up_to_the_root():
    """The parent's quota and memory bound the child's."""
    parents = {
        "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "100000",
        "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
        "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1073741824",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1,
    }

    found = allowed(
        process(V1_CGROUP.format(path="/a/b"), V1_MOUNTS.format(root="/")),
        v1_files("/a/b"),
        parents,
    )

    assert found.cpu_quota == 1.0
    assert found.memory_limit_bytes == 1 << 30


@pytest.mark.parametrize(
    "text", [NO_LIMIT_V1, "9223372036854710272", "9223372036854775807", "18446744073709551615"]
)
def test_v1_numbers_that_mean_no_limit(text):
    """2^63 rounded down to pages of 4 or 64 KiB, and older kernels' all ones; −1 is no quota."""
    changed = {
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": text,
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
    }

    found = allowed(
        process(V1_CGROUP.format(path="/"), V1_MOUNTS.format(root="/")), v1_files(""), changed
    )

    assert (found.cpu_quota, found.memory_limit_bytes) == (None, None)
    assert not [
        sentence for sentence in found.unknown if sentence.startswith(("CPU quota", "memory limit"))
    ]


def test_v1_effective_cpus_come_before_configured_ones():
    """The kernel takes offline CPUs and the parent's narrowing out of the effective set."""
    files = v1_files("") | {"/sys/fs/cgroup/cpuset/cpuset.effective_cpus": "2-3"}

    found = allowed(process(V1_CGROUP.format(path="/"), V1_MOUNTS.format(root="/")), files)

    assert found.cpus == CpuSet([2, 3])


def test_v1_never_takes_the_parents_cpuset():
    """In v1 each cgroup has its own: where it was not recorded, the parent's would be a guess."""
    files = {"/sys/fs/cgroup/cpuset/cpuset.cpus": "0-15", "/sys/fs/cgroup/cpuset/a/tasks": "1"}

    found = allowed(process(V1_CGROUP.format(path="/a"), V1_MOUNTS.format(root="/")), files)

    assert found.cpuset_cpus is None
    assert any(sentence.startswith("cpuset CPUs") for sentence in found.unknown)


@pytest.mark.parametrize(
    ("mount", "folder", "prefix"),
    [
        (
            "none /dev/cpuset cgroup rw,relatime,cpuset,noprefix,release_agent=/sbin/cpuset_release_agent 0 0",
            "/dev/cpuset",
            "",
        ),
        ("none /dev/cpuset cpuset rw 0 0", "/dev/cpuset", ""),
        ("cgroup /cgroup/cpuset cgroup rw,cpuset 0 0", "/cgroup/cpuset", "cpuset."),
    ],
    ids=["noprefix", "cpuset file system", "prefixed"],
)
@pytest.mark.parametrize("mounts", ["/proc/mounts", "/proc/self/mounts"])
def test_dumps_with_proc_self_cpuset_only(mount, folder, prefix, mounts):
    """Old dumps record /proc/self/cpuset and /proc/mounts, and files with or without a prefix."""
    files = {f"{folder}/torque/7/{prefix}cpus": "8-11", f"{folder}/torque/7/{prefix}mems": "1,3"}

    found = allowed(
        {"/proc/self/cpuset": "/torque/7", mounts: f"cgroup2 /dev/cgroup cgroup2 rw 0 0\n{mount}"},
        files,
    )

    assert found.cpus == CpuSet.parse("8-11")
    assert found.mems == NodeSet([1, 3])


def test_proc_self_cpuset_with_v2():
    """Where only v2 is mounted, the same path is below it."""
    files = {"/mnt/cg/job/cpuset.cpus.effective": "0-5", "/mnt/cg/job/cpuset.mems.effective": "0-2"}

    found = allowed(
        {"/proc/self/cpuset": "/job", "/proc/mounts": "cgroup2 /mnt/cg cgroup2 rw 0 0"}, files
    )

    assert found.cpus == CpuSet.parse("0-5")
    assert found.mems == NodeSet.parse("0-2")


# ---- both at once, and what cannot be seen ------------------------------------------------------------------------


def test_hybrid_takes_each_controller_where_it_is():
    """cpuset in v1, cpu and memory in v2."""
    files = {
        "/sys/fs/cgroup/cpuset/x/cpuset.effective_cpus": "0-1",
        "/sys/fs/cgroup/unified/y/cpu.max": "300000 100000",
        "/sys/fs/cgroup/unified/y/memory.max": "2147483648",
        "/sys/fs/cgroup/unified/y/cpuset.cpus.effective": "9",
    }

    found = allowed(process("3:cpuset:/x\n0::/y", V1_MOUNTS.format(root="/")), files)

    assert found.cpus == CpuSet([0, 1])
    assert found.cpu_quota == 3.0
    assert found.memory_limit_bytes == 2 << 30


@pytest.mark.parametrize(
    ("path", "root", "inside"),
    [
        ("/../../other", "/", None),
        ("/other", "/docker/4f", None),
        ("/docker/4f5", "/docker/4f", None),
        ("/../sibling", "/..", "/sibling"),
        ("/", "/..", None),
    ],
)
def test_a_cgroup_that_no_mount_shows_is_unknown(path, root, inside):
    """Outside the namespace or the mount: the limits are there and cannot be seen, so that is said."""
    files = {f"/sys/fs/cgroup{inside or ''}/cpuset.cpus.effective": "3"}

    found = allowed(process(f"0::{path}", V2_MOUNT.replace(" / ", f" {root} ", 1)), files)

    assert found.cpuset_cpus == (CpuSet([3]) if inside else None)
    assert any(sentence.startswith("cpuset CPUs") for sentence in found.unknown) is (inside is None)


def test_a_controller_whose_hierarchy_is_not_mounted_is_unknown():
    """A process in a v1 cpuset that is mounted nowhere: v2's files are not its own."""
    found = allowed(
        process("3:cpuset:/x\n0::/", V2_MOUNT), {"/sys/fs/cgroup/cpuset.cpus.effective": "0-15"}
    )

    assert found.cpuset_cpus is None
    assert any("no mount shows cgroup /x" in sentence for sentence in found.unknown)


def test_a_second_mount_is_tried_where_the_first_does_not_show_the_cgroup():
    """A container may bind-mount a part of the tree somewhere, and all of it elsewhere."""
    mounts = "30 23 0:26 /kubepods /part rw - cgroup2 c rw\n31 23 0:26 / /sys/fs/cgroup rw - cgroup2 c rw"

    found = allowed(
        process("0::/system.slice/x", mounts),
        {"/sys/fs/cgroup/system.slice/x/cpuset.cpus.effective": "1"},
    )

    assert found.cpus == CpuSet([1])


def test_a_closed_cgroup_folder_is_unknown():
    """EACCES on the process's own cgroup is named."""
    found = allowed(process("0::/a", V2_MOUNT), errnos={"/sys/fs/cgroup/a": "EACCES"})

    assert found.cpuset_cpus is None
    assert any("permission denied" in sentence for sentence in found.unknown)


def test_limits_that_leave_no_cpu_are_a_contradiction():
    """An affinity outside the cpuset cannot be: nothing is left, and a note says so."""
    tree = host(
        cpus("0-7"),
        nodes({0: "0-7"}),
        process("0::/a", V2_MOUNT, Cpus_allowed_list="0-3"),
        {"/sys/fs/cgroup/a/cpuset.cpus.effective": "4-7"},
    )

    machine = read_machine(tree)

    assert machine.allowed.cpus == CpuSet()
    assert any("no CPU is left" in note for note in machine.notes)


@pytest.mark.parametrize(
    "line", ["", "garbage", "1 2 3", "30 23 0:26 / /x rw -", "a b", "0::", "::::", "0:/x"]
)
def test_lines_that_are_no_lines(line):
    """Damaged /proc files are no mounts and no cgroups."""
    found = allowed(
        {
            "/proc/self/cgroup": line,
            "/proc/self/mountinfo": line,
            "/proc/mounts": line,
            "/proc/self/cpuset": line,
        }
    )

    assert found.cpuset_cpus is None


SETS = st.sets(st.integers(0, 15)).map(CpuSet)


@settings(deadline=None)
@given(affinity=st.none() | SETS.filter(bool), cpuset=st.none() | SETS.filter(bool))
def test_allowed_is_the_meeting_of_what_is_known(affinity, cpuset):
    """Each limit narrows, and only where it is known."""
    files = process(
        "0::/a", V2_MOUNT, **({} if affinity is None else {"Cpus_allowed_list": str(affinity)})
    )
    files |= {"/sys/fs/cgroup/a/cgroup.procs": "1"}
    if cpuset is not None:
        files["/sys/fs/cgroup/a/cpuset.cpus.effective"] = str(cpuset)

    found = allowed(files)

    wanted = set(ONLINE)
    for narrower in (affinity, cpuset):
        wanted &= set(ONLINE if narrower is None else narrower)
    assert set(found.cpus) == wanted
    assert found.affinity == affinity
    assert found.cpuset_cpus == cpuset


def test_this_host_allows_what_the_kernel_says():
    """On the running host: never more than sched_getaffinity."""
    machine = read_machine(LiveTree())

    assert set(machine.allowed.cpus) == os.sched_getaffinity(0) & set(machine.online)
    assert machine.allowed.affinity == CpuSet(os.sched_getaffinity(0))
