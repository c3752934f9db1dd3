"""Do transparent huge pages suit this workload?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, cannot_tell, does_not_apply, no_gpu, ok, warn, whole_number
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable
from wellfed.model.units import format_bytes

RULE = "mem.thp.enabled"
FILE = "/sys/kernel/mm/transparent_hugepage/enabled"
SIZE = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
LARGEST_USEFUL_BYTES = 32 << 20
"""With 64 KiB base pages (arm64) a huge page is 512 MiB: then no opinion is better than one made for 2 MiB."""
KEEP = "echo 'w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise' > /etc/tmpfiles.d/thp.conf"


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """`madvise` is right for all: `always` hurts latency, `never` takes the gain from code that asks for it."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    text = snapshot.read(FILE)
    if isinstance(text, Unreadable):
        if text.errno_name == "ENOENT":
            return (does_not_apply(RULE, "this kernel has no transparent huge pages"),)
        return (cannot_tell(RULE, FILE, text),)
    mode = next(
        (word[1:-1] for word in text.split() if word.startswith("[") and word.endswith("]")), None
    )
    if mode not in ("always", "madvise", "never"):
        return (cannot_tell(RULE, FILE, text),)
    size = whole_number(snapshot.read(SIZE) or "")
    if size is not None and size > LARGEST_USEFUL_BYTES:
        return (
            ok(
                RULE,
                f"huge pages are {format_bytes(size)} here, `{mode}` matters little",
                Proof(FILE, text),
            ),
        )
    undo = f"echo {mode} > {FILE}"
    proof = Proof(FILE, text, "madvise")
    if mode == "always" and workload == "inference":
        summary = "transparent huge pages are `always`: page faults of the serving process stop to compact memory"
        return (
            warn(RULE, summary, proof, remedy=f"echo madvise > {FILE}", persist=KEEP, undo=undo),
        )
    if mode == "never" and workload in ("training", "data"):
        summary = (
            "transparent huge pages are `never`: large buffers take 512 times as many page faults"
        )
        return (
            warn(RULE, summary, proof, remedy=f"echo madvise > {FILE}", persist=KEEP, undo=undo),
        )
    return (ok(RULE, f"transparent huge pages: {mode}", proof),)


CHECK = Check(
    question="Do transparent huge pages suit this workload?",
    rules=(RULE,),
    judge=judge,
    why=(
        "A buffer of huge pages faults 512 times less and needs fewer TLB entries when it is filled and copied. `always` also"
        " gives them to code that did not ask: allocators grow, and a fault may wait for compaction. `madvise` keeps the gain"
        " for those who ask, NumPy for example."
    ),
    sources=(
        "https://docs.kernel.org/admin-guide/mm/transhuge.html",
        "https://github.com/jemalloc/jemalloc/issues/1674",
        "https://docs.nvidia.com/grace-perf-tuning-guide/os-settings.html",
    ),
    reads=(FILE, SIZE),
)
