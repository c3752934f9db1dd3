"""How is a machine built in one line, for tests that need no files?

>>> machine({0: "0-3,8-11", 1: "4-7,12-15"}, cores=pairs(8), gpus=[gpu(0, 0), gpu(1, 1)])
"""

from __future__ import annotations

from wellfed.model.cpuset import CpuSet, NodeSet
from wellfed.model.job import Job, VisibleDevices
from wellfed.model.machine import (
    Allowed,
    Cpu,
    Evidence,
    Gpu,
    Machine,
    MigInstance,
    Nic,
    NumaNode,
    PciDevice,
    Sighting,
)
from wellfed.model.placement import Wishes
from wellfed.model.value import replace
from wellfed.placement.plan import plan

GIB = 1 << 30


def pairs(num_cores: int, threads: int = 2) -> list[str]:
    """Give cores as x86 servers number them: second threads after all first ones."""
    return [
        ",".join(str(core + thread * num_cores) for thread in range(threads))
        for core in range(num_cores)
    ]


def machine(
    nodes: dict[int, str],
    *,
    cores: list[str] | None = None,
    l3: list[str] | None = None,
    clusters: list[str] | None = None,
    packages: dict[int, str] | None = None,
    memory: dict[int, int | None] | None = None,
    available: dict[int, int | None] | None = None,
    distances: dict[int, list[int]] | None = None,
    offline: str = "",
    allowed: str | None = None,
    mems: str | None = None,
    quota: float | None = None,
    limit: int | None = None,
    gpus: list[Gpu] | None = None,
    nics: list[Nic] | None = None,
    pci: list[PciDevice] | None = None,
    live: bool = False,
) -> Machine:
    """Build a machine: CPUs by node; 64 GiB a node, distance 20 between nodes and all CPUs allowed unless said."""
    every = {cpu: node for node, text in nodes.items() for cpu in CpuSet.parse(text)}
    dead = CpuSet.parse(offline)
    online = CpuSet(every) - dead
    core_of = _groups(cores or [str(cpu) for cpu in every], online)
    l3_of, cluster_of = _groups(l3 or [], online), _groups(clusters or [], online)
    package_of = {cpu: n for n, text in (packages or {}).items() for cpu in CpuSet.parse(text)}
    cpus = tuple(
        Cpu(
            cpu,
            online=cpu in online,
            node=every[cpu],
            package=package_of.get(cpu),
            core=core_of.get(cpu, CpuSet([cpu])) if cpu in online else CpuSet(),
            cluster=cluster_of.get(cpu),
            l3=l3_of.get(cpu),
        )
        for cpu in sorted(every)
    )
    sizes = dict.fromkeys(nodes, 64 * GIB) | (memory or {})
    left = sizes | (available or {})
    ids = sorted(sizes)
    found = tuple(
        NumaNode(
            number,
            CpuSet.parse(nodes.get(number, "")) & online,
            sizes[number],
            left.get(number),
            tuple(
                zip(ids, distances[number], strict=True)
                if distances is not None and number in distances
                else ((other, 10 if other == number else 20) for other in ids)
            )
            if distances is None or number in distances
            else (),
        )
        for number in ids
    )
    return Machine(
        "a test's machine",
        cpus,
        found,
        Allowed(
            CpuSet.parse(allowed) if allowed is not None else online,
            NodeSet.parse(mems) if mems is not None else None,
            cpu_quota=quota,
            memory_limit_bytes=limit,
        ),
        pci=tuple(pci or ()),
        gpus=tuple(gpus or ()),
        nics=tuple(nics or ()),
        live=live,
    )


def gpu(index: int, node: int | None = None, **fields: object) -> Gpu:
    """Build a GPU that is located already; its address follows from its index."""
    values = {
        "pci_address": f"0000:{index + 1:02x}:00.0",
        "cpu_node": node,
        "name": "NVIDIA H100 80GB HBM3",
    } | fields
    return Gpu(index, **values)  # type: ignore[arg-type]


