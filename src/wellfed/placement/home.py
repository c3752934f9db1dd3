"""Where does a rank belong: beside which nodes, or at least which CPUs, are its GPUs?"""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet, union
from wellfed.model.value import Value, replace
from wellfed.placement.distances import nearest, nodes_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wellfed.model.machine import Gpu, Machine


class Home(Value):
    """Where one rank belongs."""

    gpus: tuple[str, ...]
    gpu_nodes: NodeSet | None
    """Nodes beside its GPUs; None where that cannot be known, or without a GPU."""
    nodes: NodeSet | None
    """Nodes whose CPUs it gets: those of its GPUs, or the nearest with allowed CPUs."""
    local: bool | None
    notes: tuple[str, ...] = ()
    cpus: CpuSet | None = None
    """CPUs beside its GPUs where those are known and their nodes are not; else None."""


def home_of(machine: Machine, allowed: CpuSet, addresses: tuple[str, ...]) -> Home:
    """Find the nodes whose CPUs a rank shall have; never a node by default."""
    gpus = [gpu for address in addresses if (gpu := machine.gpu_at(address)) is not None]
    if not gpus:
        return Home(addresses, None, None, None)
    lost = [gpu for gpu in gpus if not _has_known_cpus(machine, gpu)]
    nodes = NodeSet(gpu.cpu_node for gpu in gpus if gpu.cpu_node is not None and gpu not in lost)
    notes = tuple(f"{_name(gpu)}: {gpu.disagreement}" for gpu in gpus if gpu.disagreement)
    if lost:
        beside = [_local_cpus(machine, gpu) for gpu in lost]
        spanned = nodes_of(machine, union(beside))
        if not all(beside):
            return Home(addresses, _nodes_of_all(gpus), None, None, (*_doubts(lost), *notes))
        notes = (*_doubts(lost), *notes)
        if machine.cpus_of(spanned) != union(beside):
            cpus = union(beside) | machine.cpus_of(nodes)
            if cpus & allowed:
                return Home(addresses, _nodes_of_all(gpus), None, True, notes, cpus)
            notes = (*notes, f"none of the CPUs called local, {cpus}, is allowed here")
            return Home(addresses, _nodes_of_all(gpus), None, False, notes)
        notes = (*notes, f"the CPUs called local are those of nodes {spanned}")
        nodes |= spanned
    with_cpus = nodes_of(machine, allowed)
    empty = nodes - with_cpus
    if not empty:
        return Home(addresses, nodes, nodes, True, notes)
    near = nearest(machine, empty, with_cpus)
    names = ", ".join(_name(gpu) for gpu in gpus if gpu in lost or gpu.cpu_node in empty)
    note = f"no CPU of node {empty} beside {names} is allowed here"
    if near:
        note += f": the nearest allowed CPUs are on node {near}"
        return Home(addresses, nodes, (nodes & with_cpus) | near, False, (note, *notes))
    note += ", and which node is near is not recorded"
    return Home(addresses, nodes, (nodes & with_cpus) or None, False, (note, *notes))


def _has_known_cpus(machine: Machine, gpu: Gpu) -> bool:
    """Say whether it is known which CPUs are beside a GPU, be it that none of them is to be had.

    A description may name a node without its CPUs: then nothing is known, unless the driver's list was empty,
    which says that all of them are outside the cpuset.
    """
    node = machine.node(gpu.cpu_node) if gpu.cpu_node is not None else None
    return node is not None and bool(node.cpus or node.cpus_recorded or gpu.local_cpus == EMPTY)


def _local_cpus(machine: Machine, gpu: Gpu) -> CpuSet:
    """Return the CPUs that are called local to a GPU, by whole cores; none where all are.

    All of them is the kernel's word for not knowing (drivers/pci/pci-sysfs.c, pci_dev_show_local_cpu).
    """
    said = gpu.local_cpus or EMPTY
    local = union(core for core in machine.cores(machine.online) if core & said)
    return EMPTY if local == machine.online else local


def _nodes_of_all(gpus: Iterable[Gpu]) -> NodeSet | None:
    """Return the nodes beside GPUs where every one's is known, although its CPUs may not be."""
    nodes = {gpu.cpu_node for gpu in gpus}
    return None if None in nodes else NodeSet(node for node in nodes if node is not None)


def _doubts(lost: Iterable[Gpu]) -> tuple[str, ...]:
    """Say of each kind of GPU whose CPUs are not known what is missing."""
    nowhere = [gpu for gpu in lost if gpu.cpu_node is None]
    notes = []
    if nowhere:
        names = ", ".join(_name(gpu) for gpu in nowhere)
        notes.append(f"no source tells beside which node {names} is ({_evidence(nowhere[0])})")
    for gpu in lost:
        if gpu.cpu_node is not None:
            notes.append(f"which CPUs node {gpu.cpu_node} beside {_name(gpu)} has is not recorded")
    return tuple(notes)


def without_overlap(homes: Mapping[int, Home]) -> dict[int, Home]:
    """Forget local CPUs where they overlap without being the same: cores of one's own could then be dealt twice."""
    sets = {home.cpus for home in homes.values()}
    known = [cpus for cpus in sets if cpus is not None]
    if None not in sets and len(union(known)) == sum(map(len, known)):
        return dict(homes)
    return {rank: without_local_cpus(home) for rank, home in homes.items()}


def without_local_cpus(home: Home) -> Home:
    """Forget which CPUs are beside its GPUs where no node tells it too."""
    return home if home.cpus is None else replace(home, cpus=None, local=None)


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.pci_address})"


def _evidence(gpu: Gpu) -> str:
    said = [f"{each.source} {each.says}" for each in gpu.evidence]
    return ", ".join(said) or "nothing is recorded"
