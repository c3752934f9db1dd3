"""Is a running process still where it was planned, and what of it can be set right again?"""

from __future__ import annotations

import time

from wellfed.host.bind import mask_of, set_mask, thread_ids
from wellfed.host.memory_policy import PolicyInForce, read_thread
from wellfed.host.processes import descendants_of, stat_of
from wellfed.model.binding import Drift, Repair
from wellfed.model.cpuset import CpuSet
from wellfed.workflows.verify import mask_shrank, policy_holds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from wellfed.model.placement import RankPlacement


def repair(pid: int, placement: RankPlacement) -> Repair:
    """Look at every thread of a process and its descendants, and give those that drifted their planned mask again.

    A write to a cpuset widens the masks below it before Linux 6.2 and moves a policy that is not static; kubelet,
    systemd and Slurm do such writes. Another process's memory policy cannot be set: where it drifted, that is said.
    """
    drifts = []
    for process in (pid, *descendants_of(pid)) if placement.cpus else ():
        for tid in thread_ids(process):
            drift = _repair_thread(process, tid, placement, is_main=tid == pid)
            drifts += [drift] if drift is not None else []
    found = read_thread(pid, pid)
    notes = []
    if isinstance(found, PolicyInForce) and policy_holds(placement.memory, found, None) is False:
        planned = PolicyInForce(placement.memory.mode, placement.memory.nodes)
        notes.append(
            f"process {pid} has the memory policy {found}, planned was {planned}: nobody can set another process's "
            "policy; `migratepages` moves pages that exist, a restart binds new ones"
        )
    return Repair(tuple(drifts), tuple(notes))


def watch(pid: int, placement: RankPlacement, *, interval_seconds: float) -> Iterator[Repair]:
    """Repair a process again and again until it ends; give each look at which something had drifted."""
    first = stat_of(pid)
    while first is not None:
        now = stat_of(pid)
        if now is None or now.ended or now.start != first.start:
            return
        looked = repair(pid, placement)
        if looked.drifts or looked.notes:
            yield looked
        time.sleep(interval_seconds)


def _repair_thread(
    process: int, tid: int, placement: RankPlacement, *, is_main: bool
) -> Drift | None:
    """Restore one thread. Narrower masks are restored on the main thread only: others may have been pinned on purpose."""
    found = mask_of(tid)
    stat = stat_of(process, tid)
    if not isinstance(found, CpuSet) or stat is None:
        return None
    shrank = is_main and mask_shrank(placement, found)
    if found <= placement.cpus and not shrank:
        return None
    refusal = set_mask(tid, placement.cpus)
    now = mask_of(tid)
    restored = refusal is None and now == placement.cpus
    how = "narrower than" if shrank else "wider than" if placement.cpus <= found else "outside of"
    why = f"{how} planned"
    if refusal is not None:
        why += f"; cannot be set again: {refusal.errno_name}, {refusal}"
    elif not restored:
        why += f"; the kernel allows only {now}: the cpuset was narrowed, or CPUs went offline"
    return Drift(process, tid, stat.name, found, placement.cpus, restored, why)
