"""What really holds after binding: the kernel's own words about masks, policies and pages."""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet
from wellfed.model.value import Value


class Step(Value):
    """One attempt at the kernel, and what it said."""

    what: str
    """``set_mempolicy(MPOL_PREFERRED_MANY|MPOL_F_STATIC_NODES, 1)``."""
    errno_name: str | None = None
    """None: it worked and was read back."""
    explanation: str = ""


class ThreadState(Value):
    """One thread as /proc shows it."""

    tid: int
    name: str
    cpus: CpuSet | None
    """Cpus_allowed_list, None where it could not be read."""
    last_cpu: int | None = None
    """The CPU it ran on last (field 39 of stat)."""
    inside: bool | None = None
    """Whether its mask lies inside the plan."""
    process: int | None = None
    """The process it belongs to."""
    memory: str | None = None
    """Its own memory policy (a policy belongs to a thread), None where it was not or cannot be asked."""


class PageCount(Value):
    """Where sampled pages are."""

    node: int
    num_pages: int


class Binding(Value):
    """The verified result of binding one process. ``bound`` is True only when the kernel confirmed every part."""

    pid: int
    local_rank: int | None
    bound: bool
    planned_cpus: CpuSet
    cpus: CpuSet | None
    """sched_getaffinity of the main thread after binding."""
    planned_memory: str
    memory: str | None
    """Policy as the kernel reports it: ``preferred-many:0 (static)``, None where it cannot be asked."""
    memory_bound: bool | None = None
    """Whether the policy in force is the planned one; None where none was planned."""
    memory_nodes: NodeSet = EMPTY
    threads: tuple[ThreadState, ...] = ()
    pages: tuple[PageCount, ...] = ()
    """Nodes of sampled pages; a policy moves no page that was there before it."""
    pages_unknown: str | None = None
    """Why pages could not be sampled."""
    pages_local: float | None = None
    """Share (0 to 1) of sampled pages on planned nodes, None where none was sampled."""
    steps: tuple[Step, ...] = ()
    older_processes: tuple[str, ...] = ()
    """Forkservers, zygotes and threads that were there before the bind and did not take it."""
    notes: tuple[str, ...] = ()


class Drift(Value):
    """A thread whose mask was no longer the planned one when it was looked at again."""

    process: int
    tid: int
    name: str
    found: CpuSet
    planned: CpuSet
    restored: bool
    """Whether the kernel confirmed the planned mask after it was set again."""
    explanation: str = ""
    """What moved it, as far as the kernel shows, or why it could not be restored."""


class Repair(Value):
    """What one look at a running process found changed."""

    drifts: tuple[Drift, ...] = ()
    notes: tuple[str, ...] = ()
    """What drifted and cannot be set from outside, one sentence each."""
