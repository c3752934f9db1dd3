"""How is a recorded host written to one file, and how is that file one or none?

Inside the archive everything is below ``host/``: ``host/proc`` and ``host/sys`` as files and links,
``host/.wellfed/capture.json`` with errnos, answers and second readings, ``host/.wellfed/nvml.txt`` with NVML's answers.
`archive.open_recording` reads it back.
"""

from __future__ import annotations

import os
import pathlib
import posixpath

from wellfed.host.about import NVML, PLACE, About, format_about
from wellfed.host.compression import packer
from wellfed.host.layout import NVML_PLACE
from wellfed.host.tar_pack import end_of_archive, pack_directory, pack_file, pack_link
from wellfed.model.errors import RecordingError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from wellfed.host.recorded_tree import RecordedTree

TOP = "host"


def about(
    recording: RecordedTree, *, wellfed: str = "", captured_at: str = "", kernel: str = ""
) -> About:
    """Return what a recording says of itself: what is no file or link, and who recorded it when."""
    return About(
        errnos=recording.errnos,
        answers=recording.answers,
        second=recording.second,
        directories=None if recording.complete else recording.directories,
        interval_seconds=recording.interval_seconds,
        assembled=recording.assembled,
        wellfed=wellfed,
        captured_at=captured_at,
        kernel=kernel,
    )


def pack(recording: RecordedTree, said: About, *, when: int) -> bytes:
    """Return the tar of a recording; ``when`` is the time of its members in seconds of the epoch."""
    return b"".join((*_members(recording, said, when), end_of_archive()))


def _members(recording: RecordedTree, said: About, when: int) -> Iterator[bytes]:
    # What a person looks at first comes first.
    yield pack_file(TOP + PLACE, format_about(said).encode(), when=when)
    nvml = recording.answers.get(NVML)
    if isinstance(nvml, str):
        yield pack_file(TOP + NVML_PLACE, nvml.encode("utf-8", "replace"), when=when)
    for path, content in sorted(recording.files.items()):
        yield pack_file(TOP + path, content, when=when)
    for path, target in sorted(recording.links.items()):
        yield pack_link(TOP + path, _relative(path, target), when=when)
    for path, names in sorted(recording.directories.items()):
        if not names and path != "/":
            yield pack_directory(TOP + path, when=when)


def _relative(path: str, target: str) -> str:
    """Return a link's target so that it stays inside wherever somebody unpacks it."""
    if not target.startswith("/"):
        return target
    return posixpath.relpath(target, posixpath.dirname(path))


def check_destination(path: str, *, force: bool) -> None:
    """Refuse, before anything is recorded, a name that could not be written in the end."""
    packer(path)
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"{folder} is no directory", remedy=f"mkdir -p {folder}")
    if os.path.isdir(path):
        raise UsageError(
            f"{path} is a directory", remedy="name a file: wellfed capture host.tar.xz"
        )
    if os.path.lexists(path) and not force:
        raise _exists(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} is not writable", remedy="name a file in a directory of yours")


def write_bundle(path: str, content: bytes, *, force: bool) -> int:
    """Compress a tar as the suffix of ``path`` says, write it whole or not at all, and return its size in bytes."""
    packed = packer(path)(content)
    beside = os.path.join(os.path.dirname(path), f".wellfed.{os.getpid()}.part")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(packed)
                file.flush()
                os.fsync(descriptor)
            _put(beside, path, force=force)
        finally:
            if os.path.lexists(beside):
                os.remove(beside)
    except OSError as refusal:
        raise RecordingError(
            f"{path} could not be written: {refusal.strerror or refusal}",
            remedy="name a file elsewhere, or make room there",
        ) from None
    return len(packed)


def _put(beside: str, path: str, *, force: bool) -> None:
    """Give the finished file its name in one step, which without ``force`` must not be taken meanwhile."""
    if force:
        pathlib.Path(beside).replace(path)
        return
    try:
        os.link(beside, path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:
        # No hard links on this file system (FAT, some network ones).
        if os.path.lexists(path):
            raise _exists(path) from None
        pathlib.Path(beside).replace(path)


def _exists(path: str) -> UsageError:
    return UsageError(
        f"{path} exists already", remedy="add --force to replace it, or choose another name"
    )
