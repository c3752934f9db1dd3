"""Do the inputs of public bug reports get the right answer here? One test a report, named by it."""

from __future__ import annotations

import pytest

from tests.machines import (
    GIB,
    allowing,
    device,
    dgx_a100,
    dgx_h100,
    gpu,
    machine,
    mig,
    pairs,
    placed,
    ranks,
    sighting,
    uuid,
)
from wellfed.model.cpuset import CpuSet, NodeSet, union
from wellfed.model.machine import Evidence, Machine
from wellfed.model.placement import Wishes
from wellfed.placement.locate import locate
from wellfed.placement.plan import plan
from wellfed.placement.visible import visible_devices


def nodes_of(found) -> list[str]:
    """Write the node of every rank."""
    return [str(rank.cpu_nodes) for rank in found.ranks]


def seen(host: Machine, text: str) -> list[int]:
    """Give the indices that CUDA_VISIBLE_DEVICES shows."""
    found = visible_devices(host, {"CUDA_VISIBLE_DEVICES": text})
    return [host.gpu_at(address).index for address in found.gpus]


def two_sockets(*numa_nodes: int, local: list[str] | None = None) -> Machine:
    """A host of two nodes with 28 cores each, and a GPU for each given numa_node, not located yet."""
    cpus = {0: "0-27", 1: "28-55"}
    return machine(
        cpus,
        pci=[
            device(f"0000:{i + 1:02x}:00.0", node, local[i] if local else cpus.get(node, "0-55"))
            for i, node in enumerate(numa_nodes)
        ],
        gpus=[gpu(i) for i in range(len(numa_nodes))],
    )


def gb200() -> Machine:
    """Two Grace processors, four GPUs whose memory is nodes 2, 10, 18 and 26, and empty nodes kept for MIG."""
    memory = dict.fromkeys(range(34), 0) | {
        0: 480 * GIB,
        1: 480 * GIB,
        2: 185 * GIB,
        10: 185 * GIB,
        18: 185 * GIB,
        26: 185 * GIB,
    }
    host = machine(
        {0: "0-71", 1: "72-143"} | {n: "" for n in range(2, 34)},
        memory=memory,
        gpus=[gpu(i) for i in range(4)],
        pci=[device(f"0000:{i + 1:02x}:00.0") for i in range(4)],
    )
    nodes = ("0,3-9,11-17", "0,3-9,11-17", "1,19-25,27-33", "1,19-25,27-33")
    own = (2, 10, 18, 26)
    return locate(
        host,
        [
            sighting(
                f"0000:{i + 1:02x}:00.0",
                nodes=nodes[i],
                hbm_node=own[i],
                evidence=(
                    Evidence("NVML memory affinity", nodes[i]),
                    Evidence("NVML NUMA node id", str(own[i])),
                ),
            )
            for i in range(4)
        ],
    )


def test_dask_cuda_1381_gpus_outside_the_cpuset_keep_their_node():
    """An empty CPU list from NVML means no local CPU is allowed: reported, and the nearest allowed CPUs taken."""
    host = allowing(two_sockets(0, 1), "0-7", "0-1")

    host = locate(host, [sighting("0000:01:00.0", cpus="0-7"), sighting("0000:02:00.0", cpus="")])
    found = placed(host, 2)

    assert [each.cpu_node for each in host.gpus] == [0, 1]
    assert [str(rank.cpus) for rank in found.ranks] == ["0-7", "0-7"]
    assert found.ranks[1].local is False
    assert found.ranks[1].memory.nodes == NodeSet([1])
    assert "no CPU of node 1" in found.ranks[1].notes[0]


def test_dask_cuda_1358_a_cpuset_does_not_move_a_gpu():
    """The same GPU under two job requests: NVML's list differs, the node does not."""
    host = two_sockets(1)

    narrow = locate(allowing(host, "28-31"), [sighting("0000:01:00.0", cpus="28-31")])
    wide = locate(host, [sighting("0000:01:00.0", cpus="28-55")])

    assert narrow.gpus[0].cpu_node == wide.gpus[0].cpu_node == 1


