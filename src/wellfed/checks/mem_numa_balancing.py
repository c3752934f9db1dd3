"""Does the kernel unmap pages of the job to see who uses them?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import (
    Check,
    cannot_tell,
    does_not_apply,
    fail,
    no_gpu,
    ok,
    warn,
    whole_number,
)
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "mem.numa_balancing"
FILE = "/proc/sys/kernel/numa_balancing"
CHANGE = {
    "remedy": "sysctl -w kernel.numa_balancing=0",
    "persist": "echo kernel.numa_balancing=0 > /etc/sysctl.d/60-numa-balancing.conf",
}


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Any bit counts: 1 is balancing, 2 memory tiering. Whether it hurts depends on whether the job is bound."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    machine = snapshot.machine
    if len(machine.nodes) < 2:
        return (does_not_apply(RULE, "there is one NUMA node"),)
    text = snapshot.read(FILE)
    if isinstance(text, Unreadable):
        if text.errno_name == "ENOENT":
            return (does_not_apply(RULE, "this kernel has no automatic NUMA balancing"),)
        return (cannot_tell(RULE, FILE, text),)
    value = whole_number(text)
    if value is None:
        return (cannot_tell(RULE, FILE, text),)
    proof = Proof(FILE, text, "0")
    if value == 0:
        return (ok(RULE, "automatic NUMA balancing is off", proof),)
    undo = f"sysctl -w kernel.numa_balancing={value}"
    if any(gpu.hbm_node is not None for gpu in machine.gpus):
        summary = f"automatic NUMA balancing is on ({value}) where GPU memory is a NUMA node: the kernel moves pages under the GPU"
        return (fail(RULE, summary, proof, undo=undo, **CHANGE),)
    if workload == "generic" or (workload == "data" and not _is_bound(snapshot)):
        return (
            ok(
                RULE,
                f"automatic NUMA balancing is on ({value}), which helps processes that nobody bound",
                proof,
            ),
        )
    if _is_bound(snapshot):
        summary = f"automatic NUMA balancing is on ({value}) and this rank is bound: it costs stalls and can improve nothing"
        return (fail(RULE, summary, proof, undo=undo, **CHANGE),)
    summary = f"automatic NUMA balancing is on ({value}): threads that feed GPUs stall for milliseconds. Bind the job first, then switch it off"
    return (warn(RULE, summary, proof, undo=undo, **CHANGE),)


def _is_bound(snapshot: Snapshot) -> bool:
    """Say whether this process is a rank that stays on one node."""
    machine = snapshot.machine
    nodes = [node for node in machine.nodes if node.cpus & machine.allowed.cpus]
    return snapshot.job is not None and len(nodes) == 1


CHECK = Check(
    question="Does the kernel unmap pages of the job to see who uses them?",
    rules=(RULE,),
    judge=judge,
    why=(
        "To sample accesses the kernel unmaps pages, and the thread that touches one next pays: 5 ms on average and 16 to"
        " 31 ms at worst in a public report on expert-parallel inference. For processes that nobody bound it can also help"
        " (up to 20% in a report to tuned), so binding comes first."
    ),
    sources=(
        "https://docs.kernel.org/admin-guide/sysctl/kernel.html#numa-balancing",
        "https://github.com/deepseek-ai/DeepEP/issues/624",
        "https://github.com/redhat-performance/tuned/pull/283",
        "https://nvidia.github.io/grace-cpu-benchmarking-guide/platform/index.html",
    ),
    reads=(FILE,),
)
