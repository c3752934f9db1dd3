"""Where do daemons run whose ports, processes, mounts and host name must meet nobody else's, and end with the test?"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Mapping

import pytest

from tests.lab import programs

REQUIRED = "WELLFED_LAB"
"""``require``: what cannot be had is a failure; ``off``: skip; else skip with the reason."""


class UnavailableError(Exception):
    """What the island needs is not here; the message says what to install."""


def give_up(reason: str) -> None:
    """Skip with a reason, or fail where everything must run."""
    if os.environ.get(REQUIRED) == "require":
        pytest.fail(reason)
    pytest.skip(reason)


def require(packages: Mapping[str, str]) -> None:
    """Raise UnavailableError where a program is missing; ``packages`` says which package has it."""
    if os.environ.get(REQUIRED) == "off":
        raise UnavailableError(f"{REQUIRED}=off")
    if os.geteuid():
        raise UnavailableError("namespaces and daemons of their own need root")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = {
        package for program, package in packages.items() if not shutil.which(program, path=path)
    }
    if absent:
        raise UnavailableError(f"not installed: apt-get install {' '.join(sorted(absent))}")


class Island:
    """Namespaces of their own; every process in them ends with the ``with`` block, or with this process."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Island:
        try:
            keeper = programs.program("keeper")
        except programs.NoCompilerError as reason:
            raise UnavailableError(str(reason)) from None
        self.keeper = subprocess.Popen(
            [keeper, self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.keeper.stdout is not None
        told = self.keeper.stdout.readline()
        if not told:
            _, reason = self.keeper.communicate()
            raise UnavailableError(f"no right to make namespaces: {reason.strip()}")
        self.pid = int(told)
        """Its first process, as seen from outside."""
        return self

    def __exit__(self, *_: object) -> None:
        self.keeper.communicate()
        assert not pathlib.Path(f"/proc/{self.pid}").exists()

    def words(self, *command: str) -> list[str]:
        """Give the words that start a command there."""
        return [
            "nsenter",
            f"--target={self.pid}",
            "--mount",
            # Inside a guest, whose root is a chroot, the namespace's own root is another.
            "--root",
            "--wd",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            *command,
        ]

    def run(
        self,
        *command: str,
        check: bool = True,
        timeout: float = 60,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end."""
        done = subprocess.run(
            self.words(*command),
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            env=environment,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(
                f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def processes(self) -> list[str]:
        """Name the programs that run there, its keeper aside."""
        listed = self.run("ps", "-e", "-o", "pid=,comm=").stdout.splitlines()
        found = [line.split(None, 1) for line in listed]
        return [name for pid, name in found if pid != "1" and name != "ps"]

    def show(self, path: str, other: str) -> None:
        """Show another file or folder there in the place of one."""
        self.run("mount", "--bind", other, path)
