"""Does --isolate give a rank walls of its own, refuse clearly where it cannot, and leave no cgroup behind?"""

from __future__ import annotations

import os
import pathlib
import time

import pytest

from tests.launching import await_end, await_file, begin, end, launch
from wellfed.host.borrowed import CGROUP, Borrowed, Loan
from wellfed.host.isolation import (
    Site,
    Walls,
    choose_base,
    find_site,
    make_cgroup,
    open_base,
    remove_cgroup,
    scope_command,
    try_scope,
)
from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.cpuset import CpuSet
from wellfed.model.errors import IsolationError
from wellfed.workflows.launch_ranks import GIVE_BACK

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1_MOUNT = "31 23 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset"


def tree(
    own: str, files: dict[str, str], *, mounts: str = V2_MOUNT, groups: str = ""
) -> RecordedTree:
    """Record what of a host decides where a cgroup can be made."""
    texts = {"/proc/self/mountinfo": mounts, "/proc/self/cgroup": groups or f"0::{own}"} | files
    return RecordedTree("host", {path: text.encode() for path, text in texts.items()})


def group(
    path: str,
    *,
    offered: str = "cpuset cpu memory",
    handed: str = "",
    procs: str = "",
    root: bool = False,
) -> dict[str, str]:
    """Write the files of one cgroup."""
    base = f"/sys/fs/cgroup{path}".rstrip("/")
    files = {
        f"{base}/cgroup.controllers": offered,
        f"{base}/cgroup.subtree_control": handed,
        f"{base}/cgroup.procs": procs,
    }
    return files if root else files | {f"{base}/cgroup.type": "domain"}


def test_the_root_hands_down_although_it_holds_processes():
    """Only the root of the whole tree may; the missing controllers are named."""
    site = choose_base(tree("/", group("", procs="1\n2", root=True)))

    assert site == Site("/sys/fs/cgroup", ("cpuset", "memory"))


def test_a_group_with_processes_defers_to_the_one_above():
    """ "No internal processes": a sibling is made, not a child."""
    files = group("/a", handed="cpuset memory") | group("/a/b", procs="7")

    assert choose_base(tree("/a/b", files)) == Site("/sys/fs/cgroup/a")


def test_a_delegated_group_hands_down_itself():
    """Ours, empty of processes in itself, with what it needs."""
    files = group("", root=True) | group("/mine", handed="cpuset cpu memory")

    assert choose_base(tree("/mine", files)) == Site("/sys/fs/cgroup/mine")


def test_neither_is_refused_with_both_reasons():
    """A container's only cgroup holds its processes and shows none above."""
    files = group("", procs="1", offered="cpuset memory")

    with pytest.raises(IsolationError, match="holds processes") as raised:
        choose_base(tree("/", files))

    assert "delegated" in raised.value.remedy


def test_a_missing_controller_is_named():
    """User managers of systemd hand down no cpuset by default."""
    files = group("/u", offered="memory pids") | group("/u/s", offered="", procs="1")

    with pytest.raises(IsolationError, match="is not given the cpuset controller"):
        choose_base(tree("/u/s", files))


def test_cgroup_v1_is_refused_with_the_way_out():
    """Hybrid hosts have cpuset in v1."""
    v1 = {"/sys/fs/cgroup/cpuset/cpuset.cpus": "0-1"}

    with pytest.raises(IsolationError, match="is in v1 here") as raised:
        choose_base(tree("/", v1, mounts=V1_MOUNT, groups="3:cpuset:/\n0::/"))

    assert "unified_cgroup_hierarchy" in raised.value.remedy


def test_no_cgroup_at_all_is_refused():
    """Nothing is mounted."""
    with pytest.raises(IsolationError, match="none is found"):
        choose_base(tree("/", {}, mounts="1 1 0:1 / / rw - ext4 root rw"))


def test_systemd_is_asked_for_everything_at_once():
    """CPUs, memory nodes, no swap, limit; the command comes after the dashes, untouched."""
    site = Site("", (), "/usr/bin/systemd-run", ("--scope", "--quiet"))
    walls = Walls(CpuSet.parse("0-3,8"), CpuSet.parse("1"), 1 << 30)

    command = scope_command(site, "wellfed-7-rank0", walls, ("/bin/job", "--policy", "x y"))

    assert command == (
        "/usr/bin/systemd-run", "--scope", "--quiet", "--unit=wellfed-7-rank0", "-p", "MemorySwapMax=0",
        "-p", "AllowedCPUs=0-3,8", "-p", "AllowedMemoryNodes=1", "-p", "MemoryMax=1073741824",
        "--", "/bin/job", "--policy", "x y",
    )  # fmt: skip


def pretend_systemd_run(folder: pathlib.Path, script: str) -> Site:
    """Write a program that answers as systemd-run would."""
    program = folder / "systemd-run"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Site("", (), str(program), ("--scope",))


def test_a_scope_that_does_what_was_asked_passes(tmp_path):
    """What holds inside is compared with the plan."""
    try_scope(pretend_systemd_run(tmp_path, "echo 2-3"), "probe", Walls(CpuSet.parse("2-3")))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 0-7", "may use CPUs 0-7"),
        ("echo 'Access denied' >&2; exit 1", "Access denied"),
        ("exit 4", "4"),
    ],
)
def test_a_scope_that_does_not_is_refused(tmp_path, script, said):
    """systemd without the cpuset controller gives a scope that confines nothing."""
    with pytest.raises(IsolationError, match=said):
        try_scope(pretend_systemd_run(tmp_path, script), "probe", Walls(CpuSet.parse("2-3")))


