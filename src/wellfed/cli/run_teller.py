"""What does ``wellfed run`` tell a person while it launches?"""

from __future__ import annotations

from wellfed.cli.streams import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from wellfed.model.binding import Binding, Repair
    from wellfed.workflows.plan import Plan
    from wellfed.workflows.rank_start import Outcome, RankStart


class Teller:
    """Tells a person on stderr what happens, and writes the report."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Take how much to tell, and where the report goes."""
        self._quiet = options["quiet"]
        self._verbose = options["verbose"]
        self._report = options["report"]
        self._told: set[str] = set()

    def planned(self, plan: Plan, ranks: tuple[RankStart, ...]) -> None:
        """Tell whose cores are taken and which variables are worth a line; what holds for all of a host, its first rank."""
        job = plan.job
        if job is None or not job.local_rank or self._verbose:
            self._tell_host(plan)
        for rank in ranks:
            for change in rank.changes:
                if not (change.warning or self._verbose):
                    continue
                what = "kept" if change.kept else "removed" if change.value is None else "set"
                value = change.before if change.value is None else change.value
                sentence = f"{change.name}={value} {what}: {change.reason}"
                (self.warn if change.warning else self.say)(sentence)

    def _tell_host(self, plan: Plan) -> None:
        details = (*plan.asked_notes, *plan.machine.notes) if self._verbose else ()
        # Of a host without GPUs nothing has to be known that a plan without GPUs does not say.
        about = plan.machine.notes if plan.visible.gpus else ()
        for sentence in dict.fromkeys((*details, *about, *plan.other_jobs, *plan.placement.notes)):
            self.say(sentence)

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
            from wellfed.cli.run_report import write_report

            write_report(self._report, outcome)
