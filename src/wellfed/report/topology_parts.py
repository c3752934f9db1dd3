"""What lies inside what: packages, NUMA nodes, last-level caches, PCIe switches and the devices on them?"""

from __future__ import annotations

from wellfed.model.cpuset import CpuSet
from wellfed.model.machine import Machine, NumaNode, PciDevice
from wellfed.model.units import format_bytes
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wellfed.model.machine import Evidence, Gpu, Nic, Nvme
    from wellfed.model.placement import Placement, RankPlacement

MANY = 4
"""More NICs or disks of one kind than this on one switch are shown as one group."""

VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}


class Device(Value):
    """A GPU, a NIC or a disk as a person calls it."""

    kind: str
    """``GPU``, ``NIC``, ``NVMe``."""
    title: str
    """``GPU 0``, ``mlx5_0``, ``nvme0``."""
    detail: str = ""
    """Model, interface, slices: what else it is called."""
    address: str | None = None
    parents: tuple[str, ...] = ()
    """Bridges above it, nearest first; then the root."""
    link: str = ""
    cpu_node: int | None = None
    evidence: tuple[Evidence, ...] = ()
    remarks: tuple[str, ...] = ()
    """Few words each: ``not open to this process``, ``its memory is node 2``."""


class Group(Value):
    """Several devices of one kind that need no line each."""

    kind: str
    devices: tuple[Device, ...]


class Branch(Value):
    """What shares one bridge of the PCI tree: the devices on it, and bridges below that are shared again."""

    address: str | None
    """The bridge nearest to what it shares; None for what hangs on no shared bridge."""
    devices: tuple[Device, ...] = ()
    branches: tuple[Branch, ...] = ()


class Package(Value):
    """One socket and its NUMA nodes; the number is None for nodes that lie in no package or in several."""

    package: int | None
    nodes: tuple[NumaNode, ...]


def packages(machine: Machine) -> tuple[Package, ...]:
    """Sort the nodes that have CPUs into packages."""
    inside: dict[int | None, list[NumaNode]] = {}
    for node in machine.nodes:
        if node.cpus or not node.cpus_recorded:
            numbers = packages_of(machine, node)
            inside.setdefault(numbers[0] if len(numbers) == 1 else None, []).append(node)
    known = sorted(number for number in inside if number is not None)
    order = [*known, None] if None in inside else known
    return tuple(Package(number, tuple(inside[number])) for number in order)


def packages_of(machine: Machine, node: NumaNode) -> tuple[int, ...]:
    """Return the packages that a node's CPUs are in."""
    return tuple(
        sorted(
            {
                cpu.package
                for cpu in machine.cpus
                if cpu.cpu in node.cpus and cpu.package is not None
            }
        )
    )


def nodes_without_cpus(machine: Machine) -> tuple[tuple[NumaNode, ...], CpuSet]:
    """Return the CPU-less nodes that hold memory, and the numbers of those that hold nothing."""
    bare = [node for node in machine.nodes if not node.cpus and node.cpus_recorded]
    empty = CpuSet(node.node for node in bare if node.kind == "empty")
    return tuple(node for node in bare if node.kind != "empty"), empty


def l3_groups(machine: Machine, cpus: CpuSet) -> tuple[CpuSet, ...]:
    """Cut a node's CPUs by last-level cache, in order of the first CPU; empty where caches are not recorded."""
    found: dict[CpuSet, None] = {}
    for cpu in machine.cpus:
        if cpu.online and cpu.cpu in cpus:
            if cpu.l3 is None:
                return ()
            found.setdefault(cpu.l3 & cpus)
    return tuple(found)


def say_l3(machine: Machine, cpus: CpuSet) -> str:
    """Summarise the caches: ``8 × L3 of 8 cores``, ``L3 of 6 and 8 cores``; empty where not recorded."""
    sizes = sorted(len(machine.cores(group)) for group in l3_groups(machine, cpus))
    if not sizes:
        return ""
    said = [
        f"{sizes.count(size)} × L3 of {plural(size, 'core')}"
        for size in sorted(set(sizes), reverse=True)
    ]
    return ", ".join(said) if sizes != [sizes[0]] else f"L3 of {plural(sizes[0], 'core')}"


def say_cores(machine: Machine, cpus: CpuSet) -> str:
    """Count cores and threads: ``56 cores × 2 threads``, ``10 cores, 16 threads`` where cores differ."""
    cores = machine.cores(cpus)
    threads = {len(core) for core in cores}
    if not cores:
        return "no CPUs"
    if threads == {1}:
        return plural(len(cores), "core")
    if len(threads) == 1:
        return f"{plural(len(cores), 'core')} × {threads.pop()} threads"
    return f"{plural(len(cores), 'core')}, {len(cpus)} threads"


def say_memory(node: NumaNode) -> str:
    """Say how much memory a node has."""
    if node.memory_bytes is None:
        return "memory not recorded"
    return format_bytes(node.memory_bytes) if node.memory_bytes else "no memory"


