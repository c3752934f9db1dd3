"""May this process have memory beside its GPUs?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import (
    Check,
    does_not_apply,
    fail,
    gpus_word,
    not_known,
    ok,
    usable_gpus,
    warn,
)
from wellfed.model.cpuset import NodeSet
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot

RULE = "numa.cgroup_mems"
STATUS = "/proc/self/status Mems_allowed_list"


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Compare the nodes that memory may come from with those of the GPUs."""
    machine, gpus = snapshot.machine, usable_gpus(snapshot)
    if not gpus:
        return (does_not_apply(RULE, "no GPU is seen here"),)
    if len(machine.memory_nodes) < 2:
        return (does_not_apply(RULE, "one NUMA node has all memory"),)
    beside = (
        NodeSet(gpu.cpu_node for gpu in gpus if gpu.cpu_node is not None) & machine.memory_nodes
    )
    if not beside:
        return (
            not_known(RULE, f"{gpus_word(gpus)}: no node with memory is known to be beside it"),
        )
    mems = machine.allowed.mems
    if mems is None:
        return (not_known(RULE, f"{STATUS}: not recorded", Proof(STATUS, "not recorded")),)
    missing = beside - mems
    if not missing:
        return (
            ok(
                RULE,
                f"memory may come from node {beside}, beside {gpus_word(gpus)}",
                Proof(STATUS, str(mems)),
            ),
        )
    far = [gpu for gpu in gpus if gpu.cpu_node in missing]
    summary = (
        f"memory may come from node {mems} only, not from node {missing} beside {gpus_word(far)}"
    )
    remedy = (
        f"docker run --cpuset-mems={mems | missing} …\n"
        "# Kubernetes: kubelet memoryManagerPolicy: Static, topologyManagerPolicy: single-numa-node"
    )
    proof = Proof(STATUS, str(mems), f"a set with {missing}")
    # Some GPUs within reach may be all that the job will use; none within reach hurts whatever it does.
    say = warn if beside & mems else fail
    return (say(RULE, summary, proof, remedy=remedy),)


CHECK = Check(
    question="May this process have memory beside its GPUs?",
    rules=(RULE,),
    judge=judge,
    why=(
        "A cpuset that leaves out the GPU's node puts every pinned buffer on the far socket, and no memory policy can change"
        " that: the kernel reduces or refuses policies to the allowed nodes."
    ),
    sources=(
        "https://docs.kernel.org/admin-guide/cgroup-v1/cpusets.html",
        "https://docs.kernel.org/admin-guide/mm/numa_memory_policy.html",
        "https://github.com/docker/for-linux/issues/863",
    ),
)
