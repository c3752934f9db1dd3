"""How are the three standard streams used, whatever they are: closed, full, or without our characters?"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.errors import WellfedError


def fill_standard_streams() -> None:
    """Open /dev/null in place of a closed standard stream: else the next file we open would become it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(found, True)


def ready_stdout() -> None:
    """Let stdout take a report: what its encoding lacks is escaped (a path may be any bytes), and None becomes a file."""
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def tell(text: str) -> None:
    """Write to stderr, whole lines at once; a stderr that is gone must not end a job.

    In UTF-8, whatever the locale says: words of ours it may not have, and bytes of arguments come out as they came in.
    """
    left = (readable(text) + "\n").encode("utf-8", "surrogateescape")
    try:
        while left:
            left = left[os.write(2, left) :]
    except OSError:
        return


def readable(text: str) -> str:
    """Return a text that moves no cursor and names no window: a thread, a host and a file may be called anything.

    Bytes that are no UTF-8, which Python holds as U+DC80 to U+DCFF, stay.
    """
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t" or "\udc80" <= letter <= "\udcff"
        else "\ufffd"
        for letter in text
    )


def tell_error(error: WellfedError) -> None:
    """Write what was found and wanted, and what to do about it."""
    tell(f"wellfed: {error.message}\n  what to do: {error.remedy}")