def say_kind(machine: Machine, node: NumaNode) -> str:
    """Say what is special about a node, nothing for one with CPUs and memory."""
    if node.hbm_of is not None:
        gpu = machine.gpu_at(node.hbm_of)
        return f"memory of GPU {gpu.index}" if gpu else f"memory of the GPU at {node.hbm_of}"
    return {"memory-only": "memory only", "cpu-only": "CPUs only", "empty": "empty"}.get(
        node.kind, ""
    )


def say_hugepages(node: NumaNode) -> str:
    """Say what huge pages are set aside, nothing where none are."""
    return ", ".join(
        f"{pool.num_total} × {format_bytes(pool.size_bytes)} ({pool.num_free} free)"
        for pool in node.hugepages
        if pool.num_total
    )


def say_counts(machine: Machine) -> str:
    """Say in one line what the host has."""
    sockets = {cpu.package for cpu in machine.cpus if cpu.online and cpu.package is not None}
    said = [
        plural(number, word)
        for number, word in ((len(sockets), "package"), (len(machine.nodes), "NUMA node"))
        if number
    ]
    said += [say_cores(machine, machine.online)] if machine.online else []
    said += [
        plural(number, word)
        for number, word in (
            (len(machine.gpus), "GPU"),
            (len(machine.nics), "NIC"),
            (len(machine.nvmes), "NVMe disk"),
        )
        if number
    ]
    if machine.cpus and not machine.gpus:
        said.append("no GPU")
    return " · ".join(said)


def say_allowed(machine: Machine) -> tuple[str, ...]:
    """Say in few sentences what this process may use; where nothing restricts it, that."""
    allowed, online = machine.allowed, machine.online
    if allowed.cpus == online:
        said = [f"all {plural(len(online), 'CPU')}" if len(online) != 1 else "its one CPU"]
    else:
        said = [f"{len(allowed.cpus)} of {len(online)} CPUs ({allowed.cpus})"]
    nodes = machine.memory_nodes
    if allowed.mems is None:
        said.append("memory of nodes that are not recorded")
    elif len(nodes) > 1 and not nodes <= allowed.mems:
        said.append(f"memory of {nodes_word(allowed.mems & nodes)} only")
    elif len(nodes) > 1:
        said.append("memory of every node")
    if allowed.cpu_quota is not None:
        said.append(f"{allowed.cpu_quota:g} CPUs' worth of time")
    if allowed.memory_limit_bytes is not None:
        said.append(f"{format_bytes(allowed.memory_limit_bytes)} of memory")
    return tuple(said)


def devices(machine: Machine) -> tuple[Device, ...]:
    """Return GPUs, NICs and disks, in this order."""
    tree = {device.address: device for device in machine.pci}
    made = [_gpu(gpu, machine, tree) for gpu in machine.gpus]
    made += [_nic(nic, tree) for nic in machine.nics]
    made += [_nvme(disk, tree) for disk in machine.nvmes]
    return tuple(made)


def branches(found: Sequence[Device], *, depth: int = 0) -> Branch:
    """Sort devices under the bridges that two or more of them share; bridges that lead to one only are left out."""
    by_bridge: dict[str | None, list[Device]] = {}
    for device in found:
        chain = device.parents[::-1]
        by_bridge.setdefault(chain[depth] if depth < len(chain) else None, []).append(device)
    alone: list[Device] = list(by_bridge.pop(None, ()))
    below: list[Branch] = []
    for bridge, those in by_bridge.items():
        # What hangs directly on one port is one card with several functions: it needs no line of its own.
        ports = {device.parents[0] for device in those}
        if len(those) == 1 or (len(ports) == 1 and not is_root(*ports)):
            alone += those
            continue
        inner = branches(those, depth=depth + 1)
        # A bridge with one shared bridge below it and nothing else on it adds a line and no knowledge.
        if inner.branches and len(inner.branches) == 1 and not inner.devices:
            below.append(inner.branches[0])
        else:
            below.append(Branch(bridge, inner.devices, inner.branches))
    order = {device: at for at, device in enumerate(found)}
    return Branch(None, tuple(sorted(alone, key=order.__getitem__)), tuple(below))


def is_root(address: str | None) -> bool:
    """Say whether a name is that of a PCI root complex, ``pci0000:40``, rather than of a bridge."""
    return address is not None and address.startswith("pci")


def gathered(found: Iterable[Device]) -> tuple[Device | Group, ...]:
    """Put many NICs or disks beside each other into one group; GPUs stay alone."""
    kinds: dict[str, list[Device]] = {}
    for device in found:
        kinds.setdefault(device.kind, []).append(device)
    made: list[Device | Group] = []
    for kind, those in kinds.items():
        if kind != "GPU" and len(those) > MANY:
            made.append(Group(kind, tuple(those)))
        else:
            made += those
    return tuple(made)


def say_group(group: Group) -> str:
    """Count a group: ``16 NICs``, ``8 NVMe disks``."""
    return plural(len(group.devices), "NIC" if group.kind == "NIC" else "NVMe disk")


