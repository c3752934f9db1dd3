"""How are a rank's cores divided among its roles?

A training process is several programs in one: the main thread that launches kernels, loader workers that decode, the
thread that pins batches, NCCL's proxies that feed the network, and checkpoint writers. A main thread that has to share
its core with a decoder launches late, and the GPU waits. Roles are cores set apart inside the rank's own CPUs.
"""

from __future__ import annotations

from wellfed.model.cpuset import CpuSet, union
from wellfed.model.errors import PlacementError, UsageError
from wellfed.model.placement import ROLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from wellfed.model.machine import Machine

DEFAULT_SHARES = {"loader": 2, "nccl": 8, "pin": 16, "checkpoint": 16}
"""One core in how many a role gets where its number of cores is not given, at least one core. These are starting
points of our own and no measurement: half of the cores decode, one in eight drives NCCL's proxies. Of 14 cores: loader
7, nccl 1, pin 1, checkpoint 1, main 4."""


def split_roles(
    machine: Machine, cpus: CpuSet, asked: Sequence[tuple[str, int]], *, smt: str
) -> tuple[tuple[str, CpuSet], ...]:
    """Divide a rank's CPUs; ``asked`` is (role, cores), 0 cores for the default share. ``main`` keeps what is left.

    Under ``smt`` ``first``, main has the first thread of every core and the other roles divide the sibling threads;
    without siblings, whole cores are divided as under ``on``.
    """
    _check(asked)
    cores = machine.cores(cpus)
    firsts = union(CpuSet([core.first]) for core in cores)
    siblings = tuple(core - firsts for core in cores if core - firsts)
    if smt == "first" and siblings:
        others = [(role, count) for role, count in asked if role != "main"] or [
            ("loader", len(siblings))
        ]
        dealt = _deal(siblings, others, reserve_for_main=0)
        return (("main", firsts), *dealt)
    if not asked:
        return ()
    if len(cores) < 2:
        raise PlacementError(
            f"CPUs {cpus or 'none'} are {len(cores)} core, too few to set any apart for roles",
            remedy="drop --roles, or give the rank more cores",
        )
    wanted_main = dict(asked).get("main", 0)
    others = [(role, count) for role, count in asked if role != "main"]
    dealt = _deal(cores, others, reserve_for_main=max(wanted_main, 1))
    left = cpus - union(share for _, share in dealt)
    return (("main", left), *dealt)


def _deal(
    cores: tuple[CpuSet, ...], asked: Sequence[tuple[str, int]], *, reserve_for_main: int
) -> tuple[tuple[str, CpuSet], ...]:
    """Hand out cores from the high end, so that main keeps the low ones."""
    counts = [(role, count or max(1, len(cores) // DEFAULT_SHARES[role])) for role, count in asked]
    needed = sum(count for _, count in counts)
    if needed + reserve_for_main > len(cores):
        listed = ", ".join(f"{role} {count}" for role, count in counts)
        raise PlacementError(
            f"roles want {needed} cores ({listed}) and main {reserve_for_main}; the rank has {len(cores)}",
            remedy="ask for fewer cores: --roles loader=4,nccl=1",
        )
    end, dealt = len(cores), []
    for role, count in counts:
        dealt.append((role, union(cores[end - count : end])))
        end -= count
    return tuple(dealt)


def _check(asked: Sequence[tuple[str, int]]) -> None:
    names = [role for role, _ in asked]
    for role, count in asked:
        if role not in ROLES or count < 0 or names.count(role) > 1:
            raise UsageError(
                f"{role}={count} is no role with a number of cores",
                remedy=f"name each role once: {', '.join(ROLES)}",
            )
