"""What is a check: what it reads, and how it judges that."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wellfed.model.cpuset import CpuSet
from wellfed.model.finding import FAIL, NOT_APPLICABLE, OK, UNKNOWN, WARN, Finding, Proof
from wellfed.model.machine import Gpu
from wellfed.model.snapshot import Rate, Snapshot
from wellfed.model.tree import Unreadable
from wellfed.model.value import Value, replace

UNMEASURED = "unknown until measured here"
"""The effect of a setting that nobody measured on the host at hand."""


class Check(Value):
    """One question. A file of this room exposes one as ``CHECK``; its room finds it."""

    question: str
    """The file's first sentence: what is asked."""
    rules: tuple[str, ...]
    """Stable ids of the findings it may give, ``area.name``."""
    judge: Callable[[Snapshot, str], Iterable[Finding]]
    """(snapshot, workload) -> one finding for each rule at least. Pure."""
    why: str
    """What it does to a GPU job, with units."""
    sources: tuple[str, ...]
    """Kernel documentation, vendor guide or a dated measurement of our own."""
    reads: tuple[str, ...] = ()
    """Files, with ``*`` and ``?`` for one path component. ``cgroup.cpu/cpu.stat`` stands for that file in this
    process's own cgroup of the controller ``cpu`` and in each cgroup above it."""
    asks: tuple[str, ...] = ()
    """Questions for ``HostTree.answer``."""
    rates: tuple[str, ...] = ()
    """Counter files to read twice."""
    subject: str = "host"
    trap: str = ""
    """The mistake that people make with this setting; empty where none is known."""
    effect: str = UNMEASURED
    """What it costs, as far as anybody measured it."""
    checked_on: str = ""
    """Where and when all this was last looked at, ``Linux 6.18, 2026-12-04``; empty where nobody said."""
    undo: str = ""
    """How a remedy is taken back, where a finding does not say it itself."""

    @property
    def area(self) -> str:
        """Return what the rules are about, the first part of their ids."""
        return self.rules[0].partition(".")[0]


def ok(rule: str, summary: str, *evidence: Proof) -> Finding:
    """Say that all is well, and what was found."""
    return Finding(rule, OK, summary, evidence)


def warn(
    rule: str, summary: str, *evidence: Proof, remedy: str | None = None, **more: str
) -> Finding:
    """Say what probably costs something."""
    return Finding(rule, WARN, summary, evidence, remedy, more.get("persist"), more.get("undo"))


def fail(
    rule: str, summary: str, *evidence: Proof, remedy: str | None = None, **more: str
) -> Finding:
    """Say what certainly hurts."""
    return Finding(rule, FAIL, summary, evidence, remedy, more.get("persist"), more.get("undo"))


def advise(
    rule: str, summary: str, *evidence: Proof, remedy: str | None = None, **more: str
) -> Finding:
    """Say what is worth a thought, where nothing seen on this host shows that it costs anything."""
    return replace(warn(rule, summary, *evidence, remedy=remedy, **more), pedantic=True)


def does_not_apply(rule: str, reason: str) -> Finding:
    """Say why the question is none on this host."""
    return Finding(rule, NOT_APPLICABLE, reason)


def cannot_tell(rule: str, where: str, reading: Unreadable | str) -> Finding:
    """Say that a value could not be read, or makes no sense: never that all is well."""
    if isinstance(reading, Unreadable):
        return Finding(rule, UNKNOWN, f"{where}: {reading}", (Proof(where, str(reading)),))
    return Finding(
        rule,
        UNKNOWN,
        f"{where} reads {shown(reading)}, which is not understood",
        (Proof(where, shown(reading)),),
    )


def not_known(rule: str, reason: str, *evidence: Proof) -> Finding:
    """Say what is missing for an answer."""
    return Finding(rule, UNKNOWN, reason, evidence)


def usable_gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    """Return the GPUs that a job started here would see: open to this process, and not hidden by a variable."""
    visible = snapshot.visible
    gpus = tuple(gpu for gpu in snapshot.machine.gpus if gpu.accessible is not False)
    if visible is None or visible.variable is None:
        return gpus
    return tuple(
        gpu for gpu in gpus if gpu.vendor != visible.vendor or gpu.pci_address in visible.gpus
    )


def no_gpu(snapshot: Snapshot, workload: str, rule: str) -> Finding | None:
    """Return the answer for hosts without a GPU, where only the preparation of data is worth a question."""
    if workload == "data" or any(gpu.accessible is not False for gpu in snapshot.machine.gpus):
        return None
    return does_not_apply(rule, "no GPU is seen here")


def gpus_word(gpus: Iterable[Gpu]) -> str:
    """Name GPUs by their position: ``GPU 3``, ``GPUs 0-3,6``."""
    indices = CpuSet(gpu.index for gpu in gpus)
    return f"GPU {indices}" if len(indices) == 1 else f"GPUs {indices}"


def whole_number(text: str) -> int | None:
    """Read a decimal integer, None where a text is none."""
    digits = text.strip()
    plain = digits[1:] if digits[:1] == "-" else digits
    return int(digits) if plain.isascii() and plain.isdigit() and len(plain) < 20 else None


def shown(text: str) -> str:
    """Quote a text on one line, not too long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def counter(text: str | Unreadable, name: str) -> int | None:
    """Return one counter of a text of ``name value`` lines, such as /proc/vmstat or cpu.stat; None where it is not there."""
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            return whole_number(words[1])
    return None


def grown(rate: Rate, name: str) -> int | None:
    """Return by how much a counter grew between the two readings, None where either is missing or it was reset."""
    first, second = counter(rate.first, name), counter(rate.second, name)
    return second - first if first is not None and second is not None and second >= first else None
