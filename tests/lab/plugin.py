"""How do tests marked ``lab`` run inside a guest, and come back as ordinary results?

``@pytest.mark.lab("4n")`` runs a test as root in a guest of that topology; ``@pytest.mark.lab("2n", append="isolcpus=2")`` boots
one with other kernel arguments. All tests of one guest share one boot: the guest runs pytest on their node ids, writes
each report as a line of JSON, and the host replays them as they come. Several topologies parametrise the fixture
``topology``. Under pytest-xdist the first worker that needs a guest boots it for all.
"""

from __future__ import annotations

import json
import os
import pathlib

import pytest

INSIDE = "WELLFED_LAB_GUEST"
"""Set inside a guest, to the name of its topology."""


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker; be the host's half or the guest's half."""
    config.addinivalue_line(
        "markers", "lab(*topologies, append='', modules=''): run as root inside a QEMU guest"
    )
    if os.environ.get(INSIDE):
        if config.getoption("--lab-reports"):
            reports = pathlib.Path(config.getoption("--lab-reports"))
            config.pluginmanager.register(Inside(config, reports), "lab-inside")
        return
    # Slow to import, and not needed in a guest.
    from tests.lab.host import Host

    config.pluginmanager.register(Host(config), "lab-host")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which the guest is told where its reports go."""
    parser.addoption(
        "--lab-reports", help="inside a guest: write reports here (used by the lab itself)"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that names several topologies one case for each."""
    marker = next(metafunc.definition.iter_markers("lab"), None)
    if marker is not None and "topology" in metafunc.fixturenames:
        metafunc.parametrize("topology", marker.args)


class Inside:
    """The guest's half: write each report as it comes, so that a guest that dies keeps what it had."""

    def __init__(self, config: pytest.Config, path: pathlib.Path) -> None:
        self.config = config
        self.path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write that a test begins: it is the one to blame when nothing follows."""
        self._write({"begins": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write one report."""
        self._write(
            self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        )

    def _write(self, told: dict) -> None:
        with self.path.open("a") as reports:
            reports.write(json.dumps(told) + "\n")
