"""How does a command line become one bound process, or all ranks of this host?

The order is: find the command, bind, ask the kernel what holds, say it, become the command. A parent stays only where
something is left to do afterwards; `launch_ranks` is that part.
"""

from __future__ import annotations

import os

from wellfed.host.launch import become, environment_at_start, find_command
from wellfed.host.state import has_records, state_folder
from wellfed.model.environment import EnvironmentChange, changed
from wellfed.model.errors import PlacementError, UsageError
from wellfed.model.value import replace
from wellfed.placement.environment import LaunchSettings, rank_environment
from wellfed.workflows.rank_start import (
    Outcome,
    RankEnd,
    RankStart,
    bind_rank,
    limit_latency_of_host,
    refuse_unbound,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellfed.model.placement import RankPlacement
    from wellfed.workflows.plan import Plan
    from wellfed.workflows.rank_start import Narrator, Settings

MARKER = "WELLFED_JOB"
"""By it the ranks of one job are known to other jobs, which leave them their CPUs (`host.processes.MARKER`)."""

ROLES = "WELLFED_ROLES"
"""CPUs of each role for the job to use: ``main:0-3;loader:4-13``."""


def launch(plan: Plan, command: tuple[str, ...], settings: Settings, narrator: Narrator) -> int:
    """Become the command, or start the ranks and return the job's exit code: its own, or 128 plus the signal.

    LaunchError 126 or 127 where the command cannot be executed or found; any other WellfedError means that nothing
    was started.
    """
    _check(plan, settings)
    environment = environment_at_start()
    path = find_command(command[0], environment)
    ranks = prepare_ranks(plan, path, environment, settings)
    if settings.strict:
        for rank in ranks:
            refuse_remote(plan, rank.placement)
    narrator.planned(plan, ranks)
    if has_records(state_folder(environment)):
        from wellfed.workflows.launch_ranks import give_back_left_over

        give_back_left_over(narrator)
    if settings.malloc != "none":
        _warn_where_no_preload(path, environment, narrator)
    if stays(plan, settings):
        from wellfed.workflows.launch_ranks import launch_ranks

        return launch_ranks(plan, path, command, ranks, settings, narrator)
    only = ranks[0]
    if settings.cpu_latency_microseconds is not None:
        limit_latency_of_host(settings.cpu_latency_microseconds, narrator)
    binding = bind_rank(only, settings)
    if settings.strict:
        refuse_unbound(binding)
    narrator.bound(plan, only, binding)
    narrator.report(Outcome(plan, command, (RankEnd(only, binding),)))
    become(path, command, only.environment)


def stays(plan: Plan, settings: Settings) -> bool:
    """Say whether a parent is needed after the command has started."""
    return (
        plan.starts_ranks
        or settings.verify_seconds is not None
        or settings.watch
        or settings.isolate
        or (settings.cpu_latency_microseconds is not None and bool(plan.own.cpus))
    )


def prepare_ranks(
    plan: Plan, path: str, environment: Mapping[str, str], settings: Settings
) -> tuple[RankStart, ...]:
    """Work out the environment of every rank that is started here: all of them, or this one."""
    placements = plan.placement.ranks if plan.starts_ranks else (plan.own,)
    port = None
    if plan.starts_ranks and "MASTER_PORT" not in environment:
        from wellfed.host.port import free_port

        port = free_port()
    library = None
    if settings.malloc != "none":
        from wellfed.host.allocator import find_allocator

        library = find_allocator(settings.malloc, path, environment)
    launched = _launch_settings(plan, settings, port)
    return tuple(
        _prepare_rank(plan, each, environment, launched, settings, library) for each in placements
    )


def explain_ranks(plan: Plan, settings: Settings) -> tuple[RankStart, ...]:
    """Work out what every rank of the plan would get, without looking for a port or for the allocator's folder."""
    _check(plan, settings)
    launched = _launch_settings(plan, settings, None)
    environment = {MARKER: "", **plan.environment}
    library = None
    if settings.malloc != "none":
        from wellfed.host.allocator import LIBRARIES

        library = f"/…/{LIBRARIES[settings.malloc][0]}"
    return tuple(
        _prepare_rank(plan, each, environment, launched, settings, library)
        for each in plan.placement.ranks
    )


def _launch_settings(plan: Plan, settings: Settings, port: int | None) -> LaunchSettings:
    return LaunchSettings(
        starts_ranks=plan.starts_ranks,
        master_port=port,
        one_visible=settings.one_visible,
        gpus=plan.chosen_gpus,
        nic_variables=settings.nic_variables,
        keep=settings.keep,
    )


def _prepare_rank(
    plan: Plan,
    rank: RankPlacement,
    environment: Mapping[str, str],
    launched: LaunchSettings,
    settings: Settings,
    library: str | None,
) -> RankStart:
    if settings.num_threads is not None:
        rank = replace(rank, num_threads=settings.num_threads)
    changes = rank_environment(
        rank, plan.job, environment, machine=plan.machine, visible=plan.visible, settings=launched
    )
    if library is not None:
        from wellfed.placement.malloc import malloc_environment

        num_threads = _num_loader_threads(rank)
        changes += malloc_environment(settings.malloc, library, num_threads, environment)
    if rank.cpus and MARKER not in environment:
        mark, reason = str(os.getpid()), "by it other jobs leave this one its CPUs"
        changes += (EnvironmentChange(MARKER, mark, None, reason),)
    if rank.roles:
        text = ";".join(f"{role}:{cpus}" for role, cpus in rank.roles)
        reason = "CPUs of each role, for the job to use"
        changes += (EnvironmentChange(ROLES, text, environment.get(ROLES), reason),)
    changes = tuple(_kept(each) if each.name in settings.keep else each for each in changes)
    return RankStart(rank, changed(environment, changes), changes)


def _kept(change: EnvironmentChange) -> EnvironmentChange:
    """Leave a variable as it is because a person asked for that."""
    if change.kept:
        return change
    return EnvironmentChange(
        change.name, change.before, change.before, f"kept as you asked: {change.reason}"
    )


def _warn_where_no_preload(path: str, environment: Mapping[str, str], narrator: Narrator) -> None:
    from wellfed.host.allocator import why_not_preloaded

    why = why_not_preloaded(path, environment)
    if why is not None:
        narrator.warn(f"--malloc has no effect: {why}")


def _num_loader_threads(rank: RankPlacement) -> int:
    """Count the threads that decode: the loader's CPUs where roles are split, else those of all work."""
    roles = dict(rank.roles)
    return len(roles["loader"]) if "loader" in roles else rank.num_threads


def _check(plan: Plan, settings: Settings) -> None:
    """Refuse what makes no sense together, whether it is launched or explained."""
    if settings.log_folder is not None and not plan.starts_ranks:
        raise UsageError(
            "--log-dir was given, and one process writes where it always does",
            remedy="add --per-gpu or --ranks N, or redirect the output: > job.log 2>&1",
        )
    if settings.memory_limit_bytes is not None and not settings.isolate:
        raise UsageError(
            "--memory-limit was given without --isolate, whose cgroup it limits",
            remedy="add --isolate",
        )


def refuse_remote(plan: Plan, rank: RankPlacement) -> None:
    """Refuse, under --strict, what cannot be beside its GPU."""
    if rank.local is True:
        return
    why = "; ".join((*rank.notes, *plan.placement.notes)) or "where its GPU is cannot be known"
    raise PlacementError(
        f"--strict: rank {rank.local_rank} would not be beside its GPU: {why}",
        remedy="look at `wellfed run --explain -v`, or leave --strict out",
    )
