"""Does each rank go where it should?"""

from __future__ import annotations

import pytest

from tests.machines import (
    GIB,
    allowing,
    device,
    dgx_a100,
    dgx_h100,
    everything,
    gpu,
    machine,
    mig,
    pairs,
    placed,
    ranks,
    uuid,
)
from wellfed.model.cpuset import CpuSet, NodeSet
from wellfed.model.errors import GpuError, PlacementError, UsageError
from wellfed.model.job import Job, VisibleDevices
from wellfed.model.machine import Machine, Nic
from wellfed.model.placement import MemoryPolicy, RankPlacement, Wishes
from wellfed.model.value import replace
from wellfed.placement.choose import choose_gpus
from wellfed.placement.memory import memory_policy, refuse_hard_bind
from wellfed.placement.nics import nearest_nics, nic_names
from wellfed.placement.plan import plan
from wellfed.placement.policies import policy_named, policy_names
from wellfed.placement.visible import visible_devices


def cpus(found) -> list[str]:
    """Write the CPUs of every rank."""
    return [str(rank.cpus) for rank in found.ranks]


def four_on_one_node(**fields: object) -> Machine:
    """One node of eight cores with two threads, beside four GPUs."""
    return machine({0: "0-15"}, cores=pairs(8), gpus=[gpu(i, 0) for i in range(4)], **fields)


# -- policies ----------------------------------------------------------------------------------------------------------


def test_node_shares_the_gpus_node():
    """Ranks 0-3 of a DGX H100 share node 0, ranks 4-7 node 1, with a quarter of its cores each for threads."""
    found = placed(dgx_h100(), 8)

    assert cpus(found) == ["0-55,112-167"] * 4 + ["56-111,168-223"] * 4
    assert {rank.num_threads for rank in found.ranks} == {14}
    assert {rank.num_cores for rank in found.ranks} == {56}
    assert [rank.memory for rank in found.ranks[3:5]] == [
        MemoryPolicy("preferred", NodeSet([0])),
        MemoryPolicy("preferred", NodeSet([1])),
    ]


def test_exclusive_cuts_the_node_into_runs_of_whole_cores():
    """Eight ranks of a DGX H100 have 14 cores each, both threads of every core."""
    found = placed(dgx_h100(), 8, policy="exclusive")

    assert cpus(found)[:2] == ["0-13,112-125", "14-27,126-139"]
    assert cpus(found)[7] == "98-111,210-223"


def test_a_rest_goes_to_the_first_ranks():
    """Seven cores and two ranks: four and three."""
    found = placed(machine({0: "0-6"}, gpus=[gpu(0, 0), gpu(1, 0)]), 2, policy="exclusive")

    assert cpus(found) == ["0-3", "4-6"]


def test_gpus_decide_and_not_the_number_of_the_rank():
    """On a DGX A100, GPU 0 is beside node 3 and GPU 2 beside node 1."""
    found = placed(dgx_a100(), 8, policy="exclusive")

    assert [str(rank.cpu_nodes) for rank in found.ranks] == ["3", "3", "1", "1", "7", "7", "5", "5"]
    assert cpus(found)[0] == "48-55,176-183"


def test_core_complex_gives_whole_caches():
    """Two ranks on a node with four L3s get two neighbouring ones each."""
    found = placed(dgx_a100(), 8, policy="core-complex")

    assert cpus(found)[:2] == ["48-55,176-183", "56-63,184-191"]


def test_core_complex_never_straddles_a_cache_while_there_are_enough():
    """Three ranks on four L3s of two cores: one rank gets two caches, the others one each."""
    host = machine({0: "0-7"}, l3=["0-1", "2-3", "4-5", "6-7"], gpus=[gpu(i, 0) for i in range(3)])

    assert cpus(placed(host, 3, policy="core-complex")) == ["0-3", "4-5", "6-7"]
    assert cpus(placed(host, 3, policy="exclusive")) == ["0-2", "3-5", "6-7"]


def test_core_complex_splits_a_cache_only_where_ranks_outnumber_caches():
    """Four ranks on two L3s: two share one, by whole cores."""
    host = machine(
        {0: "0-15"},
        cores=pairs(8),
        l3=["0-3,8-11", "4-7,12-15"],
        gpus=[gpu(i, 0) for i in range(4)],
    )

    found = placed(host, 4, policy="core-complex")

    assert cpus(found) == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]


