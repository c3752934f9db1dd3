"""Are many ranks one job: started together, heard apart, ended together, and never left behind?"""

from __future__ import annotations

import os
import pathlib
import pty
import select
import signal
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launching import (
    COMMAND,
    await_end,
    await_file,
    begin,
    end,
    environment,
    is_running,
    launch,
)
from wellfed.host.guard import NAME
from wellfed.host.launch import Order
from wellfed.host.lines import LONGEST_PARTIAL_BYTES, Sink, Stream
from wellfed.host.signals import exit_code_of, forwarded, say_code
from wellfed.host.supervise import Supervisor
from wellfed.model.errors import LaunchError

SAY_PID = 'echo $$ >>"$PIDS"; '


class Pids:
    """A file in which every rank writes its process number when it is ready."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def wait(self, count: int) -> list[int]:
        """Wait until so many have written."""
        return [int(line) for line in await_file(self.path, lines=count)]


@pytest.fixture
def pids(tmp_path):
    """Give the file, and prove at the end that no rank is left."""
    found = Pids(tmp_path / "pids")
    yield found
    if found.path.exists():
        assert await_end(*(int(line) for line in found.path.read_text().split()))


def test_every_rank_knows_which_one_it_is():
    """RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and one MASTER_PORT for all."""
    show = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT"

    done = launch("-q", "--ranks", "3", "--", "sh", "-c", show)
    lines = sorted(done.stdout.decode().splitlines())

    ports = {line.rpartition(" ")[2] for line in lines}
    assert [line.rpartition(" ")[0] for line in lines] == [
        f"[{i}] {i} {i} 3 3 127.0.0.1" for i in range(3)
    ]
    assert len(ports) == 1
    assert 0 < int(ports.pop()) < 65536


def test_visible_gpus_stay_whole():
    """CUDA_VISIBLE_DEVICES reaches every rank as it was."""
    done = launch(
        "-q",
        "--ranks",
        "2",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES",
        CUDA_VISIBLE_DEVICES="3,1",
    )

    assert sorted(done.stdout.splitlines()) == [b"[0] 3,1", b"[1] 3,1"]


def test_a_meeting_place_that_was_set_is_kept():
    """MASTER_ADDR and MASTER_PORT of the person win."""
    done = launch(
        "-q",
        "--ranks",
        "1",
        "--",
        "sh",
        "-c",
        "echo $MASTER_ADDR $MASTER_PORT",
        MASTER_ADDR="::1",
        MASTER_PORT="29500",
    )

    assert done.stdout == b"[0] ::1 29500\n"


def test_ranks_inside_a_rank_are_refused():
    """--ranks under torchrun would start N times N."""
    done = launch("--ranks", "2", "--", "echo", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")

    assert done.returncode == 2
    assert b"LOCAL_RANK=1" in done.stderr


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit $((RANK * 3))", 3), ("[ $RANK = 1 ] && kill -KILL $$; exit 0", 137)],
)
def test_the_jobs_code_is_that_of_the_first_rank_that_fails(script, code):
    """Its own exit code, or 128 plus the signal that ended it."""
    done = launch("-q", "--ranks", "2", "--", "sh", "-c", script)

    assert done.returncode == code


def test_more_ranks_than_cpus_share_them():
    """Eight ranks on any number of CPUs, policy `node`."""
    done = launch("-q", "--ranks", "8", "--", "sh", "-c", "echo $RANK")

    assert sorted(done.stdout.split()[1::2]) == [b"%d" % i for i in range(8)]


def test_exclusive_ranks_have_disjoint_cpus():
    """The children's own masks, as the kernel shows them, do not overlap; too few cores are refused with the figures."""
    count = len(os.sched_getaffinity(0))

    done = launch(
        "--ranks",
        "2",
        "--policy",
        "exclusive",
        "--",
        "grep",
        "Cpus_allowed_list",
        "/proc/self/status",
    )

    if count < 2:
        assert done.returncode == 2
        return
    masks = {line.split()[-1] for line in done.stdout.splitlines()}
    assert len(masks) == 2


def test_a_command_that_is_not_found_starts_no_rank():
    """127 before anything is forked."""
    done = launch("--ranks", "2", "--", "no-such-command")

    assert done.returncode == 127
    assert done.stdout == b""


