"""Beside which CPUs is each GPU, NIC and disk?

This file alone decides it. Sources only say what they see; here they are weighed, and where they contradict each other
the choice is shown with its reason. What no source tells stays None: a device without a node is better left unbound
than bound to node 0.
"""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY, NodeSet
from wellfed.model.machine import Evidence, Gpu, gpu_order, normal_pci_address
from wellfed.model.value import Value, replace
from wellfed.placement.testimony import (
    BESIDE,
    DESCRIBED,
    DRIVER_SAYS,
    LOCAL_CPUS,
    NUMA_NODE,
    ONLY_NODE,
    SIBLINGS,
    Setting,
    Vote,
    as_given,
    by_driver_cpus,
    by_driver_nodes,
    by_local_cpus,
    by_numa_node,
    by_siblings,
    direct_node,
    only_node,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeVar

    from wellfed.model.cpuset import CpuSet
    from wellfed.model.machine import Machine, Nic, Nvme, PciDevice, Sighting

    Mover = TypeVar("Mover", Nic, Nvme)

OWN_WORDS = (ONLY_NODE, SIBLINGS)
"""What an earlier call concluded is concluded again, not believed."""

DRIVER_NAMES = {"nvidia": "NVML", "amd": "KFD"}
"""Whose words a sighting is, where it brings no evidence text of its own."""


def locate(machine: Machine, sightings: Sequence[Sighting] = ()) -> Machine:
    """Return the machine with the node of every device, from sysfs, the given description and what drivers saw.

    ``cpu_node`` is always a node with CPUs. ``hbm_node`` is the node that is a GPU's own memory; such nodes get
    ``hbm_of`` and are never a place for a job's pages.
    """
    seen = {normal_pci_address(each.pci_address): each for each in sightings}
    machine = _with_sighted(machine, seen)
    hbm, hbm_notes = _gpu_memory(machine, seen)
    nodes = tuple(
        replace(node, hbm_of=hbm[node.node]) if node.node in hbm else node for node in machine.nodes
    )
    machine = replace(machine, nodes=nodes)
    setting = Setting(machine, machine.online, machine.cpu_nodes)
    pci = {device.address: device for device in machine.pci}
    owners = {address: node for node, address in hbm.items()}
    gpus = tuple(
        _located_gpu(setting, gpu, seen.get(gpu.pci_address), pci.get(gpu.pci_address), owners)
        for gpu in machine.gpus
    )
    notes = (
        *machine.notes,
        *hbm_notes,
        *_sighting_notes(gpus, seen),
        *_doubts(setting, gpus),
    )
    return replace(
        machine,
        pci=_with_bound_nodes(setting, gpus),
        gpus=gpus,
        nics=tuple(_located(setting, nic, pci) for nic in machine.nics),
        nvmes=tuple(_located(setting, nvme, pci) for nvme in machine.nvmes),
        notes=tuple(dict.fromkeys(notes)),
    )


class Place(Value):
    """Where a device is, and why."""

    node: int | None
    evidence: tuple[Evidence, ...]
    disagreement: str | None = None


def _located_gpu(
    setting: Setting,
    gpu: Gpu,
    sighting: Sighting | None,
    device: PciDevice | None,
    owners: dict[str, int],
) -> Gpu:
    """Weigh everything said of one GPU, and take its identity from the driver where that knows it."""
    drivers = _driver_votes(setting, sighting) if sighting is not None else []
    again = {vote.evidence.source for vote in drivers}
    given = [evidence for evidence in gpu.evidence if evidence.source not in again]
    votes = _votes(setting, given, device, gpu.local_cpus) + drivers
    place = _weigh(setting, votes, device)
    named = sighting or gpu
    return replace(
        gpu,
        name=gpu.name or named.name,
        uuid=gpu.uuid or named.uuid,
        mig=named.mig or gpu.mig,
        local_cpus=gpu.local_cpus if device is None else gpu.local_cpus or device.local_cpus,
        cpu_node=place.node,
        hbm_node=owners.get(gpu.pci_address),
        evidence=place.evidence,
        disagreement=place.disagreement,
    )


def _located(setting: Setting, device: Mover, pci: Mapping[str, PciDevice]) -> Mover:
    """Weigh everything said of a network card or a disk."""
    said = _votes(setting, device.evidence, pci.get(device.pci_address or ""))
    place = _weigh(setting, said)
    return replace(device, cpu_node=place.node, evidence=place.evidence)


def _votes(
    setting: Setting,
    given: Iterable[Evidence],
    device: PciDevice | None,
    local_cpus: CpuSet | None = None,
) -> list[Vote]:
    """Read sysfs and every source that came with the device; its words are kept, its node is found here."""
    votes: list[Vote] = []
    left: list[Evidence] = []
    numa_words = cpus_words = None
    for evidence in given:
        if evidence.source in OWN_WORDS:
            continue
        if device is not None and "numa_node" in evidence.source:
            numa_words = evidence
        elif device is not None and "local_cpu" in evidence.source:
            cpus_words = evidence
        else:
            left.append(evidence)
    if device is not None:
        local_cpus = device.local_cpus if device.local_cpus is not None else local_cpus
        # A description by another tool brings its own words, and then sysfs said nothing at all.
        if numa_words or device.numa_node is not None or not (cpus_words or left):
            votes.append(by_numa_node(setting, device.numa_node, numa_words))
        by_cpus = by_local_cpus(setting, local_cpus, cpus_words)
        votes += [by_cpus] if by_cpus is not None else []
    for evidence in left:
        beside = device is not None and evidence.source.startswith("PCI ")
        votes.append(as_given(setting, evidence, BESIDE if beside else DESCRIBED))
    if device is None and local_cpus is not None and not any(v.node is not None for v in votes):
        by_cpus = by_local_cpus(setting, local_cpus, Evidence("local CPUs", str(local_cpus)))
        votes += (
            [by_cpus] if by_cpus is not None and (by_cpus.node is not None or not votes) else []
        )
    return votes


def _driver_votes(setting: Setting, sighting: Sighting) -> list[Vote]:
    """Read what a driver says: its lists are matched to its own words by name, so that nothing is shown twice."""
    driver = DRIVER_NAMES.get(sighting.vendor, sighting.vendor)
    cpus_words = Evidence(f"{driver} CPU affinity", str(sighting.affinity_cpus))
    nodes_words = Evidence(f"{driver} memory affinity", str(sighting.affinity_nodes))
    votes: list[Vote] = []
    left: list[Evidence] = []
    for evidence in sighting.evidence:
        if sighting.affinity_cpus is not None and "CPU affinity" in evidence.source:
            cpus_words = evidence
        elif sighting.affinity_nodes is not None and "memory affinity" in evidence.source:
            nodes_words = evidence
        else:
            left.append(evidence)
    if sighting.affinity_cpus is not None:
        votes.append(by_driver_cpus(setting, sighting.affinity_cpus, cpus_words))
    if sighting.affinity_nodes is not None:
        votes.append(by_driver_nodes(setting, sighting.affinity_nodes, nodes_words))
    for evidence in left:
        if evidence.cpu_node is None and "NUMA node" in evidence.source:
            evidence = _own_node(setting, evidence, sighting.hbm_node)
        votes.append(as_given(setting, evidence, DRIVER_SAYS))
    return votes


def _own_node(setting: Setting, evidence: Evidence, number: int | None) -> Evidence:
    """Read ``nvmlDeviceGetNumaNodeId``: the node that is the GPU's memory. A node with CPUs cannot be that.

    On hosts whose GPUs are no NUMA nodes some drivers give the CPU node instead of "Not Supported"; then it is
    evidence for ``cpu_node`` like any other.
    """
    return replace(evidence, cpu_node=number) if number in setting.cpu_nodes else evidence


def _weigh(setting: Setting, votes: list[Vote], device: PciDevice | None = None) -> Place:
    """Take the most trusted source that names a node; say so where another names a different one."""
    alone = only_node(setting)
    described = {vote.node for vote in votes if vote.trust == DESCRIBED} - {None}
    if alone is not None and described <= {alone.node}:
        return Place(alone.node, (*(vote.evidence for vote in votes), alone.evidence))
    if device is not None and all(vote.node is None for vote in votes):
        beside = by_siblings(setting, device)
        votes = [*votes, beside] if beside is not None else votes
    evidence = tuple(vote.evidence for vote in votes)
    naming = sorted((vote for vote in votes if vote.node is not None), key=lambda vote: vote.trust)
    if not naming:
        return Place(None, evidence)
    chosen, why = _choose(naming)
    if all(vote.node == chosen.node for vote in naming):
        return Place(chosen.node, evidence)
    said = ", ".join(f"{vote.evidence.source} names node {vote.node}" for vote in naming)
    return Place(chosen.node, evidence, f"{said}: node {chosen.node} is taken, because {why}")


def _choose(naming: list[Vote]) -> tuple[Vote, str]:
    """Choose between contradicting sources: where sysfs contradicts itself, the driver decides."""
    first = naming[0]
    second = next((vote for vote in naming if vote.trust == NUMA_NODE), None)
    if first.trust == LOCAL_CPUS and second is not None and second.node != first.node:
        others = {vote.node for vote in naming if vote.trust not in (LOCAL_CPUS, NUMA_NODE)}
        if second.node in others and first.node not in others:
            return second, "sysfs contradicts itself and the driver names this one"
        return first, "CPUs are what a process is bound to"
    if first.trust in (LOCAL_CPUS, NUMA_NODE):
        return (
            first,
            "sysfs shows the hardware, and a driver what the cpuset of its caller leaves of it",
        )
    return first, f"{first.evidence.source} is the more direct of them"


def _with_sighted(machine: Machine, seen: dict[str, Sighting]) -> Machine:
    """Add GPUs that only a driver sees (no sysfs, as in WSL), and note which ones a driver does not show us."""
    known = {gpu.pci_address for gpu in machine.gpus}
    added = [
        Gpu(0, address, vendor=sighting.vendor)
        for address, sighting in seen.items()
        if address not in known
    ]
    gpus = machine.gpus
    if added:
        ordered = sorted((*gpus, *added), key=lambda gpu: gpu_order(gpu.vendor, gpu.pci_address))
        gpus = tuple(replace(gpu, index=index) for index, gpu in enumerate(ordered))
    asked = {sighting.vendor for sighting in seen.values()}
    return replace(
        machine,
        gpus=tuple(
            replace(gpu, accessible=gpu.pci_address in seen)
            if gpu.vendor in asked and gpu.accessible is None
            else gpu
            for gpu in gpus
        ),
    )


def _gpu_memory(machine: Machine, seen: dict[str, Sighting]) -> tuple[dict[int, str], list[str]]:
    """Tell which nodes are the memory of which GPU. A node with CPUs is nobody's; a node has one owner."""
    owners: dict[int, str] = {}
    notes: list[str] = []
    for gpu in machine.gpus:
        sighting = seen.get(gpu.pci_address)
        number = gpu.hbm_node
        also = sighting.hbm_node if sighting is not None else None
        if number is None:
            number = also
        elif also is not None and also != number and also not in machine.cpu_nodes:
            notes.append(
                f"the memory of GPU {gpu.pci_address} is node {number} for the kernel driver and node {also} for"
                f" its library: {number} is taken"
            )
        if number is None or number < 0 or number in machine.cpu_nodes:
            continue
        if number in owners:
            notes.append(
                f"node {number} is called the memory of GPU {owners[number]} and of GPU {gpu.pci_address}:"
                " the first is taken"
            )
            continue
        owners[number] = gpu.pci_address
    return owners, notes


def _with_bound_nodes(setting: Setting, gpus: tuple[Gpu, ...]) -> tuple[PciDevice, ...]:
    """Give each PCI device its node: a GPU's is decided, any other's is what sysfs itself says."""
    decided = {gpu.pci_address: gpu.cpu_node for gpu in gpus}
    alone = only_node(setting)
    fallback = None if alone is None else alone.node
    found = []
    for device in setting.machine.pci:
        node = decided.get(device.address, fallback)
        if node is None and device.address not in decided:
            node = direct_node(setting, device)
        found.append(device if device.bound_node == node else replace(device, bound_node=node))
    return tuple(found)


def _sighting_notes(gpus: tuple[Gpu, ...], seen: dict[str, Sighting]) -> list[str]:
    return [
        f"GPU {gpu.index} ({gpu.pci_address}): {note}"
        for gpu in gpus
        if gpu.pci_address in seen
        for note in seen[gpu.pci_address].notes
    ]


def _doubts(setting: Setting, gpus: tuple[Gpu, ...]) -> list[str]:
    """Say what a person should distrust: GPUs without a place, contradictions, and hosts with everything on one node."""
    doubts = [
        f"GPU {gpu.index} ({gpu.pci_address}): {gpu.disagreement}"
        for gpu in gpus
        if gpu.disagreement
    ]
    lost = [gpu for gpu in gpus if gpu.cpu_node is None]
    if lost:
        names = ", ".join(f"{gpu.index} ({gpu.pci_address})" for gpu in lost)
        says = sorted({f"{each.source} says {each.says}" for gpu in lost for each in gpu.evidence})
        doubts.append(
            f"no source tells which node GPU {names} is beside: {'; '.join(says) or 'nothing is recorded'}"
        )
    homes = {gpu.cpu_node for gpu in gpus}
    if len(setting.cpu_nodes) > 1 and len(gpus) > 1 and len(homes) == 1 and not lost:
        elsewhere = _direct_nodes(setting) - NodeSet(node for node in homes if node is not None)
        if not elsewhere and (setting.machine.pci or len(gpus) >= 4):
            nodes = len(setting.cpu_nodes)
            doubts.append(
                f"all {len(gpus)} GPUs and every other device claim node {gpus[0].cpu_node}, of {nodes} nodes with"
                " CPUs: some firmware says so of every device; compare with the maker's block diagram"
            )
    return doubts


def _direct_nodes(setting: Setting) -> NodeSet:
    found = EMPTY
    for device in setting.machine.pci:
        node = direct_node(setting, device)
        found |= NodeSet([node]) if node is not None else EMPTY
    return found
