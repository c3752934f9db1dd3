"""How does the host's pytest boot guests for its tests, and replay what they report?"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import pickle
import queue
import shutil
import sys
import tempfile
import threading
import time

import pytest

from tests.lab import guest, kernel, programs, topology
from tests.lab.kinds import GuestKind, kind_of

REQUIRED = "WELLFED_LAB"
"""``require``: a lab that cannot run is a failure. ``off``: skip. Else it is skipped with the reason."""
AT_ONCE = "WELLFED_LAB_GUESTS"
"""How many guests may run at once; else 2 where there is memory for them."""
TIMEOUT_SECONDS = 420
"""Of one guest with all its tests."""
TEST_TIMEOUT_SECONDS = 120
"""Of one test in a guest."""
REPORTS = "reports.jsonl"
# Every import is slow in a guest: only the plug-ins that the tests there need.
GUEST_ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
HANDED_ON = ("PYTHONPATH", "WELLFED_CORPUS", REQUIRED)


class GuestRun:
    """One guest of this test run: its tests, and what it has reported of them so far."""

    def __init__(self, kind: GuestKind, items: list[pytest.Item]) -> None:
        self.kind = kind
        self.items = items
        self.over = threading.Event()
        self.outcome: guest.Outcome | None = None
        self.why_not = "it was not started"
        """Why there is no outcome."""
        self.lines: list[dict] = []
        """What the guest has written, in its order."""
        self.fresh = threading.Condition()

    def add(self, lines: list[str]) -> None:
        """Take what the guest wrote; a line cut short by its death is left out."""
        with self.fresh:
            for line in lines:
                try:
                    self.lines.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
            self.fresh.notify_all()

    def end(self) -> None:
        """Let nobody wait any longer."""
        with self.fresh:
            self.over.set()
            self.fresh.notify_all()

    def await_reports(self, nodeid: str) -> list[dict]:
        """Wait for a test's reports, to the last one; empty where the guest ended before."""
        with self.fresh:
            while True:
                found = [line for line in self.lines if line.get("nodeid") == nodeid]
                if any(line.get("when") == "teardown" for line in found):
                    return found
                if self.over.is_set():
                    return []
                self.fresh.wait(1.0)

    def unfinished(self) -> str | None:
        """Name the test during which the guest ended."""
        begun = [line["begins"] for line in self.lines if "begins" in line]
        ended = {line["nodeid"] for line in self.lines if line.get("when") == "teardown"}
        return begun[-1] if begun and begun[-1] not in ended else None


