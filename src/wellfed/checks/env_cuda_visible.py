"""Does CUDA_VISIBLE_DEVICES (or its ROCm and Level Zero kin) name what its author meant?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, cannot_tell, does_not_apply, gpus_word, not_known, ok, warn
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "env.cuda_visible_devices"


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Say where the driver stops reading the list, and which entries name nothing."""
    gpus = [gpu for gpu in snapshot.machine.gpus if gpu.accessible is not False]
    if not gpus:
        return (does_not_apply(RULE, "no GPU is seen here"),)
    environment = snapshot.answer("environ")
    if isinstance(environment, Unreadable):
        return (cannot_tell(RULE, "environment", environment),)
    visible = snapshot.visible
    if visible is None or visible.variable is None:
        return (
            ok(
                RULE,
                f"no variable hides {gpus_word(gpus)}",
                Proof("environment CUDA_VISIBLE_DEVICES", "not set"),
            ),
        )
    name = visible.variable
    value = snapshot.environment.get(name, "")
    found = Proof(f"environment {name}", value)
    about = [note for note in visible.notes if name in note]
    if about and not visible.order_known:
        return (not_known(RULE, f"{name}={value}: {about[0]}", found),)
    if about:
        seen = f"{len(visible.gpus)} of {len(gpus)} GPUs visible"
        return (
            warn(
                RULE,
                f"{seen}. {' '.join(about)}",
                found,
                remedy=f"nvidia-smi -L   # numbers below {len(gpus)}, or whole UUIDs\nexport {name}=…",
            ),
        )
    count = len(visible.gpus) if visible.num_devices is None else visible.num_devices
    return (ok(RULE, f"{name}={value}: {count} device{'s' if count != 1 else ''} visible", found),)


CHECK = Check(
    question="Does CUDA_VISIBLE_DEVICES (or its ROCm and Level Zero kin) name what its author meant?",
    rules=(RULE,),
    judge=judge,
    why=(
        "The driver reads the list up to the first entry it does not know and says nothing: ranks then share GPUs, or find"
        " fewer than the job asked for."
    ),
    sources=(
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables",
        "https://github.com/vllm-project/vllm/issues/41848",
    ),
    asks=("environ",),
)
