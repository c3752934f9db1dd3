"""What is in this host? One reading of /sys, /proc and the cgroups, live or recorded."""

from __future__ import annotations

from wellfed.host.allowed import read_allowed
from wellfed.host.cpus import read_cpus, read_presence
from wellfed.host.devices import read_gpus, read_nics, read_nvmes
from wellfed.host.facts import Facts
from wellfed.host.nodes import read_nodes
from wellfed.host.pci import read_pci
from wellfed.model.cpuset import CpuSet
from wellfed.model.machine import Machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.machine import Cpu, NumaNode
    from wellfed.model.tree import HostTree


def read_machine(tree: HostTree) -> Machine:
    """Read a host: CPUs, nodes, PCI, devices with evidence of where they are, and what this process may use.

    ``cpu_node`` of every device is None: `placement.locate` decides it. What cannot be read is None or a note;
    TopologyError where not even a CPU is shown.
    """
    facts = Facts(tree)
    presence = read_presence(facts)
    nodes = read_nodes(facts, presence.online)
    node_of = {cpu: node.node for node in nodes for cpu in node.cpus}
    cpus = read_cpus(facts, presence, node_of)
    _compare(facts, cpus, nodes)
    pci = read_pci(facts)
    gpus = read_gpus(facts, pci, nodes)
    nics = read_nics(facts, pci, nodes)
    nvmes = read_nvmes(facts, pci, nodes)
    allowed = read_allowed(facts, presence.online)
    architecture = tree.answer("uname machine")
    return Machine(
        name=tree.name,
        cpus=cpus,
        nodes=nodes,
        allowed=allowed,
        pci=tuple(function.device for function in pci.values()),
        gpus=gpus,
        nics=nics,
        nvmes=nvmes,
        architecture=architecture if isinstance(architecture, str) else None,
        live=tree.live,
        assembled=tree.assembled,
        notes=facts.notes,
    )


def _compare(facts: Facts, cpus: tuple[Cpu, ...], nodes: tuple[NumaNode, ...]) -> None:
    """Say where cores or packages and nodes cut through each other, as a guest's made-up topology does.

    A node may hold several packages, and a package several nodes; overlapping in part is a contradiction. What
    the node lists is taken, since the kernel allocates by it.
    """
    packages: dict[int, int] = {}
    for cpu in cpus:
        if cpu.package is not None:
            packages[cpu.package] = packages.get(cpu.package, 0) | 1 << cpu.cpu
    for node in nodes:
        for package, mask in packages.items():
            members = CpuSet.of_mask(mask)
            if node.cpus & members and node.cpus - members and members - node.cpus:
                facts.remark(
                    "packages against nodes",
                    f"node {node.node} has some CPUs of package {package} ({node.cpus & members}) and others "
                    f"({node.cpus - members}), as in a virtual machine with a made-up topology: nodes are taken as said",
                )
    node_of = {cpu.cpu: cpu.node for cpu in cpus}
    for cpu in cpus:
        if any(node_of[sibling] != cpu.node for sibling in cpu.core):
            facts.remark(
                "cores against nodes",
                f"CPUs {cpu.core} are called one core and are on different nodes: both are taken as said",
            )
