"""Which GPUs does a process see, and in which order?

Every vendor's runtime reads its own variables in its own way; each way has its own file. None of them is asked here:
what only the driver can know (the order of mixed GPUs, UUIDs that are not recorded) is said to be unknown.
"""

from __future__ import annotations

from wellfed.model.job import VisibleDevices
from wellfed.model.machine import GPU_VENDORS
from wellfed.model.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellfed.model.machine import Machine


def visible_devices(
    machine: Machine, environment: Mapping[str, str], vendor: str = "nvidia"
) -> VisibleDevices:
    """Return the GPUs of one vendor as its runtime would number them in a process with this environment.

    >>> # CUDA_VISIBLE_DEVICES=3,1 on eight GPUs: GPU 3 is device 0, GPU 1 is device 1
    """
    if vendor == "nvidia":
        from wellfed.placement.visible_cuda import cuda_devices

        return cuda_devices(machine, environment)
    if vendor == "amd":
        from wellfed.placement.visible_rocm import rocm_devices

        return rocm_devices(machine, environment)
    if vendor == "intel":
        from wellfed.placement.visible_level_zero import level_zero_devices

        return level_zero_devices(machine, environment)
    return VisibleDevices(None, (), vendor=vendor)


def main_vendor(machine: Machine) -> str:
    """Return whose GPUs the jobs of this host run on; ``nvidia`` where it has none at all.

    Where a host has several kinds, a display adapter must not hide the accelerators.
    """
    present = {gpu.vendor for gpu in machine.gpus if gpu.accessible is not False}
    return next((vendor for vendor in GPU_VENDORS.values() if vendor in present), "nvidia")


def with_visibility(machine: Machine, visible: VisibleDevices) -> Machine:
    """Return the machine with `Gpu.visible_index` of that vendor's GPUs filled in; None outside, or order unknown."""
    listed = visible.gpus if visible.num_devices is None else visible.gpus[: visible.num_devices]
    position: dict[str, int] = {}
    for index, address in enumerate(listed if visible.order_known else ()):
        position.setdefault(address, index)
    return replace(
        machine,
        gpus=tuple(
            replace(gpu, visible_index=position.get(gpu.pci_address))
            if gpu.vendor == visible.vendor
            else gpu
            for gpu in machine.gpus
        ),
    )
