"""What does an hwloc XML topology (``lstopo --of xml``, versions 1 to 3) say of a host?"""

from __future__ import annotations

import re

from wellfed.host.sources._base import Source, damaged, parse_xml, root_tag
from wellfed.host.sources._hwloc_devices import (
    KINDS_1_AND_2,
    KINDS_3,
    devices_below,
    gpu_memory,
    gpus_among,
    nics_among,
    nvmes_among,
    telling,
)
from wellfed.host.sources._hwloc_elements import (
    REMEDY,
    cpus_inside,
    of_type,
    read_infos,
    read_number,
    read_set,
)
from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet, union
from wellfed.model.errors import MalformedTextError
from wellfed.model.machine import Allowed, Cpu, HugePages, Machine, NumaNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from xml.etree.ElementTree import Element


def recognises(text: str) -> bool:
    """Look at the first element."""
    return root_tag(text) == "topology"


def read(text: str, name: str) -> Machine:
    """Read objects into a machine. Limits of a process, link widths and free huge pages are not in it."""
    root = parse_xml(text, name, remedy=REMEDY)
    top = root.find("object")
    if top is None:
        raise damaged(name, "no <object>", "the machine and what is in it", REMEDY)
    try:
        return _machine(root, top, name)
    except MalformedTextError as error:
        if error.remedy == REMEDY:
            raise
        raise damaged(name, error.message, "sets as hwloc writes them", REMEDY) from None


def _machine(root: Element, top: Element, name: str) -> Machine:
    pus = _pus(top, name)
    online = CpuSet(
        cpu
        for cpu, pu in pus.items()
        if "online_cpuset" not in pu.attrib or read_set(pu, "online_cpuset")
    )
    nodes = _nodes(root, top, pus, online)
    home = {cpu: node.node for node in nodes for cpu in node.cpus}
    devices = tuple(devices_below(top, None, (), online, name))
    is_old = root.get("version", "1").partition(".")[0] in ("1", "2")
    kinds = KINDS_1_AND_2 if is_old else KINDS_3
    cpus = _cpus(root, top, pus, online, nodes)
    infos = {**read_infos(top), **read_infos(root)}
    permitted, mems = read_set(top, "allowed_cpuset"), read_set(top, "allowed_nodeset")
    return Machine(
        name=name,
        cpus=cpus,
        nodes=nodes,
        allowed=Allowed(
            online if permitted is None else online & permitted,
            mems,
            unknown=("affinity and limits of a process: hwloc records only its cgroup's cpuset",),
        ),
        pci=telling(devices),
        gpus=gpus_among(devices, home, gpu_memory(top)),
        nics=nics_among(devices, home, kinds),
        nvmes=nvmes_among(devices, home),
        architecture=infos.get("Architecture"),
        notes=tuple(_notes(top, pus, nodes, cpus)),
    )


def _pus(top: Element, name: str) -> dict[int, Element]:
    pus: dict[int, Element] = {}
    for element in of_type(top, "PU"):
        cpu = read_number(element)
        if cpu is None or cpu in pus:
            found = "a PU without os_index" if cpu is None else f"PU {cpu} twice"
            raise damaged(name, found, "each CPU once, with its number", REMEDY)
        pus[cpu] = element
    if not pus:
        raise damaged(name, "no PU", "at least one CPU", REMEDY)
    return dict(sorted(pus.items()))


def _cpus(
    root: Element,
    top: Element,
    pus: Mapping[int, Element],
    online: CpuSet,
    nodes: Sequence[NumaNode],
) -> tuple[Cpu, ...]:
    caches = (c for c in of_type(top, "Cache", "L3Cache") if read_number(c, "depth") == 3)
    l3 = _group(caches, online)
    core = _group(of_type(top, "Core"), online)
    groups = [
        cpus_inside(g) & online for g in of_type(top, "Group") if g.get("subtype") == "Cluster"
    ]
    # A quarter of a Xeon Phi is called a Cluster too, and is its NUMA node.
    clusters = [group for group in groups if any(group < node.cpus for node in nodes)]
    cluster = {cpu: group for group in clusters for cpu in group}
    home = {cpu: node.node for node in nodes for cpu in node.cpus}
    package = _numbers(of_type(top, "Package", "Socket"))
    die = _numbers(of_type(top, "Die"))
    kind = _kinds(root)
    return tuple(
        Cpu(
            cpu,
            online=cpu in online,
            node=home.get(cpu),
            package=package.get(cpu),
            die=die.get(cpu),
            core=core.get(cpu, EMPTY),
            cluster=cluster.get(cpu),
            l3=l3.get(cpu),
            kind=kind.get(cpu),
        )
        for cpu in pus
    )


