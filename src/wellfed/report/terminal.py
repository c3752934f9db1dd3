"""How does styled text meet a terminal: its width, its colours, and the characters it can show?"""

from __future__ import annotations

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TextIO

NARROWEST, FALLBACK_WIDTH = 40, 80
"""Columns below which lines are no longer broken, and columns of a pipe or of a terminal that does not say."""

NO_BREAK = "\u00a0"
"""A space at which no line is broken; written as a space."""

STYLES = {
    "": "",
    "heading": "1",
    "strong": "1",
    "dim": "2",
    "good": "32",
    "warn": "33",
    "bad": "1;31",
    "unknown": "35",
    "gpu": "1;36",
    "device": "36",
    "local": "32",
    "remote": "33",
    "command": "1",
}
"""Words for meanings, and the SGR parameters (ECMA-48) that show them in a person's own palette."""

PLAIN = str.maketrans(
    {
        "├": "|",
        "└": "`",
        "│": "|",
        "─": "-",
        "×": "x",
        "→": "->",
        "·": "-",
        "−": "-",
        "–": "-",
        "…": "...",
        "≥": ">=",
        "≤": "<=",
        "∩": "&",
    }
)
"""What stands for our characters where the output cannot hold them."""


class Span(Value):
    """Some words that look alike."""

    text: str
    style: str = ""


class Terminal(Value):
    """What can be shown."""

    width: int = FALLBACK_WIDTH
    colour: bool = False
    unicode: bool = True


def terminal_of(stream: TextIO, environment: Mapping[str, str]) -> Terminal:
    """Look at where a report goes: colour only on a terminal and without ``NO_COLOR`` (no-color.org) or ``TERM=dumb``."""
    on_terminal = stream.isatty()
    wanted = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    try:
        "├─×→".encode(stream.encoding or "ascii")
        unicode = True
    except (LookupError, UnicodeEncodeError):
        unicode = False
    return Terminal(_columns(stream, environment), on_terminal and wanted, unicode)


def spans(*parts: str | Span | tuple[str, str]) -> tuple[Span, ...]:
    """Make spans of plain texts and of (text, style) pairs; empty texts fall out."""
    made = (
        part if isinstance(part, Span) else Span(*part) if isinstance(part, tuple) else Span(part)
        for part in parts
    )
    return tuple(span for span in made if span.text)


def glued(text: str) -> str:
    """Return a text whose spaces never become ends of lines."""
    return text.replace(" ", NO_BREAK)


def flow(
    said: Iterable[Span],
    terminal: Terminal,
    *,
    first: str = "",
    rest: str | None = None,
    fill: bool = True,
) -> list[str]:
    """Break styled words into lines of the terminal's width, the first and the later ones indented as given.

    A word longer than a line is cut after a comma or a slash, else where the line ends, so that CPU lists of
    a thousand characters stay readable. With ``fill`` false nothing is broken: for commands that will be pasted.
    """
    rest = first if rest is None else rest
    room = max(terminal.width, NARROWEST)
    words = _words(said) if fill else [_letters(said)]
    lines: list[list[tuple[str, str]]] = [[]]
    for word in words:
        while word:
            line = lines[-1]
            space = room - len(first if len(lines) == 1 else rest) - len(line)
            needed = len(word) + (1 if line else 0)
            if needed <= space or not fill:
                lines[-1] = [*line, (" ", _between(line, word)), *word] if line else word
                break
            if line:
                lines.append([])
                continue
            cut = _cut(word, max(space, 1))
            lines[-1], word = word[:cut], word[cut:]
            lines.append([])
    return [
        _stem(first if number == 0 else rest, terminal) + _paint(_trimmed(line), terminal)
        for number, line in enumerate(lines)
        if line or number == 0
    ]


def columns(
    rows: Sequence[Sequence[Span]], terminal: Terminal, *, indent: str = "", gap: int = 2
) -> list[str]:
    """Set rows one below the other, each cell as wide as the widest of its column.

    As many columns as the shortest row has; what is left of a row flows in the last one.
    """
    if not rows:
        return []
    last = min(map(len, rows)) - 1
    widths = [max(len(row[at].text) for row in rows) for at in range(last)]
    lines = []
    for row in rows:
        cells: list[Span] = []
        for cell, width in zip(row, widths, strict=False):
            cells += [
                Span(glued(cell.text), cell.style),
                Span(NO_BREAK * (width - len(cell.text) + gap)),
            ]
        hanging = indent + " " * (sum(widths) + gap * last)
        if len(hanging) > terminal.width // 2:
            hanging = indent + "  "
        lines += flow([*cells, *row[last:]], terminal, first=indent, rest=hanging)
    return [line.rstrip() for line in lines]


def paint(text: str, style: str, terminal: Terminal) -> str:
    """Write one text in one style."""
    return _paint(_letters((Span(text, style),)), terminal)


def _columns(stream: TextIO, environment: Mapping[str, str]) -> int:
    """Ask the environment (COLUMNS, as ncurses does), then the terminal."""
    import os

    said = environment.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and 0 < int(said) < 10_000:
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or FALLBACK_WIDTH
    except (OSError, ValueError):
        return FALLBACK_WIDTH


def _letters(said: Iterable[Span]) -> list[tuple[str, str]]:
    """Take spans apart; a recording is a stranger's text, so control characters never reach the terminal."""
    return [(_printable(letter), span.style) for span in said for letter in span.text]


def _printable(letter: str) -> str:
    return letter if letter.isprintable() or letter in NO_BREAK + " \n\t" else "\ufffd"


def _between(line: Sequence[tuple[str, str]], word: Sequence[tuple[str, str]]) -> str:
    """Return the style of the space between two words: theirs, where they look alike."""
    return word[0][1] if line[-1][1] == word[0][1] else ""


def _trimmed(line: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Leave out the spaces at the end of a line, which only fill a column."""
    while line and line[-1][0] in (" ", NO_BREAK):
        line = line[:-1]
    return line


def _stem(text: str, terminal: Terminal) -> str:
    """Write what stands before a line; the twigs of a tree recede behind its words."""
    return _plain(text, terminal) if text.isspace() else paint(text, "dim", terminal)


def _words(said: Iterable[Span]) -> list[list[tuple[str, str]]]:
    """Split at spaces; spans without a space between them are one word."""
    words: list[list[tuple[str, str]]] = [[]]
    for letter, style in _letters(said):
        if letter in " \n\t":
            words.append([])
        else:
            words[-1].append((letter, style))
    return [word for word in words if word]


def _cut(word: Sequence[tuple[str, str]], space: int) -> int:
    """Return how much of an overlong word goes on this line."""
    for at in range(space, space // 2, -1):
        if word[at - 1][0] in ",/;":
            return at
    return space


def _paint(letters: Sequence[tuple[str, str]], terminal: Terminal) -> str:
    """Join letters, with one escape sequence for each run of a style."""
    text, now = "", ""
    for letter, style in letters:
        code = STYLES[style] if terminal.colour else ""
        if code != now:
            text += "\x1b[0m" if now else ""
            text += f"\x1b[{code}m" if code else ""
            now = code
        text += letter
    return _plain(text + ("\x1b[0m" if now else ""), terminal)


def _plain(text: str, terminal: Terminal) -> str:
    text = text.replace(NO_BREAK, " ")
    return text if terminal.unicode else text.translate(PLAIN).encode("ascii", "replace").decode()
