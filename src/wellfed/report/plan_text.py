"""How does a plan look in a terminal?"""

from __future__ import annotations

from wellfed.report.plan_line import LEFT_ALONE, memory_text
from wellfed.report.terminal import NARROWEST, Span, Terminal, flow, paint, spans

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wellfed.model.environment import EnvironmentChange
    from wellfed.model.job import Job
    from wellfed.model.machine import Gpu, Machine
    from wellfed.model.placement import Placement, RankPlacement

GAP = 2
WIDE = 110
"""Columns from which models and network cards are shown, too."""


def render(
    machine: Machine,
    placement: Placement,
    terminal: Terminal,
    *,
    job: Job | None = None,
    changes: Sequence[Sequence[EnvironmentChange]] = (),
    notes: Sequence[str] = (),
    verbose: bool = False,
) -> str:
    """Write a whole plan: a table of ranks, the variables that change, and notes; with ``verbose`` the evidence.

    ``changes`` are those of each rank, in the order of the placement.
    """
    lines = [*flow(_heading(machine, placement, job), terminal), ""]
    lines += _table(machine, placement, terminal)
    lines += _roles(placement, terminal)
    said = [*notes, *placement.notes]
    for rank in placement.ranks:
        said += rank.notes
    lines += _section("notes", [spans(note) for note in dict.fromkeys(said)], terminal)
    lines += _section("environment", _variables(placement, changes, verbose=verbose), terminal)
    if verbose:
        lines += _section("evidence", _evidence(machine), terminal)
    return "\n".join(lines) + "\n"


def _heading(machine: Machine, placement: Placement, job: Job | None) -> tuple[Span, ...]:
    count = len(placement.ranks)
    ranks = "1 process" if job is None else "1 rank" if count == 1 else f"{count} ranks"
    origin = f" ({job.source})" if job is not None and job.source else ""
    made_up = ", assembled by hand" if machine.assembled else ""
    return spans(
        ("plan for ", ""),
        (machine.name, "strong"),
        f"{made_up}: {ranks}{origin}, policy ",
        (placement.policy, "strong"),
    )


def _table(machine: Machine, placement: Placement, terminal: Terminal) -> Iterator[str]:
    wide = terminal.width >= WIDE
    heads = ["rank", "GPU", "node", "CPUs", "cores", "threads", "memory", "beside"]
    rows = [_row(machine, rank) for rank in placement.ranks]
    if wide:
        heads += ["model", "network"]
        for row, rank in zip(rows, placement.ranks, strict=True):
            row += [_models(machine, rank), list(rank.nics) or ["–"]]
    widths = [
        max(len(heads[i]), *(len(line) for row in rows for line in row[i]), 0)
        for i in range(len(heads))
    ]
    # What is left of the width is for the CPUs, whose lists are folded at commas.
    others = sum(widths) - widths[3] + GAP * (len(widths) - 1)
    widths[3] = max(12, min(widths[3], max(terminal.width, NARROWEST) - others))
    yield paint(_laid([[head] for head in heads], widths)[0], "heading", terminal)
    for row, rank in zip(rows, placement.ranks, strict=True):
        row[3] = _folded(row[3][0], widths[3])
        style = "remote" if rank.local is False else ""
        for line in _laid(row, widths):
            yield paint(line, style, terminal)


def _row(machine: Machine, rank: RankPlacement) -> list[list[str]]:
    gpus = [_gpu_cell(machine, address) for address in rank.gpus] or ["none"]
    beside = {True: "yes", False: "NO", None: "unknown" if rank.gpus else "–"}[rank.local]
    return [
        [str(rank.local_rank)],
        gpus,
        [str(rank.cpu_nodes) or "–"],
        [str(rank.cpus) or LEFT_ALONE],
        [str(rank.num_cores) if rank.cpus else "–"],
        [str(rank.num_threads)],
        [memory_text(rank.memory)],
        [beside],
    ]


def _laid(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Set cells side by side, as many lines as the longest cell has."""
    lines = []
    for i in range(max(len(cell) for cell in cells)):
        parts = [
            (cell[i] if i < len(cell) else "").ljust(width)
            for cell, width in zip(cells, widths, strict=True)
        ]
        lines.append((" " * GAP).join(parts).rstrip())
    return lines


def _folded(text: str, width: int) -> list[str]:
    """Break a list of CPUs after commas; one range is never cut."""
    lines = [""]
    for piece in text.replace(",", ",\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append(piece)
        else:
            lines[-1] += piece
    return lines


def _roles(placement: Placement, terminal: Terminal) -> list[str]:
    rows = [
        spans(
            f"rank {rank.local_rank}: " + ", ".join(f"{role} {cpus}" for role, cpus in rank.roles)
        )
        for rank in placement.ranks
        if rank.roles
    ]
    return _section("roles", rows, terminal)


def _variables(
    placement: Placement, changes: Sequence[Sequence[EnvironmentChange]], *, verbose: bool
) -> list[tuple[Span, ...]]:
    """List variables: those of all ranks once, others rank by rank; kept ones where they matter."""
    if not changes:
        return []
    shared = [each for each in changes[0] if all(each in other for other in changes)]
    rows = [row for each in shared if (row := _variable("", each, verbose=verbose))]
    for rank, own in zip(placement.ranks, changes, strict=False):
        prefix = f"rank {rank.local_rank}: "
        others = [each for each in own if each not in shared]
        quiet = [each for each in others if not (each.kept or each.warning or verbose)]
        told = [f"{each.name}={each.value}" for each in quiet if each.value is not None]
        rows += [spans(prefix, (" ".join(told), "command"))] if told else []
        for each in others:
            row = _variable(prefix, each, verbose=verbose) if each not in quiet else None
            rows += [row] if row else []
    return rows


def _variable(prefix: str, change: EnvironmentChange, *, verbose: bool) -> tuple[Span, ...] | None:
    if change.kept and not (verbose or change.warning):
        return None
    what = f"{change.name} removed" if change.value is None else f"{change.name}={change.value}"
    if change.kept:
        what = f"{change.name}={change.value} kept"
    elif change.before is not None and change.value is not None:
        what += f" (was {change.before})"
    reason = f": {change.reason}" if verbose or change.warning else ""
    return spans(prefix, (what, "warn" if change.warning else "command"), reason)


def _evidence(machine: Machine) -> list[tuple[Span, ...]]:
    rows = []
    for gpu in machine.gpus:
        for each in gpu.evidence:
            node = "no node" if each.cpu_node is None else f"node {each.cpu_node}"
            rows.append(
                spans(f"GPU {gpu.index} {gpu.pci_address}: {each.source} says {each.says}: {node}")
            )
        if gpu.disagreement:
            rows.append(spans(f"GPU {gpu.index} {gpu.pci_address}: ", (gpu.disagreement, "warn")))
    return rows


def _section(title: str, rows: Sequence[tuple[Span, ...]], terminal: Terminal) -> list[str]:
    if not rows:
        return []
    lines = ["", paint(title, "heading", terminal)]
    for row in rows:
        lines += flow(row, terminal, first="  ", rest="    ")
    return lines


def _gpu_cell(machine: Machine, address: str) -> str:
    gpu = machine.gpu_at(address)
    return address if gpu is None else f"{gpu.index} {address}"


def _models(machine: Machine, rank: RankPlacement) -> list[str]:
    found: list[Gpu] = [gpu for address in rank.gpus if (gpu := machine.gpu_at(address))]
    return [gpu.name or "–" for gpu in found] or ["–"]