def _group(elements: Iterable[Element], online: CpuSet) -> dict[int, CpuSet]:
    """Return the innermost object's CPUs for each CPU; an outer one comes first in the document."""
    found: dict[int, CpuSet] = {}
    for element in elements:
        members = cpus_inside(element) & online
        found.update(dict.fromkeys(members, members))
    return found


def _numbers(elements: Iterable[Element]) -> dict[int, int]:
    found: dict[int, int] = {}
    for element in elements:
        number = read_number(element)
        if number is not None:
            found.update(dict.fromkeys(cpus_inside(element), number))
    return found


def _kinds(root: Element) -> dict[int, str]:
    """Tell performance from efficiency cores, by Intel's names or Arm's capacities; nothing where all are alike.

    Frequencies alone do not make a machine hybrid: equal cores turbo unequally. Capacities less than 20 %
    apart are the same to the scheduler (fits_capacity in kernel/sched/fair.c).
    """
    kinds = [(element, read_infos(element)) for element in root.findall("cpukind")]
    names = {"IntelCore": "performance", "IntelAtom": "efficiency"}
    named = [(each, names.get(infos.get("CoreType", ""))) for each, infos in kinds]
    if len({kind for _, kind in named} - {None}) < 2:
        sizes = [infos.get("LinuxCapacity", "") for _, infos in kinds]
        capacities = [int(size) for size in sizes if re.fullmatch(r"\d{1,6}", size)]
        if (
            len(capacities) != len(kinds)
            or not kinds
            or min(capacities) * 1280 >= max(capacities) * 1024
        ):
            return {}
        middle = (min(capacities) + max(capacities)) / 2
        named = [
            (element, "performance" if capacity >= middle else "efficiency")
            for (element, _), capacity in zip(kinds, capacities, strict=True)
        ]
    return {
        cpu: kind
        for element, kind in named
        if kind is not None
        for cpu in read_set(element, "cpuset") or EMPTY
    }


def _nodes(
    root: Element, top: Element, pus: Mapping[int, Element], online: CpuSet
) -> tuple[NumaNode, ...]:
    elements = {
        number: element
        for element in of_type(top, "NUMANode")
        if (number := read_number(element)) is not None
    }
    owned = _owned(elements, online)
    if not elements:
        # hwloc 1 writes no NUMANode where the kernel knows no NUMA; the machine has the memory then.
        elements, owned = {0: top}, {0: online}
    distances = _distances(root, top, tuple(elements))
    found = {
        number: NumaNode(
            number,
            cpus=owned[number],
            memory_bytes=read_number(element, "local_memory") or 0,
            distances=distances.get(number, ()),
            hugepages=tuple(_hugepages(element)),
            cpus_recorded=bool(read_set(element, "cpuset"))
            or not read_set(element, "complete_cpuset"),
        )
        for number, element in elements.items()
    }
    # A cgroup may allow a node's CPUs and not its memory: then only the CPUs name the node.
    hidden: dict[int, CpuSet] = {}
    for cpu in online - union(node.cpus for node in found.values()):
        said = read_set(pus[cpu], "complete_nodeset")
        if said is not None and len(said) == 1 and said.first not in found:
            hidden[said.first] = hidden.get(said.first, EMPTY) | CpuSet([cpu])
    found |= {number: NumaNode(number, cpus=cpus) for number, cpus in hidden.items()}
    return tuple(found[number] for number in sorted(found))


