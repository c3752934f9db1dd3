"""May this process use CPUs beside its GPUs?"""

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
from wellfed.model.cpuset import union
from wellfed.model.finding import Finding, Proof
from wellfed.model.machine import Gpu, Machine
from wellfed.model.snapshot import Snapshot

RULE = "cg.cpuset"


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Compare the CPUs that limits leave with those of each GPU's node."""
    machine, gpus = snapshot.machine, usable_gpus(snapshot)
    if not gpus:
        return (does_not_apply(RULE, "no GPU is seen here"),)
    if len(machine.cpu_nodes) < 2:
        return (does_not_apply(RULE, "one NUMA node has all CPUs"),)
    placed = [gpu for gpu in gpus if gpu.cpu_node is not None]
    if not placed:
        return (
            not_known(RULE, f"the NUMA node of {gpus_word(gpus)} is not known, see gpu.numa_node"),
        )
    far = [
        gpu for gpu in placed if not machine.cpus_of((gpu.cpu_node or 0,)) & machine.allowed.cpus
    ]
    proof = _proof(machine)
    if far and len(far) == len(placed):
        nodes = ", ".join(
            str(node) for node in sorted({gpu.cpu_node for gpu in far if gpu.cpu_node is not None})
        )
        summary = f"this process may use CPUs {machine.allowed.cpus}, none of them beside {gpus_word(far)} (node {nodes})"
        return (fail(RULE, summary, proof, remedy=_remedy(machine, far)),)
    if far:
        near = [gpu for gpu in placed if gpu not in far]
        summary = f"this process has CPUs beside {gpus_word(near)}, none beside {gpus_word(far)}"
        return (warn(RULE, summary, proof, remedy=_remedy(machine, far)),)
    return (ok(RULE, f"this process has CPUs beside {gpus_word(placed)}", proof),)


def _by_cpuset(machine: Machine) -> bool:
    """Say whether a cpuset, rather than the mask of this process, is what narrows it."""
    cpuset = machine.allowed.cpuset_cpus
    return cpuset is not None and not machine.online <= cpuset


def _proof(machine: Machine) -> Proof:
    path = machine.allowed.cpuset_path
    where = f"cpuset of {path}" if _by_cpuset(machine) and path else "sched_getaffinity"
    return Proof(where, str(machine.allowed.cpus))


def _remedy(machine: Machine, far: list[Gpu]) -> str:
    """Name the CPUs to ask for: of whoever made the cpuset, or by changing the mask."""
    wanted = union(machine.cpus_of((gpu.cpu_node,)) for gpu in far if gpu.cpu_node is not None)
    if not _by_cpuset(machine):
        return f"taskset -c {wanted} wellfed run -- CMD"
    return (
        f"docker run --cpuset-cpus={wanted} …\n"
        "# Kubernetes: kubelet topologyManagerPolicy: single-numa-node, whole CPUs for the pod\n"
        "# Slurm: srun --gpu-bind=closest …"
    )


CHECK = Check(
    question="May this process use CPUs beside its GPUs?",
    rules=(RULE,),
    judge=judge,
    why=(
        "Every launch, every copy from pinned memory and every DataLoader batch crosses the link between sockets when the"
        " CPUs that a container, a cpuset or taskset leaves are on the far node."
    ),
    sources=(
        "https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset",
        "https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/",
        "https://github.com/kubernetes/kubernetes/issues/122295",
        "https://github.com/rapidsai/dask-cuda/issues/1381",
    ),
)
