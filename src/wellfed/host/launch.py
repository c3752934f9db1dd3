"""How does a process become the job's command, and how is a child started that does?"""

from __future__ import annotations

import errno
import marshal
import os
import sys

from wellfed.model import errors
from wellfed.model.errors import LaunchError, WellfedError
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn
else:
    # The C module itself: `signal` around it imports enum, which costs a launch a quarter of Python's own start.
    import _signal

DEFAULT_PATH = "/bin:/usr/bin"
"""Where execvp(3) looks without PATH (glibc, confstr _CS_PATH)."""

PREPARED = "prepared"
LENGTH_BYTES = 8

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


class Signals(Value):
    """What a command finds about signals when it starts."""

    blocked: tuple[int, ...]
    ignored: tuple[int, ...]


class Child(Value):
    """A child that prepares itself, and waits to become its command."""

    pid: int
    command: tuple[str, ...]
    report: int
    """Reading end: what it prepared, then why it could not become its command; ends when it has."""
    gate: int
    """Writing end: a byte lets it go on."""


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
    command: tuple[str, ...],
    environment: Mapping[str, str],
    *,
    signals: Signals | None = None,
) -> NoReturn:
    """Replace this process by the command; pid, group, descriptors and limits stay.

    A text without ``#!`` is given to /bin/sh, as execvp(3) does; a program of another machine is not, as in bash.
    ``signals``: what the command is to find, None: as now.
    """
    restore_signals(signals)
    try:
        os.execve(path, command, environment)
    except OSError as refusal:
        if refusal.errno != errno.ENOEXEC or _is_binary(path):
            raise refused(path, refusal) from None
    try:
        os.execve("/bin/sh", ["sh", path, *command[1:]], environment)
    except OSError as refusal:
        raise refused(path, refusal) from None


def fork_child(order: Order, signals: Signals) -> Child:
    """Start a child that prepares itself and then waits for `release`; ``signals`` is what its command finds.

    It is killed when this process ends, however that happens. The caller blocks the signals that it reads itself, so
    that none is lost between fork and execve.
    """
    # Here and not at the top: a process that becomes its command itself has no use for ctypes.
    from wellfed.host.syscalls import prctl_pdeathsig

    reader, report = os.pipe()
    gate, opener = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(opener)
        _be_child(order, report, gate, parent, signals, prctl_pdeathsig)
    os.close(report)
    os.close(gate)
    if order.own_group:
        _lead_group(pid)
    return Child(pid, order.command, reader, opener)


def prepared(child: Child) -> Any:
    """Wait until a child has prepared itself and return what it reports; its refusal is raised here."""
    said = _read_report(child.report)
    if said is None:
        os.waitpid(child.pid, 0)
        raise LaunchError(
            f"the child for {child.command[0]!r} ended before its command began",
            remedy="look above for its own words, and in `dmesg` for an out-of-memory kill",
        )
    if said[0] != PREPARED:
        os.waitpid(child.pid, 0)
        raise _rebuild(said)
    return said[1]


def open_gate(child: Child) -> None:
    """Let a prepared child become its command."""
    try:
        os.write(child.gate, b"!")
    except BrokenPipeError:
        # It was killed meanwhile: whoever waits for it will see.
        return
    finally:
        os.close(child.gate)


def confirm_running(child: Child) -> None:
    """Wait until a child has become its command; LaunchError where the kernel would not execute it."""
    said = _read_report(child.report)
    os.close(child.report)
    if said is not None:
        os.waitpid(child.pid, 0)
        raise _rebuild(said)


def current_signals() -> Signals:
    """Return what a command started now would find."""
    ignored = [n for n in _signal.valid_signals() if _signal.getsignal(n) == _signal.SIG_IGN]
    kept = tuple(int(n) for n in sorted(ignored) if n not in IGNORED_BY_PYTHON)
    return Signals(tuple(map(int, _signal.pthread_sigmask(_signal.SIG_BLOCK, ()))), kept)


def restore_signals(signals: Signals | None = None) -> None:
    """Give back what Python changed when it started, and what a supervisor changed; handlers end with execve anyway."""
    for number in IGNORED_BY_PYTHON:
        _signal.signal(number, _signal.SIG_DFL)
    if signals is None:
        return
    for ignored in signals.ignored:
        _signal.signal(ignored, _signal.SIG_IGN)
    # A pending interrupt must end the child, not raise KeyboardInterrupt between here and execve.
    if _signal.SIGINT not in signals.ignored:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, signals.blocked)


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


