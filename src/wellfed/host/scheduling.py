"""How does a command get another priority than its launcher has?"""

from __future__ import annotations

import errno
import os

from wellfed.model.errors import LaunchError

CLASSES = {"other": "SCHED_OTHER", "batch": "SCHED_BATCH", "idle": "SCHED_IDLE"}
"""sched(7). FIFO and RR are missing on purpose: a whole command that spins under them stops its host."""


def apply_scheduling(name: str | None, nice: int | None) -> None:
    """Set class and niceness of this process, which all that it starts inherit.

    LaunchError where the kernel refuses: a lower niceness needs CAP_SYS_NICE or RLIMIT_NICE.
    """
    if name is not None:
        _set_class(name)
    if nice is not None:
        _set_nice(nice)


def _set_class(name: str) -> None:
    wanted: int = getattr(os, CLASSES[name])
    try:
        os.sched_setscheduler(0, wanted, os.sched_param(0))
    except OSError as refusal:
        raise _refused(
            f"--sched {name}", refusal, "the launcher's own class may not be left: ask who set it"
        ) from None


def _set_nice(wanted: int) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, wanted)
    except OSError as refusal:
        raise _refused(
            f"--nice {wanted}",
            refusal,
            f"the niceness is {before}; a lower one needs CAP_SYS_NICE (docker --cap-add SYS_NICE) or `ulimit -e`",
        ) from None


def _refused(option: str, refusal: OSError, remedy: str) -> LaunchError:
    name = errno.errorcode.get(refusal.errno or 0, "error")
    return LaunchError(
        f"{option} is refused: {name}, {os.strerror(refusal.errno or 0)}", remedy=remedy
    )
