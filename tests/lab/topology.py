"""What does a guest look like: its CPUs, nodes and PCI functions, as data, for QEMU and for the test's answer."""

from __future__ import annotations

import dataclasses
import json
import pathlib

from wellfed.model.cpuset import CpuSet
from wellfed.model.machine import Machine

HERE = pathlib.Path(__file__).parent / "topologies"
CPU_MODEL = "max,vendor=GenuineIntel"
"""QEMU tells the guest of hardware threads where the vendor is Intel."""


class TopologyMistakeError(Exception):
    """A topology file says something that no guest can be."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A NUMA node; without CPUs or without memory where these are empty."""

    cpus: CpuSet
    memory_mib: int
    linux_node: int
    """The number Linux gives it: it numbers nodes in the order of the SRAT, CPUs first."""


@dataclasses.dataclass(frozen=True)
class Device:
    """A PCI function behind a root port (or a switch) on a node."""

    kind: str
    """``gpu``, ``nic`` or ``nvme``."""
    node: int | None
    """Index into `Topology.nodes`, None where the firmware says nothing (-1)."""
    bus: int
    behind_switch: bool
    queues: int


@dataclasses.dataclass(frozen=True)
class Topology:
    """A guest, as its file describes it."""

    name: str
    about: str
    sockets: int
    dies: int
    cores: int
    threads: int
    nodes: tuple[Node, ...]
    distances: tuple[tuple[int, ...], ...]
    devices: tuple[Device, ...]
    offline: CpuSet
    cpu_model: str
    kernel_arguments: str

    @property
    def num_cpus(self) -> int:
        """Count logical CPUs."""
        return self.sockets * self.dies * self.cores * self.threads

    @property
    def memory_mib(self) -> int:
        """Add up the memory of all nodes."""
        return sum(node.memory_mib for node in self.nodes)

    @property
    def online(self) -> CpuSet:
        """CPUs that are online once the guest runs."""
        return CpuSet(range(self.num_cpus)) - self.offline


def names() -> list[str]:
    """Give the topologies there are, sorted."""
    return sorted(path.stem for path in HERE.glob("*.json"))


def read(name: str) -> Topology:
    """Read a topology by name, or from a JSON file."""
    path = pathlib.Path(name) if name.endswith(".json") else HERE / f"{name}.json"
    if not path.exists():
        raise TopologyMistakeError(
            f"no topology {name!r}: there are {', '.join(names())}, or name a .json file"
        )
    return parse(path.stem, json.loads(path.read_text()))


def parse(name: str, said: dict) -> Topology:
    """Make a topology of what a file says, and check that it fits together."""
    nodes = tuple(
        Node(
            CpuSet.parse(node.get("cpus", "")),
            node.get("memory_mib", 0),
            node.get("linux_node", number),
        )
        for number, node in enumerate(said["nodes"])
    )
    devices = tuple(
        Device(kind, root["node"], root["bus"], root.get("switch", False), root.get("queues", 1))
        for root in said.get("pci", [])
        for kind in root["devices"]
    )
    made = Topology(
        name=name,
        about=said["about"],
        sockets=said.get("sockets", 1),
        dies=said.get("dies", 1),
        cores=said["cores"],
        threads=said.get("threads", 1),
        nodes=nodes,
        distances=tuple(map(tuple, said.get("distances", []))),
        devices=devices,
        offline=CpuSet.parse(said.get("offline", "")),
        cpu_model=said.get("cpu_model", CPU_MODEL),
        kernel_arguments=said.get("kernel_arguments", ""),
    )
    placed = [cpu for node in nodes for cpu in node.cpus]
    if sorted(placed) != list(range(made.num_cpus)):
        raise TopologyMistakeError(
            f"{name}: nodes hold CPUs {CpuSet(placed)}, sockets hold 0-{made.num_cpus - 1}"
        )
    return made


def of_machine(machine: Machine, *, cores_per_node: int, memory_mib: int = 384) -> dict:
    """Describe a guest with a machine's nodes, distances and GPUs, and few CPUs: TCG pays for each."""
    order = sorted(machine.nodes, key=lambda node: node.node)
    with_cpus = [node for node in order if node.cpus]
    nodes: list[dict] = []
    first = 0
    for node in order:
        told: dict = {"linux_node": node.node}
        if node.cpus:
            told["cpus"] = f"{first}-{first + cores_per_node - 1}"
            first += cores_per_node
        if node.memory_bytes:
            told["memory_mib"] = memory_mib
        nodes.append(told)
    position = {node.node: number for number, node in enumerate(order)}
    roots: dict[int | None, list[str]] = {}
    for gpu in machine.gpus:
        roots.setdefault(None if gpu.cpu_node is None else position[gpu.cpu_node], []).append("gpu")
    return {
        "about": f"The nodes and GPUs of {machine.name}, with {cores_per_node} CPUs a node.",
        "sockets": len(with_cpus),
        "cores": cores_per_node,
        "nodes": nodes,
        "distances": [[node.distance_to(other.node) for other in order] for node in order],
        "pci": [
            {"node": node, "bus": 16 + 24 * number, "switch": len(gpus) > 1, "devices": gpus}
            for number, (node, gpus) in enumerate(roots.items())
        ],
    }


def differences(topology: Topology, machine: Machine) -> list[str]:
    """Compare what wellfed reads in the guest with what the topology says; empty when they agree."""
    found: list[str] = []

    def compare(what: str, read: object, wanted: object) -> None:
        if read != wanted:
            found.append(f"{what}: read {read}, the topology says {wanted}")

    compare("online CPUs", str(machine.online), str(topology.online))
    compare("offline CPUs", str(machine.offline), str(topology.offline))
    linux = {index: node.linux_node for index, node in enumerate(topology.nodes)}
    for index, node in enumerate(topology.nodes):
        read_node = machine.node(linux[index])
        if read_node is None:
            found.append(f"node {linux[index]}: not read")
            continue
        compare(
            f"CPUs of node {read_node.node}", str(read_node.cpus), str(node.cpus - topology.offline)
        )
        compare(
            f"memory on node {read_node.node}", bool(read_node.memory_bytes), node.memory_mib > 0
        )
        for other, distance in enumerate(topology.distances[index] if topology.distances else ()):
            compare(f"distance {index} to {other}", read_node.distance_to(linux[other]), distance)
    compare("number of nodes", len(machine.nodes), len(topology.nodes))
    threads = {
        len(cpu.core)
        for cpu in machine.cpus
        if cpu.online and not cpu.core.mask & topology.offline.mask
    }
    if not topology.offline:
        compare("threads a core", threads, {topology.threads})
    compare("packages", len({cpu.package for cpu in machine.cpus if cpu.online}), topology.sockets)
    near = [beside(topology, device) for device in topology.devices if device.kind == "gpu"]
    compare(
        "nodes of GPUs",
        [gpu.cpu_node for gpu in machine.gpus],
        [None if node is None else linux[node] for node in near],
    )
    return found


def beside(topology: Topology, device: Device) -> int | None:
    """Give the index of the CPU-bearing node beside a device: its own, the nearest, or the only one there is."""
    bearing = [number for number, node in enumerate(topology.nodes) if node.cpus - topology.offline]
    if len(bearing) == 1:
        return bearing[0]
    return None if device.node is None else nearest(topology, device.node, bearing)


def nearest(topology: Topology, node: int, among: list[int]) -> int:
    """Give the index of the nearest of some nodes: this one if it is among them, else by distance, then by number."""
    if node in among:
        return node
    return min(among, key=lambda number: (topology.distances[node][number], number))
