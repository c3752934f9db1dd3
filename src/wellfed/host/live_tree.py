"""How is the running host read?"""

from __future__ import annotations

import errno
import os

from wellfed.model.tree import Unreadable

READ_LIMIT_BYTES = 16 << 20
"""No file of /proc or /sys that a question needs is larger; /proc/kcore and friends must not fill memory."""


class LiveTree:
    """This host. Reads are plain system calls, because a 256-CPU topology is thousands of them."""

    name = "this host"
    live = True
    assembled = False

    def read(self, path: str) -> str | Unreadable:
        """Return the text of a file without NUL bytes and trailing white space."""
        content = self.read_bytes(path)
        if isinstance(content, Unreadable):
            return content
        return content.replace(b"\0", b"").decode("utf-8", "replace").rstrip()

    def read_bytes(self, path: str) -> bytes | Unreadable:
        """Return the file exactly as it stands, up to 16 MiB."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as refusal:
            return unreadable(refusal)
        try:
            content = os.read(descriptor, 65536)
            chunk = content
            while chunk and len(content) < READ_LIMIT_BYTES:
                chunk = os.read(descriptor, 65536)
                content += chunk
            return content
        except OSError as refusal:
            return unreadable(refusal)
        finally:
            os.close(descriptor)

    def list(self, path: str) -> tuple[str, ...] | Unreadable:
        """Return the names in a directory, sorted."""
        try:
            return tuple(sorted(os.listdir(path)))
        except OSError as refusal:
            return unreadable(refusal)

    def link(self, path: str) -> str | Unreadable:
        """Return where a path really is."""
        try:
            os.stat(path)
        except OSError as refusal:
            return unreadable(refusal)
        return os.path.realpath(path)

    def answer(self, question: str) -> str | Unreadable:
        """Ask the probe of that name."""
        from wellfed.host import probes

        return probes.answer(question)


def unreadable(refusal: OSError) -> Unreadable:
    """Turn an error of the kernel into a value."""
    number = refusal.errno or 0
    return Unreadable(errno.errorcode.get(number, f"errno {number}"))
