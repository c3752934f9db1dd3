"""How does a short description become a whole host, file by file?

The hosts here were put together from public figures, not recorded: each says so (``assembled``) and
names where its figures come from. What a description does not say is not invented: the file is absent.
"""

from __future__ import annotations

import json
import pathlib
import sys

from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.cpuset import CpuSet
from wellfed.model.tree import Unreadable

HERE = pathlib.Path(__file__).parent
MEBIBYTE_KB = 1024


def names() -> list[str]:
    """Give the hosts that can be assembled, sorted."""
    return sorted(path.stem for path in HERE.glob("*.json"))


def assemble(name: str) -> RecordedTree:
    """Put a host together in memory."""
    said = _description(name)
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    _cpus(said, files)
    _nodes(said, files)
    for device in said["pci"]:
        _pci(device, files, links)
    _process(said, files)
    files |= said.get("files", {})
    for absent in said.get("absent", []):
        files.pop(absent, None)
    answers: dict[str, str | Unreadable] = {
        "sched_getaffinity": str(_affinity(said)),
        "environ": said.get("environ", ""),
    }
    for question, answer in said.get("answers", {}).items():
        answers[question] = Unreadable(answer["errno"]) if isinstance(answer, dict) else answer
    if said.get("nvml"):
        answers["nvml"] = (HERE.parent / "recordings" / "nvml" / said["nvml"]).read_text()
    return RecordedTree(
        name,
        {path: text.encode() + b"\n" for path, text in files.items()},
        links=links,
        errnos=said.get("errnos", {}),
        answers=answers,
        assembled=True,
    )


def write(name: str, folder: pathlib.Path) -> None:
    """Write an assembled host as a directory that ``--host`` takes."""
    tree = assemble(name)
    _write_below(tree, "/", folder)
    about = {
        "schema": "wellfed/capture/1",
        "assembled": True,
        "errnos": _description(name).get("errnos", {}),
        "answers": {
            question: answer if isinstance(answer, str) else {"errno": answer.errno_name}
            for question, answer in tree._answers.items()
            if question != "nvml"
        },
        "second": {},
        "interval_seconds": None,
    }
    (folder / ".wellfed").mkdir(parents=True, exist_ok=True)
    (folder / ".wellfed" / "capture.json").write_text(json.dumps(about, indent=1))
    if isinstance(tree.answer("nvml"), str):
        (folder / ".wellfed" / "nvml.txt").write_text(str(tree.answer("nvml")))


def _write_below(tree: RecordedTree, path: str, folder: pathlib.Path) -> None:
    for name in tree.list(path) or ():
        inside = f"{path.rstrip('/')}/{name}"
        place = folder / inside.lstrip("/")
        real = tree.link(inside)
        if isinstance(real, str) and real != inside:
            up = "../" * (inside.count("/") - 1)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(up + real.lstrip("/"))
            continue
        content = tree.read_bytes(inside)
        if isinstance(content, bytes):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        elif isinstance(tree.list(inside), tuple):
            place.mkdir(parents=True, exist_ok=True)
            _write_below(tree, inside, folder)


def _description(name: str) -> dict:
    """Read a description; ``like`` names one to start from, whose keys are replaced."""
    said = json.loads((HERE / f"{name}.json").read_text())
    return _description(said["like"]) | said if "like" in said else said


def _affinity(said: dict) -> CpuSet:
    return CpuSet.parse(said["allowed_cpus"]) if "allowed_cpus" in said else _online(said)


def _online(said: dict) -> CpuSet:
    everything = CpuSet(cpu for core in _cores(said) for cpu in core)
    return everything - CpuSet.parse(said.get("offline", ""))


def _cores(said: dict) -> list[list[int]]:
    """Give each core's CPU numbers, in the order of packages: x86 servers number second threads after all cores."""
    cpus = said["cpus"]
    cores = cpus["packages"] * cpus["cores_per_package"]
    return [
        [core + thread * cores for thread in range(cpus["threads_per_core"])]
        for core in range(cores)
    ]


def _cpus(said: dict, files: dict[str, str]) -> None:
    base = "/sys/devices/system/cpu"
    cores, online = _cores(said), _online(said)
    per_package = said["cpus"]["cores_per_package"]
    per_l3 = said["cpus"].get("cores_per_l3")
    count = sum(map(len, cores))
    files[f"{base}/online"] = str(online)
    files[f"{base}/possible"] = files[f"{base}/present"] = f"0-{count - 1}"
    files[f"{base}/offline"] = said.get("offline", "")
    for number, core in enumerate(cores):
        package = number // per_package
        siblings = CpuSet(core) & online
        in_package = cores[package * per_package : (package + 1) * per_package]
        for cpu in siblings:
            topology = f"{base}/cpu{cpu}/topology"
            files[f"{topology}/physical_package_id"] = str(package)
            files[f"{topology}/core_id"] = str(number % per_package)
            files[f"{topology}/thread_siblings_list"] = str(siblings)
            files[f"{topology}/core_cpus_list"] = str(siblings)
            files[f"{topology}/package_cpus_list"] = str(
                CpuSet(c for each in in_package for c in each) & online
            )
            for name, value in said.get("cpufreq", {}).items():
                files[f"{base}/cpufreq/policy{cpu}/{name}"] = value
            if per_l3:
                start = number // per_l3 * per_l3
                shared = CpuSet(c for each in cores[start : start + per_l3] for c in each) & online
                cache = f"{base}/cpu{cpu}/cache/index3"
                files |= {
                    f"{cache}/level": "3",
                    f"{cache}/type": "Unified",
                    f"{cache}/shared_cpu_list": str(shared),
                }


