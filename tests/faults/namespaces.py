"""How does one process see a file system that it may not write, or another one in its place?

Each call gives the calling process a mount namespace of its own first: nobody else sees the change, and it goes with
the last process in it. Needs CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY = 1
MOUNT_SETATTR = 442
"""The same number on every architecture; since v5.12."""

_libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    """struct mount_attr of include/uapi/linux/mount.h."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


def read_only(path: str) -> None:
    """Let no file system at and below a path be written by this process and what it starts: EROFS."""
    _leave()
    # A folder that is no mount point gets one.
    _mount(path, path, MS_BIND | MS_REC)
    wanted = MountAttributes(MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    _check(
        _libc.syscall(
            MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE, ctypes.byref(wanted), size
        ),
        path,
    )


def hide(path: str) -> None:
    """Show an empty folder in the place of one."""
    _leave()
    _mount("none", path, 0, kind="tmpfs")


def show(path: str, other: str) -> None:
    """Show another folder or file in the place of one, to this process and what it starts."""
    _leave()
    _mount(other, path, MS_BIND | MS_REC)


def _leave() -> None:
    """Move into a mount namespace of our own, from which nothing comes back to the others."""
    _check(_libc.unshare(CLONE_NEWNS), "unshare")
    _mount("none", "/", MS_REC | MS_PRIVATE)


def _mount(source: str, target: str, flags: int, *, kind: str = "none") -> None:
    done = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)
    _check(done, target)


def _check(failed: int, what: str) -> None:
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
