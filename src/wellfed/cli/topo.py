"""``wellfed topo``: a map of this host."""

from __future__ import annotations

import json
import os
import sys

import click

from wellfed.model.errors import UsageError
from wellfed.model.placement import POLICIES
from wellfed.report.terminal import Terminal, terminal_of
from wellfed.workflows.topo import Chart, chart

FORMATS = ("text", "svg", "json")


@click.command("topo", short_help="Where are CPUs, memory, GPUs, NICs and disks?")
@click.option(
    "--host",
    type=click.Path(),
    metavar="FILE",
    help="A recorded host, an hwloc or NCCL XML, or the text of `nvidia-smi topo -m`.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Default: what the ending of the -o file says, else text.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write there instead of to stdout.",
)
@click.option(
    "--ranks",
    "num_ranks",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Also show where N ranks would go.",
)
@click.option("--per-gpu", is_flag=True, help="Also show where one rank for each GPU would go.")
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="node",
    show_default=True,
    help="How those ranks share CPUs.",
)
def COMMAND(  # noqa: N802 - the name under which the command line finds it
    host: str | None,
    form: str | None,
    output: str | None,
    num_ranks: int | None,
    per_gpu: bool,
    policy: str,
) -> None:
    """Show packages, NUMA nodes, caches, PCIe switches, GPUs, NICs and disks, and what this process may use.

    \b
        wellfed topo
        wellfed topo -o host.svg
        wellfed topo --host host.tar.xz --per-gpu --policy exclusive
    """
    found = chart(host, num_ranks=num_ranks, per_gpu=per_gpu, policy=policy)
    text = rendered(
        found,
        form or _by_ending(output),
        terminal_of(sys.stdout, os.environ) if output is None else Terminal(),
    )
    if output is None:
        # An SVG says by itself that it is UTF-8, whatever the terminal can show.
        click.echo(text.encode() if text.startswith("<svg") else text, nl=False, color=True)
    else:
        _write(output, text)


def rendered(found: Chart, form: str, terminal: Terminal) -> str:
    """Write a map in one of the formats."""
    if form == "json":
        from wellfed.report.topology_json import as_json

        return json.dumps(as_json(found.machine, found.placement), indent=2) + "\n"
    if form == "svg":
        from wellfed.report.topology_svg import render as render_svg

        return render_svg(found.machine, found.placement)
    from wellfed.report.topology_text import render

    return render(found.machine, terminal, found.placement)


def _by_ending(output: str | None) -> str:
    """Choose by the ending of a file's name."""
    ending = (output or "").rpartition(".")[2].lower()
    return ending if ending in FORMATS else "text"


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as refusal:
        raise UsageError(
            f"{path} cannot be written: {refusal.strerror}", remedy="choose another file with -o"
        ) from None
