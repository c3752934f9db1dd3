"""Is anything being read back from swap?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import (
    Check,
    cannot_tell,
    does_not_apply,
    fail,
    grown,
    no_gpu,
    not_known,
    ok,
)
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "mem.swap.devices"
SWAPS, VMSTAT = "/proc/swaps", "/proc/vmstat"


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Pages that lie in swap are harmless until somebody wants them: the rate decides, not the amount."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    swaps = snapshot.read(SWAPS)
    if isinstance(swaps, Unreadable):
        if swaps.errno_name == "ENOENT":
            return (does_not_apply(RULE, "this kernel has no swap"),)
        return (cannot_tell(RULE, SWAPS, swaps),)
    devices = [line.split()[0] for line in swaps.splitlines()[1:] if line.split()]
    if not devices:
        return (ok(RULE, "there is no swap", Proof(SWAPS, "no device")),)
    named = ", ".join(devices)
    rate = snapshot.rates[VMSTAT]
    read = grown(rate, "pswpin")
    if read is None:
        return (
            not_known(
                RULE,
                f"swap on {named}; whether it is being read was not sampled",
                Proof(SWAPS, named),
            ),
        )
    proof = Proof(f"{VMSTAT} pswpin", f"+{read} in {rate.interval_seconds:g} s", "+0")
    if not read:
        return (ok(RULE, f"swap on {named} lies idle", proof),)
    summary = f"{read / rate.interval_seconds:.0f} pages a second are being read back from {named}: memory is short"
    return (
        fail(
            RULE,
            summary,
            proof,
            Proof(SWAPS, named),
            remedy="ps -eo pid,rss,args --sort=-rss | head   # who takes the memory?",
        ),
    )


CHECK = Check(
    question="Is anything being read back from swap?",
    rules=(RULE,),
    judge=judge,
    why=(
        "A page read back from swap takes thousands of times as long as one in memory: one such page in the path of a batch"
        " delays the step of every rank."
    ),
    sources=(
        "https://docs.kernel.org/admin-guide/mm/concepts.html#reclaim",
        "https://kubernetes.io/docs/concepts/cluster-administration/swap-memory-management/",
    ),
    reads=(SWAPS,),
    rates=(VMSTAT,),
)
