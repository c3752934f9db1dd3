"""Do the CPUs that feed the GPUs run at full clock when they are wanted?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, cannot_tell, does_not_apply, no_gpu, ok, warn
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "cpu.governor"
FOLDER = "/sys/devices/system/cpu/cpufreq"
POLICIES = f"{FOLDER}/policy*"
GOVERNOR, DRIVER, PREFERENCE = "scaling_governor", "scaling_driver", "energy_performance_preference"
BY_PREFERENCE = ("intel_pstate", "amd-pstate-epp")
"""Drivers under which `powersave` is no slow clock: the processor chooses, guided by the preference."""
SLOW = ("conservative", "ondemand", "powersave", "schedutil")
"""Governors of the kernel that raise the clock after the work has begun, or never; others are not judged."""
FAST = ("performance", "balance_performance", "default")


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Look at every policy: after hotplug they differ."""
    if absent := no_gpu(snapshot, workload, RULE):
        return (absent,)
    paths = snapshot.match(f"{POLICIES}/{GOVERNOR}")
    folder = snapshot.read(FOLDER)
    if (
        not paths
        and isinstance(folder, Unreadable)
        and folder.errno_name not in ("EISDIR", "ENOENT")
    ):
        return (cannot_tell(RULE, FOLDER, folder),)
    if not paths:
        return (
            does_not_apply(
                RULE, "clocks are not set by this kernel (no cpufreq, as in most virtual machines)"
            ),
        )
    folders = [path.rpartition("/")[0] for path in paths]
    governors = {folder: snapshot.read(f"{folder}/{GOVERNOR}") for folder in folders}
    unread = [folder for folder, governor in governors.items() if not governor]
    if unread:
        return (cannot_tell(RULE, f"{unread[0]}/{GOVERNOR}", governors[unread[0]]),)
    slow = [folder for folder in folders if not _is_fast(snapshot, folder, str(governors[folder]))]
    said = ", ".join(sorted({str(governor) for governor in governors.values()}))
    if not slow or workload == "generic":
        return (
            ok(
                RULE,
                f"governor {said} on {len(folders)} policies",
                Proof(f"{POLICIES}/{GOVERNOR}", said),
            ),
        )
    return (_slow(snapshot, slow, governors[slow[0]], len(folders)),)


def _is_fast(snapshot: Snapshot, folder: str, governor: str) -> bool:
    """Say whether a policy reaches full clock at once: by its governor, or by the processor's own preference."""
    if governor not in SLOW:
        return True
    if _declared(snapshot, folder, DRIVER) not in BY_PREFERENCE:
        return False
    return _declared(snapshot, folder, PREFERENCE) in (None, *FAST)


def _declared(snapshot: Snapshot, folder: str, name: str) -> str | None:
    path = f"{folder}/{name}"
    reading = snapshot.read(path) if path in snapshot.match(f"{POLICIES}/{name}") else None
    return reading if isinstance(reading, str) else None


def _slow(snapshot: Snapshot, slow: list[str], governor: object, count: int) -> Finding:
    first = slow[0]
    preference = _declared(snapshot, first, PREFERENCE)
    by_preference = _declared(snapshot, first, DRIVER) in BY_PREFERENCE
    name, found = (PREFERENCE, preference) if by_preference else (GOVERNOR, governor)
    summary = f"{name} is {found} on {len(slow)} of {count} CPU policies: short bursts of work run below full clock"
    each = f"for p in {POLICIES}; do echo %s > $p/{name}; done"
    return warn(
        RULE,
        summary,
        Proof(f"{first}/{name}", str(found), "performance"),
        Proof(f"{first}/{DRIVER}", _declared(snapshot, first, DRIVER) or "not shown"),
        remedy=each % "performance",
        persist="tuned-adm profile throughput-performance",
        undo=each % found,
    )


CHECK = Check(
    question="Do the CPUs that feed the GPUs run at full clock when they are wanted?",
    rules=(RULE,),
    judge=judge,
    why=(
        "Launching kernels and collating a batch are bursts of microseconds to milliseconds, over before a slow governor has"
        " raised the clock: the GPU waits for a CPU that looks idle."
    ),
    sources=(
        "https://docs.kernel.org/admin-guide/pm/cpufreq.html",
        "https://docs.kernel.org/admin-guide/pm/intel_pstate.html",
        "https://docs.nvidia.com/grace-perf-tuning-guide/os-settings.html",
        "https://github.com/redhat-performance/tuned/issues/857",
    ),
    reads=(FOLDER, f"{POLICIES}/{GOVERNOR}", f"{POLICIES}/{DRIVER}", f"{POLICIES}/{PREFERENCE}"),
)
