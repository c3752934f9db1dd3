"""How does a host look as one picture: packages, nodes, caches, PCIe switches, devices and ranks?"""

from __future__ import annotations

from wellfed.report.svg import Drawing, document, text_width, wrapped
from wellfed.report.svg_blocks import NOTHING, Block, flowed, framed, stacked
from wellfed.report.topology_parts import (
    devices,
    located_by,
    nodes_without_cpus,
    nodes_word,
    notes,
    packages,
    plural,
    ranks_of,
    say_allowed,
    say_counts,
    say_evidence,
    say_local,
)
from wellfed.report.topology_svg_colours import style_sheet
from wellfed.report.topology_svg_nodes import CHIP_WIDE, GAP, PAD, Painter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from wellfed.model.machine import Machine
    from wellfed.model.placement import Placement
    from wellfed.report.topology_parts import Device, Package

WIDE, MARGIN = 1240.0, 28.0
INNER = WIDE - 2 * MARGIN
MAX_COLUMNS = 4
"""Node cards beside each other: narrower ones could not name their GPUs."""
MAX_MATRIX = 16
"""Nodes of the largest matrix of distances that is drawn."""


def render(machine: Machine, placement: Placement | None = None) -> str:
    """Draw the whole host; with a placement, cores and GPUs carry their ranks."""
    painter = Painter(machine, ranks_of(placement, machine), placement)
    parts = [
        _header(machine, placement),
        _packages(machine, painter),
        _bare_nodes(machine, painter),
        _lost(machine, painter),
        _foot(machine, placement),
        _words(machine, placement),
    ]
    whole = stacked([part for part in parts if part.high], gap=18)
    high = whole.high + 2 * MARGIN
    drawing = Drawing()
    drawing.box(0, 0, WIDE, high, "bg", round_=0)
    whole.draw(drawing, MARGIN, MARGIN)
    title = f"Map of {_title(machine)}"
    return document(
        drawing,
        WIDE,
        high,
        title=title,
        description=_description(machine, placement),
        style=style_sheet(),
    )


def _header(machine: Machine, placement: Placement | None) -> Block:
    by_hand = "put together by hand, not recorded" if machine.assembled else ""
    lines = [say_counts(machine)]
    if machine.cpus:
        lines.append("This process may use " + ", ".join(say_allowed(machine)))
    if placement is not None:
        lines.append(f"{plural(len(placement.ranks), 'rank')} under the policy {placement.policy}")

    def draw(drawing: Drawing, x: float, y: float) -> None:
        room = INNER - 300 if by_hand else INNER
        used = drawing.words(x, y + 20, _title(machine), "ink", room, size=22, bold=True)
        drawing.words(x + used + 14, y + 20, by_hand, "alarm", INNER - used - 14, size=13)
        for number, line in enumerate(lines):
            drawing.words(
                x, y + 44 + 20 * number, line, "ink" if number == 0 else "soft", INNER, size=13
            )

    return Block(INNER, 32 + 20 * len(lines), draw)


def _title(machine: Machine) -> str:
    """Call a recording by its own name: a picture is passed on, the folder it lay in is nobody's business."""
    return machine.name.rstrip("/").rpartition("/")[2] or machine.name


def _packages(machine: Machine, painter: Painter) -> Block:
    """Set packages in rows; a package takes as many columns as it has nodes."""
    found = packages(machine)
    total = sum(len(package.nodes) for package in found)
    if not total:
        return NOTHING
    columns = min(MAX_COLUMNS, total)
    rows: list[list[Package]] = [[]]
    used = 0
    for package in found:
        takes = min(len(package.nodes), columns)
        if used + takes > columns and rows[-1]:
            rows.append([])
            used = 0
        rows[-1].append(package)
        used += takes
    return stacked([_package_row(row, columns, painter) for row in rows], gap=GAP + 2)


def _package_row(row: Sequence[Package], columns: int, painter: Painter) -> Block:
    """Draw packages beside each other, all as high as the highest."""
    frame = 2 * PAD * len(row) + (GAP + 2) * (len(row) - 1)
    shown = [min(len(package.nodes), columns) for package in row]
    between = sum((takes - 1) * GAP for takes in shown)
    spare = columns - sum(shown)
    card = (INNER - frame - between - spare * (2 * PAD + GAP + 2)) / columns
    rows = [
        _rows([painter.node(node, card) for node in package.nodes], takes)
        for package, takes in zip(row, shown, strict=True)
    ]
    tallest = max(sum(highs) + GAP * (len(highs) - 1) for highs in map(_heights, rows))
    blocks = [
        _titled(
            _grid(cards, tallest),
            "" if package.package is None else f"Package {package.package}",
            style="package",
        )
        for package, cards in zip(row, rows, strict=True)
    ]
    return flowed(blocks, wide=INNER + 1, gap=GAP + 2)


def _rows(cards: Sequence[Block], columns: int) -> list[Sequence[Block]]:
    return [cards[at : at + columns] for at in range(0, len(cards), columns)]


def _heights(rows: Sequence[Sequence[Block]]) -> list[float]:
    return [max(card.high for card in row) for row in rows]