def test_cosmos_predict1_11_an_empty_list_is_no_crash():
    """8 of 96 CPUs and NVML's empty list: the rank gets allowed CPUs, never an empty mask."""
    host = machine({0: "0-47", 1: "48-95"}, pci=[device("0000:01:00.0", 1)], gpus=[gpu(0)])
    host = locate(allowing(host, "0-7"), [sighting("0000:01:00.0", cpus="")])

    found = placed(host, 1)

    assert str(found.ranks[0].cpus) == "0-7"


@pytest.mark.parametrize("index", range(4))
def test_vllm_39361_and_sglang_11208_gpu_memory_nodes_are_no_place_for_cpus(index):
    """On GB200 the NVML node is the GPU's memory: CPUs and pages come from node 0 or 1."""
    host = gb200()

    rank = placed(host, 4).ranks[index]

    assert host.gpus[index].hbm_node == (2, 10, 18, 26)[index]
    assert str(rank.cpus) == ("0-71", "0-71", "72-143", "72-143")[index]
    assert rank.memory.nodes == NodeSet([index // 2])


def test_mlperf_common_24_nodes_with_cpus_are_counted():
    """Four Grace Hopper with 36 nodes have four nodes for ranks."""
    cpus = {n: f"{72 * n}-{72 * n + 71}" for n in range(4)} | {n: "" for n in range(4, 36)}
    host = machine(cpus, memory=dict.fromkeys(range(4, 36), 0), gpus=[gpu(n, n) for n in range(4)])

    assert nodes_of(placed(host, 4, policy="exclusive")) == ["0", "1", "2", "3"]


def test_xpu_perf_129_and_superbenchmark_658_nodes_without_cpus_are_skipped():
    """A Grace Hopper with nodes 1-8 empty: everything is beside node 0."""
    host = machine(
        {0: "0-71"} | {n: "" for n in range(1, 9)},
        memory=dict.fromkeys(range(1, 9), 0),
        pci=[device("0000:01:00.0", -1, "0-71")],
        gpus=[gpu(0)],
    )

    host = locate(host)

    assert host.gpus[0].cpu_node == 0
    assert nodes_of(placed(host, 1)) == ["0"]


@pytest.mark.parametrize(("text", "wanted"), [
    ("3,6,5,4,0,7,1,2", "0 1 1 1 0 1 0 0"),
    ("3,4", "0 1"),
    ("4", "1"),
    ("0,1,2,3,4,5,6,7", "0 0 0 0 1 1 1 1"),
])  # fmt: skip
def test_sglang_24766_tensorrt_llm_12985_dask_cuda_671_ranks_follow_the_list(text, wanted):
    """A reordered or shortened list decides the node of each rank, not the rank's number."""
    host = dgx_h100()
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": text})

    found = plan(host, ranks(len(visible.gpus)), visible, Wishes())

    assert nodes_of(found) == wanted.split()


def test_nemo_rl_2613_every_worker_has_its_own_entry():
    """With all eight GPUs listed, rank 5 is on GPU 5, not on the first entry."""
    host = dgx_h100()
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"})

    rank = plan(host, ranks(8, 5), visible, Wishes()).rank(5)

    assert rank.gpus == (host.gpus[5].pci_address,)


def test_skyrl_1936_one_visible_gpu_is_the_ranks_own():
    """Ray gives worker 5 the list ``5``: its GPU is 5, whatever the local rank divided by anything says."""
    host = dgx_h100()
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "5"})

    found = plan(host, ranks(8, 5), visible, Wishes())

    assert found.ranks[0].gpus == (host.gpus[5].pci_address,)
    assert nodes_of(found) == ["1"]


def test_vllm_41848_gpu_affinity_1_slices_and_short_uuids_are_read():
    """MIG and GPU UUIDs in the list are no numbers, and no ValueError."""
    slices = (mig("MIG-377e0049-554c-540b-93c6-d0976f8426cb", 1, 0),)
    host = machine(
        {0: "0-3", 1: "4-7"},
        gpus=[
            gpu(0, 0, uuid="GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"),
            gpu(1, 1, uuid=uuid(1), mig=slices),
        ],
    )

    assert seen(host, "MIG-377e0049-554c-540b-93c6-d0976f8426cb") == [1]
    assert seen(host, "GPU-8932f937") == [0]


