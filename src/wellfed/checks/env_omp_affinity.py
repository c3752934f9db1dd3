"""Does OpenMP pin threads again, against the launcher's mask?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wellfed.checks._base import Check, cannot_tell, fail, no_gpu, ok, warn
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "env.omp_affinity"
KMP_TYPES = {"balanced", "compact", "explicit", "logical", "physical", "scatter"}
"""Types of KMP_AFFINITY that bind; without one of these the rest of its value only modifies nothing."""


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Look for the variables by which GNU's and LLVM's OpenMP bind threads."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    environment = snapshot.answer("environ")
    if isinstance(environment, Unreadable):
        return (cannot_tell(RULE, "environment", environment),)
    pinning = _pinning(snapshot.environment)
    if not pinning:
        return (ok(RULE, "no variable makes OpenMP pin threads", Proof("environment", "none set")),)
    said = ", ".join(f"{name}={value}" for name, value in pinning.items())
    proofs = [Proof(f"environment {name}", value, "not set") for name, value in pinning.items()]
    remedy = f"unset {' '.join(pinning)}"
    job = snapshot.job
    if job is not None and job.num_local_ranks > 1:
        summary = (
            f"{said}: each of {job.num_local_ranks} ranks pins itself, often all to the same cores"
        )
        return (fail(RULE, summary, *proofs, remedy=remedy),)
    summary = f"{said}: the main thread is pinned to few cores once OpenMP starts, and workers forked after that inherit it"
    return (warn(RULE, summary, *proofs, remedy=remedy),)


def _pinning(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what binds: KMP_AFFINITY (LLVM, Intel), GOMP_CPU_AFFINITY (GNU) and OpenMP's own variables.

    In libgomp OMP_PROC_BIND comes before GOMP_CPU_AFFINITY, and false switches both off; places without it bind.
    """
    found = {}
    kmp = environment.get("KMP_AFFINITY", "")
    if KMP_TYPES & {word.strip().lower() for word in kmp.split(",")}:
        found["KMP_AFFINITY"] = kmp
    bind = environment.get("OMP_PROC_BIND", "").strip()
    if bind.lower() == "false":
        return found
    candidates = {"GOMP_CPU_AFFINITY": environment.get("GOMP_CPU_AFFINITY"), "OMP_PROC_BIND": bind}
    if not bind:
        candidates["OMP_PLACES"] = environment.get("OMP_PLACES")
    return found | {name: value for name, value in candidates.items() if value}


CHECK = Check(
    question="Does OpenMP pin threads again, against the launcher's mask?",
    rules=(RULE,),
    judge=judge,
    why=(
        "OpenMP's own pinning starts with `import torch`: it shrinks the main thread to one core, DataLoader workers inherit"
        " that core, and all of them share it while the GPU waits."
    ),
    sources=(
        "https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fCPU_005fAFFINITY.html",
        "https://github.com/pytorch/pytorch/issues/101850",
        "https://github.com/pytorch/pytorch/issues/49971",
    ),
    asks=("environ",),
)
