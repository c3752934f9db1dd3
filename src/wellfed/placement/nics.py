"""Which network cards are nearest to a GPU?

By the PCI tree first: a card below the same switch is reached without passing the processor, which is what GPUDirect
RDMA wants. Then by root complex, then by NUMA node. Nothing here changes what NCCL chooses.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.machine import Gpu, Machine, Nic, PciDevice


def nearest_nics(machine: Machine, gpu: Gpu) -> tuple[Nic, ...]:
    """Return the cards that are equally nearest, RDMA devices only where there are any; none where nothing is known."""
    devices = {device.address: device for device in machine.pci}
    rdma = [nic for nic in machine.nics if nic.rdma_devices] or list(machine.nics)
    ranked = [
        (how_far, nic) for nic in rdma if (how_far := _distance(devices, gpu, nic)) is not None
    ]
    best = min((how_far for how_far, _ in ranked), default=None)
    return tuple(nic for how_far, nic in ranked if how_far == best)


def nic_names(machine: Machine, gpu: Gpu) -> tuple[str, ...]:
    """Return the names of the nearest cards: RDMA devices (``mlx5_0``), else interfaces (``eth0``)."""
    found = [nic.rdma_devices or nic.interfaces for nic in nearest_nics(machine, gpu)]
    return tuple(dict.fromkeys(name for names in found for name in names))


def _distance(devices: dict[str, PciDevice], gpu: Gpu, nic: Nic) -> tuple[int, int] | None:
    """Measure: (0, bridges passed) below a common bridge, (1, 0) same root complex, (2, 0) same node; None: farther."""
    here, there = devices.get(gpu.pci_address), devices.get(nic.pci_address or "")
    if here is not None and there is not None and here.parents and there.parents:
        common = [parent for parent in here.parents if parent in there.parents]
        bridges = [parent for parent in common if not parent.startswith("pci")]
        if bridges:
            return 0, here.parents.index(bridges[0]) + there.parents.index(bridges[0])
        if common:
            return 1, 0
    if gpu.cpu_node is not None and gpu.cpu_node == nic.cpu_node:
        return 2, 0
    return None
