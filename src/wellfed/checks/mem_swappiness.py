"""Does the kernel swap the job's memory out in favour of cached files?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import (
    Check,
    cannot_tell,
    does_not_apply,
    grown,
    no_gpu,
    not_known,
    ok,
    warn,
    whole_number,
)
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "mem.swappiness"
FILE, SWAPS, VMSTAT = "/proc/sys/vm/swappiness", "/proc/swaps", "/proc/vmstat"
WANTED = 10


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Without swap the value means nothing; with swap it matters once pages are written out."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    swaps = snapshot.read(SWAPS)
    if isinstance(swaps, Unreadable):
        if swaps.errno_name == "ENOENT":
            return (does_not_apply(RULE, "this kernel has no swap"),)
        return (cannot_tell(RULE, SWAPS, swaps),)
    if len(swaps.splitlines()) < 2:
        return (does_not_apply(RULE, "there is no swap, so swappiness has no effect"),)
    text = snapshot.read(FILE)
    value = whole_number(text) if isinstance(text, str) else None
    if value is None:
        return (cannot_tell(RULE, FILE, text),)
    proof = Proof(FILE, str(value), f"1 to {WANTED}")
    if value <= WANTED or workload == "generic":
        return (ok(RULE, f"swappiness is {value}", proof),)
    written = grown(snapshot.rates[VMSTAT], "pswpout")
    if written is None:
        return (
            not_known(
                RULE,
                f"swappiness is {value}; whether pages are being swapped out was not sampled",
                proof,
            ),
        )
    if not written:
        return (ok(RULE, f"swappiness is {value}, and nothing is being swapped out", proof),)
    return (
        warn(
            RULE,
            f"swappiness is {value} and pages are being swapped out: {written} during the sample",
            proof,
            Proof(f"{VMSTAT} pswpout", f"+{written}", "+0"),
            remedy="sysctl -w vm.swappiness=1",
            persist="echo vm.swappiness=1 > /etc/sysctl.d/60-swappiness.conf",
            undo=f"sysctl -w vm.swappiness={value}",
        ),
    )


CHECK = Check(
    question="Does the kernel swap the job's memory out in favour of cached files?",
    rules=(RULE,),
    judge=judge,
    why=(
        "Memory of the data pipeline that was swapped out comes back a page at a time, and the GPU waits for it. 1 keeps it"
        " resident; 0 is not `off` and turns pressure into an out-of-memory kill."
    ),
    sources=(
        "https://docs.kernel.org/admin-guide/sysctl/vm.html#swappiness",
        "https://github.com/torvalds/linux/commit/fe35004fbf9eaf67482b074a2e032abb9c89b1dd",
        "https://github.com/m3db/m3/issues/1908",
    ),
    reads=(FILE, SWAPS),
    rates=(VMSTAT,),
)
