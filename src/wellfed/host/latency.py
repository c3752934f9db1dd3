"""How are a job's cores kept from sleeping too deeply to wake in time?

A core in a deep idle state takes up to hundreds of microseconds to wake (cpuidle's ``exit_latency``): a loader worker
that waits for storage, or the thread that launches kernels, is late by that much each time.
"""

from __future__ import annotations

import errno
import os
import sys

from wellfed.model.errors import LaunchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from wellfed.model.cpuset import CpuSet

PER_CPU = "/sys/devices/system/cpu/cpu{}/power/pm_qos_resume_latency_us"
"""Documentation/ABI/testing/sysfs-devices-power: a limit for one CPU; ``0`` is none, ``n/a`` no latency at all."""

WHOLE_HOST = "/dev/cpu_dma_latency"
"""Documentation/power/pm_qos_interface.rst: holds for all CPUs as long as the file is open."""

NO_LIMIT, NO_LATENCY = "0", "n/a"


def limit_cpus(cpus: CpuSet, microseconds: int, write: Callable[[str, str], None]) -> int | None:
    """Limit the wake-up of some CPUs; return how many, or None where this kernel has no such file for all of them.

    ``write`` is that of `Borrowed`. A limit that is stricter already is kept, and recorded as ours too.
    LaunchError where the file is there and may not be written.
    """
    paths = [PER_CPU.format(cpu) for cpu in cpus]
    if not paths or not all(os.path.exists(path) for path in paths):
        return None
    for path in paths:
        try:
            with open(path, encoding="ascii") as file:
                found = file.read().strip()
            write(path, stricter(found, microseconds))
        except OSError as refusal:
            name = errno.errorcode.get(refusal.errno or 0, "error")
            raise LaunchError(
                f"--cpu-latency {microseconds}: {path} is refused: {name}, {os.strerror(refusal.errno or 0)}",
                remedy="start it as root, or leave --cpu-latency out",
            ) from None
    return len(paths)


def limit_host(microseconds: int) -> None:
    """Limit the wake-up of all CPUs until the job ends: the open file is handed down to its command.

    LaunchError where the file is not there or may not be opened.
    """
    try:
        descriptor = os.open(WHOLE_HOST, os.O_WRONLY)
        os.write(descriptor, microseconds.to_bytes(4, sys.byteorder, signed=True))
        os.set_inheritable(descriptor, True)
    except OSError as refusal:
        name = errno.errorcode.get(refusal.errno or 0, "error")
        raise LaunchError(
            f"--cpu-latency {microseconds}: {WHOLE_HOST} is refused: {name}, {os.strerror(refusal.errno or 0)}",
            remedy="start it as root, or leave --cpu-latency out",
        ) from None


def stricter(found: str, microseconds: int) -> str:
    """Return the lower of a limit that was found and ours, as the kernel writes it."""
    ours = str(microseconds) if microseconds else NO_LATENCY
    if found == NO_LATENCY or (found.isdigit() and found != NO_LIMIT and int(found) < microseconds):
        return found
    return ours
