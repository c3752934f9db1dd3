"""Which GPUs, network cards and NVMe disks are there, and what does the host say of where each is?"""

from __future__ import annotations

from wellfed.host.facts import number_after
from wellfed.host.pci import (
    ACCELERATOR,
    DISPLAY,
    INFINIBAND,
    NETWORK,
    NVME,
    PciFunction,
    addresses_in,
    evidence_of,
    is_address,
)
from wellfed.model.machine import (
    GPU_VENDORS,
    Evidence,
    Gpu,
    Nic,
    Nvme,
    gpu_order,
    normal_pci_address,
    pci_order,
)
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from wellfed.host.facts import Facts
    from wellfed.model.machine import NumaNode

    Pci = dict[str, PciFunction]

DISCRETE = {
    "nvidia": ("0300", "0302"),
    "amd": ("0300", "0302", "0380", "1200"),
    "intel": ("0300", "0302", "0380"),
}
"""Classes under which they appear. NVIDIA's audio (0403), USB (0c03) and NVSwitch (0680) functions are no GPUs."""
VGA = "0300"
INTEL_INTEGRATED = ":00:02.0"
"""Where every Intel processor has its own graphics unit; a card is never there."""
FOREIGN_DRIVERS = ("vfio-pci", "pci-stub", "xen-pciback", "nouveau", "radeon")
"""Drivers of a guest or of a screen: CUDA and ROCm do not see what they hold."""
NVIDIA_PROC = "/proc/driver/nvidia/gpus"


class DriverWord(Value):
    """What /proc/driver/nvidia says of one GPU."""

    name: str | None = None
    uuid: str | None = None
    numa_status: str | None = None
    hbm_node: int | None = None
    excluded: bool = False


def read_gpus(facts: Facts, pci: Pci, nodes: Sequence[NumaNode]) -> tuple[Gpu, ...]:
    """Return the GPUs that compute, NVIDIA's first and each vendor's in PCI order, as NVML counts.

    Their evidence is told, and ``cpu_node`` left for `placement.locate`. Those that no process here can use are
    kept and not ``accessible``; those that no driver of this host drives come after the others of their vendor.
    """
    said = _driver_words(facts)
    vendor_of = {
        address: vendor
        for address, function in pci.items()
        if (vendor := _gpu_vendor(facts, function, said)) is not None
    }
    vendor_of |= {address: "nvidia" for address in said}
    closed = _closed(facts, pci, vendor_of, said)

    def position(address: str) -> tuple[object, ...]:
        vendor, *place = gpu_order(vendor_of[address], address)
        return vendor, closed.get(address, False), *place

    order = sorted(vendor_of, key=position)
    return tuple(
        Gpu(
            index=index,
            pci_address=address,
            vendor=vendor_of[address],
            name=word.name,
            uuid=word.uuid,
            hbm_node=word.hbm_node,
            evidence=_evidence(facts, pci.get(address), pci, nodes, word),
            local_cpus=pci[address].device.local_cpus if address in pci else None,
            drm_index=_drm_index(facts, pci[address]) if address in pci else None,
            accessible=False if address in closed else None,
        )
        for index, address in enumerate(order)
        for word in (said.get(address, DriverWord()),)
    )


def read_nics(facts: Facts, pci: Pci, nodes: Sequence[NumaNode]) -> tuple[Nic, ...]:
    """Return the network cards in PCI order: functions with an interface or an RDMA device, and idle ones.

    Idle virtual functions (SR-IOV) are left out. A card on another bus (Hyper-V's) has no PCI address.
    """
    interfaces = _class_members(facts, "net")
    rdma = _class_members(facts, "infiniband")
    cards = {address for address in (*interfaces.values(), *rdma.values()) if address}
    cards |= {
        address
        for address, function in pci.items()
        if function.device.class_code.startswith((NETWORK, INFINIBAND))
        and not _is_virtual_function(facts, function)
    }
    nics = [
        Nic(
            pci_address=address,
            interfaces=tuple(name for name, card in interfaces.items() if card == address),
            rdma_devices=tuple(name for name, card in rdma.items() if card == address),
            evidence=evidence_of(facts, pci[address], pci, nodes) if address in pci else (),
        )
        for address in sorted(cards, key=pci_order)
    ]
    elsewhere = tuple(Nic(None, (name,)) for name, card in interfaces.items() if not card)
    return (*nics, *elsewhere)


def read_nvmes(facts: Facts, pci: Pci, nodes: Sequence[NumaNode]) -> tuple[Nvme, ...]:
    """Return the NVMe controllers by name; one reached over a network has no PCI address."""
    found = _class_members(facts, "nvme")
    placed = set(found.values())
    for address, function in pci.items():
        if function.device.class_code.startswith(NVME) and address not in placed:
            # Older kernels register it as a misc device; without a driver there is no name, and nothing to feed from.
            names = facts.tree.list(f"{function.path}/misc") or ()
            found |= {name: address for name in names if number_after("nvme", name) is not None}
    return tuple(
        Nvme(
            address or None,
            name,
            None,
            evidence_of(facts, pci[address], pci, nodes) if address in pci else (),
        )
        for name, address in sorted(found.items(), key=lambda item: _natural(item[0]))
    )


