"""How is a recorded host opened: a directory, or a tar in memory, of whatever origin?"""

from __future__ import annotations

import errno
import os
import stat

from wellfed.host.about import PLACE
from wellfed.host.layout import NVML_PLACE, OWN, WANTED, read_about, recorded, top_of
from wellfed.host.recorded_tree import RecordedTree
from wellfed.host.tar import MAX_STREAM_BYTES, RECORD_AGAIN, Members, read_members
from wellfed.model.errors import RecordingError
from wellfed.model.tree import Unreadable
from wellfed.model.units import format_bytes


def open_recording(path: str) -> RecordedTree:
    """Open a recorded host: a directory, or a tar compressed by gzip, bzip2, xz, zstd or not at all.

    The compression is recognised by content, nothing is unpacked to disk, and one leading component is dropped
    unless ``proc`` or ``sys`` stand at the top. RecordingError where it is missing, damaged, hostile or no host.
    """
    try:
        kind = os.stat(path).st_mode
    except OSError as refusal:
        raise RecordingError(
            f"{path}: {_said(refusal)}; {WANTED}", remedy="look at the path"
        ) from None
    except ValueError:
        raise RecordingError(f"{path!r} is no path", remedy="look at the path") from None
    if stat.S_ISDIR(kind):
        from wellfed.host.folder import open_folder

        return open_folder(path)
    if not stat.S_ISREG(kind):
        raise RecordingError(
            f"{path} is neither a directory nor a regular file; {WANTED}",
            remedy="save it to a file first",
        )
    return _open_archive(path)


def is_recording(path: str) -> bool:
    """Say whether a path looks like a recorded host rather than one text: a directory, or packed.

    Only a regular file is opened for that: what is read from a pipe, as of ``<(nvidia-smi topo -m)``, is gone.
    """
    if os.path.isdir(path):
        return True
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            start = file.read(512)
    except OSError:
        return False
    from wellfed.host.compression import compression_of

    return compression_of(start) is not None or start[257:262] == b"ustar"


def _open_archive(path: str) -> RecordedTree:
    from wellfed.host.compression import unpacked

    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not 0 < size <= MAX_STREAM_BYTES:
                raise RecordingError(
                    f"{path} is empty; {WANTED}"
                    if not size
                    else f"{path} has {format_bytes(size)}, which no recorded host has; {WANTED}",
                    remedy=RECORD_AGAIN,
                )
            members = read_members(path, unpacked(path, file))
    except OSError as refusal:
        raise RecordingError(
            f"{path} cannot be read: {_said(refusal)}", remedy=RECORD_AGAIN
        ) from None
    return _tree(path, members)


def _tree(path: str, members: Members) -> RecordedTree:
    """Give a tree whose paths begin at the host's root."""
    top = top_of(
        path, {name: members.directories.get(name, ()) for name in members.directories[""]}
    )
    start = top + "/" if top else ""
    skipped = len(top)

    def place(name: str) -> str | None:
        """Return the path on the host of a member below its root, None for another member."""
        if not start:
            return "/" + name
        return name[skipped:] if name.startswith(start) else None

    files = {at: content for name, content in members.files.items() if (at := place(name))}
    links = {at: target for name, target in members.links.items() if (at := place(name))}
    errnos = {at: "ENODATA" for name in members.devices if (at := place(name))}
    errnos |= {at: "EFBIG" for at, content in files.items() if content is None}
    directories = {at: names for name, names in members.directories.items() if (at := place(name))}
    directories.pop("/", None)
    directories["/"] = members.directories[top] - {".wellfed"}
    for link, target in links.items():
        if _climbs_out(link, target):
            raise members.damaged(f"holds the link {link!a:.80}, which leads out of it")
    about, answers = read_about(path, files.pop(PLACE, None), files.pop(NVML_PLACE, None))
    own = f"/{OWN}"
    return recorded(
        path,
        about,
        answers,
        files={
            at: content
            for at, content in files.items()
            if content is not None and not at.startswith(own)
        },
        links=links,
        errnos=errnos,
        directories={at: names for at, names in directories.items() if not at.startswith(own)},
    )


def _climbs_out(link: str, target: str) -> bool:
    """Say whether a link's ``..`` lead above the root; a target that begins with ``/`` begins there."""
    depth = link.count("/") - 1
    if target.startswith("/") or target.count("..") <= depth:
        return False
    for step in target.split("/"):
        depth += -1 if step == ".." else step not in ("", ".")
        if depth < 0:
            return True
    return False


def _said(refusal: OSError) -> str:
    return (
        str(Unreadable("ENOENT"))
        if refusal.errno == errno.ENOENT
        else (refusal.strerror or str(refusal)).lower()
    )
