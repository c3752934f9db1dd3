"""How does a command get other resource limits than its launcher has?"""

from __future__ import annotations

import errno
import os

from wellfed.model.errors import LaunchError
from wellfed.model.value import Value

NO_LIMIT = -1
"""RLIM_INFINITY, as Python's ``resource`` spells it."""

OOM_SCORE_ADJ = "/proc/self/oom_score_adj"


class Limits(Value):
    """What a command is to find; None: what its launcher has."""

    memlock_bytes: int | None = None
    """RLIMIT_MEMLOCK, −1 for no limit. RDMA and pinned buffers need it: a registration beyond it fails."""
    num_files: int | None = None
    """RLIMIT_NOFILE. Loader workers share tensors through open files."""
    oom_score_adj: int | None = None
    """−1000 to 1000, added to the badness of the process when memory runs out (proc(5))."""


def apply_limits(limits: Limits) -> None:
    """Set the limits of this process, which all that it starts inherit.

    LaunchError where the kernel refuses: raising a hard limit needs CAP_SYS_RESOURCE, lowering the score too.
    """
    if limits.memlock_bytes is not None:
        _set_limit("memlock", limits.memlock_bytes, "--memlock")
    if limits.num_files is not None:
        _set_limit("nofile", limits.num_files, "--nofile")
    if limits.oom_score_adj is not None:
        _set_oom_score(limits.oom_score_adj)


def _set_limit(name: str, wanted: int, option: str) -> None:
    # Not at the top: one more shared object to load, and few launches change a limit.
    import resource

    kind: int = getattr(resource, f"RLIMIT_{name.upper()}")
    _, hard = resource.getrlimit(kind)
    unlimited = resource.RLIM_INFINITY
    fits = hard == unlimited or (wanted != unlimited and wanted <= hard)
    try:
        resource.setrlimit(kind, (wanted, hard if fits else wanted))
    except (ValueError, OSError) as refusal:
        raise LaunchError(
            f"{option} {_say(wanted)}: the hard limit is {_say(hard)}, and the kernel does not raise it ({refusal})",
            remedy=_how_to_raise(name, wanted),
        ) from None
    found, _ = resource.getrlimit(kind)
    if found != wanted:
        raise LaunchError(
            f"{option} {_say(wanted)} was accepted, but {_say(found)} holds",
            remedy=_how_to_raise(name, wanted),
        )


def _set_oom_score(wanted: int) -> None:
    try:
        with open(OOM_SCORE_ADJ, "wb", buffering=0) as file:
            file.write(b"%d" % wanted)
    except OSError as refusal:
        name = errno.errorcode.get(refusal.errno or 0, "error")
        raise LaunchError(
            f"--oom-score-adj {wanted}: {OOM_SCORE_ADJ} is refused: {name}, {os.strerror(refusal.errno or 0)}",
            remedy="a lower score than now needs CAP_SYS_RESOURCE: start it as root, or with `OOMScoreAdjust=` of systemd",
        ) from None


def _say(limit: int) -> str:
    return "unlimited" if limit == NO_LIMIT else str(limit)


def _how_to_raise(name: str, wanted: int) -> str:
    size = "unlimited" if wanted == NO_LIMIT else str(wanted)
    kilobytes = size if name != "memlock" or wanted == NO_LIMIT else str(-(-wanted // 1024))
    return (
        f"raise it where the session starts: `* hard {name} {kilobytes}` in /etc/security/limits.d, "
        f"Limit{name.upper()}={size} of the systemd unit, or docker --ulimit {name}={wanted}"
    )
