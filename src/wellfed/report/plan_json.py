"""How is a plan written for other programs?"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from wellfed.model.environment import EnvironmentChange
    from wellfed.model.job import Job, VisibleDevices
    from wellfed.model.machine import Machine
    from wellfed.model.placement import Placement, RankPlacement

SCHEMA = "wellfed/plan/1"
"""Keys stay; more may be added. ``report/schemas/plan-1.json`` describes them."""


def as_json(
    machine: Machine,
    placement: Placement,
    *,
    job: Job | None = None,
    visible: VisibleDevices | None = None,
    changes: Sequence[Sequence[EnvironmentChange]] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a plan as plain values; sets of CPUs and nodes are the kernel's lists, null is what cannot be known."""
    of_rank = dict(zip((rank.local_rank for rank in placement.ranks), changes, strict=False))
    return {
        "schema": SCHEMA,
        "host": {"name": machine.name, "live": machine.live, "assembled": machine.assembled},
        "policy": placement.policy,
        "job": None if job is None else _job(job),
        "visible": None if visible is None else _visible(visible),
        "ranks": [
            _rank(machine, rank, of_rank.get(rank.local_rank, ())) for rank in placement.ranks
        ],
        "notes": list(dict.fromkeys((*notes, *placement.notes))),
    }


def _job(job: Job) -> dict[str, Any]:
    return {
        "num_local_ranks": job.num_local_ranks,
        "local_rank": job.local_rank,
        "rank": job.rank,
        "world_size": job.world_size,
        "launcher": job.launcher,
        "source": job.source,
    }


def _visible(visible: VisibleDevices) -> dict[str, Any]:
    return {
        "vendor": visible.vendor,
        "variable": visible.variable,
        "gpus": list(visible.gpus),
        "order_known": visible.order_known,
    }


def _rank(
    machine: Machine, rank: RankPlacement, changes: Sequence[EnvironmentChange]
) -> dict[str, Any]:
    return {
        "local_rank": rank.local_rank,
        "gpus": [_gpu(machine, address) for address in rank.gpus],
        "cpus": str(rank.cpus),
        "cpu_nodes": str(rank.cpu_nodes),
        "memory": {"mode": rank.memory.mode, "nodes": str(rank.memory.nodes)},
        "num_cores": rank.num_cores,
        "num_threads": rank.num_threads,
        "roles": {role: str(cpus) for role, cpus in rank.roles},
        "local": rank.local,
        "nics": list(rank.nics),
        "environment": [
            {
                "name": change.name,
                "value": change.value,
                "before": change.before,
                "reason": change.reason,
                "warning": change.warning,
            }
            for change in changes
        ],
        "notes": list(rank.notes),
    }


def _gpu(machine: Machine, address: str) -> dict[str, Any]:
    gpu = machine.gpu_at(address)
    return {
        "pci_address": address,
        "index": None if gpu is None else gpu.index,
        "uuid": None if gpu is None else gpu.uuid,
        "cpu_node": None if gpu is None else gpu.cpu_node,
    }