def test_a_refusal_in_one_rank_is_one_sentence():
    """What a child cannot set ends the launch with exit 2; no rank runs."""
    done = launch("-q", "--ranks", "2", "--nofile", str(1 << 30), "--", "echo", "started")

    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 2


def test_the_first_failure_ends_the_others(pids):
    """The others get SIGTERM, and can end in their own way."""
    script = (
        SAY_PID
        + 'trap "echo ended; exit 0" TERM; while [ $RANK != 1 ]; do sleep 0.05; done; sleep 0.3; exit 7'
    )

    done = launch("--ranks", "3", "--", "sh", "-c", script, PIDS=str(pids.path))

    assert done.returncode == 7
    assert sorted(done.stdout.splitlines()) == [b"[0] ended", b"[2] ended"]
    assert b"rank 1 failed with exit code 7" in done.stderr


def test_a_rank_that_does_not_end_is_killed_after_the_grace(pids):
    """SIGTERM is ignored, SIGKILL is not."""
    script = (
        SAY_PID
        + 'if [ $RANK = 0 ]; then sleep 0.3; exit 5; fi; trap "" TERM; while :; do sleep 0.05; done'
    )
    begun = time.monotonic()

    done = launch(
        "-q", "--ranks", "2", "--grace", "0.5", "--", "sh", "-c", script, PIDS=str(pids.path)
    )

    assert done.returncode == 5
    assert 0.5 < time.monotonic() - begun < 10


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "USR1", "USR2", "QUIT", "ALRM"])
def test_a_signal_reaches_every_rank(pids, name):
    """What a scheduler sends to us, every rank gets, and can answer in its own way."""
    script = f'trap "echo got; exit 0" {name}; {SAY_PID} while :; do sleep 0.05; done'
    running = begin("-q", "--ranks", "2", "--", "sh", "-c", script, PIDS=str(pids.path))
    pids.wait(2)

    running.send_signal(getattr(signal, f"SIG{name}"))
    out, _ = end(running)

    assert [line for line in sorted(out.splitlines()) if b"got" in line] == [b"[0] got", b"[1] got"]
    assert running.returncode == 0


def test_a_signal_reaches_what_a_rank_started(pids):
    """The whole process group gets it: loader workers, too."""
    script = f"{SAY_PID} sh -c '{SAY_PID} exec sleep 60' & wait"
    running = begin("-q", "--ranks", "1", "--", "sh", "-c", script, PIDS=str(pids.path))
    found = pids.wait(2)

    running.terminate()
    end(running)

    assert await_end(*found)
    assert running.returncode == 143


def test_a_job_that_was_asked_to_end_may_take_its_time(pids):
    """After SIGTERM rank 1 ends at once and rank 0 writes its checkpoint for longer than the grace: it is not killed."""
    script = (
        'trap "if [ $RANK = 0 ]; then sleep 1; echo saved; fi; exit 3" TERM; '
        f"{SAY_PID} while :; do sleep 0.05; done"
    )
    running = begin(
        "-q", "--ranks", "2", "--grace", "0.1", "--", "sh", "-c", script, PIDS=str(pids.path)
    )
    pids.wait(2)

    running.terminate()
    out, _ = end(running)

    assert b"[0] saved" in out
    assert running.returncode == 3


def test_whoever_hammers_the_interrupt_key_is_obeyed(pids):
    """Three interrupts within two seconds kill ranks that ignore them."""
    script = f'trap "" INT; {SAY_PID} while :; do sleep 0.05; done'
    running = begin("-q", "--ranks", "2", "--", "sh", "-c", script, PIDS=str(pids.path))
    pids.wait(2)

    for _ in range(3):
        running.send_signal(signal.SIGINT)
        time.sleep(0.05)
    end(running)

    assert running.returncode == 137


def test_a_killed_parent_leaves_nothing(pids):
    """kill -9 of the parent ends ranks, what they started, and the guard."""
    script = f"{SAY_PID} sh -c '{SAY_PID} exec sleep 60' & wait"
    running = begin("-q", "--ranks", "2", "--", "sh", "-c", script, PIDS=str(pids.path))
    found = pids.wait(4)
    guard = _guard_of(running.pid)

    running.kill()
    end(running)

    assert await_end(*found, guard)