class Host:
    """The host's half: boot the guests that this run's tests need, and replay their reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.runs: dict[GuestKind, GuestRun] = {}
        self.unavailable: str | None = None
        self.kernel: kernel.Kernel | None = None
        self.stop = threading.Event()
        self.workers: list[threading.Thread] = []
        self.begun: set[GuestKind] = set()
        self.unbooted: list[GuestRun] = []

    @property
    def is_xdist_worker(self) -> bool:
        """One of several processes that share the tests, and the guests."""
        return hasattr(self.config, "workerinput")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests of one guest side by side, after all others; waiting for a guest is no test's time."""
        order: dict[GuestKind, int] = {}
        for item in items:
            kind = kind_of(item)
            if kind is not None:
                order.setdefault(kind, len(order) + 1)
                if self.config.pluginmanager.hasplugin("timeout"):
                    item.add_marker(pytest.mark.timeout(0))
        items.sort(key=lambda item: order.get(kind_of(item), 0) if kind_of(item) else 0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Know all tests of each guest."""
        if session.config.option.collectonly:
            return
        for item in session.items:
            kind = kind_of(item)
            if kind is not None:
                self.runs.setdefault(kind, GuestRun(kind, [])).items.append(item)
        if not self.runs:
            return
        self.unavailable = self._prepare()
        if self.unavailable or self.is_xdist_worker:
            return
        # The one with most tests takes longest.
        self.unbooted = sorted(self.runs.values(), key=lambda run: -len(run.items))

    def _boot(self) -> None:
        """Start to boot at the first test that needs a guest: earlier tests count the children of this process."""
        waiting: queue.SimpleQueue[GuestRun] = queue.SimpleQueue()
        for run in self.unbooted:
            waiting.put(run)
        if self.unbooted:
            self.unbooted = []
            for _ in range(_guests_at_once()):
                self._start_worker(waiting)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Replay what the guest reported of this test."""
        kind = kind_of(item)
        if kind is None:
            return None
        run = self.runs[kind]
        self._boot()
        if self.unavailable is None and self.is_xdist_worker and kind not in self.begun:
            self.begun.add(kind)
            alone: queue.SimpleQueue[GuestRun] = queue.SimpleQueue()
            alone.put(run)
            self._start_worker(alone)
        told = [] if self.unavailable else run.await_reports(item.nodeid)
        reports = [self._report(line) for line in told] or [self._missing(item, run)]
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Let guests whose tests are all told end by themselves: they still write what coverage measured."""
        if exitstatus != pytest.ExitCode.INTERRUPTED and not (
            session.shouldstop or session.shouldfail
        ):
            for worker in self.workers:
                worker.join()

    def pytest_unconfigure(self) -> None:
        """End what still runs, also after Ctrl-C: no guest and no folder stays behind."""
        self.stop.set()
        for worker in self.workers:
            worker.join()
        if not self.is_xdist_worker and self.config.getoption("numprocesses", None):
            shutil.rmtree(_shared_folder(os.getpid()), ignore_errors=True)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was booted."""
        for run in self.runs.values():
            outcome = run.outcome
            if outcome is not None:
                boot = outcome.boot_seconds
                booted = "" if boot is None else f"booted in {boot:.0f} s, "
                again = f", {outcome.boots} boots" if outcome.boots > 1 else ""
                terminalreporter.write_line(
                    f"lab: {run.kind}: {booted}{len(run.items)} tests in {outcome.wall_seconds:.0f} s{again}"
                )

    def _prepare(self) -> str | None:
        if os.environ.get(REQUIRED) == "off":
            return f"{REQUIRED}=off"
        if os.geteuid():
            return "the lab shares the whole root with its guest: run as root"
        guest.remove_left_over()
        try:
            self.kernel = kernel.prepare()
            programs.ticks_khz()
            programs.program("probe")
        except (kernel.LabUnavailableError, programs.NoCompilerError) as reason:
            return str(reason)
        return None

    def _start_worker(self, waiting: queue.SimpleQueue[GuestRun]) -> None:
        worker = threading.Thread(target=self._work, args=(waiting,), name="lab", daemon=True)
        self.workers.append(worker)
        worker.start()

    def _work(self, waiting: queue.SimpleQueue[GuestRun]) -> None:
        """Run one guest after the other until none waits."""
        while not self.stop.is_set():
            try:
                run = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                if self.is_xdist_worker:
                    self._share(run)
                else:
                    with guest.scratch() as folder:
                        self._run_guest(run, folder)
            except (topology.TopologyMistakeError, OSError) as mistake:
                run.why_not = str(mistake)
            finally:
                run.end()

    def _share(self, run: GuestRun) -> None:
        """Run a guest for all workers of pytest-xdist, or read what another one's guest reported."""
        shared = _shared_folder(os.getppid())
        name = f"guest-{sorted(self.runs, key=str).index(run.kind)}"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = shared / f"{name}.pickle"
            if not kept.exists():
                with guest.scratch() as folder:
                    self._run_guest(run, folder)
                kept.write_bytes(pickle.dumps((run.outcome, run.lines)))
        if not run.lines:
            run.outcome, run.lines = pickle.loads(kept.read_bytes())

    def _run_guest(self, run: GuestRun, folder: pathlib.Path) -> None:
        assert self.kernel is not None
        kind = run.kind
        (folder / "tests").write_text("".join(f"{item.nodeid}\n" for item in run.items))
        (folder / REPORTS).touch()
        handed_on = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
        followed = threading.Event()
        follower = threading.Thread(target=_follow, args=(folder / REPORTS, run, followed))
        follower.start()
        try:
            run.outcome = guest.run(
                self.kernel,
                topology.read(kind.topology),
                [*_python(self.config), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout",
                 f"--timeout={TEST_TIMEOUT_SECONDS}", "-c", str(self.config.inipath),
                 "--rootdir", str(self.config.rootpath), f"--lab-reports=/lab/{REPORTS}", "@/lab/tests"],
                folder=folder,
                environment=GUEST_ENVIRONMENT | handed_on,
                kernel_arguments=kind.append,
                modules=[module for module in kind.modules.split(",") if module],
                timeout_seconds=TIMEOUT_SECONDS,
                stop=self.stop,
            )  # fmt: skip
        finally:
            followed.set()
            follower.join()
        for measured in folder.glob(".coverage*"):
            shutil.copy(measured, self.config.rootpath / f"{measured.name}.lab-{kind.topology}")

    def _report(self, told: dict) -> pytest.TestReport:
        return self.config.hook.pytest_report_from_serializable(config=self.config, data=told)

    def _missing(self, item: pytest.Item, run: GuestRun) -> pytest.TestReport:
        """Skip with the reason where there is no lab; fail where the guest did not report."""
        if self.unavailable and os.environ.get(REQUIRED) != "require":
            path, line, _ = item.location
            told: object = (path, line or 0, f"Skipped: no lab: {self.unavailable}")
            return pytest.TestReport(item.nodeid, item.location, {}, "skipped", told, "setup")
        during = run.unfinished()
        why = f"no lab: {self.unavailable}" if self.unavailable else run.why_not
        if run.outcome is not None:
            when = "during this test" if during == item.nodeid else f"during {during}"
            why = f"it ended {when if during else 'without it'}: {run.outcome.reason()}"
        told = f"the guest {run.kind} gave no report of this test: {why}"
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", told, "call")


def _follow(path: pathlib.Path, run: GuestRun, followed: threading.Event) -> None:
    """Hand on whole lines as the guest writes them."""
    rest = b""
    with path.open("rb") as reports:
        while True:
            last = followed.is_set()
            *lines, rest = (rest + reports.read()).split(b"\n")
            if lines:
                run.add([line.decode() for line in lines])
            if last:
                return
            time.sleep(0.1)


def _python(config: pytest.Config) -> list[str]:
    """Give the interpreter, under coverage where the host's run is."""
    if os.environ.get("COVERAGE_RUN") or config.pluginmanager.hasplugin("_cov"):
        options = ["--parallel-mode", "--data-file=/lab/.coverage"]
        return [sys.executable, "-m", "coverage", "run", *options]
    return [sys.executable]


def _shared_folder(controller: int) -> pathlib.Path:
    """Give the folder in which the workers of one pytest-xdist run share reports."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"{guest.PREFIX}{controller}-shared"
    folder.mkdir(exist_ok=True)
    return folder


def _guests_at_once() -> int:
    said = os.environ.get(AT_ONCE)
    if said and said.isdigit():
        return max(int(said), 1)
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 2 if int(line.split()[1]) > 8 << 20 else 1
    return 1
