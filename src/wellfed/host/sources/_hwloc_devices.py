"""Which devices does an hwloc XML topology show, and beside which CPUs do they hang?"""

from __future__ import annotations

import re

from wellfed.host.sources._base import damaged, gpu_vendor
from wellfed.host.sources._hwloc_elements import REMEDY, of_type, read_infos, read_number, read_set
from wellfed.model.cpuset import EMPTY, CpuSet
from wellfed.model.machine import (
    GPU_VENDORS,
    Evidence,
    Gpu,
    MigInstance,
    Nic,
    Nvme,
    PciDevice,
    gpu_order,
    normal_pci_address,
    pci_order,
)
from wellfed.model.value import Value, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from xml.etree.ElementTree import Element

LOCALITY = "hwloc locality (local_cpus)"
"""hwloc hangs a PCI bus below the object whose CPUs sysfs calls local to it."""
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", re.IGNORECASE)
PCI_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)
HOST_BRIDGE = re.compile(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-", re.IGNORECASE)
TELLING = ("02", "03", "01", "12", "0b40", "0c06")
"""Classes that carry a job's data or compute: network, display, storage, accelerators, InfiniBand."""
GPU_BACKENDS = ("NVML", "CUDA", "RSMI", "LevelZero")
"""Libraries that see GPUs, in the order in which their names and UUIDs are believed."""


class Device(Value):
    """A PCI function, or an operating system device outside PCI, in its place."""

    element: Element
    beside: CpuSet | None
    """CPUs of the object it hangs on; None where that is the whole machine, which is no locality."""
    pci: PciDevice | None
    software: tuple[Element, ...]
    """OSDev objects: ``cuda0``, ``mlx5_0``, ``nvme0n1``."""


class Kinds(Value):
    """How one version of hwloc writes ``osdev_type``: as numbers, or since version 3 as bits."""

    network: int
    rdma: int
    as_bits: bool

    def names(self, device: Device, wanted: int) -> tuple[str, ...]:
        """Return the names of a device's software of one kind."""
        said = ((each, read_number(each, "osdev_type")) for each in device.software)
        return tuple(
            each.get("name", "")
            for each, number in said
            if number is not None and (number & wanted if self.as_bits else number == wanted)
        )


KINDS_1_AND_2 = Kinds(network=2, rdma=3, as_bits=False)
KINDS_3 = Kinds(network=16, rdma=32, as_bits=True)
"""include/hwloc.h, hwloc_obj_osdev_type_e. hwloc 3 gives an RDMA device both bits."""


def devices_below(
    element: Element,
    beside: CpuSet | None,
    parents: tuple[str, ...],
    online: CpuSet,
    name: str,
) -> Iterator[Device]:
    for child in element.findall("object"):
        kind, near, above = child.get("type"), beside, parents
        if kind == "PCIDev":
            software = tuple(of_type(child, "OSDev"))
            yield Device(child, beside, _pci(child, beside, parents, name), software)
            continue
        if kind == "OSDev":
            yield Device(child, beside, None, (child,))
            continue
        if kind == "Bridge":
            upstream = _address(child, name)
            root = HOST_BRIDGE.match(child.get("bridge_pci", ""))
            if upstream:
                yield Device(child, beside, _pci(child, beside, parents, name), ())
                above = (upstream, *parents)
            elif root:
                above = (f"pci{root[1]}:{root[2]}", *parents)
        elif child.get("cpuset") is not None and kind != "Misc":
            shown = (read_set(child, "cpuset") or EMPTY) & online
            near = shown if shown and shown != online else beside
        yield from devices_below(child, near, above, online, name)


def _address(element: Element, name: str) -> str | None:
    text = element.get("pci_busid")
    if text is not None and not ADDRESS.match(text):
        raise damaged(name, f"pci_busid={text!r}", "a PCI address such as 0000:3b:00.0", REMEDY)
    return normal_pci_address(text) if text else None


def _pci(element: Element, beside: CpuSet | None, parents: tuple[str, ...], name: str) -> PciDevice:
    address = _address(element, name)
    if address is None:
        raise damaged(name, "a PCIDev without pci_busid", "its PCI address", REMEDY)
    spelled = PCI_TYPE.match(element.get("pci_type", ""))
    class_code, vendor, device = (
        (part.lower() for part in spelled.groups()) if spelled else ("",) * 3
    )
    return PciDevice(address, class_code, vendor, device, local_cpus=beside, parents=parents)


def telling(devices: Sequence[Device]) -> tuple[PciDevice, ...]:
    """Keep what computes or carries data, and the bridges above it, in PCI order."""
    kept = [
        device.pci
        for device in devices
        if device.pci and (device.software or device.pci.class_code.startswith(TELLING))
    ]
    above = {parent for pci in kept for parent in pci.parents}
    bridges = [device.pci for device in devices if device.pci and device.pci.address in above]
    return tuple(sorted((*kept, *bridges), key=lambda pci: pci_order(pci.address)))


def _evidence(device: Device, home: Mapping[int, int]) -> tuple[Evidence, ...]:
    if device.beside is None:
        return (Evidence(LOCALITY, "the whole machine"),)
    nodes = {home.get(cpu) for cpu in device.beside}
    return (Evidence(LOCALITY, str(device.beside), nodes.pop() if len(nodes) == 1 else None),)


def gpus_among(
    devices: Sequence[Device], home: Mapping[int, int], memory: Mapping[str, int]
) -> tuple[Gpu, ...]:
    """Return GPUs on PCI by what they are, and outside PCI by the first library that sees them."""
    found: dict[str, tuple[str, Device]] = {}
    for device in devices:
        if device.pci is not None:
            maker = gpu_vendor(device.pci.address, device.pci.vendor, device.pci.class_code)
            maker = maker or GPU_VENDORS.get(device.pci.vendor) if _backends(device) else maker
            if maker is not None:
                found[device.pci.address] = maker, device
    elsewhere = [device for device in devices if device.pci is None and _backends(device)]
    for backend in GPU_BACKENDS:
        seen = [device for device in elsewhere if backend in _backends(device)]
        if seen and not found:
            makers = {"RSMI": "amd", "LevelZero": "intel"}
            found = {
                device.element.get("name", ""): (makers.get(backend, "nvidia"), device)
                for device in seen
            }
    order = sorted(found, key=lambda each: gpu_order(found[each][0], each))
    parts = _partitions(found, elsewhere)
    return tuple(
        replace(
            _gpu(index, address, *found[address], home, memory), mig=tuple(parts.get(address, ()))
        )
        for index, address in enumerate(order)
    )


def _partitions(
    found: Mapping[str, tuple[str, Device]], elsewhere: Sequence[Device]
) -> dict[str, list[MigInstance]]:
    """Return the partitions of AMD GPUs that are cut into several (DPX, TPX, CPX), each a device of its own for HIP.

    ROCm SMI counts each. hwloc hangs those whose PCI function exists in the driver's words only beside the GPU,
    below the object whose CPUs are local: where that has one GPU, they are its.
    """
    pieces: dict[str, list[Element]] = {}
    by_place: dict[CpuSet | None, list[str]] = {}
    for address, (maker, device) in found.items():
        if maker == "amd" and device.pci is not None:
            pieces[address] = [each for each in device.software if _backend(each) == "RSMI"]
            by_place.setdefault(device.beside, []).append(address)
    for device in elsewhere:
        owners = by_place.get(device.beside, ())
        if len(owners) == 1 and _backend(device.element) == "RSMI":
            pieces[owners[0]].append(device.element)
    return {
        address: [
            MigInstance(_amd_uuid(read_infos(each)) or "", number, name=f"partition {number}")
            for number, each in enumerate(
                sorted(of_one, key=lambda e: pci_order(e.get("name", "")))
            )
        ]
        for address, of_one in pieces.items()
        if len(of_one) > 1
    }


def _gpu(
    index: int,
    address: str,
    maker: str,
    device: Device,
    home: Mapping[int, int],
    memory: Mapping[str, int],
) -> Gpu:
    infos = read_infos(device.element)
    for backend in reversed(GPU_BACKENDS):
        infos.update(_backends(device).get(backend, {}))
    return Gpu(
        index,
        address,
        vendor=maker,
        name=infos.get("GPUModel") or infos.get("PCIDevice"),
        uuid=infos.get("NVIDIAUUID") or _amd_uuid(infos) or infos.get("LevelZeroUUID"),
        hbm_node=memory.get(address),
        evidence=_evidence(device, home),
        local_cpus=device.beside,
    )


def _backends(device: Device) -> dict[str, dict[str, str]]:
    """Return what each GPU library says of a device; OpenCL is left out, which calls CPUs devices too."""
    said = ((_backend(each), read_infos(each)) for each in device.software)
    return {backend: infos for backend, infos in said if backend in GPU_BACKENDS}


def _backend(element: Element) -> str:
    return read_infos(element).get("Backend") or element.get("subtype") or ""


def _amd_uuid(infos: Mapping[str, str]) -> str | None:
    """Write the UUID as rocminfo prints it."""
    serial = infos.get("AMDUUID", "")
    return f"GPU-{int(serial, 16):016x}" if re.fullmatch(r"[0-9a-fA-F]{1,16}", serial) else None


def gpu_memory(top: Element) -> dict[str, int]:
    """Return the NUMA node that is each GPU's memory (POWER9, Grace), by the GPU's PCI address."""
    found = {}
    for element in of_type(top, "NUMANode"):
        address, number = read_infos(element).get("PCIBusID", ""), read_number(element)
        if element.get("subtype") == "GPUMemory" and ADDRESS.match(address) and number is not None:
            found[normal_pci_address(address)] = number
    return found


def nics_among(devices: Sequence[Device], home: Mapping[int, int], kinds: Kinds) -> tuple[Nic, ...]:
    nics = []
    for device in devices:
        rdma = kinds.names(device, kinds.rdma)
        network = kinds.names(device, kinds.network)
        interfaces = tuple(name for name in network if name not in rdma)
        is_card = device.pci is not None and device.pci.class_code.startswith(("02", "0c06"))
        if interfaces or rdma or is_card:
            address = device.pci.address if device.pci else None
            nics.append(Nic(address, interfaces, rdma, evidence=_evidence(device, home)))
    return tuple(sorted(nics, key=lambda nic: pci_order(nic.pci_address or "")))


def nvmes_among(devices: Sequence[Device], home: Mapping[int, int]) -> tuple[Nvme, ...]:
    """Return NVMe controllers; hwloc names their namespaces, ``nvme0n1`` of ``nvme0``."""
    found: dict[str, Nvme] = {}
    for device in devices:
        blocks = (
            re.match(r"(nvme\d+)(?:c\d+)?n\d+$", each.get("name", "")) for each in device.software
        )
        name = next((block[1] for block in blocks if block), None)
        is_controller = device.pci is not None and device.pci.class_code.startswith("0108")
        if name or is_controller:
            address = device.pci.address if device.pci else None
            name = name or str(address)
            found.setdefault(name, Nvme(address, name, evidence=_evidence(device, home)))
    return tuple(found.values())
