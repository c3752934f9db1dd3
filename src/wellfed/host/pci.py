"""Which PCI functions feed or compute, what is above them, and what does the host say of where they are?"""

from __future__ import annotations

from wellfed.host.facts import Facts, shown
from wellfed.model.cpuset import CpuSet
from wellfed.model.machine import Evidence, NumaNode, PciDevice, PciLink, pci_order
from wellfed.model.tree import read_int
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BUS = "/sys/bus/pci/devices"
DEVICES = "/sys/devices"

NETWORK, DISPLAY, STORAGE, ACCELERATOR, COPROCESSOR, INFINIBAND, BRIDGE, NVME = (
    "02", "03", "01", "12", "0b40", "0c06", "06", "0108",
)  # fmt: skip
"""Class codes (include/linux/pci_ids.h): what moves a job's data, and what computes on it."""
TELLING = (NETWORK, DISPLAY, STORAGE, ACCELERATOR, COPROCESSOR, INFINIBAND)
NVSWITCH = ("10de", "0680")

LOCAL_FILES = ("local_cpulist", "local_cpus")


class PciFunction(Value):
    """A function and where sysfs really keeps it."""

    device: PciDevice
    path: str
    """Folder below /sys/devices; its components are the bridges above."""


def read_pci(facts: Facts) -> dict[str, PciFunction]:
    """Return, by address, the functions that compute or carry data, and every bridge above one.

    A server shows hundreds of others (memory controllers, counters, USB); each costs one read to leave out.
    """
    found: dict[str, PciFunction] = {}
    paths = _paths(facts)
    for address in sorted(paths, key=pci_order):
        identity = _identity(facts, paths[address])
        if identity[0].startswith(TELLING) or (identity[1], identity[0][:4]) == NVSWITCH:
            real = facts.tree.link(paths[address])
            path = real if isinstance(real, str) else paths[address]
            found[address] = PciFunction(_read_function(facts, address, path, identity), path)
    for function in tuple(found.values()):
        _add_bridges(facts, function.path, found)
    return {address: found[address] for address in sorted(found, key=pci_order)}


def is_address(text: str) -> bool:
    """Say whether a name is a PCI address, ``0000:3b:00.0``; domains have 4 to 8 hexadecimal digits."""
    domain, _, rest = text.partition(":")
    bus, _, rest = rest.partition(":")
    device, dot, function = rest.partition(".")
    return (
        4 <= len(domain) <= 8
        and len(bus) == 2
        and len(device) == 2
        and dot == "."
        and len(function) == 1
        and all(digit in "0123456789abcdef" for digit in domain + bus + device + function)
    )


def addresses_in(path: str) -> tuple[str, ...]:
    """Return what is above and including the last PCI function of a path: nearest first, the root bus last.

    ``/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/net/eth0`` gives ``0000:41:00.0``, ``0000:40:01.1``,
    ``pci0000:40``. Behind Intel's VMD or Hyper-V's bus there is a root inside a path; it is kept too.
    """
    parts = [
        p for p in path.split("/") if is_address(p) or is_address(f"{p.removeprefix('pci')}:00.0")
    ]
    return tuple(reversed(parts))


def evidence_of(
    facts: Facts, function: PciFunction, pci: dict[str, PciFunction], nodes: Sequence[NumaNode]
) -> tuple[Evidence, ...]:
    """Return what sysfs says of where a function is, source by source. Decides nothing."""
    says = facts.tree.read(f"{function.path}/numa_node")
    number = function.device.numa_node
    evidence = [
        Evidence(
            "sysfs numa_node",
            says if isinstance(says, str) else str(says),
            number if number in {node.node for node in nodes if node.cpus} else None,
        )
    ]
    local = function.device.local_cpus
    if local is not None:
        listed = isinstance(facts.tree.read(f"{function.path}/local_cpulist"), str)
        source = "sysfs local_cpulist" if listed else "sysfs local_cpus"
        evidence.append(Evidence(source, str(local) or "no CPU", node_of(local, nodes)))
    above = _parents_evidence(facts, function, pci, nodes)
    return (*evidence, above) if above else tuple(evidence)


def node_of(cpus: CpuSet, nodes: Iterable[NumaNode]) -> int | None:
    """Return the one node that has all of these CPUs that are online; None where several or none has."""
    found = [node for node in nodes if node.cpus & cpus]
    return found[0].node if len(found) == 1 else None


def _paths(facts: Facts) -> dict[str, str]:
    """Return a readable folder for each address: the bus's links, else the tree itself."""
    names = facts.tree.list(BUS)
    if names:
        return {name: f"{BUS}/{name}" for name in names if is_address(name)}
    found: dict[str, str] = {}
    pending = [
        f"{DEVICES}/{name}" for name in facts.tree.list(DEVICES) or () if name.startswith("pci")
    ]
    while pending:
        folder = pending.pop()
        for name in facts.tree.list(folder) or ():
            if is_address(name):
                found[name] = f"{folder}/{name}"
            if is_address(name) or is_address(f"{name.removeprefix('pci')}:00.0"):
                pending.append(f"{folder}/{name}")
    return found


