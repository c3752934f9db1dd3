"""How do findings look to a person?"""

from __future__ import annotations

from wellfed.model.finding import FAIL, NOT_APPLICABLE, OK, UNKNOWN, WARN
from wellfed.model.value import replace
from wellfed.report.terminal import NO_BREAK, Span, columns, flow, glued, spans
from wellfed.report.topology_parts import plural, say_counts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from wellfed.model.finding import Diagnosis, Finding
    from wellfed.report.terminal import Terminal

STYLES = {FAIL: "bad", WARN: "warn", OK: "good", UNKNOWN: "unknown", NOT_APPLICABLE: "dim"}
LABEL_WIDE = 8
"""Columns of the widest label, ``sources`` and a space."""
WIDEST = 110
"""Longer lines of prose are hard to read, however wide the terminal is."""
MAX_PROOFS = 6
"""Readings shown of one finding; JSON has them all."""
MAX_UNKNOWN_NAMES = 3


def render(
    diagnosis: Diagnosis, terminal: Terminal, *, verbose: bool = False, pedantic: bool = False
) -> str:
    """Write few words first, then each finding with its evidence and remedy; the rest in one line, or in full."""
    terminal = replace(terminal, width=min(terminal.width, WIDEST))
    lines = [*_head(diagnosis, terminal), ""]
    for finding in diagnosis.findings:
        if finding.verdict in (FAIL, WARN) and (pedantic or not finding.pedantic):
            lines += [*_finding(finding, terminal, verbose=verbose), ""]
    lines += _rest_in_full(diagnosis, terminal) if verbose else _rest_in_short(diagnosis, terminal)
    if diagnosis.held_back() and not pedantic:
        more = f"{diagnosis.held_back()} more without evidence here: --pedantic"
        lines += flow(spans((more, "dim")), terminal, rest="  ")
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _head(diagnosis: Diagnosis, terminal: Terminal) -> list[str]:
    """Say in one line how the host is, in a second what it is."""
    fails, warns = diagnosis.count(FAIL), diagnosis.count(WARN)
    found = plural(fails + warns, "finding") if fails + warns else "no findings"
    style = "bad" if fails else "warn" if warns else "good"
    place = "this host" if diagnosis.machine.live else diagnosis.machine.name
    if fails + warns + diagnosis.count(OK) + diagnosis.count(UNKNOWN) + diagnosis.held_back() == 0:
        return _nothing(diagnosis, place, terminal)
    counted = [
        (f"{diagnosis.count(OK)} ok", ""),
        (f"{diagnosis.count(UNKNOWN)} unknown", "unknown" if diagnosis.count(UNKNOWN) else ""),
        (f"{diagnosis.count(NOT_APPLICABLE)} not applicable", "dim"),
    ]
    said = [*spans((glued(found), style), f" on {place} for {diagnosis.workload}")]
    if not diagnosis.count(UNKNOWN):
        del counted[1]
    for words, colour in counted:
        said += spans(", ", (glued(words), colour))
    return flow(said, terminal, rest="  ") + _what(diagnosis, terminal)


def _nothing(diagnosis: Diagnosis, place: str, terminal: Terminal) -> list[str]:
    """Say why no rule applies, where none does."""
    reasons = [finding.summary for finding in diagnosis.findings]
    why = max(reasons, key=reasons.count, default="no rule was chosen")
    said = f" on {place} for {diagnosis.workload}: {why}, {plural(len(reasons), 'rule')} not applicable"
    return flow(spans((glued("no findings"), "good"), said), terminal, rest="  ") + _what(
        diagnosis, terminal
    )


def _what(diagnosis: Diagnosis, terminal: Terminal) -> list[str]:
    """Say what the host is."""
    by_hand = " · put together by hand" if diagnosis.machine.assembled else ""
    counts = " · ".join(map(glued, (say_counts(diagnosis.machine) + by_hand).split(" · ")))
    return flow(spans((counts, "dim")), terminal)


