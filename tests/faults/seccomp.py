"""Which system calls fail with which errno, as in a container whose seccomp filter denies them?

No libseccomp: the filter is a few lines of BPF.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import subprocess
import sys
from collections.abc import Mapping

from tests.faults.command import ROOT
from wellfed.host.syscalls import NUMBERS

OTHERS = {
    "x86_64": {
        "sched_setaffinity": 203,
        "sched_getaffinity": 204,
        "sched_setscheduler": 144,
        "setpriority": 141,
        "ioprio_set": 251,
        "mlock": 149,
        "io_uring_setup": 425,
        "execve": 59,
        "fsync": 74,
        "mkdir": 83,
        "prctl": 157,
        "setrlimit": 160,
        "prlimit64": 302,
    },
    "aarch64": {
        "sched_setaffinity": 122,
        "sched_getaffinity": 123,
        "sched_setscheduler": 119,
        "setpriority": 140,
        "ioprio_set": 30,
        "mlock": 228,
        "io_uring_setup": 425,
        "execve": 221,
        "fsync": 82,
        "mkdir": 34,
        "prctl": 167,
        "setrlimit": 164,
        "prlimit64": 261,
    },
}
"""Calls that wellfed makes through the standard library, or not at all. (aarch64 has mkdirat alone.)"""

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ANSWER_ERRNO = 0x7FFF0000, 0x00050000


class Program(ctypes.Structure):
    """struct sock_fprog of include/uapi/linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def program(answers: Mapping[int, int]) -> bytes:
    """Assemble: load the number of the call; for each denied one return its errno; else allow."""
    instructions = [(LOAD_WORD, 0, 0, 0)]
    for number, answer in answers.items():
        instructions += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, ANSWER_ERRNO | answer)]
    instructions.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *each) for each in instructions)


def deny(answers: Mapping[str, str]) -> None:
    """Install the filter, name of the call -> name of the errno, in this process; it is inherited and never goes."""
    machine = platform.machine()
    known = NUMBERS.get(machine, {}) | OTHERS.get(machine, {})
    code = program({known[name]: getattr(errno, answer) for name, answer in answers.items()})
    buffer = ctypes.create_string_buffer(code, len(code))
    loaded = Program(len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    mode = ctypes.c_ulong(SECCOMP_MODE_FILTER)
    if libc.prctl(PR_SET_SECCOMP, mode, ctypes.byref(loaded), zero, zero):
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")


def run_denied(
    names: str, answer: str, *command: str, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command whose named calls (with commas) all fail with one errno; return what it wrote and its code."""
    denied = ",".join(f"{name}:{answer}" for name in names.split(","))
    return subprocess.run(
        [sys.executable, "-m", "tests.faults", f"deny={denied}", "--", *command],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        check=False,
    )
