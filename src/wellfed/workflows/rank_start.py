"""What is asked of a launch, and how does a process become one of its ranks?"""

from __future__ import annotations

import os

from wellfed.host.limits import NO_LIMIT, Limits, apply_limits
from wellfed.model.binding import Binding
from wellfed.model.cpuset import EMPTY
from wellfed.model.units import format_bytes
from wellfed.model.value import Value, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from wellfed.model.binding import Repair
    from wellfed.model.environment import EnvironmentChange
    from wellfed.model.placement import RankPlacement
    from wellfed.workflows.plan import Plan
else:
    Protocol = object

AFTER_THE_START = "pages are sampled after the command has started: --verify SECONDS"


class Settings(Value):
    """What was asked of a launch besides where its ranks go."""

    malloc: str = "none"
    nic_variables: bool = False
    one_visible: bool = False
    keep: tuple[str, ...] = ()
    """Variables to leave as they are."""
    num_threads: int | None = None
    limits: Limits = Limits()
    scheduler: str | None = None
    nice: int | None = None
    cpu_latency_microseconds: int | None = None
    isolate: bool = False
    memory_limit_bytes: int | None = None
    """Of each rank, with ``isolate``."""
    verify_seconds: float | None = None
    watch: bool = False
    watch_interval_seconds: float = 5.0
    grace_seconds: float = 10.0
    log_folder: str | None = None
    strict: bool = False

    def sentences(self) -> tuple[str, ...]:
        """Say what of this a plan of CPUs, memory and variables does not show, one sentence each."""
        limits = self.limits
        pairs = (
            ("each rank starts with niceness {}", self.nice),
            ("each rank starts in the scheduling class {}", self.scheduler),
            ("each rank may lock {} of memory", _say_limit(limits.memlock_bytes)),
            ("each rank may open {} files", limits.num_files),
            ("each rank starts with oom_score_adj {}", limits.oom_score_adj),
            ("CPUs wake within {} µs until the job ends", self.cpu_latency_microseconds),
            ("each rank gets a cgroup of its own, without swap{}", _say_cgroup(self)),
            ("threads and pages are looked at after {:g} s", self.verify_seconds),
            (
                "drift is repaired every {:g} s",
                self.watch_interval_seconds if self.watch else None,
            ),
            ("each rank's output goes to a file in {}", self.log_folder),
        )
        return tuple(text.format(value) for text, value in pairs if value is not None)


class RankStart(Value):
    """One rank as it will be started."""

    placement: RankPlacement
    environment: Mapping[str, str]
    changes: tuple[EnvironmentChange, ...]


class RankEnd(Value):
    """What is known of one rank at the end."""

    start: RankStart
    binding: Binding | None = None
    """Before the command began."""
    verified: Binding | None = None
    """While the command ran, None where it was not looked at."""
    num_drifts: int = 0
    """Threads that were given their mask again."""
    allocator: str | None = None
    """Library whose ``malloc`` the process calls, None where it was not looked at or has its own."""
    exit_code: int | None = None
    cgroup: str | None = None


class Outcome(Value):
    """A launch, as far as it is known; a process that becomes its command knows no more than its binding."""

    plan: Plan
    command: tuple[str, ...]
    ranks: tuple[RankEnd, ...]
    notes: tuple[str, ...] = ()
    exit_code: int | None = None
    seconds: float | None = None


class Narrator(Protocol):
    """Whoever tells a person what happens; nothing of it may be written where the job writes."""

    def planned(self, plan: Plan, ranks: tuple[RankStart, ...]) -> None:
        """Tell the plan before anything is done."""

    def bound(self, plan: Plan, rank: RankStart, binding: Binding) -> None:
        """Tell what the kernel confirmed for one rank."""

    def say(self, sentence: str) -> None:
        """Tell what a person may want to know."""

    def warn(self, sentence: str) -> None:
        """Tell what a person should know."""

    def verified(self, bindings: tuple[Binding, ...]) -> None:
        """Tell what holds while the command runs."""

    def repaired(self, repair: Repair) -> None:
        """Tell what had drifted."""

    def report(self, outcome: Outcome) -> None:
        """Write what is known in the end."""


def bind_rank(rank: RankStart, settings: Settings) -> Binding:
    """Give this process its priority, limits, CPUs and memory policy, and return what the kernel confirms.

    Pages are left out: those of this interpreter end with it.
    """
    if settings.scheduler is not None or settings.nice is not None:
        from wellfed.host.scheduling import apply_scheduling

        apply_scheduling(settings.scheduler, settings.nice)
    apply_limits(settings.limits)
    placement = rank.placement
    if not placement.cpus and placement.memory.mode == "none":
        # Nothing to bind: what that would cost (ctypes, looking through /proc) is saved.
        return Binding(
            pid=os.getpid(),
            local_rank=placement.local_rank,
            bound=False,
            planned_cpus=EMPTY,
            cpus=None,
            planned_memory="none",
            memory=None,
            notes=placement.notes,
        )
    from wellfed.workflows.bind import bind_as_planned

    found = bind_as_planned(placement)
    return replace(found, pages=(), pages_local=None, pages_unknown=AFTER_THE_START)


def refuse_unbound(binding: Binding) -> None:
    """Raise BindingError where the kernel did not confirm everything that was planned."""
    if not binding.bound:
        from wellfed.workflows.bind import not_bound

        raise not_bound(binding)


def limit_latency_of_host(microseconds: int, narrator: Narrator) -> None:
    """Hold the wake-up latency of all CPUs down until the job ends, and say that others feel it."""
    from wellfed.host.latency import WHOLE_HOST, limit_host

    limit_host(microseconds)
    narrator.warn(
        f"--cpu-latency holds for every CPU of this host while the job runs ({WHOLE_HOST}): others pay for it in power"
    )


def _say_limit(size: int | None) -> str | None:
    return None if size is None else "any amount" if size == NO_LIMIT else format_bytes(size)


def _say_cgroup(settings: Settings) -> str | None:
    if not settings.isolate:
        return None
    limit = settings.memory_limit_bytes
    return "" if limit is None else f" and with at most {format_bytes(limit)} of memory"
