"""Which system calls does glibc not wrap, and how are they called without libnuma?"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

from wellfed.model.cpuset import EMPTY, NodeSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# include/uapi/linux/mempolicy.h
MPOL_DEFAULT, MPOL_PREFERRED, MPOL_BIND, MPOL_INTERLEAVE, MPOL_LOCAL = 0, 1, 2, 3, 4
MPOL_PREFERRED_MANY = 5
"""Since v5.15; older kernels answer EINVAL."""
MPOL_F_RELATIVE_NODES, MPOL_F_STATIC_NODES = 1 << 14, 1 << 15
"""Static: node numbers stay what the caller wrote when a cpuset moves under the process."""
MPOL_F_MEMS_ALLOWED = 4

PR_SET_PDEATHSIG = 1
"""include/uapi/linux/prctl.h"""
PR_SET_CHILD_SUBREAPER = 36
SIGKILL = 9
"""On every architecture; the signal module costs an import of enum."""

BITS_PER_WORD = 64
FIRST_MAXNODE = 1024
"""CONFIG_NODES_SHIFT is at most 10 on every architecture, so that this suffices today."""
LAST_MAXNODE = 4096 * 8
"""Larger node masks are refused (mm/mempolicy.c copies at most a page of bits)."""

_NAMES = ("mbind", "get_mempolicy", "set_mempolicy", "migrate_pages", "move_pages")
# arch/*/kernel/syscalls/syscall.tbl and include/uapi/asm-generic/unistd.h, in the order of _NAMES.
_X86_64 = (237, 239, 238, 256, 279)
_GENERIC = (235, 236, 237, 238, 239)
_PPC64 = (259, 260, 261, 258, 301)
_S390X = (268, 269, 270, 287, 310)

NUMBERS: dict[str, dict[str, int]] = {
    machine: dict(zip(_NAMES, numbers, strict=True))
    for machine, numbers in (
        ("x86_64", _X86_64),
        ("aarch64", _GENERIC),
        ("riscv64", _GENERIC),
        ("loongarch64", _GENERIC),
        ("ppc64le", _PPC64),
        ("ppc64", _PPC64),
        ("s390x", _S390X),
    )
}
"""machine (``uname -m``) -> name of the call -> number, for 64-bit processes."""

# A 64-bit process under ``setarch`` (personality PER_LINUX32) reads the 32-bit name from uname.
_WIDE_NAMES = {
    "i686": "x86_64",
    "armv8l": "aarch64",
    "s390": "s390x",
    "ppc": "ppc64",
    "ppcle": "ppc64le",
}

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def number_of(name: str, machine: str, *, wide: bool) -> int:
    """Return a call's number on a machine; ``OSError(ENOSYS)`` where we know none, a 32-bit process included."""
    numbers = NUMBERS.get(_WIDE_NAMES.get(machine, machine), {}) if wide else {}
    if name not in numbers:
        raise OSError(errno.ENOSYS, f"{name}: no system call number known for {machine}")
    return numbers[name]


def set_mempolicy(mode: int, nodes: NodeSet = EMPTY) -> None:
    """Set the policy of the calling thread, and of what it starts from now on. ``mode`` may carry MPOL_F flags.

    Pages that exist stay where they are. OSError: EINVAL (mode not in this kernel, or no node that is allowed and
    has memory), EPERM (seccomp), ENOSYS (kernel without NUMA).
    """
    _call("set_mempolicy", ctypes.c_long(mode), *_mask(nodes))


def get_mempolicy() -> tuple[int, NodeSet]:
    """Return the policy of the calling thread: mode with its MPOL_F flags, and nodes.

    With MPOL_F_STATIC_NODES the kernel gives back the nodes that were asked for, allowed or not.
    """
    return _ask_mempolicy(0)


def mems_allowed() -> NodeSet:
    """Return the nodes from which the cpuset lets this thread take memory."""
    return _ask_mempolicy(MPOL_F_MEMS_ALLOWED)[1]


