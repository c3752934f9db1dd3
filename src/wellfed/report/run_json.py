"""How is a launch written for other programs?"""

from __future__ import annotations

from wellfed.report import binding_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from wellfed.model.binding import Binding

SCHEMA = "wellfed/run/1"
"""Keys stay; more may be added. ``report/schemas/run-1.json`` describes them."""


def as_json(
    plan: dict[str, Any],
    ranks: Sequence[dict[str, Any]],
    *,
    program: str,
    exit_code: int | None,
    seconds: float | None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a launch as plain values. ``exit_code`` is null for a process that became its command.

    Of the command only the program is named: arguments may hold secrets.
    """
    return {
        "schema": SCHEMA,
        "program": program,
        "plan": plan,
        "ranks": list(ranks),
        "exit_code": exit_code,
        "seconds": seconds,
        "notes": list(notes),
    }


def rank_as_json(
    local_rank: int,
    binding: Binding | None,
    verified: Binding | None,
    *,
    num_drifts: int,
    allocator: str | None,
    exit_code: int | None,
    cgroup: str | None,
) -> dict[str, Any]:
    """Return one rank: what the kernel confirmed before the command began and while it ran."""
    return {
        "local_rank": local_rank,
        "binding": None if binding is None else binding_json.as_json(binding),
        "verified": None if verified is None else binding_json.as_json(verified),
        "num_drifts": num_drifts,
        "allocator": allocator,
        "exit_code": exit_code,
        "cgroup": cgroup,
    }