def ranks_of(placement: Placement | None, machine: Machine) -> dict[int, tuple[RankPlacement, ...]]:
    """Return the ranks of each GPU index; a rank without GPU is under −1."""
    found: dict[int, list[RankPlacement]] = {}
    for rank in placement.ranks if placement else ():
        gpus = [machine.gpu_at(address) for address in rank.gpus] or [None]
        for gpu in gpus:
            found.setdefault(gpu.index if gpu else -1, []).append(rank)
    return {index: tuple(ranks) for index, ranks in found.items()}


def say_local(local: bool | None) -> str:
    """Say where a rank's CPUs are, seen from its GPU."""
    return {True: "local", False: "remote", None: "unknown"}[local]


def say_evidence(device: Device) -> str:
    """Say why the place of a device is not known, in the words of its sources."""
    if not device.evidence:
        return "no source says where it is"
    return ", ".join(f"{each.source} says {each.says or 'nothing'}" for each in device.evidence)


def located_by(machine: Machine) -> tuple[tuple[CpuSet, tuple[str, ...]], ...]:
    """Group GPUs by the sources that agree on where they are: (indices, sources)."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for gpu in machine.gpus:
        if gpu.cpu_node is not None and gpu.disagreement is None:
            agreeing = tuple(each.source for each in gpu.evidence if each.cpu_node == gpu.cpu_node)
            groups.setdefault(agreeing, []).append(gpu.index)
    return tuple((CpuSet(indices), sources) for sources, indices in groups.items())


def notes(machine: Machine, placement: Placement | None) -> tuple[str, ...]:
    """Gather contradictions, gaps, and what the plan has to say, each once; what the map itself shows is left out."""
    lost = [gpu.pci_address for gpu in machine.gpus if gpu.cpu_node is None]
    said = [
        note
        for note in (*machine.allowed.unknown, *machine.notes)
        if not (lost and note.startswith("no source") and all(address in note for address in lost))
    ]
    said += [
        gpu.disagreement
        for gpu in machine.gpus
        if gpu.disagreement and not any(gpu.disagreement in note for note in machine.notes)
    ]
    if placement is not None:
        said += placement.notes
        of_note: dict[str, list[int]] = {}
        for rank in placement.ranks:
            for note in rank.notes:
                of_note.setdefault(note, []).append(rank.local_rank)
        for note, ranks in of_note.items():
            said.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {CpuSet(ranks)}: {note}")
    return tuple(dict.fromkeys(said))


def nodes_word(nodes: CpuSet) -> str:
    """Say ``node 0``, ``nodes 0-1`` or ``no node``."""
    if not nodes:
        return "no node"
    return f"node {nodes}" if len(nodes) == 1 else f"nodes {nodes}"


def plural(number: int, word: str) -> str:
    """Count: ``1 core``, ``2 cores``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _gpu(gpu: Gpu, machine: Machine, tree: dict[str, PciDevice]) -> Device:
    remarks = []
    if gpu.accessible is False:
        remarks.append("not open to this process")
    elif gpu.visible_index is not None and gpu.visible_index != gpu.index:
        remarks.append(f"seen as device {gpu.visible_index}")
    if gpu.hbm_node is not None:
        remarks.append(f"its memory is node {gpu.hbm_node}")
    if gpu.mig:
        remarks.append(plural(len(gpu.mig), "MIG slice"))
    pci = tree.get(gpu.pci_address, PciDevice(gpu.pci_address))
    return Device(
        "GPU",
        f"GPU {gpu.index}",
        gpu.name or VENDORS.get(gpu.vendor, gpu.vendor),
        gpu.pci_address,
        pci.parents,
        _say_link(pci),
        gpu.cpu_node,
        gpu.evidence,
        tuple(remarks),
    )


def _nic(nic: Nic, tree: dict[str, PciDevice]) -> Device:
    names = (*nic.rdma_devices, *nic.interfaces)
    pci = tree.get(nic.pci_address or "", PciDevice(""))
    return Device(
        "NIC",
        names[0] if names else nic.pci_address or "NIC",
        ", ".join(names[1:]),
        nic.pci_address,
        pci.parents,
        _say_link(pci),
        nic.cpu_node,
        nic.evidence,
        ("RDMA",) if nic.rdma_devices else (),
    )


def _nvme(disk: Nvme, tree: dict[str, PciDevice]) -> Device:
    pci = tree.get(disk.pci_address or "", PciDevice(""))
    return Device(
        "NVMe",
        disk.name,
        "",
        disk.pci_address,
        pci.parents,
        _say_link(pci),
        disk.cpu_node,
        disk.evidence,
    )


def _say_link(pci: PciDevice) -> str:
    """Write width and speed, with the most they could be where that is more: ``×8 of ×16 32 GT/s``."""
    link = pci.link
    said = []
    if link.width:
        below = link.max_width is not None and link.width < link.max_width
        said.append(f"×{link.width} of ×{link.max_width}" if below else f"×{link.width}")
    if link.speed_gigatransfers_per_second:
        speed, most = link.speed_gigatransfers_per_second, link.max_speed_gigatransfers_per_second
        said.append(f"{speed:g} of {most:g} GT/s" if most and speed < most else f"{speed:g} GT/s")
    return " ".join(said)
