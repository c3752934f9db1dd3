"""What does the matrix of ``nvidia-smi topo -m`` say of a host?"""

from __future__ import annotations

import re

from wellfed.host.sources._base import Source, claim, damaged
from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet, union
from wellfed.model.errors import MalformedTextError
from wellfed.model.machine import Allowed, Evidence, Gpu, Machine, Nic, NumaNode
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

REMEDY = "record it again on the host: nvidia-smi topo -m > FILE"

# The header is underlined even into a pipe. Pasted into a report, the escape character gets lost.
ESCAPES = re.compile(r"(?:\x1b|\\033|\\e|␛)\[[0-9;]*[A-Za-z]|\[\d[\d;]*m")
COLUMNS = re.compile(r"\bCPU +Affinity\b(?:\s+(NUMA +Affinity)\b)?(?:\s+(GPU +NUMA +ID)\b)?")
HEADER_WORD = re.compile(r"(?:GPU\d{0,4}|NIC\d{1,4}|CPU|NUMA|Affinity|ID|[a-z]\w{0,30}_\w{1,30})$")
GPU = re.compile(r"\bGPU(\d+)\b")
LINKS = re.compile(r"(?:X|SYS|NODE|PHB|PXB|PIX|PSB|SOC|C2C|NV\d+)")
"""Words of the matrix, nearest last; SOC and PSB are those of drivers before 410."""
LINK_CELL = re.compile(rf"(?:{LINKS.pattern})+$")
"""One word, or several where a wrapped terminal line was joined without a space: ``NODENODE``."""
CELL = re.compile(rf"(?:(?:{LINKS.pattern})+|N/A|[\d,-]+)$")
"""What the rest of a row that was wrapped consists of."""
NEAR = (("PIX", "PSB"), ("PXB",), ("PHB",), ("NODE",))
"""Links inside one NUMA node, nearest first; SYS and SOC leave it, NV# and C2C say nothing of it."""
LEGEND = re.compile(r"^[ \t>|`]*(NIC\d+): *(\S+)[ \t\r]*$", re.MULTILINE)
MAX_TEXT, MAX_LINE, MAX_WRAPPED, MAX_ROWS, MAX_HEADERS = 4 * 2**20, 10_000, 40, 1000, 100
"""A matrix of 16 GPUs and 40 NICs is 40 kB in 57 lines. What stands around it may be a log; what goes on for
longer than this is none of nvidia-smi's, and is not searched."""
UNKNOWN_ALLOWED = (
    "nvidia-smi shows the CPUs of the cpuset that it ran in; "
    "what another process may use, and which nodes, is not in its text"
)


class Row(Value):
    """One GPU's row."""

    index: int
    links: tuple[str, ...]
    """How it reaches each column of the header, in their order; shorter where columns were cut away."""
    cpus: CpuSet | None
    """None: N/A. The empty set: an empty cell, no local CPU inside the caller's cpuset."""
    nodes: NodeSet | None
    """NUMA Affinity; None: N/A, empty, or no such column."""
    hbm_node: int | None


class Grid(Value):
    """A row cut into cells."""

    links: tuple[str, ...]
    cells: tuple[str, ...]
    """What stands after the links. Cut by tabs the first is CPU Affinity, even an empty one."""
    starts: tuple[int, ...] = ()
    """Where the first link and each cell stand in the line; empty where place says nothing."""
    by_tabs: bool = False


class Table(Value):
    """The matrix in the middle of whatever else was recorded."""

    header: str
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    """What stands after the links, of COLUMNS, in that order."""
    lines: tuple[str, ...]
    """Everything below the header."""


def recognises(text: str) -> bool:
    """Look for the header and one row under it."""
    return _table(text) is not None


def read(text: str, name: str) -> Machine:
    """Read the matrix into a machine. No PCI addresses, memory sizes, distances or SMT siblings are in it."""
    table = _table(text)
    rows = _rows(table, name) if table is not None else []
    if table is None or not rows:
        raise damaged(name, "no GPU row under a header", "the matrix of nvidia-smi topo -m", REMEDY)
    homes = cpu_nodes(rows)
    named = {int(match[1]) for label in table.labels if (match := GPU.match(label))}
    shown = union(row.cpus for row in rows if row.cpus)
    known = claim(_claims(rows, homes), homeless=shown)
    hbm = {row.hbm_node: row.index for row in rows if row.hbm_node is not None}
    nodes = (*known.nodes, *(NumaNode(node, hbm_of=f"gpu{hbm[node]}") for node in hbm))
    have = {row.index: row for row in rows}
    return Machine(
        name=name,
        cpus=known.cpus,
        nodes=tuple(sorted(nodes, key=lambda node: node.node)),
        allowed=Allowed(shown, None, unknown=(UNKNOWN_ALLOWED,)),
        gpus=tuple(_gpu(index, have.get(index), homes.get(index)) for index in sorted(named)),
        nics=_nics(table, rows, homes, dict(LEGEND.findall(text))),
        notes=(*known.notes, *_notes(table, rows, homes, named - set(have))),
        all_nodes_known=False,
    )


