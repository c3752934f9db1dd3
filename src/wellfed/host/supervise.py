"""How are the ranks of one host kept together until the last one ends?"""

from __future__ import annotations

import os
import select
import sys
import time

from wellfed.host import syscalls
from wellfed.host.guard import Guard
from wellfed.host.launch import (
    Order,
    Signals,
    confirm_running,
    current_signals,
    fork_child,
    open_gate,
    prepared,
)
from wellfed.host.lines import Sink, Stream
from wellfed.host.rank import Rank
from wellfed.host.signals import exit_code_of, forwarded, say_code, signal_name
from wellfed.model.errors import LaunchError
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Sequence
    from typing import Any

    from wellfed.host.feed import Feed
else:
    import _signal

SIGINFO_BYTES = 128
"""struct signalfd_siginfo, include/uapi/linux/signalfd.h"""

SI_KERNEL = 0x80
"""si_code of a signal that no process sent, such as the terminal's interrupt (include/uapi/asm-generic/siginfo.h)."""

ENDING = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT)
"""After one of these the job is ending in its own time: a checkpoint may be written, nothing is killed."""

INTERRUPTS_TO_KILL, HAMMERING_SECONDS = 3, 2.0
"""Whoever presses Ctrl-C so often in so short a time wants the job gone."""

IDLE_SECONDS = 0.2
"""A part of a line is shown when its rank wrote nothing more for so long."""

DRAIN_SECONDS = 1.0
"""After the last rank, so long for output that something outside the groups may still hold open."""


class Task(Value):
    """Something to do while the ranks run."""

    due_seconds: float
    """After the start of the last rank."""
    act: Callable[[], None]
    every_seconds: float | None = None
    """None: once."""


class Ending(Value):
    """How a job ended."""

    exit_code: int
    """0, or that of the first rank that failed: its own code, or 128 plus the signal that ended it."""
    seconds: float
    codes: tuple[int | None, ...]
    """Of each rank in the order they were started."""
    first_failed: int | None = None
    """Position of the rank that ended the others, None where none did."""
    asked: str | None = None
    """The signal that asked the job to end, ``SIGTERM``; None where nobody asked."""


