"""What is in a host: CPUs, NUMA nodes, the PCI tree, GPUs, NICs, disks, and what this process may use."""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet, union
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Cpu(Value):
    """One logical CPU (hardware thread). Its number is an identity, never an index."""

    cpu: int
    online: bool = True
    node: int | None = None
    """NUMA node, None where the host does not say."""
    package: int | None = None
    die: int | None = None
    core: CpuSet = EMPTY
    """All online SMT siblings, itself included."""
    cluster: CpuSet | None = None
    """CPUs that share an L2 or a tag directory, where the kernel reports clusters."""
    l3: CpuSet | None = None
    """CPUs behind the same last-level cache (level 3), itself included."""
    kind: str | None = None
    """``performance`` or ``efficiency`` on a hybrid machine, else None."""


class HugePages(Value):
    """Explicit huge pages of one size on one node."""

    size_bytes: int
    num_total: int
    num_free: int


class NumaNode(Value):
    """One NUMA node: its number is an identity, numbers may be sparse, and it may lack CPUs or memory."""

    node: int
    cpus: CpuSet = EMPTY
    """Online CPUs of this node."""
    memory_bytes: int | None = None
    """MemTotal; 0 on a memory-less node; None where it is not recorded."""
    available_bytes: int | None = None
    """MemFree + Inactive(file): what can be had without swapping, None where it is not recorded."""
    distances: tuple[tuple[int, int], ...] = ()
    """(node, distance) to every node, itself included; empty where it is not recorded."""
    hbm_of: str | None = None
    """PCI address of the GPU whose on-board memory this node is, else None."""
    hugepages: tuple[HugePages, ...] = ()
    cpus_recorded: bool = True
    """False where a description names the node and not its CPUs: then an empty ``cpus`` says nothing."""

    @property
    def kind(self) -> str:
        """``cpu+memory``, ``cpu-only``, ``memory-only``, ``gpu-memory``, ``empty``, or ``unknown`` memory."""
        if self.hbm_of is not None:
            return "gpu-memory"
        if self.memory_bytes is None:
            return "cpu+unknown-memory" if self.cpus else "unknown-memory"
        if self.memory_bytes:
            return "cpu+memory" if self.cpus else "memory-only"
        return "cpu-only" if self.cpus else "empty"

    def distance_to(self, node: int) -> int | None:
        """Return the firmware's distance (10 = local), None where it is not recorded."""
        return dict(self.distances).get(node)


class Evidence(Value):
    """What one source says about where a device is."""

    source: str
    """Which source, as a person can look it up: ``sysfs numa_node``, ``NVML memory affinity`` …"""
    says: str
    """Its words: ``-1``, ``0-23,48-71``, ``Not Supported``."""
    cpu_node: int | None = None
    """The CPU-bearing node that follows from it, None where none follows."""


class PciLink(Value):
    """Speed and width of a PCIe link, now and at most. An idle GPU lowers its speed: that is no fault."""

    speed_gigatransfers_per_second: float | None = None
    width: int | None = None
    max_speed_gigatransfers_per_second: float | None = None
    max_width: int | None = None


class PciDevice(Value):
    """A PCI function or bridge."""

    address: str
    """``dddd:bb:dd.f``, lower case; the domain may have 8 digits (32-bit domains)."""
    class_code: str = ""
    """Six hexadecimal digits: ``030200`` is a 3D controller."""
    vendor: str = ""
    """Four hexadecimal digits: ``10de`` is NVIDIA."""
    device: str = ""
    numa_node: int | None = None
    """What sysfs says: −1 stays −1; None where the file is missing."""
    local_cpus: CpuSet | None = None
    parents: tuple[str, ...] = ()
    """Bridges above it, nearest first; then the root, such as ``pci0000:40``."""
    link: PciLink = PciLink()
    driver: str | None = None
    bound_node: int | None = None
    """CPU-bearing node of the device after `placement.locate`, None where it cannot be known."""


