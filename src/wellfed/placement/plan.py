"""Where does each rank of a job go on this host?

One pure function from what is known to the whole plan: every rank computes all of it and takes its own part, so that
it does not matter which rank starts first. The same input gives the same plan.
"""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet, union
from wellfed.model.errors import PlacementError, UsageError
from wellfed.model.placement import MEMORY_MODES, SMT_MODES, MemoryPolicy, Placement, RankPlacement
from wellfed.model.value import replace
from wellfed.placement.choose import seats_of
from wellfed.placement.distances import nodes_of
from wellfed.placement.home import home_of, without_local_cpus, without_overlap
from wellfed.placement.memory import choose_memory, refuse_hard_bind
from wellfed.placement.nics import nic_names
from wellfed.placement.policies import policy_named
from wellfed.placement.policies._base import Ground, Policy, Seat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wellfed.model.job import Job, VisibleDevices
    from wellfed.model.machine import Machine
    from wellfed.model.placement import Wishes
    from wellfed.placement.home import Home

NO_GPU = "no GPU is visible: the CPU mask is left alone"
LOST = "its rank keeps every CPU that it may use, because a guessed node would be wrong half of the time"
LOST_SPLIT = "its rank has cores of its own, chosen without regard to where the GPU is"
NO_GPU_SPLIT = "no GPU is visible: cores are split among the ranks without regard to one"


def plan(machine: Machine, job: Job | None, visible: VisibleDevices, wishes: Wishes) -> Placement:
    """Place every rank of a job, or the one process beside all GPUs it sees where there is no job.

    CPUs lie inside online ∩ allowed; memory comes from nodes of host memory inside Mems_allowed. Where only this rank's
    own GPU is visible the plan holds this rank alone. UsageError: wishes or ranks that make no sense; GpuError: a wished
    GPU that is not there; PlacementError: no plan fulfils the wishes, with the figures.
    """
    policy = policy_named(wishes.policy)
    ground = _ground(machine, wishes)
    _check(job, wishes, ground)
    seats = seats_of(machine, job, visible, wishes)
    homes = {rank: home_of(machine, ground.allowed, gpus) for rank, gpus in seats.gpus}
    if policy.own:
        homes = without_overlap(homes)
    if seats.by_device and policy.own and job is not None:
        _check_devices(job, len(seats.own), len(homes))
    cpus = _cpus(policy, ground, homes, job, wishes)
    threads = _threads_by_rank(machine, cpus, ground, job)
    if seats.by_device and job is not None and job.local_rank is not None:
        own, mine = job.local_rank, dict.fromkeys(seats.own)
        home = home_of(machine, ground.allowed, tuple(dict.fromkeys(visible.gpus)))
        is_split = all(homes[device].cpus is not None for device in mine)
        homes = {own: home if is_split else without_local_cpus(home)}
        cpus = {own: union(cpus[device] for device in mine)}
        threads = {own: sum(threads[device] for device in mine)}
    ranks = [
        _rank_placement(machine, policy, wishes, rank, home, cpus[rank], threads[rank])
        for rank, home in homes.items()
    ]
    if wishes.memory == "bind":
        _check_binds(machine, ranks, wishes)
    notes = (
        *(job.notes if job is not None else ()),
        *visible.notes,
        *seats.notes,
        *_unknown_cores(machine, union(rank.cpus for rank in ranks)),
    )
    return Placement(wishes.policy, tuple(ranks), tuple(dict.fromkeys(notes)))


