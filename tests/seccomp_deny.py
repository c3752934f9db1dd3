"""Run a command whose named system calls fail with an errno, as in a container whose seccomp filter denies them.

``python -m tests.seccomp_deny set_mempolicy,mbind EPERM -- COMMAND …``; no libseccomp: the filter is six lines of BPF.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys

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
    },
}
"""Calls that wellfed makes through the standard library, or not at all."""

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ANSWER_ERRNO = 0x7FFF0000, 0x00050000


class Program(ctypes.Structure):
    """struct sock_fprog of include/uapi/linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def program(numbers: list[int], answer: int) -> bytes:
    """Assemble: load the number of the call; for each denied one return the errno; else allow."""
    instructions = [(LOAD_WORD, 0, 0, 0)]
    for number in numbers:
        instructions += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, ANSWER_ERRNO | answer)]
    instructions.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *each) for each in instructions)


def deny(names: list[str], answer: int) -> None:
    """Install the filter in this process; it is inherited and cannot be taken off again."""
    machine = platform.machine()
    known = NUMBERS.get(machine, {}) | OTHERS.get(machine, {})
    code = program([known[name] for name in names], answer)
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
    """Run a command under the filter and return what it wrote and its code."""
    wrapped = [sys.executable, "-m", "tests.seccomp_deny", names, answer, "--", *command]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return subprocess.run(
        wrapped, capture_output=True, text=True, timeout=timeout, cwd=root, check=False
    )


if __name__ == "__main__":
    split = sys.argv.index("--")
    deny(sys.argv[1].split(","), getattr(errno, sys.argv[2]))
    os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])
