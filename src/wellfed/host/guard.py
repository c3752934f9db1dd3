"""Who ends the ranks and gives back what was changed when their parent is killed?"""

from __future__ import annotations

import os

from wellfed.model.errors import WellfedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from typing import NoReturn
else:
    import _signal

GOODBYE = b"done"
NAME = b"wellfed-guard"
"""Shown by ps and top; the kernel keeps 15 bytes."""


class Guard:
    """A second process that sleeps until its parent ends, and cleans up unless the parent said goodbye.

    The kernel kills each rank when the parent is gone (PDEATHSIG), but not what a rank has started: those are found by
    their process group. The guard leads a session of its own, so that what is aimed at the job misses it.
    """

    def __init__(self, give_back: Callable[[], None]) -> None:
        """Start it. Signals that the parent reads as data are blocked, so they are in the guard, too."""
        reader, self._writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _be_guard(reader, give_back)
        os.close(reader)
        self._watched: set[int] = set()

    def watch(self, group: int) -> None:
        """Name a process group that ends with the parent."""
        self._watched.add(group)
        self._tell(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        """Say that nothing of a group is left: its number may soon be a stranger's."""
        if group in self._watched:
            self._watched.remove(group)
            self._tell(b"-%d\n" % group)

    def dismiss(self) -> None:
        """End the guard: everything is cleaned up."""
        self._tell(GOODBYE)
        os.close(self._writer)
        try:
            os.waitpid(self._pid, 0)
        except ChildProcessError:
            # Somebody killed it, and it was waited for together with the ranks.
            return

    def _tell(self, words: bytes) -> None:
        try:
            os.write(self._writer, words)
        except BrokenPipeError:
            # It was killed; the ranks keep their PDEATHSIG.
            return


def _be_guard(reader: int, give_back: Callable[[], None]) -> NoReturn:
    try:
        os.setsid()
        _let_go(reader)
        _name_self()
        groups, parent_said_goodbye = _listen(reader)
        if not parent_said_goodbye:
            for group in groups:
                _kill(group)
            give_back()
    except (OSError, WellfedError):
        # Nobody is left who could be told; the record of what was changed stays for the next launch.
        os._exit(1)
    finally:
        os._exit(0)


def _listen(reader: int) -> tuple[set[int], bool]:
    """Follow the parent's words until the pipe closes, which the kernel does even for a parent that is killed."""
    said = b""
    while chunk := os.read(reader, 4096):
        said += chunk
    groups: set[int] = set()
    for line in said.split(b"\n"):
        if line[:1] == b"+":
            groups.add(int(line[1:]))
        elif line[:1] == b"-":
            groups.discard(int(line[1:]))
    return groups, said.endswith(GOODBYE)


def _let_go(kept: int) -> None:
    """Hold nothing open that others wait to see closed."""
    silence = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(silence, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            try:
                os.close(int(name))
            except OSError:
                # The descriptor of the listing itself.
                continue


def _name_self() -> None:
    try:
        with open("/proc/self/comm", "wb", buffering=0) as comm:
            comm.write(NAME)
    except OSError:
        return


def _kill(group: int) -> None:
    try:
        os.killpg(group, _signal.SIGKILL)
    except OSError:
        # All of it is gone.
        return
