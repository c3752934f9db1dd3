"""How long does reading a host take, live and recorded, and binding once it is read?

python benchmarks/reading.py [HOST...]      HOST: recordings for --host; the live host is always measured
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time

import wellfed
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
