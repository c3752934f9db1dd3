"""What is in this host? One reading of /sys, /proc and the cgroups, live or recorded."""

from __future__ import annotations

from wellfed.host.allowed import read_allowed
from wellfed.host.cpus import read_cpus, read_online
from wellfed.host.devices import read_gpus, read_nics, read_nvmes
from wellfed.host.facts import Facts
from wellfed.host.nodes import read_nodes
from wellfed.host.pci import read_pci
from wellfed.model.machine import Machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.tree import HostTree


def read_machine(tree: HostTree) -> Machine:
    """Read a host: CPUs, nodes, PCI, devices with evidence of where they are, and what this process may use.

    ``cpu_node`` of every device is None: `placement.locate` decides it. What cannot be read is None or a note;
    TopologyError where not even a CPU is shown.
    """
    facts = Facts(tree)
    online, offline = read_online(facts)
    nodes = read_nodes(facts, online)
    node_of = {cpu: node.node for node in nodes for cpu in node.cpus}
    cpus = read_cpus(facts, online, offline, node_of)
    pci = read_pci(facts)
    gpus = read_gpus(facts, pci, nodes)
    nics = read_nics(facts, pci, nodes)
    nvmes = read_nvmes(facts, pci, nodes)
    allowed = read_allowed(facts, online)
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
