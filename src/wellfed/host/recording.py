"""How is exactly what was asked of a host remembered?"""

from __future__ import annotations

import os
import posixpath

from wellfed.host.live_tree import text_of
from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.tree import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wellfed.model.tree import HostTree, Reading

OWN_PROCESS = "/proc/self"
"""A link to a number on a live host; in a recording it is the process that was recorded, and so a directory."""


class RecordingTree:
    """A host that remembers every file, directory, link and answer it was asked for, and what the kernel said.

    It says that it is not live: it is asked as its recording will be, so that the recording lacks nothing.
    """

    live = False

    def __init__(self, tree: HostTree, answers: Mapping[str, Reading] | None = None) -> None:
        """Ask ``tree``; what ``answers`` holds is known already (``nvml``, which no host answers itself)."""
        self.name = tree.name
        self.assembled = tree.assembled
        self._tree = tree
        self._contents: dict[str, bytes | Unreadable] = {}
        self._names: dict[str, tuple[str, ...] | Unreadable] = {}
        self._real: dict[str, str | Unreadable] = {}
        self._answers: dict[str, Reading] = dict(answers or {})
        own = tree.link(OWN_PROCESS)
        self._own = own if isinstance(own, str) else OWN_PROCESS

    def read(self, path: str) -> str | Unreadable:
        """Return the text of a file without NUL bytes and trailing white space."""
        content = self.read_bytes(path)
        return content if isinstance(content, Unreadable) else text_of(content)

    def read_bytes(self, path: str) -> bytes | Unreadable:
        """Return the file exactly as it stood when it was first asked for."""
        if path not in self._contents:
            self._contents[path] = self._tree.read_bytes(path)
        return self._contents[path]

    def list(self, path: str) -> tuple[str, ...] | Unreadable:
        """Return the names in a directory, sorted."""
        if path not in self._names:
            self._names[path] = self._tree.list(path)
        return self._names[path]

    def link(self, path: str) -> str | Unreadable:
        """Return where a path really is."""
        if path not in self._real:
            real = self._tree.link(path)
            if isinstance(real, str) and (real + "/").startswith(self._own + "/"):
                real = OWN_PROCESS + real[len(self._own) :]
            self._real[path] = real
        return self._real[path]

    def answer(self, question: str) -> str | Unreadable:
        """Return the answer to a question."""
        if question not in self._answers:
            self._answers[question] = self._tree.answer(question)
        return self._answers[question]

    def recording(
        self,
        name: str,
        *,
        second: Mapping[str, bytes] | None = None,
        interval_seconds: float | None = None,
    ) -> RecordedTree:
        """Give a tree that answers whatever was asked as it was answered, and ``ENODATA`` to all else."""
        places = _Places(self)
        files: dict[str, bytes] = {}
        errnos: dict[str, str] = {}
        asked_links = tuple(self._real)
        listed = {places.of(path): names for path, names in self._names.items()}
        for path in asked_links:
            real = self._real[path]
            errnos[places.of(path)] = "ENODATA" if isinstance(real, str) else real.errno_name
        for place, names in listed.items():
            if isinstance(names, Unreadable) and names.errno_name != "ENOTDIR":
                errnos[place] = names.errno_name
        for path, content in self._contents.items():
            place = places.of(path)
            if isinstance(content, bytes):
                files[place] = content
            elif content.errno_name != "EISDIR" or place not in errnos:
                errnos[place] = content.errno_name
        directories = {place: names for place, names in listed.items() if isinstance(names, tuple)}
        for place in (*files, *directories):
            errnos.pop(place, None)
        above = {
            parent for place in (*files, *directories, *places.links) for parent in _above(place)
        }
        return RecordedTree(
            name,
            files,
            links=places.links,
            errnos={
                p: e for p, e in errnos.items() if p not in above or e not in ("ENODATA", "EISDIR")
            },
            directories=directories,
            answers=self._answers,
            second={places.of(path): content for path, content in (second or {}).items()},
            interval_seconds=interval_seconds,
            assembled=self.assembled,
            complete=False,
        )


class _Places:
    """Where paths really are, with the links on the way there."""

    def __init__(self, tree: RecordingTree) -> None:
        self._tree = tree
        self._known: dict[str, str] = {"/": "/"}
        self.links: dict[str, str] = {}

    def of(self, path: str) -> str:
        """Return the real place of a path, whether or not something is there."""
        known = self._known.get(path)
        if known is not None:
            return known
        plain = "/" + posixpath.normpath(path).lstrip("/")
        if plain != path and ".." not in path.split("/"):
            place = self.of(plain)
        else:
            place = self._follow(path)
        self._known[path] = place
        return place

    def _follow(self, path: str) -> str:
        parent, _, name = path.rpartition("/")
        folder = self.of(parent or "/").rstrip("/")
        if name in ("", ".", ".."):
            return posixpath.normpath(f"{folder}/{name}")
        place = f"{folder}/{name}"
        real = self._tree.link(path)
        if isinstance(real, Unreadable) or real == place or path == OWN_PROCESS:
            return place
        self.links[place] = posixpath.relpath(real, folder or "/")
        # A link may lead through further links; each becomes a place of its own.
        return self.of(real) if real != path else real


def _above(place: str) -> Iterable[str]:
    while place != "/":
        place = os.path.dirname(place)
        yield place