def test_container_engine_accelerators_483_a_slice_is_where_its_gpu_is():
    """The node of a MIG device is that of the GPU it is cut from."""
    host = machine(
        {0: "0-3", 1: "4-7"}, gpus=[gpu(0, 0), gpu(1, 1, uuid=uuid(1), mig=(mig("MIG-aaaaaaaa"),))]
    )
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "MIG-aaaaaaaa"})

    assert nodes_of(plan(host, None, visible, Wishes())) == ["1"]


def test_flux_core_1591_the_fastest_gpu_is_not_the_first():
    """Mixed GPUs without CUDA_DEVICE_ORDER: no index is claimed; with it, nvidia-smi's order holds."""
    host = machine(
        {0: "0-3", 1: "4-7"}, gpus=[gpu(0, 0, name="Quadro P400"), gpu(1, 1, name="Tesla V100")]
    )

    unknown = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "0"})
    known = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})

    assert not unknown.order_known
    assert known.gpus == (host.gpus[0].pci_address,)


@pytest.mark.parametrize("policy", ["node", "exclusive", "core-complex", "socket"])
def test_sglang_26983_and_srt_slurm_326_a_mask_is_cut_and_never_widened(policy):
    """Under ``taskset -c 4-11`` every plan lies inside 4-11."""
    found = placed(allowing(dgx_h100(), "4-11"), 8, policy=policy)

    assert union(rank.cpus for rank in found.ranks) <= CpuSet.parse("4-11")


def test_numactl_165_a_node_without_memory_still_has_cpus():
    """Threadripper with nodes 0 and 3 of size 0: CPUs of the GPU's node, memory from the nearest node that has some."""
    host = machine(
        {n: f"{8 * n}-{8 * n + 7}" for n in range(4)},
        memory={0: 0, 3: 0},
        distances={
            0: [10, 16, 32, 32],
            1: [16, 10, 32, 32],
            2: [32, 32, 10, 16],
            3: [32, 32, 16, 10],
        },
        gpus=[gpu(0, 0), gpu(1, 3)],
    )

    found = placed(host, 2)

    assert nodes_of(found) == ["0", "3"]
    assert [rank.memory.nodes for rank in found.ranks] == [NodeSet([1]), NodeSet([2])]


def test_numactl_184_empty_nodes_are_left_out_of_an_interleave():
    """A node with MemTotal 0 is dropped with a note instead of failing."""
    host = machine({0: "0-3", 1: "4-7"}, memory={1: 0}, gpus=[gpu(0, 0)])

    rank = placed(host, 1, memory="interleave").ranks[0]

    assert rank.memory.nodes == NodeSet([0])
    assert "node 1 is left out" in rank.notes[0]


def test_numactl_223_memory_outside_the_cpuset_is_not_asked_for():
    """Mems_allowed 0 and a GPU on node 1: node 0, said, where the kernel would answer EINVAL."""
    rank = placed(allowing(dgx_h100(), "0-223", "0"), 8).ranks[7]

    assert rank.memory.nodes == NodeSet([0])
    assert "outside Mems_allowed" in rank.notes[0]


def test_numactl_204_offline_cpus_are_left_out():
    """CPU 110 is offline: no plan names it, and its core is its other thread."""
    host = machine({0: "0-111"}, cores=pairs(56), offline="110", gpus=[gpu(0, 0), gpu(1, 0)])

    found = placed(host, 2, policy="exclusive")

    assert 110 not in union(rank.cpus for rank in found.ranks)
    assert 54 in found.ranks[1].cpus


