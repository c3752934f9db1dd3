"""Is /dev/shm large enough for DataLoader workers and NCCL?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, cannot_tell, fail, no_gpu, ok, warn, whole_number
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable
from wellfed.model.units import format_bytes

RULE = "ctr.shm_size"
ASKED = "statvfs /dev/shm"
DEFAULT_BYTES = 64 << 20
"""What Docker and Kubernetes give a container that asks for nothing."""
NEEDED_BYTES = 1 << 30
FULL = 0.8


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Judge size first, then how much of it is left: files of dead jobs stay there."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    answer = snapshot.answer(ASKED)
    if isinstance(answer, Unreadable):
        return (cannot_tell(RULE, "/dev/shm", answer),)
    size, free = _sizes(answer)
    if size is None or free is None:
        return (cannot_tell(RULE, ASKED, answer),)
    said = f"{format_bytes(size)}, {format_bytes(free)} free"
    proof = Proof("df /dev/shm", said, f"at least {format_bytes(NEEDED_BYTES)}")
    if workload == "generic":
        return (ok(RULE, f"/dev/shm has {said}", proof),)
    remedy = (
        "docker run --shm-size=16g …\n"
        "mount -o remount,size=16g /dev/shm   # on the host\n"
        "# Kubernetes: an emptyDir with medium: Memory, mounted at /dev/shm"
    )
    if size <= DEFAULT_BYTES:
        summary = f"/dev/shm has {format_bytes(size)}, a container's default: workers end with a bus error, NCCL fails to start"
        return (fail(RULE, summary, proof, remedy=remedy),)
    if size < NEEDED_BYTES:
        return (
            warn(
                RULE,
                f"/dev/shm has {format_bytes(size)}, less than the batches of a few workers",
                proof,
                remedy=remedy,
            ),
        )
    if size - free > FULL * size and free < NEEDED_BYTES:
        summary = f"/dev/shm is nearly full: {said}"
        return (
            fail(
                RULE,
                summary,
                proof,
                remedy="ls -lt /dev/shm   # then remove files of jobs that have ended",
            ),
        )
    return (ok(RULE, f"/dev/shm has {said}", proof),)


def _sizes(answer: str) -> tuple[int | None, int | None]:
    """Read ``bsize=4096 blocks=… bavail=…`` into bytes: (whole, free)."""
    fields = dict(word.partition("=")[::2] for word in answer.split())
    numbers = [whole_number(fields.get(name, "")) for name in ("bsize", "blocks", "bavail")]
    block, whole, free = numbers
    if block is None or whole is None or free is None or block <= 0 or min(whole, free) < 0:
        return None, None
    return block * whole, block * free


CHECK = Check(
    question="Is /dev/shm large enough for DataLoader workers and NCCL?",
    rules=(RULE,),
    judge=judge,
    why=(
        "Workers hand batches over in /dev/shm and NCCL keeps about 10 MiB for each pair of local ranks there. When it is full,"
        " the writer dies of SIGBUS, often only in the second epoch."
    ),
    sources=(
        "https://github.com/pytorch/pytorch/issues/5040",
        "https://github.com/pytorch/pytorch/issues/1355",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#docker",
    ),
    asks=(ASKED,),
)
