"""Which CPUs (or NUMA nodes): a set of small integers, as the kernel writes them."""

from __future__ import annotations

from wellfed.model.errors import MalformedTextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LARGEST_ID = 65535
"""Ids above this are refused. Linux allows 8192 CPUs (CONFIG_NR_CPUS) and 1024 nodes; a hostile text may say anything."""


class CpuSet:
    """A frozen set of CPU or node numbers, kept as one integer with a bit per number.

    >>> CpuSet.parse("0-3,8") & CpuSet.parse("2-9")
    CpuSet('2-3,8')
    """

    __slots__ = ("mask",)
    mask: int

    def __init__(self, ids: Iterable[int] = ()) -> None:
        """Take the numbers; duplicates are harmless, negative numbers are not."""
        mask = 0
        for each in ids:
            mask |= 1 << _checked(each, str(each))
        object.__setattr__(self, "mask", mask)

    @classmethod
    def of_mask(cls, mask: int) -> CpuSet:
        """Make the set whose members are the bits of ``mask``."""
        if mask < 0 or mask.bit_length() > LARGEST_ID + 1:
            raise _malformed(hex(mask), "a mask with bits 0 to 65535")
        made = cls.__new__(cls)
        object.__setattr__(made, "mask", mask)
        return made

    @classmethod
    def parse(cls, text: str) -> CpuSet:
        """Read the kernel's list format: ``0-3,8``, ``0-31:2/4`` (2 of every 4), or nothing.

        Documentation/admin-guide/kernel-parameters.rst, "cpu lists".
        """
        mask = 0
        for part in text.strip().split(","):
            part = part.strip()
            if part:
                mask |= _parse_range(part, text)
            elif text.strip():
                raise _malformed(text, "a list such as 0-3,8")
        return cls.of_mask(mask)

    @classmethod
    def parse_mask(cls, text: str) -> CpuSet:
        """Read the kernel's mask format: hexadecimal words of 32 bits, most significant first, with commas."""
        words = [word.strip().removeprefix("0x") or "0" for word in text.strip().split(",")]
        if not text.strip() or any(not _is_hex(word) for word in words):
            raise _malformed(text, "a mask such as 000000ff,ffff0000")
        mask = 0
        for word in words:
            if len(words) > 1 and len(word) > 8:
                raise _malformed(text, "words of 8 hexadecimal digits")
            mask = mask << 32 | int(word, 16)
        return cls.of_mask(mask)

    def format_mask(self) -> str:
        """Write the kernel's mask format, as short as it can be: ``ff,ffff0000``."""
        digits = f"{self.mask:x}"
        words = []
        while digits:
            words.append(digits[-8:])
            digits = digits[:-8]
        return ",".join(reversed(words))

    def __str__(self) -> str:
        """Write the kernel's list format; the empty set is an empty text."""
        ranges, mask, low = [], self.mask, 0
        while mask:
            skip = (mask & -mask).bit_length() - 1
            low += skip
            mask >>= skip
            run = (~mask & mask + 1).bit_length() - 1
            ranges.append(str(low) if run == 1 else f"{low}-{low + run - 1}")
            mask >>= run
            low += run
        return ",".join(ranges)

    def __repr__(self) -> str:
        """Show the list format in quotes."""
        return f"CpuSet({str(self)!r})"

    def __iter__(self) -> Iterator[int]:
        """Go through the numbers, smallest first."""
        mask = self.mask
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    def __len__(self) -> int:
        """Count the numbers."""
        return bin(self.mask).count("1")

    def __bool__(self) -> bool:
        """Say whether there is any number."""
        return self.mask != 0

    def __contains__(self, each: object) -> bool:
        """Say whether a number is in the set."""
        return isinstance(each, int) and each >= 0 and bool(self.mask >> each & 1)

    def __and__(self, other: CpuSet) -> CpuSet:
        """Keep what is in both."""
        return CpuSet.of_mask(self.mask & other.mask)

    def __or__(self, other: CpuSet) -> CpuSet:
        """Join both."""
        return CpuSet.of_mask(self.mask | other.mask)

    def __sub__(self, other: CpuSet) -> CpuSet:
        """Keep what is not in the other."""
        return CpuSet.of_mask(self.mask & ~other.mask)

    def __xor__(self, other: CpuSet) -> CpuSet:
        """Keep what is in exactly one."""
        return CpuSet.of_mask(self.mask ^ other.mask)

    def __le__(self, other: CpuSet) -> bool:
        """Say whether every number is in the other."""
        return self.mask & ~other.mask == 0

    def __lt__(self, other: CpuSet) -> bool:
        """Say whether this is a smaller part of the other."""
        return self <= other and self.mask != other.mask

    def __eq__(self, other: object) -> bool:
        """Compare members."""
        return isinstance(other, CpuSet) and self.mask == other.mask

    def __hash__(self) -> int:
        """Hash the members; Python alone gives 2**0, 2**61, 2**122 … one hash."""
        return hash(("CpuSet", self.mask, self.mask.bit_length()))

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a set never changes."""
        raise AttributeError("CpuSet is frozen")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the mask."""
        return CpuSet.of_mask, (self.mask,)

    @property
    def first(self) -> int:
        """The smallest number; the set must not be empty."""
        if not self.mask:
            raise ValueError("an empty CpuSet has no first number")
        return (self.mask & -self.mask).bit_length() - 1


NodeSet = CpuSet
"""NUMA nodes are written the same way; the other name tells the reader which it is."""

EMPTY = CpuSet()


def union(sets: Iterable[CpuSet]) -> CpuSet:
    """Join any number of sets; of none it is empty."""
    mask = 0
    for each in sets:
        mask |= each.mask
    return CpuSet.of_mask(mask)


def _parse_range(part: str, text: str) -> int:
    """Return the mask of ``7``, ``0-3`` or ``0-31:2/4``."""
    span, _, stride = part.partition(":")
    low_text, dash, high_text = span.partition("-")
    low = _number(low_text, text)
    high = _number(high_text, text) if dash else low
    if high < low:
        raise _malformed(text, "ranges that go up")
    mask = (1 << high - low + 1) - 1 << low
    if ":" not in part:
        return mask
    used_text, _, group_text = stride.partition("/")
    used, group = _number(used_text, text), _number(group_text, text)
    if not 0 < used <= group:
        raise _malformed(text, "strides such as 0-31:2/4")
    wanted = 0
    for start in range(low, high + 1, group):
        wanted |= (1 << used) - 1 << start
    return mask & wanted


def _number(text: str, whole: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise _malformed(whole, "a list such as 0-3,8")
    return _checked(int(text), whole)


def _checked(each: int, whole: str) -> int:
    if not 0 <= each <= LARGEST_ID:
        raise _malformed(whole, f"numbers from 0 to {LARGEST_ID}")
    return each


def _is_hex(text: str) -> bool:
    return not text.strip("0123456789abcdefABCDEF")


def _malformed(text: str, wanted: str) -> MalformedTextError:
    shown = repr(text[:61])
    shown = shown if len(shown) <= 62 else shown[:58] + "..."
    return MalformedTextError(
        f"{shown} is not a set of CPUs or nodes: wanted {wanted}",
        remedy="write CPUs as the kernel does, for example 0-7,64-71",
    )