class Supervisor:
    """The parent of the ranks: passes on their output and our signals, and ends all when one fails.

    Use it as a context: while it is open this process takes signals as data, and afterwards as before.
    """

    def __init__(self, *, grace_seconds: float, say: Callable[[str], None]) -> None:
        """Take how long ranks may take to end by themselves, and where a sentence about them goes."""
        self._grace_seconds = grace_seconds
        self._say = say
        self._ranks: list[Rank] = []
        self._streams: list[Stream] = []
        self._sinks: list[Sink] = []
        self._tasks: list[tuple[float, Task]] = []
        self._feed: Feed | None = None
        self._guard: Guard | None = None
        self._begun = time.monotonic()
        self._first_failed: int | None = None
        self._asked: str | None = None
        self._interrupts: list[float] = []
        self._impatient = False
        self._kill_at: float | None = None
        self._deadline: float | None = None
        self._descriptor = -1
        self._signals = Signals((), ())

    def __enter__(self) -> Supervisor:
        """Take signals as data."""
        self._signals = current_signals()
        taken = {*forwarded(self._signals.ignored), _signal.SIGCHLD}
        try:
            syscalls.prctl_subreaper()
            self._descriptor = syscalls.signal_descriptor(taken)
        except OSError as refusal:
            raise LaunchError(
                f"this system does not let a process look after others: {refusal.strerror}",
                remedy="start one process without --verify, --watch and --ranks, or leave the sandbox",
            ) from None
        # Where SIGCHLD is ignored the kernel throws exit codes away.
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_BLOCK, taken)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing that was started here, whatever went wrong, and take signals as before."""
        self.end_all()
        for stream in self._streams:
            stream.close()
        if self._feed is not None:
            self._feed.close()
        if self._guard is not None:
            self._guard.dismiss()
        os.close(self._descriptor)
        syscalls.prctl_subreaper(0)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._signals.blocked)
        if _signal.SIGCHLD in self._signals.ignored:
            _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)

    def end_all(self) -> None:
        """Kill what still runs and wait for it."""
        for rank in self._ranks:
            rank.send(_signal.SIGKILL)
        for rank in self._ranks:
            rank.wait()
            rank.look_at_group()
            rank.send(_signal.SIGKILL)

    def guard(self, give_back: Callable[[], None]) -> None:
        """Start a second process that ends every rank and gives back what was changed, should this one be killed.

        The kernel kills the ranks themselves (PDEATHSIG); what they have started it does not.
        """
        self._guard = Guard(give_back)

    def launch(self, order: Order, streams: Sequence[Stream] = ()) -> Rank:
        """Start one rank, which prepares itself and waits to be released."""
        rank = Rank(fork_child(order, self._signals), own_group=order.own_group)
        self._ranks.append(rank)
        self._streams += streams
        for stream in streams:
            if stream.sink not in self._sinks:
                self._sinks.append(stream.sink)
        if self._guard is not None and order.own_group:
            self._guard.watch(rank.pid)
        return rank

    def prepared(self) -> list[Any]:
        """Wait until every rank is prepared and return what each reports; the first refusal is raised."""
        return [prepared(rank.child) for rank in self._ranks]

    def release(self) -> None:
        """Let all ranks become their commands; LaunchError where the kernel would not execute one."""
        for rank in self._ranks:
            open_gate(rank.child)
        for rank in self._ranks:
            confirm_running(rank.child)

    def feed(self, feed: Feed) -> None:
        """Pass on what is typed to one rank."""
        self._feed = feed

    def run(self, tasks: Sequence[Task] = ()) -> Ending:
        """Wait until every rank has ended and its output is written; return how it ended."""
        self._begun = time.monotonic()
        self._tasks = [(self._begun + task.due_seconds, task) for task in tasks]
        while not self._is_over():
            self._act()
            self._poll()
        for stream in self._streams:
            stream.close()
        while any(sink.waiting for sink in self._sinks) and not self._impatient:
            self._poll()
        failed = self._first_failed
        code = 0 if failed is None else self._ranks[failed].code or 0
        codes = tuple(rank.code for rank in self._ranks)
        seconds = time.monotonic() - self._begun
        return Ending(code, seconds, codes, self._first_failed, self._asked)

    @property
    def running(self) -> bool:
        """Whether any rank runs."""
        return any(rank.code is None for rank in self._ranks)

    def _is_over(self) -> bool:
        """Say whether nothing is left to wait for: no rank, none of a rank's group, no output."""
        if self.running:
            return False
        if self._impatient:
            return True
        if not all(rank.group_gone for rank in self._ranks):
            return False
        if all(stream.ended for stream in self._streams):
            return True
        if self._deadline is None:
            self._deadline = time.monotonic() + DRAIN_SECONDS
        return time.monotonic() >= self._deadline

    def _act(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._send(_signal.SIGKILL)
        if not self.running:
            return
        due = [entry for entry in self._tasks if entry[0] <= now]
        for entry in due:
            self._tasks.remove(entry)
            entry[1].act()
            if entry[1].every_seconds is not None:
                self._tasks.append((time.monotonic() + entry[1].every_seconds, entry[1]))

    def _poll(self) -> None:
        """Wait for signals, output, a reader that takes more, or the next thing that is due."""
        for stream in self._streams:
            if stream.sink.broken:
                stream.close()
        listening = [each for each in self._streams if not each.ended and not each.sink.full]
        ready = self._wait(listening)
        if self._descriptor in ready:
            self._read_signals()
        heard = [stream.read_some() for stream in listening if stream.descriptor in ready]
        if not any(heard):
            for stream in listening:
                stream.flush()
        for sink in self._sinks:
            if sink.waiting and sink.descriptor in ready:
                sink.write_some()
        if self._feed is not None:
            self._feed.pass_on(ready)

    def _wait(self, listening: Sequence[Stream]) -> dict[int, int]:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        for stream in listening:
            poll.register(stream.descriptor, select.POLLIN)
        for sink in self._sinks:
            if sink.waiting:
                poll.register(sink.descriptor, select.POLLOUT)
        if self._feed is not None:
            self._feed.register(poll)
        return dict(poll.poll(self._timeout_milliseconds()))

    def _timeout_milliseconds(self) -> int | None:
        now = time.monotonic()
        moments = [due for due, _ in self._tasks] if self.running else []
        moments += [each for each in (self._kill_at, self._deadline) if each is not None]
        if any(stream.pending for stream in self._streams):
            moments.append(now + IDLE_SECONDS)
        return None if not moments else max(0, int(1000 * (min(moments) - now)) + 1)

    def _read_signals(self) -> None:
        try:
            content = os.read(self._descriptor, 64 * SIGINFO_BYTES)
        except BlockingIOError:
            return
        for at in range(0, len(content), SIGINFO_BYTES):
            number = _integer(content, at)
            if number == _signal.SIGCHLD:
                self._reap()
            else:
                self._take(number, sent_by_kernel=_integer(content, at + 8) == SI_KERNEL)

    def _take(self, number: int, *, sent_by_kernel: bool) -> None:
        """Pass a signal on. One from the terminal went to the whole foreground group: who shares ours has it already."""
        if number in ENDING:
            self._asked = self._asked or signal_name(number)
            if not self.running or self._is_hammered(number):
                self._impatient = True
                self._send(_signal.SIGKILL)
                return
        for rank in self._ranks:
            if rank.own_group or not sent_by_kernel:
                rank.send(number)
        if number == _signal.SIGTSTP:
            os.kill(os.getpid(), _signal.SIGSTOP)
        elif number == _signal.SIGCONT and self._feed is not None:
            self._feed.resume()

    def _is_hammered(self, number: int) -> bool:
        """Say whether somebody presses Ctrl-C again and again; an interactive command is left to answer that itself."""
        now = time.monotonic()
        self._interrupts = [at for at in self._interrupts if now - at < HAMMERING_SECONDS]
        if number == _signal.SIGINT and any(rank.own_group for rank in self._ranks):
            self._interrupts.append(now)
        return len(self._interrupts) >= INTERRUPTS_TO_KILL

    def _reap(self) -> None:
        """Wait for every child that has ended: ranks, the guard, and orphans of ranks."""
        by_pid = {rank.pid: (i, rank) for i, rank in enumerate(self._ranks) if rank.code is None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in by_pid:
                position, rank = by_pid[pid]
                rank.code = exit_code_of(status)
                self._note_end(position, rank.code)
        for rank in self._ranks:
            rank.look_at_group()
            if rank.group_gone and self._guard is not None:
                self._guard.forget(rank.pid)
        if not self.running and self._kill_at is None:
            # What ranks left behind ends with the job.
            leftover = [rank for rank in self._ranks if not rank.group_gone]
            for rank in leftover:
                rank.send(_signal.SIGTERM)
            if leftover:
                self._kill_at = time.monotonic() + self._grace_seconds

    def _note_end(self, position: int, code: int) -> None:
        """Begin to end the others when the first rank fails, unless the whole job was asked to end."""
        if code == 0 or self._first_failed is not None:
            return
        self._first_failed = position
        others = [rank for rank in self._ranks if rank.code is None]
        if others and self._asked is None:
            self._say(
                f"rank {position} {say_code(code)} after {time.monotonic() - self._begun:.1f} s: "
                f"ending the other {len(others)}, within {self._grace_seconds:g} s"
            )
            self._send(_signal.SIGTERM)
            self._kill_at = time.monotonic() + self._grace_seconds

    def _send(self, number: int) -> None:
        for rank in self._ranks:
            rank.send(number)


def _integer(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 4], "little" if sys.byteorder == "little" else "big")
