"""How does the page of a rule look to a person?"""

from __future__ import annotations

from wellfed.report.terminal import Span, columns, flow, spans

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from wellfed.model.finding import RulePage
    from wellfed.report.terminal import Terminal


def render(pages: Sequence[RulePage], terminal: Terminal, *, whole: bool) -> str:
    """Write whole pages, or a line for each."""
    if not whole:
        rows = [(Span(page.rule, "strong"), Span(page.question)) for page in pages]
        return "\n".join(columns(rows, terminal)) + "\n"
    return "\n\n".join("\n".join(_page(page, terminal)) for page in pages) + "\n"


def _page(page: RulePage, terminal: Terminal) -> list[str]:
    lines = flow(spans((page.rule, "heading")), terminal)
    lines += flow(spans(page.question), terminal, first="  ")
    lines += ["", *flow(spans(page.why), terminal, first="  ")]
    for title, items in (
        ("trap", (page.trap,) if page.trap else ()),
        ("looks at", page.looks_at),
        ("effect", (page.effect,) if page.effect else ()),
        ("undo", tuple(page.undo.splitlines())),
        ("sources", page.sources),
        ("checked on", (page.checked_on or "not said",)),
    ):
        if items:
            lines += ["", *flow(spans((title, "dim")), terminal, first="  ")]
            lines += [
                line
                for item in items
                for line in flow(spans(item), terminal, first="    ", fill=False)
            ]
    return lines
