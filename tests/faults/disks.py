"""How does a write to a disk fail: at once because it is full, or only when fsync asks whether it arrived?

Needs CAP_SYS_ADMIN; `late_disk` also a loop device and mkfs.ext4.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

IMAGE_BYTES = 64 << 20
ROOM_BYTES = 8 << 20
"""What the image's file system believes to have, and what lies beneath it."""


class NoDiskError(Exception):
    """The disk cannot be made here; the message says why."""


@contextlib.contextmanager
def full_disk(*, size_bytes: int = 1 << 20, num_files: int = 0) -> Iterator[pathlib.Path]:
    """Give a folder on a disk of so many bytes, and so many files where that is not 0: then ENOSPC on write or open."""
    options = f"size={size_bytes}" + (f",nr_inodes={num_files + 1}" if num_files else "")
    with _scratch() as folder, _mounted(folder, "-t", "tmpfs", "-o", options, "tmpfs"):
        yield folder


@contextlib.contextmanager
def late_disk() -> Iterator[pathlib.Path]:
    """Give a folder in which 8 MiB can be kept and 64 MiB written: write() succeeds, fsync() fails.

    An ext4 image without blocks lies on a tmpfs that is too small for it, so that the error comes when the kernel
    writes its pages back, as with a thin volume or a network disk. The first fsync says ENOSPC, the next one EIO.
    """
    if shutil.which("mkfs.ext4") is None:
        raise NoDiskError("not installed: apt-get install e2fsprogs")
    with _scratch() as below, _mounted(below, "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs"):
        image = below / "image"
        image.touch()
        os.truncate(image, IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=1", image)
        with _scratch() as folder, _mounted(folder, "-o", "loop,errors=continue", image):
            yield folder


def left_over() -> list[str]:
    """Name mounts and loop devices that a disk of ours has left behind."""
    mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    loops = pathlib.Path("/sys/block").glob("loop*/loop/backing_file")
    found = [line.split()[4] for line in mounts if PREFIX in line]
    return found + [text for loop in loops if PREFIX in (text := loop.read_text().strip())]


PREFIX = "wellfed-disk-"


@contextlib.contextmanager
def _scratch() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        yield pathlib.Path(folder)


@contextlib.contextmanager
def _mounted(folder: pathlib.Path, *words: str | pathlib.Path) -> Iterator[None]:
    _run("mount", *words, folder)
    try:
        yield
    finally:
        # A test that keeps a file open there is wrong, and says so; what it leaves goes with its last descriptor.
        busy = subprocess.run(["umount", folder], capture_output=True, text=True, check=False)
        if busy.returncode:
            _run("umount", "--lazy", folder)
            raise AssertionError(f"something was left open: {busy.stderr.strip()}")


def _run(*words: str | pathlib.Path) -> None:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise NoDiskError(f"`{' '.join(map(str, words))}`: {said}")