def uuid(index: int) -> str:
    """Give the UUID of a GPU: its first digits are its index."""
    return f"GPU-{index:08x}-0000-4000-8000-000000000000"


def device(
    address: str,
    numa_node: int | None = None,
    local: str | None = None,
    *parents: str,
    **fields: object,
) -> PciDevice:
    """Build a PCI function, GPU-like unless said otherwise."""
    values = {"class_code": "030200", "vendor": "10de", "device": "2330"} | fields
    return PciDevice(
        address,
        numa_node=numa_node,
        local_cpus=None if local is None else CpuSet.parse(local),
        parents=parents,
        **values,  # type: ignore[arg-type]
    )


def sighting(
    address: str, *, cpus: str | None = None, nodes: str | None = None, **fields: object
) -> Sighting:
    """Build what NVML says of a GPU, in its plug-in's words."""
    evidence = (
        Evidence("NVML CPU affinity", "Not Supported" if cpus is None else cpus or "none"),
        Evidence("NVML memory affinity", "Not Supported" if nodes is None else nodes or "none"),
    )
    values = {
        "evidence": evidence,
        "affinity_cpus": None if cpus is None else CpuSet.parse(cpus),
        "affinity_nodes": None if nodes is None else NodeSet.parse(nodes),
    } | fields
    return Sighting(address, "nvidia", **values)  # type: ignore[arg-type]


def mig(
    uuid_text: str, gpu_instance: int | None = None, compute_instance: int | None = None
) -> MigInstance:
    """Build a MIG slice."""
    return MigInstance(uuid_text, gpu_instance, compute_instance)


def everything(host: Machine) -> VisibleDevices:
    """All GPUs are visible, in PCI order."""
    return VisibleDevices(None, tuple(each.pci_address for each in host.gpus))


def ranks(count: int, local_rank: int | None = None, launcher: str = "torchrun") -> Job:
    """Build a job of that many ranks on this host."""
    return Job(count, local_rank, launcher=launcher)


def placed(host: Machine, count: int | None = None, **wishes: object):
    """Plan for that many ranks (None: one process without ranks) that see every GPU."""
    job = None if count is None else ranks(count)
    return plan(host, job, everything(host), Wishes(**wishes))  # type: ignore[arg-type]


def allowing(host: Machine, cpus: str, mems: str | None = None) -> Machine:
    """Put the process into a cpuset."""
    allowed = replace(
        host.allowed, cpus=CpuSet.parse(cpus), mems=None if mems is None else NodeSet.parse(mems)
    )
    return replace(host, allowed=allowed)


def dgx_h100() -> Machine:
    """Two sockets of 56 cores with two threads, four GPUs each."""
    return machine(
        {0: "0-55,112-167", 1: "56-111,168-223"},
        cores=pairs(112),
        l3=["0-55,112-167", "56-111,168-223"],
        packages={0: "0-55,112-167", 1: "56-111,168-223"},
        gpus=[gpu(index, index // 4, uuid=uuid(index)) for index in range(8)],
    )


def dgx_a100() -> Machine:
    """Eight nodes of 16 cores with two threads, an L3 for every four cores; GPU pairs on nodes 3, 1, 7 and 5."""
    nodes = {n: f"{16 * n}-{16 * n + 15},{128 + 16 * n}-{143 + 16 * n}" for n in range(8)}
    distances = {
        n: [10 if m == n else 12 if m // 4 == n // 4 else 32 for m in range(8)] for n in range(8)
    }
    return machine(
        nodes,
        cores=pairs(128),
        l3=[f"{4 * g}-{4 * g + 3},{128 + 4 * g}-{131 + 4 * g}" for g in range(32)],
        packages={0: "0-63,128-191", 1: "64-127,192-255"},
        distances=distances,
        gpus=[
            gpu(index, node, uuid=uuid(index))
            for index, node in enumerate((3, 3, 1, 1, 7, 7, 5, 5))
        ],
    )


def _groups(texts: list[str], online: CpuSet) -> dict[int, CpuSet]:
    return {cpu: CpuSet.parse(text) & online for text in texts for cpu in CpuSet.parse(text)}
