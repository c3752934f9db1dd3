"""Is a process that is not where it was planned found, set right where that can be done, and told where it cannot?"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests import numa_kit as kit
from tests.lab.programs import program
from tests.launching import COMMAND, await_file, end, environment
from wellfed.model.cpuset import CpuSet
from wellfed.model.placement import MemoryPolicy
from wellfed.workflows.verify import verify

PLANNED = kit.rank(range(4), MemoryPolicy("preferred", CpuSet([0])))
"""Node 0 of the topology 2n."""
GROUPS = pathlib.Path("/sys/fs/cgroup")


@pytest.fixture
def started(tmp_path):
    """Give a function that starts the probe behind other words and waits until it has touched its pages."""
    running = []

    def start(*before: str) -> subprocess.Popen:
        words = (
            *before,
            str(program("probe")),
            "--into",
            str(tmp_path),
            "--mib",
            "32",
            "--hold",
            "60",
        )
        running.append(subprocess.Popen(words))
        await_file(tmp_path / f"{running[-1].pid}.json")
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.lab("2n")
@pytest.mark.parametrize(
    ("planted", "bound", "memory_bound"),
    [
        (("numactl", "--cpunodebind=0", "--preferred=0"), True, True),
        (("numactl", "--cpunodebind=1", "--preferred=0"), False, True),
        (("numactl", "--physcpubind=0,4", "--preferred=0"), False, True),
        (("numactl", "--cpunodebind=0", "--membind=1"), False, False),
        (("numactl", "--cpunodebind=0", "--interleave=0,1"), False, False),
        (("numactl", "--cpunodebind=0"), False, False),
    ],
)
def test_a_planted_misplacement_is_found(started, planted, bound, memory_bound):
    """Another node's CPUs, one CPU too many, a hard bind elsewhere, a spread, no policy: each is not bound; the first is."""
    found = verify(started(*planted).pid, PLANNED)

    assert (found.bound, found.memory_bound) == (bound, memory_bound)


@pytest.mark.lab("2n")
def test_pages_that_were_moved_away_are_found(started):
    """Mask and policy still hold after somebody migrated the pages: only asking the pages shows it."""
    process = started("numactl", "--cpunodebind=0", "--preferred=0")
    before = verify(process.pid, PLANNED)
    subprocess.run(["migratepages", str(process.pid), "0", "1"], check=True)

    after = verify(process.pid, PLANNED)

    assert (before.bound, after.bound) == (True, True)
    assert before.pages_local > 0.9
    assert after.pages_local < 0.5


@pytest.fixture
def group():
    """Give a cgroup with a cpuset of its own, and remove it."""
    control = GROUPS / "cgroup.subtree_control"
    before = control.read_text().split()
    control.write_text("+cpuset")
    made = GROUPS / "drift"
    made.mkdir()
    yield made
    for pid in (made / "cgroup.procs").read_text().split():
        (GROUPS / "cgroup.procs").write_text(pid)
    made.rmdir()
    if "cpuset" not in before:
        control.write_text("-cpuset")


def mask_becomes(pid: int, wanted: str) -> str:
    """Wait until a process has a mask, and give the one it has at the end."""
    deadline = time.monotonic() + 30
    while str(CpuSet(os.sched_getaffinity(pid))) != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return str(CpuSet(os.sched_getaffinity(pid)))


@pytest.mark.lab("2n")
def test_a_watched_job_gets_its_cpus_back_after_others_write(group, tmp_path):
    """taskset, a cpuset that is widened, one that is narrowed: set right where the kernel lets us, told where it does not."""
    env = environment()
    del env["CUDA_VISIBLE_DEVICES"]
    report = tmp_path / "report.json"
    words = ("--gpus", "0", "--watch", "--watch-interval", "0.2", "--report", str(report), "--")
    script = 'echo $$ >"$0"; while [ ! -e "$0.end" ]; do sleep 0.2; done'
    job = tmp_path / "pid"
    running = subprocess.Popen(
        (*COMMAND, *words, "sh", "-c", script, str(job)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True,
    )  # fmt: skip
    pid = int(await_file(job, seconds=60)[0])
    seen = {"launched": mask_becomes(pid, "0-3")}

    os.sched_setaffinity(pid, {4, 5})
    seen["taskset"] = mask_becomes(pid, "0-3")
    (group / "cgroup.procs").write_text(str(pid))
    (group / "cpuset.cpus").write_text("0-7")
    seen["widened"] = mask_becomes(pid, "0-3")
    (group / "cpuset.cpus").write_text("4-7")
    time.sleep(2)
    seen["elsewhere"] = str(CpuSet(os.sched_getaffinity(pid)))
    (group / "cpuset.cpus").write_text("0-7")
    seen["back"] = mask_becomes(pid, "0-3")
    pathlib.Path(f"{job}.end").touch()
    _, told = end(running, timeout=60)

    assert seen == {
        "launched": "0-3", "taskset": "0-3", "widened": "0-3", "elsewhere": "4-7", "back": "0-3",
    }  # fmt: skip
    assert running.returncode == 0
    assert b"outside of planned" in told
    assert b"cannot be set again: EINVAL" in told
    assert json.loads(report.read_text())["ranks"][0]["num_drifts"] >= 2


@pytest.mark.lab("2n")
def test_isolated_ranks_have_walls_that_are_gone_afterwards():
    """What --isolate promises of cgroups, also when it is killed, holds in a guest with cgroup v2; nothing is skipped."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "pytest_timeout",
         "-k", "walls_of_its_own or killed_parent_leaves", "tests/test_isolate.py"],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-4000:]
    assert "2 passed" in done.stdout and "skipped" not in done.stdout
