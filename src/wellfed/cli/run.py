"""``wellfed run``: launch a command beside its GPU, or show where it would go."""

from __future__ import annotations

import os

from wellfed.cli.run_options import OPTIONS, Words
from wellfed.host.limits import Limits
from wellfed.model.errors import UsageError, WellfedError
from wellfed.model.placement import Wishes
from wellfed.workflows.launch import Settings, launch
from wellfed.workflows.plan import Request, plan_launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import click

    from wellfed.model.binding import Binding, Repair
    from wellfed.workflows.launch import Outcome, RankStart
    from wellfed.workflows.plan import Plan


def run(words: Words) -> int:
    """Do what a command line asks, and return the exit code; a launch of one process does not return.

    An error is one sentence and what to do about it, on stderr: stdout is the job's.
    """
    try:
        return _run(words)
    except WellfedError as error:
        tell(f"wellfed: {error.message}\n  what to do: {error.remedy}")
        return getattr(error, "exit_code", 2)


def _run(words: Words) -> int:
    from wellfed.host.launch import fill_standard_streams

    fill_standard_streams()
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


class Teller:
    """Tells a person on stderr what happens, and writes the report."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Take how much to tell, and where the report goes."""
        self._quiet = options["quiet"]
        self._verbose = options["verbose"]
        self._report = options["report"]
        self._told: set[str] = set()

    def planned(self, plan: Plan, ranks: tuple[RankStart, ...]) -> None:
        """Tell who was asked, whose cores are taken, and which variables are worth a line."""
        for sentence in plan.asked_notes if self._verbose else ():
            self.say(sentence)
        for sentence in (*plan.machine.notes, *plan.other_jobs, *plan.placement.notes):
            self.say(sentence)
        for rank in ranks:
            for change in rank.changes:
                if not (change.warning or self._verbose):
                    continue
                what = "kept" if change.kept else "removed" if change.value is None else "set"
                value = change.before if change.value is None else change.value
                sentence = f"{change.name}={value} {what}: {change.reason}"
                (self.warn if change.warning else self.say)(sentence)

    def bound(self, plan: Plan, rank: RankStart, binding: Binding) -> None:
        """Tell in one line where a process is; steps that failed and notes that matter follow."""
        placement = rank.placement
        planned = bool(placement.cpus) or placement.memory.mode != "none"
        remarks = dict.fromkeys((*placement.notes, *binding.notes))
        alone = plan.job is None
        if not planned:
            self.say("; ".join(remarks) or "CPU mask and memory policy are left alone")
            return
        from wellfed.report.plan_line import one_line

        line = one_line(plan.machine, placement, binding, alone=alone)
        if binding.bound and placement.local is not False:
            self.say(line)
        else:
            self.warn(line)
        for step in binding.steps:
            if step.errno_name is not None or step.explanation or self._verbose:
                outcome = step.errno_name or "ok"
                text = f"{step.what}: {outcome}" + (
                    f", {step.explanation}" if step.explanation else ""
                )
                (self.say if binding.bound else self.warn)(text)
        for note in remarks:
            (self.warn if placement.local is False else self.say)(note)

    def say(self, sentence: str) -> None:
        """Write a line for who wants to know; what holds for every rank once."""
        if not self._quiet:
            self._tell_once(f"wellfed: {sentence}")

    def warn(self, sentence: str) -> None:
        """Write a line for who should know."""
        self._tell_once(f"wellfed: warning: {sentence}")

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            tell(line)

    def verified(self, bindings: tuple[Binding, ...]) -> None:
        """Write a table for each rank."""
        from wellfed.report.binding_text import render

        wrong = [
            each
            for each in bindings
            if not each.bound and (each.planned_cpus or each.planned_memory != "none")
        ]
        for binding in wrong if self._quiet else bindings:
            tell(render(binding))

    def repaired(self, repair: Repair) -> None:
        """Write what had drifted."""
        from wellfed.report.binding_text import render_repair

        # What cannot be set right is found again at every look.
        self._tell_once(f"wellfed: warning: drift\n{render_repair(repair)}")

    def report(self, outcome: Outcome) -> None:
        """Write the JSON report, whole or not at all."""
        if self._report is not None:
            _write_report(self._report, outcome)


def tell(text: str) -> None:
    """Write to stderr, whole lines at once; a stderr that is gone must not end a job."""
    left = os.fsencode(text + "\n")
    try:
        while left:
            left = left[os.write(2, left) :]
    except OSError:
        return


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
    notes = (*plan.machine.notes, *plan.asked_notes, *plan.other_jobs)
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


def _write_report(path: str, outcome: Outcome) -> None:
    import json

    from wellfed.report import plan_json, run_json

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
    found = run_json.as_json(
        planned,
        ranks,
        program=outcome.command[0],
        exit_code=outcome.exit_code,
        seconds=outcome.seconds,
        notes=outcome.notes,
    )
    job = plan.job
    number = 0 if job is None else job.rank if job.rank is not None else job.local_rank or 0
    path = path.replace("{rank}", str(number))
    scratch = f"{path}.{os.getpid()}"
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(json.dumps(found, indent=2) + "\n")
        os.replace(scratch, path)
    except OSError as refusal:
        raise UsageError(
            f"--report {path} cannot be written: {os.strerror(refusal.errno or 0).lower()}",
            remedy="name a file in a folder that is there and can be written",
        ) from None


def __getattr__(name: str) -> click.Command:
    """Make the click command when somebody asks for it: a launch does not."""
    if name != "COMMAND":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wellfed.cli.run_command import command

    return command(OPTIONS, run)
