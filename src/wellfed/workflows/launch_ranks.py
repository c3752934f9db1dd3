"""What does the parent of a job do: start its ranks, look after them, give back what was changed?"""

from __future__ import annotations

import os

from wellfed.host import isolation
from wellfed.host.borrowed import CGROUP, CONTROLLERS, Borrowed, give_back_dead
from wellfed.host.feed import is_interactive
from wellfed.host.launch import Order
from wellfed.host.state import has_records, state_folder
from wellfed.host.supervise import Supervisor, Task
from wellfed.host.wires import OURS, Wires, our_sinks, to_files, to_sinks
from wellfed.model import binding as binding_values
from wellfed.model.binding import Binding
from wellfed.model.cpuset import EMPTY, CpuSet, union
from wellfed.model.errors import BindingError, LaunchError, UsageError
from wellfed.model.value import Value, as_tuple
from wellfed.workflows.rank_start import (
    Outcome,
    RankEnd,
    bind_rank,
    limit_latency_of_host,
    refuse_unbound,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from wellfed.host.rank import Rank
    from wellfed.host.supervise import Ending
    from wellfed.workflows.plan import Plan
    from wellfed.workflows.rank_start import Narrator, RankStart, Settings

ALLOCATOR_SECONDS = 1.0
"""A second after the start the loader has done its work, and the allocator that is mapped is the one in use."""

GIVE_BACK = {CGROUP: isolation.remove_cgroup, CONTROLLERS: isolation.withdraw_controllers}


def launch_ranks(
    plan: Plan,
    path: str,
    command: tuple[str, ...],
    ranks: tuple[RankStart, ...],
    settings: Settings,
    narrator: Narrator,
) -> int:
    """Start the ranks, stay until all have ended, and return the exit code of the job."""
    family = Family(plan, path, command, ranks, settings, narrator)
    borrowed = Borrowed(state_folder(os.environ), GIVE_BACK)
    with Supervisor(grace_seconds=settings.grace_seconds, say=narrator.warn) as supervisor:
        supervisor.guard(lambda: _ignore(borrowed.give_back()))
        try:
            family.borrow(borrowed)
            family.start(supervisor)
            ending = supervisor.run(family.tasks())
        finally:
            supervisor.end_all()
            for sentence in borrowed.give_back():
                narrator.warn(sentence)
    family.tell_end(ending)
    return ending.exit_code


def give_back_left_over(narrator: Narrator) -> None:
    """Give back what launches had changed whose every process was killed."""
    folder = state_folder(os.environ)
    if not has_records(folder):
        return
    try:
        for sentence in give_back_dead(folder, GIVE_BACK):
            narrator.warn(sentence)
    except LaunchError as refusal:
        # Somebody else's debt is no reason not to launch.
        narrator.warn(f"what a killed launch had changed is not given back: {refusal.message}")


class Family:
    """The ranks of one launch and what becomes known of them."""

    def __init__(
        self,
        plan: Plan,
        path: str,
        command: tuple[str, ...],
        ranks: tuple[RankStart, ...],
        settings: Settings,
        narrator: Narrator,
    ) -> None:
        """Take everything that was decided."""
        self._plan = plan
        self._path = path
        self._command = command
        self._starts = ranks
        self._settings = settings
        self._narrator = narrator
        self._site: isolation.Site | None = None
        self._cgroups: list[str | None] = [None] * len(ranks)
        self._children: list[Rank] = []
        self._bindings: list[Binding] = []
        self._verified: list[Binding | None] = [None] * len(ranks)
        self._num_drifts = [0] * len(ranks)
        self._allocators: list[str | None] = [None] * len(ranks)
        self._was_verified = False

    def borrow(self, borrowed: Borrowed) -> None:
        """Change of the host what the job needs while it runs: idle states, cgroups."""
        if self._settings.cpu_latency_microseconds is not None:
            self._limit_latency(self._settings.cpu_latency_microseconds, borrowed)
        if not self._settings.isolate:
            return
        self._site = isolation.find_site(os.environ)
        if self._site.base:
            isolation.open_base(self._site, borrowed)
        for i, rank in enumerate(self._starts):
            walls = self._walls(rank)
            name = f"wellfed-{os.getpid()}-rank{rank.placement.local_rank}"
            if self._site.base:
                self._cgroups[i] = isolation.make_cgroup(self._site, name, walls, borrowed)
            else:
                if i == 0:
                    isolation.try_scope(self._site, f"{name}-probe", walls)
                self._cgroups[i] = f"{name}.scope"

    def start(self, supervisor: Supervisor) -> None:
        """Start every rank: all are bound before the first command begins, so that a refusal starts none."""
        connect = self._switchboard()
        for i, rank in enumerate(self._starts):
            try:
                wires = connect(rank.placement.local_rank, i == 0)
                try:
                    child = supervisor.launch(self._order(i, rank, wires), wires.streams)
                finally:
                    wires.close_here()
            except OSError as refusal:
                raise LaunchError(
                    f"rank {rank.placement.local_rank} cannot be started: {os.strerror(refusal.errno or 0).lower()}",
                    remedy="raise what ran out: `ulimit -u` for processes, `ulimit -n` for files, or pids.max of the cgroup",
                ) from None
            if wires.feed is not None:
                supervisor.feed(wires.feed)
            self._children.append(child)
        for rank, prepared in zip(self._starts, supervisor.prepared(), strict=True):
            found = _unpacked(prepared)
            self._bindings.append(found)
            self._narrator.bound(self._plan, rank, found)
        supervisor.release()

    def _switchboard(self) -> Callable[[int, bool], Wires]:
        """Choose how standard streams are connected: of a rank's number, and of whether it is the first."""
        folder = self._settings.log_folder
        if not self._plan.starts_ranks:
            return lambda number, first: OURS
        if folder is not None:
            return lambda number, first: to_files(folder, number, reads=first)
        sinks = our_sinks()
        return lambda number, first: to_sinks(sinks, number, reads=first)

    def tasks(self) -> tuple[Task, ...]:
        """Return what is to be done while the ranks run."""
        settings = self._settings
        tasks = []
        if settings.verify_seconds is not None:
            tasks.append(Task(settings.verify_seconds, self._verify))
        if settings.malloc != "none":
            tasks.append(Task(ALLOCATOR_SECONDS, self._look_at_allocators))
        if settings.watch:
            every = settings.watch_interval_seconds
            tasks.append(Task(every, self._repair, every))
        return tuple(tasks)

    def tell_end(self, ending: Ending) -> None:
        """Say what was left undone, and report."""
        settings = self._settings
        num_drifts = sum(self._num_drifts)
        notes: list[str] = []
        if settings.verify_seconds is not None and not self._was_verified:
            notes.append(
                f"not verified: the job ended after {ending.seconds:.1f} s, before --verify {settings.verify_seconds:g}"
            )
        if num_drifts:
            notes.append(f"{num_drifts} threads had drifted off their CPUs in all")
        for note in notes:
            self._narrator.say(note)
        ends = tuple(
            RankEnd(
                start,
                self._bindings[i],
                self._verified[i],
                self._num_drifts[i],
                self._allocators[i],
                ending.codes[i],
                self._cgroups[i],
            )
            for i, start in enumerate(self._starts)
        )
        outcome = Outcome(
            self._plan, self._command, ends, tuple(notes), ending.exit_code, ending.seconds
        )
        try:
            self._narrator.report(outcome)
        except UsageError as error:
            # The job is over, and its exit code is what counts.
            self._narrator.warn(error.message)

    def _limit_latency(self, microseconds: int, borrowed: Borrowed) -> None:
        from wellfed.host.latency import limit_cpus

        cpus = union(rank.placement.cpus for rank in self._starts)
        count = limit_cpus(cpus, microseconds, borrowed.write)
        if count is None:
            limit_latency_of_host(microseconds, self._narrator)
        else:
            self._narrator.say(f"{count} CPUs wake within {microseconds} µs until the job ends")

    def _walls(self, rank: RankStart) -> isolation.Walls:
        """Confine memory to the planned nodes under a hard bind only: soft policies spill, but not into a GPU's memory."""
        placement, machine = rank.placement, self._plan.machine
        mems = EMPTY
        if placement.memory.mode == "bind":
            mems = placement.memory.nodes
        elif machine.allowed.mems is not None and placement.gpus:
            mems = machine.memory_nodes & machine.allowed.mems
        return isolation.Walls(placement.cpus, mems, self._settings.memory_limit_bytes)

    def _order(self, i: int, rank: RankStart, wires: Wires) -> Order:
        command, path, cgroup = self._command, self._path, self._cgroups[i]
        if self._site is not None and not self._site.base and cgroup is not None:
            command = isolation.scope_command(
                self._site, cgroup, self._walls(rank), (path, *command[1:])
            )
            path, cgroup = command[0], None
        return Order(
            command,
            path,
            rank.environment,
            self._preparation(rank, cgroup),
            wires.ends,
            # One process at a terminal stays in its foreground; the terminal then signals both of us.
            own_group=self._plan.starts_ranks or not is_interactive(),
        )

    def _preparation(self, rank: RankStart, cgroup: str | None) -> Callable[[], Any]:
        settings = self._settings

        def prepare() -> Any:
            if cgroup is not None:
                # Before the mask: joining a cpuset sets it anew.
                isolation.join(cgroup)
            found = bind_rank(rank, settings)
            if settings.strict:
                refuse_unbound(found)
            return _packed(found)

        return prepare

    def _verify(self) -> None:
        from wellfed.workflows.verify import verify

        for i, child in enumerate(self._children):
            if child.code is None:
                try:
                    self._verified[i] = verify(child.pid, self._starts[i].placement)
                except BindingError:
                    # It ended while it was looked at.
                    continue
        found = tuple(each for each in self._verified if each is not None)
        self._was_verified = bool(found)
        if found:
            self._narrator.verified(found)

    def _repair(self) -> None:
        from wellfed.workflows.watch_binding import repair

        for i, child in enumerate(self._children):
            if child.code is not None:
                continue
            found = repair(child.pid, self._starts[i].placement)
            self._num_drifts[i] += sum(drift.restored for drift in found.drifts)
            if found.drifts or found.notes:
                self._narrator.repaired(found)

    def _look_at_allocators(self) -> None:
        from wellfed.host.allocator import LIBRARIES, allocator_in_use

        for i, child in enumerate(self._children):
            if child.code is not None:
                continue
            try:
                self._allocators[i] = path = allocator_in_use(child.pid)
            except OSError:
                continue
            wanted = LIBRARIES[self._settings.malloc]
            if path is None or not os.path.basename(path).startswith(
                tuple(name.partition(".")[0] for name in wanted)
            ):
                self._narrator.warn(
                    f"process {child.pid} does not use {self._settings.malloc}: mapped is {path or 'no such library'}"
                )


def _packed(value: Any) -> Any:
    """Turn values into tuples of plain ones, which a child can write to its parent."""
    if isinstance(value, CpuSet):
        return "CpuSet", value.mask
    if isinstance(value, Value):
        return type(value).__name__, tuple(_packed(each) for each in as_tuple(value))
    if isinstance(value, tuple):
        return "tuple", tuple(_packed(each) for each in value)
    return "plain", value


def _unpacked(packed: Any) -> Any:
    kind, content = packed
    if kind == "plain":
        return content
    if kind == "CpuSet":
        return CpuSet.of_mask(content)
    fields = tuple(_unpacked(each) for each in content)
    return fields if kind == "tuple" else getattr(binding_values, kind)(*fields)


def _ignore(_: Sequence[str]) -> None:
    """Nobody is left to be told."""
