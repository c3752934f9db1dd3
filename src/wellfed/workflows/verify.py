"""Does a process really run, and keep its memory, where it was planned to?"""

from __future__ import annotations

import os

from wellfed.host.bind import mask_of, own_tid, thread_ids
from wellfed.host.live_tree import LiveTree
from wellfed.host.memory_policy import PolicyInForce, field, read_own, read_thread
from wellfed.host.pages import NUM_SAMPLES, sample_pages
from wellfed.host.processes import descendants_of, stat_of
from wellfed.model.binding import Binding, PageCount, ThreadState
from wellfed.model.cpuset import EMPTY, CpuSet
from wellfed.model.errors import BindingError
from wellfed.model.tree import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from wellfed.model.cpuset import NodeSet
    from wellfed.model.placement import MemoryPolicy, RankPlacement

FULFILLED_BY = {
    "preferred": ("preferred-many", "preferred"),
    "bind": ("bind",),
    "interleave": ("interleave",),
    "weighted": ("weighted",),
    "local": ("local",),
}
"""Planned mode -> modes in force that are what was planned."""

MAX_PROCESSES_SAMPLED = 32
"""The process and so many of its descendants share the page samples."""


def verify(
    pid: int,
    placement: RankPlacement,
    *,
    include_children: bool = True,
    num_samples: int = NUM_SAMPLES,
) -> Binding:
    """Ask the kernel for masks, policies and pages of a process, and compare them with its placement.

    Every thread of the process, and unless told otherwise of its descendants, must lie inside the planned CPUs; the
    main thread must have all of them, or all of one role. What the kernel does not tell counts as not bound.
    Sources: sched_getaffinity, get_mempolicy or numa_maps, move_pages, /proc/PID/task/TID/stat.
    """
    processes = (pid, *(descendants_of(pid) if include_children else ()))
    threads = tuple(state for each in processes for state in _read_threads(each, placement.cpus))
    main = next((state for state in threads if state.tid == pid), None)
    if main is None:
        raise BindingError(
            f"process {pid} has ended, or is not ours to see",
            remedy="name a process that runs: `ps -e` lists them",
        )
    policy = _read_policy(pid)
    policy_held = policy_holds(placement.memory, policy, _mems_allowed(pid))
    pages, pages_unknown = _read_pages(processes, num_samples)
    return Binding(
        pid=pid,
        local_rank=placement.local_rank,
        bound=all_confirmed(placement, masks_hold(placement, main, threads), policy_held),
        planned_cpus=placement.cpus,
        cpus=main.cpus,
        planned_memory=str(PolicyInForce(placement.memory.mode, placement.memory.nodes)),
        memory=str(policy) if isinstance(policy, PolicyInForce) else None,
        memory_bound=policy_held,
        memory_nodes=policy.nodes if isinstance(policy, PolicyInForce) else EMPTY,
        threads=threads,
        pages=pages,
        pages_unknown=pages_unknown,
        pages_local=share_on(pages, placement.memory.nodes),
        notes=remarks(placement, main, threads, policy),
    )


def all_confirmed(
    placement: RankPlacement, masks_held: bool | None, policy_held: bool | None
) -> bool:
    """Say whether something was planned, and the kernel confirmed all of it."""
    parts = [masks_held] if placement.cpus else []
    parts += [policy_held] if placement.memory.mode != "none" else []
    return bool(parts) and all(part is True for part in parts)


def masks_hold(
    placement: RankPlacement, main: ThreadState, threads: Sequence[ThreadState]
) -> bool | None:
    """Say whether every thread lies inside and the main thread did not shrink; None where no CPUs were planned."""
    if not placement.cpus:
        return None
    return all(state.inside is True for state in threads) and not mask_shrank(placement, main.cpus)


def mask_shrank(placement: RankPlacement, found: CpuSet | None) -> bool:
    """Say whether a thread that was bound to all planned CPUs, or to those of a role, may use only some of them now.

    OpenMP runtimes do that to the main thread when a library that brings them is imported: every worker that it
    forks afterwards shares that one CPU, and the GPU waits for data.
    """
    if found is None or not found < placement.cpus:
        return False
    return all(found != cpus for _, cpus in placement.roles)


def policy_holds(
    planned: MemoryPolicy, found: PolicyInForce | Unreadable, mems_allowed: NodeSet | None
) -> bool | None:
    """Say whether the policy in force is the planned one; None where none was planned, or it cannot be asked.

    A static policy is reported with the nodes that were asked for; those outside the cpuset do nothing. The nodes of
    a relative one are counted within the cpuset, so that they are not the planned ones whatever their numbers.
    """
    if planned.mode == "none" or not isinstance(found, PolicyInForce):
        return None
    if "relative" in found.flags:
        return False
    effective = found.nodes if mems_allowed is None else found.nodes & mems_allowed
    return found.mode in FULFILLED_BY[planned.mode] and effective == planned.nodes


