"""Does NCCL throw away the CPU mask that the launcher set?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import (
    Check,
    cannot_tell,
    does_not_apply,
    ok,
    usable_gpus,
    warn,
    whole_number,
)
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "env.nccl_ignore_cpu_affinity"
VARIABLE = "NCCL_IGNORE_CPU_AFFINITY"
FILE = "/etc/nccl.conf"


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Look at the variable, and at the file that stands in for it where it is not set."""
    if not any(gpu.vendor in ("nvidia", "amd") for gpu in usable_gpus(snapshot)):
        return (does_not_apply(RULE, "no GPU here uses NCCL or RCCL"),)
    environment = snapshot.answer("environ")
    if isinstance(environment, Unreadable):
        return (cannot_tell(RULE, "environment", environment),)
    value, where = snapshot.environment.get(VARIABLE), "environment"
    if value is None:
        value, where = _from_file(snapshot.read(FILE)), FILE
    if value is None:
        return (
            ok(
                RULE,
                f"{VARIABLE} is not set: NCCL stays inside the mask it was given",
                Proof("environment", "not set"),
            ),
        )
    proof = Proof(f"{where} {VARIABLE}", value, "0 or not set")
    if whole_number(value) in (0, None):
        return (ok(RULE, f"{VARIABLE}={value}: NCCL stays inside the mask it was given", proof),)
    remedy = f"unset {VARIABLE}" if where == "environment" else f"sed -i /{VARIABLE}/d {FILE}"
    return (
        warn(
            RULE,
            f"{VARIABLE}={value}: NCCL replaces the CPU mask of every rank by its own choice",
            proof,
            remedy=remedy,
        ),
    )


def _from_file(text: str | Unreadable) -> str | None:
    """Read ``NAME=value`` lines; ``#`` begins a comment line."""
    for line in (text or "").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == VARIABLE:
            return value.strip()
    return None


CHECK = Check(
    question="Does NCCL throw away the CPU mask that the launcher set?",
    rules=(RULE,),
    judge=judge,
    why=(
        "NCCL intersects the mask it inherits with the CPUs beside the GPU. With this variable it discards the mask: the"
        " proxy threads of ranks that were given cores of their own land on each other's."
    ),
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ignore-cpu-affinity",
        "https://github.com/NVIDIA/nccl/issues/1017",
    ),
    reads=(FILE,),
    asks=("environ",),
)