def _guard_of(parent: int) -> int:
    """Wait until the guard has its name: it takes it after its fork, and the rank may be quicker."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for pid in _children(parent):
            if _name(pid) == NAME.decode():
                return pid
        time.sleep(0.02)
    raise AssertionError(f"process {parent} has no guard")


def test_a_killed_guard_does_not_matter(pids):
    """The ranks go on, and end as ever."""
    script = f'{SAY_PID} while [ ! -e "$PIDS.go" ]; do sleep 0.05; done; exit 4'
    running = begin("-q", "--ranks", "1", "--", "sh", "-c", script, PIDS=str(pids.path))
    pids.wait(1)
    guard = _guard_of(running.pid)

    os.kill(guard, signal.SIGKILL)
    pathlib.Path(f"{pids.path}.go").touch()
    end(running)

    assert running.returncode == 4


def test_orphans_of_a_rank_end_with_the_job(pids):
    """A rank that succeeds and leaves a process in its group does not hold the job up."""
    script = f"sh -c '{SAY_PID} exec sleep 60' & while [ ! -s \"$PIDS\" ]; do sleep 0.02; done; echo done"

    done = launch("-q", "--ranks", "1", "--", "sh", "-c", script, timeout=10, PIDS=str(pids.path))

    assert (done.returncode, done.stdout) == (0, b"[0] done\n")


def test_a_daemon_that_left_its_group_does_not_hold_the_job_up(pids):
    """A process in a session of its own that keeps the pipe open is waited for a second, no longer, and lives."""
    script = f"setsid sh -c '{SAY_PID} exec sleep 60' & while [ ! -s \"$PIDS\" ]; do sleep 0.02; done; echo done"

    done = launch("-q", "--ranks", "1", "--", "sh", "-c", script, timeout=10, PIDS=str(pids.path))
    (daemon,) = pids.wait(1)
    lived = is_running(daemon)
    os.kill(daemon, signal.SIGKILL)

    assert done.stdout == b"[0] done\n"
    assert lived


def test_no_zombie_while_the_job_runs(pids):
    """A rank that has ended, and orphans of ranks, are waited for at once."""
    script = f"(sleep 0.1 & exec true) ; [ $RANK = 0 ] && exit 0; {SAY_PID} exec sleep 60"
    running = begin("-q", "--ranks", "2", "--", "sh", "-c", script, PIDS=str(pids.path))
    pids.wait(1)
    time.sleep(0.4)

    zombies = [pid for pid in _children(running.pid) if not is_running(pid)]
    running.terminate()
    end(running)

    assert zombies == []


def test_the_first_rank_reads_our_input():
    """stdin is rank 0's; the others read an empty file."""
    done = launch("-q", "--ranks", "2", "--", "sh", "-c", 'echo "<$(cat)>"', stdin=b"typed")

    assert sorted(done.stdout.splitlines()) == [b"[0] <typed>", b"[1] <>"]


def test_stderr_stays_stderr():
    """Each stream keeps its own lines, in order."""
    done = launch("-q", "--ranks", "2", "--", "sh", "-c", "echo out; echo err >&2; echo more")

    assert sorted(done.stderr.splitlines()) == [b"[0] err", b"[1] err"]
    assert [line for line in done.stdout.splitlines() if line.startswith(b"[0]")] == [
        b"[0] out",
        b"[0] more",
    ]


def test_a_last_line_without_end_is_written():
    """It is ended, because another rank's line follows."""
    done = launch("-q", "--ranks", "2", "--", "printf", "a\\nb")

    assert sorted(done.stdout.splitlines()) == [b"[0] a", b"[0] b", b"[1] a", b"[1] b"]


def test_output_of_any_bytes_arrives_whole():
    """A megabyte of random bytes of one rank, its prefixes taken off, is what it wrote."""
    script = "import os,sys,random; sys.stdout.buffer.write(random.Random(5).randbytes(1 << 20) + b'\\n')"
    import random
    import sys

    done = launch("-q", "--ranks", "1", "--", sys.executable, "-c", script)

    plain = done.stdout.replace(b"\n[0] ", b"\n").replace(b"\r[0] ", b"\r").removeprefix(b"[0] ")
    assert plain == random.Random(5).randbytes(1 << 20) + b"\n"


