"""Do the fault kits do what they say, and leave nothing behind?"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests import numa_kit as kit
from tests.faults import disks, pressure
from tests.faults.command import run_faulty
from tests.faults.racing import Racer
from tests.faults.seccomp import run_denied

FAULTY = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""A file that root may write; what it says is left alone."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def python(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(lines)]


def read(path: pathlib.Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


# a system call fails

SAY_ERRORS = (
    "import os, errno",
    "def say(act, *arguments):",
    "    try: act(*arguments); print('ok')",
    "    except OSError as error: print(errno.errorcode[error.errno])",
)


def test_each_call_fails_with_its_own_errno():
    """Two calls, two errnos; a third one is let through."""
    code = python(
        *SAY_ERRORS,
        "say(os.sched_setaffinity, 0, os.sched_getaffinity(0))",
        "say(os.setpriority, os.PRIO_PROCESS, 0, 0)",
        "say(os.sched_setscheduler, 0, os.SCHED_BATCH, os.sched_param(0))",
    )

    denied = run_faulty(["deny=sched_setaffinity:EPERM,setpriority:ENOSYS"], *code)
    control = run_faulty([], *code)

    assert denied.stdout.split() == ["EPERM", "ENOSYS", "ok"]
    assert control.stdout.split() == ["ok", "ok", "ok"]


def test_a_denied_call_stays_denied_in_children():
    """The filter is inherited over fork and exec."""
    done = run_denied("sched_setaffinity", "EPERM", "sh", "-c", "taskset -p 1 $$; true")

    assert "Operation not permitted" in done.stderr


# a process is killed, refused or overtaken at its n-th call


def keep_in_place(path: pathlib.Path, text: bytes):
    """Overwrite a file, the wrong way."""

    def act() -> None:
        with path.open("wb", buffering=0) as file:
            file.write(text[: len(text) // 2])
            file.write(text[len(text) // 2 :])

    return act


def keep_whole(path: pathlib.Path, text: bytes):
    """Write beside, fsync, rename."""

    def act() -> None:
        with path.with_suffix(".new").open("wb", buffering=0) as file:
            file.write(text[: len(text) // 2])
            file.write(text[len(text) // 2 :])
            os.fsync(file.fileno())
        path.with_suffix(".new").rename(path)

    return act


def outcomes(tracing, path: pathlib.Path, act) -> list[bytes | None]:
    """Kill an act before each of its calls, and tell what was found in the file each time."""
    path.write_bytes(b"old")
    found = []
    for n in range(1, len(tracing.calls_of(act).calls) + 1):
        path.write_bytes(b"old")
        assert tracing.killed_at(n, act).exit_code == -signal.SIGKILL
        found.append(read(path))
    return found


def test_a_death_at_every_call_tells_a_safe_write_from_an_unsafe_one(tracing, tmp_path):
    """In place the file is empty or half for some n; written beside and renamed it is the old one until it is the new."""
    path = tmp_path / "file"

    unsafe = outcomes(tracing, path, keep_in_place(path, b"whole"))
    safe = outcomes(tracing, path, keep_whole(path, b"whole"))

    assert unsafe == [b"old", b"", b"wh"]
    assert safe == [b"old"] * 5
    assert tracing.killed_at(99, keep_whole(path, b"whole")).exit_code == 0
    assert read(path) == b"whole"


def test_the_same_act_has_the_same_calls_every_time(tracing, tmp_path):
    """Without that an n would mean nothing."""
    act = keep_whole(tmp_path / "file", b"text")

    counted = {tuple(call.name for call in tracing.calls_of(act).calls) for _ in range(10)}

    assert counted == {("openat", "write", "write", "fsync", "rename")}


def test_one_call_fails_and_its_neighbours_do_not(tracing, tmp_path):
    """The second write meets EIO and does nothing; the first one has happened."""
    path = tmp_path / "file"
    seen = tmp_path / "seen"

    def act() -> None:
        try:
            keep_in_place(path, b"whole")()
        except OSError as failure:
            seen.write_text(errno.errorcode[failure.errno])

    tracing.failing_at(3, errno.EIO, act)

    assert (read(path), seen.read_text()) == (b"wh", "EIO")
    assert tracing.calls_of(keep_in_place(path, b"whole")).exit_code == 0
    assert read(path) == b"whole"


def test_somebody_else_writes_between_two_calls(tracing, tmp_path):
    """A read-modify-write without a lock loses what another wrote between its read and its write, for certain."""
    path = tmp_path / "counter"
    path.write_text("1")

    def count() -> None:
        path.write_text(str(int(path.read_text()) + 1))

    ended = tracing.overtaken_at(1, lambda: path.write_text("7"), count)

    assert ended.exit_code == 0
    assert path.read_text() == "2"


def test_a_command_is_traced_from_its_first_call_on(tracing, tmp_path):
    """What the interpreter does before is not counted, and its exit code comes back."""
    script = f"echo one > {tmp_path}/f; echo two >> {tmp_path}/f; exit 3"

    counted = tracing.calls_of(["sh", "-c", script])
    killed = tracing.killed_at(4, ["sh", "-c", script])

    assert counted.exit_code == 3
    assert [call.name for call in counted.calls] == ["openat", "write", "openat", "write"]
    assert killed.exit_code == -signal.SIGKILL
    assert read(tmp_path / "f") == b"one\n"


# somebody else writes without rest


@pytest.mark.parametrize("replace", [False, True], ids=["in place", "replaced"])
def test_a_racing_writer_writes_all_its_texts(tmp_path, replace):
    """A reader sees each of them sooner or later, never another one; paused, the file stands still."""
    path = tmp_path / "file"
    path.write_text("aaaa")

    with Racer(path, "aaaa", "bb", replace=replace) as racer:
        seen: set[str] = set()
        deadline = time.monotonic() + 30
        while not {"aaaa", "bb"} <= seen and time.monotonic() < deadline:
            seen.add(path.read_text())
        first = racer.pause()
        time.sleep(0.05)
        still = path.read_text()
        racer.go_on()

    assert {"aaaa", "bb"} <= seen
    # In place a reader may come between truncation and write.
    assert seen <= ({"aaaa", "bb"} if replace else {"aaaa", "bb", ""})
    assert first == still
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file"]


# disks


def test_a_full_disk_refuses_what_does_not_fit(full_disk):
    """1 MiB fits, one byte more is ENOSPC, and with room again it works."""
    file = full_disk / "file"

    with file.open("wb", buffering=0) as disk:
        written = disk.write(bytes(2 << 20))
        with pytest.raises(OSError, match="No space left") as refused:
            disk.write(b"x")

    assert refused.value.errno == errno.ENOSPC
    assert 0 < written <= 1 << 20
    file.unlink()
    assert (full_disk / "small").write_bytes(b"x") == 1


@needs_root
def test_a_disk_without_room_for_files_refuses_the_next_one():
    """No inode is left although bytes are."""
    with _disk_or_skip(disks.full_disk(num_files=2)) as folder:
        (folder / "a").touch()
        (folder / "b").touch()
        with pytest.raises(OSError, match="No space left"):
            (folder / "c").touch()
        (folder / "a").write_bytes(b"bytes are left")

    assert disks.left_over() == []


def test_a_late_disk_takes_every_write_and_fails_the_fsync(late_disk):
    """write() says 20 MiB; the first fsync says ENOSPC, the second EIO; what fits is kept well."""
    with (late_disk / "small").open("wb", buffering=0) as file:
        file.write(b"x" * 4096)
        os.fsync(file.fileno())
    with (late_disk / "large").open("wb", buffering=0) as file:
        written = file.write(bytes(range(256)) * (20 << 12))
        first = kit.refusal_of(os.fsync, file.fileno())
        second = kit.refusal_of(os.fsync, file.fileno())

    assert written == 20 << 20
    assert (first, second) == (errno.ENOSPC, errno.EIO)


@contextlib.contextmanager
def _disk_or_skip(context):
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(context)
        except disks.NoDiskError as reason:
            pytest.skip(str(reason))
        yield folder


# file systems


def _run_in_namespace(fault: str, *command: str) -> subprocess.CompletedProcess[str]:
    done = run_faulty([fault], *command)
    if "Operation not permitted" in done.stderr and "unshare" in done.stderr:
        pytest.skip("no right to make a mount namespace")
    return done


@needs_root
def test_sys_is_read_only_for_one_command():
    """EROFS there and in the cgroup trees below; here the file may be written as before."""
    code = python(
        *SAY_ERRORS, f"say(open, {str(FAULTY)!r}, 'r+')", "say(os.mkdir, '/sys/fs/cgroup/x')"
    )

    inside = _run_in_namespace("readonly=/sys", *code)

    assert inside.stdout.split() == ["EROFS", "EROFS"]
    assert os.access(FAULTY, os.W_OK)


@needs_root
def test_a_folder_is_hidden_or_another_for_one_command(tmp_path):
    """An empty folder in its place, or another one; nobody else sees that."""
    (tmp_path / "shown").write_text("another")
    before = pathlib.Path("/proc/self/mountinfo").read_text()

    hidden = _run_in_namespace(f"hide={kit.NODES}", "ls", str(kit.NODES))
    shown = _run_in_namespace(f"show={kit.NODES}:{tmp_path}", "ls", str(kit.NODES))

    assert hidden.stdout == ""
    assert shown.stdout == "shown\n"
    assert (kit.NODES / "node0").exists()
    assert pathlib.Path("/proc/self/mountinfo").read_text() == before


# rights and limits


@needs_root
def test_a_dropped_capability_is_gone_although_root_stays_root():
    """Without CAP_SYS_NICE root may not raise its priority; what needs none still works."""
    code = python(*SAY_ERRORS, "say(os.nice, -1)", "say(os.nice, 1)", "print(os.getuid())")

    dropped = run_faulty(["drop=sys_nice"], *code)
    control = run_faulty([], *code)

    assert dropped.stdout.split() == ["EPERM", "ok", "0"]
    assert control.stdout.split() == ["ok", "ok", "0"]


@needs_root
def test_every_capability_can_be_dropped():
    """The kernel's own sets are empty afterwards, the bounding set too."""
    done = run_faulty(["drop=all"], "sh", "-c", "grep ^Cap /proc/self/status")

    assert {line.split()[1] for line in done.stdout.splitlines()} == {"0" * 16}


