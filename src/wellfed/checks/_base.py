"""What is a check: what it reads, and how it judges that."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wellfed.model.finding import Finding
from wellfed.model.snapshot import Snapshot
from wellfed.model.value import Value


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
    """Files, with ``*`` and ``?`` for one path component."""
    asks: tuple[str, ...] = ()
    """Questions for ``HostTree.answer``."""
    rates: tuple[str, ...] = ()
    """Counter files to read twice."""
    subject: str = "host"
