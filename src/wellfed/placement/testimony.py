"""Which CPU-bearing node follows from what one source says of a device?

Each function turns the words of a source into an `Evidence` whose ``cpu_node`` is a node with CPUs, or None. That a
source says nothing is as important as what it says: −1, a missing file, "all CPUs" and an empty list never become a node.
"""

from __future__ import annotations

from wellfed.model.cpuset import NodeSet
from wellfed.model.machine import Evidence
from wellfed.model.value import Value, replace
from wellfed.placement.distances import lacks_cpus, nearest, nodes_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.cpuset import CpuSet
    from wellfed.model.machine import Machine, PciDevice

SYSFS_NODE = "sysfs numa_node"
SYSFS_CPUS = "sysfs local_cpulist"
ONLY_NODE = "single CPU node"
SIBLINGS = "PCI siblings"

# Order of trust, smaller first. sysfs comes before the driver because the driver's lists are cut to the cpuset of the
# process that asks: rapidsai/dask-cuda#1358 and #1381 show the same GPU with other CPUs under another job request.
LOCAL_CPUS, NUMA_NODE, DESCRIBED, DRIVER_CPUS, DRIVER_NODES, DRIVER_SAYS, NEAR_NODE, BESIDE = range(
    8
)


class Vote(Value):
    """Evidence, and how much it is trusted against other evidence."""

    evidence: Evidence
    trust: int

    @property
    def node(self) -> int | None:
        """The node it names."""
        return self.evidence.cpu_node


class Setting(Value):
    """What every reading of evidence needs to know of the machine, found once."""

    machine: Machine
    online: CpuSet
    cpu_nodes: NodeSet


def by_numa_node(setting: Setting, number: int | None, given: Evidence | None) -> Vote:
    """Read ``numa_node``. A node without CPUs (GPU memory, CXL, all CPUs offline) stands for the nearest with CPUs."""
    evidence = given or Evidence(SYSFS_NODE, "not there" if number is None else str(number))
    if number is None or number < 0:
        return Vote(replace(evidence, cpu_node=None), NUMA_NODE)
    if number in setting.cpu_nodes:
        return Vote(replace(evidence, cpu_node=number), NUMA_NODE)
    node = setting.machine.node(number)
    if node is None:
        why = "which no node is" if setting.machine.nodes else "and no node is shown here"
        return Vote(replace(evidence, cpu_node=None, says=f"{number}, {why}"), NUMA_NODE)
    if not lacks_cpus(node):
        return Vote(replace(evidence, cpu_node=number), NUMA_NODE)
    near = nearest(setting.machine, NodeSet([number]), setting.cpu_nodes)
    if len(near) != 1:
        says = f"{number}, a node without CPUs"
        return Vote(replace(evidence, cpu_node=None, says=says), NEAR_NODE)
    says = f"{number}, a node without CPUs; nearest with CPUs is {near.first}"
    return Vote(replace(evidence, cpu_node=near.first, says=says), NEAR_NODE)


def by_local_cpus(setting: Setting, cpus: CpuSet | None, given: Evidence | None) -> Vote | None:
    """Read ``local_cpulist`` or ``local_cpus``. The kernel writes all online CPUs where it knows no node.

    drivers/pci/pci-sysfs.c, pci_dev_show_local_cpu: cpu_online_mask for NUMA_NO_NODE.
    """
    if cpus is None:
        return Vote(replace(given, cpu_node=None), LOCAL_CPUS) if given else None
    evidence = given or Evidence(SYSFS_CPUS, str(cpus) or "none")
    return Vote(replace(evidence, cpu_node=_node_of(setting, cpus)), LOCAL_CPUS)


def by_driver_cpus(setting: Setting, cpus: CpuSet, given: Evidence) -> Vote:
    """Read the CPUs that a driver calls local, which it has cut to the cpuset of this process.

    A driver that knows no node names every CPU, and the cut makes that the whole cpuset: on a cpuset of one node both
    look the same. So a list that fills a narrowed cpuset says nothing.
    """
    allowed = setting.machine.allowed.cpus & setting.online
    fills = allowed != setting.online and allowed <= cpus
    return Vote(
        replace(given, cpu_node=None if fills else _node_of(setting, cpus)),
        DRIVER_CPUS,
    )


def by_driver_nodes(setting: Setting, nodes: NodeSet, given: Evidence) -> Vote:
    """Read the nodes that a driver calls local; empty nodes and GPU memory among them are left out.

    A GB200 shows ``0,3-9,11-17`` for GPU 0: its CPU node and empty nodes kept for MIG (sgl-project/sglang#11208).
    """
    beside = nodes & setting.cpu_nodes
    mems = setting.machine.allowed.mems
    reachable = setting.cpu_nodes if mems is None else setting.cpu_nodes & mems
    fills = reachable != setting.cpu_nodes and reachable <= beside
    return Vote(
        replace(given, cpu_node=beside.first if len(beside) == 1 and not fills else None),
        DRIVER_NODES,
    )


def as_given(setting: Setting, given: Evidence, trust: int) -> Vote:
    """Take a source that names the CPU node itself by its word, unless that node surely has no CPUs."""
    node = None if given.cpu_node is None else setting.machine.node(given.cpu_node)
    if node is not None and lacks_cpus(node):
        return Vote(replace(given, cpu_node=None), trust)
    return Vote(given, trust)


def by_siblings(setting: Setting, device: PciDevice) -> Vote | None:
    """Look for devices below the same bridge, then below the same root complex, whose node the kernel knows.

    Functions behind one root complex are wired to one socket. Where its devices name several nodes, nothing follows.
    """
    for parent in device.parents:
        found: dict[int, str] = {}
        for other in setting.machine.pci:
            if other.address != device.address and (
                parent == other.address or parent in other.parents
            ):
                node = direct_node(setting, other)
                if node is not None:
                    found.setdefault(node, other.address)
        if len(found) == 1:
            ((node, address),) = found.items()
            return Vote(
                Evidence(SIBLINGS, f"{address}, also below {parent}, is on node {node}", node),
                BESIDE,
            )
        if found:
            says = f"devices below {parent} are on nodes {NodeSet(found)}"
            return Vote(Evidence(SIBLINGS, says), BESIDE)
    return None


def direct_node(setting: Setting, device: PciDevice) -> int | None:
    """Return the CPU-bearing node that sysfs itself gives for a device, None where it gives none or two."""
    if device.numa_node is not None and device.numa_node in setting.cpu_nodes:
        return device.numa_node
    return _node_of(setting, device.local_cpus) if device.local_cpus is not None else None


def only_node(setting: Setting) -> Vote | None:
    """Where one node has all CPUs, every device is beside it."""
    machine = setting.machine
    unsure = not machine.all_nodes_known or any(not node.cpus_recorded for node in machine.nodes)
    if unsure or len(setting.cpu_nodes) != 1:
        return None
    node = setting.cpu_nodes.first
    return Vote(Evidence(ONLY_NODE, f"no other node has CPUs than {node}", node), LOCAL_CPUS)


def _node_of(setting: Setting, cpus: CpuSet) -> int | None:
    """Return the one node that has the online ones of these CPUs; None for none, several, or all there are."""
    usable = cpus & setting.online
    if not usable or usable == setting.online:
        return None
    touched = nodes_of(setting.machine, usable)
    return touched.first if len(touched) == 1 else None
