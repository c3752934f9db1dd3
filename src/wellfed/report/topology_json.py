"""How does a host look to a program?"""

from __future__ import annotations

from wellfed.model.cpuset import CpuSet
from wellfed.report.topology_parts import l3_groups, packages_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from wellfed.model.machine import Cpu, Evidence, Gpu, Machine, Nic, NumaNode, Nvme, PciDevice
    from wellfed.model.placement import Placement, RankPlacement

SCHEMA = "wellfed/topology/1"
"""Keys stay; more may be added. ``report/schemas/topology-1.json`` describes them."""


def as_json(machine: Machine, placement: Placement | None = None) -> dict[str, object]:
    """Return the whole machine as JSON values. Sets of CPUs and nodes are texts in the kernel's list format.

    What is not known is null, never 0 or −1; ``visible_index`` is null outside CUDA_VISIBLE_DEVICES.
    """
    allowed = machine.allowed
    return {
        "schema": SCHEMA,
        "host": {
            "name": machine.name,
            "live": machine.live,
            "assembled": machine.assembled,
            "architecture": machine.architecture,
        },
        "cpus": {
            "online": str(machine.online),
            "offline": str(machine.offline),
            "packages": _packages(machine),
            "cores": [_core(machine, core) for core in machine.cores(machine.online)],
        },
        "numa_nodes": [_node(node, machine) for node in machine.nodes],
        "gpus": [_gpu(gpu) for gpu in machine.gpus],
        "nics": [_nic(nic) for nic in machine.nics],
        "nvmes": [_nvme(nvme) for nvme in machine.nvmes],
        "pci": [_pci(device) for device in machine.pci],
        "allowed": {
            "cpus": str(allowed.cpus),
            "mems": _set(allowed.mems),
            "affinity": _set(allowed.affinity),
            "cpuset_cpus": _set(allowed.cpuset_cpus),
            "cpuset_path": allowed.cpuset_path,
            "cpu_quota": allowed.cpu_quota,
            "memory_limit_bytes": allowed.memory_limit_bytes,
            "unknown": list(allowed.unknown),
        },
        "placement": None if placement is None else _placement(placement),
        "notes": list(machine.notes),
    }


def _packages(machine: Machine) -> list[dict[str, object]]:
    numbers = sorted(
        {cpu.package for cpu in machine.cpus if cpu.online and cpu.package is not None}
    )
    return [
        {
            "package": number,
            "cpus": str(_those(cpu for cpu in machine.cpus if cpu.package == number)),
        }
        for number in numbers
    ]


def _those(cpus: Iterable[Cpu]) -> CpuSet:
    return CpuSet(cpu.cpu for cpu in cpus if cpu.online)


def _core(machine: Machine, core: CpuSet) -> dict[str, object]:
    first = machine.cpu(core.first)
    return {
        "cpus": str(core),
        "node": first.node if first else None,
        "package": first.package if first else None,
        "die": first.die if first else None,
        "kind": first.kind if first else None,
    }


def _node(node: NumaNode, machine: Machine) -> dict[str, object]:
    return {
        "node": node.node,
        "cpus": str(node.cpus),
        "cpus_recorded": node.cpus_recorded,
        "memory_bytes": node.memory_bytes,
        "available_bytes": node.available_bytes,
        "kind": node.kind,
        "packages": list(packages_of(machine, node)),
        "l3": [str(group) for group in l3_groups(machine, node.cpus)],
        "num_cores": len(machine.cores(node.cpus)),
        "distances": {str(other): distance for other, distance in node.distances},
        "hbm_of": node.hbm_of,
        "hugepages": [
            {"size_bytes": pool.size_bytes, "num_total": pool.num_total, "num_free": pool.num_free}
            for pool in node.hugepages
        ],
    }


def _gpu(gpu: Gpu) -> dict[str, object]:
    return {
        "index": gpu.index,
        "visible_index": gpu.visible_index,
        "pci_address": gpu.pci_address,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "vendor": gpu.vendor,
        "cpu_node": gpu.cpu_node,
        "hbm_node": gpu.hbm_node,
        "local_cpus": _set(gpu.local_cpus),
        "accessible": gpu.accessible,
        "disagreement": gpu.disagreement,
        "evidence": _evidence(gpu.evidence),
        "mig": [
            {
                "uuid": each.uuid,
                "name": each.name,
                "gpu_instance": each.gpu_instance,
                "compute_instance": each.compute_instance,
            }
            for each in gpu.mig
        ],
    }


def _nic(nic: Nic) -> dict[str, object]:
    return {
        "pci_address": nic.pci_address,
        "interfaces": list(nic.interfaces),
        "rdma_devices": list(nic.rdma_devices),
        "cpu_node": nic.cpu_node,
        "evidence": _evidence(nic.evidence),
    }


def _nvme(nvme: Nvme) -> dict[str, object]:
    return {
        "name": nvme.name,
        "pci_address": nvme.pci_address,
        "cpu_node": nvme.cpu_node,
        "evidence": _evidence(nvme.evidence),
    }


def _evidence(evidence: Iterable[Evidence]) -> list[dict[str, object]]:
    return [{"source": e.source, "says": e.says, "cpu_node": e.cpu_node} for e in evidence]


def _pci(device: PciDevice) -> dict[str, object]:
    link = device.link
    return {
        "address": device.address,
        "class": device.class_code,
        "vendor": device.vendor,
        "device": device.device,
        "driver": device.driver,
        "numa_node": device.numa_node,
        "parents": list(device.parents),
        "link": {
            "width": link.width,
            "max_width": link.max_width,
            "speed_gigatransfers_per_second": link.speed_gigatransfers_per_second,
            "max_speed_gigatransfers_per_second": link.max_speed_gigatransfers_per_second,
        },
    }


def _placement(placement: Placement) -> dict[str, object]:
    return {
        "policy": placement.policy,
        "ranks": [_rank(rank) for rank in placement.ranks],
        "notes": list(placement.notes),
    }


def _rank(rank: RankPlacement) -> dict[str, object]:
    return {
        "local_rank": rank.local_rank,
        "gpus": list(rank.gpus),
        "cpus": str(rank.cpus),
        "cpu_nodes": str(rank.cpu_nodes),
        "memory": {"mode": rank.memory.mode, "nodes": str(rank.memory.nodes)},
        "num_cores": rank.num_cores,
        "num_threads": rank.num_threads,
        "roles": {role: str(cpus) for role, cpus in rank.roles},
        "local": rank.local,
        "nics": list(rank.nics),
        "notes": list(rank.notes),
    }


def _set(cpus: CpuSet | None) -> str | None:
    """Write a set as the kernel does; null where it is not known, an empty text where it is empty."""
    return None if cpus is None else str(cpus)
