"""Where do a rank's standard streams lead?"""

from __future__ import annotations

import os

from wellfed.host.feed import Feed
from wellfed.host.lines import Sink, Stream
from wellfed.model.errors import LaunchError
from wellfed.model.value import Value


class Wires(Value):
    """Where a rank's standard streams lead."""

    ends: tuple[int, int, int]
    streams: tuple[Stream, ...] = ()
    opened: tuple[int, ...] = ()
    """Ends that the rank has and we do not need once it runs."""
    feed: Feed | None = None

    def close_here(self) -> None:
        """Close our copies of the rank's ends, so that each pipe ends with the rank."""
        for descriptor in self.opened:
            os.close(descriptor)


OURS = Wires((0, 1, 2))
"""Of one process: our own."""


def our_sinks() -> tuple[Sink, Sink]:
    """Return our output and error; one sink where both are the same file, so that lines do not tear."""
    out, error = os.fstat(1), os.fstat(2)
    first = Sink(1)
    same = (out.st_dev, out.st_ino) == (error.st_dev, error.st_ino)
    return first, first if same else Sink(2)


def to_sinks(sinks: tuple[Sink, Sink], number: int, *, reads: bool) -> Wires:
    """Mark each line of a rank with its number, on our own output and error."""
    entry, opened, feed = _input(reads=reads)
    prefix = b"[%d] " % number
    out_reader, out_writer = os.pipe()
    error_reader, error_writer = os.pipe()
    streams = (Stream(out_reader, sinks[0], prefix), Stream(error_reader, sinks[1], prefix))
    writers = (out_writer, error_writer)
    return Wires((entry, *writers), streams, (*opened, *writers), feed)


def to_files(folder: str, number: int, *, reads: bool) -> Wires:
    """Let a rank write into files of its own; what an earlier job wrote there stays in front."""
    try:
        os.makedirs(folder, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        out = os.open(f"{folder}/rank-{number}.out", flags, 0o644)
        error = os.open(f"{folder}/rank-{number}.err", flags, 0o644)
    except OSError as refusal:
        raise LaunchError(
            f"--log-dir {folder}: {os.strerror(refusal.errno or 0).lower()}",
            remedy="name a folder that can be written",
        ) from None
    entry, opened, feed = _input(reads=reads)
    return Wires((entry, out, error), (), (*opened, out, error), feed)


def _input(*, reads: bool) -> tuple[int, tuple[int, ...], Feed | None]:
    """Give the first rank our input, of a terminal a copy, and the others nothing: end, what was opened, feed."""
    if not reads:
        silence = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return silence, (silence,), None
    if not os.isatty(0):
        return 0, (), None
    reader, writer = os.pipe()
    return reader, (reader,), Feed(0, writer)