def test_a_reader_that_leaves_ends_the_job_as_a_pipe_would():
    """`| head -1` closes our output: ranks get SIGPIPE when they write on, instead of filling memory."""
    script = f"{' '.join(COMMAND)} -q --ranks 2 -- yes | head -1"

    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, env=environment(), timeout=20, check=False
    )

    assert done.stdout in (b"[0] y\n", b"[1] y\n")


def test_a_slow_reader_slows_the_ranks_and_signals_still_work(pids):
    """Nobody reads: memory stays bounded, and SIGTERM ends the job all the same."""
    script = f"{SAY_PID} exec yes"
    running = begin("-q", "--ranks", "2", "--", "sh", "-c", script, PIDS=str(pids.path))
    pids.wait(2)
    time.sleep(0.5)
    resident = int(pathlib.Path(f"/proc/{running.pid}/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGESIZE"
    )

    running.terminate()
    time.sleep(0.2)
    running.terminate()
    running.wait(timeout=10)
    end(running)

    assert resident < 64 << 20
    assert running.returncode == 143


def test_logs_go_to_files(tmp_path):
    """--log-dir writes what each rank wrote, without a mark, and appends."""
    words = (
        "-q",
        "--ranks",
        "2",
        "--log-dir",
        str(tmp_path / "logs"),
        "--",
        "sh",
        "-c",
        "echo $RANK; echo e >&2",
    )

    done = [launch(*words) for _ in range(2)]

    assert [each.stdout for each in done] == [b"", b""]
    assert (tmp_path / "logs" / "rank-1.out").read_text() == "1\n1\n"
    assert (tmp_path / "logs" / "rank-0.err").read_text() == "e\ne\n"


def test_an_ignored_sigchld_is_no_trap():
    """Whoever started us may ignore SIGCHLD; exit codes still arrive."""
    script = f"trap '' CHLD; exec {' '.join(COMMAND)} -q --ranks 2 -- sh -c 'exit $((RANK * 6))'"

    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, env=environment(), timeout=20, check=False
    )

    assert done.returncode == 6


def test_one_process_that_is_watched_keeps_its_code_and_streams():
    """--verify stays the parent of one process: no mark on its lines, its own stdin and code."""
    done = launch(
        "-q",
        "--verify",
        "0.1",
        "--",
        "sh",
        "-c",
        "cat; exec sh -c 'kill -USR1 $$'",
        stdin=b"through",
    )

    assert done.returncode == 138
    assert done.stdout == b"through"


def test_a_job_that_ends_before_it_is_verified_says_so(tmp_path):
    """The report has null, and stderr one sentence."""
    import json

    done = launch("--verify", "30", "--report", str(tmp_path / "r.json"), "--", "true")
    found = json.loads((tmp_path / "r.json").read_text())

    assert done.returncode == 0
    assert b"not verified" in done.stderr
    assert found["ranks"][0]["verified"] is None
    assert found["exit_code"] == 0


def test_verification_shows_what_holds_while_the_command_runs(tmp_path):
    """Masks of every thread, after the start; the table goes to stderr, the report is JSON."""
    import json

    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU cannot be split")
    words = (
        "--policy",
        "exclusive",
        "--ranks",
        "2",
        "--verify",
        "0.2",
        "--report",
        str(tmp_path / "r.json"),
    )

    done = launch(*words, "--", "sleep", "0.6")
    found = json.loads((tmp_path / "r.json").read_text())

    assert done.returncode == 0
    assert [rank["verified"]["bound"] for rank in found["ranks"]] == [True, True]
    assert len({rank["verified"]["cpus"]["found"] for rank in found["ranks"]}) == 2
    assert done.stderr.count(b": bound") == 2


