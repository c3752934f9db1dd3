"""``wellfed explain RULE``: what a rule of the doctor asks, and why."""

from __future__ import annotations

import os
import sys

import click

from wellfed.report.rule_text import render
from wellfed.report.terminal import terminal_of
from wellfed.workflows.explain import explain, rules


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [rule for rule in rules() if rule.startswith(incomplete)]


@click.command("explain", short_help="What is a rule of `doctor`, what does it do to a GPU job?")
@click.argument("rule", required=False, shell_complete=_complete)
def COMMAND(rule: str | None) -> None:  # noqa: N802 - the name under which the command line finds it
    """Say what RULE asks, what it does to a GPU job, what it reads and where that is known from.

    Without RULE all rules are listed.
    """
    terminal = terminal_of(sys.stdout, os.environ)
    click.echo(
        render(
            [explain(rule)] if rule else [explain(each) for each in rules()],
            terminal,
            whole=bool(rule),
        ),
        nl=False,
        color=True,
    )
