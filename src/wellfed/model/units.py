"""How sizes are read and written."""

from __future__ import annotations

from wellfed.model.errors import MalformedTextError

SUFFIXES = ("", "K", "M", "G", "T", "P")


def format_bytes(count: int) -> str:
    """Write a size with a binary prefix and at most three digits: ``512 B``, ``1.5 GiB``, ``187 GiB``."""
    size = float(count)
    for suffix in SUFFIXES:
        if abs(size) < 1024 or suffix == SUFFIXES[-1]:
            unit = f"{suffix}iB" if suffix else "B"
            shown = f"{size:.0f}" if size >= 100 or size == int(size) else f"{size:.1f}"
            return f"{shown} {unit}"
        size /= 1024
    raise AssertionError("unreachable: the last suffix always answers")


def parse_bytes(text: str) -> int:
    """Read ``unlimited``-free sizes: ``65536``, ``64K``, ``1.5G``, ``2GiB``. All prefixes are binary."""
    plain = text.strip().upper().removesuffix("IB").removesuffix("B").strip()
    number, suffix = (
        (plain[:-1], plain[-1]) if plain[-1:] in SUFFIXES[1:] and plain else (plain, "")
    )
    try:
        size = float(number) * 1024 ** SUFFIXES.index(suffix)
    except ValueError:
        size = -1.0
    if not 0 <= size < 2**63:
        raise MalformedTextError(
            f"{text!r} is not a size",
            remedy="write a number of bytes, or one with K, M, G or T: 64G",
        )
    return int(size)


def parse_kilobyte_field(text: str, field: str) -> int | None:
    """Return one ``Field:  123 kB`` line of a meminfo text in bytes, None where it is not there."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name.rpartition(" ")[2] == field:
            digits = rest.split()[:1]
            return int(digits[0]) * 1024 if digits and digits[0].isdigit() else None
    return None
