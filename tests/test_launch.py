"""Does one process become its command as if nobody had stood between?"""

from __future__ import annotations

import os
import pathlib
import stat
import subprocess
import sys

import pytest

from tests.launching import COMMAND, begin, end, environment, launch
from wellfed.host import launch as host_launch
from wellfed.host.launch import (
    Order,
    Signals,
    confirm_running,
    find_command,
    fork_child,
    open_gate,
    prepared,
)
from wellfed.model.errors import LaunchError, PlacementError

PYTHON = sys.executable
NO_SIGNALS = Signals((), ())


def start(order: Order) -> tuple[int, object]:
    """Start a child and let it become its command; return its number and what it prepared."""
    child = fork_child(order, NO_SIGNALS)
    found = prepared(child)
    open_gate(child)
    confirm_running(child)
    return child.pid, found


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_is_the_commands(code):
    """Whatever the command returns comes back."""
    done = launch("--", "sh", "-c", f"exit {code}")

    assert done.returncode == code


def test_a_command_that_a_signal_ends_looks_ended_by_it():
    """The process is the command, so its parent sees the signal itself."""
    done = launch("--", "sh", "-c", "kill -TERM $$")

    assert done.returncode == -15


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("no-such-command", 127),
        ("/no/such/file", 127),
        ("/etc/passwd", 126),
        ("/etc", 126),
        ("", 127),
    ],
)
def test_what_cannot_be_executed_has_the_shells_codes(command, code):
    """127 for a command that is not found, 126 for one that may not be executed, one sentence and a remedy."""
    done = launch("--", command)

    assert done.returncode == code
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 2
    assert b"what to do: " in done.stderr


def test_stdout_is_the_jobs_alone():
    """Nothing of ours is ever on stdout, however much is told."""
    done = launch("--verbose", "--", "printf", "only this")

    assert done.stdout == b"only this"
    assert b"no GPU is visible" in done.stderr


def test_quiet_says_nothing():
    """With --quiet a launch that goes well is silent."""
    done = launch("--quiet", "--", "true")

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    "argument",
    [b"two words", b"a\nb", b"", b"--help", b"$HOME `id` 'q' \"", b"\xff\xfe\x80", "ü→".encode()],
)
def test_arguments_arrive_as_they_were_written(argument):
    """No shell stands between, and bytes that are no UTF-8 pass through."""
    done = launch("-q", "--", "printf", "%s", argument)

    assert done.stdout == argument


def test_the_command_may_follow_without_dashes():
    """As with env and nice, the first word that is no option begins the command, and its options are its own."""
    done = launch("-q", "sh", "-c", "echo $0 $1", "-v", "--quiet")

    assert done.stdout == b"-v --quiet\n"


def test_the_process_itself_becomes_the_command():
    """The process number stays, so launchers and schedulers watch the job, not us."""
    running = begin("-q", "--", "sh", "-c", "echo $$")
    out, _ = end(running)

    assert int(out) == running.pid


def test_the_command_gets_the_signals_that_we_got():
    """Python ignores SIGPIPE and SIGXFSZ; the command finds them as they were, and `job | head` ends."""
    show = ("sh", "-c", "sed -n 's/^Sig\\(Ign\\|Blk\\)://p' /proc/self/status")

    done = launch("-q", "--", *show)

    assert _signals(done.stdout) == _signals(
        subprocess.run(show, capture_output=True, check=True).stdout
    )


def _signals(told: bytes) -> list[int]:
    """Read masks, without signals 32 and 33: glibc keeps these to itself, and whoever started us may have left them."""
    return [int(mask, 16) & ~(0b11 << 31) for mask in told.split()]


def test_a_signal_that_was_ignored_stays_ignored():
    """nohup works through us."""
    inside = f"trap '' HUP; exec {' '.join(COMMAND)} -q -- sh -c 'kill -HUP $$; echo alive'"

    done = subprocess.run(["sh", "-c", inside], capture_output=True, env=environment(), check=False)

    assert done.stdout == b"alive\n"


def test_no_descriptor_of_ours_is_left_open():
    """The command finds its standard streams and what it was given, nothing else."""
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            (*COMMAND, "-q", "--", "ls", "/proc/self/fd"),
            capture_output=True,
            pass_fds=(writer,),
            env=environment(),
            check=True,
        )
    finally:
        os.close(reader)
        os.close(writer)

    others = {int(name) for name in done.stdout.split()} - {0, 1, 2, writer}
    assert len(others) == 1, "only the listing itself"


def test_closed_standard_streams_are_no_trap():
    """With stderr closed no file of ours becomes the job's stderr."""
    script = f"{' '.join(COMMAND)} -q -- sh -c 'readlink /proc/self/fd/2' 2>&-"

    done = subprocess.run(["sh", "-c", script], capture_output=True, env=environment(), check=False)

    assert done.stdout == b"/dev/null\n"


