"""How are parts of a drawing put below and beside each other, before anyone knows where they will stand?"""

from __future__ import annotations

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wellfed.report.svg import Drawing


class Block(Value):
    """A part that knows its size, and draws itself where it is told to."""

    wide: float
    high: float
    draw: Callable[[Drawing, float, float], None]
    """(drawing, left, top)."""


def stacked(blocks: Sequence[Block], *, gap: float) -> Block:
    """Put blocks below each other, flush left."""
    wide = max((block.wide for block in blocks), default=0.0)
    high = sum(block.high for block in blocks) + gap * max(len(blocks) - 1, 0)

    def draw(drawing: Drawing, x: float, y: float) -> None:
        for block in blocks:
            block.draw(drawing, x, y)
            y += block.high + gap

    return Block(wide, high, draw)


def flowed(blocks: Sequence[Block], *, wide: float, gap: float) -> Block:
    """Put blocks beside each other as words of a text: a row ends where the next does not fit."""
    rows: list[list[Block]] = []
    used = 0.0
    for block in blocks:
        if not rows or used + gap + block.wide > wide + 0.01:
            rows.append([block])
            used = block.wide
        else:
            rows[-1].append(block)
            used += gap + block.wide
    return stacked([_beside(row, gap) for row in rows], gap=gap)


def framed(
    inside: Block, *, style: str, pad: float, top: float, wide: float | None = None
) -> Block:
    """Draw a box around a block, with ``top`` left free above it for the box's own words."""
    own_wide = inside.wide + 2 * pad if wide is None else wide
    own_high = top + inside.high + pad

    def draw(drawing: Drawing, x: float, y: float) -> None:
        drawing.box(x, y, own_wide, own_high, style, round_=8)
        inside.draw(drawing, x + pad, y + top)

    return Block(own_wide, own_high, draw)


def named(block: Block, title: str) -> Block:
    """Give a block a name that a pointer shows and a screen reader says."""

    def draw(drawing: Drawing, x: float, y: float) -> None:
        drawing.begin(title)
        block.draw(drawing, x, y)
        drawing.end()

    return Block(block.wide, block.high, draw)


def _beside(blocks: Sequence[Block], gap: float) -> Block:
    wide = sum(block.wide for block in blocks) + gap * (len(blocks) - 1)

    def draw(drawing: Drawing, x: float, y: float) -> None:
        for block in blocks:
            block.draw(drawing, x, y)
            x += block.wide + gap

    return Block(wide, max(block.high for block in blocks), draw)


NOTHING = Block(0.0, 0.0, lambda drawing, x, y: None)
"""A block that takes no room."""