def _finding(finding: Finding, terminal: Terminal, *, verbose: bool) -> list[str]:
    """Set out one finding: the sentence, what was read and wanted, why it matters, and what to type."""
    sources = finding.sources if verbose else finding.sources[:1]
    title = spans(
        (finding.verdict.upper(), STYLES[finding.verdict]), NO_BREAK + " ", (finding.rule, "strong")
    )
    lines = flow(title, terminal)
    lines += flow(spans(_sentence(finding.summary)), terminal, first="  ")
    for number, proof in enumerate(finding.evidence[:MAX_PROOFS]):
        wanted = f" (wanted: {proof.wanted})" if proof.wanted else ""
        lines += _labelled(
            "found" if number == 0 else "", f"{proof.where}: {proof.found}{wanted}", terminal
        )
    if len(finding.evidence) > MAX_PROOFS:
        lines += _labelled(
            "", f"and {len(finding.evidence) - MAX_PROOFS} more, see --format json", terminal
        )
    lines += _labelled("why", finding.why, terminal)
    lines += _labelled("trap", finding.trap, terminal)
    for label, command in (
        ("fix", finding.remedy),
        ("keep", finding.persist),
        ("undo", finding.undo),
    ):
        lines += _command(label, command, terminal)
    for number, source in enumerate(sources):
        head = glued(f"{'source' if number == 0 else '':<{LABEL_WIDE}}")
        lines += flow(spans((head + source, "dim")), terminal, first="  ", fill=False)
    return lines


def _sentence(summary: str) -> str:
    """Begin with a capital, unless the first word is a name that has none."""
    first = summary.split(" ", 1)[0]
    return summary[:1].upper() + summary[1:] if first.isalpha() and first.islower() else summary


def _labelled(label: str, text: str | None, terminal: Terminal, *, style: str = "") -> list[str]:
    if not text:
        return []
    head = glued(f"{label:<{LABEL_WIDE}}")
    return flow(
        spans((head, "dim"), (text, style)), terminal, first="  ", rest="  " + " " * LABEL_WIDE
    )


def _command(label: str, command: str | None, terminal: Terminal) -> list[str]:
    """Put each command on a line of its own, unbroken, so that it can be copied; what follows ``#`` explains it."""
    lines = []
    for number, text in enumerate((command or "").splitlines()):
        head = glued(f"{label if number == 0 else '':<{LABEL_WIDE}}")
        does, sign, explains = text.partition("# ")
        said = spans((head, "dim"), (does, "command"), (sign + explains, "dim"))
        rest = "  " + " " * LABEL_WIDE + "#   "
        lines += flow(said, terminal, first="  ", rest=rest, fill=not does)
    return lines


def _rest_in_short(diagnosis: Diagnosis, terminal: Terminal) -> list[str]:
    """Sum up what cannot be told, and how to get to know more."""
    unknown = [finding for finding in diagnosis.findings if finding.verdict == UNKNOWN]
    if not unknown:
        return []
    rules = list(dict.fromkeys(finding.rule for finding in unknown))
    more = f" and {len(rules) - MAX_UNKNOWN_NAMES} more" if len(rules) > MAX_UNKNOWN_NAMES else ""
    names = ", ".join(rules[:MAX_UNKNOWN_NAMES]) + more
    how = (
        "`--verbose` says why; running as root, or outside the container, may show more"
        if diagnosis.machine.live
        else "`--verbose` says why; `wellfed capture` on the host records everything that is asked here"
    )
    said = spans((f"{len(unknown)} cannot be told: ", "unknown"), f"{names}. {how}.")
    return flow(said, terminal, rest="  ")


def _rest_in_full(diagnosis: Diagnosis, terminal: Terminal) -> list[str]:
    """List what is unknown, what does not apply and what is fine, each with its reason."""
    lines: list[str] = []
    for verdict, title in ((UNKNOWN, "unknown"), (NOT_APPLICABLE, "not applicable"), (OK, "ok")):
        those = [finding for finding in diagnosis.findings if finding.verdict == verdict]
        if those:
            lines += flow(spans((title, STYLES[verdict])), terminal)
            lines += [*_rows(those, terminal), ""]
    return lines


def _rows(findings: Sequence[Finding], terminal: Terminal) -> list[str]:
    """Set each rule beside its reason; rules that share one are named together."""
    by_reason: dict[str, list[Finding]] = {}
    for finding in findings:
        by_reason.setdefault(finding.summary, []).append(finding)
    alone = [_row(those[0]) for those in by_reason.values() if len(those) == 1]
    lines = columns(alone, terminal, indent="  ")
    for reason, those in by_reason.items():
        if len(those) > 1:
            lines += flow(spans((f"{reason}:", "")), terminal, first="  ", rest="    ")
            names = spans((", ".join(finding.rule for finding in those), "strong"))
            lines += flow(names, terminal, first="    ")
    return lines


def _row(finding: Finding) -> Sequence[Span]:
    read = next((proof.where for proof in finding.evidence if proof.where.startswith("/")), "")
    where = (
        spans((f"  {read}", "dim"))
        if finding.verdict == OK and read and read not in finding.summary
        else ()
    )
    return (Span(finding.rule, "strong"), Span(finding.summary), *where)
