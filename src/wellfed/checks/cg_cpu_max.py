"""Does a CPU quota stop this process?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, counter, fail, no_gpu, not_known, ok, warn
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot

RULE = "cg.cpu_max"
STAT = "cgroup.cpu/cpu.stat"
OFTEN = 0.01
"""Share of periods in which the group was stopped, from which on it shows: 1 of 100 periods of 100 ms."""
MANY_PERIODS = 600
"""A minute of periods without a stop shows that the quota is wide enough for what runs here."""


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """A quota below the CPUs of the mask is a trap; periods in which the group was stopped are the proof."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    allowed = snapshot.machine.allowed
    unknown = next((why for why in allowed.unknown if why.startswith("CPU quota")), None)
    if allowed.cpu_quota is None:
        return (
            not_known(RULE, unknown)
            if unknown
            else ok(RULE, "no CPU quota", Proof("cpu.max", "max")),
        )
    quota, cpus = allowed.cpu_quota, len(allowed.cpus)
    proof = Proof("cpu.max", f"{quota:g} CPUs' worth of time", f"none, or at least {cpus}")
    periods, share, stopped = _stopped(snapshot)
    remedy = (
        f"export OMP_NUM_THREADS={max(1, int(quota))}   # and as few DataLoader workers\n"
        "docker run --cpus=N …   # raise the limit\n"
        "systemctl set-property UNIT CPUQuota=\n"
        "# Kubernetes: resources.limits.cpu, or whole CPUs under cpuManagerPolicy: static"
    )
    if share > OFTEN:
        summary = f"a quota of {quota:g} CPUs has stopped this group in {share:.0%} of its periods"
        return (fail(RULE, summary, proof, *stopped, remedy=remedy),)
    if quota < cpus and periods < MANY_PERIODS:
        summary = (
            f"{quota:g} CPUs' worth of time for {cpus} CPUs: programs that count CPUs start too many threads,"
            " and all of them are stopped together"
        )
        return (warn(RULE, summary, proof, *stopped, remedy=remedy),)
    return (ok(RULE, f"a quota of {quota:g} CPUs for {cpus} CPUs", proof, *stopped),)


def _stopped(snapshot: Snapshot) -> tuple[int, float, list[Proof]]:
    """Return periods, the largest share of them in which this group or one above was stopped, and where that stands."""
    most, worst, proofs = 0, 0.0, []
    for path in snapshot.match(STAT):
        text = snapshot.read(path)
        periods, throttled = counter(text, "nr_periods"), counter(text, "nr_throttled")
        if periods and throttled is not None:
            most, worst = max(most, periods), max(worst, throttled / periods)
            proofs.append(Proof(path, f"nr_throttled {throttled} of nr_periods {periods}", "0"))
    return most, worst, proofs


CHECK = Check(
    question="Does a CPU quota stop this process?",
    rules=(RULE,),
    judge=judge,
    why=(
        "When the threads of a group have used up its quota, all of them stand still until the next period, up to 100 ms: the"
        " GPU runs dry while CPU use looks low. Neither os.cpu_count nor the affinity mask shows a quota."
    ),
    sources=(
        "https://docs.kernel.org/scheduler/sched-bwc.html",
        "https://github.com/kubernetes/kubernetes/issues/67577",
        "https://github.com/vllm-project/vllm/pull/49919",
        "https://github.com/dmlc/xgboost/issues/9622",
    ),
    reads=(STAT,),
)
