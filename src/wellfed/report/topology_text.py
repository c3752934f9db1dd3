"""How does a host look as a map in a terminal?"""

from __future__ import annotations

from wellfed.model.value import Value
from wellfed.report.terminal import NO_BREAK, Span, Terminal, columns, flow, glued, spans
from wellfed.report.topology_parts import (
    Branch,
    Device,
    Group,
    branches,
    devices,
    gathered,
    is_root,
    located_by,
    nodes_without_cpus,
    nodes_word,
    notes,
    packages,
    packages_of,
    ranks_of,
    say_allowed,
    say_cores,
    say_counts,
    say_evidence,
    say_group,
    say_hugepages,
    say_kind,
    say_l3,
    say_local,
    say_memory,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeVar

    from wellfed.model.cpuset import CpuSet
    from wellfed.model.machine import Machine, NumaNode
    from wellfed.model.placement import Placement, RankPlacement

    T = TypeVar("T")

GAP = NO_BREAK + " "
"""Two columns between things, at which a line may end."""
LONGEST_TITLE = 24
"""A longer name moves its own address to the right, and nobody else's."""
STYLE_OF = {"GPU": "gpu", "NIC": "device", "NVMe": "device"}
STYLE_OF_LOCAL = {True: "local", False: "remote", None: "unknown"}


def render(machine: Machine, terminal: Terminal, placement: Placement | None = None) -> str:
    """Draw the whole map; with a placement, each rank stands beside its GPU and its CPUs."""
    lines = _header(machine, terminal)
    lines += ["", *_tree(machine, terminal, placement)]
    for section in (
        _unplaced(machine, terminal),
        _plan(machine, terminal, placement),
        _distances(machine, terminal),
        _how_known(machine, terminal),
        _notes(machine, terminal, placement),
    ):
        lines += ["", *section] if section else []
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _header(machine: Machine, terminal: Terminal) -> list[str]:
    assembled = " (put together by hand)" if machine.assembled else ""
    lines = flow(spans((machine.name, "heading"), (assembled, "dim")), terminal)
    if counts := say_counts(machine):
        lines += flow(spans(_gluing(counts)), terminal, first=GAP)
    if machine.cpus:
        may = ", ".join(map(glued, say_allowed(machine)))
        lines += flow(
            spans(("This process may use ", "dim"), may), terminal, first=GAP, rest=GAP * 2
        )
    return lines


def _gluing(counts: str) -> str:
    """Let lines end at the dots only."""
    return " · ".join(map(glued, counts.split(" · ")))


def _tree(machine: Machine, terminal: Terminal, placement: Placement | None) -> list[str]:
    """Draw packages, their nodes, and what hangs on each node; then nodes without CPUs."""
    artist = _Artist(machine, placement)
    rows: list[_Row] = []
    for package in packages(machine):
        if package.package is None:
            rows += [row for node in package.nodes for row in artist.node(node, "", "")]
            continue
        rows.append(_Row("", GAP, spans((f"Package {package.package}", "heading"))))
        for node, first, rest in _twigs(package.nodes, ""):
            rows += artist.node(node, first, rest)
    bare, empty = nodes_without_cpus(machine)
    rows += [row for node in bare for row in artist.node(node, "", "")]
    if empty:
        title = (f"NUMA {nodes_word(empty)}", "heading")
        rows.append(_Row("", GAP, spans(title, GAP, ("empty: no CPUs and no memory", "dim"))))
    return _set(rows, terminal)


class _Row(Value):
    """One line of the map before it is set: what is drawn before it, its words, and cells that align with others."""

    first: str
    rest: str
    words: tuple[Span, ...]
    cells: tuple[Span, ...] = ()
    """Title, address and link of a device; ``words`` follow them."""


def _set(rows: Sequence[_Row], terminal: Terminal) -> list[str]:
    """Break rows into lines; addresses and links of all devices stand below each other, whatever their depth."""
    tabled = [row for row in rows if row.cells]
    title = max(
        (len(row.first) + len(row.cells[0].text[:LONGEST_TITLE]) for row in tabled), default=0
    )
    widths = [max((len(row.cells[at].text) for row in tabled), default=0) for at in (1, 2)]
    lines = []
    for row in rows:
        said = list(row.words)
        if row.cells:
            room = (title - len(row.first), *widths)
            padded = [
                Span(glued(cell.text.ljust(wide) + GAP if wide else ""), cell.style)
                for cell, wide in zip(row.cells, room, strict=True)
            ]
            said = [*padded, *said]
        lines += flow(said, terminal, first=row.first, rest=row.rest)
    return lines


class _Artist:
    """Draws the nodes of one machine."""

    def __init__(self, machine: Machine, placement: Placement | None) -> None:
        self.machine = machine
        self.ranks = ranks_of(placement, machine)
        self.devices = devices(machine)

    def node(self, node: NumaNode, first: str, rest: str) -> list[_Row]:
        """Draw one node and everything on it."""
        tree = branches([device for device in self.devices if device.cpu_node == node.node])
        children: list[object] = [*self._facts(node), *_in_order(tree)]
        stem = "│  " if children else "   "
        rows = [_Row(first, rest + stem + GAP, self._title(node))]
        for child, twig, below in _twigs(children, rest):
            rows += self._child(child, twig, below)
        return rows

    def _title(self, node: NumaNode) -> tuple[Span, ...]:
        several = packages_of(self.machine, node)
        over = f"packages {', '.join(map(str, several))}" if len(several) > 1 else ""
        cores = say_cores(self.machine, node.cpus) if node.cpus else ""
        unknown = "" if node.cpus_recorded else "CPUs not recorded"
        named = (
            (f"NUMA node {node.node}", "heading"),
            (say_memory(node), ""),
            (say_kind(self.machine, node), "device"),
            (over, ""),
            (cores, ""),
            (unknown, "unknown"),
        )
        said: list[Span] = []
        for text, style in named:
            said += spans(GAP if said and text else "", (glued(text), style))
        return (*said, Span(GAP), *_cpus(node.cpus, self.machine)) if node.cpus else tuple(said)

    def _facts(self, node: NumaNode) -> list[tuple[Span, ...]]:
        """Say what else is worth a line: caches, huge pages, and CPUs kept from this process."""
        facts = []
        if l3 := say_l3(self.machine, node.cpus):
            facts.append(spans((glued(l3), "dim")))
        if pages := say_hugepages(node):
            facts.append(spans(("huge pages ", "dim"), pages))
        mine = node.cpus & self.machine.allowed.cpus
        if node.cpus and mine != node.cpus:
            words = f"this process may use {mine}" if mine else "closed to this process"
            facts.append(spans((words, "warn")))
        return facts

    def _child(self, child: object, first: str, rest: str) -> list[_Row]:
        if isinstance(child, Branch):
            return self._branch(child, first, rest)
        if isinstance(child, Device):
            return [self._device(child, first, rest + GAP * 2)]
        if isinstance(child, Group):
            names = ", ".join(device.title for device in child.devices)
            said = spans((glued(say_group(child)), STYLE_OF[child.kind]), GAP, names)
            return [_Row(first, rest + GAP * 2, said)]
        assert isinstance(child, tuple)
        return [_Row(first, rest + GAP * 2, child)]

    def _branch(self, branch: Branch, first: str, rest: str) -> list[_Row]:
        address = branch.address or ""
        words = f"PCIe root {address[3:]}" if is_root(address) else f"PCIe switch {address}"
        rows = [_Row(first, rest, spans((words, "dim")))]
        for child, twig, below in _twigs(_in_order(branch), rest):
            rows += self._child(child, twig, below)
        return rows

    def _device(self, device: Device, first: str, rest: str) -> _Row:
        cells = (
            Span(_named(device), STYLE_OF[device.kind]),
            Span(device.address or "", "dim"),
            Span(device.link, "dim"),
        )
        said: list[Span] = []
        ranks = self.ranks.get(int(device.title[4:]), ()) if device.kind == "GPU" else ()
        for part in (
            *map(_rank, ranks),
            Span(device.detail),
            *(
                Span(remark, "warn" if remark.startswith("not ") else "dim")
                for remark in device.remarks
            ),
        ):
            if part.text:
                said += spans(GAP if said else "", (glued(part.text), part.style))
        return _Row(first, rest, tuple(said), cells)


def _in_order(branch: Branch) -> list[object]:
    """Give what hangs on a bridge: GPUs first, then further bridges, then everything else."""
    found = gathered(branch.devices)
    gpus = [each for each in found if each.kind == "GPU"]
    return [*gpus, *branch.branches, *(each for each in found if each.kind != "GPU")]


def _named(device: Device) -> str:
    """Call a device what it is: ``GPU 0``, ``NIC eth0``; the names of RDMA devices and disks say it themselves."""
    if device.title == device.address:
        return device.kind
    if device.kind == "GPU" or device.title.startswith(("nvme", "mlx")):
        return device.title
    return f"{device.kind} {device.title}"


def _rank(rank: RankPlacement) -> Span:
    return Span(f"[rank {rank.local_rank} {say_local(rank.local)}]", STYLE_OF_LOCAL[rank.local])


def _cpus(cpus: CpuSet, machine: Machine) -> tuple[Span, ...]:
    style = "" if cpus <= machine.allowed.cpus else "dim"
    return spans((glued("CPUs " if len(cpus) > 1 else "CPU ") + str(cpus), style))


def _twigs(children: Sequence[T], stem: str) -> Iterator[tuple[T, str, str]]:
    """Give each child what to draw before its first and its later lines."""
    for number, child in enumerate(children):
        last = number == len(children) - 1
        yield child, stem + ("└─ " if last else "├─ "), stem + ("   " if last else "│  ")


def _unplaced(machine: Machine, terminal: Terminal) -> list[str]:
    """List the devices of which nobody knows beside which CPUs they are, with the reason."""
    numbers = {node.node for node in machine.nodes}
    lost = [device for device in devices(machine) if device.cpu_node not in numbers]
    if not lost:
        return []
    lines = flow(spans(("NUMA node not known", "heading")), terminal)
    by_reason: dict[tuple[str, str], list[Device]] = {}
    for device in lost:
        by_reason.setdefault((device.kind, say_evidence(device)), []).append(device)
    for ((kind, reason), those), first, rest in _twigs(tuple(by_reason.items()), ""):
        names = ", ".join(glued(_full_title(device)) for device in those)
        lines += flow(
            spans((names, STYLE_OF[kind]), GAP, (reason, "unknown")),
            terminal,
            first=first,
            rest=rest + GAP,
        )
    return lines


def _full_title(device: Device) -> str:
    named = _named(device)
    return f"{named} {device.address}" if device.address else named


def _plan(machine: Machine, terminal: Terminal, placement: Placement | None) -> list[str]:
    """Set out where each rank would go."""
    if placement is None:
        return []
    title = f"Ranks under the policy {placement.policy}"
    lines = flow(spans((title, "heading")), terminal)
    rows = [tuple(map(_heading, ("rank", "GPU", "where", "memory", "CPUs")))]
    for rank in placement.ranks:
        gpus = [machine.gpu_at(address) for address in rank.gpus]
        names = ",".join(str(gpu.index) if gpu else "?" for gpu in gpus) or "–"
        memory = f"{rank.memory.mode} {rank.memory.nodes}".strip()
        where = f"{say_local(rank.local)}, {nodes_word(rank.cpu_nodes)}" if rank.cpus else "unbound"
        rows.append(
            (
                Span(str(rank.local_rank)),
                Span(names),
                Span(where, STYLE_OF_LOCAL[rank.local]),
                Span(memory),
                Span(str(rank.cpus) or "left alone"),
            )
        )
    return lines + columns(rows, terminal, indent=GAP)


def _heading(text: str) -> Span:
    return Span(text, "dim")


def _distances(machine: Machine, terminal: Terminal) -> list[str]:
    """Draw the matrix of distances where it says something and fits, else say its range."""
    nodes = [node for node in machine.nodes if node.distances and node.kind != "empty"]
    if len(nodes) < 2:
        return []
    lines = flow(
        spans(("Distances", "heading"), (" as the firmware reports them, 10 is local", "dim")),
        terminal,
    )
    shown = [node.node for node in nodes]
    cell = max(len(str(value)) for node in nodes for pair in node.distances for value in pair) + 2
    if len(GAP) + cell * (len(nodes) + 1) > terminal.width:
        values = sorted({d for node in nodes for other, d in node.distances if other != node.node})
        words = f"{values[0]} to {values[-1]} between nodes; `--format json` has them all"
        return lines + flow(spans(words), terminal, first=GAP)
    lines += flow(
        spans((GAP + " " * cell + "".join(f"{n:>{cell}}" for n in shown), "dim")),
        terminal,
        fill=False,
    )
    for node in nodes:
        row = [Span(f"{GAP}{node.node:>{cell}}", "dim")]
        for other in shown:
            value = node.distance_to(other)
            text = "?" if value is None else str(value)
            row.append(Span(f"{text:>{cell}}", "dim" if other == node.node else ""))
        lines += flow(row, terminal, fill=False)
    return lines


def _how_known(machine: Machine, terminal: Terminal) -> list[str]:
    """Name the sources that agree on where the GPUs are."""
    lines: list[str] = []
    for indices, sources in located_by(machine):
        word = "GPU" if len(indices) == 1 else "GPUs"
        by = ", ".join(map(glued, sources))
        said = spans((f"{word} {indices}", "gpu"), " placed by ", by)
        lines += flow(said, terminal, first=GAP, rest=GAP * 2) if by else []
    title = flow(spans(("How that is known", "heading")), terminal)
    return title + lines if lines else []


def _notes(machine: Machine, terminal: Terminal, placement: Placement | None) -> list[str]:
    """List contradictions, gaps, and what the plan has to say."""
    lines = [
        line
        for note in notes(machine, placement)
        for line in flow(spans(("- ", "warn"), note), terminal, first=GAP, rest=GAP * 2)
    ]
    return flow(spans(("Notes", "heading")), terminal) + lines if lines else []
