"""How does a test write down a small host?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.cpuset import CpuSet
from wellfed.model.tree import Unreadable

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
Text = str | bytes


def host(*parts: Mapping[str, Text], without: Iterable[str] = (), **more: object) -> RecordedTree:
    """Join files into a host; ``without`` takes away every path that ends so. Links and errnos go by keyword."""
    files: dict[str, Text] = {}
    for part in parts:
        files |= part
    kept = {path: text for path, text in files.items() if not path.endswith(tuple(without))}
    content = {
        path: text if isinstance(text, bytes) else text.encode() + b"\n"
        for path, text in kept.items()
    }
    return RecordedTree("a small host", content, **more)


def cpus(
    online: str,
    *,
    cores: Iterable[str] = (),
    packages: Mapping[int, str] | None = None,
    l3: Iterable[str] = (),
    present: str | None = None,
) -> dict[str, Text]:
    """Write /sys/devices/system/cpu. CPUs that no core names are cores of their own; one package unless said."""
    files: dict[str, Text] = {
        f"{CPU}/online": online,
        f"{CPU}/possible": present or online,
        f"{CPU}/present": present or online,
    }
    packages = packages or {0: online}
    core_of = {cpu: core for core in cores for cpu in CpuSet.parse(core)}
    for cpu in CpuSet.parse(online):
        topology = f"{CPU}/cpu{cpu}/topology"
        files[f"{topology}/thread_siblings_list"] = core_of.get(cpu, str(cpu))
        for package, members in packages.items():
            if cpu in CpuSet.parse(members):
                files[f"{topology}/physical_package_id"] = str(package)
        for shared in l3:
            if cpu in CpuSet.parse(shared):
                cache = f"{CPU}/cpu{cpu}/cache/index3"
                files |= {
                    f"{cache}/level": "3",
                    f"{cache}/type": "Unified",
                    f"{cache}/shared_cpu_list": shared,
                }
    return files


def nodes(
    said: Mapping[int, str],
    *,
    distances: Mapping[int, str] | None = None,
    memory_kb: Mapping[int, int] | None = None,
) -> dict[str, Text]:
    """Write /sys/devices/system/node; memory of 1 GiB unless said."""
    files: dict[str, Text] = {f"{NODE}/online": str(CpuSet(said))}
    for node, listed in said.items():
        folder = f"{NODE}/node{node}"
        total = (memory_kb or {}).get(node, 1 << 20)
        files[f"{folder}/cpulist"] = listed
        files[f"{folder}/cpumap"] = CpuSet.parse(listed).format_mask() or "0"
        files[f"{folder}/meminfo"] = (
            f"Node {node} MemTotal: {total} kB\nNode {node} MemFree: {total // 2} kB"
        )
        if distances and node in distances:
            files[f"{folder}/distance"] = distances[node]
    return files


class Pci:
    """A PCI tree in the making: functions with their bridges, as /sys/devices and /sys/bus/pci show them."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.files: dict[str, Text] = {}
        self.links: dict[str, str] = {}

    def add(
        self,
        address: str,
        code: str = "030200",
        vendor: str = "10de",
        *,
        above: Iterable[str] = ("pci0000:00",),
        node: int | str | None = None,
        local: str | None = None,
        driver: str | None = None,
        **files: Text,
    ) -> Pci:
        """Add a function below a root and bridges, outermost first; other keywords are files of its folder."""
        path = "/sys/devices"
        for component in above:
            path += f"/{component}"
            if not component.startswith("pci") and ":" in component:
                self._function(path, component, "060400", "8086")
        path += f"/{address}"
        self._function(path, address, code, vendor)
        said = {"numa_node": node, "local_cpulist": local, **files}
        self.files |= {
            f"{path}/{name}": str(text) for name, text in said.items() if text is not None
        }
        if driver is not None:
            self.files[f"/sys/bus/pci/drivers/{driver}/uevent"] = ""
            self.links[f"{path}/driver"] = f"/sys/bus/pci/drivers/{driver}"
        return self

    def shows(self, address: str, kind: str, name: str, *, through: str = "") -> Pci:
        """Let a function appear as a member of a device class: an interface, an RDMA device, a disk."""
        folder = f"{self.links[f'/sys/bus/pci/devices/{address}']}{through}/{kind}/{name}"
        self.files[f"{folder}/uevent"] = ""
        self.links[f"/sys/class/{kind}/{name}"] = folder
        return self

    def _function(self, path: str, address: str, code: str, vendor: str) -> None:
        self.files.setdefault(f"{path}/class", f"0x{code}")
        self.files.setdefault(f"{path}/vendor", f"0x{vendor}")
        self.files.setdefault(f"{path}/device", "0x2330")
        self.links[f"/sys/bus/pci/devices/{address}"] = path


def unreadable(name: str) -> Unreadable:
    """Give an errno as an answer."""
    return Unreadable(name)