def _nodes(said: dict, files: dict[str, str]) -> None:
    base, online = "/sys/devices/system/node", _online(said)
    nodes = said["nodes"]
    numbers = [node["node"] for node in nodes]
    has_cpu, has_memory = CpuSet(), CpuSet()
    for node in nodes:
        number, cpus = node["node"], CpuSet.parse(node.get("cpus", "")) & online
        here = f"{base}/node{number}"
        has_cpu |= CpuSet([number]) if cpus else CpuSet()
        total_kb = node.get("memory_mib", 0) * MEBIBYTE_KB
        has_memory |= CpuSet([number]) if total_kb else CpuSet()
        free_kb = node.get("free_mib", node.get("memory_mib", 0)) * MEBIBYTE_KB
        files[f"{here}/cpulist"] = str(cpus)
        files[f"{here}/cpumap"] = cpus.format_mask() or "0"
        files[f"{here}/distance"] = " ".join(map(str, node["distances"]))
        files[f"{here}/meminfo"] = "\n".join(
            f"Node {number} {field}: {kb:>14} kB"
            for field, kb in (("MemTotal", total_kb), ("MemFree", free_kb), ("Inactive(file)", 0))
        )
        for size_kb, pages in node.get("hugepages", {}).items():
            pool = f"{here}/hugepages/hugepages-{size_kb}kB"
            files |= {f"{pool}/nr_hugepages": str(pages), f"{pool}/free_hugepages": str(pages)}
        assert len(node["distances"]) == len(nodes), f"node {number}: a distance for each node"
    files |= {
        f"{base}/online": str(CpuSet(numbers)),
        f"{base}/possible": said.get("possible_nodes", str(CpuSet(numbers))),
        f"{base}/has_cpu": str(has_cpu),
        f"{base}/has_memory": str(has_memory),
        f"{base}/has_normal_memory": str(has_memory),
    }


def _pci(device: dict, files: dict[str, str], links: dict[str, str]) -> None:
    """Write one PCI function below its bridges; bridges take the device's node."""
    domain_bus = device.get("root", device["address"][:7])
    chain = [*device.get("bridges", []), device["address"]]
    path = f"/sys/devices/pci{domain_bus}"
    for address in chain:
        path += f"/{address}"
        bridge = address != device["address"]
        files[f"{path}/class"] = "0x060400" if bridge else f"0x{device['class']}"
        files[f"{path}/vendor"] = "0x1000" if bridge else f"0x{device['vendor']}"
        files[f"{path}/device"] = "0xc030" if bridge else f"0x{device.get('device', '0000')}"
        if "numa_node" in device:
            files[f"{path}/numa_node"] = str(device["numa_node"])
        if "local_cpus" in device:
            local = CpuSet.parse(device["local_cpus"])
            files[f"{path}/local_cpulist"] = str(local)
            files[f"{path}/local_cpus"] = local.format_mask() or "0"
        links[f"/sys/bus/pci/devices/{address}"] = path
    for field, value in device.get("link", {}).items():
        files[f"{path}/{field}"] = value
    for kind, name in device.get("shows_as", {}).items():
        files[f"{path}/{kind}/{name}/uevent"] = ""
        links[f"/sys/class/{kind}/{name}"] = f"{path}/{kind}/{name}"
        links[f"{path}/{kind}/{name}/device"] = path
    if "driver" in device:
        files[f"/sys/bus/pci/drivers/{device['driver']}/uevent"] = ""
        links[f"{path}/driver"] = f"/sys/bus/pci/drivers/{device['driver']}"
    for name, text in device.get("proc_driver_nvidia", {}).items():
        files[f"/proc/driver/nvidia/gpus/{device['address']}/{name}"] = text


def _process(said: dict, files: dict[str, str]) -> None:
    """Write what this process may use: affinity, memory nodes and cgroup v2."""
    cgroup = said.get("cgroup", {})
    path = cgroup.get("path", "/")
    mems = said.get("allowed_mems", files["/sys/devices/system/node/has_memory"])
    files["/proc/self/status"] = "\n".join(
        (
            "Name:\twellfed",
            "Threads:\t1",
            "CapEff:\t" + said.get("cap_eff", "0000000000000000"),
            "Seccomp:\t" + str(said.get("seccomp", 0)),
            f"Cpus_allowed:\t{_affinity(said).format_mask()}",
            f"Cpus_allowed_list:\t{_affinity(said)}",
            f"Mems_allowed_list:\t{mems}",
        )
    )
    files["/proc/self/cgroup"] = f"0::{path}"
    mount = "24 23 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
    files["/proc/self/mountinfo"] = mount
    files["/proc/self/mounts"] = files["/proc/mounts"] = (
        "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0"
    )
    here = "/sys/fs/cgroup" + path.rstrip("/")
    for name, value in said.get("root_cgroup", {}).items():
        files[f"/sys/fs/cgroup/{name}"] = value
    for name, value in cgroup.get("files", {}).items():
        files[f"{here}/{name}"] = value


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in names():
        sys.exit(
            f"usage: python -m tests.hosts.assemble NAME FOLDER, NAME one of: {', '.join(names())}"
        )
    write(sys.argv[1], pathlib.Path(sys.argv[2]))