def _owned(elements: Mapping[int, Element], online: CpuSet) -> dict[int, CpuSet]:
    """Give every CPU to one node.

    hwloc 2 shows memory without CPUs (MCDRAM, HBM, CXL, a GPU's) with the CPUs it is near, so several nodes
    show the same CPUs. The kernel gives a CPU one node: that with the fewest CPUs, of equal ones not the
    special memory, of equal ones the lowest number, because the kernel numbers nodes with CPUs first.
    """
    shown = {number: (read_set(e, "cpuset") or EMPTY) & online for number, e in elements.items()}
    order = sorted(shown, key=lambda n: (len(shown[n]), _is_special(elements[n]), n))
    owned, taken = dict.fromkeys(shown, EMPTY), EMPTY
    for number in order:
        owned[number] = shown[number] - taken
        taken |= shown[number]
    return owned


def _is_special(node: Element) -> bool:
    return {node.get("subtype", "DRAM"), read_infos(node).get("MemoryTier", "DRAM")} != {"DRAM"}


def _hugepages(node: Element) -> Iterator[HugePages]:
    """Read sizes of which none is reserved: of others hwloc does not record how many are free."""
    sizes = [
        (read_number(page, "size"), read_number(page, "count"))
        for page in node.findall("page_type")
    ]
    base = min((size for size, _ in sizes if size), default=0)
    return (HugePages(size, 0, 0) for size, count in sizes if size and size > base and count == 0)


def _distances(
    root: Element, top: Element, numbers: Sequence[int]
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Read the firmware's matrix between nodes, 10 for local, from either version's element."""
    for element in root.findall("distances2"):
        means_latency = (read_number(element, "kind") or 0) & 4
        if element.get("type") == "NUMANode" and means_latency:
            ids = _words(element, "indexes")
            if element.get("indexing") == "gp":
                by_gp = {
                    read_number(e, "gp_index"): read_number(e) for e in of_type(top, "NUMANode")
                }
                ids = [number for each in ids if (number := by_gp.get(each)) is not None]
            return _matrix(ids, _words(element, "u64values"))
    # hwloc 1 names a depth instead of a type; of the operating system's matrices it keeps only the nodes'.
    for element in top.iter("distances"):
        base, *values = (
            float(text) if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text) else -1
            for text in (
                element.get("latency_base", "10"),
                *(each.get("value", "") for each in element.findall("latency")),
            )
        )
        if read_number(element, "nbobjs") == len(numbers):
            return _matrix(numbers, [base * value for value in values])
    return {}


def _words(element: Element, tag: str) -> list[int]:
    texts = (each.text or "" for each in element.findall(tag))
    return [int(word) for text in texts for word in re.findall(r"\d{1,19}", text)]


def _matrix(ids: Sequence[int], values: Sequence[float]) -> dict[int, tuple[tuple[int, int], ...]]:
    """Cut values into rows; a matrix of another size, or with a negative or absurd value, is none."""
    if len(values) != len(ids) ** 2 or not all(0 <= value < 2**31 for value in values):
        return {}
    return {
        here: tuple((there, round(values[row * len(ids) + at])) for at, there in enumerate(ids))
        for row, here in enumerate(ids)
    }


def _notes(
    top: Element, pus: Mapping[int, Element], nodes: Sequence[NumaNode], cpus: Sequence[Cpu]
) -> Iterator[str]:
    complete = read_set(top, "complete_cpuset") or EMPTY
    absent = complete - CpuSet(pus)
    if absent:
        yield f"CPUs {absent} exist and are not described: offline, or outside the cgroup of lstopo"
    hidden = (read_set(top, "complete_nodeset") or EMPTY) - NodeSet(node.node for node in nodes)
    if hidden:
        yield f"nodes {hidden} exist and are not described: outside the cgroup of lstopo"
    if not any(True for _ in of_type(top, "NUMANode")):
        yield "no NUMA node is described: the machine is taken as node 0 alone"
    if not all(cpu.core for cpu in cpus if cpu.online):
        yield "cores are not described: SMT siblings are unknown"
    reserved = [
        f"{count} of {size >> 20} MiB on node {read_number(node)}"
        for node in of_type(top, "NUMANode")
        for page in node.findall("page_type")
        if (size := read_number(page, "size") or 0) >= 2**20
        and (count := read_number(page, "count"))
    ]
    if reserved:
        yield f"huge pages are reserved ({', '.join(reserved)}); how many are free is not recorded"


SOURCE = Source("an hwloc topology (XML)", recognises, read)
