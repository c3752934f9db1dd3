"""Where does the amdgpu driver say that each AMD GPU is?

The kernel's KFD ("kernel fusion driver") shows one directory per CPU node, GPU or GPU partition under
``/sys/class/kfd/kfd/topology/nodes``, without any library: ``properties`` says which PCI function it is, ``io_links``
how it hangs on a CPU node. In a container, ``properties`` of a GPU that the device cgroup denies reads EPERM.
"""

from __future__ import annotations

from wellfed.gpus._base import Sightings, Unanswered, Vendor
from wellfed.model.cpuset import NodeSet
from wellfed.model.errors import MalformedTextError
from wellfed.model.machine import Evidence, MigInstance, Sighting, pci_order
from wellfed.model.tree import read_int
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wellfed.model.tree import HostTree

KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
PCI_DEVICES = "/sys/bus/pci/devices"

IO_LINKS = "KFD io_links"

AMD_VENDOR_ID = 0x1002


class KfdGpu(Value):
    """One directory of KFD that is a GPU, or a partition of one."""

    kfd_node: int
    properties: Mapping[str, int]
    pci_address: str
    partition: int

    @property
    def uuid(self) -> str | None:
        """The UUID that rocminfo prints; None where the chip has none, for which ROCr prints ``GPU-XX``."""
        unique_id = self.properties.get("unique_id", 0)
        return f"GPU-{unique_id:016x}" if unique_id else None

    @property
    def target(self) -> str | None:
        """The compiler's name of the architecture: 90402 is ``gfx942``, 90010 ``gfx90a``."""
        version = self.properties.get("gfx_target_version", 0)
        if not version:
            return None
        return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def look(tree: HostTree) -> Sightings:
    """Read what KFD shows of every GPU; partitions of one GPU are one sighting."""
    names = tree.list(KFD_NODES)
    if not isinstance(names, tuple):
        reason = f"{KFD_NODES} is {names}: is the amdgpu driver loaded?"
        return Sightings((), (_unanswered(reason),))
    gpus: dict[str, list[KfdGpu]] = {}
    cpu_nodes: list[int] = []
    unanswered = []
    for kfd_node in sorted(int(name) for name in names if name.isdecimal()):
        text = tree.read(f"{KFD_NODES}/{kfd_node}/properties")
        if not isinstance(text, str):
            unanswered.append(_unanswered(f"KFD node {kfd_node}: properties are {text}"))
            continue
        properties = _parse_properties(text)
        if properties.get("cpu_cores_count"):
            cpu_nodes.append(kfd_node)
        if not properties.get("simd_count") or properties.get("vendor_id") != AMD_VENDOR_ID:
            continue
        place = _pci_place(tree, properties)
        if place is None:
            unanswered.append(
                _unanswered(f"KFD node {kfd_node}: its location_id fits no PCI function")
            )
            continue
        gpus.setdefault(place[0], []).append(KfdGpu(kfd_node, properties, *place))
    found = [_sighting(tree, parts, cpu_nodes) for parts in gpus.values()]
    return Sightings(
        tuple(sorted(found, key=lambda each: pci_order(each.pci_address))), tuple(unanswered)
    )


def _sighting(tree: HostTree, parts: list[KfdGpu], cpu_nodes: list[int]) -> Sighting:
    """Make one sighting of a GPU, whole or cut into partitions (DPX, TPX, QPX, CPX)."""
    whole = parts[0]
    device = f"{PCI_DEVICES}/{whole.pci_address}"
    mode = tree.read(f"{device}/current_compute_partition") or ""
    kind = f"{mode} partition".strip()
    slices, notes = [], []
    if len(parts) > 1:
        slices = sorted(parts, key=lambda part: (part.partition, part.kfd_node))
        notes.append(f"runs as {len(parts)} {kind}s, each a device of its own for HIP")
    return Sighting(
        whole.pci_address,
        "amd",
        name=tree.read(f"{device}/product_name") or whole.target,
        uuid=whole.uuid,
        evidence=(_io_link_evidence(tree, whole, cpu_nodes),),
        mig=tuple(
            MigInstance(
                part.uuid or "", part.partition, name=f"{mode} partition {part.partition}".strip()
            )
            for part in slices
        ),
        notes=tuple(notes),
    )


