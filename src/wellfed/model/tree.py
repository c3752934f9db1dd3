"""How is a host asked: files, links and answers, or the errno that stood there instead?"""

from __future__ import annotations

import errno

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, Protocol, TypeAlias
else:
    Protocol = object


class Unreadable(Value):
    """What the kernel said instead of a value. False in a condition, so that ``read(new) or read(old)`` works."""

    errno_name: str
    """``ENOENT``, ``EACCES``, ``EPERM``, ``EIO`` …; ``ENODATA`` where a recording did not look."""

    def __bool__(self) -> Literal[False]:
        """Be false: there is no value."""
        return False

    def __str__(self) -> str:
        """Say it in words an operator knows."""
        return ERRNO_WORDS.get(self.errno_name, self.errno_name)


def unreadable(refusal: OSError) -> Unreadable:
    """Turn an error of the kernel into a value."""
    number = refusal.errno or 0
    return Unreadable(errno.errorcode.get(number, f"errno {number}"))


ERRNO_WORDS = {
    "ENOENT": "not there",
    "EACCES": "permission denied",
    "EPERM": "not permitted",
    "ENODATA": "not recorded",
    "EIO": "input/output error",
    "ENOTDIR": "not there",
    "ENOSYS": "not in this kernel",
    "ENODEV": "no such device",
    "EINVAL": "refused by the kernel",
}

if TYPE_CHECKING:
    Reading: TypeAlias = str | Unreadable


class HostTree(Protocol):
    """A host, live or recorded. Paths are absolute, as on the host itself."""

    @property
    def name(self) -> str:
        """``this host`` or the path of the recording: for sentences."""

    @property
    def live(self) -> bool:
        """Whether this is the running host, so that its processes and system calls are ours to ask."""

    @property
    def assembled(self) -> bool:
        """Whether a person put this host together, rather than a machine recording it."""

    def read(self, path: str) -> str | Unreadable:
        """Return the text of a file without NUL bytes and trailing white space; undecodable bytes become U+FFFD."""

    def read_bytes(self, path: str) -> bytes | Unreadable:
        """Return the file exactly as it stands."""

    def list(self, path: str) -> tuple[str, ...] | Unreadable:
        """Return the names in a directory, sorted."""

    def link(self, path: str) -> str | Unreadable:
        """Return the absolute path a symbolic link leads to, or the path itself where it is no link (realpath)."""

    def answer(self, question: str) -> str | Unreadable:
        """Return the answer to a question that no file answers, such as ``sched_getaffinity`` or ``statvfs /dev/shm``."""


def read_int(tree: HostTree, path: str) -> int | None:
    """Return a file that holds one decimal integer; None where it is missing or says anything else."""
    text = tree.read(path)
    if not text:
        return None
    digits = text.strip().removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
