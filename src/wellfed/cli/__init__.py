"""The command line: parse, call one workflow, hand the result to a report, exit code."""

from __future__ import annotations

import errno
import os
import sys

from wellfed.cli.streams import fill_standard_streams, ready_stdout, tell_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED, PIPE_CLOSED = 130, 141
"""128 plus SIGINT and plus SIGPIPE, as a shell reports them."""

OUTPUT_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""A disk, a quota, a size limit, a terminal that hung up."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code.

    ``run`` is paid for by every rank of every job, so its plain forms are read without a library; help, completion,
    errors and every other command go through click.
    """
    given = sys.argv[1:] if words is None else list(words)
    fill_standard_streams()
    try:
        if given[:1] == ["run"]:
            from wellfed.cli.run_options import parse

            understood = parse(given[1:])
            if understood is not None:
                from wellfed.cli.run import run

                return run(understood)
        return _main_by_click(given)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except OSError as refusal:
        if refusal.errno not in OUTPUT_IS_FULL:
            raise
        return _end_unwritten(refusal)


def _main_by_click(words: list[str]) -> int:
    from wellfed.cli.commands import GROUP

    ready_stdout()
    try:
        GROUP.main(args=words, prog_name="wellfed")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


def _end_unwritten(refusal: OSError) -> int:
    from wellfed.model.errors import UsageError

    _drop_output()
    tell_error(
        UsageError(
            f"the output cannot be written: {os.strerror(refusal.errno or 0).lower()}",
            remedy="write it somewhere else, or make room there",
        )
    )
    return 2


def _drop_output() -> None:
    """Let nothing more be written when Python ends: nobody reads it, or there is no room."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
