"""What happens to a process at its n-th system call: killed, refused, or overtaken by somebody else?

A tracer (ptrace) stops the process before every call. Counted are the calls of one name or several, of its first
thread only, so that the same act gives the same numbers again: `calls_of` tells them, `killed_at`, `failing_at` and
`overtaken_at` do something before the n-th, counted from 1. An act is a function, run in a forked child of this process,
or a command. x86-64 only, and needs the right to trace own children (in containers it is sometimes denied).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

TRACE_ME, POKE_USER, CONTINUE_TO_CALL, SET_OPTIONS, SYSCALL_INFO = 0, 6, 24, 0x4200, 0x420E
GOOD_STOPS, TELL_EXEC, KILL_WITH_ME = 0x1, 0x10, 0x100000
EXEC_EVENT = 4
CALL_STOP = signal.SIGTRAP | 0x80
ENTRY, EXIT = 1, 2
# Offsets in struct user of arch/x86/include/asm/user_64.h
RAX, ORIG_RAX = 10 * 8, 15 * 8
O_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# arch/x86/entry/syscalls/syscall_64.tbl
NUMBERS = {
    "read": 0, "write": 1, "open": 2, "close": 3, "pwrite64": 18, "writev": 20, "sendfile": 40, "execve": 59,
    "fsync": 74, "fdatasync": 75, "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84,
    "creat": 85, "link": 86, "unlink": 87, "symlink": 88, "chmod": 90, "fchmod": 91, "prctl": 157, "setrlimit": 160,
    "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "sched_setscheduler": 144, "sched_setaffinity": 203,
    "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "ioprio_set": 251, "migrate_pages": 256, "openat": 257,
    "mkdirat": 258, "unlinkat": 263, "renameat": 264, "linkat": 265, "symlinkat": 266, "fallocate": 285,
    "pwritev": 296, "prlimit64": 302, "renameat2": 316, "copy_file_range": 326, "move_pages": 279, "setpriority": 141,
}  # fmt: skip
NAMES = {number: name for name, number in NUMBERS.items()}
CHANGING = (
    "write", "pwrite64", "writev", "pwritev", "sendfile", "copy_file_range", "fallocate", "truncate", "ftruncate",
    "fsync", "fdatasync", "open", "openat", "creat", "rename", "renameat", "renameat2", "link", "linkat", "symlink",
    "symlinkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "chmod", "fchmod",
)  # fmt: skip
"""Calls that change files. Of those that open one, only the ones that may write: imports stay out of the count."""

Act = Callable[[], object] | Sequence[str]


class Call(NamedTuple):
    """A system call that was about to happen."""

    name: str
    arguments: tuple[int, ...]


class Traced(NamedTuple):
    """How a traced process ended."""

    exit_code: int
    """Negative for a signal."""
    calls: tuple[Call, ...]
    """The counted ones, in their order."""


class _Info(ctypes.Structure):
    """struct ptrace_syscall_info of include/uapi/linux/ptrace.h, as far as an entry goes."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
        ("more", ctypes.c_uint64),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def why_not() -> str | None:
    """Say why nothing can be traced here."""
    if platform.machine() != "x86_64":
        return f"written for x86_64, this machine is {platform.machine()}"
    try:
        ended = calls_of(lambda: None)
    except OSError as refusal:
        return f"ptrace is refused: {refusal}"
    return None if ended.exit_code == 0 else "ptrace is refused to children"


def calls_of(act: Act, *, names: Collection[str] = CHANGING) -> Traced:
    """Let an act happen and count its calls."""
    return _trace(act, names, lambda number, call: None)


def killed_at(n: int, act: Act, *, names: Collection[str] = CHANGING) -> Traced:
    """Kill an act (SIGKILL) before its n-th counted call takes effect."""

    def decide(number: int, call: Call) -> object:
        return KILL if number == n else None

    return _trace(act, names, decide)


def failing_at(n: int, answer: int, act: Act, *, names: Collection[str] = CHANGING) -> Traced:
    """Let the n-th counted call of an act do nothing and return an errno."""
    return _trace(act, names, lambda number, call: answer if number == n else None)


def overtaken_at(
    n: int, other: Callable[[], object], act: Act, *, names: Collection[str] = CHANGING
) -> Traced:
    """Do something else, here, while an act stands before its n-th counted call."""

    def decide(number: int, call: Call) -> object:
        if number == n:
            other()
        return None

    return _trace(act, names, decide)


KILL = "kill"


def _trace(act: Act, names: Collection[str], decide: Callable[[int, Call], object]) -> Traced:
    counted = {NUMBERS[name] for name in names}
    pid = _begin(act)
    calls: list[Call] = []
    # A command counts once it has begun: what comes before is ours.
    counting = callable(act)
    answer: int | None = None
    try:
        _, status = os.waitpid(pid, 0)
        _request(SET_OPTIONS, pid, GOOD_STOPS | TELL_EXEC | KILL_WITH_ME)
        handed_on = 0
        while True:
            _request(CONTINUE_TO_CALL, pid, handed_on)
            _, status = os.waitpid(pid, 0)
            if not os.WIFSTOPPED(status):
                return Traced(os.waitstatus_to_exitcode(status), tuple(calls))
            handed_on = 0
            stopped_by = os.WSTOPSIG(status)
            if status >> 16 == EXEC_EVENT:
                counting = True
            elif stopped_by != CALL_STOP:
                handed_on = stopped_by
            else:
                answer = _at_call(pid, counted if counting else (), calls, answer, decide)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _at_call(
    pid: int,
    counted: Collection[int],
    calls: list[Call],
    answer: int | None,
    decide: Callable[[int, Call], object],
) -> int | None:
    """Look at a stop before or after a call; return the errno with which the call just begun shall end."""
    info = _info(pid)
    if info.op == EXIT:
        if answer is not None:
            _poke(pid, RAX, -answer)
        return None
    if info.op != ENTRY or info.number not in counted or not _changes(info):
        return None
    call = Call(NAMES[info.number], tuple(info.arguments))
    calls.append(call)
    decision = decide(len(calls), call)
    if decision is None:
        return None
    # Number −1 is no call at all: whatever comes next, this one does not happen.
    _poke(pid, ORIG_RAX, -1)
    if decision == KILL:
        os.kill(pid, signal.SIGKILL)
        return None
    assert isinstance(decision, int)
    return decision


def _changes(info: _Info) -> bool:
    name = NAMES[info.number]
    if name not in ("open", "openat"):
        return True
    return bool(info.arguments[1 if name == "open" else 2] & O_WRITING)


def _begin(act: Act) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork beside threads; this child only runs the act.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if _libc.ptrace(TRACE_ME, 0, None, None) == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            if not callable(act):
                os.execvp(act[0], list(act))
            act()
            code = 0
    except BaseException:  # noqa: BLE001  (a child must not return into its parent's stack)
        traceback.print_exc()
    finally:
        os._exit(code)


def _info(pid: int) -> _Info:
    info = _Info()
    _request(SYSCALL_INFO, pid, ctypes.addressof(info), address=ctypes.sizeof(info))
    return info


def _poke(pid: int, offset: int, value: int) -> None:
    _request(POKE_USER, pid, value & 0xFFFFFFFFFFFFFFFF, address=offset)


def _request(request: int, pid: int, data: int, *, address: int = 0) -> None:
    if _libc.ptrace(request, pid, address, data) == -1:
        number = ctypes.get_errno()
        # Killed from outside meanwhile: waitpid tells.
        if number != errno.ESRCH:
            raise OSError(number, os.strerror(number), f"ptrace {request}")
