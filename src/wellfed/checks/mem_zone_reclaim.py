"""Does a full NUMA node throw its page cache away before it uses another node?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, cannot_tell, does_not_apply, no_gpu, ok, warn, whole_number
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "mem.zone_reclaim_mode"
FILE = "/proc/sys/vm/zone_reclaim_mode"


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Every bit but none makes allocations reclaim locally first."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    if len(snapshot.machine.memory_nodes) < 2:
        return (does_not_apply(RULE, "one NUMA node has all memory"),)
    text = snapshot.read(FILE)
    if isinstance(text, Unreadable):
        if text.errno_name == "ENOENT":
            return (does_not_apply(RULE, "this kernel has no zone_reclaim_mode"),)
        return (cannot_tell(RULE, FILE, text),)
    value = whole_number(text)
    if value is None:
        return (cannot_tell(RULE, FILE, text),)
    if value == 0:
        return (ok(RULE, "a full node uses other nodes' free memory", Proof(FILE, text, "0")),)
    summary = f"zone_reclaim_mode is {value}: a full node drops cached data and stalls before it uses another node"
    return (
        warn(
            RULE,
            summary,
            Proof(FILE, text, "0"),
            remedy="sysctl -w vm.zone_reclaim_mode=0",
            persist="echo vm.zone_reclaim_mode=0 > /etc/sysctl.d/60-zone-reclaim.conf",
            undo=f"sysctl -w vm.zone_reclaim_mode={value}",
        ),
    )


CHECK = Check(
    question="Does a full NUMA node throw its page cache away before it uses another node?",
    rules=(RULE,),
    judge=judge,
    why=(
        "Data that was read once is dropped although the other socket has room, so the next epoch reads it again, and each"
        " allocation on the full node may wait for reclaim."
    ),
    sources=("https://docs.kernel.org/admin-guide/sysctl/vm.html#zone-reclaim-mode",),
    reads=(FILE,),
)
