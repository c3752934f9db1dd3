"""Where and how is the file of ``wellfed run --report`` written?"""

from __future__ import annotations

import errno
import json
import os

from wellfed.model.errors import UsageError
from wellfed.report import plan_json, run_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.job import Job
    from wellfed.workflows.plan import Plan
    from wellfed.workflows.rank_start import Outcome


def place(path: str, job: Job | None) -> str:
    """Return the file of this process: ``{rank}`` becomes its rank, links are followed."""
    number = 0 if job is None else job.rank if job.rank is not None else job.local_rank or 0
    return os.path.realpath(path.replace("{rank}", str(number)))


def check_place(name: str, plan: Plan) -> None:
    """Raise UsageError where a report surely cannot be written, or not only by us: better now than after days of work."""
    path, job = place(name, plan.job), plan.job
    alone = plan.starts_ranks or job is None or max(job.num_local_ranks, job.world_size or 1) == 1
    if not alone and "{rank}" not in name and _is_replaced(path):
        raise UsageError(
            f"--report {name} names one file for all ranks of the job, and the last one to write would be all there is",
            remedy="let each have its own: --report 'report-{rank}.json'",
        )
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise _unwritable(path, errno.EISDIR)
    if not os.path.isdir(folder):
        raise _unwritable(path, errno.ENOENT)
    if not os.access(folder if _is_replaced(path) else path, os.W_OK):
        raise _unwritable(path, errno.EACCES)


def write_report(path: str, outcome: Outcome) -> None:
    """Write a file whole or not at all; a device or a pipe is written to, never replaced. UsageError says why not."""
    path = place(path, outcome.plan.job)
    text = json.dumps(_as_json(outcome), indent=2) + "\n"
    scratch = f"{path}.{os.getpid()}" if _is_replaced(path) else path
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(text)
        if scratch != path:
            os.replace(scratch, path)
    except OSError as refusal:
        if scratch != path and os.path.exists(scratch):
            os.unlink(scratch)
        raise _unwritable(path, refusal.errno or 0) from None


def _is_replaced(path: str) -> bool:
    return os.path.isfile(path) or not os.path.exists(path)


def _unwritable(path: str, why: int) -> UsageError:
    return UsageError(
        f"--report {path} cannot be written: {os.strerror(why).lower()}",
        remedy="name a file in a folder that is there and can be written",
    )


def _as_json(outcome: Outcome) -> dict[str, object]:
    plan = outcome.plan
    ranks = [
        run_json.rank_as_json(
            end.start.placement.local_rank,
            end.binding,
            end.verified,
            num_drifts=end.num_drifts,
            allocator=end.allocator,
            exit_code=end.exit_code,
            cgroup=end.cgroup,
        )
        for end in outcome.ranks
    ]
    planned = plan_json.as_json(
        plan.machine,
        plan.placement,
        job=plan.job,
        visible=plan.visible,
        changes=tuple(end.start.changes for end in outcome.ranks) if plan.starts_ranks else (),
        notes=(*plan.machine.notes, *plan.asked_notes, *plan.other_jobs),
    )
    return run_json.as_json(
        planned,
        ranks,
        program=outcome.command[0],
        exit_code=outcome.exit_code,
        seconds=outcome.seconds,
        notes=outcome.notes,
    )