def _be_child(
    order: Order,
    report: int,
    gate: int,
    parent: int,
    signals: Signals,
    die_with_parent: Callable[[], None],
) -> NoReturn:
    """Prepare and become the command, or write to the parent why not. Nothing may return into the parent's code."""
    try:
        die_with_parent()
        if os.getppid() != parent:
            # The parent ended before the kernel knew whom to tell.
            os._exit(NOT_STARTED)
        if order.own_group:
            _lead_group(0)
        for number, source in enumerate(order.streams):
            _connect(source, number)
        _write_report(report, (PREPARED, order.prepare()))
        if not os.read(gate, 1):
            # The parent gave up, because another rank cannot start.
            os._exit(NOT_STARTED)
        become(order.path, order.command, order.environment, signals=signals)
    except WellfedError as error:
        kind, code = type(error).__name__, getattr(error, "exit_code", NOT_STARTED)
        _write_report(report, (kind, error.message, error.remedy, code))
    finally:
        # Only our own mistakes arrive here as an exception.
        mistake = sys.exc_info()[1]
        if mistake is not None:
            sys.excepthook(type(mistake), mistake, mistake.__traceback__)
        os._exit(NOT_STARTED)


def _is_binary(path: str) -> bool:
    """Say whether a file is no script: its first line holds a NUL, or it is a program (bash tells them apart so)."""
    try:
        with open(path, "rb") as file:
            start = file.read(80)
    except OSError:
        return False
    return start.startswith(b"\x7fELF") or b"\0" in start.partition(b"\n")[0]


def _lead_group(pid: int) -> None:
    """Make a child (0: this process) lead a group. Parent and child both do, because either may come first."""
    try:
        os.setpgid(pid, pid)
    except OSError as refusal:
        # The child has become its command already, after doing it itself.
        if refusal.errno not in (errno.EACCES, errno.ESRCH):
            raise


def _connect(source: int, number: int) -> None:
    if source == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(source, number)


def _write_report(descriptor: int, report: tuple[Any, ...]) -> None:
    """Write plain values, their length first."""
    content = marshal.dumps(report)
    content = len(content).to_bytes(LENGTH_BYTES, "little") + content
    while content:
        content = content[os.write(descriptor, content) :]


def _read_report(descriptor: int) -> tuple[Any, ...] | None:
    """Read one report; None where the child wrote no more: it became its command, or was killed."""
    size = int.from_bytes(_read_exactly(descriptor, LENGTH_BYTES), "little")
    content = _read_exactly(descriptor, size)
    if not size or len(content) < size:
        return None
    found: tuple[Any, ...] = marshal.loads(content)
    return found


def _read_exactly(descriptor: int, size: int) -> bytes:
    content = b""
    while len(content) < size and (chunk := os.read(descriptor, size - len(content))):
        content += chunk
    return content


def _rebuild(report: tuple[Any, ...]) -> WellfedError:
    name, message, remedy, code = report
    if name == LaunchError.__name__:
        return LaunchError(message, remedy=remedy, exit_code=code)
    kind: type[WellfedError] = getattr(errors, name, WellfedError)
    return kind(message, remedy=remedy)


def _checked(name: str, path: str) -> str:
    if not os.path.lexists(path):
        raise _not_found(name)
    if not os.path.isfile(path):
        what = "a folder" if os.path.isdir(path) else "no file"
        raise _not_executable(name, f"it is {what}")
    if not os.access(path, os.X_OK):
        raise _not_executable(name, "it may not be executed")
    return path


def refused(path: str, refusal: OSError) -> LaunchError:
    """Say why the kernel would not execute a file that was there."""
    name = errno.errorcode.get(refusal.errno or 0, "error")
    if refusal.errno in (errno.ENOENT, errno.ENOTDIR):
        return LaunchError(
            f"{path} cannot be executed: the interpreter or loader that it names is not there",
            remedy=f"look at its first line: head -c 100 {path}",
            exit_code=NOT_FOUND,
        )
    if refusal.errno == errno.ENOEXEC:
        return LaunchError(
            f"{path} cannot be executed: it is a program, and not one for this machine ({os.uname().machine})",
            remedy=f"look at what it was built for: file {path}",
            exit_code=NOT_EXECUTABLE,
        )
    if refusal.errno == errno.E2BIG:
        return LaunchError(
            f"{path} cannot be executed: arguments and environment are longer than the kernel takes (E2BIG)",
            remedy="pass the arguments in a file; `getconf ARG_MAX` shows the limit",
            exit_code=NOT_EXECUTABLE,
        )
    return LaunchError(
        f"{path} cannot be executed: {name}, {os.strerror(refusal.errno or 0)}",
        remedy=f"look at what it is: file {path}",
        exit_code=NOT_EXECUTABLE,
    )


def _not_found(name: str) -> LaunchError:
    return LaunchError(
        f"the command {name!r} is not found",
        remedy="write its path, or put its folder into PATH",
        exit_code=NOT_FOUND,
    )


def _not_executable(name: str, why: str) -> LaunchError:
    return LaunchError(
        f"the command {name!r} cannot be executed: {why}",
        remedy="make it executable (chmod +x), or write its interpreter in front of it: python train.py",
        exit_code=NOT_EXECUTABLE,
    )