def test_training_results_6_siblings_come_from_the_kernel():
    """24 cores whose second threads are 24-47: nobody adds a fixed offset, so no CPU is out of range."""
    host = machine(
        {0: "0-11,24-35", 1: "12-23,36-47"},
        cores=pairs(24),
        gpus=[gpu(i, i // 4) for i in range(8)],
    )

    found = placed(host, 8, policy="exclusive")

    assert str(found.ranks[7].cpus) == "21-23,45-47"
    assert union(rank.cpus for rank in found.ranks) == host.online


def test_hwloc_712_nodes_count_where_packages_contradict_them():
    """A guest whose nodes cut across its packages: the node's own CPU list is believed."""
    host = machine(
        {0: "0-31,64-95", 1: "32-63,96-127"},
        packages={0: "0-63", 1: "64-127"},
        gpus=[gpu(0, 0), gpu(1, 1)],
    )

    assert [str(rank.cpus) for rank in placed(host, 2).ranks] == ["0-31,64-95", "32-63,96-127"]


def test_cucascade_119_a_second_source_helps():
    """sysfs says −1, NVML knows node 1."""
    host = locate(two_sockets(-1), [sighting("0000:01:00.0", cpus="28-55", nodes="1")])

    assert host.gpus[0].cpu_node == 1


def test_dra_driver_1165_not_supported_leaves_it_to_sysfs():
    """Eight L4 whose NumaNodeId is Not Supported: sysfs has the node of each."""
    buses = {"9f": 0, "a1": 0, "a3": 0, "a5": 0, "ae": 1, "b0": 1, "b2": 1, "b4": 1}
    host = machine(
        {0: "0-27", 1: "28-55"},
        pci=[device(f"0000:{bus}:00.0", node) for bus, node in buses.items()],
        gpus=[
            gpu(i, pci_address=f"0000:{bus}:00.0", name="NVIDIA L4") for i, bus in enumerate(buses)
        ],
    )
    silent = (Evidence("NVML NUMA node id", "Not Supported"),)

    host = locate(
        host, [sighting(f"00000000:{bus.upper()}:00.0", evidence=silent) for bus in buses]
    )

    assert [each.cpu_node for each in host.gpus] == list(buses.values())
    assert all(each.disagreement is None for each in host.gpus)


def test_wsl_10277_a_missing_file_is_no_error():
    """Without numa_node files a host with one node is still beside it."""
    host = locate(machine({0: "0-7"}, pci=[device("0000:01:00.0")], gpus=[gpu(0)]))

    assert host.gpus[0].cpu_node == 0


def test_hwloc_438_nodes_without_memory_are_kept():
    """A node with CPUs and 0 kB is a place for ranks."""
    host = machine({0: "0-3", 1: "4-7"}, memory={1: 0}, gpus=[gpu(0, 1)])

    assert nodes_of(placed(host, 1)) == ["1"]


def test_cscs_179_gpu_memory_nodes_have_no_cpus():
    """Looking up a CPU's node on Grace Hopper never ends at a node from 4 upward."""
    cpus = {n: f"{72 * n}-{72 * n + 71}" for n in range(4)} | {n: "" for n in range(4, 36)}
    host = machine(
        cpus,
        pci=[device(f"0000:{n + 1:02x}:00.0", n) for n in range(4)],
        gpus=[gpu(n, hbm_node=4 + 8 * n) for n in range(4)],
    )

    found = placed(locate(host), 4)

    assert union(rank.cpu_nodes for rank in found.ranks) == NodeSet([0, 1, 2, 3])
    assert union(rank.memory.nodes for rank in found.ranks) == NodeSet([0, 1, 2, 3])


def test_prrte_1141_node_numbers_mean_nothing():
    """POWER9 puts GPU memory at 250-255, a large SGI has CPUs on nodes above 200: CPUs decide."""
    power9 = machine(
        {0: "0-3", 8: "4-7"} | {n: "" for n in range(250, 256)},
        pci=[device(f"0000:{i + 1:02x}:00.0", None, "0-3" if i < 3 else "4-7") for i in range(6)],
        gpus=[gpu(i, hbm_node=255 - i) for i in range(6)],
    )
    sgi = machine({n: str(n) for n in range(240)}, gpus=[gpu(0, 239)])

    assert nodes_of(placed(locate(power9), 6)) == ["0", "0", "0", "8", "8", "8"]
    assert nodes_of(placed(sgi, 1)) == ["239"]


def test_flux_core_4622_the_lowest_cpus_are_not_the_nearest():
    """On Tioga GPUs 4 and 5 are beside the first processor's node: rank 0 goes to GPU 0's node, wherever that is."""
    host = machine(
        {0: "0-15", 1: "16-31", 2: "32-47", 3: "48-63"},
        gpus=[gpu(i, node, vendor="amd") for i, node in enumerate((3, 3, 1, 1, 0, 0, 2, 2))],
    )

    found = plan(host, ranks(8), visible_devices(host, {}, "amd"), Wishes(policy="exclusive"))

    assert nodes_of(found) == ["3", "3", "1", "1", "0", "0", "2", "2"]


def test_nccl_1505_gpu_0_of_a_dgx_a100_is_on_node_3():
    """CPU affinity 48-63,176-191 and NUMA affinity 3."""
    rank = placed(dgx_a100(), 8).ranks[0]

    assert (str(rank.cpus), str(rank.cpu_nodes)) == ("48-63,176-191", "3")


def test_open_gpu_kernel_modules_885_memory_only_nodes_are_no_target():
    """Node 2 has memory and no CPUs: pages for a GPU beside node 1 come from node 1."""
    host = machine({0: "0-3", 1: "4-7", 2: ""}, pci=[device("0000:01:00.0", 1)], gpus=[gpu(0)])

    rank = placed(locate(host), 1).ranks[0]

    assert rank.memory.nodes == NodeSet([1])


def test_tensorflow_56633_more_than_1024_cpus():
    """1280 CPUs are an ordinary host."""
    host = machine(
        {n: f"{160 * n}-{160 * n + 159}" for n in range(8)}, gpus=[gpu(i, i) for i in range(8)]
    )

    assert str(placed(host, 8, policy="exclusive").ranks[7].cpus) == "1120-1279"


def test_vllm_43240_a_cpuset_of_one_node_and_nodes_that_are_not_cpus():
    """Allowed CPUs 20-39 of nodes 0 and 1: only those, on the node they belong to, and no division by zero nodes."""
    host = allowing(machine({0: "0-19", 1: "20-39"}, gpus=[gpu(0, 0), gpu(1, 1)]), "20-39")

    found = placed(host, 2, policy="exclusive")

    assert [str(rank.cpus) for rank in found.ranks] == ["20-29", "30-39"]
    assert [rank.local for rank in found.ranks] == [False, True]


def test_geopm_208_lists_are_numbers_and_not_ranges():
    """``0,1,16,17`` is two cores of two threads, not 34 CPUs."""
    host = machine({0: "0,1,16,17"}, cores=["0,16", "1,17"], gpus=[gpu(0, 0)])

    rank = placed(host, 1).ranks[0]

    assert (len(rank.cpus), rank.num_cores) == (4, 2)


def test_kubernetes_122295_a_misaligned_pod_is_seen_from_inside():
    """Three GPUs on nodes 0, 1 and 1, and CPUs of node 0 only: two ranks are not local, and say so."""
    host = allowing(dgx_h100(), "4-11,116-123")
    visible = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "0,4,5"})

    found = plan(host, ranks(3), visible, Wishes())

    assert [rank.local for rank in found.ranks] == [True, False, False]
    assert all(rank.notes for rank in found.ranks[1:])


def test_pytorch_numa_binding_two_jobs_on_one_node_do_not_overlap():
    """Two jobs with half of a node's GPUs each: the second leaves the cores alone that the first has taken."""
    host = dgx_h100()
    halves = [visible_devices(host, {"CUDA_VISIBLE_DEVICES": text}) for text in ("0,1", "2,3")]
    apart = Wishes(policy="exclusive", reserve_cores_per_node=28)
    first = union(rank.cpus for rank in plan(host, ranks(2), halves[0], apart).ranks)

    second = plan(host, ranks(2), halves[1], Wishes(policy="exclusive", taken=first))

    assert [str(rank.cpus) for rank in second.ranks] == ["0-13,112-125", "14-27,126-139"]