def test_larger_caches_take_more_ranks():
    """A cpuset left one L3 whole and one with a single core: three ranks share the first, the rest goes to the other."""
    host = allowing(
        machine({0: "0-7"}, l3=["0-3", "4-7"], gpus=[gpu(i, 0) for i in range(4)]), "0-4"
    )

    found = placed(host, 4, policy="core-complex")

    assert cpus(found) == ["0-1", "2", "3", "4"]


def test_clusters_stand_in_for_caches():
    """Where the kernel shows no L3 (many ARM servers), clusters are the unit; without those, cores."""
    host = machine({0: "0-5"}, clusters=["0-1", "2-3", "4-5"], gpus=[gpu(0, 0), gpu(1, 0)])

    assert cpus(placed(host, 2, policy="core-complex")) == ["0-3", "4-5"]


def test_socket_takes_every_node_of_the_package():
    """With two nodes a socket, a rank may run on both, and its memory stays on the GPU's own."""
    host = machine(
        {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"},
        packages={0: "0-7", 1: "8-15"},
        gpus=[gpu(0, 1), gpu(1, 2)],
    )

    found = placed(host, 2, policy="socket")

    assert cpus(found) == ["0-7", "8-15"]
    assert [rank.memory.nodes for rank in found.ranks] == [NodeSet([1]), NodeSet([2])]


def test_socket_needs_to_know_packages():
    """Without package ids there is no socket, and the remedy names what works."""
    with pytest.raises(PlacementError) as refusal:
        placed(machine({0: "0-3"}, gpus=[gpu(0, 0)]), 1, policy="socket")

    assert "--policy node" in refusal.value.remedy


def test_none_leaves_the_mask_alone():
    """Under `none` no CPUs are planned, and threads still fit the host."""
    found = placed(four_on_one_node(), 4, policy="none")

    assert cpus(found) == [""] * 4
    assert found.ranks[0].num_threads == 2


def test_too_few_cores_are_refused_with_the_figures():
    """Nine ranks on eight cores: what there is, what was wanted, what to do."""
    with pytest.raises(PlacementError) as refusal:
        placed(four_on_one_node(), 9, policy="exclusive", taken=CpuSet([3]), reserve=CpuSet([0, 8]))

    assert refusal.value.message == (
        "node 0 has 6 free whole cores for 9 ranks (8 allowed, 1 reserved, 1 taken by other jobs)"
    )
    assert "--policy node" in refusal.value.remedy


def test_policies_are_found_by_their_files():
    """A policy is one file; an unknown one is refused with those there are."""
    assert policy_names() == ("core-complex", "exclusive", "node", "none", "socket")
    assert [policy_named(name).name for name in policy_names()] == list(policy_names())
    with pytest.raises(UsageError, match="no policy"):
        policy_named("numa")


# -- what is left of the host ------------------------------------------------------------------------------------------


def test_plans_stay_inside_the_cpuset():
    """A cpuset cuts the node, whole cores stay whole."""
    found = placed(allowing(dgx_h100(), "4-11,116-123"), 4, policy="exclusive")

    assert cpus(found) == ["4-5,116-117", "6-7,118-119", "8-9,120-121", "10-11,122-123"]


def test_nearest_allowed_cpus_are_taken_aloud():
    """No CPU of the GPU's node is allowed: the nearest node's are taken, not local, and the rank says so."""
    host = allowing(dgx_a100(), "32-35,64-67")

    found = placed(host, 1)

    assert cpus(found) == ["32-35"]
    assert found.ranks[0].local is False
    assert "nearest allowed CPUs are on node 2" in found.ranks[0].notes[0]


def test_of_equally_near_nodes_all_are_taken():
    """Nodes 0 and 2 are as near to node 3 as each other."""
    found = placed(allowing(dgx_a100(), "0-3,32-35"), 1)

    assert cpus(found) == ["0-3,32-35"]


def test_without_distances_the_whole_mask_stays():
    """Where no distance is recorded no node is near: everything allowed, and the rank says so."""
    host = allowing(
        machine({0: "0-3", 1: "4-7", 2: "8-11"}, distances={}, gpus=[gpu(0, 0)]), "4-11"
    )

    found = placed(host, 1)

    assert cpus(found) == ["4-11"]
    assert found.ranks[0].local is False
    assert "not recorded" in found.ranks[0].notes[0]


def test_an_unknown_place_narrows_nothing():
    """A GPU without a node leaves mask and memory policy as they are."""
    host = machine({0: "0-3", 1: "4-7"}, gpus=[gpu(0), gpu(1, 1)])

    found = placed(host, 2)

    assert cpus(found) == ["0-7", "4-7"]
    assert found.ranks[0].local is None
    assert found.ranks[0].memory.mode == "none"
    assert "no source tells" in found.ranks[0].notes[0]


def test_cpus_of_a_whole_socket_are_a_place():
    """With two nodes a socket, a list of both gives the rank both, and its memory."""
    host = machine(
        {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"},
        gpus=[gpu(0, local_cpus=CpuSet.parse("0-7")), gpu(1, 3)],
    )

    first, second = placed(host, 2, policy="exclusive").ranks

    assert (str(first.cpus), first.local, str(first.memory.nodes)) == ("0-7", True, "0-1")
    assert (str(second.cpus), second.local) == ("12-15", True)
    assert "the CPUs called local are those of nodes 0-1" in first.notes


def test_local_cpus_outside_the_cpuset_narrow_nothing():
    """None of them is allowed, and no node tells what is near: said, and everything allowed is kept."""
    host = machine({0: "0-7"}, gpus=[gpu(0, local_cpus=CpuSet.parse("0-3"))], allowed="4-6")

    (rank,) = placed(host, 1).ranks

    assert (str(rank.cpus), rank.local) == ("4-6", False)
    assert "none of the CPUs called local, 0-3, is allowed here" in rank.notes


def test_reserved_cores_come_from_cpus_without_a_node_too():
    """A description without nodes keeps as many cores free as a node would."""
    host = machine({0: "0-7"}, gpus=[gpu(0)])
    host = replace(host, nodes=(), cpus=tuple(replace(cpu, node=None) for cpu in host.cpus))

    assert cpus(placed(host, 1, reserve_cores_per_node=2)) == ["2-7"]


def test_an_unknown_place_shares_fairly_with_known_ones():
    """Exclusive cores of a rank without a place come from where fewest ranks need them."""
    host = machine({0: "0-3", 1: "4-7"}, gpus=[gpu(0), gpu(1, 0), gpu(2, 0)])

    found = placed(host, 3, policy="exclusive")

    assert cpus(found) == ["4-7", "0-1", "2-3"]
    assert [rank.local for rank in found.ranks] == [None, True, True]


def test_ranks_without_any_place_stay_inside_nodes():
    """Two ranks of a guest that tells nothing get a node each instead of halves of both."""
    host = machine({0: "0-1,4-5", 1: "2-3,6-7"}, cores=pairs(4), gpus=[gpu(0), gpu(1)])

    assert cpus(placed(host, 2, policy="exclusive")) == ["0-1,4-5", "2-3,6-7"]


def test_cores_of_other_jobs_are_not_given():
    """One thread of a core is enough to keep the whole core out."""
    found = placed(four_on_one_node(), 2, policy="exclusive", taken=CpuSet([1, 10]))

    assert cpus(found) == ["0,3-4,8,11-12", "5-7,13-15"]


def test_sharing_leaves_bound_cpus_to_their_job():
    """Under `node` what another job bound is left out, unless that is all there is."""
    some = placed(four_on_one_node(), 1, taken=CpuSet.parse("0-3"))
    all_of_it = placed(four_on_one_node(), 1, taken=CpuSet.parse("0-15"))

    assert cpus(some) == ["4-15"]
    assert cpus(all_of_it) == ["0-15"]


def test_reserved_cores_stay_with_the_system():
    """One core a node is the first whole core of each."""
    shared = placed(dgx_h100(), 8, reserve_cores_per_node=1)
    own = placed(dgx_h100(), 8, policy="exclusive", reserve_cores_per_node=2)

    assert cpus(shared)[0] == "1-55,113-167"
    assert cpus(shared)[7] == "57-111,169-223"
    assert cpus(own)[0] == "2-15,114-127"
    assert {rank.num_cores for rank in own.ranks} == {14, 13}


def test_reserving_everything_is_refused():
    """Nothing left beside the GPU is an error, and not a move to the far node."""
    host = machine({0: "0-1", 1: "2-3"}, gpus=[gpu(0, 0)])

    for policy in ("node", "exclusive"):
        with pytest.raises(PlacementError):
            placed(host, 1, policy=policy, reserve=CpuSet([0, 1]))


def test_an_empty_cpuset_is_refused():
    """No allowed online CPU: one sentence, where to look."""
    with pytest.raises(PlacementError, match="no CPU is both online and allowed"):
        placed(machine({0: "0-3"}, offline="2-3", allowed="2-3", gpus=[gpu(0, 0)]), 1)


def test_offline_cpus_are_never_planned():
    """A core with an offline thread is the threads that are left."""
    found = placed(four_on_one_node(offline="8-11"), 4, policy="exclusive")

    assert cpus(found) == ["0-1", "2-3", "4-5,12-13", "6-7,14-15"]


# -- threads and SMT ---------------------------------------------------------------------------------------------------


def test_smt_off_takes_one_thread_a_core():
    """The first allowed thread of each core stays."""
    found = placed(allowing(four_on_one_node(), "0-3,8-13"), 1, smt="off")

    assert cpus(found) == ["0-3,12-13"]


def test_four_threads_a_core_stay_together():
    """SMT4: a core is its four threads."""
    host = machine({0: "0-15"}, cores=["0-3", "4-7", "8-11", "12-15"], gpus=[gpu(0, 0), gpu(1, 0)])

    found = placed(host, 2, policy="exclusive")

    assert cpus(found) == ["0-7", "8-15"]
    assert found.ranks[0].num_cores == found.ranks[0].num_threads == 2


def test_smt_first_gives_main_the_first_threads():
    """Main runs on first threads, loaders on their siblings."""
    found = placed(four_on_one_node(), 4, policy="exclusive", smt="first")

    assert cpus(found)[0] == "0-1,8-9"
    assert dict(found.ranks[0].roles) == {"main": CpuSet([0, 1]), "loader": CpuSet([8, 9])}


@pytest.mark.parametrize(("quota", "wanted"), [(None, 2), (16.0, 2), (4.0, 1), (0.5, 1), (6.0, 1)])
def test_threads_fit_the_share_of_cpu_max(quota, wanted):
    """Four ranks on eight cores: two threads each, and fewer where the quota pays for fewer."""
    found = placed(four_on_one_node(quota=quota), 4)

    assert {rank.num_threads for rank in found.ranks} == {wanted}


def test_one_process_has_the_whole_quota():
    """Without ranks nobody shares cpu.max."""
    assert placed(four_on_one_node(quota=6.0)).ranks[0].num_threads == 6


def test_unrecorded_siblings_are_said():
    """Where a description does not tell which CPUs share a core, whole cores are not promised."""
    host = machine({0: "0-3"}, gpus=[gpu(0, 0)])
    host = replace(host, cpus=tuple(replace(cpu, core=CpuSet()) for cpu in host.cpus))

    assert any("not recorded" in note for note in placed(host, 1, policy="exclusive").notes)


# -- roles -------------------------------------------------------------------------------------------------------------


def test_roles_take_cores_from_the_end():
    """Of 14 cores, loaders get half by default and NCCL two on request; main keeps the low ones."""
    found = placed(dgx_h100(), 8, policy="exclusive", roles=(("loader", 0), ("nccl", 2)))

    assert {role: str(share) for role, share in found.ranks[0].roles} == {
        "main": "0-4,112-116",
        "loader": "7-13,119-125",
        "nccl": "5-6,117-118",
    }
    assert found.ranks[0].num_threads == 5


@pytest.mark.parametrize(
    "roles", [(("loader", 8),), (("loader", 2), ("main", 7)), (("nccl", 4), ("pin", 4))]
)
def test_roles_that_do_not_fit_are_refused(roles):
    """More cores than the rank has: figures and remedy."""
    with pytest.raises(PlacementError, match="the rank has 8"):
        placed(four_on_one_node(), 1, roles=roles)


@pytest.mark.parametrize("roles", [(("gpu", 1),), (("loader", -1),), (("pin", 1), ("pin", 1))])
def test_roles_that_are_none_are_refused(roles):
    """Unknown, negative or repeated."""
    with pytest.raises(UsageError):
        placed(four_on_one_node(), 1, roles=roles)


def test_one_core_has_no_roles():
    """A rank with one core cannot set any apart."""
    with pytest.raises(PlacementError, match="too few"):
        placed(machine({0: "0"}, gpus=[gpu(0, 0)]), 1, roles=(("loader", 1),))


# -- which GPU is whose ------------------------------------------------------------------------------------------------


def test_one_process_is_beside_every_gpu_it_sees():
    """Without rank variables: the union of the nodes of the visible GPUs."""
    found = placed(dgx_h100())

    assert cpus(found) == ["0-223"]
    assert found.ranks[0].memory == MemoryPolicy("preferred", NodeSet([0, 1]))


def test_without_a_gpu_the_mask_is_left_alone():
    """No GPU, no ranks: nothing is bound, and that is said."""
    found = placed(machine({0: "0-3", 1: "4-7"}))

    assert cpus(found) == [""]
    assert found.ranks[0].memory.mode == "none"
    assert "no GPU is visible" in found.ranks[0].notes[0]


def test_ranks_without_a_gpu_can_still_have_cores_of_their_own():
    """Asked for, exclusive cores are dealt to ranks of a host without GPUs, a node each."""
    host = machine({0: "0-3", 1: "4-7"})

    assert cpus(placed(host, 2, policy="exclusive")) == ["0-3", "4-7"]
    assert cpus(placed(host, 2)) == ["", ""]


def test_ranks_follow_the_visible_order():
    """CUDA_VISIBLE_DEVICES=4,0: rank 0 is on GPU 4's node."""
    host = dgx_h100()
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "4,0"})

    found = plan(host, ranks(2), visible, Wishes())

    assert cpus(found) == ["56-111,168-223", "0-55,112-167"]