class MigInstance(Value):
    """A slice of a GPU that CUDA sees as a device of its own. It lies where its parent lies."""

    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None
    name: str = ""


class Gpu(Value):
    """One GPU, by its PCI position."""

    index: int
    """Position in PCI order, which is NVML's order."""
    pci_address: str
    vendor: str = "nvidia"
    """``nvidia``, ``amd``, ``intel``."""
    name: str | None = None
    uuid: str | None = None
    cpu_node: int | None = None
    """The CPU-bearing NUMA node beside it; None where it cannot be known."""
    hbm_node: int | None = None
    """The memory-only NUMA node that *is* this GPU's memory (Grace Hopper, POWER9), else None."""
    evidence: tuple[Evidence, ...] = ()
    visible_index: int | None = None
    """Position under CUDA_VISIBLE_DEVICES (ROCR/HIP for AMD), None outside it or where the order is unknown."""
    mig: tuple[MigInstance, ...] = ()
    local_cpus: CpuSet | None = None
    """CPUs the host calls local to it, before any cpuset narrows them."""
    disagreement: str | None = None
    """One sentence where sources contradict each other, with what was chosen and why."""
    drm_index: int | None = None
    """N of ``/dev/dri/renderN``, for ``ZE_AFFINITY_MASK`` and AMD tools."""
    accessible: bool | None = None
    """Whether this process may open it (device cgroup, container); CUDA numbers only those. None: not known."""


class Nic(Value):
    """One network card function."""

    pci_address: str | None
    interfaces: tuple[str, ...] = ()
    rdma_devices: tuple[str, ...] = ()
    cpu_node: int | None = None
    evidence: tuple[Evidence, ...] = ()


class Nvme(Value):
    """One NVMe controller."""

    pci_address: str | None
    name: str
    cpu_node: int | None = None
    evidence: tuple[Evidence, ...] = ()


class Allowed(Value):
    """What this process may use, and which limit said so."""

    cpus: CpuSet
    """Online ∩ affinity ∩ cpuset."""
    mems: NodeSet | None
    """Nodes memory may come from (Mems_allowed ∩ cpuset), None where it is not recorded."""
    affinity: CpuSet | None = None
    """sched_getaffinity or Cpus_allowed_list, None where it is not recorded."""
    cpuset_cpus: CpuSet | None = None
    cpuset_path: str | None = None
    """Directory of the cgroup that said so."""
    cpu_quota: float | None = None
    """CPUs' worth of time per period (``cpu.max``), None for no limit."""
    memory_limit_bytes: int | None = None
    """Smallest ``memory.max`` up to the root, None for no limit."""
    unknown: tuple[str, ...] = ()
    """What could not be read, one sentence each."""


