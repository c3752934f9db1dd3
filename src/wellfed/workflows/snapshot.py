"""What do the checks need to see of a host, and what stands there?

Exactly what the checks declare is read, once each, and counters twice. The result is frozen: judging it is a pure
function, and a recorded host, which holds the same texts and second readings, is judged as the live one was.
"""

from __future__ import annotations

import time
from fnmatch import fnmatchcase

from wellfed.host.cgroups import CONTROLLERS, read_cgroups
from wellfed.host.facts import Facts
from wellfed.host.live_tree import text_of
from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.errors import UsageError
from wellfed.model.snapshot import Rate, Snapshot
from wellfed.model.tree import Unreadable
from wellfed.model.value import Value
from wellfed.placement.ranks import job_from
from wellfed.placement.visible import main_vendor, visible_devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from wellfed.checks._base import Check
    from wellfed.model.job import Job
    from wellfed.model.machine import Machine
    from wellfed.model.tree import HostTree, Reading

MAX_MATCHES = 20_000
"""A hostile recording may hold any number of files; no real host has this many behind one pattern."""
ENVIRONMENT = "environ"


class Declared(Value):
    """Everything that some checks read, ask and want twice, each once."""

    reads: tuple[str, ...]
    asks: tuple[str, ...]
    rates: tuple[str, ...]


def declared(checks: Iterable[Check]) -> Declared:
    """Gather what checks declare, sorted. The launch environment is always asked for: placement depends on it."""
    reads, asks, rates = set[str](), {ENVIRONMENT}, set[str]()
    for check in checks:
        reads.update(check.reads)
        asks.update(check.asks)
        rates.update(check.rates)
    return Declared(tuple(sorted(reads)), tuple(sorted(asks)), tuple(sorted(rates)))


def paths_of(tree: HostTree, declared_path: str) -> tuple[str, ...]:
    """Return the paths on a host that a declared path may stand for; a plain path stands for itself.

    ``*`` and ``?`` match within one component, as in a shell. ``cgroup.cpu/cpu.stat`` is that file in this process's
    own cgroup of the controller ``cpu``, and in each one above it. Whether a file is there, reading it tells.
    """
    for controller in CONTROLLERS:
        prefix = f"cgroup.{controller}/"
        if declared_path.startswith(prefix):
            folders = read_cgroups(Facts(tree))[controller].folders
            return tuple(f"{folder}/{declared_path[len(prefix) :]}" for folder in folders)
    if not _has_wildcard(declared_path):
        return (declared_path,)
    found = [""]
    for part in declared_path.strip("/").split("/"):
        if not _has_wildcard(part):
            found = [f"{folder}/{part}" for folder in found]
            continue
        found = [
            f"{folder}/{name}"
            for folder in found
            for name in tree.list(folder or "/") or ()
            if fnmatchcase(name, part)
        ][:MAX_MATCHES]
    return tuple(sorted(found))


def snapshot_of(
    tree: HostTree,
    machine: Machine,
    checks: Sequence[Check],
    *,
    sample_seconds: float = 0.0,
    wait: Callable[[float], None] = time.sleep,
) -> Snapshot:
    """Read a host for its checks. On a live host counters are read again ``sample_seconds`` after the first time.

    ``wait`` is called with the seconds that are still missing when everything else has been read. A recorded host gives
    the second readings that were recorded; without any, and with 0 seconds, the second reading is ``ENODATA``.
    """
    wanted = declared(checks)
    begun = time.monotonic()
    counters = {path: _read(tree, path) for rate in wanted.rates for path in paths_of(tree, rate)}
    readings: dict[str, Reading] = {}
    matches: dict[str, tuple[str, ...]] = {}
    for path in wanted.reads:
        if is_pattern(path):
            found = {each: tree.read(each) for each in paths_of(tree, path)}
            found = {each: reading for each, reading in found.items() if _is_there(reading)}
            matches[path] = tuple(found)
        else:
            found = {path: _read(tree, path)}
        readings |= found
    answers = {question: tree.answer(question) for question in wanted.asks}
    environment = parse_environment(answers[ENVIRONMENT])
    job, problem = _job(environment)
    visible = visible_devices(machine, environment, main_vendor(machine))
    if tree.live and sample_seconds > 0 and counters:
        wait(max(0.0, sample_seconds - (time.monotonic() - begun)))
    return Snapshot(
        machine=machine,
        readings=readings,
        matches=matches,
        answers=answers,
        rates=_again(tree, counters, begun, sampled=sample_seconds > 0),
        environment=environment,
        job=job,
        visible=visible,
        live=tree.live,
        job_problem=problem,
    )


def _read(tree: HostTree, path: str) -> Reading:
    """Read a file. What another tool's dump does not hold was perhaps never looked for: that is not "absent"."""
    reading = tree.read(path)
    if isinstance(reading, str) or reading.errno_name != "ENOENT":
        return reading
    if not isinstance(tree, RecordedTree) or not tree.complete or path in tree.errnos:
        return reading
    return Unreadable("ENODATA")


def parse_environment(answer: Reading) -> dict[str, str]:
    """Read ``NAME=value`` lines; nothing where they are not recorded."""
    # Not splitlines(): a value may hold a carriage return, and what follows it is no variable.
    lines = answer.split("\n") if isinstance(answer, str) else ()
    pairs = (line.partition("=") for line in lines)
    return {name: value for name, sign, value in pairs if sign and name}


def _job(environment: Mapping[str, str]) -> tuple[Job | None, str | None]:
    """Return the job, or why the variables that speak of one cannot be believed."""
    try:
        return job_from(environment), None
    except UsageError as problem:
        return None, problem.message


def _again(
    tree: HostTree, counters: Mapping[str, Reading], begun: float, *, sampled: bool
) -> dict[str, Rate]:
    """Read counters a second time: from the running host, or from what was recorded of it."""
    missing = Unreadable("ENODATA")
    if isinstance(tree, RecordedTree):
        interval = tree.interval_seconds or 0.0
        second = {
            path: text_of(tree.second[path]) if path in tree.second and interval else missing
            for path in counters
        }
        return {path: Rate(first, second[path], interval) for path, first in counters.items()}
    if not (tree.live and sampled):
        return {path: Rate(first, missing, 0.0) for path, first in counters.items()}
    again = {path: tree.read(path) for path in counters}
    interval = time.monotonic() - begun
    return {path: Rate(first, again[path], interval) for path, first in counters.items()}


def is_pattern(path: str) -> bool:
    """Say whether a declared path stands for any number of files."""
    return _has_wildcard(path) or path.startswith("cgroup.")


def _has_wildcard(path: str) -> bool:
    return "*" in path or "?" in path


def _is_there(reading: Reading) -> bool:
    """Say whether a file is there; one that may not be read is."""
    return isinstance(reading, str) or reading.errno_name not in ("ENOENT", "ENOTDIR")