def test_more_ranks_than_gpus_share():
    """Three ranks on two GPUs: the third shares the first."""
    host = machine({0: "0-3", 1: "4-7"}, gpus=[gpu(0, 0), gpu(1, 1)])

    found = placed(host, 3)

    assert cpus(found) == ["0-3", "4-7", "0-3"]
    assert "share" in found.notes[0]


def test_one_torchrun_rank_of_many_gpus_uses_the_first():
    """torchrun with one rank uses cuda:0; one srun task may use all it sees."""
    host = dgx_h100()

    assert len(plan(host, ranks(1), everything(host), Wishes()).ranks[0].gpus) == 1
    assert (
        len(plan(host, ranks(1, launcher="slurm"), everything(host), Wishes()).ranks[0].gpus) == 8
    )


def test_a_rank_that_sees_one_gpu_sees_its_own():
    """LOCAL_RANK=5 with CUDA_VISIBLE_DEVICES=5 is GPU 5's rank, under every policy."""
    host = dgx_h100()
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "5"})

    shared = plan(host, ranks(8, 5), visible, Wishes())
    own = plan(host, ranks(8, 5), visible, Wishes(policy="exclusive"))

    assert [(rank.local_rank, str(rank.cpus)) for rank in shared.ranks] == [(5, "56-111,168-223")]
    assert shared.ranks[0].num_threads == 14
    assert own.rank(5).cpus == placed(host, 8, policy="exclusive").rank(5).cpus
    assert own.rank(0) is None


