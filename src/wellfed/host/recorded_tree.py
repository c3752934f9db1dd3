"""How is a recorded host read, without unpacking it?"""

from __future__ import annotations

import posixpath

from wellfed.model.tree import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellfed.model.tree import Reading

MAX_LINKS = 40
"""As many symbolic links as Linux follows in one path (include/linux/namei.h, MAXSYMLINKS)."""


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
        directories: Mapping[str, frozenset[str]] | None = None,
        answers: Mapping[str, Reading] | None = None,
        second: Mapping[str, bytes] | None = None,
        interval_seconds: float | None = None,
        assembled: bool = False,
    ) -> None:
        """Take what a recording holds; directories follow from the paths, and may be given besides."""
        self.name = name
        self.assembled = assembled
        self.interval_seconds = interval_seconds
        self.second = dict(second or {})
        """Second readings of counters, ``interval_seconds`` after the first."""
        self._files = dict(files)
        self._links = dict(links or {})
        self._errnos = dict(errnos or {})
        self._answers = dict(answers or {})
        self._names: dict[str, set[str]] = {"/": set()}
        for path in (*self._files, *self._links, *self._errnos):
            self._remember(path)
        for path, names in (directories or {}).items():
            self._remember(path)
            self._names.setdefault(path, set()).update(names)

    def read(self, path: str) -> str | Unreadable:
        """Return the text of a file without NUL bytes and trailing white space."""
        content = self.read_bytes(path)
        if isinstance(content, Unreadable):
            return content
        return content.replace(b"\0", b"").decode("utf-8", "replace").rstrip()

    def read_bytes(self, path: str) -> bytes | Unreadable:
        """Return the file exactly as it was recorded, or the errno that was recorded."""
        real = self._resolve(path)
        if isinstance(real, Unreadable):
            return real
        if real in self._files:
            return self._files[real]
        if real in self._errnos:
            return Unreadable(self._errnos[real])
        return Unreadable("EISDIR" if real in self._names else "ENOENT")

    def list(self, path: str) -> tuple[str, ...] | Unreadable:
        """Return the names in a directory, sorted."""
        real = self._resolve(path)
        if isinstance(real, Unreadable):
            return real
        if real in self._errnos:
            return Unreadable(self._errnos[real])
        if real in self._names:
            return tuple(sorted(self._names[real]))
        return Unreadable("ENOTDIR" if real in self._files else "ENOENT")

    def link(self, path: str) -> str | Unreadable:
        """Return where a path really is inside the recording."""
        real = self._resolve(path)
        if isinstance(real, Unreadable):
            return real
        known = real in self._files or real in self._names or real in self._errnos
        return real if known else Unreadable("ENOENT")

    def answer(self, question: str) -> str | Unreadable:
        """Return the recorded answer; a question that was not asked then cannot be answered now."""
        return self._answers.get(question, Unreadable("ENODATA"))

    def _remember(self, path: str) -> None:
        while path != "/":
            parent, name = posixpath.split(path)
            names = self._names.setdefault(parent, set())
            if name in names:
                return
            names.add(name)
            path = parent

    def _resolve(self, path: str) -> str | Unreadable:
        """Follow the links in a path, never out of the recording."""
        pending = path.split("/")[::-1]
        real = "/"
        followed = 0
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                real = posixpath.dirname(real)
                continue
            step = posixpath.join(real, name)
            target = self._links.get(step)
            if target is None:
                real = step
                continue
            followed += 1
            if followed > MAX_LINKS:
                return Unreadable("ELOOP")
            if target.startswith("/"):
                real = "/"
            pending.extend(target.split("/")[::-1])
        return real
