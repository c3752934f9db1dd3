"""How does one command run in a guest of its own?"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from tests.lab import programs
from tests.lab.accelerator import boots_under_kvm
from tests.lab.kernel import Kernel
from tests.lab.machine import qemu_arguments
from tests.lab.topology import Topology

HIDDEN = ("/tmp", "/run", "/dev/shm")
"""Folders that the guest has for itself."""
GUEST_DIED = 125
TIMED_OUT = 124
BOOT_SECONDS = 90
"""A guest that has not reached its command by then hangs: seen once in dozens of boots of 16 CPUs on two busy cores."""
BOOTS = 3
PREFIX = "wellfed-lab-"
"""Temporary folders are called PREFIX, process number, random letters."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command in a guest ended."""

    exit_code: int
    """The command's own; 124 timed out, 125 the guest died or never reported."""
    stdout: str
    stderr: str
    console: str
    boot_seconds: float | None
    wall_seconds: float
    folder: pathlib.Path
    """What the guest wrote under ``/lab``."""
    boots: int = 1
    """How often it was started; more than 1 means that earlier boots hung before the command began."""

    def reason(self) -> str:
        """Say what a person needs to see when the guest itself failed."""
        written = "\n".join(
            part
            for part in (self.stdout[-2000:], self.stderr[-2000:], self.console[-2000:])
            if part
        )
        return f"exit {self.exit_code} after {self.wall_seconds:.0f} s\n{written}"


@contextlib.contextmanager
def scratch() -> Iterator[pathlib.Path]:
    """Give a temporary folder, and remove it."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_over() -> None:
    """Remove temporary folders of runs that were killed before they could."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not pathlib.Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def run(
    kernel: Kernel,
    topology: Topology,
    command: Sequence[str],
    *,
    folder: pathlib.Path,
    environment: Mapping[str, str] | None = None,
    kernel_arguments: str = "",
    modules: Sequence[str] = (),
    timeout_seconds: float = 300,
    follow: bool = False,
    stop: threading.Event | None = None,
) -> Outcome:
    """Boot, run the command as root in the current folder, and end the guest. ``folder`` is the guest's ``/lab``.

    ``stop`` ends it early, from another thread.
    """
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    accelerator = ("-accel", "tcg,thread=multi,tb-size=256")
    calm = f"tsc=reliable tsc_early_khz={programs.ticks_khz()}"
    if boots_under_kvm(kernel):
        accelerator, calm = ("-accel", "kvm"), ""
    ended, boots = "hung", 0
    while ended == "hung" and boots < BOOTS:
        boots += 1
        _write_command(kernel, topology, command, folder, environment or {}, modules)
        with scratch() as disks:
            arguments = qemu_arguments(
                kernel,
                topology,
                folder=folder,
                disks=disks,
                accelerator=accelerator,
                kernel_arguments=f"{calm} {kernel_arguments}",
            )
            ended = _boot(
                arguments,
                folder,
                begun + timeout_seconds,
                follow=follow,
                stop=stop or threading.Event(),
            )
    return _outcome(
        folder, timed_out=ended != "ended", wall_seconds=time.monotonic() - begun, boots=boots
    )


def _boot(
    arguments: list[str],
    folder: pathlib.Path,
    deadline: float,
    *,
    follow: bool,
    stop: threading.Event,
) -> str:
    """Start a guest and end it: ``ended`` by itself, ``late`` at the deadline, ``hung`` before its command began."""
    with (folder / "qemu.log").open("wb") as log:
        # In a group of its own, so that Ctrl-C reaches us and we end the guest; killed ourselves, it dies with us.
        guest = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            return _wait(guest, folder, deadline, follow=follow, stop=stop)
        finally:
            if guest.poll() is None:
                os.killpg(guest.pid, signal.SIGKILL)
            guest.wait()


def _write_command(
    kernel: Kernel,
    topology: Topology,
    command: Sequence[str],
    folder: pathlib.Path,
    environment: Mapping[str, str],
    modules: Sequence[str],
) -> None:
    for name in ("exit_code", "boot_seconds"):
        (folder / name).unlink(missing_ok=True)
    for name in ("stdout", "stderr"):
        (folder / name).write_bytes(b"")
    (folder / "bound").write_text("".join(f"{path}\n" for path in bound_folders()))
    (folder / "kernel_root").write_text(str(kernel.root))
    path = f"{pathlib.Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    exports = {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", "WELLFED_LAB_GUEST": topology.name}
    lines = [
        f"export {name}={shlex.quote(text)}" for name, text in (exports | dict(environment)).items()
    ]
    lines += [f"modprobe {shlex.quote(module)} || exit 125" for module in modules]
    if any(device.kind == "gpu" for device in topology.devices):
        lines.append(f"insmod {shlex.quote(str(kernel.modules / 'fakegpu.ko'))} || exit 125")
    lines += [
        f"echo 0 >/sys/devices/system/cpu/cpu{cpu}/online || exit 125" for cpu in topology.offline
    ]
    lines += [
        f"cd {shlex.quote(str(pathlib.Path.cwd()))} || exit 125",
        f"exec {shlex.join(command)}",
    ]
    (folder / "command").write_text("\n".join(lines) + "\n")


def bound_folders() -> list[str]:
    """Name what a command needs and the guest's own /tmp would hide: checkout, interpreter, import path, corpus, cache."""
    needed = {
        str(pathlib.Path.cwd()),
        sys.prefix,
        sys.base_prefix,
        str(programs.cache_folder()),
        os.environ.get("WELLFED_CORPUS", ""),
        *sys.path,
    }
    hidden = tuple(f"{folder}/" for folder in HIDDEN)
    wanted = sorted(
        path for path in needed if path.startswith(hidden) and pathlib.Path(path).is_dir()
    )
    # A folder below another one comes with it.
    return [p for p in wanted if not any(p.startswith(f"{other}/") for other in wanted)]


def _wait(
    guest: subprocess.Popen[bytes],
    folder: pathlib.Path,
    deadline: float,
    *,
    follow: bool,
    stop: threading.Event,
) -> str:
    shown = {"stdout": 0, "stderr": 0}
    boot_deadline = time.monotonic() + BOOT_SECONDS
    while True:
        ended = guest.poll() is not None or (folder / "exit_code").exists()
        now = time.monotonic()
        hung = now > boot_deadline and not (folder / "boot_seconds").exists()
        if follow:
            for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
                shown[name] += _pass_on(folder / name, shown[name], stream)
        if ended or hung or now > deadline:
            return "ended" if ended else "late" if now > deadline else "hung"
        if stop.wait(0.1):
            return "late"


def _pass_on(path: pathlib.Path, offset: int, stream: TextIO) -> int:
    with path.open("rb") as source:
        source.seek(offset)
        fresh = source.read()
    stream.buffer.write(fresh)
    stream.flush()
    return len(fresh)


def _outcome(folder: pathlib.Path, *, timed_out: bool, wall_seconds: float, boots: int) -> Outcome:
    def text(name: str) -> str:
        path = folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    reported = text("exit_code").strip()
    booted = text("boot_seconds").strip()
    return Outcome(
        exit_code=int(reported) if reported else TIMED_OUT if timed_out else GUEST_DIED,
        stdout=text("stdout"),
        stderr=text("stderr"),
        console=text("qemu.log") + text("console.log"),
        boot_seconds=float(booted) if booted else None,
        wall_seconds=wall_seconds,
        folder=folder,
        boots=boots,
    )
