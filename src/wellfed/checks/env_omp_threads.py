"""Do the ranks here start more OpenMP threads than they have CPUs?"""

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

RULE = "env.omp_threads"
VARIABLE = "OMP_NUM_THREADS"
TOO_MANY = 1.5
"""Threads for each CPU from which on they wait for each other: pytorch/torchtitan#4038 and vllm#49919 were above it."""


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Compare threads with CPUs and with the quota, for all ranks where they share this mask."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    environment = snapshot.answer("environ")
    if isinstance(environment, Unreadable):
        return (cannot_tell(RULE, "environment", environment),)
    machine, job = snapshot.machine, snapshot.job
    cpus = len(machine.allowed.cpus)
    quota = machine.allowed.cpu_quota
    usable = cpus if quota is None else min(cpus, quota)
    # A mask smaller than the host may be this rank's alone: then the other ranks' threads are not on it.
    ranks = job.num_local_ranks if job is not None and machine.allowed.cpus == machine.online else 1
    text = snapshot.environment.get(VARIABLE)
    limit = (
        Proof("cpu.max", f"{quota:g} CPUs' worth of time")
        if quota is not None
        else Proof("sched_getaffinity", f"{cpus} CPUs")
    )
    remedy = f"export {VARIABLE}={max(1, int(usable / ranks))}"
    if text is None:
        return (_unset(cpus, quota),)
    threads = whole_number(text.split(",")[0])
    proof = Proof(f"environment {VARIABLE}", text, f"at most {max(1, int(usable / ranks))}")
    if threads is None or threads < 1:
        return (
            warn(
                RULE,
                f"{VARIABLE}={text} is no number of threads, so OpenMP ignores it",
                proof,
                remedy=remedy,
            ),
        )
    each = f"{ranks} ranks × {threads} threads" if ranks > 1 else f"{threads} threads"
    if ranks * threads > TOO_MANY * usable:
        return (
            fail(
                RULE,
                f"{each} on {usable:g} CPUs: they take turns, and the thread that feeds the GPU waits",
                proof,
                limit,
                remedy=remedy,
            ),
        )
    return (ok(RULE, f"{each} on {usable:g} CPUs", proof, limit),)


def _unset(cpus: int, quota: float | None) -> Finding:
    """Judge the default, a thread for each CPU of the mask; where a quota is below that, `cg.cpu_max` speaks of it."""
    if quota is not None and quota < cpus:
        return does_not_apply(RULE, f"{VARIABLE} is not set; for the CPU quota see cg.cpu_max")
    proof = Proof(f"environment {VARIABLE}", "not set")
    return ok(RULE, f"{VARIABLE} is not set: OpenMP starts a thread for each of {cpus} CPUs", proof)


CHECK = Check(
    question="Do the ranks here start more OpenMP threads than they have CPUs?",
    rules=(RULE,),
    judge=judge,
    why=(
        "Threads that outnumber CPUs spin and take turns, and under a CPU quota the whole process is stopped for the rest of"
        " each 100 ms period. Public reports: step time 112 to 87 s by capping threads, decoding 2 to 6 times slower under a quota."
    ),
    sources=(
        "https://github.com/pytorch/torchtitan/issues/4038",
        "https://github.com/vllm-project/vllm/pull/49919",
        "https://github.com/vllm-project/vllm/issues/9113",
    ),
    asks=("environ",),
)