def test_shares_by_gpu_do_not_depend_on_who_has_which():
    """Ranks with one visible GPU each, in any order, have disjoint cores."""
    host = dgx_h100()
    seen = CpuSet()
    for local_rank, index in enumerate((7, 6, 5, 4, 3, 2, 1, 0)):
        visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": str(index)})
        own = plan(host, ranks(8, local_rank), visible, Wishes(policy="exclusive")).ranks[0]

        assert not own.cpus & seen
        seen |= own.cpus
    assert seen == host.online


@pytest.mark.parametrize(("job", "text"), [
    (Job(4, 1, launcher="slurm", gpus_per_rank=2), "2,3"),
    (Job(2, 1, launcher="slurm", gpus_per_rank=2), "2,3"),
    (ranks(4, 1), "2,3"),
    (ranks(4, 1, launcher="flux"), "2,3"),
])  # fmt: skip
def test_a_rank_may_have_several_gpus_of_its_own(job, text):
    """Two GPUs a task: the rank is beside both and has the shares of both, half of its node's cores."""
    host = dgx_h100()
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": text})

    rank = plan(host, job, visible, Wishes(policy="exclusive")).ranks[0]

    assert rank.local_rank == 1
    assert len(rank.gpus) == 2
    assert str(rank.cpus) == "28-55,140-167"
    assert rank.num_threads == 28


