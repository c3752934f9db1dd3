"""What was read of a host for its checks: frozen, so that judging it is a pure function."""

from __future__ import annotations

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellfed.model.job import Job, VisibleDevices
    from wellfed.model.machine import Machine
    from wellfed.model.tree import Reading, Unreadable


class Rate(Value):
    """A counter file read twice."""

    first: Reading
    second: Reading
    interval_seconds: float


class Snapshot(Value):
    """Everything a check may look at. Asking for what no check declared is our own mistake: KeyError."""

    machine: Machine
    readings: Mapping[str, Reading]
    """Text or errno of each file that a check ``reads``."""
    matches: Mapping[str, tuple[str, ...]]
    """The paths that each pattern with ``*`` or ``?`` stood for."""
    answers: Mapping[str, Reading]
    rates: Mapping[str, Rate]
    environment: Mapping[str, str]
    """Variables that launch and placement look at, of the process that asks; empty for a recorded host without them."""
    job: Job | None = None
    visible: VisibleDevices | None = None
    live: bool = False
    job_problem: str | None = None
    """Why ``job`` is None although rank variables are set: they contradict each other, or say too little."""

    def read(self, path: str) -> str | Unreadable:
        """Return what stood in a declared file."""
        return self.readings[path]

    def match(self, pattern: str) -> tuple[str, ...]:
        """Return the paths that a declared pattern stood for, sorted; empty where there are none."""
        return self.matches[pattern]

    def answer(self, question: str) -> str | Unreadable:
        """Return the answer to a declared question."""
        return self.answers[question]
