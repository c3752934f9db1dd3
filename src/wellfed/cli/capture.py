"""``wellfed capture FILE``: record this host."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import contextmanager

import click

from wellfed.cli.streams import readable
from wellfed.model.units import format_bytes
from wellfed.workflows.capture import Captured, capture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

BAR_FROM_SECONDS = 1.0
"""Waits shorter than this need no bar."""
TICK_SECONDS = 0.1


@click.command("capture", short_help="Record this host into one file, to be asked elsewhere.")
@click.argument("file", type=click.Path())
@click.option(
    "--sample",
    "sample_seconds",
    type=float,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Read counters twice, so far apart; 0 reads them once.",
)
@click.option(
    "--path",
    "paths",
    type=click.Path(),
    multiple=True,
    metavar="DIR",
    help="Also record what the file system under DIR can do. May be repeated.",
)
@click.option(
    "--identify",
    is_flag=True,
    help="Keep host names, addresses, UUIDs, serial numbers and paths; without it they get pseudonyms.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def COMMAND(  # noqa: N802 - the name under which the command line finds it
    file: str, sample_seconds: float, paths: tuple[str, ...], identify: bool, force: bool
) -> None:
    """Record this host into FILE, so that every question can be asked elsewhere, later, without it.

    The suffix of FILE chooses the compression: .tar.xz, .tar.gz, .tar.zst or .tar.bz2. Everything that
    `wellfed doctor`, `wellfed topo` and `wellfed run --explain` look at is in it, and nothing else:

    \b
        wellfed capture host.tar.xz
        wellfed doctor --host host.tar.xz
    """
    with orderly_end():
        captured = capture(
            file,
            sample_seconds=sample_seconds,
            identify=identify,
            paths=paths,
            force=force,
            wait=wait_with_bar,
        )
    for line in lines(captured):
        click.echo(readable(line), err=True)


@contextmanager
def orderly_end() -> Iterator[None]:
    """Let SIGTERM and SIGHUP, too, leave no half of a file: they end the command as Ctrl-C does, by an exception."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_with_bar(seconds: float) -> None:
    """Sleep; on a terminal, where it takes longer than a second, show for how long."""
    if seconds <= BAR_FROM_SECONDS or not sys.stderr.isatty():
        time.sleep(seconds)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading counters again"), BarColumn(), TimeRemainingColumn())
    end = time.monotonic() + seconds
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=seconds)
        left = seconds
        while left > 0:
            time.sleep(min(TICK_SECONDS, left))
            left = end - time.monotonic()
            bar.update(task, completed=seconds - left)


def lines(captured: Captured) -> list[str]:
    """Say what was written, what is missing from it, and what was hidden."""
    interval = captured.interval_seconds
    sampled = f", counters {interval:.1f} s apart" if interval is not None else ""
    said = [
        f"{captured.path}: {format_bytes(captured.size_bytes)}, {captured.num_files} files,"
        f" {captured.num_answers} answers, {captured.num_errnos} places without a value{sampled}"
    ]
    said += captured.notes
    if captured.hidden is None:
        said.append("nothing is hidden: host names, addresses, UUIDs and serial numbers are in it")
    elif captured.hidden:
        counted = ", ".join(f"{count} {_plural(what, count)}" for what, count in captured.hidden)
        said.append(f"hidden behind pseudonyms: {counted}")
    else:
        said.append("hidden: nothing was found that names this host or anybody on it")
    return said


def _plural(what: str, count: int) -> str:
    if count == 1:
        return what
    head, of, rest = what.partition(" of ")
    return f"{head}{'es' if head.endswith('s') else 's'}{of}{rest}"