class Machine(Value):
    """A host as wellfed knows it."""

    name: str
    cpus: tuple[Cpu, ...]
    nodes: tuple[NumaNode, ...]
    allowed: Allowed
    pci: tuple[PciDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    nvmes: tuple[Nvme, ...] = ()
    architecture: str | None = None
    live: bool = False
    assembled: bool = False
    notes: tuple[str, ...] = ()
    """Contradictions and gaps that a person should know, one sentence each."""
    all_nodes_known: bool = True
    """False where a description names only nodes with devices: then a single one need not be the only one."""

    @property
    def online(self) -> CpuSet:
        """All online CPUs."""
        return CpuSet(cpu.cpu for cpu in self.cpus if cpu.online)

    @property
    def offline(self) -> CpuSet:
        """CPUs that are present and offline."""
        return CpuSet(cpu.cpu for cpu in self.cpus if not cpu.online)

    @property
    def cpu_nodes(self) -> NodeSet:
        """Nodes that have an online CPU; the only ones a job's threads can be beside."""
        return NodeSet(node.node for node in self.nodes if node.cpus)

    @property
    def memory_nodes(self) -> NodeSet:
        """Nodes that hold host memory: with memory, and not a GPU's own."""
        return NodeSet(n.node for n in self.nodes if n.memory_bytes and n.hbm_of is None)

    def node(self, number: int) -> NumaNode | None:
        """Return the node of that number, None where the host has none."""
        return next((node for node in self.nodes if node.node == number), None)

    def cpu(self, number: int) -> Cpu | None:
        """Return the CPU of that number, None where the host has none."""
        return next((cpu for cpu in self.cpus if cpu.cpu == number), None)

    def cpus_of(self, nodes: Iterable[int]) -> CpuSet:
        """Return the online CPUs of some nodes."""
        wanted = set(nodes)
        return union(node.cpus for node in self.nodes if node.node in wanted)

    def cores(self, cpus: CpuSet) -> tuple[CpuSet, ...]:
        """Cut a set into physical cores, each restricted to the set, in order of their first CPU."""
        found: list[CpuSet] = []
        seen = 0
        for cpu in self.cpus:
            if cpu.online and cpu.cpu in cpus and not seen >> cpu.cpu & 1:
                core = (cpu.core or CpuSet([cpu.cpu])) & cpus
                seen |= core.mask
                found.append(core)
        return tuple(found)

    def gpu(self, index: int) -> Gpu | None:
        """Return the GPU at a position in PCI order, None where there is none."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    def gpu_at(self, pci_address: str) -> Gpu | None:
        """Return the GPU at a PCI address, None where there is none."""
        return next((gpu for gpu in self.gpus if gpu.pci_address == pci_address), None)


GPU_VENDORS = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
"""Makers of GPUs by PCI vendor (pci-ids.ucw.cz), in the order in which a host's GPUs are numbered."""


def pci_order(address: str) -> tuple[tuple[int, ...], str, int]:
    """Order addresses by number, as the kernel and NVML do: domain, bus, device, function.

    What is no address (``gpu2``, ``cuda10``: a description without any) comes first, by name and number.
    """
    try:
        numbers = tuple(int(part, 16) for part in address.replace(".", ":").split(":"))
    except ValueError:
        numbers = ()
    if len(numbers) == 4:
        return numbers, "", 0
    name = address.rstrip("0123456789")
    return (), name, int(address[len(name) :] or -1)


def gpu_order(vendor: str, address: str) -> tuple[int, tuple[int, ...], str, int]:
    """Order GPUs as they are numbered: NVIDIA's, AMD's, Intel's, others', and each vendor's by PCI address."""
    ranked = (*GPU_VENDORS.values(), vendor)
    return ranked.index(vendor), *pci_order(address)


def normal_pci_address(text: str) -> str:
    """Write a PCI address as sysfs does: ``00000000:3B:00.0`` and ``3b:00.0`` become ``0000:3b:00.0``.

    NVML prints domains with 8 digits, sysfs with at least 4 (include/linux/pci.h, "%04x:%02x:%02x.%d").
    """
    address = text.strip().lower()
    if address.count(":") == 1:
        address = "0000:" + address
    domain, _, rest = address.partition(":")
    if "." not in rest:
        rest += ".0"
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"


class Sighting(Value):
    """A GPU as one source (a driver, NVML, KFD) sees it; merged into the machine by PCI address."""

    pci_address: str
    vendor: str
    name: str | None = None
    uuid: str | None = None
    hbm_node: int | None = None
    evidence: tuple[Evidence, ...] = ()
    """``cpu_node`` is left None where the source names CPUs or nodes and only the machine can tell which node that is."""
    affinity_cpus: CpuSet | None = None
    """CPUs the source calls local."""
    affinity_nodes: NodeSet | None = None
    """Nodes the source calls local; may include empty and GPU-memory nodes."""
    mig: tuple[MigInstance, ...] = ()
    notes: tuple[str, ...] = ()
    """What the source cannot say of it and why, one sentence each: ``GPU is lost`` …"""