def _check(job: Job | None, wishes: Wishes, ground: Ground) -> None:
    if wishes.smt not in SMT_MODES:
        raise UsageError(
            f"{wishes.smt!r} is no SMT mode", remedy=f"choose one of: {', '.join(SMT_MODES)}"
        )
    if wishes.memory not in MEMORY_MODES:
        raise UsageError(
            f"{wishes.memory!r} is no memory mode",
            remedy=f"choose one of: {', '.join(MEMORY_MODES)}",
        )
    if wishes.reserve_cores_per_node < 0:
        raise UsageError(
            f"{wishes.reserve_cores_per_node} reserved cores a node are less than none",
            remedy="reserve 0 cores or more",
        )
    if not ground.machine.cpus:
        raise PlacementError(
            f"{ground.machine.name} names no CPU, so there is none to give",
            remedy="plan from a recording of the host itself: wellfed capture FILE",
        )
    if not ground.allowed:
        raise PlacementError(
            "no CPU is both online and allowed to this process",
            remedy="look at the cpuset and the affinity: grep Cpus_allowed_list /proc/self/status",
        )
    if job is None:
        return
    if job.num_local_ranks < 1:
        raise UsageError(
            f"a job with {job.num_local_ranks} ranks on this host has nothing to place",
            remedy="start at least one rank",
        )
    if job.local_rank is not None and not 0 <= job.local_rank < job.num_local_ranks:
        raise UsageError(
            f"rank {job.local_rank} is outside the plan for {job.num_local_ranks} ranks",
            remedy=f"choose a rank from 0 to {job.num_local_ranks - 1}",
        )


def _check_devices(job: Job, num_own: int, num_devices: int) -> None:
    """Refuse to guess where ranks outnumber the GPUs that each is taken to have for its own."""
    if job.num_local_ranks * num_own > num_devices:
        raise PlacementError(
            f"{job.num_local_ranks} ranks with as many GPUs as this one sees ({num_own}) are more than the {num_devices}"
            " of this host: which ranks share cannot be seen from here, so cores cannot be split",
            remedy="share CPUs (--policy node), or leave CUDA_VISIBLE_DEVICES whole for every rank",
        )


def _ground(machine: Machine, wishes: Wishes) -> Ground:
    """Take what is allowed, what the wishes reserve, and what other jobs hold."""
    allowed = machine.allowed.cpus & machine.online
    reserved = wishes.reserve
    if wishes.reserve_cores_per_node > 0:
        placed = union(node.cpus for node in machine.nodes)
        for cpus in (*(node.cpus for node in machine.nodes), machine.online - placed):
            cores = machine.cores(cpus & allowed)
            reserved |= union(cores[: wishes.reserve_cores_per_node])
    return Ground(machine, allowed, reserved & allowed, wishes.taken & allowed)


def _cpus(
    policy: Policy,
    ground: Ground,
    homes: Mapping[int, Home],
    job: Job | None,
    wishes: Wishes,
) -> dict[int, CpuSet]:
    """Let the policy give CPUs. Without a GPU there is nothing to be beside, and only a split of cores makes sense."""
    without_gpu = not any(home.gpus for home in homes.values())
    if without_gpu and not (policy.own and job is not None):
        return dict.fromkeys(homes, EMPTY)
    given: dict[int, CpuSet] = {}
    for beside in dict.fromkeys(home.cpus for home in homes.values()):
        seats = [Seat(rank, home.nodes) for rank, home in homes.items() if home.cpus == beside]
        part = ground if beside is None else replace(ground, allowed=ground.allowed & beside)
        given |= policy.give(part, tuple(seats))
    return {rank: _thin(ground.machine, cpus, wishes.smt) for rank, cpus in given.items()}


def _thin(machine: Machine, cpus: CpuSet, smt: str) -> CpuSet:
    """Keep one thread a core under ``off``."""
    if smt != "off":
        return cpus
    return CpuSet(core.first for core in machine.cores(cpus))


