"""How long does reading a host take, live and recorded, and binding once it is read?

python benchmarks/reading.py [HOST...]      HOST: recordings for --host; the live host is always measured
"""

from __future__ import annotations

import io
import os
import platform
import statistics
import sys
import tarfile
import tempfile
import time

import wellfed
from wellfed.host.archive import open_recording
from wellfed.workflows.machine import machine_of

ROUNDS = 21


def median_ms(act) -> tuple[float, float, float]:
    """Give p10, median and p90 of an act in milliseconds."""
    taken = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        act()
        taken.append(1e3 * (time.perf_counter() - begun))
    tenths = statistics.quantiles(taken, n=10)
    return tenths[0], statistics.median(taken), tenths[8]


def show(what: str, figures: tuple[float, float, float]) -> None:
    print(f"{what:60} {figures[1]:8.2f} ms  ({figures[0]:.2f}-{figures[2]:.2f})")


def opening() -> None:
    """Open 10,000 files from a tar as wellfed does, and as Python's ``tarfile`` does."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for number in range(10_000):
            header = tarfile.TarInfo(f"host/sys/devices/system/cpu/cpu{number}/online")
            header.size = 2
            tar.addfile(header, io.BytesIO(b"1\n"))
    content = made.getvalue()

    def theirs() -> dict[str, bytes]:
        with tarfile.open(fileobj=io.BytesIO(content)) as opened:
            return {m.name: opened.extractfile(m).read() for m in opened}

    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        file.write(content)
        file.flush()
        ours = median_ms(lambda: open_recording(file.name))
    peer = median_ms(theirs)
    show("10,000 files from a tar, opened by wellfed", ours)
    show(f"the same by tarfile: {peer[1] / ours[1]:.1f} times as long", peer)


def main() -> None:
    """Measure and print."""
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, median of {ROUNDS} (p10-p90)"
    )
    machine = machine_of(None)
    show(
        f"live host: {len(machine.cpus)} CPUs, {len(machine.pci)} PCI functions",
        median_ms(lambda: machine_of(None)),
    )
    for where in sys.argv[1:]:
        recorded = machine_of(where)
        size = f"{len(recorded.cpus)} CPUs, {len(recorded.pci)} PCI functions"
        show(
            f"{os.path.basename(where.rstrip('/'))}: {size}",
            median_ms(lambda w=where: machine_of(w)),
        )
    opening()
    allowed = os.sched_getaffinity(0)
    try:
        show(
            "wellfed.bind() of a machine that was read",
            median_ms(lambda: wellfed.bind(machine=machine)),
        )
    finally:
        os.sched_setaffinity(0, allowed)


if __name__ == "__main__":
    main()
