"""How much CPU or memory may a process have, by a control group of its own, in cgroup v1 or v2?"""

from __future__ import annotations

import os
import pathlib
import signal
import time
from types import TracebackType

PERIOD_MICROSECONDS = 100_000


class NoGroupError(Exception):
    """A control group cannot be made here; the message says why."""


class Group:
    """A control group for one test; all in it is killed and it is removed at the end of the ``with`` block."""

    def __init__(self, controller: str, name: str = "wellfed-fault") -> None:
        """Take ``cpu``, ``memory`` or ``cpuset``; the group is made on entering."""
        self.controller = controller
        self.name = f"{name}-{os.getpid()}"
        self.enabled = False

    def __enter__(self) -> Group:
        self.parent, self.version = _parent(self.controller)
        if self.version == 2:
            handed = self.parent / "cgroup.subtree_control"
            if self.controller not in handed.read_text().split():
                _write(handed, f"+{self.controller}")
                self.enabled = True
        self.path = self.parent / self.name
        try:
            self.path.mkdir()
        except OSError as refusal:
            self._hand_back()
            raise NoGroupError(f"no right to make a cgroup: {refusal}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        deadline = time.monotonic() + 10
        while self.path.exists():
            for pid in self.members():
                os.kill(pid, signal.SIGKILL)
            try:
                self.path.rmdir()
            except OSError:
                # Killed processes leave it when they are torn down.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._hand_back()

    def members(self) -> list[int]:
        """Give the processes in it."""
        return [int(word) for word in (self.path / "cgroup.procs").read_text().split()]

    def add(self, pid: int) -> None:
        """Move a process into it."""
        _write(self.path / "cgroup.procs", str(pid))

    def write(self, name: str, text: str) -> None:
        """Write one of its files."""
        _write(self.path / name, text)

    def limit_cpu(self, num_cpus: float) -> None:
        """Let all processes in it together have so many CPUs' time."""
        quota = int(num_cpus * PERIOD_MICROSECONDS)
        if self.version == 2:
            self.write("cpu.max", f"{quota} {PERIOD_MICROSECONDS}")
        else:
            self.write("cpu.cfs_period_us", str(PERIOD_MICROSECONDS))
            self.write("cpu.cfs_quota_us", str(quota))

    def limit_memory(self, size_bytes: int) -> None:
        """Let all processes in it together have so much memory; beyond it the kernel swaps, or kills."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        self.write(name, str(size_bytes))

    def _hand_back(self) -> None:
        if self.enabled:
            _write(self.parent / "cgroup.subtree_control", f"-{self.controller}")


def _parent(controller: str) -> tuple[pathlib.Path, int]:
    unified = pathlib.Path("/sys/fs/cgroup/cgroup.controllers")
    if unified.exists() and controller in unified.read_text().split():
        return unified.parent, 2
    legacy = pathlib.Path("/sys/fs/cgroup") / controller
    if (legacy / "cgroup.procs").exists():
        return legacy, 1
    raise NoGroupError(f"needs the {controller} controller of cgroup v2 or v1")


def _write(path: pathlib.Path, text: str) -> None:
    try:
        path.write_text(text)
    except PermissionError as refusal:
        raise NoGroupError(f"no right to write {path}: {refusal}") from None
    except OSError as refusal:
        if refusal.filename is None:
            refusal.filename = str(path)
        raise
