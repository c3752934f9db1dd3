"""Which NUMA nodes are there, and what do they hold?"""

from __future__ import annotations

from wellfed.host.facts import number_after, shown
from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet
from wellfed.model.machine import HugePages, NumaNode
from wellfed.model.tree import read_int
from wellfed.model.units import format_bytes, parse_kilobyte_field
from wellfed.model.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.host.facts import Facts

FOLDER = "/sys/devices/system/node"
WHOLE_MAY_EXCEED = 1.02
"""Nodes and the whole host are read one after the other, while memory may be added: 2 % apart is no contradiction."""
SMALLEST_DISTANCE = 10
"""The firmware's word for local (ACPI, System Locality Information Table); 0 to 9 have no meaning."""


def read_nodes(facts: Facts, online: CpuSet) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes by number, each with its online CPUs. Nodes are listed, never counted."""
    names = facts.tree.list(FOLDER)
    numbers = sorted(_numbered("node", names or ()))
    if not numbers:
        return _without_numa(facts, online, "" if isinstance(names, tuple) else names.errno_name)
    cpus_of = _read_cpus(facts, online, numbers)
    unsaid = NodeSet(number for number in numbers if cpus_of[number] is None)
    listed = facts.cpus(FOLDER, ("online",))
    nodes = []
    for number in numbers:
        folder = f"{FOLDER}/node{number}"
        meminfo = facts.tree.read(f"{folder}/meminfo") or ""
        nodes.append(
            NumaNode(
                node=number,
                cpus=cpus_of[number] or EMPTY,
                memory_bytes=parse_kilobyte_field(meminfo, "MemTotal"),
                available_bytes=_free_and_reclaimable(meminfo),
                distances=_read_distances(facts, f"{folder}/distance", listed, numbers),
                hugepages=_read_hugepages(facts, f"{folder}/hugepages"),
                cpus_recorded=number not in unsaid,
            )
        )
    return _against_whole(facts, nodes)


def _against_whole(facts: Facts, nodes: list[NumaNode]) -> tuple[NumaNode, ...]:
    """Compare the nodes' memory with that of the whole host, which is their sum (mm/show_mem.c, si_meminfo).

    A virtual machine whose memory was added later may show less on its nodes. Where one node has all memory there
    is, the whole host's is taken. A container's /proc/meminfo may show less than the nodes: that is its limit.
    """
    meminfo = facts.tree.read("/proc/meminfo") or ""
    whole = parse_kilobyte_field(meminfo, "MemTotal")
    sizes = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    total = sum(sizes)
    if whole is None or len(sizes) < len(nodes) or not 0 < total * WHOLE_MAY_EXCEED < whole:
        return tuple(nodes)
    holders = [node for node in nodes if node.memory_bytes]
    known = f"the host has {format_bytes(whole)} of memory, and its nodes together {format_bytes(total)}"
    if len(holders) != 1:
        facts.remark("memory", f"{known}: where the rest is, is not known")
        return tuple(nodes)
    facts.remark("memory", f"{known}: all of it is taken as that of node {holders[0].node}")
    left = _free_and_reclaimable(meminfo)
    full = replace(holders[0], memory_bytes=whole, available_bytes=left)
    return tuple(full if node.node == full.node else node for node in nodes)


def _without_numa(facts: Facts, online: CpuSet, errno_name: str) -> tuple[NumaNode, ...]:
    """Say what follows where no node is shown: a kernel without CONFIG_NUMA has one memory, near to every CPU."""
    if errno_name not in ("", "ENOENT"):
        facts.remark(
            "nodes", f"{FOLDER} cannot be read ({errno_name}): which node a CPU is on is unknown"
        )
        return ()
    facts.remark(
        "nodes",
        f"{FOLDER} shows no node, as in a kernel without NUMA: all CPUs and all memory count as node 0",
    )
    meminfo = facts.tree.read("/proc/meminfo") or ""
    return (
        NumaNode(
            node=0,
            cpus=online,
            memory_bytes=parse_kilobyte_field(meminfo, "MemTotal"),
            available_bytes=_free_and_reclaimable(meminfo),
            hugepages=_read_hugepages(facts, "/sys/kernel/mm/hugepages"),
        ),
    )


def _read_cpus(facts: Facts, online: CpuSet, numbers: list[int]) -> dict[int, CpuSet | None]:
    """Return each node's online CPUs; where two nodes name a CPU, the lower number has it."""
    found: dict[int, CpuSet | None] = {}
    taken = EMPTY
    possible = facts.cpus("/sys/devices/system/cpu", ("possible",))
    for number in numbers:
        said = _said_cpus(facts, online, number)
        if said is None:
            found[number] = None
            continue
        if possible is not None and said - possible:
            facts.remark(
                "impossible CPUs",
                f"node {number} lists CPUs {said - possible}, which this host cannot have: left out",
            )
        cpus = said & online
        if cpus & taken:
            facts.remark(
                "CPUs in two nodes",
                f"node {number} lists CPUs {cpus & taken}, which a node of a lower number has too: "
                f"they stay with the lower one",
            )
        found[number] = cpus - taken
        taken |= cpus
    if online - taken:
        facts.remark("CPUs in no node", f"CPUs {online - taken} are on no node that the host shows")
    return found


