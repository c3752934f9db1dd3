"""Which GPUs does Level Zero show to a process, and in which order?

``ZE_AFFINITY_MASK`` lists devices, or tiles as ``device.tile`` (Level Zero specification, "Affinity Mask"). It selects
and does not reorder. What a number counts depends on ``ZE_FLAT_DEVICE_HIERARCHY``: cards under COMPOSITE, single tiles
under FLAT and COMBINED. FLAT is the default since late 2023, and only the driver knows how many tiles a card has.
"""

from __future__ import annotations

from wellfed.model.job import VisibleDevices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellfed.model.machine import Machine

MASK, HIERARCHY = "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"

TILED = ("0bd", "0b6")
"""First digits of the PCI device numbers of Data Center GPU Max, the only cards with several tiles (pci-ids.ucw.cz)."""


def level_zero_devices(machine: Machine, environment: Mapping[str, str]) -> VisibleDevices:
    """Return the Intel GPUs as Level Zero numbers them in a process with this environment."""
    gpus = [g for g in machine.gpus if g.vendor == "intel" and g.accessible is not False]
    addresses = tuple(gpu.pci_address for gpu in gpus)
    text = environment.get(MASK)
    if not text or text == "default":
        return VisibleDevices(None, addresses, vendor="intel")
    tiled = any(
        device.address in addresses and device.device.startswith(TILED) for device in machine.pci
    )
    flat = environment.get(HIERARCHY, "FLAT") != "COMPOSITE"
    if flat and tiled and len(gpus) > 1:
        return VisibleDevices(
            MASK,
            addresses,
            order_known=False,
            notes=(
                f"{MASK}={text} counts tiles, and how many a card has only the driver knows:"
                f" {HIERARCHY}=COMPOSITE makes it count cards",
            ),
            num_devices=min(len(text.split(",")), len(gpus)),
            vendor="intel",
        )
    wanted: set[int] = set()
    notes = []
    for token in text.split(","):
        number = token.strip().partition(".")[0]
        if number.isascii() and number.isdigit() and len(number) < 9 and int(number) < len(gpus):
            wanted.add(int(number))
        else:
            notes.append(f"{MASK}: {token!r} is no device here")
    return VisibleDevices(
        MASK,
        tuple(address for index, address in enumerate(addresses) if index in wanted),
        notes=tuple(notes),
        vendor="intel",
    )
