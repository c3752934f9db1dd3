"""How do the words after options become values, and what is said of those that do not?"""

from __future__ import annotations

from wellfed.host.limits import NO_LIMIT
from wellfed.model.errors import MalformedTextError, UsageError
from wellfed.model.placement import ROLES
from wellfed.model.units import parse_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NORMAL_SCHEDULERS = ("other", "batch", "idle")


def whole(low: int, high: int, what: str) -> Callable[[str], int]:
    """Make a converter to whole numbers in a range."""

    def number(text: str) -> int:
        plain = text.strip()
        digits = plain[1:] if plain[:1] in ("-", "+") else plain
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 12:
            raise UsageError(f"{text!r} is not {what}", remedy=f"write {what}: {low} to {high}")
        if not low <= int(plain) <= high:
            raise UsageError(
                f"{text!r} is outside {low} to {high}", remedy=f"write {what}: {low} to {high}"
            )
        return int(plain)

    return number


def seconds(text: str) -> float:
    """Read a length of time in seconds: ``5``, ``0.5``."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    # Anything longer than a year is a slip; NaN compares false.
    if not 0 <= found <= 366 * 86400:
        raise UsageError(f"{text!r} is not a number of seconds", remedy="write seconds, such as 5")
    return found


def interval(text: str) -> float:
    """Read a pause between two looks; shorter than a tenth of a second costs the job its own cores."""
    found = seconds(text)
    if found < 0.1:
        raise UsageError(f"{text!r} seconds are too short a pause", remedy="write 0.1 or more")
    return found


def path(text: str) -> str:
    """Read the path of a file or folder."""
    if not text or "\0" in text:
        raise UsageError(f"{text!r} is not a path", remedy="write the path of a file or folder")
    return text


def size(text: str) -> int:
    """Read a size in bytes: ``64G``; zero is none."""
    found = parse_bytes(text)
    if not found:
        raise MalformedTextError(f"{text!r} is no size at all", remedy="write a size such as 64G")
    return found


def size_or_unlimited(text: str) -> int:
    """Read a size in bytes, or ``unlimited``."""
    return NO_LIMIT if text.strip().lower() == "unlimited" else parse_bytes(text)


def roles(text: str) -> tuple[tuple[str, int], ...]:
    """Read cores a role: ``main=4,loader=8``; a role without a number gets a default share (0 here)."""
    found: dict[str, int] = {}
    for part in text.split(","):
        role, equals, cores = part.strip().partition("=")
        if role not in ROLES or role in found:
            raise UsageError(
                f"--roles {text!r}: {part.strip()!r} is not a role with its cores",
                remedy=f"write each of {', '.join(ROLES)} once at most: --roles main=4,loader=8",
            )
        found[role] = whole(1, 4096, "a number of cores")(cores) if equals else 0
    return tuple(found.items())


def gpu_names(text: str) -> tuple[str, ...]:
    """Read GPUs by index, UUID or PCI address: ``0,2``, ``GPU-8932f937``, ``0000:3b:00.0``."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found) or len(set(found)) != len(found):
        raise UsageError(
            f"--gpus {text!r} names a GPU twice, or none between two commas",
            remedy="write indices as `wellfed topo` shows them, such as --gpus 0,2",
        )
    return found


def scheduler(text: str) -> str:
    """Read a scheduling class for a whole command."""
    if text in ("fifo", "rr"):
        raise UsageError(
            f"--sched {text} is refused: a whole command under {text.upper()} that spins keeps kernel threads and the "
            "GPU driver's own work off its CPUs, and the host stalls; real-time classes are for single named threads",
            remedy="use --nice -10, or `chrt --pid` on the one thread that needs it",
        )
    if text not in NORMAL_SCHEDULERS:
        wanted = ", ".join(NORMAL_SCHEDULERS)
        raise UsageError(
            f"--sched {text!r} is not one of {wanted}", remedy=f"write --sched {wanted}"
        )
    return text


def variable(text: str) -> str:
    """Read the name of an environment variable."""
    if not text or "=" in text or "\0" in text:
        raise UsageError(
            f"--keep-env {text!r} is not the name of a variable",
            remedy="write a name alone, such as --keep-env OMP_NUM_THREADS",
        )
    return text