def test_ranks_that_share_visible_gpus_take_turns():
    """Sixteen MPI ranks on four visible GPUs of eight: rank i uses GPU i mod 4, and every rank plans all of them."""
    host = dgx_h100()
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "0,1,4,5"})

    found = plan(host, Job(16, 3, launcher="openmpi"), visible, Wishes(policy="exclusive"))

    assert len(found.ranks) == 16
    assert found.ranks[6].gpus == (host.gpus[4].pci_address,)


def test_tasks_with_gpus_each_and_a_whole_list_take_blocks():
    """--gpus-per-task 4 without narrowing: task 1 uses the second four."""
    host = dgx_h100()

    found = plan(host, Job(2, 1, launcher="slurm", gpus_per_rank=4), everything(host), Wishes())

    assert cpus(found) == ["0-55,112-167", "56-111,168-223"]


def test_more_ranks_than_gpus_of_their_own_cannot_be_split():
    """Nine ranks with one visible GPU each on eight GPUs: which ones share is not guessed."""
    host = dgx_h100()
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "5"})

    with pytest.raises(PlacementError) as refusal:
        plan(host, ranks(9, 5), visible, Wishes(policy="exclusive"))

    assert "--policy node" in refusal.value.remedy
    assert len(plan(host, ranks(9, 5), visible, Wishes()).ranks) == 1