def test_a_folder_that_is_no_cgroup_is_removed_or_told(tmp_path):
    """Giving back is safe where nothing is, and says what stands in its way."""
    (tmp_path / "gone").mkdir()

    removed = remove_cgroup(Loan(CGROUP, str(tmp_path / "gone")))
    absent = remove_cgroup(Loan(CGROUP, str(tmp_path / "never")))

    assert (removed, absent) == (None, None)
    assert not (tmp_path / "gone").exists()


def test_a_cgroup_is_recorded_before_it_is_made(tmp_path):
    """Also where making it fails."""
    one = Borrowed(str(tmp_path / "records"), {CGROUP: remove_cgroup})

    with pytest.raises(IsolationError):
        make_cgroup(Site(str(tmp_path / "no" / "such")), "rank0", Walls(), one)
    (record,) = [p for p in (tmp_path / "records").iterdir() if p.name != ".lock"]
    text = record.read_text()
    one.give_back()

    assert text.startswith(f"{CGROUP}\t{tmp_path}/no/such/rank0\t")
    assert not record.exists()


def test_controllers_are_withdrawn_unless_others_came(tmp_path):
    """Children that were there before do not hold them; one that came since may use them, and that is said."""
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("memory")
    (tmp_path / "before").mkdir()
    one = Borrowed(str(tmp_path.parent / f"{tmp_path.name}-records"), GIVE_BACK)
    open_base(Site(str(tmp_path), ("cpuset",)), one)
    opened = control.read_text()

    closed = one.give_back()
    withdrawn = control.read_text()
    open_base(Site(str(tmp_path), ("cpuset",)), one)
    (tmp_path / "since").mkdir()
    kept = one.give_back()

    assert (opened, closed, withdrawn) == ("+cpuset", (), "-cpuset")
    assert "since" in kept[0]
    assert control.read_text() == "+cpuset"


def site_here() -> Site | None:
    """Return how this host can give a cgroup, None where it cannot."""
    try:
        return find_site(os.environ)
    except IsolationError:
        return None


def test_where_it_cannot_be_had_nothing_starts():
    """One sentence with what was found, and what to do; exit 2."""
    if site_here() is not None:
        pytest.skip("this host gives cgroups")

    done = launch("--isolate", "--", "echo", "started")

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--isolate" in done.stderr
    assert b"what to do" in done.stderr


@pytest.fixture
def cgroups():
    """Give the folder in which cgroups of ranks are made, and prove that it is at the end as it was."""
    site = site_here()
    if site is None or not site.base or os.geteuid() != 0:
        pytest.skip("needs cgroup v2 with cpuset and memory, and root, without systemd")
    base = pathlib.Path(site.base)

    def look() -> tuple[set[str], str]:
        folders = {entry.name for entry in base.iterdir() if entry.is_dir()}
        return folders, (base / "cgroup.subtree_control").read_text()

    before = look()
    yield base
    assert look() == before


SHOW = (
    'echo $$ >>"$PIDS"; d=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup); '
    "cat $d/cpuset.cpus.effective $d/memory.max; cat $d/memory.swap.max 2>/dev/null; "
    "grep Cpus_allowed_list /proc/self/status"
)


@pytest.mark.host
def test_each_rank_has_walls_of_its_own(cgroups, tmp_path):
    """Its cpuset and its mask are the planned CPUs, memory is limited, swap is off; afterwards no cgroup is left."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU cannot be split")
    words = ("--ranks", "2", "--policy", "exclusive", "--isolate", "--memory-limit", "256M")

    done = launch(
        "-q",
        *words,
        "--",
        "sh",
        "-c",
        SHOW,
        PIDS=str(tmp_path / "pids"),
        WELLFED_STATE_DIR=str(tmp_path),
    )

    assert done.returncode == 0, done.stderr
    by_rank = [
        [line[4:] for line in done.stdout.decode().splitlines() if line.startswith(f"[{i}]")]
        for i in range(2)
    ]
    for lines in by_rank:
        assert lines[1] == str(256 << 20)
        assert lines[-1].split()[-1] == lines[0]
    assert by_rank[0][0] != by_rank[1][0]


@pytest.mark.host
def test_a_killed_parent_leaves_no_cgroup(cgroups, tmp_path):
    """The guard ends what is inside, daemons too, and removes it."""
    script = 'setsid sleep 60 & echo $! >>"$PIDS"; echo $$ >>"$PIDS"; exec sleep 60'
    running = begin(
        "-q",
        "--isolate",
        "--",
        "sh",
        "-c",
        script,
        PIDS=str(tmp_path / "pids"),
        WELLFED_STATE_DIR=str(tmp_path),
    )
    pids = [int(line) for line in await_file(tmp_path / "pids", lines=2)]

    running.kill()
    end(running)

    assert await_end(*pids)
    deadline = time.monotonic() + 5
    while any(cgroups.glob("wellfed-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
