"""Is this rank of a job bound to the CPUs beside its GPU?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, cannot_tell, does_not_apply, ok, usable_gpus, warn
from wellfed.model.cpuset import NodeSet
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "placement.rank"
LAUNCH = """\
torchrun --no-python … wellfed run -- python train.py
srun … wellfed run -- python train.py"""


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Look whether a rank may wander over several nodes; outside a job there is nothing to judge."""
    machine, job = snapshot.machine, snapshot.job
    if not usable_gpus(snapshot):
        return (does_not_apply(RULE, "no GPU is seen here"),)
    environment = snapshot.answer("environ")
    if isinstance(environment, Unreadable):
        return (cannot_tell(RULE, "environment", environment),)
    if snapshot.job_problem is not None:
        summary = f"rank variables do not fit together: {snapshot.job_problem}"
        return (warn(RULE, summary, Proof("environment", "rank variables")),)
    if job is None:
        return (does_not_apply(RULE, "this process is no rank of a job"),)
    if len(machine.cpu_nodes) < 2:
        return (does_not_apply(RULE, "one NUMA node has all CPUs"),)
    name = f"rank {job.local_rank}" if job.local_rank is not None else "this rank"
    cpus = machine.allowed.cpus
    nodes = NodeSet(node.node for node in machine.nodes if node.cpus & cpus)
    found = Proof("sched_getaffinity", str(cpus), "CPUs of one node")
    if len(nodes) > 1 and job.num_local_ranks > 1:
        summary = f"{name} of {job.num_local_ranks} may run on {len(cpus)} CPUs of nodes {nodes}: the scheduler moves it away from its GPU"
        return (
            warn(
                RULE,
                summary,
                Proof("environment", job.source or "rank variables"),
                found,
                remedy=LAUNCH,
            ),
        )
    place = f"node {nodes}" if len(nodes) == 1 else f"nodes {nodes}"
    return (ok(RULE, f"{name} runs on CPUs {cpus} of {place}", found),)


CHECK = Check(
    question="Is this rank of a job bound to the CPUs beside its GPU?",
    rules=(RULE,),
    judge=judge,
    why=(
        "An unbound rank is moved between sockets by the scheduler, while the pages it touched first stay behind. torchrun,"
        " srun and mpirun bind CPUs only when told to, and never the memory."
    ),
    sources=(
        "https://docs.kernel.org/admin-guide/mm/numa_memory_policy.html",
        "https://github.com/pytorch/pytorch/pull/160163",
        "https://slurm.schedmd.com/mc_support.html",
    ),
    asks=("environ",),
)
