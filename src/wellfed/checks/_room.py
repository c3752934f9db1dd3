"""Which checks are there, and what do they say of a host?"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import wellfed.checks
from wellfed.checks._base import Check, shown
from wellfed.model.errors import UsageError, WellfedError
from wellfed.model.finding import UNKNOWN, VERDICTS, Finding
from wellfed.model.snapshot import Snapshot
from wellfed.model.value import replace


def all_checks() -> tuple[Check, ...]:
    """Return the ``CHECK`` of every file of this room whose name does not begin with ``_``, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(wellfed.checks.__path__))
    found = []
    for name in names:
        if not name.startswith("_"):
            check = importlib.import_module(f"wellfed.checks.{name}").CHECK
            assert isinstance(check, Check), f"checks/{name}.py: CHECK is not a Check"
            found.append(check)
    return tuple(found)


def chosen(
    checks: Sequence[Check], select: Sequence[str], ignore: Sequence[str]
) -> tuple[Check, ...]:
    """Return the checks with a rule that is selected and not ignored; patterns are shell globs over rule ids.

    UsageError where a pattern fits no rule: a typing mistake must not make a host look clean.
    """
    rules = [rule for check in checks for rule in check.rules]
    for pattern in (*select, *ignore):
        if not any(fnmatchcase(rule, pattern) for rule in rules):
            raise UsageError(
                f"no rule fits {shown(pattern)}",
                remedy="see all rules: wellfed doctor --verbose",
            )
    return tuple(
        check for check in checks if any(is_chosen(rule, select, ignore) for rule in check.rules)
    )


def is_chosen(rule: str, select: Sequence[str], ignore: Sequence[str]) -> bool:
    """Say whether a rule is selected (all are, where nothing is) and not ignored."""
    wanted = not select or any(fnmatchcase(rule, pattern) for pattern in select)
    return wanted and not any(fnmatchcase(rule, pattern) for pattern in ignore)


def judge_all(snapshot: Snapshot, workload: str, checks: Iterable[Check]) -> tuple[Finding, ...]:
    """Return what every check says, the most urgent verdict first and within one verdict in order of rules; pedantic ones last.

    A text of the host that a check cannot take apart makes its rules unknown, never ok and never an end of the report.
    """
    findings = [finding for check in checks for finding in _judge(check, snapshot, workload)]
    return tuple(sorted(findings, key=_urgency))


def _urgency(finding: Finding) -> tuple[bool, int]:
    return finding.pedantic, VERDICTS.index(finding.verdict)


def _judge(check: Check, snapshot: Snapshot, workload: str) -> list[Finding]:
    try:
        said = list(check.judge(snapshot, workload))
    except WellfedError as problem:
        said = [Finding(rule, UNKNOWN, problem.message) for rule in check.rules]
    silent = set(check.rules) - {finding.rule for finding in said}
    foreign = {finding.rule for finding in said} - set(check.rules)
    assert not silent and not foreign, f"{check.rules}: silent on {silent}, speaks of {foreign}"
    return [_completed(finding, check) for finding in said]


def _completed(finding: Finding, check: Check) -> Finding:
    """Add to a finding what its check knows without any host."""
    return replace(
        finding,
        why=finding.why or check.why,
        sources=finding.sources or check.sources,
        effect=finding.effect or check.effect,
        trap=finding.trap or check.trap or None,
        checked_on=finding.checked_on or check.checked_on or None,
        undo=finding.undo or (check.undo or None if finding.remedy else None),
    )