def move_pages_query(pid: int, addresses: Sequence[int]) -> list[int]:
    """Return for each address the node of its page, or a negative errno; nothing is moved. Pid 0 is this process.

    Per page: −ENOENT never touched or swapped out, −EFAULT no such mapping or the zero page. OSError for the whole
    call: ESRCH (no such process), EPERM (not ours to ask).
    """
    count = len(addresses)
    if not count:
        return []
    pages = (ctypes.c_void_p * count)(*addresses)
    status = (ctypes.c_int * count)(*([-errno.ENODATA] * count))
    _call(
        "move_pages",
        ctypes.c_long(pid),
        ctypes.c_ulong(count),
        pages,
        ctypes.c_void_p(None),
        status,
        ctypes.c_long(0),
    )
    return list(status)


def migrate_pages(pid: int, old: NodeSet, new: NodeSet) -> int:
    """Move a process's pages from some nodes to others and return how many could not be moved. Pid 0 is this process."""
    old_mask, old_maxnode = _mask(old)
    new_mask, new_maxnode = _mask(new)
    maxnode = max(old_maxnode.value, new_maxnode.value)
    if old_maxnode.value != new_maxnode.value:
        old_mask, _ = _mask(old, at_least=maxnode - 1)
        new_mask, _ = _mask(new, at_least=maxnode - 1)
    return _call("migrate_pages", ctypes.c_long(pid), ctypes.c_ulong(maxnode), old_mask, new_mask)


def prctl_pdeathsig(number: int = SIGKILL) -> None:
    """Ask for a signal when the thread that started this process ends. Call it in the child, before ``execve``.

    It is cleared by fork, kept over execve of an ordinary binary (prctl(2)); a parent that is already gone is not
    noticed: compare ``os.getppid()`` afterwards.
    """
    if _libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number), *[ctypes.c_ulong(0)] * 3) != 0:
        raise _refusal("prctl(PR_SET_PDEATHSIG)")


def prctl_subreaper(on: int = 1) -> None:
    """Become (0: no longer be) the parent of descendants whose own parent ends, so that none escapes `os.waitpid`."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(on), *[ctypes.c_ulong(0)] * 3) != 0:
        raise _refusal("prctl(PR_SET_CHILD_SUBREAPER)")


def signal_descriptor(numbers: Iterable[int]) -> int:
    """Return a descriptor that becomes readable when one of these blocked signals comes: 128 bytes each, signalfd(2)."""
    mask = (ctypes.c_ulong * (1024 // BITS_PER_WORD))()
    for number in numbers:
        mask[(number - 1) // BITS_PER_WORD] |= 1 << (number - 1) % BITS_PER_WORD
    descriptor: int = _libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        raise _refusal("signalfd")
    return descriptor


def _ask_mempolicy(flags: int) -> tuple[int, NodeSet]:
    mode = ctypes.c_int(0)
    maxnode = FIRST_MAXNODE
    while True:
        words = (ctypes.c_ulong * (maxnode // BITS_PER_WORD))()
        try:
            # The kernel subtracts one from maxnode before it counts bits.
            sizes = (ctypes.c_ulong(maxnode + 1), ctypes.c_void_p(None), ctypes.c_ulong(flags))
            _call("get_mempolicy", ctypes.byref(mode), words, *sizes)
        except OSError as refusal:
            # EINVAL: the kernel has more possible nodes than fit.
            if refusal.errno != errno.EINVAL or maxnode >= LAST_MAXNODE:
                raise
            maxnode *= 2
            continue
        mask = 0
        for word in reversed(words):
            mask = mask << BITS_PER_WORD | word
        return mode.value, NodeSet.of_mask(mask)


def _mask(
    nodes: NodeSet, *, at_least: int = 0
) -> tuple[ctypes.Array[ctypes.c_ulong], ctypes.c_ulong]:
    """Return the mask as the kernel wants it, and maxnode: one more than the bits given."""
    count = max(1, -(-max(nodes.mask.bit_length(), at_least) // BITS_PER_WORD))
    low = (1 << BITS_PER_WORD) - 1
    words = (ctypes.c_ulong * count)(*[nodes.mask >> BITS_PER_WORD * i & low for i in range(count)])
    return words, ctypes.c_ulong(count * BITS_PER_WORD + 1)


def _call(name: str, *arguments: object) -> int:
    number = number_of(name, os.uname().machine, wide=sys.maxsize > 2**32)
    result: int = _syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise _refusal(name)
    return result


def _refusal(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
