"""How does a verified binding look in a terminal?"""

from __future__ import annotations

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wellfed.model.binding import Binding, Drift, Repair, Step

WIDTH = 80
"""Columns of the narrowest terminal that people use; nothing is wider."""

MAX_THREADS_SHOWN = 12
"""A job has hundreds of threads; shown one by one are those that are not as planned, and so many at most."""

OK, NOT_OK, PART, UNKNOWN, NOTHING = "ok", "NO", "part", "unknown", "–"
LEFT_ALONE, CANNOT = "left alone", "cannot be asked"


class Row(Value):
    """One thing that was planned, and what the kernel says of it."""

    subject: str
    planned: str
    found: str
    verdict: str


def render(binding: Binding, *, width: int = WIDTH) -> str:
    """Write one process's binding: a table of planned and found, then steps, older processes and notes."""
    parts = [_headline(binding), *_table(rows(binding), width)]
    parts += _thread_lines(binding, width)
    parts += _list("steps", [_say_step(step) for step in binding.steps], width)
    parts += _list("older than the bind", binding.older_processes, width)
    pages_unknown = (f"pages: {binding.pages_unknown}",) if binding.pages_unknown else ()
    parts += _list("notes", (*binding.notes, *pages_unknown), width)
    return "\n".join(parts)


def render_repair(repair: Repair, *, width: int = WIDTH) -> str:
    """Write what had drifted and what became of it."""
    lines = [_say_drift(drift) for drift in repair.drifts]
    return "\n".join(line for said in (*lines, *repair.notes) for line in wrap(said, width, "  "))


def rows(binding: Binding) -> tuple[Row, ...]:
    """Return the table: masks, policy and pages; what was not planned or cannot be asked says so."""
    num_inside = sum(state.inside is True for state in binding.threads)
    num_threads = len(binding.threads)
    planned_cpus, planned_memory = bool(binding.planned_cpus), binding.planned_memory != "none"
    return (
        Row(
            "CPUs",
            str(binding.planned_cpus) if planned_cpus else LEFT_ALONE,
            CANNOT if binding.cpus is None else str(binding.cpus),
            _say_mask(binding),
        ),
        Row(
            "threads",
            "",
            f"{num_inside} of {num_threads} inside" if planned_cpus else str(num_threads),
            _verdict(planned_cpus, num_inside == num_threads),
        ),
        Row(
            "memory",
            binding.planned_memory if planned_memory else LEFT_ALONE,
            CANNOT if binding.memory is None else binding.memory,
            _verdict(planned_memory, binding.memory_bound),
        ),
        Row("pages", "", _say_pages(binding), _say_local(binding)),
    )


def wrap(text: str, width: int, indent: str) -> Iterator[str]:
    """Break a sentence at spaces; following lines are indented. A longer word stands alone, never cut."""
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    if line:
        yield line


def _headline(binding: Binding) -> str:
    rank = "" if binding.local_rank is None else f"rank {binding.local_rank}, "
    planned = binding.planned_cpus or binding.planned_memory != "none"
    state = "bound" if binding.bound else "NOT bound" if planned else "not to be bound"
    return f"{rank}process {binding.pid}: {state}"


def _say_mask(binding: Binding) -> str:
    """Judge the main thread's mask; some of the planned CPUs are right only as those of a role (then it is bound)."""
    if binding.cpus is None or not binding.planned_cpus:
        return _verdict(bool(binding.planned_cpus), None)
    if binding.cpus < binding.planned_cpus and not binding.bound:
        return PART
    return _verdict(True, binding.cpus <= binding.planned_cpus)


def _verdict(planned: bool, confirmed: bool | None) -> str:
    if not planned:
        return NOTHING
    return UNKNOWN if confirmed is None else OK if confirmed else NOT_OK


def _table(table: Sequence[Row], width: int) -> Iterator[str]:
    """Lay out the rows; planned and found are broken at commas where they are long."""
    subject = max(len(row.subject) for row in table)
    verdict = max(len(row.verdict) for row in table)
    room = width - 2 - subject - 2 - 2 - 2 - verdict
    planned_width = max(len("planned"), min(room // 2, max(len(row.planned) for row in table)))
    found_width = max(len("found"), min(room - planned_width, max(len(row.found) for row in table)))

    def line(*cells: str) -> str:
        a, b, c, d = cells
        text = f"  {a:<{subject}}  {b:<{planned_width}}  {c:<{found_width}}  {d}"
        return text.rstrip()

    yield line("", "planned", "found", "")
    for row in table:
        planned = _fold(row.planned, planned_width)
        found = _fold(row.found, found_width)
        for i in range(max(len(planned), len(found))):
            yield line(
                row.subject if i == 0 else "",
                planned[i] if i < len(planned) else "",
                found[i] if i < len(found) else "",
                row.verdict if i == 0 else "",
            )


def _fold(text: str, width: int) -> list[str]:
    """Break a text after a comma or a space where it is wider than its column; a longer piece is never cut."""
    lines = [""]
    for piece in text.replace(",", ",\n").replace(" ", " \n").split("\n"):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
            lines.append(piece)
        else:
            lines[-1] += piece
    return [line.rstrip() for line in lines]


def _thread_lines(binding: Binding, width: int) -> Iterator[str]:
    """Show threads one by one where some are not inside: those first."""
    strays = [state for state in binding.threads if state.inside is False]
    if not strays:
        return
    yield "  threads outside"
    yield f"    {'tid':>8}  {'last CPU':>8}  {'CPUs':<24}  name"
    for state in strays[:MAX_THREADS_SHOWN]:
        last = "?" if state.last_cpu is None else str(state.last_cpu)
        cpus = _fold(str(state.cpus) if state.cpus is not None else "?", 24)
        yield f"    {state.tid:>8}  {last:>8}  {cpus[0]:<24}  {state.name}"[:width]
        for more in cpus[1:]:
            yield f"    {'':>8}  {'':>8}  {more}"
    if len(strays) > MAX_THREADS_SHOWN:
        yield f"    and {len(strays) - MAX_THREADS_SHOWN} more"


def _list(title: str, sentences: Sequence[str], width: int) -> Iterator[str]:
    if not sentences:
        return
    yield f"  {title}"
    for sentence in sentences:
        yield from ("    " + line for line in wrap(sentence, width - 4, "  "))


def _say_step(step: Step) -> str:
    said = f"{step.what}: {step.errno_name or 'ok'}"
    return f"{said}, {step.explanation}" if step.explanation else said


def _say_pages(binding: Binding) -> str:
    if not binding.pages:
        return CANNOT if binding.pages_unknown else "none sampled"
    return ", ".join(f"node {each.node}: {each.num_pages}" for each in binding.pages)


def _say_local(binding: Binding) -> str:
    if binding.pages_local is None:
        return NOTHING if binding.pages else UNKNOWN
    # Never rounded up to all: one page elsewhere is 99 %.
    return f"{int(binding.pages_local * 100)} % local"


def _say_drift(drift: Drift) -> str:
    became = "set again" if drift.restored else "NOT restored"
    return (
        f"thread {drift.tid} ({drift.name}) of process {drift.process} ran on {drift.found}, "
        f"planned were {drift.planned}: {became}; {drift.explanation}"
    )