def _said_cpus(facts: Facts, online: CpuSet, number: int) -> CpuSet | None:
    """Return the CPUs that a node names, offline ones included as some kernels do; None where it names none.

    The list is cut at a page in kernels before v5.15 ("drivers/base/node.c: use bin_attribute to break the
    size limitation of cpumap ABI"); the mask of 8192 CPUs is shorter than that, so it wins where both differ.
    """
    folder = f"{FOLDER}/node{number}"
    listed = facts.cpus(folder, ("cpulist",))
    mask = facts.cpus(folder, ("cpumap",))
    if listed is None and mask is None:
        linked = _numbered("cpu", facts.tree.list(folder) or ())
        if linked:
            return CpuSet(linked)
        facts.remark(
            "unknown CPUs", f"{folder} does not say which CPUs node {number} has: none is taken"
        )
        return None
    if mask is None:
        return listed
    if listed is not None and listed & online != mask & online:
        facts.remark(
            "list against mask",
            f"node {number} says CPUs {listed} in cpulist and {mask} in cpumap: cpumap is taken",
        )
    return mask


def _free_and_reclaimable(meminfo: str) -> int | None:
    """Add what is free and what the page cache gives back without writing; None where it is not recorded."""
    free = parse_kilobyte_field(meminfo, "MemFree")
    return None if free is None else free + (parse_kilobyte_field(meminfo, "Inactive(file)") or 0)


def _read_distances(
    facts: Facts, path: str, online: NodeSet | None, numbers: list[int]
) -> tuple[tuple[int, int], ...]:
    """Return (node, distance) to every node; empty where the row is missing or cannot be right.

    The kernel prints a column for each *online* node (node_read_distance in drivers/base/node.c): with nodes
    0, 8 and 252 the third column is node 252. Where their list is missing, every node folder is one.
    """
    text = facts.tree.read(path)
    if not text:
        return ()
    words = text.split()
    row = [int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 6]
    order = list(online) if online and len(online) == len(row) else numbers
    if len(row) != len(words) or len(row) != len(order) or min(row) < SMALLEST_DISTANCE:
        wanted = f"{len(numbers)} distances of 10 or more, one for each node"
        facts.remark("distances", f"{path} reads {shown(text)}, not {wanted}: not used")
        return ()
    return tuple(zip(order, row, strict=True))


def _read_hugepages(facts: Facts, folder: str) -> tuple[HugePages, ...]:
    """Return the pools of explicit huge pages, smallest pages first."""
    pools = []
    for name in facts.tree.list(folder) or ():
        size = name.removeprefix("hugepages-").removesuffix("kB")
        total = read_int(facts.tree, f"{folder}/{name}/nr_hugepages")
        free = read_int(facts.tree, f"{folder}/{name}/free_hugepages")
        if size.isascii() and size.isdigit() and total is not None and free is not None:
            pools.append((int(size) * 1024, total, free))
    return tuple(HugePages(*pool) for pool in sorted(pools))


def _numbered(prefix: str, names: tuple[str, ...]) -> list[int]:
    """Return the numbers of ``node0``, ``node8`` …; other names in the folder are something else."""
    numbers = (number_after(prefix, name) for name in names)
    return [number for number in numbers if number is not None]
