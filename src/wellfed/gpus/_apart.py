"""How is something asked that may never answer, or take the process down?

A driver that lost a GPU can keep a caller in an uninterruptible sleep, where no signal and no thread helps. So the
asking is done by a forked child: when it does not answer in time it is left behind, and this process goes on. The
child also keeps the driver's open files out of a process that is about to become somebody's job.
"""

from __future__ import annotations

import os

from wellfed.model.tree import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

COMPLETE = b"\0"
"""The last byte of a whole answer; without it the child was cut off."""

SECONDS_TO_DIE = 0.5
"""A killed child is gone in milliseconds, unless the driver holds it: then nobody can reap it."""


def apart(answer: Callable[[], str], *, patience_seconds: float) -> str | Unreadable:
    """Return what ``answer`` gives in a child; ``ETIMEDOUT`` or ``EIO`` where it is late or dies.

    A process with several threads is not forked, because their locks would stay locked in the child: it asks itself,
    without a limit in time. That is a training process which calls `wellfed.bind`, and needs the driver anyhow.
    """
    if not _alone():
        return answer()
    import time

    deadline = time.monotonic() + patience_seconds
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:  # RLIMIT_NPROC or pids.max is reached
        os.close(reading)
        os.close(writing)
        return answer()
    if child == 0:
        _answer_and_exit(answer, writing)
    os.close(writing)
    try:
        content = _read_until(reading, deadline)
    finally:
        os.close(reading)
        _reap(child)
    if content.endswith(COMPLETE):
        return content.removesuffix(COMPLETE).decode()
    return Unreadable("ETIMEDOUT" if time.monotonic() >= deadline else "EIO")


def _alone() -> bool:
    """Say whether this thread is the only one, as the kernel counts."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _answer_and_exit(answer: Callable[[], str], writing: int) -> NoReturn:
    """Be the child: whatever happens, never return into the caller's code."""
    code = 1
    try:
        import signal

        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)
        content = answer().encode() + COMPLETE
        while content:
            content = content[os.write(writing, content) :]
        code = 0
    finally:
        os._exit(code)


def _read_until(reading: int, deadline: float) -> bytes:
    """Read to the end, or as far as it comes before the deadline."""
    import select
    import time

    content = b""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while not content.endswith(COMPLETE):
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            break
        chunk = os.read(reading, 65536)
        if not chunk:
            break
        content += chunk
    return content


def _reap(child: int) -> None:
    """Let the child end; kill it where it still waits for the driver, and leave it where even that does not help."""
    import signal
    import time

    give_up = time.monotonic() + SECONDS_TO_DIE
    try:
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < give_up:
            os.kill(child, signal.SIGKILL)
            time.sleep(0.001)
    except (ChildProcessError, ProcessLookupError):
        pass  # SIGCHLD is ignored in this process, so the kernel reaped the child itself
