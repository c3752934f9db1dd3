"""How do findings look to a program?"""

from __future__ import annotations

from wellfed.model.finding import NOT_APPLICABLE, OK, VERDICTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.finding import Diagnosis, Finding

SCHEMA = "wellfed/doctor/1"
"""Keys stay; more may be added. ``report/schemas/doctor-1.json`` describes them."""


def as_json(
    diagnosis: Diagnosis, *, verbose: bool = False, pedantic: bool = False
) -> dict[str, object]:
    """Return the report as JSON values; rules that are ok or do not apply are listed with ``verbose`` only, pedantic findings with ``pedantic``."""
    machine = diagnosis.machine
    quiet = () if verbose else (OK, NOT_APPLICABLE)
    return {
        "schema": SCHEMA,
        "host": {
            "name": machine.name,
            "live": machine.live,
            "assembled": machine.assembled,
            "architecture": machine.architecture,
        },
        "workload": diagnosis.workload,
        "verdict": diagnosis.worst(),
        "counts": {verdict: diagnosis.count(verdict) for verdict in VERDICTS},
        "sampled_seconds": diagnosis.sampled_seconds,
        "held_back": 0 if pedantic else diagnosis.held_back(),
        "rules": [
            _rule(each)
            for each in diagnosis.findings
            if each.verdict not in quiet and (pedantic or not each.pedantic)
        ],
    }


def _rule(finding: Finding) -> dict[str, object]:
    return {
        "rule": finding.rule,
        "verdict": finding.verdict,
        "summary": finding.summary,
        "evidence": [
            {"where": proof.where, "found": proof.found, "wanted": proof.wanted}
            for proof in finding.evidence
        ],
        "remedy": finding.remedy,
        "persist": finding.persist,
        "undo": finding.undo,
        "why": finding.why,
        "sources": list(finding.sources),
        "pedantic": finding.pedantic,
        "effect": finding.effect,
        "trap": finding.trap,
        "checked_on": finding.checked_on,
    }