def test_slices_of_one_gpu_have_cores_of_their_own():
    """Two ranks on two MIG slices of one GPU split its node."""
    slices = (mig("MIG-00000001"), mig("MIG-00000002"))
    host = machine({0: "0-7"}, gpus=[gpu(0, 0, uuid=uuid(0), mig=slices)])

    def of(local_rank: int) -> RankPlacement:
        visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": slices[local_rank].uuid})
        return plan(host, ranks(2, local_rank), visible, Wishes(policy="exclusive")).ranks[0]

    assert [str(of(0).cpus), str(of(1).cpus)] == ["0-3", "4-7"]


def test_one_gpu_on_the_host_is_shared_by_all():
    """Two ranks on a host with one GPU share it: every rank plans both."""
    host = machine({0: "0-7"}, gpus=[gpu(0, 0)])

    found = plan(host, ranks(2, 1), everything(host), Wishes(policy="exclusive"))

    assert cpus(found) == ["0-3", "4-7"]


def test_an_unknown_order_is_beside_every_candidate():
    """Mixed GPUs in unknown order: the rank may use either, so it gets the nodes of both."""
    host = machine({0: "0-3", 1: "4-7"}, gpus=[gpu(0, 0, name="A"), gpu(1, 1, name="B")])
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "0"})

    found = plan(host, None, visible, Wishes())

    assert cpus(found) == ["0-7"]
    assert any("CUDA_DEVICE_ORDER" in note for note in found.notes)


def test_jax_processes_use_the_devices_they_name():
    """Two processes of four GPUs each: the second is beside node 1."""
    host = dgx_h100()
    job = Job(2, 1, launcher="jax", devices=(4, 5, 6, 7))

    found = plan(host, job, everything(host), Wishes())

    assert cpus(found) == ["0-55,112-167", "56-111,168-223"]
    assert len(found.ranks[1].gpus) == 4


def test_a_jax_process_with_a_narrowed_list_is_one_of_several():
    """One JAX process a GPU, each with its own CUDA_VISIBLE_DEVICES: it takes its GPU's share."""
    host = dgx_h100()
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "1"})

    found = plan(host, Job(1, 0, launcher="jax"), visible, Wishes(policy="exclusive"))

    assert cpus(found) == ["14-27,126-139"]


def test_wished_gpus_are_taken_in_turn():
    """--gpus 7,0 puts rank 0 beside GPU 7; one process is beside both."""
    assert cpus(placed(dgx_h100(), 2, gpus=(7, 0))) == ["56-111,168-223", "0-55,112-167"]
    assert cpus(placed(dgx_h100(), None, gpus=(4, 7))) == ["56-111,168-223"]


def test_a_wished_gpu_that_is_not_there_is_refused():
    """GPU 9 of eight, a hidden one, none at all: what there is, and what to do."""
    host = dgx_h100()
    hidden = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "0"})

    with pytest.raises(GpuError, match="GPU 9 is not on this host"):
        placed(host, 1, gpus=(9,))
    with pytest.raises(GpuError, match="CUDA_VISIBLE_DEVICES leaves it out"):
        plan(host, None, hidden, Wishes(gpus=(1,)))
    with pytest.raises(UsageError):
        placed(host, 1, gpus=())


@pytest.mark.parametrize(
    ("count", "wanted"), [(1, (0,)), (2, (0, 4)), (4, (0, 1, 4, 5)), (8, tuple(range(8)))]
)
def test_chosen_gpus_spread_over_nodes(count, wanted):
    """Fewer ranks than GPUs: each gets as many cores beside it as can be."""
    host = dgx_h100()

    assert choose_gpus(host, everything(host), count) == wanted


def test_chosen_gpus_follow_the_cores_that_are_allowed():
    """A cpuset of node 1 makes its GPUs the best ones."""
    host = allowing(dgx_h100(), "56-63,168-175")

    assert choose_gpus(host, everything(host), 2) == (4, 5)


def test_chosen_gpus_avoid_one_root_complex():
    """On one node, GPUs of different PCI roots share less."""
    host = machine(
        {0: "0-7"},
        gpus=[gpu(i, 0) for i in range(4)],
        pci=[device(f"0000:{i + 1:02x}:00.0", 0, None, f"pci0000:{i // 2}0") for i in range(4)],
    )

    assert choose_gpus(host, everything(host), 2) == (0, 2)