def _threads_by_rank(
    machine: Machine, cpus: Mapping[int, CpuSet], ground: Ground, job: Job | None
) -> dict[int, float]:
    """Share cores among the ranks that may run on them, and ``cpu.max`` among the ranks of this host.

    Four ranks on a node of 56 cores: 14 threads each. A quota of 16 CPUs for those four: 4 threads each.
    """
    where = {rank: mask or ground.allowed for rank, mask in cpus.items()}
    users: dict[CpuSet, int] = {}
    for mask in where.values():
        users[mask] = users.get(mask, 0) + 1
    share_of = {mask: _share(machine, mask, users) for mask in users}
    shares = {rank: share_of[mask] for rank, mask in where.items()}
    quota = machine.allowed.cpu_quota
    if quota is not None:
        num_ranks = job.num_local_ranks if job is not None else 1
        shares = {rank: min(share, quota / num_ranks) for rank, share in shares.items()}
    return shares


def _share(machine: Machine, mask: CpuSet, users: Mapping[CpuSet, int]) -> float:
    """Count cores, each divided by the number of ranks that may run on it."""
    cores = machine.cores(mask)
    others = [(other, count) for other, count in users.items() if other != mask and other & mask]
    if not others:
        return len(cores) / users[mask]
    return sum(
        1 / (users[mask] + sum(count for other, count in others if other & core)) for core in cores
    )


def _rank_placement(
    machine: Machine,
    policy: Policy,
    wishes: Wishes,
    rank: int,
    home: Home,
    cpus: CpuSet,
    threads: float,
) -> RankPlacement:
    memory, notes = MemoryPolicy("none"), home.notes
    if not home.gpus:
        notes = (NO_GPU_SPLIT if cpus else NO_GPU,)
    elif home.cpus is not None and cpus:
        notes += (f"its rank gets those of the CPUs called local, {home.cpus}, that it may use",)
    elif home.nodes is None and cpus:
        notes += (LOST_SPLIT if policy.own else LOST,)
    if home.gpus or wishes.memory in ("interleave", "weighted", "local"):
        memory, memory_notes = choose_memory(machine, home.gpu_nodes, wishes)
        notes += memory_notes
    roles = _roles(machine, wishes, cpus)
    if wishes.roles and not cpus:
        notes += ("no CPUs are set for this rank, so none are set apart for its roles",)
    if roles:
        threads = min(threads, len(machine.cores(dict(roles)["main"])))
    gpu = machine.gpu_at(home.gpus[0]) if home.gpus else None
    return RankPlacement(
        rank,
        home.gpus,
        cpus,
        memory,
        num_cores=len(machine.cores(cpus)),
        num_threads=max(1, int(threads + 1e-9)),
        roles=roles,
        cpu_nodes=nodes_of(machine, cpus),
        local=home.local if cpus else None,
        nics=nic_names(machine, gpu) if gpu is not None else (),
        notes=notes,
    )


def _roles(machine: Machine, wishes: Wishes, cpus: CpuSet) -> tuple[tuple[str, CpuSet], ...]:
    if not cpus or not (wishes.roles or wishes.smt == "first"):
        return ()
    from wellfed.placement.roles import split_roles

    return split_roles(machine, cpus, wishes.roles, smt=wishes.smt)


def _check_binds(machine: Machine, ranks: Iterable[RankPlacement], wishes: Wishes) -> None:
    """Refuse a hard bind where the ranks of some nodes together want more than the nodes have left."""
    groups: dict[NodeSet, int] = {}
    for rank in ranks:
        if rank.memory.mode == "bind":
            groups[rank.memory.nodes] = groups.get(rank.memory.nodes, 0) + 1
    for nodes, count in groups.items():
        wanted = None if wishes.wanted_bytes is None else wishes.wanted_bytes * count
        refuse_hard_bind(machine, nodes, wanted)


def _unknown_cores(machine: Machine, cpus: CpuSet) -> tuple[str, ...]:
    """Say that whole cores cannot be promised where a description does not tell which CPUs are threads of one core."""
    if not any(cpu.online and not cpu.core and cpu.cpu in cpus for cpu in machine.cpus):
        return ()
    return (
        "which CPUs are threads of one core is not recorded: each CPU is counted as a core of its own",
    )
