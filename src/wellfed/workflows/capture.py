"""How is a host recorded, so that every question can be asked elsewhere, later, without it?

Everything that reading the machine touches, and everything that a check declares, is asked of a tree that remembers:
what is in the recording is what was read, errnos included, and nothing else.
"""

from __future__ import annotations

import os
import time

from wellfed.checks._room import all_checks
from wellfed.gpus import nvidia
from wellfed.host.bundle import about, check_destination, pack, write_bundle
from wellfed.host.live_tree import LiveTree
from wellfed.host.names import host_names, people_names
from wellfed.host.recording import RecordingTree
from wellfed.host.redact import Redacted, redact_recording, short_release
from wellfed.model.errors import UsageError, WellfedError
from wellfed.model.value import Value
from wellfed.workflows.machine import know, known_for_launch
from wellfed.workflows.snapshot import declared, paths_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wellfed.checks._base import Check
    from wellfed.host.recorded_tree import RecordedTree
    from wellfed.model.tree import HostTree, Reading

LONGEST_SAMPLE_SECONDS = 3600.0

PATH_QUESTIONS = ("statvfs", "odirect")
"""What is asked of each directory that the person names."""


class Captured(Value):
    """What was written."""

    path: str
    size_bytes: int
    num_files: int
    num_errnos: int
    num_answers: int
    interval_seconds: float | None
    hidden: tuple[tuple[str, int], ...] | None
    """(what one is called, how many) that stand in the recording under pseudonyms; None where the person wanted everything."""
    notes: tuple[str, ...] = ()
    """What could not be recorded, one sentence each."""


def capture(
    path: str,
    *,
    sample_seconds: float = 1.0,
    identify: bool = False,
    paths: Sequence[str] = (),
    force: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> Captured:
    """Record this host into one file whose suffix chooses the compression, and return what was written.

    Counters are read twice, ``sample_seconds`` apart; ``wait`` is called with the seconds still missing when
    everything else is recorded. UsageError before anything is read where the file could not be written.
    """
    if not 0 <= sample_seconds <= LONGEST_SAMPLE_SECONDS:
        raise UsageError(
            f"--sample {sample_seconds:g}: wanted 0 to {LONGEST_SAMPLE_SECONDS:g} seconds",
            remedy="wellfed capture host.tar.xz --sample 1",
        )
    check_destination(path, force=force)
    tree = LiveTree()
    recording, notes = record(
        tree,
        all_checks(),
        sample_seconds=sample_seconds,
        paths=paths,
        nvml=nvidia.record(),
        wait=wait,
    )
    made = _without_names(recording, tree, identify=identify)
    now = time.time()
    said = about(
        made.recording,
        wellfed=_version(),
        captured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        kernel=os.uname().release if identify else short_release(os.uname().release),
    )
    size = write_bundle(path, pack(made.recording, said, when=int(now)), force=force)
    return Captured(
        path=path,
        size_bytes=size,
        num_files=len(made.recording.files),
        num_errnos=sum(name != "ENODATA" for name in made.recording.errnos.values()),
        num_answers=len(made.recording.answers),
        interval_seconds=recording.interval_seconds,
        hidden=None if identify else made.hidden,
        notes=notes,
    )


def record(
    tree: HostTree,
    checks: Sequence[Check],
    *,
    sample_seconds: float,
    nvml: Reading,
    paths: Sequence[str] = (),
    wait: Callable[[float], None] = time.sleep,
) -> tuple[RecordedTree, tuple[str, ...]]:
    """Ask a host everything that wellfed asks; return its recording, and a sentence for each part that is missing."""
    remembering = RecordingTree(tree, {"nvml": nvml})
    wanted = declared(checks)
    begun = time.monotonic()
    counters = [path for rate in wanted.rates for path in paths_of(remembering, rate)]
    for path in counters:
        remembering.read(path)
    notes = _machine(remembering)
    for pattern in wanted.reads:
        for path in paths_of(remembering, pattern):
            remembering.read(path)
    for question in (*wanted.asks, *_questions(paths)):
        remembering.answer(question)
    second, interval = {}, None
    if sample_seconds > 0 and counters:
        wait(max(0.0, sample_seconds - (time.monotonic() - begun)))
        again = {path: tree.read_bytes(path) for path in counters}
        interval = time.monotonic() - begun
        second = {path: content for path, content in again.items() if isinstance(content, bytes)}
    recording = remembering.recording(tree.name, second=second, interval_seconds=interval)
    return recording, notes


def _machine(tree: HostTree) -> tuple[str, ...]:
    """Read the machine, so that what this reads is recorded; a host that cannot be understood is recorded too."""
    try:
        know(tree)
        known_for_launch(tree)
    except WellfedError as problem:
        return (f"this host could not be read as a machine: {problem.message}",)
    return ()


def _questions(paths: Sequence[str]) -> list[str]:
    return [f"{word} {os.path.abspath(path)}" for path in paths for word in PATH_QUESTIONS]


def _without_names(recording: RecordedTree, tree: HostTree, *, identify: bool) -> Redacted:
    if identify:
        return Redacted(recording, ())
    return redact_recording(recording, hosts=host_names(tree), people=people_names())


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("wellfed")
    except PackageNotFoundError:
        # A source tree on PYTHONPATH, which was never installed.
        return "not installed"
