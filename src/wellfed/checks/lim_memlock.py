"""May this process lock enough memory for RDMA?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, cannot_tell, does_not_apply, fail, no_gpu, ok, whole_number
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable
from wellfed.model.units import format_bytes

RULE = "lim.memlock.shell"
ASKED = "rlimit memlock"
STATUS = "/proc/self/status"
NEEDED_BYTES = 1 << 30
"""NCCL and UCX register buffers of hundreds of MiB for each pair of peers; distributions allow 8 MiB."""
CAP_IPC_LOCK = 1 << 14
"""include/uapi/linux/capability.h: who has it is not limited."""


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Only RDMA (and io_uring's registered buffers) meet this limit; CUDA's pinned memory is locked by its driver."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    cards = [device for nic in snapshot.machine.nics for device in nic.rdma_devices]
    if not cards:
        return (does_not_apply(RULE, "there is no RDMA device here"),)
    answer = snapshot.answer(ASKED)
    if isinstance(answer, Unreadable):
        return (cannot_tell(RULE, ASKED, answer),)
    soft, _, hard = answer.partition(" ")
    proof = Proof("ulimit -l of this process", _said(soft), "unlimited")
    limit = whole_number(soft)
    if soft == "unlimited" or (limit is not None and limit >= NEEDED_BYTES):
        return (ok(RULE, f"memory may be locked: {_said(soft)}", proof),)
    if limit is None:
        return (cannot_tell(RULE, ASKED, answer),)
    if _may_lock_anyway(snapshot.read(STATUS)):
        return (
            ok(
                RULE,
                f"this process may lock all memory (CAP_IPC_LOCK); another user is held to {_said(soft)}",
                proof,
            ),
        )
    summary = f"this process may lock {_said(soft)}: registering buffers with {cards[0]} fails for want of memory"
    raised = hard == "unlimited" or (whole_number(hard) or 0) >= NEEDED_BYTES
    elsewhere = (
        "docker run --ulimit memlock=-1 …\n"
        "# services, dockerd and slurmd: LimitMEMLOCK=infinity in their unit\n"
        "# Slurm: PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
    )
    keep = "echo '* - memlock unlimited' > /etc/security/limits.d/90-memlock.conf   # logins only"
    remedy = "ulimit -l unlimited" if raised else elsewhere
    return (fail(RULE, summary, proof, remedy=remedy, persist=keep),)


def _said(limit: str) -> str:
    size = whole_number(limit)
    return limit if size is None else format_bytes(size)


def _may_lock_anyway(status: str | Unreadable) -> bool:
    """Look for CAP_IPC_LOCK among the effective capabilities."""
    for line in (status or "").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            try:
                return bool(int(value, 16) & CAP_IPC_LOCK)
            except ValueError:
                return False
    return False


CHECK = Check(
    question="May this process lock enough memory for RDMA?",
    rules=(RULE,),
    judge=judge,
    why=(
        "Buffers that a network card reads and writes must be locked. At the usual 8 MiB NCCL and UCX fail to start, or fall"
        " back to TCP. CUDA's pinned memory is another matter: raising this limit does not give more of it."
    ),
    sources=(
        "https://github.com/NVIDIA/nccl-tests/issues/206",
        "https://github.com/mlcommons/mlperf-automations/issues/664",
        "https://github.com/open-mpi/ompi/issues/6468",
    ),
    reads=(STATUS,),
    asks=(ASKED,),
)