@pytest.mark.host
def test_drift_is_repaired_and_counted(tmp_path, pids):
    """Somebody widens the mask of a running rank; --watch gives it back."""
    import json

    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU cannot be split")
    everything = os.sched_getaffinity(0)
    words = ("-q", "--policy", "exclusive", "--ranks", "2", "--watch", "--watch-interval", "0.1")
    running = begin(
        *words,
        "--report",
        str(tmp_path / "r.json"),
        "--",
        "sh",
        "-c",
        SAY_PID + "exec sleep 60",
        PIDS=str(pids.path),
    )
    first, _ = pids.wait(2)
    planned = os.sched_getaffinity(first)

    os.sched_setaffinity(first, everything)
    deadline = time.monotonic() + 10
    while os.sched_getaffinity(first) != planned and time.monotonic() < deadline:
        time.sleep(0.02)
    restored = os.sched_getaffinity(first)
    time.sleep(0.2)
    running.terminate()
    _, err = end(running)
    found = json.loads((tmp_path / "r.json").read_text())

    assert restored == planned
    assert sum(rank["num_drifts"] for rank in found["ranks"]) == 1
    assert b"drift" in err


def test_ctrl_c_at_a_terminal_reaches_every_rank_once(pids):
    """The terminal signals our group; ranks have their own and get it from us."""
    script = f'n=0; trap "n=\\$((n+1))" INT; {SAY_PID} i=0; while [ $i -lt 12 ]; do sleep 0.1; i=$((i+1)); done; echo n=$n'
    out = _at_terminal(("-q", "--ranks", "2", "--", "sh", "-c", script), b"\x03", pids, count=2)

    assert sorted(line for line in out.split() if line.startswith(b"n=")) == [b"n=1", b"n=1"]


def test_ctrl_c_at_a_terminal_reaches_one_process_once(pids):
    """One watched process shares the terminal's group: it is not signalled a second time by us."""
    script = f'n=0; trap "n=\\$((n+1))" INT; {SAY_PID} i=0; while [ $i -lt 12 ]; do sleep 0.1; i=$((i+1)); done; echo n=$n'
    out = _at_terminal(("-q", "--verify", "60", "--", "sh", "-c", script), b"\x03", pids, count=1)

    assert b"n=1\n" in out


def test_what_is_typed_reaches_the_first_rank(pids):
    """At a terminal rank 0 reads lines although its group is in the background."""
    script = f'{SAY_PID} [ $RANK = 0 ] || exit 0; read line; echo "read=$line"'

    out = _at_terminal(("-q", "--ranks", "2", "--", "sh", "-c", script), b"hello\n", pids, count=2)

    assert b"[0] read=hello" in out


def test_one_watched_process_can_ask_its_terminal(pids):
    """It is in the foreground: reading does not stop it."""
    script = f'{SAY_PID} read line; echo "read=$line"'

    out = _at_terminal(
        ("-q", "--verify", "60", "--", "sh", "-c", script), b"hello\n", pids, count=1
    )

    assert b"read=hello" in out


def test_a_refusal_in_the_last_rank_starts_none(tmp_path):
    """All ranks are prepared before the first command begins."""
    supervisor = Supervisor(grace_seconds=1, say=lambda sentence: None)

    def refuse():
        raise LaunchError("too few files", remedy="raise the limit")

    marker = tmp_path / "started"
    preparations = (tuple, tuple, refuse)
    with pytest.raises(LaunchError, match="too few files"), supervisor:
        for prepare in preparations:
            supervisor.launch(Order(("touch", str(marker)), "/usr/bin/touch", {}, prepare))
        supervisor.prepared()
        supervisor.release()

    assert not marker.exists()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_stopped_job_stops_and_goes_on(pids):
    """Ctrl-Z stops ranks and parent, `fg` lets all go on."""
    running = begin(
        "-q", "--ranks", "2", "--", "sh", "-c", SAY_PID + "exec sleep 60", PIDS=str(pids.path)
    )
    ranks = pids.wait(2)

    running.send_signal(signal.SIGTSTP)
    stopped = all(_await_state(pid, "T") for pid in (running.pid, *ranks))
    running.send_signal(signal.SIGCONT)
    resumed = all(_await_state(pid, "S") for pid in (running.pid, *ranks))
    running.terminate()
    end(running)

    assert (stopped, resumed) == (True, True)


@pytest.mark.parametrize(("status", "code"), [(0, 0), (7 << 8, 7), (9, 137), (255 << 8, 255)])
def test_wait_statuses_become_shell_codes(status, code):
    """Its own code, or 128 plus the signal."""
    assert exit_code_of(status) == code


