"""What holds for every plan, on every machine?"""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.machines import everything
from tests.strategies import jobs, machines, wishes
from wellfed.model.cpuset import CpuSet, NodeSet, union
from wellfed.model.errors import PlacementError
from wellfed.model.job import Job
from wellfed.model.machine import Machine
from wellfed.model.placement import Placement, Wishes
from wellfed.model.value import replace
from wellfed.placement.plan import plan
from wellfed.placement.policies import policy_names

SHARING = ("node", "socket", "none")
OWN = ("exclusive", "core-complex")
patient = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def planned(host: Machine, job: Job | None, wanted: Wishes) -> Placement:
    """Plan, and leave the case out where no plan fulfils the wishes."""
    try:
        return plan(host, job, everything(host), wanted)
    except PlacementError as refusal:
        assert refusal.remedy
        assume(False)
        raise


@given(machines(), jobs(), wishes(policy_names()))
@patient
def test_cpus_are_online_and_allowed(host, job, wanted):
    """No plan names a CPU that is offline or outside the cpuset."""
    found = planned(host, job, wanted)

    for rank in found.ranks:
        assert rank.cpus <= host.online & host.allowed.cpus


@given(machines(), jobs(), wishes(policy_names()))
@patient
def test_every_rank_has_a_thread_and_a_place_in_the_plan(host, job, wanted):
    """Ranks are planned in order, each with one thread at least; CPUs are none only where masks are left alone."""
    found = planned(host, job, wanted)

    assert [rank.local_rank for rank in found.ranks] == list(
        range(job.num_local_ranks if job else 1)
    )
    for rank in found.ranks:
        assert rank.num_threads >= 1
        assert rank.cpus or wanted.policy == "none" or not host.gpus


@given(machines(), jobs(), wishes(OWN))
@patient
def test_ranks_with_cores_of_their_own_share_none(host, job, wanted):
    """Under exclusive and core-complex no CPU belongs to two ranks."""
    found = planned(host, job, wanted)

    assert sum(len(rank.cpus) for rank in found.ranks) == len(
        union(rank.cpus for rank in found.ranks)
    )


@given(machines(), jobs(), wishes(OWN))
@patient
def test_cores_of_their_own_are_whole(host, job, wanted):
    """With SMT on, a rank has every allowed thread of each of its cores, and nobody else has a thread there."""
    wanted = replace(wanted, smt="on")
    found = planned(host, job, wanted)

    for rank in found.ranks:
        for cpu in rank.cpus:
            core = host.cpu(cpu).core & host.allowed.cpus
            assert core <= rank.cpus
            assert not core & (wanted.taken | wanted.reserve)


@given(machines(), jobs(), wishes(("exclusive",)))
@patient
def test_ranks_of_one_node_get_equally_many_cores(host, job, wanted):
    """Ranks whose GPUs are on one node differ by one core at most, as long as no other rank reaches into it."""
    wanted = replace(wanted, smt="on")
    found = planned(host, job, wanted)
    assume(all(gpu.cpu_node is not None for gpu in host.gpus) and host.gpus and job is not None)
    assume(all(rank.local for rank in found.ranks))

    by_node: dict[NodeSet, list[int]] = {}
    for rank in found.ranks:
        assume(len(rank.gpus) == 1)
        by_node.setdefault(NodeSet([host.gpu_at(rank.gpus[0]).cpu_node]), []).append(rank.num_cores)
    for counts in by_node.values():
        assert max(counts) - min(counts) <= 1


@given(machines(), jobs(), wishes(policy_names()))
@patient
def test_a_local_rank_is_on_its_gpus_nodes(host, job, wanted):
    """`local` is True only beside the GPU; under `socket` the package may reach further."""
    found = planned(host, job, wanted)

    for rank in found.ranks:
        if rank.local and (wanted.policy != "socket" or not rank.cpu_nodes):
            assert rank.cpus <= union(beside(host, each) for each in rank.gpus)
        if rank.local is False:
            assert any("no CPU of node" in n or "none of the CPUs" in n for n in rank.notes)


