"""How is this process bound: every thread to its CPUs, and its memory beside them?"""

from __future__ import annotations

import _thread
import os

from wellfed.host.live_tree import LiveTree
from wellfed.host.memory_policy import set_policy
from wellfed.model.binding import Step
from wellfed.model.cpuset import CpuSet
from wellfed.model.errors import BindingError, MalformedTextError
from wellfed.model.tree import Unreadable, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.placement import MemoryPolicy

MAX_PASSES = 16
"""A process that still starts threads after so many looks is reported, not chased for ever."""

QUIET_PASSES = 2
"""Looks without a new thread, after which no unbound thread is left that could start another."""


def bind(cpus: CpuSet, memory: MemoryPolicy) -> tuple[Step, ...]:
    """Bind this process, calling thread first; an empty set leaves the masks alone, mode ``none`` the policy.

    What the kernel refuses is a step with its errno, not an error: each part is tried, and the caller judges.
    """
    steps: tuple[Step, ...] = ()
    try:
        steps = bind_threads(cpus) if cpus else ()
    except BindingError as refusal:
        why = f"{refusal.message}; {refusal.remedy}"
        steps = (Step(f"sched_setaffinity({cpus})", refusal.errno_name, why),)
    return steps + set_policy(memory)


def bind_threads(cpus: CpuSet) -> tuple[Step, ...]:
    """Give every thread of this process its CPUs, until no new thread appears, and read each mask back.

    A mask belongs to a thread: those that run already keep theirs unless each is set. A thread whose mask lies inside
    ``cpus`` already was put there by somebody and is never widened. BindingError where the kernel takes none of them.
    """
    caller = own_tid()
    steps = [_bind_caller(caller, cpus)]
    seen, quiet, num_moved = {caller}, 0, 0
    for _ in range(MAX_PASSES):
        fresh = [tid for tid in thread_ids(os.getpid()) if tid not in seen]
        quiet = 0 if fresh else quiet + 1
        if quiet == QUIET_PASSES:
            break
        seen.update(fresh)
        outside = [tid for tid in fresh if not _lies_inside(mask_of(tid), cpus)]
        refused = [step for tid in outside if (step := _bind_other(tid, cpus)) is not None]
        num_moved += len(outside) - len(refused)
        steps += refused
    else:
        steps.append(Step(f"sched_setaffinity({cpus})", None, "new threads still appear: verify"))
    if num_moved:
        steps.append(Step(f"sched_setaffinity({cpus}) on {num_moved} other threads"))
    return tuple(steps)


def thread_ids(pid: int) -> tuple[int, ...]:
    """Return the threads of a process, smallest first; none where it is gone or not ours to see."""
    names = LiveTree().list(f"/proc/{pid}/task") or ()
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def own_tid() -> int:
    """Return the kernel's number of the calling thread."""
    return _thread.get_native_id()


def set_mask(tid: int, cpus: CpuSet) -> Unreadable | None:
    """Set one thread's mask, of any process that is ours to bind (tid 0 is the caller); return the refusal."""
    try:
        os.sched_setaffinity(tid, cpus)
    except OSError as refusal:
        return unreadable(refusal)
    return None


def mask_of(tid: int) -> CpuSet | Unreadable:
    """Return one thread's mask as the scheduler uses it; offline CPUs are never in it."""
    try:
        return CpuSet(os.sched_getaffinity(tid))
    except OSError as refusal:
        return unreadable(refusal)


def _bind_caller(tid: int, cpus: CpuSet) -> Step:
    what = f"sched_setaffinity({cpus})"
    refusal = set_mask(0, cpus)
    if refusal is not None:
        raise _refused(cpus, refusal)
    found = mask_of(tid)
    if found == cpus:
        return Step(what)
    if not isinstance(found, CpuSet):
        return Step(
            "sched_getaffinity()", found.errno_name, "the mask was set, but cannot be read back"
        )
    # The kernel drops what is offline or outside the cpuset and reports success.
    return Step(
        what, None, f"the kernel kept {found}: CPU {cpus - found} is offline or outside the cpuset"
    )


def _bind_other(tid: int, cpus: CpuSet) -> Step | None:
    """Move another thread of ours; None: it has the mask now, or is gone."""
    what = f"sched_setaffinity({cpus}) on thread {tid}"
    refusal = set_mask(tid, cpus)
    if refusal is not None:
        gone = refusal.errno_name == "ESRCH"
        return None if gone else Step(what, refusal.errno_name, f"it keeps its mask: {refusal}")
    found = mask_of(tid)
    if found == cpus or found == Unreadable("ESRCH"):
        return None
    return Step(what, None, f"the kernel kept {found}")


def _lies_inside(found: CpuSet | Unreadable, cpus: CpuSet) -> bool:
    return isinstance(found, CpuSet) and found <= cpus


def _refused(cpus: CpuSet, refusal: Unreadable) -> BindingError:
    if refusal.errno_name != "EINVAL":
        return BindingError(
            f"sched_setaffinity({cpus}) is refused: {refusal.errno_name}, {refusal}",
            remedy="allow sched_setaffinity in the container's seccomp profile, or run with `--policy none`",
            errno_name=refusal.errno_name,
        )
    found = f"online are {_online()}, and this process may use {mask_of(0)}"
    wanted = f"none of the CPUs {cpus} can be used" if cpus else "there is no CPU to bind to"
    return BindingError(
        f"{wanted}: {found}",
        remedy="choose among those: `wellfed topo` shows which CPUs this process may use",
        errno_name=refusal.errno_name,
    )


def _online() -> str:
    text = LiveTree().read("/sys/devices/system/cpu/online")
    try:
        return str(CpuSet.parse(text)) if text else "unknown"
    except MalformedTextError:
        return "unknown"
