"""How is a drawing written as one SVG that needs no font, no script and no other file?"""

from __future__ import annotations

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue','DejaVu Sans',Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"

# Advance widths in em. A viewer chooses the font, so these are those of DejaVu Sans, the widest in SANS: what fits
# here fits with every other. Measured from its `hmtx` table; the classes hold letters of similar width.
NARROW = dict.fromkeys("ijlIfrt.,:;'|!()[]/- ", 0.44)
WIDE = dict.fromkeys("#&+<=>^~DGHNOQUw×−→≤≥", 0.86) | dict.fromkeys("%@MWm…—", 1.0)
UPPER, OTHER, BOLD, MONO_EM = 0.70, 0.64, 1.12, 0.61

ELLIPSIS = "…"


class Text(Value):
    """Words that were made to fit, and the whole of them for the tooltip where they did not."""

    shown: str
    whole: str | None = None


def text_width(text: str, size: float, *, bold: bool = False, mono: bool = False) -> float:
    """Say how wide a text is at most, in the unit of ``size``."""
    if mono:
        return len(text) * MONO_EM * size
    em = sum(_letter_width(letter) for letter in text)
    return em * size * (BOLD if bold else 1)


def fitted(text: str, room: float, size: float, *, bold: bool = False, mono: bool = False) -> Text:
    """Cut a text to the room that it has; the rest becomes an ellipsis and stays readable in the tooltip."""
    if text_width(text, size, bold=bold, mono=mono) <= room:
        return Text(text)
    kept = text
    while kept and text_width(kept + ELLIPSIS, size, bold=bold, mono=mono) > room:
        kept = kept[:-1]
    return Text(kept.rstrip(" ,·") + ELLIPSIS if kept else "", text)


def wrapped(text: str, room: float, size: float) -> list[str]:
    """Break a sentence into lines that fit; a word that is too long by itself is cut by `fitted`."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return [fitted(line, room, size).shown for line in lines]


def escaped(text: str) -> str:
    """Write a text as XML; what XML 1.0 cannot hold becomes U+FFFD."""
    plain = "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text
    )
    return (
        plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    )


class Drawing:
    """Collects shapes from back to front; every place is in the drawing's own units, which are CSS pixels."""

    def __init__(self) -> None:
        self.shapes: list[str] = []

    def box(
        self, x: float, y: float, wide: float, high: float, style: str, *, round_: float = 6
    ) -> None:
        """Draw a rounded rectangle."""
        self.shapes.append(
            f'<rect class="{style}" x="{_n(x)}" y="{_n(y)}" width="{_n(wide)}" height="{_n(high)}" rx="{_n(round_)}"/>'
        )

    def tint(
        self, x: float, y: float, wide: float, high: float, style: str, opacity: float
    ) -> None:
        """Draw a rectangle that lets the page shine through."""
        self.shapes.append(
            f'<rect class="{style}" fill-opacity="{opacity:.2f}" x="{_n(x)}" y="{_n(y)}" width="{_n(wide)}"'
            f' height="{_n(high)}" rx="3"/>'
        )

    def words(
        self,
        x: float,
        y: float,
        text: str,
        style: str,
        room: float,
        *,
        size: float,
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
    ) -> float:
        """Write one line with its baseline at ``y``, cut to ``room``; return how wide it may be.

        ``anchor`` says which end of it stands at ``x``: ``start``, ``middle`` or ``end``.
        """
        fit = fitted(text, room, size, bold=bold, mono=mono)
        if not fit.shown:
            return 0.0
        held = "" if anchor == "start" else f' text-anchor="{anchor}"'
        tip = f"<title>{escaped(fit.whole)}</title>" if fit.whole else ""
        classes = " ".join(filter(None, (style, "b" if bold else "", "m" if mono else "")))
        self.shapes.append(
            f'<text class="{classes}" x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}"{held}>{tip}{escaped(fit.shown)}</text>'
        )
        return text_width(fit.shown, size, bold=bold, mono=mono)

    def begin(self, title: str) -> None:
        """Open a group that a pointer or a screen reader names."""
        self.shapes.append(f'<g role="group"><title>{escaped(title)}</title>')

    def end(self) -> None:
        """Close the group."""
        self.shapes.append("</g>")

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """Draw a straight line."""
        self.shapes.append(f'<path class="{style}" d="M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}"/>')

    def cells(self, places: Iterable[tuple[float, float]], side: float, style: str) -> None:
        """Draw many small squares as one shape: a host may have a thousand cores."""
        path = "".join(f"M{_n(x)} {_n(y)}h{_n(side)}v{_n(side)}h-{_n(side)}z" for x, y in places)
        if path:
            self.shapes.append(f'<path class="{style}" d="{path}"/>')


def document(
    drawing: Drawing, wide: float, high: float, *, title: str, description: str, style: str
) -> str:
    """Write the whole file: title and description first, for those who cannot see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(wide)}" height="{_n(high)}"'
        f' viewBox="0 0 {_n(wide)} {_n(high)}" role="img" aria-labelledby="title description">\n'
        f'<title id="title">{escaped(title)}</title>\n<desc id="description">{escaped(description)}</desc>\n'
        f"<style>{style}</style>\n" + "\n".join(drawing.shapes) + "\n</svg>\n"
    )


def _letter_width(letter: str) -> float:
    if letter in NARROW:
        return NARROW[letter]
    if letter in WIDE:
        return WIDE[letter]
    if ord(letter) > 0x2FF:
        return 1.0
    return UPPER if letter.isupper() else OTHER


def _n(value: float) -> str:
    """Write a coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
