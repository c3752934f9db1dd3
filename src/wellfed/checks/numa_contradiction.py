"""Do the NUMA nodes of this host fit together?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, does_not_apply, no_gpu, ok, usable_gpus, warn
from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet, union
from wellfed.model.finding import Finding, Proof
from wellfed.model.machine import Machine
from wellfed.model.snapshot import Snapshot

RULE = "numa.contradiction"
NODES = "/sys/devices/system/node"
FIRMWARE = """\
lscpu; nvidia-smi topo -m   # compare with the maker's block diagram
# then update the firmware"""


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Look for CPUs in two nodes, CPUs in none, and firmware that puts every device on one node."""
    machine = snapshot.machine
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    if not machine.nodes:
        return (does_not_apply(RULE, "this kernel shows no NUMA nodes"),)
    twice = _in_two_nodes(machine)
    if twice:
        where = ", ".join(
            f"node {node.node}: {node.cpus}" for node in machine.nodes if node.cpus & twice
        )
        return (
            warn(
                RULE,
                f"CPUs {twice} are in more than one NUMA node",
                Proof(f"{NODES}/node*/cpulist", where),
                remedy=FIRMWARE,
            ),
        )
    homeless = machine.online - union(node.cpus for node in machine.nodes)
    if homeless and all(node.cpus_recorded for node in machine.nodes):
        found = Proof(f"{NODES}/node*/cpulist", f"no node has CPUs {homeless}")
        return (
            warn(RULE, f"CPUs {homeless} are online and in no NUMA node", found, remedy=FIRMWARE),
        )
    home = _only_home(snapshot)
    if home is not None:
        summary = f"every device claims node {home} although {len(machine.cpu_nodes)} nodes have CPUs: some firmware says so of all"
        return (
            warn(
                RULE, summary, Proof("/sys/bus/pci/devices/*/numa_node", str(home)), remedy=FIRMWARE
            ),
        )
    count = len(machine.nodes)
    return (
        ok(RULE, f"{count} NUMA node{'s' if count != 1 else ''}, every online CPU in exactly one"),
    )


def _in_two_nodes(machine: Machine) -> CpuSet:
    seen = twice = EMPTY
    for node in machine.nodes:
        twice |= seen & node.cpus
        seen |= node.cpus
    return twice


def _only_home(snapshot: Snapshot) -> int | None:
    """Return the node that all GPUs and all other devices claim, where there would be a choice; else None."""
    machine, gpus = snapshot.machine, usable_gpus(snapshot)
    homes = NodeSet(gpu.cpu_node for gpu in gpus if gpu.cpu_node is not None)
    claimed = NodeSet(
        device.numa_node
        for device in machine.pci
        if (device.numa_node or 0) >= 0 and device.numa_node is not None
    )
    whole = len(gpus) > 1 and all(gpu.cpu_node is not None for gpu in gpus)
    return (
        homes.first
        if whole and len(machine.cpu_nodes) > 1 and len(homes) == 1 and claimed == homes
        else None
    )


CHECK = Check(
    question="Do the NUMA nodes of this host fit together?",
    rules=(RULE,),
    judge=judge,
    why=(
        "Binding a job to its GPU is only as good as the firmware's tables: with a wrong table, threads are bound to the"
        " far socket with full confidence."
    ),
    sources=(
        "https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-devices-node",
        "https://github.com/open-mpi/hwloc/issues/712",
    ),
)