def share_on(pages: Sequence[PageCount], nodes: NodeSet) -> float | None:
    """Return the share (0 to 1) of pages on some nodes, None without pages or nodes."""
    total = sum(each.num_pages for each in pages)
    if not total or not nodes:
        return None
    return sum(each.num_pages for each in pages if each.node in nodes) / total


def remarks(
    placement: RankPlacement,
    main: ThreadState,
    threads: Sequence[ThreadState],
    policy: PolicyInForce | Unreadable,
) -> tuple[str, ...]:
    """Say, one sentence each, what is not as planned and what is known to do that."""
    said = []
    if mask_shrank(placement, main.cpus):
        said.append(
            f"the main thread may use only CPU {main.cpus} of {placement.cpus}: the others are offline or outside its "
            "cpuset, or OpenMP took them at import, as OMP_PROC_BIND, GOMP_CPU_AFFINITY and KMP_AFFINITY make it do"
        )
    outside = [state for state in threads if state.inside is False]
    if outside:
        shown = ", ".join(f"{s.tid} ({s.name}) on {s.cpus}" for s in outside[:4])
        more = f" and {len(outside) - 4} more" if len(outside) > 4 else ""
        said.append(f"outside the planned CPUs: thread {shown}{more}")
    cramped = [s for s in threads if s.tid == s.process != main.tid and s.cpus and len(s.cpus) == 1]
    if len(placement.cpus) > 1 and cramped:
        shown = ", ".join(str(state.tid) for state in cramped[:8])
        said.append(
            f"processes with a single CPU: {shown}; OpenMP may have pinned their parent at import"
        )
    if isinstance(policy, Unreadable) and placement.memory.mode != "none":
        untold = policy.errno_name == "ENODATA"
        why = "numa_maps does not tell it" if untold else f"{policy.errno_name}, {policy}"
        said.append(f"the memory policy cannot be asked: {why}")
    elif isinstance(policy, PolicyInForce):
        # get_mempolicy gives the nodes that were asked for, numa_maps those of them that the cpuset allows.
        own = main.memory or str(policy)
        others = [s for s in threads if s.memory not in (None, own)]
        if others:
            kinds = ", ".join(sorted({str(state.memory) for state in others}))
            said.append(
                f"{len(others)} of {len(threads)} threads have another memory policy: {kinds}"
            )
    return tuple(said)


def _read_threads(pid: int, planned: CpuSet) -> list[ThreadState]:
    """Read every thread of one process; one that ends meanwhile is left out."""
    found = []
    for tid in thread_ids(pid):
        stat = stat_of(pid, tid)
        mask = mask_of(tid)
        if stat is None or stat.ended or mask == Unreadable("ESRCH"):
            continue
        cpus = mask if isinstance(mask, CpuSet) else None
        inside = None if cpus is None or not planned else cpus <= planned
        policy = read_thread(pid, tid)
        memory = str(policy) if isinstance(policy, PolicyInForce) else None
        found.append(ThreadState(tid, stat.name, cpus, stat.last_cpu, inside, pid, memory))
    return found


def _read_policy(pid: int) -> PolicyInForce | Unreadable:
    """Return the policy of a process's main thread: get_mempolicy answers for the caller only."""
    found = read_own() if pid == own_tid() else Unreadable("ENODATA")
    if isinstance(found, PolicyInForce):
        return found
    shown = read_thread(pid, pid)
    return shown if isinstance(shown, PolicyInForce) or pid != os.getpid() else found


def _mems_allowed(pid: int) -> NodeSet | None:
    text = field(LiveTree().read(f"/proc/{pid}/status") or "", "Mems_allowed_list")
    return None if text is None else CpuSet.parse(text)


def _read_pages(
    processes: Sequence[int], num_samples: int
) -> tuple[tuple[PageCount, ...], str | None]:
    """Sample a process and its descendants, and add up by node."""
    sampled = processes[:MAX_PROCESSES_SAMPLED]
    by_node: dict[int, int] = {}
    unknown = None
    for pid in sampled:
        pages = sample_pages(pid, num_samples=max(1, num_samples // len(sampled)))
        unknown = unknown or pages.unknown
        for each in pages.counts:
            by_node[each.node] = by_node.get(each.node, 0) + each.num_pages
    return tuple(PageCount(node, by_node[node]) for node in sorted(by_node)), unknown
