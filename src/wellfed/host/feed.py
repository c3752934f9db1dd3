"""How does what a person types reach the first of many ranks?"""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ATOMIC_BYTES = 4096
"""PIPE_BUF: where poll says that a pipe takes anything, it takes so much without waiting (pipe(7))."""


class Feed:
    """Copies our terminal to a pipe. Ranks have process groups of their own, and the terminal stops a group that reads
    from it in the background; files and pipes are handed over as they are, and need no copy.
    """

    def __init__(self, source: int, sink: int) -> None:
        """Take the terminal and the writing end of the pipe."""
        self._source = source
        self._sink = sink
        self._waiting = b""
        self._ended = False
        self._paused = False

    def register(self, poll: select.poll) -> None:
        """Name what to wait for."""
        if self._waiting:
            poll.register(self._sink, select.POLLOUT)
        elif not self._ended and not self._paused:
            poll.register(self._source, select.POLLIN)

    def pass_on(self, ready: Mapping[int, int]) -> None:
        """Read and write what does not wait."""
        if self._waiting and self._sink in ready:
            self._write()
        elif self._source in ready and not self._ended:
            self._read()

    def resume(self) -> None:
        """Look again, because we may be in the foreground now."""
        self._paused = False

    def close(self) -> None:
        """End the rank's input."""
        if not self._ended:
            os.close(self._sink)
            self._ended, self._waiting = True, b""

    def _read(self) -> None:
        if not _in_foreground(self._source):
            self._paused = True
            return
        try:
            self._waiting = os.read(self._source, ATOMIC_BYTES)
        except OSError:
            # EIO: the terminal hung up.
            self._waiting = b""
        if not self._waiting:
            self.close()

    def _write(self) -> None:
        try:
            written = os.write(self._sink, self._waiting)
        except BrokenPipeError:
            self.close()
            return
        self._waiting = self._waiting[written:]


def _in_foreground(terminal: int) -> bool:
    """Say whether reading would not stop us."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False


def is_interactive() -> bool:
    """Say whether this process runs in the foreground of a terminal, which then signals all of its group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        # No controlling terminal.
        return False
    try:
        return _in_foreground(terminal)
    finally:
        os.close(terminal)
