"""How does a process become the job's command, and how is a child started that does?"""

from __future__ import annotations

import errno
import marshal
import os
import sys

from wellfed.host import syscalls
from wellfed.model import errors
from wellfed.model.errors import LaunchError, WellfedError
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, NoReturn
else:
    # The C module itself: `signal` around it imports enum, which costs a launch a quarter of Python's own start.
    import _signal

DEFAULT_PATH = "/bin:/usr/bin"
"""Where execvp(3) looks without PATH (glibc, confstr _CS_PATH)."""

NOT_EXECUTABLE, NOT_FOUND, NOT_STARTED = 126, 127, 2
"""The shell's exit codes, and ours for anything before the launch."""

IGNORED_BY_PYTHON = (_signal.SIGPIPE, _signal.SIGXFSZ)
"""Python ignores these when it starts; what is ignored stays so over execve, and `job | head` would never end."""


class Order(Value):
    """A child to start."""

    command: tuple[str, ...]
    path: str
    environment: Mapping[str, str]
    prepare: Callable[[], Any]
    """Runs in the child before the command; returns plain values (numbers, texts, tuples, None) for the parent."""
    streams: tuple[int, int, int] = (0, 1, 2)
    """Descriptors that become its standard input, output and error."""
    own_group: bool = True
    """Whether it leads a process group, so that a signal reaches all that it starts."""


class Started(Value):
    """A child whose command runs."""

    pid: int
    prepared: Any
    """What ``prepare`` returned."""


def find_command(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of a command as execvp(3) would find it; LaunchError 127 or 126 where it cannot be run."""
    if not name:
        raise _not_found(name)
    if "/" in name:
        return _checked(name, name)
    refused = None
    for folder in environment.get("PATH", DEFAULT_PATH).split(":"):
        path = f"{folder}/{name}" if folder else name
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                # A bare name would be searched for again: an empty entry of PATH is the current folder.
                return path if "/" in path else f"./{path}"
            refused = refused or path
    if refused is not None:
        raise _not_executable(name, f"{refused} may not be executed")
    raise _not_found(name)


def become(
    path: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    blocked: Iterable[int] | None = None,
) -> NoReturn:
    """Replace this process by the command; pid, group, descriptors and limits stay. ``blocked``: signals to block.

    A text without ``#!`` is given to /bin/sh, as execvp(3) does.
    """
    restore_signals()
    if blocked is not None:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, blocked)
    try:
        os.execve(path, command, environment)
    except OSError as refusal:
        if refusal.errno != errno.ENOEXEC:
            raise _refused(path, refusal) from None
    try:
        os.execve("/bin/sh", ["sh", path, *command[1:]], environment)
    except OSError as refusal:
        raise _refused(path, refusal) from None


def start(order: Order, blocked: Iterable[int]) -> Started:
    """Start a child that prepares itself and becomes the command; an error of either is raised here.

    It is killed when this process ends, however that happens. ``blocked`` are the signals its command blocks; the
    caller blocks those it reads, so that none is lost between fork and execve.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_child(order, writer, parent, blocked)
    os.close(writer)
    if order.own_group:
        _lead_group(pid)
    said = _read_to_end(reader)
    os.close(reader)
    report = marshal.loads(said) if said else None
    if report is None or report[0] != "prepared":
        os.waitpid(pid, 0)
    if report is None:
        raise LaunchError(
            f"the child for {order.command[0]!r} ended before its command began",
            remedy="look above for its own words, and in `dmesg` for an out-of-memory kill",
        )
    if report[0] == "refused":
        raise rebuild_error(report[1:])
    return Started(pid, report[1])


def restore_signals() -> None:
    """Give back what Python changed about signals when it started."""
    for number in IGNORED_BY_PYTHON:
        _signal.signal(number, _signal.SIG_DFL)


def fill_standard_streams() -> None:
    """Open /dev/null in place of a closed standard stream: else the next file we open would become it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            found = os.open("/dev/null", os.O_RDWR)
            os.set_inheritable(found, True)


def environment_at_start() -> dict[str, str]:
    """Return this process's environment as it was given, without what Python itself put into it.

    In the C locale Python sets LC_CTYPE for itself and all it starts (PEP 538); the job never asked for that.
    """
    environment = dict(os.environ)
    if environment.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8"):
        try:
            with open("/proc/self/environ", "rb", buffering=0) as given:
                if b"\0LC_CTYPE=" not in b"\0" + given.readall():
                    del environment["LC_CTYPE"]
        except OSError:
            # Without /proc nobody can tell; what Python chose is right for most.
            return environment
    return environment


def _be_child(order: Order, report: int, parent: int, blocked: Iterable[int]) -> NoReturn:
    """Prepare and become the command, or write to the parent why not. Nothing may return into the parent's code."""
    try:
        syscalls.prctl_pdeathsig()
        if os.getppid() != parent:
            # The parent ended before the kernel knew whom to tell.
            os._exit(NOT_STARTED)
        if order.own_group:
            _lead_group(0)
        _connect(order.streams)
        os.write(report, marshal.dumps(("prepared", order.prepare())))
        os.set_inheritable(report, False)
        _forget_handlers()
        become(order.path, order.command, order.environment, blocked=blocked)
    except WellfedError as error:
        _write_refusal(report, error)
    except OSError as refusal:
        _write_refusal(report, _refused(order.path, refusal))
    finally:
        # Only our own mistakes come here with an exception that nobody answered.
        unanswered = sys.exc_info()
        if unanswered[0] is not None:
            sys.excepthook(*unanswered)  # type: ignore[arg-type]
        os._exit(NOT_STARTED)