def beside(host: Machine, address: str) -> CpuSet:
    """Give the CPUs beside a GPU: its node's, or where that is unknown those called local, unless all are."""
    gpu = host.gpu_at(address)
    if gpu.cpu_node is not None:
        return host.cpus_of([gpu.cpu_node])
    local = union(core for core in host.cores(host.online) if core & (gpu.local_cpus or CpuSet()))
    return CpuSet() if local == host.online else local


@given(machines(), jobs(), wishes(policy_names()))
@patient
def test_memory_comes_from_host_memory_that_is_allowed(host, job, wanted):
    """No target without memory, outside Mems_allowed, or in a GPU's own memory."""
    found = planned(host, job, wanted)

    allowed = (
        host.memory_nodes if host.allowed.mems is None else host.memory_nodes & host.allowed.mems
    )
    assume(host.memory_nodes)
    for rank in found.ranks:
        assert rank.memory.nodes <= allowed


@given(machines(), jobs(), wishes(("node",)))
@patient
def test_a_gpu_whose_place_is_unknown_narrows_nothing(host, job, wanted):
    """A rank beside a GPU of which neither node nor CPUs are known keeps the whole allowed mask, and its memory policy."""
    wanted = replace(
        wanted, smt="on", reserve=CpuSet(), reserve_cores_per_node=0, memory="preferred"
    )
    found = planned(host, job, wanted)

    for rank in found.ranks:
        if rank.gpus and not all(beside(host, each) for each in rank.gpus):
            assert rank.cpus == host.allowed.cpus
            assert rank.local is None
            assert rank.memory.mode == "none"


@given(machines(), jobs(), wishes(policy_names()))
@patient
def test_the_same_question_has_the_same_answer_for_every_rank(host, job, wanted):
    """Plans do not depend on who asks."""
    found = planned(host, job, wanted)

    for local_rank in range(job.num_local_ranks if job else 0):
        asking = replace(job, local_rank=local_rank)
        if len(host.gpus) != 1:
            assert planned(host, asking, wanted) == found


@given(machines(), jobs(), wishes(OWN), st.sets(st.integers(0, 60), max_size=8).map(CpuSet))
@patient
def test_what_other_jobs_took_is_never_given(host, job, wanted, more):
    """Cores of their own never include a core of which another job has a thread, whatever is added."""
    wanted = replace(wanted, taken=wanted.taken | more)
    found = planned(host, job, wanted)

    for rank in found.ranks:
        assert not rank.cpus & wanted.taken


@given(machines(), jobs(), wishes(policy_names()))
@patient
def test_roles_divide_a_rank(host, job, wanted):
    """Roles lie inside the rank's CPUs, are disjoint, and leave main something."""
    found = planned(host, job, wanted)

    for rank in found.ranks:
        shares = [share for _, share in rank.roles]
        assert union(shares) <= rank.cpus
        assert sum(map(len, shares)) == len(union(shares))
        assert all(shares)


@given(machines(), jobs(), wishes(policy_names()))
@patient
def test_one_thread_a_core_without_smt(host, job, wanted):
    """`off` gives one thread of a core at most."""
    wanted = replace(wanted, smt="off")
    found = planned(host, job, wanted)

    for rank in found.ranks:
        assert len(rank.cpus) == rank.num_cores


@given(machines(), jobs(), wishes(policy_names()))
@patient
def test_threads_fit_into_the_quota(host, job, wanted):
    """The ranks of a host together plan no more threads than cpu.max pays for, beyond the one that each needs."""
    found = planned(host, job, wanted)

    if host.allowed.cpu_quota is not None:
        busy = sum(rank.num_threads for rank in found.ranks if rank.num_threads > 1)
        assert busy <= host.allowed.cpu_quota
