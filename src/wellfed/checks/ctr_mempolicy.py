"""May a process choose the NUMA node of its memory here?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, cannot_tell, does_not_apply, no_gpu, ok, warn
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "ctr.mempolicy_seccomp"
ASKED = "mempolicy"


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """The call itself was tried in a child: reading files cannot tell."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    if len(snapshot.machine.memory_nodes) < 2:
        return (does_not_apply(RULE, "one NUMA node has all memory"),)
    answer = snapshot.answer(ASKED)
    if isinstance(answer, str):
        return (ok(RULE, "set_mempolicy works", Proof("set_mempolicy", answer)),)
    if answer.errno_name == "ENOSYS":
        return (does_not_apply(RULE, "this kernel has no memory policies"),)
    if answer.errno_name == "ENODATA":
        return (cannot_tell(RULE, "set_mempolicy", answer),)
    return (_refused(snapshot, answer),)


def _refused(snapshot: Snapshot, answer: Unreadable) -> Finding:
    summary = f"set_mempolicy is refused ({answer.errno_name}): numactl and wellfed can bind CPUs here, but not memory"
    return warn(
        RULE,
        summary,
        Proof("set_mempolicy", answer.errno_name, "ok"),
        remedy="docker run --cap-add SYS_NICE …\n# Kubernetes: securityContext.capabilities.add: [SYS_NICE]",
    )


CHECK = Check(
    question="May a process choose the NUMA node of its memory here?",
    rules=(RULE,),
    judge=judge,
    why=(
        "Docker's and containerd's default seccomp profile denies the NUMA calls without CAP_SYS_NICE. Tools that do not check"
        " the result say `bound`, while pinned buffers go to whatever node is free."
    ),
    sources=(
        "https://github.com/moby/moby/issues/37241",
        "https://github.com/containerd/containerd/issues/13610",
        "https://github.com/vllm-project/vllm/issues/55416",
    ),
    asks=(ASKED,),
)
