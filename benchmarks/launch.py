"""What does launching through wellfed cost, beside Python itself, numactl and hwloc-bind?

python benchmarks/launch.py [ROUNDS]

Every round runs each command once, in a shuffled order, so that drift falls on all alike. Ratios are of medians.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time

BESIDE = os.path.join(os.path.dirname(sys.executable), "wellfed")
WELLFED = BESIDE if os.path.exists(BESIDE) else shutil.which("wellfed") or BESIDE
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "wellfed run -- true": [WELLFED, "run", "--quiet", "--", "true"],
    "python -m wellfed run -- true": [
        sys.executable,
        "-m",
        "wellfed",
        "run",
        "--quiet",
        "--",
        "true",
    ],
    "wellfed run --ranks 8 -- true": [WELLFED, "run", "--quiet", "--ranks", "8", "--", "true"],
    "true": ["true"],
    "numactl -N0 -m0 true": ["numactl", "-N0", "-m0", "true"],
    "hwloc-bind node:0 -- true": ["hwloc-bind", "node:0", "--membind", "node:0", "--", "true"],
    "python -c 'import wellfed'": [sys.executable, "-c", "import wellfed"],
}


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    known = {name: command for name, command in COMMANDS.items() if shutil.which(command[0])}
    for absent in COMMANDS.keys() - known.keys():
        print(f"not measured, not installed: {absent}")
    taken: dict[str, list[float]] = {name: [] for name in known}
    for _ in range(rounds):
        for name in random.sample(list(known), len(known)):
            begun = time.perf_counter()
            subprocess.run(
                known[name], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            taken[name].append(1e3 * (time.perf_counter() - begun))
    bare = statistics.median(taken["python -c pass"])
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, {rounds} rounds, load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'command':32} {'median ms':>9}  {'p10-p90 ms':>13}  {'x python':>8}")
    for name, times in sorted(taken.items(), key=lambda item: statistics.median(item[1])):
        tenths = statistics.quantiles(times, n=10)
        median = statistics.median(times)
        print(f"{name:32} {median:9.1f}  {tenths[0]:6.1f}-{tenths[8]:6.1f}  {median / bare:8.2f}")


if __name__ == "__main__":
    main()
