"""How is a recorded host read, without unpacking it?"""

from __future__ import annotations

import posixpath

from wellfed.host.live_tree import text_of
from wellfed.model.tree import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from wellfed.model.tree import Reading

MAX_LINKS = 40
"""As many symbolic links as Linux follows in one path (include/linux/namei.h, MAXSYMLINKS)."""

FILE, DIRECTORY, LINK = "file", "directory", "link"

NOWHERE = ("ENOENT", "ENOTDIR", "ELOOP", "EXDEV", "ENAMETOOLONG")
"""Errnos of a path that leads to nothing; with any other one there is something, which could not be read."""


class RecordedTree:
    """A host in memory: files by absolute path, links by absolute path, and the errno where there was no value."""

    live = False

    def __init__(
        self,
        name: str,
        files: Mapping[str, bytes],
        *,
        links: Mapping[str, str] | None = None,
        errnos: Mapping[str, str] | None = None,
        directories: Mapping[str, Collection[str]] | None = None,
        answers: Mapping[str, Reading] | None = None,
        second: Mapping[str, bytes] | None = None,
        interval_seconds: float | None = None,
        assembled: bool = False,
        complete: bool = True,
    ) -> None:
        """Take what a recording holds; directories follow from the paths, and may be given besides.

        ``complete`` says that what is not in the recording was not on the host: ``ENOENT``. Where only what was
        asked was recorded, everything else is ``ENODATA``, and ``directories`` are those that were listed.
        """
        self.name = name
        self.assembled = assembled
        self.complete = complete
        self.interval_seconds = interval_seconds
        self.second = dict(second or {})
        """Second readings of counters, ``interval_seconds`` after the first."""
        self._files = dict(files)
        self._links = dict(links or {})
        self._errnos = dict(errnos or {})
        self._answers = dict(answers or {})
        self._listed = frozenset(directories or ())
        self._names: dict[str, set[str]] = {"/": set()}
        for path, names in (directories or {}).items():
            self._names.setdefault(path, set()).update(names)
        for path in (*(directories or ()), *self._files, *self._links):
            self._remember(path)
        for path, errno_name in self._errnos.items():
            if errno_name not in NOWHERE:
                self._remember(path)
        self._folders: dict[str, str] = {}

    @property
    def files(self) -> Mapping[str, bytes]:
        """Every file that holds a value, by its real path."""
        return self._files

    @property
    def links(self) -> Mapping[str, str]:
        """Every symbolic link and its target as it is written."""
        return self._links

    @property
    def errnos(self) -> Mapping[str, str]:
        """What the kernel said where there was no value."""
        return self._errnos

    @property
    def answers(self) -> Mapping[str, Reading]:
        """Every question that was asked."""
        return self._answers

    @property
    def directories(self) -> Mapping[str, tuple[str, ...]]:
        """Every directory whose names are all known: the listed ones, in a complete recording each."""
        known = self._names if self.complete else self._listed
        return {path: tuple(sorted(self._names[path])) for path in known}

    def read(self, path: str) -> str | Unreadable:
        """Return the text of a file without NUL bytes and trailing white space."""
        content = self.read_bytes(path)
        return content if isinstance(content, Unreadable) else text_of(content)

    def read_bytes(self, path: str) -> bytes | Unreadable:
        """Return the file exactly as it was recorded, or the errno that was recorded."""
        real = self._resolve(path)
        if isinstance(real, Unreadable):
            return real
        state = self._state(real)
        if state == FILE:
            return self._content(real)
        return Unreadable("EISDIR" if state == DIRECTORY else state)

    def list(self, path: str) -> tuple[str, ...] | Unreadable:
        """Return the names in a directory, sorted."""
        real = self._resolve(path)
        if isinstance(real, Unreadable):
            return real
        if real in self._errnos and real not in self._listed:
            # A directory that was read like a file, and never listed.
            name = self._errnos[real]
            return Unreadable("ENODATA" if name == "EISDIR" else name)
        state = self._state(real)
        if state == DIRECTORY:
            return self._listing(real)
        return Unreadable("ENOTDIR" if state == FILE else state)

    def link(self, path: str) -> str | Unreadable:
        """Return where a path really is inside the recording."""
        real = self._resolve(path)
        if isinstance(real, Unreadable):
            return real
        state = self._state(real)
        there = state in (FILE, DIRECTORY) or self._errnos.get(real, "ENOENT") not in NOWHERE
        return real if there else Unreadable(state)

    def answer(self, question: str) -> str | Unreadable:
        """Return the recorded answer; a question that was not asked then cannot be answered now."""
        return self._answers.get(question, Unreadable("ENODATA"))

    def _state(self, path: str) -> str:
        """Say what stands at a real path: a file, a directory, a link, or an errno."""
        if path in self._links:
            return LINK
        if path in self._names:
            return DIRECTORY
        if path in self._files:
            return FILE
        return self._errnos.get(path) or self._absent(path)

    def _is_passable(self, state: str) -> bool:
        """Say whether a path may go through what stands there.

        In a recording of what was asked, an errno tells how reading a place went, not whether there is a way through.
        """
        if state == DIRECTORY:
            return True
        return not self.complete and state != FILE and state not in NOWHERE

    def _absent(self, path: str) -> str:
        """Say whether a thing was not there, or nobody looked."""
        parent, _, name = path.rpartition("/")
        parent = parent or "/"
        if name in self._names.get(parent, ()):
            return "ENODATA"
        return "ENOENT" if self.complete or parent in self._listed else "ENODATA"

    def _content(self, path: str) -> bytes | Unreadable:
        return self._files[path]

    def _listing(self, path: str) -> tuple[str, ...] | Unreadable:
        if not self.complete and path not in self._listed:
            return Unreadable("ENODATA")
        return tuple(sorted(self._names[path]))

    def _target(self, path: str) -> str | Unreadable:
        return self._links[path]

    def _remember(self, path: str) -> None:
        while path != "/":
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            names = self._names.get(parent)
            if names is None:
                names = self._names[parent] = set()
            elif name in names:
                return
            names.add(name)
            path = parent

    def _resolve(self, path: str) -> str | Unreadable:
        """Follow the links in a path, never out of the recording."""
        if path in self._files:
            return path
        parent, _, name = path.rpartition("/")
        folder = self._folders.get(parent)
        if folder is None:
            found = self._walk(parent or "/")
            if isinstance(found, str) and self._state(found) == DIRECTORY:
                folder = self._folders[parent] = found.rstrip("/")
        if folder is not None and name not in ("", ".", ".."):
            step = f"{folder}/{name}"
            if self._state(step) != LINK:
                return step
        return self._walk(path)

    def _walk(self, path: str) -> str | Unreadable:
        """Follow a path one name at a time, as the kernel does (Documentation/filesystems/path-lookup.rst)."""
        pending = path.split("/")[::-1]
        real, followed = "/", 0
        while pending:
            name = pending.pop()
            state = self._state(real)
            if not self._is_passable(state):
                return Unreadable("ENOTDIR" if state == FILE else state)
            if name in ("", "."):
                continue
            if name == "..":
                if real == "/" and followed:
                    return Unreadable("EXDEV")
                real = posixpath.dirname(real)
                continue
            step = posixpath.join(real, name)
            if self._state(step) != LINK:
                real = step
                continue
            target = self._target(step)
            if isinstance(target, Unreadable):
                return target
            followed += 1
            if followed > MAX_LINKS:
                return Unreadable("ELOOP")
            if target.startswith("/"):
                real = "/"
            pending.extend(target.split("/")[::-1])
        return real