def cpu_nodes(rows: Sequence[Row]) -> dict[int, int]:
    """Tell the CPU-bearing node of each GPU where the columns determine it; a GPU without an entry: they do not.

    Where a GPU's memory is a NUMA node (Grace), NUMA Affinity also lists empty nodes kept for MIG slices:
    GPU 0 of a GB200 shows ``0,3-9,11-17`` beside GPU NUMA IDs 2, 10, 18 and 26, and its CPUs are node 0.
    The kernel numbers nodes with CPUs first: it walks the processor entries of the firmware's table before
    the memory ones (drivers/acpi/numa/srat.c, acpi_numa_init), and POWER9 puts GPU memory at 255 downward.
    So CPU nodes lie below every GPU NUMA ID, and no node lies beside two disjoint sets of CPUs.
    """
    hbm = {row.hbm_node for row in rows if row.hbm_node is not None}
    left = {row.index: _candidates(row, rows, hbm) for row in rows if row.nodes}
    found = {index: nodes.first for index, nodes in left.items() if len(nodes) == 1}
    return found if hbm or len(found) == len(left) else found | _by_prefix(left)


def _candidates(row: Row, rows: Sequence[Row], hbm: set[int]) -> NodeSet:
    nodes = row.nodes or EMPTY
    if hbm:
        nodes = NodeSet(n for n in nodes if n < min(hbm)) or nodes - NodeSet(hbm)
    if len(nodes) > 1 and row.cpus:
        away = [other for other in rows if other.cpus and not other.cpus & row.cpus]
        nodes = nodes - union(other.nodes for other in away if other.nodes) or nodes
    return nodes


def _by_prefix(left: Mapping[int, NodeSet]) -> dict[int, int]:
    """Decide lists of several nodes by the kernel's numbering alone: with CPUs first, from 0 without a gap.

    ``0,2-17`` and ``1,18-33``: nodes 0 and 1 are the fewest that give each list a CPU node, and give it one
    only. ``0-1`` and ``2-3`` (two nodes a socket), or a single list, leave a choice: nothing is determined.
    """
    groups = {str(nodes): nodes for nodes in left.values()}.values()
    if len(groups) < 2:
        return {}
    below = max(group.first for group in groups) + 1
    found = {index: NodeSet(n for n in nodes if n < below) for index, nodes in left.items()}
    if any(len(nodes) != 1 for nodes in found.values()):
        return {}
    return {index: nodes.first for index, nodes in found.items()}


def _claims(rows: Sequence[Row], homes: Mapping[int, int]) -> dict[int, CpuSet | None]:
    """Give each node the CPUs of the GPUs beside it.

    None where no row names any: then the node has CPUs, which stay outside the cpuset of nvidia-smi.
    """
    claims: dict[int, CpuSet | None] = dict.fromkeys(homes.values())
    for row in rows:
        if row.index in homes and row.cpus:
            claims[homes[row.index]] = row.cpus | (claims[homes[row.index]] or EMPTY)
    return claims


def _gpu(index: int, row: Row | None, home: int | None) -> Gpu:
    if row is None:
        return Gpu(index, f"gpu{index}")
    cpus = "N/A" if row.cpus is None else str(row.cpus) or "nothing: no such CPU in the cpuset"
    evidence = [Evidence("topo -m CPU Affinity", cpus)]
    if row.nodes is not None:
        evidence.insert(0, Evidence("topo -m NUMA Affinity", str(row.nodes), home))
    if row.hbm_node is not None:
        evidence.append(Evidence("topo -m GPU NUMA ID", f"{row.hbm_node}, the GPU's own memory"))
    return Gpu(
        index,
        f"gpu{index}",
        hbm_node=row.hbm_node,
        evidence=tuple(evidence),
        local_cpus=row.cpus,
    )