def _gpu_vendor(facts: Facts, function: PciFunction, said: dict[str, DriverWord]) -> str | None:
    """Return whose GPU a function is; None for anything else, such as a server's own VGA chip."""
    device = function.device
    vendor = GPU_VENDORS.get(device.vendor)
    if vendor is None or device.class_code[:4] not in DISCRETE[vendor]:
        return None
    if vendor == "intel" and device.address.endswith(INTEL_INTEGRATED):
        return None
    if vendor == "amd" and device.class_code.startswith(VGA):
        # Servers of the 2000s have an ATI chip on plain PCI for their console.
        on_express = device.link.max_speed_gigatransfers_per_second is not None
        if device.driver != "amdgpu" and not on_express:
            return None
    if device.address not in said and _is_virtual_function(facts, function):
        return None
    return vendor


def _closed(
    facts: Facts, pci: Pci, vendor_of: dict[str, str], said: dict[str, DriverWord]
) -> dict[str, bool]:
    """Return the GPUs that no process here can use; True: no driver of this host drives them, so NVML counts none.

    NVIDIA's container runtime shows a container only its own GPUs under /proc/driver/nvidia/gpus, while
    /sys/bus/pci shows all of the host.
    """
    closed = {}
    for address, vendor in vendor_of.items():
        driver = pci[address].device.driver if address in pci else None
        if address in said and said[address].excluded:
            closed[address] = True
            reason = "NVIDIA's driver was told to exclude it"
        elif driver in FOREIGN_DRIVERS:
            closed[address] = True
            reason = f"the driver {driver} has it, which is for other uses than computing"
        elif vendor == "nvidia" and said and address not in said:
            closed[address] = False
            reason = f"{NVIDIA_PROC} does not show it here, as in a container that was not given it"
        else:
            continue
        facts.remark("closed GPU", f"GPU {address} cannot be used by this process: {reason}")
    return closed


def _evidence(
    facts: Facts,
    function: PciFunction | None,
    pci: Pci,
    nodes: Sequence[NumaNode],
    word: DriverWord,
) -> tuple[Evidence, ...]:
    evidence = evidence_of(facts, function, pci, nodes) if function else ()
    if word.numa_status is None:
        return evidence
    return (*evidence, Evidence("/proc/driver/nvidia numa_status", word.numa_status))


def _driver_words(facts: Facts) -> dict[str, DriverWord]:
    """Read NVIDIA's /proc files by PCI address; empty without the driver."""
    found = {}
    for name in facts.tree.list(NVIDIA_PROC) or ():
        address = normal_pci_address(name)
        if not is_address(address):
            continue
        about = _fields(facts, f"{NVIDIA_PROC}/{name}/information")
        uuid = about.get("GPU UUID", "?")
        model = about.get("Model", "Unknown")
        status = _fields(facts, f"{NVIDIA_PROC}/{name}/numa_status")
        node = number_after("", status.get("Node", ""))
        is_online = status.get("Status", "").lower() == "online"
        found[address] = DriverWord(
            # The driver prints question marks until a process has opened the GPU once.
            name=None if model == "Unknown" else model,
            uuid=None if "?" in uuid else uuid,
            numa_status=", ".join(f"{k} {status[k]}" for k in ("Node", "Status") if k in status)
            or None,
            hbm_node=node if is_online else None,
            excluded=about.get("GPU Excluded", about.get("Blacklisted", "No")) == "Yes",
        )
    return found


def _fields(facts: Facts, path: str) -> dict[str, str]:
    """Read lines such as ``GPU UUID: \t GPU-5d…``."""
    lines = (facts.tree.read(path) or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _class_members(facts: Facts, kind: str) -> dict[str, str]:
    """Return each member of a device class with the PCI function that it belongs to, empty for none.

    Purely virtual ones (lo, bridges, veth of a hundred pods, software RDMA) and USB adapters are left out.
    """
    virtual = set(facts.tree.list(f"/sys/devices/virtual/{kind}") or ())
    found = {}
    for name in facts.tree.list(f"/sys/class/{kind}") or ():
        if name in virtual:
            continue
        folder = f"/sys/class/{kind}/{name}"
        path = facts.tree.link(folder)
        if path == folder:
            path = facts.tree.link(f"{folder}/device")
        if not isinstance(path, str) or "/usb" in path or path.startswith("/sys/class/"):
            continue
        if kind != "nvme" and path.startswith("/sys/devices/virtual/"):
            continue
        above = [part for part in addresses_in(path) if is_address(part)]
        if above or kind != "infiniband":
            found[name] = above[0] if above else ""
    return found


def _is_virtual_function(facts: Facts, function: PciFunction) -> bool:
    return isinstance(facts.tree.link(f"{function.path}/physfn"), str)


def _drm_index(facts: Facts, function: PciFunction) -> int | None:
    """Return N of the GPU's renderN."""
    if not function.device.class_code.startswith((DISPLAY, ACCELERATOR)):
        return None
    numbers = (
        number_after("renderD", name) for name in facts.tree.list(f"{function.path}/drm") or ()
    )
    return next((number for number in numbers if number is not None), None)


def _natural(name: str) -> tuple[str, int]:
    """Order nvme2 before nvme10."""
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or -1)