def test_gpus_are_not_chosen_blindly():
    """More than there are, or in an unknown order: refused."""
    host = dgx_h100()

    with pytest.raises(GpuError):
        choose_gpus(host, everything(host), 9)
    with pytest.raises(GpuError):
        choose_gpus(host, replace(everything(host), order_known=False), 1)


@pytest.mark.parametrize("job", [Job(0), Job(2, 2), Job(2, -1)])
def test_a_rank_outside_the_plan_is_refused(job):
    """No ranks, or a rank that is not among them."""
    host = four_on_one_node()

    with pytest.raises(UsageError):
        plan(host, job, everything(host), Wishes())


@pytest.mark.parametrize("wishes", [
    Wishes(policy="numa"), Wishes(smt="half"), Wishes(memory="hard"), Wishes(reserve_cores_per_node=-1),
])  # fmt: skip
def test_wishes_that_do_not_exist_are_refused(wishes):
    """Unknown policy, SMT mode or memory mode: the remedy lists what there is."""
    host = four_on_one_node()

    with pytest.raises(UsageError) as refusal:
        plan(host, None, everything(host), wishes)

    assert refusal.value.remedy


# -- memory ------------------------------------------------------------------------------------------------------------


def four_nodes(**fields: object) -> Machine:
    """Nodes 0 and 1 with CPUs and memory, 2 with CPUs only, 3 with memory only: the lab's guest."""
    values = {
        "memory": {0: 2 * GIB, 1: 2 * GIB, 2: 0, 3: GIB},
        "distances": {
            0: [10, 20, 15, 30],
            1: [20, 10, 30, 30],
            2: [15, 30, 10, 40],
            3: [30, 30, 40, 10],
        },
        "gpus": [gpu(0, 2)],
    } | fields
    return machine({0: "0-3", 1: "4-7", 2: "8-11", 3: ""}, **values)


def test_a_node_without_memory_takes_the_nearest():
    """CPUs on the memory-less node, pages from the node the kernel itself would fall back to (kernel fact K11)."""
    found = placed(four_nodes(), 1)

    assert cpus(found) == ["8-11"]
    assert found.ranks[0].memory == MemoryPolicy("preferred", NodeSet([0]))
    assert "node 2 has no memory" in found.ranks[0].notes[0]


def test_a_node_outside_mems_allowed_takes_the_nearest_allowed():
    """The cpuset's memory nodes decide, said aloud."""
    found = placed(allowing(four_nodes(), "0-11", "1,3"), 1)

    assert found.ranks[0].memory.nodes <= NodeSet([1, 3])
    assert found.ranks[0].notes


def test_gpu_memory_is_never_a_target():
    """The memory of a Grace GPU is a node, and no place for a job's pages."""
    host = machine({0: "0-3", 1: "4-7", 2: ""}, gpus=[gpu(0, 0, hbm_node=2)])
    host = replace(
        host, nodes=(*host.nodes[:2], replace(host.nodes[2], hbm_of=host.gpus[0].pci_address))
    )

    spread, notes = (
        placed(host, 1, memory="interleave").ranks[0].memory,
        placed(host, 1, memory="interleave").ranks[0].notes,
    )

    assert spread == MemoryPolicy("interleave", NodeSet([0, 1]))
    assert "memory of GPU" in notes[0]


def test_interleaving_leaves_empty_nodes_out():
    """An empty node would make the kernel or numactl refuse (numactl#184): it is dropped with a note."""
    found = placed(four_nodes(), 1, memory="interleave").ranks[0]

    assert found.memory.nodes == NodeSet([0, 1, 3])
    assert any("node 2 is left out" in note for note in found.notes)


def test_interleaving_over_nothing_is_refused():
    """No allowed node with memory: an error instead of an empty set."""
    with pytest.raises(PlacementError):
        placed(allowing(four_nodes(), "0-11", "2"), 1, memory="weighted")


@pytest.mark.parametrize("mode", ["local", "none"])
def test_modes_without_nodes_have_none(mode):
    """`local` and `none` name no node."""
    assert placed(four_nodes(), 1, memory=mode).ranks[0].memory == MemoryPolicy(mode)


def test_a_hard_bind_that_fits_is_planned():
    """Two ranks want 1 GiB each of a node with 2 GiB left."""
    host = four_nodes(gpus=[gpu(0, 0), gpu(1, 0)])

    found = placed(host, 2, memory="bind", wanted_bytes=GIB)

    assert found.ranks[1].memory == MemoryPolicy("bind", NodeSet([0]))