def test_a_full_or_closed_stderr_does_not_stop_the_job():
    """What we have to say is worth less than the job."""
    script = f"{' '.join(COMMAND)} -v -- echo done 2>/dev/full"

    done = subprocess.run(["sh", "-c", script], capture_output=True, env=environment(), check=False)

    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_what_python_sets_for_itself_is_not_handed_on():
    """In the C locale Python sets LC_CTYPE; the command's environment does not have it."""
    plain = {"PATH": os.environ["PATH"], "LANG": "C"}

    done = subprocess.run((*COMMAND, "-q", "--", "env"), capture_output=True, env=plain, check=True)

    names = {line.partition(b"=")[0] for line in done.stdout.splitlines()}
    assert b"LC_CTYPE" not in names
    assert names >= {b"PATH", b"LANG"}


def test_a_variable_with_strange_bytes_passes_through():
    """Values need not be UTF-8."""
    given = os.environb | {b"STRANGE": b"\xff\x00"[:1]}

    done = subprocess.run(
        (*COMMAND, "-q", "--", "sh", "-c", 'printf %s "$STRANGE"'),
        capture_output=True,
        env=given,
        check=True,
    )

    assert done.stdout == b"\xff"


def test_threads_are_set_unless_a_person_has(tmp_path):
    """OpenMP gets the rank's cores; a value that is there already is kept."""
    show = ("-q", "--", "sh", "-c", "echo $OMP_NUM_THREADS")

    chosen, kept, asked = (
        launch(*show),
        launch(*show, OMP_NUM_THREADS="77"),
        launch("--threads", "5", *show),
    )

    assert int(chosen.stdout) >= 1
    assert kept.stdout == b"77\n"
    assert asked.stdout == b"5\n"


def test_keep_env_keeps_a_variable():
    """--keep-env leaves alone what would have been set."""
    done = launch(
        "-q", "--keep-env", "OMP_NUM_THREADS", "--", "sh", "-c", "echo ${OMP_NUM_THREADS-unset}"
    )

    assert done.stdout == b"unset\n"


def test_a_rank_of_a_launcher_is_bound_alone():
    """LOCAL_RANK=1 of 1 GPU-less ranks under `exclusive` gets its own core, confirmed by the kernel."""
    count = len(os.sched_getaffinity(0))
    show = "sed -n 's/^Cpus_allowed_list:\\t//p' /proc/self/status"
    ranks = [
        launch(
            "--policy",
            "exclusive",
            "--",
            "sh",
            "-c",
            show,
            LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE="2",
        )
        for rank in (0, 1)
    ]

    if count < 2:
        assert all(done.returncode == 2 for done in ranks)
        return
    assert ranks[0].stdout != ranks[1].stdout
    assert b"rank 1: CPUs " + ranks[1].stdout.strip() in ranks[1].stderr


def test_strict_refuses_what_is_not_beside_a_gpu():
    """Without a GPU nothing can be beside it: --strict says why, starts nothing, exits 2."""
    done = launch("--strict", "--", "echo", "started")

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"no GPU is visible" in done.stderr


def test_report_holds_plan_and_binding(tmp_path):
    """--report writes JSON before the process becomes its command; {rank} is the rank."""
    import json

    done = launch(
        "-q",
        "--report",
        f"{tmp_path}/{{rank}}.json",
        "--",
        "true",
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        RANK="4",
        WORLD_SIZE="8",
    )
    found = json.loads((tmp_path / "4.json").read_text())

    assert done.returncode == 0
    assert found["schema"] == "wellfed/run/1"
    assert found["plan"]["schema"] == "wellfed/plan/1"
    assert found["ranks"][0]["binding"]["schema"] == "wellfed/binding/1"
    assert found["exit_code"] is None


def test_a_report_that_cannot_be_written_starts_nothing(tmp_path):
    """The launch is refused before the command begins."""
    done = launch("-q", "--report", f"{tmp_path}/no/such/folder.json", "--", "echo", "started")

    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("options", [("--ranks", "2"), ("--verify", "0"), ()])
@pytest.mark.parametrize("place", ["no/such/folder.json", "", "a-file/r.json"])
def test_a_report_has_a_place_before_anything_starts(tmp_path, options, place):
    """A job of days must not end without the report that was asked for."""
    (tmp_path / "a-file").touch()
    done = launch("-q", *options, "--report", f"{tmp_path}/{place}", "--", "echo", "started")

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"cannot be written" in done.stderr