def _nics(
    table: Table, rows: Sequence[Row], homes: Mapping[int, int], legend: Mapping[str, str]
) -> tuple[Nic, ...]:
    """Place each NIC by the GPUs it reaches without leaving a NUMA node, nearest first."""
    nics = []
    for at, label in enumerate(table.labels):
        if GPU.match(label):
            continue
        links = {row.index: row.links[at] for row in rows if at < len(row.links)}
        says, node = _beside(links, homes)
        evidence = (Evidence("topo -m link to the nearest GPU", says, node),) if says else ()
        device = legend.get(label, "" if label.startswith("NIC") else label)
        nics.append(Nic(label.lower(), rdma_devices=(device,) * bool(device), evidence=evidence))
    return tuple(nics)


def _beside(links: Mapping[int, str], homes: Mapping[int, int]) -> tuple[str, int | None]:
    for words in NEAR:
        near = [index for index, link in links.items() if link in words]
        if near:
            says = ", ".join(f"{links[index]} GPU{index}" for index in near)
            nodes = {homes.get(index) for index in near}
            return says, nodes.pop() if len(nodes) == 1 else None
    return ("SYS to every GPU", None) if links else ("", None)


def _notes(
    table: Table, rows: Sequence[Row], homes: Mapping[int, int], missing: set[int]
) -> Iterable[str]:
    yield (
        "nvidia-smi topo -m shows no PCI addresses: gpu0, nic0 … are its rows; "
        "memory sizes, distances and SMT siblings are unknown"
    )
    several = [row for row in rows if row.nodes and len(row.nodes) > 1]
    decided = [row.index for row in several if row.index in homes]
    if decided:
        yield (
            f"GPU {CpuSet(decided)}: of the nodes in NUMA Affinity, the one with CPUs was inferred from "
            "the kernel's numbering, which puts nodes with CPUs before those of GPU memory"
        )
    undecided = [row.index for row in several if row.index not in homes]
    if undecided:
        yield (
            f"GPU {CpuSet(undecided)}: NUMA Affinity names several nodes, "
            "and nothing says which of them has its CPUs"
        )
    if "NUMA" not in table.columns:
        yield "this driver prints no NUMA Affinity: local CPUs are known, node numbers are not"
    away = [row.index for row in rows if row.cpus is not None and not row.cpus]
    if away:
        yield f"GPU {CpuSet(away)}: no local CPU is in the cpuset that nvidia-smi ran in"
    if missing:
        yield f"GPU {CpuSet(missing)} stands in the header and has no row: where it is, is unknown"


def _table(text: str) -> Table | None:
    """Find the header: labels of the link columns, the columns after them, and the lines below."""
    lines = [line.rstrip() for line in ESCAPES.sub("", text[:MAX_TEXT]).splitlines()]
    tried = 0
    for at, line in enumerate(lines):
        first = GPU.search(line) if len(line) < MAX_LINE else None
        if first is None or not _is_header(line[first.start() :]):
            continue
        tried += 1
        if tried > MAX_HEADERS:
            break
        joined, used = _with_columns(lines, at)
        match = COLUMNS.search(joined)
        if match is None:
            continue
        # pdsh and clush write the host's name before every line.
        host = re.match(r"\s*\S+:\s", line[: first.start()])
        prefix = host[0] if host else ""
        below = [each.removeprefix(prefix) for each in lines[at + used : at + used + MAX_ROWS]]
        labels = tuple(joined[first.start() : match.start()].split())
        columns = ("CPU", *("NUMA",) * bool(match[1]), *("ID",) * bool(match[2]))
        if any(GPU.match(_label(each, labels) or "") for each in below):
            return Table(joined.removeprefix(prefix), labels, columns, tuple(below))
    return None


def _is_header(line: str) -> bool:
    words = line.split()
    return bool(words) and all(HEADER_WORD.match(word) for word in words)


def _with_columns(lines: Sequence[str], at: int) -> tuple[str, int]:
    """Join a header that was wrapped between words; return it and the number of its lines."""
    used = 1
    while used < MAX_WRAPPED and at + used < len(lines) and len(lines[at + used]) < MAX_LINE:
        if not _is_header(lines[at + used]):
            break
        used += 1
    return " ".join([lines[at], *(line.lstrip() for line in lines[at + 1 : at + used])]), used


def _label(line: str, labels: Sequence[str]) -> str | None:
    """Name the row that a line begins, None where it begins none."""
    words = line.lstrip(" \t>|`").split(None, 1)
    return words[0] if words and words[0] in labels else None


def _rows(table: Table, name: str) -> list[Row]:
    """Read every GPU's row; a line that begins no row continues the one before it, where that is not whole."""
    pieces: dict[str, list[str]] = {}
    label = None
    for line in table.lines:
        if line.lstrip().startswith("Legend") or COLUMNS.search(line):
            break
        begins = _label(line, table.labels)
        if begins in pieces:
            raise damaged(name, f"two rows {begins}", "one matrix, of one host", REMEDY)
        label = begins or label
        if begins:
            pieces[begins] = [line]
        elif label and line.strip() and all(CELL.match(word) for word in line.split()):
            pieces[label].append(line.lstrip())
    grids = {each: _grid(lines, each, table) for each, lines in pieces.items() if GPU.match(each)}
    whole = {grid.starts[1] for grid in grids.values() if len(grid.starts) > len(table.columns)}
    cpu_start = whole.pop() if len(whole) == 1 else None
    return [_row(label, grid, table, cpu_start, name) for label, grid in grids.items()]


def _grid(lines: Sequence[str], label: str, table: Table) -> Grid:
    """Cut by tabs where there is a tab for every link, else by white space."""
    line, num_links = " ".join(lines), len(table.labels)
    cells = [cell.strip() for cell in line[line.index(label) + len(label) :].split("\t")][1:]
    if len(cells) >= num_links and all(LINK_CELL.match(cell) for cell in cells[:num_links]):
        cpu, *rest = cells[num_links:] or [""]
        return Grid(tuple(cells[:num_links]), (cpu, *filter(None, rest)), by_tabs=True)
    line = line.expandtabs(8)
    return _by_spaces(line, label, num_links, aligned=len(lines) == 1 and "  " in line.strip())


def _by_spaces(line: str, label: str, num_links: int, *, aligned: bool) -> Grid:
    words = list(re.finditer(r"\S+", line[line.index(label) + len(label) :]))
    links: list[str] = []
    used = 0
    while used < len(words) and len(links) < num_links and LINK_CELL.match(words[used][0]):
        links += LINKS.findall(words[used][0])
        used += 1
    offset = line.index(label) + len(label)
    starts = tuple(offset + word.start() for word in (*words[:1], *words[used:])) if aligned else ()
    return Grid(tuple(links), tuple(word[0] for word in words[used:]), starts)


def _row(label: str, grid: Grid, table: Table, cpu_start: int | None, name: str) -> Row:
    cells, columns = grid.cells, table.columns
    if len(cells) < len(columns) and (not cells or _cpu_cell_is_empty(grid, table, cpu_start)):
        cells = ("", *cells)
    if len(cells) == len(columns) - 1 and set(cells[1:]) == {"N/A"}:
        cells = (*cells, "N/A")
    num_links = len(table.labels)
    if len(cells) != len(columns) or (len(grid.links) < num_links and not grid.cells):
        found = f"row {label} with {len(grid.links)} links and {len(grid.cells)} more cells"
        wanted = f"{num_links} and {len(columns)}, as in the header"
        raise damaged(name, found, wanted, REMEDY)
    named = dict(zip(columns, cells, strict=True))
    try:
        hbm = _set(named.get("ID", "N/A"))
        return Row(
            int(label[3:]),
            grid.links if len(grid.links) == num_links else (),
            _set(named["CPU"]) if named["CPU"] else EMPTY,
            _set(named.get("NUMA", "N/A")),
            hbm.first if hbm else None,
        )
    except MalformedTextError as error:
        raise damaged(name, f"row {label}: {error.message}", "CPUs and nodes", REMEDY) from None


def _set(cell: str) -> CpuSet | None:
    return None if cell in ("N/A", "") else CpuSet.parse(cell)


def _cpu_cell_is_empty(grid: Grid, table: Table, cpu_start: int | None) -> bool:
    """Whether the first cell after the links is already NUMA Affinity, in a row with fewer cells than columns.

    nvidia-smi writes nothing for an empty set of CPUs and always something in the columns after it. Where
    tabs are gone but the columns still stand under each other, the place decides.
    """
    if not grid.starts:
        return not grid.by_tabs
    if cpu_start is None:
        header = table.header.expandtabs(8)
        shift = grid.starts[0] - header.index(table.labels[0])
        cpu_start = header.index("CPU ") if 0 <= shift <= 1 else None
    return cpu_start is None or grid.starts[1] != cpu_start


SOURCE = Source("the matrix of nvidia-smi topo -m", recognises, read)
