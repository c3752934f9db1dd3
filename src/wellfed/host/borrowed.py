"""What of the host did a launch change for the life of its job, and how is that given back?

Before each write a record with the value that was found is on disk, so that a launch whose every process is killed is
cleaned up by the next one. Given back is in reverse order, and only what still reads as it was written.
"""

from __future__ import annotations

import errno
import fcntl
import os

from wellfed.host.live_tree import LiveTree
from wellfed.host.processes import stat_of
from wellfed.host.state import STATE_VARIABLE
from wellfed.model.errors import LaunchError
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FILE, CGROUP, CONTROLLERS = "file", "cgroup", "controllers"
"""A file that was written; a cgroup that was made; controllers that were handed to the children of a cgroup."""


class Loan(Value):
    """One change and what it has to be turned back to."""

    kind: str
    path: str
    written: str = ""
    found: str = ""

    def line(self) -> str:
        """Write it into a record; sysfs values and paths hold neither tabs nor line ends."""
        return "\t".join((self.kind, self.path, self.written, self.found)) + "\n"


class Borrowed:
    """The changes of one launch. Every method that writes needs this process alone to use it."""

    def __init__(self, folder: str, give_back: Mapping[str, Callable[[Loan], str | None]]) -> None:
        """Take the folder of all records, and how to turn back the kinds that are no files."""
        self._folder = folder
        self._give_back = {FILE: give_back_file, **give_back}
        self._record = os.path.join(folder, _identity(os.getpid()) or f"{os.getpid()}-unknown")
        self._loans: list[Loan] = []

    def write(self, path: str, text: str) -> None:
        """Write a file of /sys or /proc and read it back; what was found is on disk before.

        OSError where the kernel refuses; LaunchError where it takes the text and then shows another.
        """
        with Locked(self._folder):
            found = _read(path)
            self._note(Loan(FILE, path, text, found))
            _write(path, text)
            now = _read(path)
        if now != text:
            raise LaunchError(
                f"{path} was written {text!r} and reads {now!r}",
                remedy="see what else writes it: tuned, a power daemon, or another job",
            )

    def note(self, loan: Loan) -> None:
        """Record a change that the caller makes next."""
        with Locked(self._folder):
            self._note(loan)

    def give_back(self) -> tuple[str, ...]:
        """Turn everything back, newest first; return what could not be, one sentence each."""
        if not os.path.exists(self._record):
            return ()
        return give_back_record(self._record, self._folder, self._give_back)

    def _note(self, loan: Loan) -> None:
        self._loans.append(loan)
        try:
            _store(self._record, self._loans)
        except OSError as refusal:
            raise _no_record(self._folder, refusal) from None


def give_back_dead(
    folder: str, give_back: Mapping[str, Callable[[Loan], str | None]]
) -> tuple[str, ...]:
    """Turn back what launches left behind whose processes are gone; return what was done, one sentence each."""
    said = []
    for name in _records(folder):
        if not _is_alive(name):
            path = os.path.join(folder, name)
            count = len(_load(path))
            failed = give_back_record(path, folder, {FILE: give_back_file, **give_back})
            said.append(f"gave back {count} changes of a launch that was killed ({name})")
            said += failed
    return tuple(said)


def give_back_record(
    record: str, folder: str, give_back: Mapping[str, Callable[[Loan], str | None]]
) -> tuple[str, ...]:
    """Turn back one record, newest first, and remove it. Read again from disk: another launch may have handed over to it."""
    said = []
    with Locked(folder):
        for loan in reversed(_load(record)):
            if loan.kind == FILE and _hand_over(loan, record, folder):
                continue
            problem = give_back.get(loan.kind, _give_back_unknown)(loan)
            said += [problem] if problem is not None else []
        _remove(record)
    return tuple(said)