def test_ranks_of_a_launcher_do_not_write_over_each_others_reports(tmp_path):
    """Eight of torchrun with one name would leave the report of the slowest."""
    words = ("-q", "--report", f"{tmp_path}/r.json", "--", "echo", "started")
    done = launch(*words, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", RANK="1", WORLD_SIZE="2")

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"{rank}" in done.stderr


def test_the_code_is_the_jobs_though_its_report_is_lost(tmp_path):
    """The folder went away while the job ran: a warning, and the job's own exit code."""
    folder = tmp_path / "gone"
    folder.mkdir()
    report = str(folder / "r.json")
    done = launch("--verify", "9", "--report", report, "--", "sh", "-c", f"rmdir {folder}; exit 7")

    assert done.returncode == 7
    assert b"warning: --report" in done.stderr


@pytest.mark.parametrize("linked", [False, True])
def test_a_report_replaces_files_and_nothing_else(tmp_path, linked):
    """A pipe (a device: /dev/null) is written to; a link goes on leading to its file."""
    place, kind = tmp_path / "place", stat.S_ISFIFO
    if linked:
        (tmp_path / "target").touch()
        place.symlink_to(tmp_path / "target")
        kind = stat.S_ISLNK
    else:
        os.mkfifo(place)
    reader = None if linked else os.open(place, os.O_RDONLY | os.O_NONBLOCK)

    done = launch("-q", "--report", str(place), "--", "true")
    content = place.read_bytes() if reader is None else os.read(reader, 1 << 16)
    if reader is not None:
        os.close(reader)

    assert done.returncode == 0
    assert kind(place.lstat().st_mode)
    assert b"wellfed/run/1" in content


@pytest.mark.parametrize("options", [(), ("--ranks", "1")])
def test_a_program_of_another_machine_is_not_given_to_the_shell(tmp_path, options):
    """`Exec format error` is 126 and said, as in bash; /bin/sh would run what it finds between the bytes."""
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(57) + b"\ntouch ran\n")
    program.chmod(0o755)

    done = launch("-q", *options, "--", str(program))

    assert done.returncode == 126
    assert b"not one for this machine" in done.stderr


def test_a_script_without_interpreter_line_runs_in_the_shell(tmp_path):
    """As execvp(3) does it."""
    script = tmp_path / "plain"
    script.write_text("echo from $0\n")
    script.chmod(0o755)

    done = launch("-q", "--", str(script))

    assert done.stdout == f"from {script}\n".encode()


def test_a_script_whose_interpreter_is_missing_says_so(tmp_path):
    """The file is there, so `not found` alone would mislead."""
    script = tmp_path / "broken"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)

    done = launch("--", str(script))

    assert done.returncode == 127
    assert b"interpreter" in done.stderr


def test_too_long_arguments_are_one_sentence():
    """E2BIG is the kernel's, the sentence is ours."""
    with pytest.raises(LaunchError, match="E2BIG") as raised:
        start(Order(("true", "x" * (1 << 18)), "/bin/true", {}, tuple))

    assert raised.value.exit_code == 126


def test_a_command_is_found_as_the_shell_finds_it(tmp_path, monkeypatch):
    """First executable of PATH; an empty entry is the current folder; what may not be executed is passed over."""
    for folder, mode in (("a", 0o644), ("b", 0o755)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tool").write_text("")
        (tmp_path / folder / "tool").chmod(mode)
    monkeypatch.chdir(tmp_path / "b")

    found = find_command("tool", {"PATH": f"{tmp_path}/a:{tmp_path}/b"})

    assert found == f"{tmp_path}/b/tool"
    assert find_command("tool", {"PATH": ""}) == "./tool"
    with pytest.raises(LaunchError, match="may not be executed"):
        find_command("tool", {"PATH": f"{tmp_path}/a"})


def test_a_refusal_in_the_child_is_raised_in_the_parent():
    """What preparation raises arrives as the same error, and the child is waited for."""

    def refuse():
        raise PlacementError("too few cores", remedy="start fewer ranks")

    with pytest.raises(PlacementError, match="too few cores") as raised:
        start(Order(("true",), "/bin/true", {}, refuse))

    assert raised.value.remedy == "start fewer ranks"
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_what_a_child_prepared_reaches_the_parent_whole():
    """A report larger than a pipe does not block."""
    large = tuple(range(100_000))

    pid, found = start(Order(("true",), "/bin/true", {}, lambda: large))
    os.waitpid(pid, 0)

    assert found == large


def test_a_child_whose_parent_is_gone_does_not_start(tmp_path, monkeypatch):
    """A parent killed between fork and prctl leaves no job: the child compares its parent's number."""
    marker = tmp_path / "started"
    real = os.getpid
    monkeypatch.setattr(host_launch.os, "getpid", lambda: real() + 1)

    with pytest.raises(LaunchError, match="ended before its command began"):
        start(Order(("touch", str(marker)), "/usr/bin/touch", {}, tuple))

    assert not marker.exists()


def test_numbers_of_the_host_are_left_alone_without_a_gpu():
    """Without a GPU the mask of the command is the caller's own."""
    show = "sed -n 's/^Cpus_allowed_list:\\t//p' /proc/self/status"

    done = launch("-q", "--", "sh", "-c", show)

    assert done.stdout == subprocess.run(["sh", "-c", show], capture_output=True, check=True).stdout


def test_the_module_is_the_command():
    """`python -m wellfed` and `wellfed` are the same."""
    script = pathlib.Path(PYTHON).parent / "wellfed"
    if not script.exists():
        pytest.skip("wellfed is not installed beside this interpreter")

    done = subprocess.run(
        [str(script), "run", "-q", "--", "echo", "hi"],
        capture_output=True,
        env=environment(),
        check=True,
    )

    assert done.stdout == b"hi\n"
