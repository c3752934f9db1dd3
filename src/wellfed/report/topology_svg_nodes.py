"""How are one NUMA node and what hangs on it drawn?"""

from __future__ import annotations

from wellfed.report.svg import text_width
from wellfed.report.svg_blocks import Block, flowed, named, stacked
from wellfed.report.topology_parts import (
    Device,
    Group,
    branches,
    devices,
    gathered,
    is_root,
    l3_groups,
    packages_of,
    say_cores,
    say_group,
    say_hugepages,
    say_kind,
    say_l3,
    say_local,
    say_memory,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wellfed.model.cpuset import CpuSet
    from wellfed.model.machine import Machine, NumaNode
    from wellfed.model.placement import Placement, RankPlacement
    from wellfed.report.svg import Drawing
    from wellfed.report.topology_parts import Branch

PAD, GAP = 14.0, 10.0
CHIP_WIDE = 226.0
"""Room for ``NVIDIA H100 80GB HBM3`` and for an address with its link."""
GPU_HIGH, CHIP_HIGH = 62.0, 44.0
TALLEST_CORES = 84.0
"""What the cores of one node may take of a card's height before they are drawn smaller."""


class Painter:
    """Draws the nodes and devices of one machine."""

    def __init__(
        self,
        machine: Machine,
        ranks: Mapping[int, tuple[RankPlacement, ...]],
        placement: Placement | None,
    ) -> None:
        self.machine = machine
        self.ranks = ranks
        self.devices = devices(machine)
        self.placed = placement.ranks if placement else ()

    def node(self, node: NumaNode, wide: float) -> Block:
        """Draw a node with CPUs as a card: words, cores by cache, then what hangs on it."""
        room = wide - 2 * PAD
        parts = [self._title(node, room), self._cores(node, room)]
        tree = branches([device for device in self.devices if device.cpu_node == node.node])
        gpus = [device for device in tree.devices if device.kind == "GPU"]
        rest = [device for device in tree.devices if device.kind != "GPU"]
        parts += [self._chip_grid(gpus, room)] if gpus else []
        parts += [self._branch_grid(tree, room)] if tree.branches else []
        parts += [self._chip_grid(rest, room)] if rest else []
        inside = stacked([part for part in parts if part.high], gap=GAP)

        def draw(drawing: Drawing, x: float, y: float) -> None:
            inside.draw(drawing, x + PAD, y + PAD)

        return named(Block(wide, inside.high + 2 * PAD, draw), f"NUMA node {node.node}")

    def bare_node(self, node: NumaNode, wide: float) -> Block:
        """Draw a node without CPUs as a small card."""
        kind = say_kind(self.machine, node) or "no CPUs"
        known = node.memory_bytes is not None
        kind += "" if known else ", size not recorded"

        def draw(drawing: Drawing, x: float, y: float) -> None:
            drawing.box(x, y, wide, 52, "card")
            used = drawing.words(
                x + PAD, y + 21, f"NUMA node {node.node}", "ink", wide - 2 * PAD, size=13, bold=True
            )
            room = wide - 2 * PAD - used - 8
            size = say_memory(node) if known else ""
            drawing.words(x + wide - PAD, y + 21, size, "ink", room, size=13, anchor="end")
            drawing.words(x + PAD, y + 40, kind, "soft", wide - 2 * PAD, size=12)

        return named(Block(wide, 52, draw), f"NUMA node {node.node}")

    def chips(self, found: Sequence[Device], wide: float) -> list[Block]:
        """Draw devices as chips of one width; many NICs or disks become one."""
        return [
            self._gpu(each, wide)
            if isinstance(each, Device) and each.kind == "GPU"
            else _chip(each, wide)
            for each in gathered(found)
        ]

    def _title(self, node: NumaNode, room: float) -> Block:
        kind = say_kind(self.machine, node)
        several = packages_of(self.machine, node)
        over = f"packages {', '.join(map(str, several))}" if len(several) > 1 else ""
        cores = say_cores(self.machine, node.cpus) if node.cpus_recorded else "CPUs not recorded"
        facts = " · ".join(filter(None, (cores, over, kind)))
        mine = node.cpus & self.machine.allowed.cpus
        closed = "" if mine == node.cpus else f"open to this process: {mine or 'none'}"
        lines = [(facts, "ink")]
        lines += [(f"CPUs {node.cpus}", "soft")] if node.cpus else []
        pages = say_hugepages(node)
        lines += [(f"huge pages {pages}", "soft")] if pages else []
        lines += [(closed, "alarm")] if closed else []

        def draw(drawing: Drawing, x: float, y: float) -> None:
            used = drawing.words(
                x, y + 13, f"NUMA node {node.node}", "ink", room, size=15, bold=True
            )
            drawing.words(
                x + room, y + 13, say_memory(node), "ink", room - used - 8, size=13, anchor="end"
            )
            for number, (text, style) in enumerate(lines):
                drawing.words(x, y + 32 + 17 * number, text, style, room, size=12)

        return Block(room, 20 + 17.0 * len(lines), draw)

    def _cores(self, node: NumaNode, room: float) -> Block:
        """Draw a square for each physical core, in a box for each last-level cache."""
        cores = len(self.machine.cores(node.cpus))
        if not cores:
            return Block(0, 0, lambda drawing, x, y: None)
        groups = l3_groups(self.machine, node.cpus) or (node.cpus,)
        side = _cell_side(max(len(self.machine.cores(group)) for group in groups), cores, room)
        boxes = [self._cache(group, side, room) for group in groups]
        caption = say_l3(self.machine, node.cpus)
        parts = [flowed(boxes, wide=room, gap=6)]
        if caption:
            parts.insert(0, _caption(caption, room))
        return stacked(parts, gap=4)

    def _cache(self, cpus: CpuSet, side: float, room: float) -> Block:
        cores = self.machine.cores(cpus)
        gap = _cell_gap(side)
        rows = -(-len(cores) // max(1, int((room - 12 + gap) / (side + gap))))
        if rows == 1 and len(cores) > 2:
            rows = 2
        columns = -(-len(cores) // rows)
        by_style: dict[str, list[tuple[float, float]]] = {}
        for number, core in enumerate(cores):
            place = (6 + (number % columns) * (side + gap), 6 + number // columns * (side + gap))
            by_style.setdefault(self._core_style(core), []).append(place)
        wide = 12 + columns * (side + gap) - gap
        high = 12 + -(-len(cores) // columns) * (side + gap) - gap

        def draw(drawing: Drawing, x: float, y: float) -> None:
            drawing.box(x, y, wide, high, "cache", round_=4)
            for style, places in by_style.items():
                # A hollow square is drawn half a pixel smaller on each side, so that its stroke stays inside.
                inset = 0.5 if style == "closed" else 0.0
                drawing.cells(
                    [(x + left + inset, y + top + inset) for left, top in places],
                    side - 2 * inset,
                    style,
                )

        return named(Block(wide, high, draw), f"CPUs {cpus}")

    def _core_style(self, core: CpuSet) -> str:
        for number, rank in enumerate(self.placed):
            if rank.cpus & core:
                return f"{say_local(rank.local)}-{'ab'[number % 2]}"
        return "core" if core & self.machine.allowed.cpus else "closed"

    def _branch_grid(self, tree: Branch, room: float) -> Block:
        """Draw the switches of a node beside each other, those of a row equally high."""
        columns = max(1, min(len(tree.branches), int((room + GAP) / (CHIP_WIDE + 2 * PAD + GAP))))
        wide = (room - (columns - 1) * GAP) / columns
        insides = [self._inside(branch, wide - 2 * PAD) for branch in tree.branches]
        blocks = []
        for at, (branch, inside) in enumerate(zip(tree.branches, insides, strict=True)):
            row = insides[at // columns * columns : (at // columns + 1) * columns]
            blocks.append(_switch(branch, inside, wide, max(each.high for each in row)))
        return flowed(blocks, wide=room + 0.1, gap=GAP)

    def _inside(self, branch: Branch, room: float) -> Block:
        parts = [self._chip_grid(branch.devices, room)] if branch.devices else []
        for inner in branch.branches:
            inside = self._inside(inner, room - 2 * PAD)
            parts.append(_switch(inner, inside, room, inside.high))
        return stacked(parts, gap=GAP)

    def _chip_grid(self, found: Sequence[Device], room: float) -> Block:
        columns = max(1, int((room + GAP) / (CHIP_WIDE + GAP)))
        columns = max(1, min(columns, len(gathered(found))))
        wide = min((room - (columns - 1) * GAP) / columns, 1.4 * CHIP_WIDE)
        return flowed(self.chips(found, wide), wide=room + 0.1, gap=GAP)

    def _gpu(self, device: Device, wide: float) -> Block:
        ranks = self.ranks.get(int(device.title[4:]), ())
        remark = "; ".join(device.remarks)

        def draw(drawing: Drawing, x: float, y: float) -> None:
            drawing.box(x, y, wide, GPU_HIGH, "gpu")
            used = drawing.words(x + 10, y + 19, device.title, "ink", wide - 20, size=14, bold=True)
            right = x + wide - 8
            for rank in reversed(ranks):
                right = _pill(drawing, rank, right, y + 7, x + 10 + used + 8)
            if not ranks:
                room = wide - used - 28
                drawing.words(
                    x + wide - 10,
                    y + 19,
                    remark,
                    "alarm" if "not " in remark else "soft",
                    room,
                    size=11,
                    anchor="end",
                )
            drawing.words(x + 10, y + 37, device.detail, "ink", wide - 20, size=12)
            drawing.words(x + 10, y + 53, _place(device), "soft", wide - 20, size=11, mono=True)

        title = " · ".join(
            filter(None, (device.title, device.detail, device.address, device.link, remark))
        )
        return named(Block(wide, GPU_HIGH, draw), title)


def _cell_side(largest: int, cores: int, room: float) -> float:
    """Choose how large a core is drawn: as large as fits in few rows, so that a node of 4 cores and one of 400 fill a card."""
    for side in (14.0, 12.0, 10.0, 8.0, 6.0, 5.0, 4.0):
        pitch = side + _cell_gap(side)
        boxes_per_row = max(1, int(room / (12 + -(-largest // 2) * pitch + 6)))
        if largest == cores:
            high = -(-cores // max(1, int((room - 12) / pitch))) * pitch
        else:
            high = -(-cores // (largest * boxes_per_row)) * (2 * pitch + 18)
        if high <= TALLEST_CORES:
            return side
    return 3.0


def _cell_gap(side: float) -> float:
    return 3.0 if side > 8 else 2.0 if side > 4 else 1.0


def _pill(drawing: Drawing, rank: RankPlacement, right: float, top: float, least: float) -> float:
    """Draw a rank's mark ending at ``right``; return where the next may end. What has no room is left to the table."""
    text = f"rank {rank.local_rank} {say_local(rank.local)}"
    wide = text_width(text, 11, bold=True) + 14
    if right - wide < least:
        text = str(rank.local_rank)
        wide = text_width(text, 11, bold=True) + 14
    if right - wide < least:
        return right
    drawing.box(right - wide, top, wide, 17, f"{say_local(rank.local)}-a", round_=8.5)
    drawing.words(
        right - wide / 2, top + 12.5, text, "pill", wide, size=11, anchor="middle", bold=True
    )
    return right - wide - 4


def _chip(each: Device | Group, wide: float) -> Block:
    """Draw a NIC, a disk, or many of one kind."""
    kind = each.kind
    if isinstance(each, Group):
        title, detail = say_group(each), ""
        below = ", ".join(device.title for device in each.devices)
    else:
        title = each.kind if each.title == each.address else each.title
        detail = ", ".join(filter(None, (each.detail, *each.remarks)))
        below = _place(each)

    def draw(drawing: Drawing, x: float, y: float) -> None:
        drawing.box(x, y, wide, CHIP_HIGH, {"NIC": "nic", "NVMe": "nvme"}[kind])
        used = drawing.words(x + 10, y + 18, title, "ink", wide - 20, size=13, bold=True)
        drawing.words(
            x + wide - 10, y + 18, detail, "soft", wide - used - 28, size=11, anchor="end"
        )
        drawing.words(x + 10, y + 35, below, "soft", wide - 20, size=11, mono=True)

    return named(Block(wide, CHIP_HIGH, draw), " · ".join(filter(None, (title, detail, below))))


def _place(device: Device) -> str:
    return "  ".join(filter(None, (device.address, device.link)))


def _switch(branch: Branch, inside: Block, wide: float, high: float) -> Block:
    """Frame what shares a bridge."""
    address = branch.address or ""
    words = f"PCIe root {address[3:]}" if is_root(address) else f"PCIe switch {address}"

    def draw(drawing: Drawing, x: float, y: float) -> None:
        drawing.box(x, y, wide, high + 26 + PAD, "switch")
        drawing.words(x + PAD, y + 17, words, "soft", wide - 2 * PAD, size=11)
        inside.draw(drawing, x + PAD, y + 26)

    return named(Block(wide, high + 26 + PAD, draw), words)


def _caption(text: str, room: float) -> Block:
    def draw(drawing: Drawing, x: float, y: float) -> None:
        drawing.words(x, y + 11, text, "soft", room, size=11)

    return Block(room, 14, draw)
