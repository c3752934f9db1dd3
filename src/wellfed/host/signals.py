"""Which signals are a job's, and how is its end said?"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Sequence
else:
    import _signal

PRIVATE = ("SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGPIPE",
           "SIGXFSZ", "SIGTTIN", "SIGTTOU", "SIGPROF", "SIGVTALRM", "SIGCHLD", "SIGWINCH", "SIGURG", "SIGIO")  # fmt: skip
"""Not forwarded: they cannot be caught, are about this process itself, or mean nothing to another."""


def forwarded(ignored: Sequence[int]) -> set[int]:
    """Return the signals that go on to the ranks: all that can be caught and are meant for a job."""
    private = {int(getattr(_signal, name)) for name in PRIVATE if hasattr(_signal, name)}
    return {int(number) for number in _signal.valid_signals()} - private - set(ignored)


def exit_code_of(status: int) -> int:
    """Return the shell's code of a wait status: its own, or 128 plus the signal."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def say_code(code: int) -> str:
    """Say an exit code in words: ``was ended by SIGKILL``, ``failed with exit code 1``."""
    if code > 128 and (name := signal_name(code - 128)) is not None:
        return f"was ended by {name}"
    return f"failed with exit code {code}"


def signal_name(number: int) -> str | None:
    """Return ``SIGTERM`` for 15, None for a number without a name."""
    names = [name for name in vars(_signal) if name.startswith("SIG") and name[3] != "_"]
    return next((name for name in sorted(names) if getattr(_signal, name) == number), None)
