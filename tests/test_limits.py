"""Does a command get the priority, limits and wake-up latency that were asked for, and does the host get them back?"""

from __future__ import annotations

import os
import pathlib
import resource
import signal
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launching import COMMAND, await_end, await_file, begin, end, environment, launch
from wellfed.host import borrowed
from wellfed.host.borrowed import FILE, Borrowed, Loan, give_back_dead
from wellfed.host.latency import PER_CPU, stricter
from wellfed.host.state import has_records, state_folder
from wellfed.model.errors import LaunchError

OWN_SOFT, OWN_HARD = resource.getrlimit(resource.RLIMIT_NOFILE)


def test_limits_reach_the_command_and_not_us():
    """nofile, memlock, oom_score_adj and niceness hold in the command; this process keeps its own."""
    show = "ulimit -n; ulimit -l; cat /proc/self/oom_score_adj; nice"
    words = ("--nofile", "999", "--memlock", "64K", "--oom-score-adj", "500", "--nice", "7")

    done = launch("-q", *words, "--", "bash", "-c", show)

    assert done.stdout.split() == [b"999", b"64", b"500", b"7"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (OWN_SOFT, OWN_HARD)


def test_a_soft_limit_keeps_the_hard_one():
    """Lowering nofile leaves room to raise it again."""
    done = launch("-q", "--nofile", "999", "--", "bash", "-c", "ulimit -Hn")

    hard = b"unlimited" if OWN_HARD == resource.RLIM_INFINITY else b"%d" % OWN_HARD
    assert done.stdout.strip() == hard


def test_unlimited_is_a_size():
    """memlock unlimited, where we may; else one sentence."""
    done = launch("-q", "--memlock", "unlimited", "--", "bash", "-c", "ulimit -l")

    assert (done.returncode, done.stdout) in [(0, b"unlimited\n"), (2, b"")]


@pytest.mark.parametrize("name", ["other", "batch", "idle"])
def test_the_scheduling_class_reaches_the_command(name):
    """sched(7): field 41 of stat is the policy."""
    numbers = {"other": os.SCHED_OTHER, "batch": os.SCHED_BATCH, "idle": os.SCHED_IDLE}

    done = launch("-q", "--sched", name, "--", "cut", "-d", " ", "-f", "41", "/proc/self/stat")

    assert int(done.stdout) == numbers[name]


@pytest.mark.parametrize("name", ["fifo", "rr"])
def test_real_time_classes_are_refused_with_the_reason(name):
    """A whole command under FIFO that spins stops its host."""
    done = launch("--sched", name, "--", "echo", "started")

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"spins" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--nofile", str(1 << 30)),
        ("--nice", "-5"),
        ("--oom-score-adj", "-900"),
    ],
)
def test_what_the_kernel_refuses_starts_nothing(words):
    """Without privileges (a user namespace has none over limits): one sentence, exit 2."""
    if subprocess.run(["unshare", "-U", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel gives no user namespace, in which root has no rights")
    inside = ("unshare", "-U", *COMMAND, "-q", *words, "--", "echo", "started")

    done = subprocess.run(inside, capture_output=True, env=environment(), timeout=20, check=False)

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"what to do" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("found", "wanted", "written"),
    [("0", 50, "50"), ("0", 0, "n/a"), ("20", 50, "20"), ("100", 50, "50"), ("n/a", 50, "n/a")],
)
def test_a_stricter_latency_is_kept(found, wanted, written):
    """0 is no limit in the kernel's file and n/a is no latency at all."""
    assert stricter(found, wanted) == written


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_latency_never_becomes_laxer(found, wanted):
    """What is written is at most what was found and what was asked for."""

    def microseconds(text):
        return (
            {"0": 2**31 - 1, "n/a": 0}.get(text) if not text.isdigit() or text == "0" else int(text)
        )

    written = microseconds(stricter(str(found), wanted))

    assert written <= microseconds(str(found))
    assert written <= wanted


@pytest.fixture
def state(tmp_path):
    """Give a folder for records of changes."""
    return tmp_path / "state"


class Host:
    """A file that stands for one of /sys, and launches that borrow it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.file = folder / "value"
        self.file.write_text("0\n")
        self.records = str(folder / "records")

    @property
    def value(self) -> str:
        return self.file.read_text().strip()

    def launch(self, name: str, monkeypatch) -> Borrowed:
        """Begin a launch under a name of its own."""
        monkeypatch.setattr(borrowed, "_identity", lambda pid: name)
        return Borrowed(self.records, {})


@pytest.fixture
def host(tmp_path):
    """Give a pretended host."""
    return Host(tmp_path)


def test_what_was_found_comes_back(host, monkeypatch):
    """A launch writes, and gives back what stood there, not a default; its record goes, too."""
    host.file.write_text("17\n")
    one = host.launch("1-1-a", monkeypatch)

    one.write(str(host.file), "10")
    written = host.value
    problems = one.give_back()

    assert (written, host.value, problems) == ("10", "17", ())
    assert [p.name for p in pathlib.Path(host.records).iterdir()] == [".lock"]


def test_somebody_elses_value_is_left(host, monkeypatch):
    """Who wrote after us is not overwritten; it is said."""
    one = host.launch("1-1-a", monkeypatch)
    one.write(str(host.file), "10")
    host.file.write_text("33\n")

    problems = one.give_back()

    assert host.value == "33"
    assert "33" in problems[0]


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
@pytest.mark.parametrize("second_value", ["5", "10"])
def test_overlapping_launches_give_back_the_first_value(host, monkeypatch, order, second_value):
    """Two jobs on one core, ended in either order: in the end the value stands there that the first one found."""
    launches = {
        "first": host.launch("1-1-a", monkeypatch),
        "second": host.launch("2-2-a", monkeypatch),
    }
    monkeypatch.setattr(borrowed, "_is_alive", lambda name: True)
    launches["first"].write(str(host.file), "10")
    launches["second"].write(str(host.file), second_value)

    launches[order[0]].give_back()
    between = host.value
    launches[order[1]].give_back()

    assert between == (second_value if order[0] == "first" else "10")
    assert host.value == "0"


def test_a_killed_launch_is_cleaned_up_by_the_next(host, monkeypatch):
    """Its record names a process that is gone."""
    one = host.launch("999999-1-a", monkeypatch)
    one.write(str(host.file), "10")
    monkeypatch.undo()

    said = give_back_dead(host.records, {})

    assert host.value == "0"
    assert "999999" in said[0]
    assert give_back_dead(host.records, {}) == ()


def test_a_record_is_on_disk_before_the_write(host, monkeypatch):
    """A crash at any instruction leaves a record from which everything is given back."""
    one = host.launch("1-1-a", monkeypatch)
    seen = []
    real = borrowed._write

    def look_first(path, text):
        seen.append(pathlib.Path(host.records, "1-1-a").read_text())
        real(path, text)

    monkeypatch.setattr(borrowed, "_write", look_first)
    one.write(str(host.file), "10")

    assert seen == [f"{FILE}\t{host.file}\t10\t0\n"]


def test_half_a_record_is_no_record(host):
    """A line that was cut off was never acted on."""
    records = pathlib.Path(host.records)
    records.mkdir()
    (records / "999999-1-a").write_text(
        Loan(FILE, str(host.file), "0", "7").line() + "file\t/sys/cut"
    )

    give_back_dead(host.records, {})

    assert host.value == "7"


def test_a_change_that_nobody_knows_is_told_and_left(host):
    """Of a newer version, or garbage: the others of its record are given back."""
    records = pathlib.Path(host.records)
    records.mkdir()
    lines = Loan(FILE, str(host.file), "0", "7").line() + Loan("clock", "/sys/clock", "1").line()
    (records / "999999-1-a").write_text(lines)

    said = give_back_dead(host.records, {})

    assert host.value == "7"
    assert any("/sys/clock" in sentence and "'clock'" in sentence for sentence in said)


def test_an_interrupted_record_leaves_one_file_at_most(host, monkeypatch):
    """Killed between writing a record and naming it, again and again: nothing gathers, and nothing looks like a record."""
    monkeypatch.setattr(borrowed.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "")))
    for name in ("1-1-a", "2-1-a", "3-1-a"):
        with pytest.raises(LaunchError, match="ENOSPC"):
            host.launch(name, monkeypatch).write(str(host.file), "10")

    assert host.value == "0"
    assert not has_records(host.records)
    assert len(os.listdir(host.records)) <= 2


def test_debts_that_cannot_be_paid_do_not_stop_a_launch(tmp_path):
    """A record of a killed launch in a folder that cannot be locked: said, and the job runs."""
    (tmp_path / "borrowed").mkdir()
    (tmp_path / "borrowed" / "1-1-a").write_text("")
    (tmp_path / "borrowed" / ".lock").mkdir()

    done = launch("--", "echo", "ran", WELLFED_STATE_DIR=str(tmp_path))

    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert b"not given back" in done.stderr


def test_a_folder_that_cannot_be_written_stops_the_launch(tmp_path):
    """Without a record nothing on the host is changed."""
    (tmp_path / "file").write_text("")
    one = Borrowed(str(tmp_path / "file" / "records"), {})

    with pytest.raises(LaunchError, match="no record can be kept"):
        one.write("/nowhere", "1")


def test_records_are_where_the_state_of_a_person_is():
    """WELLFED_STATE_DIR before all; root's in /var/lib; else below XDG_STATE_HOME or the home."""
    root = os.geteuid() == 0

    assert state_folder({"WELLFED_STATE_DIR": "/s"}) == "/s/borrowed"
    assert state_folder({"XDG_STATE_HOME": "/x"}) == (
        "/var/lib/wellfed/borrowed" if root else "/x/wellfed/borrowed"
    )


def latency_files() -> list[pathlib.Path]:
    """Return the latency files of the CPUs that this process may use, where all can be written."""
    paths = [pathlib.Path(PER_CPU.format(cpu)) for cpu in sorted(os.sched_getaffinity(0))]
    return paths if len(paths) > 1 and all(os.access(path, os.W_OK) for path in paths) else []


@pytest.fixture
def latencies():
    """Give the files, and prove that they read at the end as at the start."""
    paths = latency_files()
    if not paths:
        pytest.skip("needs two CPUs and the right to write their pm_qos_resume_latency_us")
    before = [path.read_text() for path in paths]
    yield paths
    after = [path.read_text() for path in paths]
    for path, text in zip(paths, before, strict=True):
        path.write_text(text)
    assert after == before


def begin_latency(
    state: pathlib.Path, tmp_path: pathlib.Path, *words: str
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a rank on a core of its own with a latency of 77 µs, and wait until it runs."""
    script = 'echo $$ >>"$PIDS"; exec sleep 60'
    running = begin(
        "-q", "--policy", "exclusive", "--ranks", "1", "--cpu-latency", "77", *words, "--", "sh", "-c", script,
        PIDS=str(tmp_path / "pids"), WELLFED_STATE_DIR=str(state),
    )  # fmt: skip
    return running, int(await_file(tmp_path / "pids")[0])


@pytest.mark.host
def test_latency_holds_while_the_job_runs(latencies, state, tmp_path):
    """The rank's cores wake within 77 µs; afterwards the kernel's files read as before."""
    running, _ = begin_latency(state, tmp_path)
    during = {path.read_text().strip() for path in latencies}

    running.terminate()
    end(running)

    assert "77" in during


@pytest.mark.host
def test_latency_is_given_back_after_kill_9(latencies, state, tmp_path):
    """The guard gives back what a killed parent had changed."""
    running, rank = begin_latency(state, tmp_path)
    before_kill = {path.read_text().strip() for path in latencies}

    running.kill()
    end(running)
    await_end(rank)
    deadline = time.monotonic() + 5
    while any((state / "borrowed").glob("[0-9]*")) and time.monotonic() < deadline:
        time.sleep(0.02)

    assert "77" in before_kill
    assert not any((state / "borrowed").glob("[0-9]*"))


@pytest.mark.host
def test_latency_is_given_back_by_the_next_launch(latencies, state, tmp_path):
    """Parent and guard are both killed: the record is found by the next launch."""
    running, rank = begin_latency(state, tmp_path)
    children = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    for pid in [int(word) for word in children if int(word) != rank]:
        os.kill(pid, signal.SIGKILL)
    running.kill()
    end(running)
    await_end(rank)
    left = {path.read_text().strip() for path in latencies}

    done = launch("--", "true", WELLFED_STATE_DIR=str(state))

    assert "77" in left
    assert b"gave back" in done.stderr


def test_latency_without_cores_is_host_wide_and_said():
    """A process that is bound to no cores hands down the open file, which holds for all CPUs."""
    if not os.access("/dev/cpu_dma_latency", os.W_OK):
        pytest.skip("needs the right to write /dev/cpu_dma_latency")

    done = launch("--cpu-latency", "77", "--", "sh", "-c", "ls -l /proc/self/fd")

    assert b"/dev/cpu_dma_latency" in done.stdout
    assert b"every CPU of this host" in done.stderr
