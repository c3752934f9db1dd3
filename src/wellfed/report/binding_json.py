"""How is a verified binding written for other programs?"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from wellfed.model.binding import Binding, ThreadState

SCHEMA = "wellfed/binding/1"
"""Changes when a key changes its meaning; keys may be added."""


def as_json(binding: Binding) -> dict[str, Any]:
    """Return a binding as plain values; sets of CPUs and nodes are the kernel's lists, null is what cannot be known."""
    return {
        "schema": SCHEMA,
        "pid": binding.pid,
        "local_rank": binding.local_rank,
        "bound": binding.bound,
        "cpus": {
            "planned": str(binding.planned_cpus),
            "found": _text(binding.cpus),
        },
        "memory": {
            "planned": binding.planned_memory,
            "found": binding.memory,
            "bound": binding.memory_bound,
            "nodes": str(binding.memory_nodes),
        },
        "threads": [_thread(state) for state in binding.threads],
        "pages": {
            "by_node": [{"node": p.node, "num_pages": p.num_pages} for p in binding.pages],
            "local": binding.pages_local,
            "unknown": binding.pages_unknown,
        },
        "steps": [
            {"what": step.what, "errno": step.errno_name, "explanation": step.explanation}
            for step in binding.steps
        ],
        "older_processes": list(binding.older_processes),
        "notes": list(binding.notes),
    }


def _thread(state: ThreadState) -> dict[str, Any]:
    return {
        "process": state.process,
        "tid": state.tid,
        "name": state.name,
        "cpus": _text(state.cpus),
        "last_cpu": state.last_cpu,
        "inside": state.inside,
        "memory": state.memory,
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)
