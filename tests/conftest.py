"""What do all tests share: recorded hosts, and guests with a real kernel."""

from __future__ import annotations

import os
import pathlib

import pytest

pytest_plugins = [
    "tests.lab.plugin",
    "tests.lab.slurm",
    "tests.lab.fleet",
    "tests.faults.fixtures",
]


@pytest.fixture(scope="session")
def corpus() -> pathlib.Path:
    """Give the folder of recorded hosts with known answers, or skip with the reason."""
    named = os.environ.get("WELLFED_CORPUS")
    if not named:
        pytest.skip("WELLFED_CORPUS is not set: it names the folder of recorded hosts")
    return pathlib.Path(named)
