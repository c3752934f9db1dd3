"""How is a recorded host read that lies in a directory: file by file, and never out of it?"""

from __future__ import annotations

import os
import stat

from wellfed.host.about import PLACE
from wellfed.host.layout import NVML_PLACE, OWN, read_about, recorded, top_of
from wellfed.host.live_tree import read_whole
from wellfed.host.recorded_tree import DIRECTORY, FILE, LINK, RecordedTree
from wellfed.model.errors import RecordingError
from wellfed.model.tree import Unreadable, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TOPS = 1000
"""More names at the top than this, and it is some other directory."""


class RecordedFolder(RecordedTree):
    """A host whose files lie below a directory. Each is looked at when it is asked for, and kept."""

    def __init__(self, root: str, recording: RecordedTree) -> None:
        """Take the directory that stands for ``/``, and what the recording says of itself."""
        super().__init__(
            recording.name,
            {},
            errnos=recording.errnos,
            directories=None if recording.complete else recording.directories,
            answers=recording.answers,
            second=recording.second,
            interval_seconds=recording.interval_seconds,
            assembled=recording.assembled,
            complete=recording.complete,
        )
        self._root = root
        self._states: dict[str, str] = {}

    @property
    def files(self) -> Mapping[str, bytes]:
        """Every file that holds a value: reads the whole directory."""
        self._look_everywhere()
        found = {path: self._content(path) for path, state in self._states.items() if state == FILE}
        return {path: content for path, content in found.items() if isinstance(content, bytes)}

    @property
    def links(self) -> Mapping[str, str]:
        """Every symbolic link: reads the whole directory."""
        self._look_everywhere()
        found = {path: self._target(path) for path, state in self._states.items() if state == LINK}
        return {path: target for path, target in found.items() if isinstance(target, str)}

    def _look_everywhere(self) -> None:
        pending = ["/"]
        while pending:
            path = pending.pop()
            names = self._on_disk(path)
            for name in names if isinstance(names, tuple) else ():
                inside = f"{path.rstrip('/')}/{name}"
                if self._state(inside) == DIRECTORY:
                    pending.append(inside)

    def _state(self, path: str) -> str:
        state = self._states.get(path)
        if state is None:
            state = self._states[path] = self._look(path)
        return state

    def _look(self, path: str) -> str:
        try:
            kind = os.lstat(self._root + path).st_mode
        except OSError as refusal:
            gone = unreadable(refusal).errno_name
            return super()._state(path) if gone == "ENOENT" else gone
        except ValueError:
            return "ENOENT"
        if stat.S_ISDIR(kind):
            return DIRECTORY
        if stat.S_ISLNK(kind):
            return LINK
        # Opening a device or a FIFO does something to it, or waits for ever.
        return FILE if stat.S_ISREG(kind) else self._errnos.get(path, "ENODATA")

    def _content(self, path: str) -> bytes | Unreadable:
        try:
            descriptor = os.open(
                self._root + path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            )
        except OSError as refusal:
            return unreadable(refusal)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return Unreadable("ENODATA")
            return read_whole(descriptor)
        except OSError as refusal:
            return unreadable(refusal)
        finally:
            os.close(descriptor)

    def _listing(self, path: str) -> tuple[str, ...] | Unreadable:
        if not self.complete:
            return super()._listing(path)
        return self._on_disk(path)

    def _on_disk(self, path: str) -> tuple[str, ...] | Unreadable:
        try:
            names = os.listdir(self._root + path)
        except OSError as refusal:
            return unreadable(refusal)
        return tuple(sorted(name for name in names if path != "/" or name != OWN))

    def _target(self, path: str) -> str | Unreadable:
        try:
            return os.readlink(self._root + path)
        except OSError as refusal:
            return unreadable(refusal)


def open_folder(path: str) -> RecordedFolder:
    """Open a directory that holds proc and sys, or one directory that does. RecordingError where it is no host."""
    root = os.path.realpath(path)
    top = top_of(path, _tops(path, root))
    root = f"{root.rstrip('/')}/{top}".rstrip("/")
    bare = RecordedFolder(root, RecordedTree(path, {}))
    about, answers = read_about(path, _own(bare, PLACE), _own(bare, NVML_PLACE))
    said = recorded(path, about, answers, files={}, links={}, errnos={}, directories={})
    return RecordedFolder(root, said)


def _tops(path: str, root: str) -> dict[str, tuple[str, ...]]:
    """Return the names under each name at the top."""
    tops: dict[str, tuple[str, ...]] = {}
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                inside = entry.is_dir(follow_symlinks=False) and len(tops) < MAX_TOPS
                tops[entry.name] = _names(entry.path) if inside else ()
    except OSError as refusal:
        raise RecordingError(
            f"{path} cannot be listed: {unreadable(refusal)}",
            remedy="look at its owner and its rights",
        ) from None
    return tops


def _names(path: str) -> tuple[str, ...]:
    try:
        return tuple(os.listdir(path))
    except OSError:
        return ()


def _own(tree: RecordedFolder, path: str) -> bytes | None:
    """Return a file of ours, None where there is none; one that is there and cannot be read is no recording."""
    content = tree.read_bytes(path)
    if isinstance(content, bytes):
        return content
    if content.errno_name in ("ENOENT", "ENOTDIR"):
        return None
    raise RecordingError(
        f"{path[1:]} of {tree.name} cannot be read: {content}",
        remedy="look at its owner and its rights",
    )