def _io_link_evidence(tree: HostTree, gpu: KfdGpu, cpu_nodes: list[int]) -> Evidence:
    """Read which CPU node a GPU hangs on, and believe it only where it can be told from a default.

    The driver writes the NUMA node of the PCI device into the GPU's first link, and 0 where the device has none
    (drivers/gpu/drm/amd/amdkfd/kfd_crat.c, kfd_fill_gpu_direct_io_link_to_cpu). The number is a NUMA node, while KFD
    itself counts its CPU nodes 0, 1, 2 …: where NUMA nodes are sparse the two can differ.
    """
    linked = _linked_cpu_node(tree, gpu, cpu_nodes)
    if linked is None:
        return Evidence(IO_LINKS, "no link to a CPU node")
    says = f"node {linked}"
    numa_node = read_int(tree, f"{PCI_DEVICES}/{gpu.pci_address}/numa_node")
    if linked == 0 and (numa_node is None or numa_node < 0):
        return Evidence(IO_LINKS, f"{says}, which the driver writes where it does not know")
    with_cpus = _nodes_with_cpus(tree)
    if with_cpus is None or linked not in with_cpus:
        return Evidence(IO_LINKS, f"{says}, not a NUMA node known to have CPUs")
    counted = tuple(with_cpus)[linked] if linked < len(with_cpus) else linked
    if linked in cpu_nodes and counted != linked:
        return Evidence(IO_LINKS, f"{says}, or the CPU node that KFD counts so, {counted}")
    return Evidence(IO_LINKS, says, linked)


def _linked_cpu_node(tree: HostTree, gpu: KfdGpu, cpu_nodes: list[int]) -> int | None:
    """Return where the lightest link to a CPU node leads; the first link where none leads to a node KFD calls a CPU."""
    links = []
    folder = f"{KFD_NODES}/{gpu.kfd_node}/io_links"
    for number in sorted(int(name) for name in tree.list(folder) or () if name.isdecimal()):
        link = _parse_properties(tree.read(f"{folder}/{number}/properties") or "")
        if "node_to" in link:
            links.append((link["node_to"] not in cpu_nodes, link.get("weight", 0), number, link))
    if not links:
        return None
    elsewhere, _, number, link = min(links, key=lambda each: each[:3])
    return None if elsewhere and number else link["node_to"]


def _pci_place(tree: HostTree, properties: Mapping[str, int]) -> tuple[str, int] | None:
    """Return the PCI address and the partition that ``domain`` and ``location_id`` stand for.

    ``location_id`` is bus, device and function in 16 bits, and the partition in bits 28 to 31 (kfd_topology.c,
    kfd_topology_add_device); for a while the partition was or-ed into the function instead. Older kernels write no
    ``domain``: there the PCI function must be the only one with that bus, device and function.
    """
    location = properties.get("location_id")
    if location is None:
        return None
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    slot = f"{bus:02x}:{device:02x}"
    known = tree.list(PCI_DEVICES) or ()
    if "domain" in properties:
        domain = f"{properties['domain']:04x}"
    else:
        ends = [name for name in known if name.endswith(f":{slot}.{function}")]
        if len(ends) != 1:
            return None
        domain = ends[0].partition(":")[0]
    address = f"{domain}:{slot}.{function}"
    if address not in known and f"{domain}:{slot}.0" in known:
        return f"{domain}:{slot}.0", function
    return address, location >> 28


def _nodes_with_cpus(tree: HostTree) -> NodeSet | None:
    text = tree.read("/sys/devices/system/node/has_cpu")
    if not isinstance(text, str):
        return None
    try:
        return NodeSet.parse(text)
    except MalformedTextError:
        return None


def _parse_properties(text: str) -> dict[str, int]:
    """Read lines of ``name value``; a value that is no number is left out."""
    pairs: Iterable[list[str]] = (line.split() for line in text.splitlines())
    return {
        pair[0]: int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[1].isascii() and pair[1].isdigit() and len(pair[1]) <= 20
    }


def _unanswered(reason: str) -> Unanswered:
    return Unanswered("amd", reason)


VENDOR = Vendor("amd", look)