def _grid(rows: Sequence[Sequence[Block]], tallest: float) -> Block:
    """Set rows of cards, those of a row equally high and the last row reaching down to ``tallest``."""
    highs = _heights(rows)
    highs[-1] += tallest - sum(highs) - GAP * (len(highs) - 1)
    wide = max(sum(card.wide + GAP for card in row) for row in rows)
    return stacked(
        [
            flowed([_raised(card, high) for card in row], wide=wide, gap=GAP)
            for row, high in zip(rows, highs, strict=True)
        ],
        gap=GAP,
    )


def _raised(card: Block, high: float) -> Block:
    """Let a card reach down to the height of its row."""

    def draw(drawing: Drawing, x: float, y: float) -> None:
        drawing.box(x, y, card.wide, high, "card")
        card.draw(drawing, x, y)

    return Block(card.wide, high, draw)


def _titled(inside: Block, title: str, *, style: str, wide: float | None = None) -> Block:
    """Frame a block under a title."""
    frame = framed(inside, style=style, pad=PAD, top=32 if title else PAD, wide=wide)

    def draw(drawing: Drawing, x: float, y: float) -> None:
        frame.draw(drawing, x, y)
        drawing.words(x + PAD, y + 21, title, "ink", frame.wide - 2 * PAD, size=14, bold=True)

    return Block(frame.wide, frame.high, draw)


def _bare_nodes(machine: Machine, painter: Painter) -> Block:
    """Draw the nodes without CPUs: GPU memory, CXL and other memory."""
    bare, empty = nodes_without_cpus(machine)
    if not bare and not empty:
        return NOTHING
    columns = 5
    card = (INNER - 2 * PAD - (columns - 1) * GAP) / columns
    cards: list[Block] = [painter.bare_node(node, card) for node in bare]
    inside = [flowed(cards, wide=INNER - 2 * PAD, gap=GAP)] if cards else []
    if empty:
        words = f"NUMA {nodes_word(empty)}: empty, neither CPUs nor memory"
        inside.append(_lines([words], "soft", INNER - 2 * PAD))
    return _titled(stacked(inside, gap=GAP), "Nodes without CPUs", style="package", wide=INNER)


def _lost(machine: Machine, painter: Painter) -> Block:
    """Draw the devices of which nobody knows beside which CPUs they are, with the reason."""
    numbers = {node.node for node in machine.nodes}
    lost = [device for device in devices(machine) if device.cpu_node not in numbers]
    if not lost:
        return NOTHING
    by_reason: dict[str, list[Device]] = {}
    for device in lost:
        by_reason.setdefault(say_evidence(device), []).append(device)
    inside = []
    room = INNER - 2 * PAD
    for reason, those in by_reason.items():
        inside.append(flowed(painter.chips(those, CHIP_WIDE), wide=room, gap=GAP))
        inside.append(_lines(wrapped(reason, room, 12), "alarm", room))
    return _titled(stacked(inside, gap=GAP), "NUMA node not known", style="lost", wide=INNER)


def _lines(lines: Sequence[str], style: str, room: float) -> Block:
    """Set lines of 12-point words."""

    def draw(drawing: Drawing, x: float, y: float) -> None:
        for number, line in enumerate(lines):
            drawing.words(x, y + 12 + 17 * number, line, style, room, size=12)

    return Block(room, 17.0 * len(lines), draw)


def _foot(machine: Machine, placement: Placement | None) -> Block:
    tables = [block for block in (_distances(machine), _plan(machine, placement)) if block.high]
    parts = [_legend(machine, placement), flowed(tables, wide=INNER, gap=40)]
    return stacked([part for part in parts if part.high], gap=18)


def _distances(machine: Machine) -> Block:
    """Draw the firmware's distances: the farther, the warmer."""
    nodes = [node for node in machine.nodes if node.distances and node.kind != "empty"]
    values = sorted({d for node in nodes for other, d in node.distances if other != node.node})
    if len(nodes) < 2 or not values:
        return NOTHING
    if len(nodes) > MAX_MATRIX:
        said = f"{values[0]} to {values[-1]} between nodes"
        return _section("Distances (10 is local)", _lines([said], "soft", text_width(said, 12)))
    cell, high = 40.0, 22.0

    def draw(drawing: Drawing, x: float, y: float) -> None:
        for column, node in enumerate(nodes):
            centre = x + cell * (column + 2) - 8
            drawing.words(centre, y + 15, str(node.node), "soft", cell, size=12, anchor="end")
            drawing.words(
                x + cell - 10,
                y + high * (column + 1) + 15,
                str(node.node),
                "soft",
                cell,
                size=12,
                anchor="end",
            )
            for row, other in enumerate(nodes):
                value = other.distance_to(node.node)
                heat = (value - 10) / (max(values[-1], 11) - 10) if value is not None else 0.0
                left, top = x + cell * (column + 1), y + high * (row + 1)
                drawing.tint(
                    left + 1, top + 1, cell - 2, high - 2, "heat", 0.45 * min(max(heat, 0.0), 1.0)
                )
                text = "?" if value is None else str(value)
                drawing.words(
                    left + cell - 8, top + 15, text, "ink", cell - 6, size=12, anchor="end"
                )

    return _section(
        "Distances (10 is local)", Block(cell * (len(nodes) + 1), high * (len(nodes) + 1), draw)
    )


