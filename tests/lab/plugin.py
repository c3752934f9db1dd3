"""How do tests marked ``lab`` run inside a guest, and come back as ordinary results?

``@pytest.mark.lab("4n")`` runs a test as root in a guest of that topology; ``@pytest.mark.lab("2n", append="isolcpus=2")`` boots
one with other kernel arguments. All tests of one guest share one boot: the guest runs pytest on their node ids, writes
each report as a line of JSON, and the host replays them. Several topologies parametrise the fixture ``topology``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
import threading

import pytest

from tests.lab import guest, kernel, topology

INSIDE = "WELLFED_LAB_GUEST"
REQUIRED = "WELLFED_LAB"
"""``require``: a lab that cannot run is a failure. ``off``: skip. Else it is skipped with the reason."""
TIMEOUT_SECONDS = 420
REPORTS = "reports.jsonl"
# Every import is slow in a guest: only the plug-ins that the tests there need.
GUEST_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@dataclasses.dataclass(frozen=True)
class GuestKind:
    """What makes two tests share a guest."""

    topology: str
    append: str = ""
    modules: str = ""


def kind_of(item: pytest.Item) -> GuestKind | None:
    """Say which guest a test wants, None where it wants none."""
    marker = item.get_closest_marker("lab")
    if marker is None:
        return None
    chosen = getattr(item, "callspec", None)
    name = chosen.params.get("topology", marker.args[0]) if chosen else marker.args[0]
    return GuestKind(name, **marker.kwargs)


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker; be the host's half or the guest's half."""
    config.addinivalue_line("markers", "lab(*topologies, append='', modules=''): run as root inside a QEMU guest")
    if not os.environ.get(INSIDE):
        config.pluginmanager.register(Host(config), "lab-host")
    elif config.getoption("--lab-reports"):
        config.pluginmanager.register(Inside(config, pathlib.Path(config.getoption("--lab-reports"))), "lab-inside")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which the guest is told where its reports go."""
    parser.addoption("--lab-reports", help="inside a guest: write reports here (used by the lab itself)")


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

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write one report."""
        told = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        with self.path.open("a") as reports:
            reports.write(json.dumps(told) + "\n")


class Host:
    """The host's half: boot each guest when its first test comes, and replay its reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.items: dict[GuestKind, list[pytest.Item]] = {}
        self.reports: dict[GuestKind, dict[str, list[pytest.TestReport]]] = {}
        self.outcomes: dict[GuestKind, guest.Outcome | None] = {}
        self.unavailable: str | None = None
        self.kernel: kernel.Kernel | None = None
        self.workers: dict[GuestKind, threading.Thread] = {}
        self.seats = threading.Semaphore(2 if _free_memory_mib() > 8192 else 1)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests of one guest side by side, after all others."""
        order: dict[GuestKind, int] = {}
        for item in items:
            kind = kind_of(item)
            if kind is not None:
                order.setdefault(kind, len(order) + 1)
        items.sort(key=lambda item: order.get(kind_of(item), 0) if kind_of(item) else 0)

    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Know all tests of each guest, and start to boot while other tests run."""
        if session.config.option.collectonly:
            return
        for item in session.items:
            kind = kind_of(item)
            if kind is not None:
                self.items.setdefault(kind, []).append(item)
        if not self.items:
            return
        self.unavailable = self._prepare()
        if self.unavailable:
            return
        for kind in self.items:
            worker = threading.Thread(target=self._run_guest, args=(kind,), name=f"lab {kind.topology}", daemon=True)
            self.workers[kind] = worker
            worker.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Replay what the guest reported of this test."""
        kind = kind_of(item)
        if kind is None:
            return None
        if self.unavailable is None:
            self.workers[kind].join()
        reports = self.reports.get(kind, {}).get(item.nodeid) or [self._missing(item, kind)]
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was booted."""
        for kind, outcome in self.outcomes.items():
            if outcome is not None:
                boot = "" if outcome.boot_seconds is None else f"booted in {outcome.boot_seconds:.0f} s, "
                again = f", {outcome.boots} boots" if outcome.boots > 1 else ""
                terminalreporter.write_line(
                    f"lab: {kind.topology} {kind.append}{boot}{len(self.items[kind])} tests "
                    f"in {outcome.wall_seconds:.0f} s{again}"
                )

    def _prepare(self) -> str | None:
        if os.environ.get(REQUIRED) == "off":
            return f"{REQUIRED}=off"
        if os.geteuid():
            return "the lab shares the whole root with its guest: run as root"
        try:
            self.kernel = kernel.prepare()
        except kernel.LabUnavailableError as reason:
            return str(reason)
        return None

    def _run_guest(self, kind: GuestKind) -> None:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="wellfed-lab-out-"))
        assert self.kernel is not None
        try:
            (folder / "tests").write_text("".join(f"{item.nodeid}\n" for item in self.items[kind]))
            with self.seats:
                self.outcomes[kind] = outcome = guest.run(
                    self.kernel,
                    topology.read(kind.topology),
                    [*_python(self.config), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-c", str(self.config.inipath),
                     "--rootdir", str(self.config.rootpath), f"--lab-reports=/lab/{REPORTS}", "@/lab/tests"],
                    folder=folder,
                    environment=GUEST_ENVIRONMENT | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
                    kernel_arguments=kind.append,
                    modules=[module for module in kind.modules.split(",") if module],
                    timeout_seconds=TIMEOUT_SECONDS,
                )  # fmt: skip
            self.reports[kind] = self._read(folder / REPORTS)
            for measured in folder.glob(".coverage*"):
                shutil.copy(measured, self.config.rootpath / f"{measured.name}.lab-{kind.topology}")
            self.outcomes[kind] = dataclasses.replace(outcome, folder=pathlib.Path())
        except topology.TopologyMistakeError as mistake:
            self.outcomes[kind] = None
            self.unavailable = str(mistake)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _read(self, path: pathlib.Path) -> dict[str, list[pytest.TestReport]]:
        reports: dict[str, list[pytest.TestReport]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                told = json.loads(line)
            except json.JSONDecodeError:
                continue  # the line a dying guest was writing; its test is reported as missing
            report = self.config.hook.pytest_report_from_serializable(config=self.config, data=told)
            reports.setdefault(report.nodeid, []).append(report)
        return {nodeid: found for nodeid, found in reports.items() if any(r.when == "teardown" for r in found)}

    def _missing(self, item: pytest.Item, kind: GuestKind) -> pytest.TestReport:
        """Skip with the reason where there is no lab; fail where the guest did not report."""
        if self.unavailable and os.environ.get(REQUIRED) != "require":
            path, line, _ = item.location
            told: object = (path, line or 0, f"Skipped: no lab: {self.unavailable}")
            return pytest.TestReport(item.nodeid, item.location, {}, "skipped", told, "setup")
        outcome = self.outcomes.get(kind)
        why = self.unavailable or (outcome.reason() if outcome else "the guest did not start")
        told = f"the guest {kind.topology} gave no report of this test: {why}"
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", told, "call")


def _python(config: pytest.Config) -> list[str]:
    """Give the interpreter, under coverage where the host's run is."""
    if os.environ.get("COVERAGE_RUN") or config.pluginmanager.hasplugin("_cov"):
        return [sys.executable, "-m", "coverage", "run", "--parallel-mode", "--data-file=/lab/.coverage"]
    return [sys.executable]


def _free_memory_mib() -> int:
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return 0