def give_back_file(loan: Loan) -> str | None:
    """Write what was found, unless somebody else has written since; say what was not turned back."""
    if loan.written == loan.found:
        return None
    try:
        now = _read(loan.path)
        if now == loan.written:
            _write(loan.path, loan.found)
            now = _read(loan.path)
    except OSError as refusal:
        name = errno.errorcode.get(refusal.errno or 0, "error")
        return f"{loan.path} could not be set back to {loan.found!r}: {name}"
    if now == loan.found:
        return None
    return f"{loan.path} reads {now!r}, not what this launch wrote: left as it is (found was {loan.found!r})"


def _give_back_unknown(loan: Loan) -> str:
    """A newer wellfed may have written it, or nobody of ours."""
    return (
        f"{loan.path}: {loan.kind!r} is no change that this version knows, so it is left as it is"
    )


def _hand_over(loan: Loan, record: str, folder: str) -> bool:
    """Leave a value to a running launch that found ours: it will turn back to what we had found."""
    for name in _records(folder):
        other = os.path.join(folder, name)
        if other == record or not _is_alive(name):
            continue
        loans = _load(other)
        heirs = [i for i, each in enumerate(loans) if _inherits(each, loan)]
        if heirs:
            i = heirs[0]
            loans[i] = Loan(FILE, loan.path, loans[i].written, loan.found)
            _store(other, loans)
            return True
    return False


def _inherits(other: Loan, loan: Loan) -> bool:
    return other.kind == FILE and other.path == loan.path and other.found == loan.written


class Locked:
    """Hold the lock of a folder of records; the kernel lets go of it when the holder ends."""

    def __init__(self, folder: str) -> None:
        """Take the folder; it is made when it is missing."""
        self._folder = folder
        self._descriptor = -1

    def __enter__(self) -> None:
        try:
            os.makedirs(self._folder, mode=0o755, exist_ok=True)
            path = os.path.join(self._folder, ".lock")
            self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as refusal:
            raise _no_record(self._folder, refusal) from None
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _no_record(folder: str, refusal: OSError) -> LaunchError:
    name = errno.errorcode.get(refusal.errno or 0, "error")
    return LaunchError(
        f"no record can be kept in {folder} ({name}), and without one nothing on the host is changed",
        remedy=f"name a folder that can be written: {STATE_VARIABLE}=/some/folder",
    )


def _identity(pid: int) -> str | None:
    """Name a process so that no later one has the same name: number, start and boot."""
    stat = stat_of(pid)
    boot = LiveTree().read("/proc/sys/kernel/random/boot_id")
    if stat is None or not isinstance(boot, str):
        return None
    return f"{pid}-{stat.start}-{boot[:8]}"


def _is_alive(name: str) -> bool:
    """Say whether the launch of a record still runs; one that only waits to be waited for does not."""
    pid = name.partition("-")[0]
    if not pid.isdigit() or _identity(int(pid)) != name:
        return False
    stat = stat_of(int(pid))
    return stat is not None and not stat.ended


def _records(folder: str) -> Sequence[str]:
    names = LiveTree().list(folder)
    return [name for name in names or () if name[:1].isdigit()]


def _load(record: str) -> list[Loan]:
    """Read a record; a line that was not finished was not acted on either."""
    text = LiveTree().read_bytes(record)
    if not isinstance(text, bytes):
        return []
    lines = os.fsdecode(text).split("\n")[:-1]
    return [Loan(*fields) for line in lines if len(fields := line.split("\t")) == 4]


def _store(record: str, loans: Sequence[Loan]) -> None:
    """Put a record on disk, whole or not at all. Only who holds the lock may: there is one name for what is unfinished."""
    content = os.fsencode("".join(loan.line() for loan in loans))
    folder = os.path.dirname(record)
    scratch = os.path.join(folder, ".unfinished")
    descriptor = os.open(scratch, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(scratch, record)
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _remove(record: str) -> None:
    try:
        os.unlink(record)
    except FileNotFoundError:
        return


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read().strip()


def _write(path: str, text: str) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(text.encode())
