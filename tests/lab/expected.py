"""Where do ranks and their memory belong in a guest, by its description alone?"""

from __future__ import annotations

import dataclasses

from tests.lab.topology import Device, Topology, beside, nearest
from wellfed.model.cpuset import CpuSet


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one rank belongs. Both empty where the description does not say beside which node its GPU is."""

    cpus: CpuSet
    """Every online CPU of the node beside the GPU."""
    memory_node: int | None
    """As Linux counts: that node, or the nearest to it that has memory."""


def places(topology: Topology) -> list[Place]:
    """Give each GPU's place, in PCI order."""
    gpus = [device for device in topology.devices if device.kind == "gpu"]
    return [_place(topology, gpu) for gpu in sorted(gpus, key=lambda gpu: gpu.bus)]


def _place(topology: Topology, device: Device) -> Place:
    node = beside(topology, device)
    if node is None:
        return Place(CpuSet(), None)
    holding = [number for number, each in enumerate(topology.nodes) if each.memory_mib]
    memory = topology.nodes[nearest(topology, node, holding)]
    return Place(topology.nodes[node].cpus - topology.offline, memory.linux_node)
