"""What does an NCCL topology (``NCCL_TOPO_FILE``, ``NCCL_TOPO_DUMP_FILE``) say of a host?"""

from __future__ import annotations

import re

from wellfed.host.sources._base import (
    GPU_CLASSES,
    Source,
    claim,
    damaged,
    gpu_vendor,
    parse_xml,
    root_tag,
)
from wellfed.model.cpuset import CpuSet, union
from wellfed.model.errors import MalformedTextError
from wellfed.model.machine import (
    Allowed,
    Evidence,
    Gpu,
    Machine,
    Nic,
    PciDevice,
    PciLink,
    gpu_order,
    normal_pci_address,
)
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from xml.etree.ElementTree import Element

REMEDY = "write it again on the host: NCCL_TOPO_DUMP_FILE=FILE before a job of one node"
ADDRESS = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?$", re.IGNORECASE)
INTERFACE = re.compile(r"(?:eth\d|en[opsPx]|em\d|bond|br\d|ib\d)")
"""Names of network interfaces, which NCCL's socket transport gives; what else names a net is an RDMA device."""
SOURCE_NAME = "NCCL topology numaid (from sysfs numa_node)"
"""NCCL writes there what it reads from sysfs numa_node (src/graph/xml.cc, ncclTopoGetXmlFromSys)."""


class Device(Value):
    """A ``<pci>`` element in its place."""

    pci: PciDevice
    element: Element


class Node(Value):
    """A ``<cpu>`` element: the CPUs of one NUMA node, and what hangs on it."""

    number: int | None
    """None: numaid is absent or negative."""
    cpus: CpuSet | None
    """None: no ``affinity``."""
    devices: tuple[Device, ...]
    nics_without_pci: tuple[Element, ...]
    says: str


def recognises(text: str) -> bool:
    """Look at the first element."""
    return root_tag(text) == "system"


def read(text: str, name: str) -> Machine:
    """Read the tree into a machine. Memory, distances, SMT siblings and limits are not in it."""
    root = parse_xml(text, name, remedy=REMEDY)
    nodes = [_node(element, name) for element in root.findall("cpu")]
    if not nodes:
        raise damaged(
            name, "no <cpu> element", "at least one, with the devices of its node", REMEDY
        )
    hosts = {element.get("host_hash") for element in root.findall("cpu")}
    if len(hosts) > 1:
        raise damaged(name, f"{len(hosts)} hosts (host_hash)", "one host", REMEDY)
    claims: dict[int, CpuSet | None] = {}
    for node in nodes:
        if node.number is not None:
            sets = [each for each in (claims.get(node.number), node.cpus) if each is not None]
            claims[node.number] = union(sets) if sets else None
    everything = union(node.cpus for node in nodes if node.cpus)
    known = claim(claims, homeless=everything)
    gpus, nics = _gpus(nodes, name), _nics(nodes)
    return Machine(
        name=name,
        cpus=known.cpus,
        nodes=known.nodes,
        allowed=Allowed(
            everything,
            None,
            unknown=("an NCCL topology does not say which CPUs and nodes a process may use",),
        ),
        pci=tuple(device.pci for node in nodes for device in node.devices),
        gpus=gpus,
        nics=nics,
        architecture=next((arch for e in root.iter("cpu") if (arch := e.get("arch"))), None),
        notes=(*known.notes, *_notes(nodes, gpus, nics)),
        all_nodes_known=False,
    )


def _node(element: Element, name: str) -> Node:
    says = element.get("numaid", "absent")
    number = int(says) if re.fullmatch(r"\d{1,4}", says) else None
    if number is None and says != "absent" and not re.fullmatch(r"-\d+", says):
        raise damaged(name, f"numaid={says!r}", "a node number, or -1", REMEDY)
    affinity = element.get("affinity", "").strip()
    try:
        cpus = CpuSet.parse_mask(affinity) if affinity else None
    except MalformedTextError as error:
        raise damaged(name, error.message, "an affinity mask", REMEDY) from None
    devices = tuple(_devices(element, number, (), name))
    return Node(number, cpus or None, devices, tuple(element.findall("nic")), says)


def _devices(
    element: Element, number: int | None, parents: tuple[str, ...], name: str
) -> Iterator[Device]:
    for child in element.findall("pci"):
        busid = child.get("busid", "")
        if not ADDRESS.match(busid):
            raise damaged(name, f"busid={busid!r}", "a PCI address such as 0000:3b:00.0", REMEDY)
        address = normal_pci_address(busid)
        yield Device(
            PciDevice(
                address,
                class_code=_hex(child, "class"),
                vendor=_hex(child, "vendor"),
                device=_hex(child, "device"),
                numa_node=number,
                parents=parents,
                link=_link(child),
            ),
            child,
        )
        yield from _devices(child, number, (address, *parents), name)


