"""Is it known beside which CPUs each GPU is, and do the sources agree?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, does_not_apply, gpus_word, not_known, ok, usable_gpus, warn
from wellfed.model.finding import Finding, Proof
from wellfed.model.machine import Gpu
from wellfed.model.snapshot import Snapshot

RULE = "gpu.numa_node"
HYPERVISOR = """\
nvidia-smi topo -m   # what the driver knows
# in a virtual machine: put its GPUs on a NUMA node (QEMU: -device pxb-pcie,numa_node=N)"""
FIRMWARE = """\
nvidia-smi topo -m   # compare with the maker's block diagram
# then update the firmware, or bind by hand: wellfed run --gpus …"""


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Look for GPUs without a node, and for sources that contradict each other."""
    gpus = usable_gpus(snapshot)
    if not gpus:
        return (does_not_apply(RULE, "no GPU is seen here"),)
    num_nodes = len(snapshot.machine.cpu_nodes)
    lost = [gpu for gpu in gpus if gpu.cpu_node is None]
    doubted = [gpu for gpu in gpus if gpu.disagreement]
    if lost and not any(gpu.evidence for gpu in lost):
        return (not_known(RULE, f"the NUMA node of {gpus_word(lost)} is not recorded here"),)
    if lost:
        summary = (
            f"which of {num_nodes} NUMA nodes is beside {gpus_word(lost)} is told by no source,"
            " so no job can be bound there"
        )
        return (warn(RULE, summary, *_proofs(lost), remedy=HYPERVISOR),)
    if doubted:
        summary = f"{gpus_word(doubted)}: sources contradict each other: {doubted[0].disagreement}"
        return (warn(RULE, summary, *_proofs(doubted), remedy=FIRMWARE),)
    if num_nodes == 1:
        return (ok(RULE, f"{gpus_word(gpus)}: beside the only node with CPUs", *_proofs(gpus)),)
    places: dict[int | None, list[Gpu]] = {}
    for gpu in gpus:
        places.setdefault(gpu.cpu_node, []).append(gpu)
    said = "; ".join(f"{gpus_word(those)} beside node {node}" for node, those in places.items())
    return (ok(RULE, said, *_proofs(gpus)),)


def _proofs(gpus: Iterable[Gpu]) -> list[Proof]:
    """Say each thing once: eight GPUs of which one file says the same need one line."""
    said: dict[tuple[str, str], list[Gpu]] = {}
    for gpu in gpus:
        for each in gpu.evidence:
            said.setdefault((each.source, each.says), []).append(gpu)
    return [
        Proof(f"{source} of {gpus_word(those)}", says) for (source, says), those in said.items()
    ]


CHECK = Check(
    question="Is it known beside which CPUs each GPU is, and do the sources agree?",
    rules=(RULE,),
    judge=judge,
    why=(
        "Threads and pinned buffers on the other socket cross the link between sockets for every copy: a public report on"
        " GB200 gives 115 instead of 330 GB/s from device to host. A GPU whose node is unknown must not be bound to node 0."
    ),
    sources=(
        "https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci",
        "https://github.com/pytorch/torchtitan/issues/3519",
        "https://github.com/rapidsai/cuCascade/issues/119",
        "https://github.com/vllm-project/vllm/pull/39361",
    ),
)
