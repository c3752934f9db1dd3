"""How does a command get another priority than its launcher has?"""

from __future__ import annotations

import errno
import os

from wellfed.model.errors import LaunchError

CLASSES = {"other": "SCHED_OTHER", "batch": "SCHED_BATCH", "idle": "SCHED_IDLE"}
"""sched(7). FIFO and RR are missing on purpose: a whole command that spins under them stops its host."""


def apply_scheduling(name: str | None, nice: int | None) -> tuple[str, ...]:
    """Set class and niceness of this process, which all that it starts inherit; return what changed.

    LaunchError where the kernel refuses: a lower niceness needs CAP_SYS_NICE or RLIMIT_NICE.
    """
    said = []
    if name is not None:
        said.append(_set_class(name))
    if nice is not None:
        said.append(_set_nice(nice))
    return tuple(said)


def _set_class(name: str) -> str:
    before = os.sched_getscheduler(0)
    wanted: int = getattr(os, CLASSES[name])
    try:
        os.sched_setscheduler(0, wanted, os.sched_param(0))
    except OSError as refusal:
        raise _refused(
            f"--sched {name}", refusal, "the launcher's own class may not be left: ask who set it"
        ) from None
    known = {getattr(os, value): key for key, value in CLASSES.items()}
    return f"scheduling class {known.get(before, before)} -> {name}"


def _set_nice(wanted: int) -> str:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, wanted)
    except OSError as refusal:
        raise _refused(
            f"--nice {wanted}",
            refusal,
            f"the niceness is {before}; a lower one needs CAP_SYS_NICE (docker --cap-add SYS_NICE) or `ulimit -e`",
        ) from None
    return f"niceness {before} -> {wanted}"


def _refused(option: str, refusal: OSError, remedy: str) -> LaunchError:
    name = errno.errorcode.get(refusal.errno or 0, "error")
    return LaunchError(
        f"{option} is refused: {name}, {os.strerror(refusal.errno or 0)}", remedy=remedy
    )