def test_a_limit_holds():
    """RLIMIT_NOFILE 16: a seventeenth file is EMFILE."""
    code = python(*SAY_ERRORS, "say(lambda: [os.dup(0) for _ in range(20)])")

    assert run_faulty(["limit=nofile:16"], *code).stdout == "EMFILE\n"
    assert run_faulty([], *code).stdout == "ok\n"


@needs_root
def test_locked_memory_beyond_the_limit_is_refused():
    """RLIMIT_MEMLOCK binds who has no CAP_IPC_LOCK."""
    code = python(
        "import ctypes, mmap",
        "area = mmap.mmap(-1, 1 << 20)",
        "start = ctypes.addressof(ctypes.c_char.from_buffer(area))",
        "print(ctypes.CDLL(None).mlock(ctypes.c_void_p(start), ctypes.c_size_t(1 << 20)))",
    )

    limited = run_faulty(["limit=memlock:65536", "drop=ipc_lock"], *code)
    control = run_faulty(["limit=memlock:2097152", "drop=ipc_lock"], *code)

    assert (limited.stdout, control.stdout) == ("-1\n", "0\n")


def test_nobody_runs_wellfed_without_any_right(nobody):
    """The process is nobody's, and root's own folder is closed to it."""
    done = nobody.run("run", "-q", "--", "sh", "-c", "id -un; ls /root; exit 5")

    assert done.returncode == 5
    assert done.stdout == "nobody\n"
    assert "Permission denied" in done.stderr