def _plan(machine: Machine, placement: Placement | None) -> Block:
    """Set out the ranks: GPU, node, CPUs."""
    if placement is None or not placement.ranks:
        return NOTHING
    rows = []
    for rank in placement.ranks:
        gpus = [machine.gpu_at(address) for address in rank.gpus]
        names = ",".join(str(gpu.index) if gpu else "?" for gpu in gpus)
        rows.append(
            (
                f"rank {rank.local_rank}",
                f"GPU {names}" if names else "no GPU",
                say_local(rank.local),
                nodes_word(rank.cpu_nodes),
                f"CPUs {rank.cpus}" if rank.cpus else "mask left alone",
            )
        )
    rooms = [max(text_width(row[at], 12) for row in rows) + 18 for at in range(len(rows[0]))]
    rooms[-1] = min(rooms[-1], 420.0)

    def draw(drawing: Drawing, x: float, y: float) -> None:
        for number, (row, rank) in enumerate(zip(rows, placement.ranks, strict=True)):
            left, line = x, y + 14 + 19 * number
            drawing.box(
                left, line - 10, 10, 10, f"{say_local(rank.local)}-{'ab'[number % 2]}", round_=2
            )
            for at, (text, room) in enumerate(zip(row, rooms, strict=True)):
                drawing.words(left + 16, line, text, "ink" if at < 2 else "soft", room - 8, size=12)
                left += room

    return _section("Ranks", Block(sum(rooms) + 16, 19.0 * len(rows), draw))


def _legend(machine: Machine, placement: Placement | None) -> Block:
    """Name the colours that this picture uses."""
    kinds = {device.kind for device in devices(machine)}
    entries = [("gpu", "GPU"), ("nic", "network card"), ("nvme", "NVMe disk")]
    used = [
        entry for entry, kind in zip(entries, ("GPU", "NIC", "NVMe"), strict=True) if kind in kinds
    ]
    if placement is None:
        used.append(("core", "core"))
    else:
        used += [
            ("local-a", "core of a rank beside its GPU"),
            ("remote-a", "core of a rank far from its GPU"),
        ]
        if any(rank.local is None for rank in placement.ranks):
            used.append(("unknown-a", "core of a rank whose GPU may be anywhere"))
        used.append(("core", "core of no rank"))
    if machine.allowed.cpus != machine.online:
        used.append(("closed", "core closed to this process"))

    return flowed([_swatch(style, words) for style, words in used], wide=INNER, gap=18)


def _swatch(style: str, words: str) -> Block:
    """Draw one colour and its name."""
    wide = text_width(words, 12) + 20

    def draw(drawing: Drawing, x: float, y: float) -> None:
        drawing.box(x + 0.5, y + 2.5, 12, 12, style, round_=2)
        drawing.words(x + 20, y + 13, words, "soft", wide, size=12)

    return Block(wide, 17, draw)


def _section(title: str, inside: Block) -> Block:
    def draw(drawing: Drawing, x: float, y: float) -> None:
        drawing.words(x, y + 13, title, "ink", max(inside.wide, 220), size=13, bold=True)
        inside.draw(drawing, x, y + 22)

    return Block(max(inside.wide, text_width(title, 13, bold=True)), inside.high + 22, draw)


def _words(machine: Machine, placement: Placement | None) -> Block:
    """Say how places are known, and every contradiction and gap."""
    known = [
        f"{'GPU' if len(indices) == 1 else 'GPUs'} {indices} placed by {', '.join(sources)}"
        for indices, sources in located_by(machine)
        if sources
    ]
    parts = []
    for title, sentences, style in (
        ("How that is known", known, "soft"),
        ("Notes", notes(machine, placement), "alarm"),
    ):
        lines = [line for sentence in sentences for line in wrapped(sentence, INNER, 12)]
        if lines:
            parts.append(_section(title, _lines(lines, style, INNER)))
    return stacked(parts, gap=16)


def _description(machine: Machine, placement: Placement | None) -> str:
    """Say in words what the picture shows."""
    said = [say_counts(machine) + "."]
    for node in machine.nodes:
        here = [device.title for device in devices(machine) if device.cpu_node == node.node]
        if node.cpus or here:
            beside = f"; beside it {', '.join(here)}" if here else ""
            said.append(f"NUMA node {node.node}: CPUs {node.cpus}{beside}.")
    lost = [f"GPU {gpu.index}" for gpu in machine.gpus if gpu.cpu_node is None]
    if lost:
        said.append(f"The NUMA node of {', '.join(lost)} is not known.")
    for rank in placement.ranks if placement else ():
        said.append(f"Rank {rank.local_rank}: {say_local(rank.local)}, CPUs {rank.cpus}.")
    return " ".join(said)