def _hex(element: Element, attribute: str) -> str:
    return element.get(attribute, "").strip().lower().removeprefix("0x")


def _link(element: Element) -> PciLink:
    """Read the link: NCCL records the most that both ends can do (src/graph/xml.cc, ncclTopoGetXmlFromSys)."""
    speed = re.match(r"\s*(\d{1,4}(?:\.\d{1,3})?)", element.get("link_speed", ""))
    width = element.get("link_width", "").strip()
    return PciLink(
        max_speed_gigatransfers_per_second=float(speed[1]) if speed else None,
        max_width=int(width) if re.fullmatch(r"[1-9]\d?", width) else None,
    )


def _maker(device: Device) -> str | None:
    """Name the maker of a GPU, None for any other device.

    Cloud providers leave the vendor out; then NCCL's own, NVIDIA, is meant, unless RCCL wrote its marks.
    """
    inside = device.element.find("gpu")
    made = gpu_vendor(device.pci.address, device.pci.vendor, device.pci.class_code)
    if inside is None and device.pci.class_code[:4] not in GPU_CLASSES:
        return None
    if inside is not None and (inside.get("gcn") or inside.find("xgmi") is not None):
        return "amd"
    return made or ("nvidia" if inside is not None or not device.pci.vendor else None)


def _gpus(nodes: Iterable[Node], name: str) -> tuple[Gpu, ...]:
    found: dict[str, tuple[str, Node]] = {}
    for node in nodes:
        for device in node.devices:
            maker, address = _maker(device), device.pci.address
            if maker and address in found:
                raise damaged(name, f"the GPU {address} twice", "each device once", REMEDY)
            if maker:
                found[address] = maker, node
    gpus: list[Gpu] = []
    for address in sorted(found, key=lambda each: gpu_order(found[each][0], each)):
        maker, node = found[address]
        evidence = (Evidence(SOURCE_NAME, node.says, node.number),)
        gpus.append(Gpu(len(gpus), address, vendor=maker, evidence=evidence))
    return tuple(gpus)


def _nics(nodes: Iterable[Node]) -> tuple[Nic, ...]:
    nics = []
    for node in nodes:
        evidence = (Evidence(SOURCE_NAME, node.says, node.number),)
        for device in node.devices:
            inside = device.element.findall("nic")
            if inside or device.pci.class_code.startswith("02"):
                nics.append(Nic(device.pci.address, *_names(inside), evidence=evidence))
        nics += [Nic(None, *_names([nic]), evidence=evidence) for nic in node.nics_without_pci]
    return tuple(nics)


def _names(nics: Iterable[Element]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return network interfaces and RDMA devices; NCCL joins the ports of a card with ``+``."""
    names = [
        each
        for nic in nics
        for net in nic.findall("net")
        for each in net.get("name", "").split("+")
        if each
    ]
    interfaces = [each for each in names if INTERFACE.match(each)]
    devices = [each for each in names if each not in interfaces]
    return tuple(dict.fromkeys(interfaces)), tuple(dict.fromkeys(devices))


def _notes(nodes: list[Node], gpus: tuple[Gpu, ...], nics: tuple[Nic, ...]) -> Iterable[str]:
    yield (
        "an NCCL topology records no memory sizes, distances or SMT siblings: "
        "every CPU counts as a core of its own"
    )
    silent = sorted(node.number for node in nodes if node.cpus is None and node.number is not None)
    if silent:
        yield f"node {CpuSet(silent)} has no affinity in this file: its CPUs are unknown"
    nowhere = [device for node in nodes if node.number is None for device in node.devices]
    if nowhere:
        yield f"{len(nowhere)} PCI functions hang on numaid −1: their node is unknown"
    unnamed = [
        device
        for node in nodes
        for device in node.devices
        if not device.pci.class_code
        and device.element.find("gpu") is None
        and not len(device.element)
    ]
    if unnamed:
        yield (
            f"{len(unnamed)} PCI functions have no class: "
            "whether GPUs are among them, this file does not say"
        )
    if len(nodes) == 1 and len(gpus) > 1:
        yield (
            f"all {len(gpus)} GPUs and {len(nics)} NICs hang on node {nodes[0].says}, the only one here: "
            "either the host has one node, or this was written without knowing where they are; "
            "compare with `nvidia-smi topo -m`"
        )


SOURCE = Source("an NCCL topology (XML)", recognises, read)