def test_nobody_may_read_the_whole_host(nobody):
    """Looking needs no rights: the reports of a user are there, and no traceback."""
    for words in (("doctor",), ("topo",), ("doctor", "--format", "json")):
        done = nobody.run(*words, CUDA_VISIBLE_DEVICES="")

        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr


def test_several_faults_at_once(nobody):
    """Nobody, with a low limit, and a denied call: each of them holds."""
    done = nobody.run(
        "run", "-q", "--", "sh", "-c", "ulimit -n; taskset -p 1 $$",
        faults=("limit=nofile:99", "deny=sched_setaffinity:ENOSYS"),
    )  # fmt: skip

    assert done.stdout.splitlines()[0] == "99"
    assert "Function not implemented" in done.stderr


# CPU and memory

SPIN = """
import os, time
begun = time.monotonic()
while time.monotonic() - begun < 1.0:
    pass
print(time.process_time())
"""


@pytest.mark.host
def test_a_quota_throttles(cpu_group):
    """A fifth of a CPU: one second of spinning gets about 0.2 s of CPU time, and the kernel counts the throttling."""
    cpu_group.limit_cpu(0.2)

    command = f"read wait; exec {sys.executable} -c '{SPIN}'"
    spinning = subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    cpu_group.add(spinning.pid)
    out, _ = spinning.communicate("\n")

    assert float(out) < 0.6
    throttled = dict(
        line.split() for line in (cpu_group.path / "cpu.stat").read_text().splitlines()
    )
    assert int(throttled["nr_throttled"]) > 0


@pytest.mark.host
def test_more_memory_than_the_group_may_have_kills(memory_group):
    """Without swap: 64 MiB in a group of 24 MiB ends with SIGKILL, 1 MiB does not."""
    if int(pathlib.Path("/proc/meminfo").read_text().partition("SwapTotal:")[2].split()[0]):
        pytest.skip("there is swap here")
    memory_group.limit_memory(24 << 20)

    def take(size_bytes: int) -> int:
        code = f"import sys; sys.stdin.readline(); bytearray(b'x') * {size_bytes}"
        taking = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        memory_group.add(taking.pid)
        taking.communicate(b"\n")
        return taking.returncode

    assert (take(64 << 20), take(1 << 20)) == (-signal.SIGKILL, 0)


def test_a_group_kills_what_is_left_in_it(cpu_group):
    """At the end of the block nothing runs in it, and it is gone."""
    sleeping = subprocess.Popen(["sleep", "60"])
    with cpu_group.__class__("cpu", name="wellfed-other") as other:
        other.add(sleeping.pid)
        members = other.members()

    assert members == [sleeping.pid]
    assert sleeping.wait(10) == -signal.SIGKILL
    assert not other.path.exists()


def test_pressure_is_refused_outside_a_guest():
    """It would take the memory of whoever else works here."""
    if os.environ.get("WELLFED_LAB_GUEST"):
        pytest.skip("this is a guest")
    with (
        pytest.raises(AssertionError, match="only in a guest"),
        pressure.full_node(0, leave_bytes=0),
    ):
        pass