@pytest.mark.parametrize("fields", [
    {"available": {0: GIB}},
    {"available": {0: None}},
    {"available": {0: 0}},
])  # fmt: skip
def test_a_hard_bind_that_does_not_fit_is_refused(fields):
    """Together the ranks of a node want more than it has left, or nobody knows how much that is."""
    host = four_nodes(gpus=[gpu(0, 0), gpu(1, 0)], **fields)

    with pytest.raises(PlacementError) as refusal:
        placed(host, 2, memory="bind", wanted_bytes=GIB)

    assert "--memory preferred" in refusal.value.remedy


def test_a_hard_bind_below_the_memory_limit_is_refused():
    """Without an estimate the job may use its memory.max: 4 GiB do not fit into 2."""
    with pytest.raises(
        PlacementError, match=r"2 GiB left, and the memory limit lets the job use 4 GiB"
    ):
        refuse_hard_bind(four_nodes(limit=4 * GIB), NodeSet([0]), None)


def test_a_hard_bind_of_unknown_size_is_left_to_the_person():
    """No limit and no estimate: memory is known to be there, so the bind is planned."""
    refuse_hard_bind(four_nodes(), NodeSet([0]), None)


def test_a_hard_bind_without_a_place_is_refused():
    """Memory cannot be bound beside a GPU that nobody can place."""
    with pytest.raises(PlacementError, match="place is not known"):
        placed(machine({0: "0-3", 1: "4-7"}, gpus=[gpu(0)]), 1, memory="bind")


def test_unrecorded_memory_is_preferred_with_a_note():
    """A description without memory sizes still tells where pages should come from; the doubt is said."""
    host = machine({0: "0-3", 1: "4-7"}, memory={0: None, 1: None}, gpus=[gpu(0, 1)])

    found = placed(host, 1).ranks[0]

    assert found.memory == MemoryPolicy("preferred", NodeSet([1]))
    assert "not recorded" in found.notes[0]


def test_the_policy_alone_can_be_asked_for():
    """`memory_policy` answers for nodes without a plan."""
    assert memory_policy(dgx_h100(), NodeSet([1]), Wishes()) == MemoryPolicy(
        "preferred", NodeSet([1])
    )


# -- network cards -----------------------------------------------------------------------------------------------------


def rails() -> Machine:
    """Two GPUs behind switches with a card each, a card on the same node only, one on the other node."""
    pci = [
        device("0000:01:00.0", 0, None, "0000:00:01.1", "0000:00:01.0", "pci0000:00"),
        device("0000:02:00.0", 0, None, "0000:00:02.0", "pci0000:00"),
        device("0000:11:00.0", 0, None, "0000:00:01.2", "0000:00:01.0", "pci0000:00"),
        device("0000:12:00.0", 0, None, "0000:00:03.0", "pci0000:00"),
        device("0000:13:00.0", 0, None, "pci0000:40"),
        device("0000:14:00.0", 1, None, "pci0000:80"),
    ]
    nics = [
        Nic(f"0000:{n}:00.0", rdma_devices=(f"mlx5_{n}",), cpu_node=0 if n < 14 else 1)
        for n in (11, 12, 13, 14)
    ]
    return machine(
        {0: "0-3", 1: "4-7"}, gpus=[gpu(0, 0), gpu(1, 0), gpu(2, 1), gpu(3)], pci=pci, nics=nics
    )


@pytest.mark.parametrize(("index", "wanted"), [
    (0, ("mlx5_11",)), (1, ("mlx5_11", "mlx5_12")), (2, ("mlx5_14",)), (3, ()),
])  # fmt: skip
def test_the_nearest_card_is_below_the_same_switch_root_or_node(index, wanted):
    """Switch before root complex before node; for a GPU without a place, none."""
    host = rails()

    assert nic_names(host, host.gpus[index]) == wanted


def test_cards_without_rdma_count_where_there_are_no_others():
    """Ethernet names are given on hosts without RDMA."""
    host = machine({0: "0-3"}, gpus=[gpu(0, 0)], nics=[Nic(None, ("eth0",), cpu_node=0)])

    assert nearest_nics(host, host.gpus[0]) == host.nics
    assert placed(host, 1).ranks[0].nics == ("eth0",)


def test_notes_of_job_and_visibility_reach_the_plan():
    """What was doubtful on the way is part of the plan, once."""
    host = four_on_one_node()
    job = Job(1, 0, launcher="torchrun", notes=("from the job",))
    visible = VisibleDevices(
        None, (host.gpus[0].pci_address,), notes=("from the list", "from the list")
    )

    found = plan(host, job, visible, Wishes())

    assert found.notes == ("from the job", "from the list")
