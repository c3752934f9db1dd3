"""What on this host starves its GPUs, and how is that known?"""

from __future__ import annotations

import time

from wellfed.checks._room import all_checks, chosen, is_chosen, judge_all
from wellfed.model.finding import Diagnosis
from wellfed.workflows.machine import host_of, know, open_host
from wellfed.workflows.snapshot import snapshot_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wellfed.model.machine import Machine
    from wellfed.model.tree import HostTree


def examine(
    where: str | None = None,
    *,
    workload: str = "training",
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    sample_seconds: float = 1.0,
    wait: Callable[[float], None] = time.sleep,
) -> Diagnosis:
    """Ask every chosen check about this host (None), or a recorded one.

    ``workload`` is one of `model.finding.WORKLOADS`. UsageError where a pattern fits no rule, RecordingError where
    ``where`` is no host. A description of another tool (hwloc XML, NCCL XML, ``topo -m``) shows where things are, and
    leaves all else unknown. ``wait`` passes the time between two readings of counters, so that a caller can show it.
    """
    checks = chosen(all_checks(), select, ignore)
    tree, machine = _asked(where)
    # Rates are evidence for what a job feels; where nothing feeds a GPU nobody waits for them.
    worth = sample_seconds if machine.gpus or workload == "data" else 0.0
    snapshot = snapshot_of(tree, machine, checks, sample_seconds=worth, wait=wait)
    findings = judge_all(snapshot, workload, checks)
    sampled = max((rate.interval_seconds for rate in snapshot.rates.values()), default=0.0)
    return Diagnosis(
        machine=machine,
        workload=workload,
        findings=tuple(each for each in findings if is_chosen(each.rule, select, ignore)),
        sampled_seconds=round(sampled, 3),
    )


def _asked(where: str | None) -> tuple[HostTree, Machine]:
    """Open a host and know it; behind a description stands a host of which nothing else was recorded."""
    from wellfed.host.archive import is_recording
    from wellfed.host.recorded_tree import RecordedTree

    if where is None or is_recording(where):
        tree = open_host(where)
        return tree, know(tree)
    machine = host_of(where).machine
    return RecordedTree(machine.name, {}, complete=False), machine
