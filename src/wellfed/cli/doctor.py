"""``wellfed doctor``: what on this host starves its GPUs."""

from __future__ import annotations

import json
import os
import sys

import click

from wellfed.model.finding import FAIL, UNKNOWN, VERDICTS, WARN, WORKLOADS, Diagnosis
from wellfed.report.terminal import terminal_of
from wellfed.workflows.doctor import examine

FAIL_ON = {FAIL: 1, WARN: 2, UNKNOWN: 3}
"""How many of the most urgent verdicts end with exit code 1."""
BAR_FROM_SECONDS = 0.5


@click.command("doctor", short_help="What on this host starves its GPUs?")
@click.option(
    "--for",
    "workload",
    type=click.Choice(WORKLOADS),
    default="training",
    show_default=True,
    help="What the GPUs are for.",
)
@click.option(
    "--host", type=click.Path(), metavar="FILE", help="Ask a recorded host instead of this one."
)
@click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also show what is fine, and what does not apply or cannot be told, and why.",
)
@click.option(
    "--pedantic",
    is_flag=True,
    help="Also show findings that nothing seen on this host gives weight to; they never change the exit code.",
)
@click.option(
    "--fail-on",
    type=click.Choice(tuple(FAIL_ON)),
    default=FAIL,
    show_default=True,
    help="From which verdict on the exit code is 1.",
)
@click.option(
    "--select",
    multiple=True,
    metavar="RULE",
    help="Only rules like this, as a glob: 'mem.*'. May be repeated.",
)
@click.option(
    "--ignore", multiple=True, metavar="RULE", help="No rules like this. May be repeated."
)
@click.option(
    "--sample",
    "sample_seconds",
    type=click.FloatRange(0, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Read counters twice, so far apart; 0 reads them once.",
)
def COMMAND(  # noqa: N802 - the name under which the command line finds it
    workload: str,
    host: str | None,
    form: str,
    verbose: bool,
    pedantic: bool,
    fail_on: str,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    sample_seconds: float,
) -> None:
    """Say what on this host starves its GPUs, with what was read where, and what to type.

    Nothing is changed. Exit code 0: clean; 1: findings at or above --fail-on; 2: the question or the host makes no sense.

    \b
        wellfed doctor
        wellfed doctor --for inference --verbose
        wellfed doctor --host host.tar.xz --format json
    """
    diagnosis = examine(
        host,
        workload=workload,
        select=select,
        ignore=ignore,
        sample_seconds=sample_seconds,
        wait=_wait,
    )
    click.echo(rendered(diagnosis, form, verbose, pedantic), nl=False, color=True)
    raise SystemExit(exit_code(diagnosis, fail_on))


def rendered(diagnosis: Diagnosis, form: str, verbose: bool, pedantic: bool = False) -> str:
    """Write the report in one of the formats."""
    if form == "json":
        from wellfed.report.doctor_json import as_json

        return json.dumps(as_json(diagnosis, verbose=verbose, pedantic=pedantic), indent=2) + "\n"
    from wellfed.report.doctor_text import render

    return render(
        diagnosis, terminal_of(sys.stdout, os.environ), verbose=verbose, pedantic=pedantic
    )


def exit_code(diagnosis: Diagnosis, fail_on: str) -> int:
    """Return 1 where there is a finding at or above the verdict, else 0."""
    return int(any(diagnosis.count(verdict) for verdict in VERDICTS[: FAIL_ON[fail_on]]))


def _wait(seconds: float) -> None:
    """Let the time between two readings pass; show a person that it does."""
    if seconds < BAR_FROM_SECONDS or not sys.stderr.isatty():
        import time

        time.sleep(seconds)
        return
    from wellfed.cli.capture import wait_with_bar

    wait_with_bar(seconds)
