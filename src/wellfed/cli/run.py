"""``wellfed run``: launch a command beside its GPU, or show where it would go."""

from __future__ import annotations

import os

from wellfed.cli.run_options import OPTIONS, Words
from wellfed.cli.run_teller import Teller
from wellfed.cli.streams import ready_stdout, tell_error
from wellfed.host.limits import Limits
from wellfed.model.errors import UsageError, WellfedError
from wellfed.model.placement import Wishes
from wellfed.workflows.launch import launch
from wellfed.workflows.plan import Request, plan_launch
from wellfed.workflows.rank_start import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import click


def run(words: Words) -> int:
    """Do what a command line asks, and return the exit code; a launch of one process does not return.

    An error is one sentence and what to do about it, on stderr: stdout is the job's.
    """
    try:
        return _run(words)
    except WellfedError as error:
        tell_error(error)
        return getattr(error, "exit_code", 2)


def _run(words: Words) -> int:
    options = words.options
    _check(options)
    if options["explain"]:
        return _explain(options)
    from wellfed.host.live_tree import LiveTree
    from wellfed.workflows.machine import known_for_launch

    if not words.command:
        raise UsageError(
            "no command was given",
            remedy="write it after --, as in: wellfed run -- python train.py",
        )
    plan = plan_launch(known_for_launch(LiveTree()), request_of(options))
    if options["report"] is not None:
        from wellfed.cli.run_report import check_place

        check_place(options["report"], plan)
    return launch(plan, words.command, settings_of(options), Teller(options))


def request_of(options: Mapping[str, Any]) -> Request:
    """Take the options that decide where ranks go."""
    wishes = Wishes(
        policy=options["policy"],
        smt=options["smt"],
        memory=options["memory"],
        reserve=options["reserve"],
        reserve_cores_per_node=options["reserve_cores"],
        roles=options["roles"],
        wanted_bytes=options["memory_size"],
    )
    return Request(
        wishes, options["gpus"], options["ranks"], options["per_gpu"], options["one_visible"]
    )


def settings_of(options: Mapping[str, Any]) -> Settings:
    """Take the other options of a launch."""
    return Settings(
        malloc=options["malloc"],
        nic_variables=options["nic_env"],
        one_visible=options["one_visible"],
        keep=options["keep_env"],
        num_threads=options["threads"],
        limits=Limits(options["memlock"], options["nofile"], options["oom_score_adj"]),
        scheduler=options["sched"],
        nice=options["nice"],
        cpu_latency_microseconds=options["cpu_latency"],
        isolate=options["isolate"],
        memory_limit_bytes=options["memory_limit"],
        verify_seconds=options["verify"],
        watch=options["watch"],
        watch_interval_seconds=options["watch_interval"],
        grace_seconds=options["grace"],
        log_folder=options["log_dir"],
        strict=options["strict"],
    )


def _check(options: Mapping[str, Any]) -> None:
    """Refuse combinations that mean nothing."""
    if options["host"] is not None and not options["explain"]:
        raise UsageError(
            "--host names a recorded host, on which nothing can run",
            remedy="add --explain to see the plan for it",
        )
    if options["format"] == "json" and not options["explain"]:
        raise UsageError(
            "--format json is the form of --explain", remedy="add --explain, or use --report FILE"
        )


def _explain(options: Mapping[str, Any]) -> int:
    import json
    import sys

    from wellfed.host.live_tree import LiveTree
    from wellfed.report import plan_json, plan_text
    from wellfed.report.terminal import terminal_of
    from wellfed.workflows.launch import explain_ranks, refuse_remote
    from wellfed.workflows.machine import host_of, known_for_launch

    ready_stdout()
    where = options["host"]
    known = known_for_launch(LiveTree()) if where is None else host_of(where)
    plan = plan_launch(known, request_of(options))
    settings = settings_of(options)
    ranks = explain_ranks(plan, settings)
    if settings.strict:
        for rank in ranks:
            refuse_remote(plan, rank.placement)
    placement = type(plan.placement)(
        plan.placement.policy, tuple(rank.placement for rank in ranks), plan.placement.notes
    )
    changes = tuple(rank.changes for rank in ranks)
    notes = (*plan.machine.notes, *plan.asked_notes, *plan.other_jobs, *settings.sentences())
    if options["format"] == "json":
        found = plan_json.as_json(
            plan.machine,
            placement,
            job=plan.job,
            visible=plan.visible,
            changes=changes,
            notes=notes,
        )
        text = json.dumps(found, indent=2) + "\n"
    else:
        text = plan_text.render(
            plan.machine,
            placement,
            terminal_of(sys.stdout, os.environ),
            job=plan.job,
            changes=changes,
            notes=notes,
            verbose=options["verbose"],
        )
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def __getattr__(name: str) -> click.Command:
    """Make the click command when somebody asks for it: a launch does not."""
    if name != "COMMAND":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wellfed.cli.run_command import command

    return command(OPTIONS, run)