def _identity(facts: Facts, path: str) -> tuple[str, str, str, str | None]:
    """Return class, vendor, device and driver: one read of ``uevent`` says them all, where it is recorded."""
    uevent = facts.tree.read(f"{path}/uevent") or ""
    said = dict(line.partition("=")[::2] for line in uevent.splitlines())
    vendor, _, device = said.get("PCI_ID", "").lower().partition(":")
    if vendor and "PCI_CLASS" in said:
        return said["PCI_CLASS"].lower().rjust(6, "0"), vendor, device, said.get("DRIVER")
    driver = facts.tree.link(f"{path}/driver")
    return (
        _hexadecimal(facts, f"{path}/class"),
        _hexadecimal(facts, f"{path}/vendor"),
        _hexadecimal(facts, f"{path}/device"),
        driver.rpartition("/")[2] if isinstance(driver, str) else None,
    )


def _hexadecimal(facts: Facts, path: str) -> str:
    """Return the digits of ``0x10de``; empty where there is no such number."""
    text = (facts.tree.read(path) or "").lower().removeprefix("0x")
    return text if len(text) <= 8 and all(digit in "0123456789abcdef" for digit in text) else ""


def _read_function(
    facts: Facts, address: str, path: str, identity: tuple[str, str, str, str | None]
) -> PciDevice:
    return PciDevice(
        address=address,
        class_code=identity[0],
        vendor=identity[1],
        device=identity[2],
        numa_node=_numa_node(facts, path),
        local_cpus=facts.cpus(path, LOCAL_FILES),
        parents=addresses_in(path)[1:],
        link=_read_link(facts, path),
        driver=identity[3],
    )


def _add_bridges(facts: Facts, path: str, found: dict[str, PciFunction]) -> None:
    """Add the functions above one, from its path."""
    folder = path.rpartition("/")[0]
    while folder.startswith(DEVICES + "/"):
        address = folder.rpartition("/")[2]
        if is_address(address) and address not in found:
            identity = _identity(facts, folder)
            found[address] = PciFunction(_read_function(facts, address, folder, identity), folder)
        folder = folder.rpartition("/")[0]


def _numa_node(facts: Facts, path: str) -> int | None:
    """Return what ``numa_node`` says, −1 included; None where it is missing or no number."""
    number = read_int(facts.tree, f"{path}/numa_node")
    if number is None:
        text = facts.tree.read(f"{path}/numa_node")
        if isinstance(text, str):
            facts.remark(
                "damaged numa_node",
                f"{path}/numa_node reads {shown(text)}, which is no node: not used",
            )
    return number


def _read_link(facts: Facts, path: str) -> PciLink:
    """Return the PCIe link; empty for what has none. Reads the device's own registers, a few microseconds."""
    most = facts.tree.read(f"{path}/max_link_speed")
    now = facts.tree.read(f"{path}/current_link_speed")
    if not isinstance(most, str) and not isinstance(now, str):
        return PciLink()
    return PciLink(
        _gigatransfers(now or ""),
        _lanes(facts, f"{path}/current_link_width"),
        _gigatransfers(most or ""),
        _lanes(facts, f"{path}/max_link_width"),
    )


def _gigatransfers(text: str) -> float | None:
    """Read ``16.0 GT/s PCIe``, ``8 GT/s`` (older kernels) or ``Unknown`` (a link that is down)."""
    number, _, unit = text.partition(" ")
    whole, _, part = number.partition(".")
    if (
        unit.startswith("GT/s")
        and whole.isdecimal()
        and len(number) < 8
        and (not part or part.isdecimal())
    ):
        return float(number)
    return None


def _lanes(facts: Facts, path: str) -> int | None:
    """Return the width; 0 (link down) and 255 (no register) are no width."""
    lanes = read_int(facts.tree, path)
    return lanes if lanes is not None and 0 < lanes <= 32 else None


def _parents_evidence(
    facts: Facts, function: PciFunction, pci: dict[str, PciFunction], nodes: Sequence[NumaNode]
) -> Evidence | None:
    """Return what the nearest bridge with a node says, else the CPUs that the root bus calls near."""
    with_cpus = {node.node for node in nodes if node.cpus}
    for address in function.device.parents:
        above = pci.get(address)
        number = above.device.numa_node if above else None
        if number is not None and number >= 0:
            follows = number if number in with_cpus else None
            return Evidence("PCI parents", f"{address} numa_node {number}", follows)
    for root in function.device.parents:
        if root.startswith("pci"):
            bus = root.removeprefix("pci")
            folder = f"{function.path.partition(f'/{root}/')[0]}/{root}/pci_bus/{bus}"
            near = facts.cpus(folder, ("cpulistaffinity", "cpuaffinity"))
            if near is not None:
                return Evidence("PCI parents", f"{root} CPUs {near}", node_of(near, nodes))
    return None
