"""What wellfed says about a host: a verdict, its evidence, and what to type."""

from __future__ import annotations

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.machine import Machine

OK, WARN, FAIL, NOT_APPLICABLE, UNKNOWN = "ok", "warn", "fail", "n/a", "unknown"
VERDICTS = (FAIL, WARN, UNKNOWN, NOT_APPLICABLE, OK)
"""Most urgent first."""

WORKLOADS = ("training", "inference", "data", "generic")


class Proof(Value):
    """What was read, where, and what was wanted there."""

    where: str
    """A path, a system call or a command that a person can repeat."""
    found: str
    wanted: str | None = None


class Finding(Value):
    """One answer to one rule's question."""

    rule: str
    """Stable id, ``area.name``: ``mem.swappiness``."""
    verdict: str
    summary: str
    """One sentence: what was found and, unless ok, what that does to a GPU job. For n/a and unknown: the reason."""
    evidence: tuple[Proof, ...] = ()
    remedy: str | None = None
    """The command that mends it now. Several lines are several ways, ``#`` begins a comment."""
    persist: str | None = None
    """How to keep it over a reboot."""
    undo: str | None = None
    why: str | None = None
    """What this setting does to a GPU job."""
    sources: tuple[str, ...] = ()
    pedantic: bool = False
    """Nothing seen on this host shows that it costs anything: shown when asked for, never counted."""
    effect: str | None = None
    """What it costs, as far as anybody measured it."""
    trap: str | None = None
    """The mistake that people make with this setting."""
    checked_on: str | None = None
    """Where and when all this was last looked at."""


class Diagnosis(Value):
    """Everything that was said of one host for one workload."""

    machine: Machine
    workload: str
    findings: tuple[Finding, ...]
    """The most urgent verdict first."""
    sampled_seconds: float = 0.0
    """How far apart counters were read; 0 where they were read once."""

    def count(self, verdict: str) -> int:
        """Count the findings of one verdict, without those that are pedantic."""
        return sum(each.verdict == verdict and not each.pedantic for each in self.findings)

    def held_back(self) -> int:
        """Count the pedantic findings."""
        return sum(finding.pedantic for finding in self.findings)

    def worst(self) -> str:
        """Return the most urgent verdict, ``ok`` where nothing was said."""
        return next((v for v in VERDICTS if self.count(v)), OK)


class RulePage(Value):
    """What is to be known about one rule, without any host."""

    rule: str
    question: str
    why: str
    looks_at: tuple[str, ...]
    """Files, counters and questions."""
    sources: tuple[str, ...]
    trap: str = ""
    effect: str = ""
    undo: str = ""
    checked_on: str = ""
