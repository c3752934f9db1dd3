"""How is a command started with faults put on it, one or several?"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).parent.parent.parent
"""The folder that holds ``tests``."""


def faulty(*words: str) -> list[str]:
    """Give the words that start a command with faults: ``[*faulty("user=nobody"), "id"]``."""
    return [sys.executable, "-m", "tests.faults", *words, "--"]


def run_faulty(
    faults: list[str],
    *command: str,
    timeout: float = 60,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command with faults such as ``readonly=/sys`` or ``drop=sys_nice``; return what it wrote and its code."""
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(":")]
    return subprocess.run(
        [*faulty(*faults), *command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={
            **(os.environ if environment is None else environment),
            "PYTHONPATH": ":".join(p for p in paths if p),
        },
        check=False,
    )
