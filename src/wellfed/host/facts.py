"""What does a file of this host say, and what if it is damaged?"""

from __future__ import annotations

from wellfed.model.cpuset import LARGEST_ID, CpuSet
from wellfed.model.errors import MalformedTextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wellfed.model.tree import HostTree

SHOWN_OF_A_KIND = 3
"""Remarks of one kind that are shown in full; a host with 256 damaged files gets three sentences and a count."""


class Facts:
    """One reading of one host: equal texts are parsed once, damage becomes a remark and the value is unknown."""

    def __init__(self, tree: HostTree) -> None:
        """Begin with no remark."""
        self.tree = tree
        self._parsed: dict[tuple[bool, str], CpuSet | None] = {}
        self._remarks: dict[str, list[str]] = {}

    def remark(self, kind: str, sentence: str) -> None:
        """Keep a contradiction or a gap for the person; ``kind`` gathers those that differ in numbers only."""
        said = self._remarks.setdefault(kind, [])
        if sentence not in said:
            said.append(sentence)

    @property
    def notes(self) -> tuple[str, ...]:
        """All remarks, in the order in which their kinds first came up."""
        notes: list[str] = []
        for said in self._remarks.values():
            notes += said[:SHOWN_OF_A_KIND]
            if len(said) > SHOWN_OF_A_KIND:
                notes.append(f"(and {len(said) - SHOWN_OF_A_KIND} more like the last)")
        return tuple(notes)

    def cpus(self, folder: str, names: Iterable[str]) -> CpuSet | None:
        """Read a set of CPUs or nodes from the first of these files that holds one; None where none does.

        Names that end in ``list`` and those of `LISTS` are lists (``0-3,8``), all others masks (``0000010f``).
        """
        for name in names:
            path = f"{folder}/{name}"
            text = self.tree.read(path)
            if isinstance(text, str):
                found = self.parsed(text, path, is_list=name in LISTS or name.endswith("list"))
                if found is not None:
                    return found
        return None

    def parsed(self, text: str, where: str, *, is_list: bool) -> CpuSet | None:
        """Take a list (or a mask) apart; None, with a remark, where it is neither."""
        key = (is_list, text)
        if key in self._parsed:
            found = self._parsed[key]
        else:
            parse: Callable[[str], CpuSet] = CpuSet.parse if is_list else CpuSet.parse_mask
            try:
                found = parse(text)
            except MalformedTextError:
                found = None
            self._parsed[key] = found
        if found is None:
            kind = "list" if is_list else "mask"
            self.remark(
                f"damaged {kind}", f"{where} reads {shown(text)}, which is no {kind}: not used"
            )
        return found


LISTS = frozenset(
    (
        "online",
        "present",
        "possible",
        "cpus",
        "mems",
        "effective_cpus",
        "effective_mems",
        "cpuset.cpus",
        "cpuset.mems",
        "cpuset.effective_cpus",
        "cpuset.effective_mems",
        "cpuset.cpus.effective",
        "cpuset.mems.effective",
        "cpulistaffinity",
    )
)
"""Files in the kernel's list format whose names do not end in ``list``."""


def shown(text: str) -> str:
    """Quote a text for a sentence, on one line and not too long."""
    quoted = repr(text[:41])
    return quoted if len(quoted) <= 42 else quoted[:38] + "..."


def number_after(prefix: str, name: str) -> int | None:
    """Return 12 for ``cpu12`` after ``cpu``; None for other names and for numbers that no kernel gives."""
    digits = name[len(prefix) :] if name.startswith(prefix) else ""
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(LARGEST_ID)):
        return None
    return int(digits) if int(digits) <= LARGEST_ID else None
