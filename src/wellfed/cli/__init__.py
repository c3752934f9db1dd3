"""The command line: parse, call one workflow, hand the result to a report, exit code."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED, PIPE_CLOSED = 130, 141
"""128 plus SIGINT and plus SIGPIPE, as a shell reports them."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code.

    ``run`` is paid for by every rank of every job, so its plain forms are read without a library; help, completion,
    errors and every other command go through click.
    """
    given = sys.argv[1:] if words is None else list(words)
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
        return _leave_closed_pipe()


def _main_by_click(words: list[str]) -> int:
    from wellfed.cli.commands import GROUP

    try:
        GROUP.main(args=words, prog_name="wellfed")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


def _leave_closed_pipe() -> int:
    """Whoever read our output has seen enough: nothing more may be written when Python ends."""
    import os

    os.dup2(os.open("/dev/null", os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED
