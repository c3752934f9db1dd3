"""What do lscpu and lstopo say of a recorded host? Their printed answers, taken apart."""

from __future__ import annotations

import pathlib
import re
import shlex
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field

from wellfed.model.cpuset import EMPTY, CpuSet, union


@dataclass
class Thing:
    """One object that lstopo prints: its type, its number (P#), and the CPUs inside."""

    kind: str
    number: int | None
    cpus: CpuSet = EMPTY


@dataclass
class Lstopo:
    """lstopo's view of one host under one test's options."""

    source: str
    options: list[str]
    env: str
    things: list[Thing] = field(default_factory=list)
    allowed_cpus: CpuSet | None = None
    allowed_mems: CpuSet | None = None
    kinds: list[tuple[int, CpuSet]] = field(default_factory=list)
    """(efficiency, CPUs) of each kind of CPU that lstopo tells apart."""

    def of(self, *kinds: str) -> list[Thing]:
        """Give the things of a kind that have a CPU, or that are memory."""
        return [t for t in self.things if t.kind in kinds and (t.cpus or t.kind == "NUMANode")]

    @property
    def cpus(self) -> CpuSet:
        """All CPUs shown."""
        return CpuSet(t.number for t in self.things if t.kind == "PU")


def read_lstopo(test: pathlib.Path) -> Lstopo:
    """Read a `.test` file and the output it names."""
    fields: dict[str, str] = {}
    for line in test.read_text().splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            fields[name.strip()] = (fields.get(name.strip(), "") + " " + value.strip()).strip()
    target = _beside(test, fields["target"])
    found = Lstopo(
        fields.get("source", ""), shlex.split(fields.get("options", "")), fields.get("env", "")
    )
    if target.suffix == ".xml":
        _read_xml(target, found)
    else:
        _read_console(target.read_text(errors="replace"), found)
    return found


def _beside(test: pathlib.Path, name: str) -> pathlib.Path:
    """Find a file that a `.test` names; the corpus has a prefix on some (``test1.xml`` is ``allowed_test1.xml``)."""
    return next(
        (p for p in (test.parent / name, test.parent / f"allowed_{name}") if p.exists()),
        test.parent / name,
    )


LINE = re.compile(
    r"^( *)([A-Za-z0-9]+)(?:\([^)]*\))? L#\d+ ?(?:\((?:P#(\d+))?)?|^()(Machine) \(P#(\d+)"
)
MEMORY = ("NUMANode", "MemCache")
KIND = re.compile(r"^CPU kind #\d+ efficiency (\d+) cpuset (0x[0-9a-fx,]+)", re.MULTILINE)


def _read_console(text: str, found: Lstopo) -> None:
    """Read indented lines; memory hangs beside the CPUs of what it is printed under."""
    above: list[tuple[int, Thing]] = []
    local: list[tuple[Thing, Thing]] = []
    for line in text.splitlines():
        if line.startswith("depth 0:"):
            break
        match = LINE.match(line)
        if match is None:
            continue
        indent, kind, number = match.group(1, 2, 3) if match.group(2) else match.group(4, 5, 6)
        thing = Thing(kind, int(number) if number else None)
        while above and above[-1][0] >= len(indent):
            above.pop()
        if kind == "PU":
            thing.cpus = CpuSet([thing.number])
            for _, each in above:
                each.cpus |= thing.cpus
        if kind == "NUMANode":
            local.append((thing, next(t for _, t in reversed(above) if t.kind not in MEMORY)))
        found.things.append(thing)
        above.append((len(indent), thing))
    for memory, beside in local:
        memory.cpus = beside.cpus
    found.kinds = [(int(rank), hwloc_mask(mask)) for rank, mask in KIND.findall(text)]


def _read_xml(path: pathlib.Path, found: Lstopo) -> None:
    root = ElementTree.parse(path).getroot()
    for element in root.iter("object"):
        kind = element.get("type", "")
        number = element.get("os_index")
        if element.get("cpuset") is not None:
            found.things.append(
                Thing(kind, int(number) if number else None, hwloc_mask(element.get("cpuset")))
            )
    found.kinds = [
        (int(kind.get("forced_efficiency", "0")), hwloc_mask(kind.get("cpuset")))
        for kind in root.iter("cpukind")
    ]
    machine = next(root.iter("object"))
    found.allowed_cpus = hwloc_mask(machine.get("allowed_cpuset"))
    found.allowed_mems = hwloc_mask(machine.get("allowed_nodeset"))


def hwloc_mask(text: str) -> CpuSet:
    """Read hwloc's mask: words of 32 bits, empty ones are 0; `0xf...f` would be infinite and is not in these files."""
    mask = 0
    for word in text.split(","):
        mask = mask << 32 | int(word or "0", 16)
    return CpuSet.of_mask(mask)


def lscpu_list(text: str) -> CpuSet:
    """Read lscpu's list, where ``1-61:4`` is every fourth CPU (the kernel would write ``1-61:1/4``)."""
    found = EMPTY
    for part in text.split(","):
        span, _, step = part.partition(":")
        low, _, high = span.partition("-")
        found |= CpuSet(range(int(low), int(high or low) + 1, int(step or 1)))
    return found


@dataclass
class Lscpu:
    """lscpu's text: its summary, and its table of CPU, core, socket and node."""

    nodes: dict[int, CpuSet]
    online: CpuSet
    offline: CpuSet
    summary: dict[str, list[str]]
    table: dict[int, tuple[str, ...]]
    """CPU -> (core, socket, node) with lscpu's own numbers."""

    def groups(self, column: int) -> set[CpuSet]:
        """Give the sets of CPUs that share the value of a column."""
        values = {row[column] for row in self.table.values()}
        return {
            CpuSet(cpu for cpu, row in self.table.items() if row[column] == value)
            for value in values
        }


def read_lscpu(path: pathlib.Path) -> Lscpu:
    """Read the expected output of `lscpu`, `lscpu -p` and `lscpu -p --physical`, one after the other."""
    summary: dict[str, list[str]] = {}
    table: dict[int, tuple[str, ...]] = {}
    text = path.read_text().split("# CPU,Core,Socket,Node")
    for line in text[0].splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            summary.setdefault(name.strip(), []).append(value.strip())
    for line in text[1].splitlines()[1:]:
        words = line.split(",")
        if words[0].isdigit():
            table[int(words[0])] = tuple(words[1:4])
    nodes = {
        int(match.group(1)): lscpu_list(values[0])
        for name, values in summary.items()
        if (match := re.fullmatch(r"NUMA node(\d+) CPU\(s\)", name))
    }
    return Lscpu(
        nodes=nodes,
        online=CpuSet.parse(summary["On-line CPU(s) list"][0]),
        offline=union(CpuSet.parse(text) for text in summary.get("Off-line CPU(s) list", [])),
        summary=summary,
        table=table,
    )
