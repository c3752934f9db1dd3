"""How do many ranks write to one terminal without tearing each other's lines?"""

from __future__ import annotations

import os

LONGEST_PARTIAL_BYTES = 64 << 10
"""A line that is longer is passed on before it ends: memory stays bounded, whatever a rank writes."""

FULL_BYTES = 256 << 10
"""A sink that holds more stops its streams: a slow reader slows the ranks, as it would without us."""

ATOMIC_BYTES = 4096
"""PIPE_BUF: where poll says that a pipe takes anything, it takes so much without waiting (pipe(7))."""

READ_BYTES = 64 << 10
LINE_FEED = 10


class Sink:
    """Our own standard output or error, which all ranks share. Written only when it can take more."""

    def __init__(self, descriptor: int) -> None:
        """Take a descriptor; it is never made non-blocking, because others share it."""
        self.descriptor = descriptor
        self.waiting = bytearray()
        self.broken = False
        """Whoever read it is gone."""
        self._line_of: Stream | None = None
        """Whose line is not ended yet."""

    @property
    def full(self) -> bool:
        """Whether streams have to wait."""
        return len(self.waiting) > FULL_BYTES

    def put(self, stream: Stream, content: bytes) -> None:
        """Take bytes of one stream; each of its lines begins with its prefix. Another's open line is ended first."""
        if not content or self.broken:
            return
        if self._line_of is not stream:
            self.end_line()
            self.waiting += stream.prefix
        self.waiting += _prefixed(content, stream.prefix)
        self._line_of = None if content[-1] == LINE_FEED else stream

    def end_line(self, stream: Stream | None = None) -> None:
        """End an open line: of this stream, or of any."""
        if self._line_of is not None and stream in (None, self._line_of):
            self.waiting += b"\n"
            self._line_of = None

    def write_some(self) -> None:
        """Write as much as surely does not wait; a reader that is gone breaks the sink."""
        try:
            written = os.write(self.descriptor, self.waiting[:ATOMIC_BYTES])
        except BlockingIOError:
            return
        except OSError:
            # EPIPE: its reader ended; EIO: its terminal hung up; ENOSPC. The ranks will notice when they write.
            self.broken = True
            self.waiting.clear()
            return
        del self.waiting[:written]


class Stream:
    """What one rank writes on its standard output or error."""

    def __init__(self, descriptor: int, sink: Sink, prefix: bytes) -> None:
        """Take the reading end of its pipe, where its lines go, and what each begins with."""
        self.descriptor = descriptor
        self.sink = sink
        self.prefix = prefix
        self.ended = False
        self._partial = bytearray()

    @property
    def pending(self) -> bool:
        """Whether it wrote a part of a line that is still held back."""
        return bool(self._partial)

    def read_some(self) -> bool:
        """Pass on what can be read now, whole lines only; say whether there was anything. At its end it is closed."""
        chunk = os.read(self.descriptor, READ_BYTES)
        if not chunk:
            self.close()
            return False
        self._partial += chunk
        if self._partial[-1] == LINE_FEED:
            self.flush()
            return True
        # A carriage return ends a progress bar's line, unless a line feed follows.
        cut = max(self._partial.rfind(b"\n"), self._partial.rfind(b"\r", 0, -1)) + 1
        if cut:
            self.sink.put(self, bytes(self._partial[:cut]))
            del self._partial[:cut]
        if len(self._partial) > LONGEST_PARTIAL_BYTES:
            self.flush()
        return True

    def flush(self) -> None:
        """Pass on what is held back, a part of a line too: a prompt, dots."""
        if not self._partial:
            return
        self.sink.put(self, bytes(self._partial))
        self._partial.clear()

    def close(self) -> None:
        """Pass on the rest and close the pipe: a rank that writes on gets SIGPIPE."""
        if not self.ended:
            self.flush()
            self.sink.end_line(self)
            os.close(self.descriptor)
            self.ended = True


def _prefixed(content: bytes, prefix: bytes) -> bytes:
    """Put the prefix after every line end, and after every carriage return that ends no line; not after the last line."""
    text = content.replace(b"\r", b"\r" + prefix).replace(b"\r" + prefix + b"\n", b"\r\n")
    text = text.replace(b"\n", b"\n" + prefix)
    return text[: len(text) - len(prefix)] if content[-1] == LINE_FEED else text