def test_codes_are_said_in_words():
    """A signal by its name, a code as it is."""
    assert say_code(137) == "was ended by SIGKILL"
    assert say_code(1) == "failed with exit code 1"
    assert say_code(255) == "failed with exit code 255"


def test_signals_about_us_are_not_passed_on():
    """SIGSEGV, SIGPIPE and what cannot be caught stay here; what a person ignores is not taken."""
    found = forwarded((signal.SIGHUP,))

    assert {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCONT, signal.SIGTSTP} <= found
    assert not found & {
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGCHLD,
        signal.SIGPIPE,
        signal.SIGHUP,
    }


@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.binary(max_size=200)), max_size=20))
def test_lines_are_marked_and_nothing_else_changes(writes):
    """Whatever two ranks write in whatever pieces: each one's bytes come out in order, under its own mark."""
    pipes, out, written = [os.pipe() for _ in range(2)], Sink(-1), [b"", b""]
    streams = [Stream(reader, out, b"<%d>" % i) for i, (reader, _) in enumerate(pipes)]
    for which, content in writes:
        content = content.replace(b"<", b"(").replace(b"\r", b"")
        if content:
            os.write(pipes[which][1], content)
            streams[which].read_some()
            written[which] += content
    for stream, (_, writer) in zip(streams, pipes, strict=True):
        os.close(writer)
        stream.close()

    for i in range(2):
        mine = [
            line[3:] for line in bytes(out.waiting).split(b"\n") if line.startswith(b"<%d>" % i)
        ]
        assert b"\n".join(mine) == written[i].removesuffix(b"\n")


def test_a_progress_bar_is_shown_while_it_grows():
    """A carriage return ends what is shown, and the mark follows it, so that the bar overwrites itself."""
    reader, writer = os.pipe()
    out = Sink(-1)
    stream = Stream(reader, out, b"[0] ")

    os.write(writer, b"10%\r20%\r30%")
    stream.read_some()
    shown = bytes(out.waiting)
    os.close(writer)
    stream.close()

    assert shown == b"[0] 10%\r[0] 20%\r[0] "
    assert bytes(out.waiting) == b"[0] 10%\r[0] 20%\r[0] 30%\n"


def test_dos_line_ends_stay():
    """CR LF is one line end, also where a read cuts it in two."""
    reader, writer = os.pipe()
    out = Sink(-1)
    stream = Stream(reader, out, b"[0] ")

    for part in (b"a\r\nb\r", b"\nc\r\n"):
        os.write(writer, part)
        stream.read_some()
    os.close(writer)
    stream.close()

    assert bytes(out.waiting) == b"[0] a\r\n[0] b\r\n[0] c\r\n"


def test_a_line_without_end_is_not_kept_for_ever():
    """A gigabyte without a line end passes through in pieces, marked once."""
    reader, writer = os.pipe()
    out = Sink(-1)
    stream = Stream(reader, out, b"[0] ")

    for _ in range(4 * LONGEST_PARTIAL_BYTES // 4096):
        os.write(writer, b"x" * 4096)
        stream.read_some()
    held = len(stream._partial)
    os.close(writer)
    stream.close()

    assert held <= LONGEST_PARTIAL_BYTES
    assert bytes(out.waiting) == b"[0] " + b"x" * 4 * LONGEST_PARTIAL_BYTES + b"\n"


def _children(pid: int) -> list[int]:
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def _await_state(pid: int, wanted: str, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
        if text.rpartition(")")[2].split()[0] == wanted:
            return True
        time.sleep(0.01)
    return False


def _name(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()


def _at_terminal(words: tuple[str, ...], typed: bytes, pids: Pids, *, count: int) -> bytes:
    """Run in the foreground of a new terminal, type when every rank is ready, and return what was shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(COMMAND[0], [*COMMAND, *words], environment(PIDS=str(pids.path)))
    shown = b""
    try:
        pids.wait(count)
        os.write(terminal, typed)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    chunk = os.read(terminal, 4096)
                except OSError:
                    break
                if not chunk:
                    break
                shown += chunk
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return shown.replace(b"\r\n", b"\n")
