"""May this process open enough files for its DataLoader workers?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, cannot_tell, no_gpu, ok, warn, whole_number
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "lim.nofile"
ASKED = "rlimit nofile"
TOO_FEW, PLENTY = 4096, 65536
"""Below the first, workers that share tensors by file descriptor run out; the second is the usual recommendation."""


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Compare the soft limit, which is what counts, and offer the hard one."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    answer = snapshot.answer(ASKED)
    if isinstance(answer, Unreadable):
        return (cannot_tell(RULE, ASKED, answer),)
    soft, _, hard = answer.partition(" ")
    proof = Proof("ulimit -n of this process", soft, f"at least {PLENTY}")
    limit, most = whole_number(soft), whole_number(hard)
    if soft == "unlimited" or (limit is not None and (limit >= TOO_FEW or workload == "generic")):
        return (ok(RULE, f"{soft} open files", proof),)
    if limit is None:
        return (cannot_tell(RULE, ASKED, answer),)
    wanted = PLENTY if hard == "unlimited" else min(PLENTY, most or limit)
    elsewhere = (
        f"docker run --ulimit nofile={PLENTY} …\n# services: LimitNOFILE={PLENTY} in their unit"
    )
    remedy = f"ulimit -n {wanted}" if wanted > limit else elsewhere
    keep = f"echo '* - nofile {PLENTY}' > /etc/security/limits.d/90-nofile.conf"
    summary = f"this process may open {limit} files: workers that pass tensors by file descriptor stop at it"
    return (warn(RULE, summary, proof, remedy=remedy, persist=keep, undo=f"ulimit -n {limit}"),)


CHECK = Check(
    question="May this process open enough files for its DataLoader workers?",
    rules=(RULE,),
    judge=judge,
    why=(
        "PyTorch shares each tensor of a batch by a file descriptor, and every rank, shard and socket takes some too: at the"
        " limit loading ends with `Too many open files` or `received 0 items of ancdata`."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor",
        "https://github.com/pytorch/pytorch/issues/973",
    ),
    asks=(ASKED,),
)
