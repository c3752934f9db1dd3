"""What does a rule ask, why, and where is that known from?"""

from __future__ import annotations

from wellfed.checks._room import all_checks
from wellfed.model.errors import UsageError
from wellfed.model.finding import RulePage


def rules() -> tuple[str, ...]:
    """Return the ids of all rules, sorted."""
    return tuple(sorted(rule for check in all_checks() for rule in check.rules))


def explain(rule: str) -> RulePage:
    """Return the page of one rule; UsageError where there is none of that id."""
    for check in all_checks():
        if rule in check.rules:
            return RulePage(
                rule=rule,
                question=check.question,
                why=check.why,
                looks_at=(*check.reads, *check.rates, *check.asks),
                sources=check.sources,
                trap=check.trap,
                effect=check.effect,
                undo=check.undo,
                checked_on=check.checked_on,
            )
    raise UsageError(f"there is no rule {rule!r:.80}", remedy="wellfed explain   # lists all rules")
