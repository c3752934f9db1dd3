"""Does each device end up beside the right CPUs, or nowhere where nobody knows?"""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.machines import GIB, allowing, device, gpu, machine, mig, sighting
from tests.strategies import machines
from wellfed.model.cpuset import CpuSet
from wellfed.model.machine import Evidence, Machine, Nic, Nvme
from wellfed.model.value import replace
from wellfed.placement.locate import locate

A, B, C = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"


def two_nodes(*pci, gpus=None, **fields) -> Machine:
    """A host of two nodes with four CPUs each, whose GPUs are not located yet."""
    return machine({0: "0-3", 1: "4-7"}, pci=list(pci), gpus=gpus or [gpu(0), gpu(1)], **fields)


def node_of(found: Machine, index: int = 0) -> int | None:
    return found.gpus[index].cpu_node


def test_sysfs_alone_decides():
    """A node number and its CPU list from sysfs place a GPU."""
    found = locate(two_nodes(device(A, 1, "4-7"), device(B, 0, "0-3")))

    assert [each.cpu_node for each in found.gpus] == [1, 0]
    assert found.gpus[0].evidence == (
        Evidence("sysfs numa_node", "1", 1),
        Evidence("sysfs local_cpulist", "4-7", 1),
    )
    assert found.gpus[0].disagreement is None


def test_minus_one_never_becomes_node_0():
    """numa_node −1 with all CPUs called local leaves a GPU without a node, and says so."""
    found = locate(two_nodes(device(A, -1, "0-7"), device(B, -1, "0-7")))

    assert [each.cpu_node for each in found.gpus] == [None, None]
    assert found.gpus[0].evidence[0] == Evidence("sysfs numa_node", "-1", None)
    assert any("no source tells" in note for note in found.notes)


def test_a_missing_file_is_no_error_and_no_node():
    """Without a numa_node file (WSL) a GPU of a host with two nodes has no place."""
    found = locate(two_nodes(device(A)))

    assert node_of(found) is None
    assert found.gpus[0].evidence[0].says == "not there"


def test_where_one_node_has_all_cpus_every_gpu_is_beside_it():
    """A host with CPUs on one node only places its GPUs there whatever sysfs says, and names that reason."""
    host = machine({3: "0-3", 5: ""}, pci=[device(A, -1, "0-3")], gpus=[gpu(0)])

    found = locate(host)

    assert node_of(found) == 3
    assert found.gpus[0].evidence[-1].source == "single CPU node"


def test_a_node_whose_cpus_are_not_recorded_keeps_the_only_other_from_being_the_only_one():
    """A description that names node 1 without its CPUs does not put every GPU on node 0."""
    host = machine(
        {0: "0-3", 1: ""}, gpus=[gpu(0, evidence=(Evidence("topo -m NUMA Affinity", "1", 1),))]
    )
    nodes = (host.nodes[0], replace(host.nodes[1], cpus_recorded=False, memory_bytes=None))

    found = locate(replace(host, nodes=nodes))

    assert node_of(found) == 1


def test_local_cpus_alone_place_a_gpu():
    """POWER9 has no numa_node files: the CPU list decides."""
    found = locate(two_nodes(device(A, None, "4-7")))

    assert node_of(found) == 1


def test_a_part_of_a_node_is_enough():
    """A CPU list that names some CPUs of one node, some of them offline, is of that node."""
    found = locate(two_nodes(device(A, None, "5-7"), offline="7"))

    assert node_of(found) == 1


def test_cpus_of_two_nodes_name_neither():
    """With two nodes a socket, a list that spans both tells the socket and no node."""
    host = machine({0: "0-1", 1: "2-3", 2: "4-7"}, pci=[device(A, -1, "0-3")], gpus=[gpu(0)])

    found = locate(host)

    assert node_of(found) is None


@pytest.mark.parametrize(("distances", "wanted"), [
    ({0: [10, 40, 80], 1: [40, 10, 120], 2: [80, 120, 10]}, 0),
    ({0: [10, 40, 120], 1: [40, 10, 80], 2: [120, 80, 10]}, 1),
    ({0: [10, 40, 80], 1: [40, 10, 80], 2: [80, 80, 10]}, None),
    ({}, None),
])  # fmt: skip
def test_a_node_without_cpus_stands_for_the_nearest_with_cpus(distances, wanted):
    """numa_node 2 is memory only: the nearest node with CPUs is taken; with two equally near ones, none."""
    host = machine(
        {0: "0-3", 1: "4-7", 2: ""}, distances=distances, pci=[device(A, 2)], gpus=[gpu(0)]
    )

    found = locate(host)

    assert node_of(found) == wanted
    assert "a node without CPUs" in found.gpus[0].evidence[0].says


def test_a_node_that_does_not_exist_places_nothing():
    """numa_node 7 on a host with nodes 0 and 1 is a contradiction, not a place."""
    found = locate(two_nodes(device(A, 7)))

    assert node_of(found) is None


def test_the_driver_helps_where_sysfs_is_silent():
    """numa_node −1 in a guest, but NVML knows: its CPU list is the second source."""
    host = two_nodes(device(A, -1, "0-7"), device(B, -1, "0-7"))

    found = locate(
        host,
        [sighting("00000000:01:00.0", cpus="4-7", nodes="1"), sighting(B, cpus="0-3", nodes="0")],
    )

    assert [each.cpu_node for each in found.gpus] == [1, 0]


def test_empty_and_gpu_memory_nodes_in_the_drivers_list_are_left_out():
    """``0,3-9,11-17`` beside GPU 0 of a GB200 is node 0: the others have no CPUs."""
    host = machine(
        {0: "0-71", 1: "72-143", 2: "", 3: "", 10: ""}, pci=[device(A, -1)], gpus=[gpu(0)]
    )

    found = locate(host, [sighting(A, nodes="0,3-9,11-17", hbm_node=2)])

    assert node_of(found) == 0
    assert found.gpus[0].hbm_node == 2
    assert found.node(2).hbm_of == A
    assert found.node(2).kind == "gpu-memory"
    assert 2 not in found.memory_nodes


def test_a_node_with_cpus_is_no_gpu_memory():
    """Where the NUMA node id of a GPU names a node with CPUs, it is evidence for the place, and no memory of the GPU."""
    host = two_nodes(device(A, -1))
    seen = sighting(A, hbm_node=1, evidence=(Evidence("NVML NUMA node id", "1"),))

    found = locate(host, [seen])

    assert found.gpus[0].hbm_node is None
    assert node_of(found) == 1
    assert found.node(1).hbm_of is None


@pytest.mark.parametrize("cpus", ["0-3", "0-7"])
def test_a_list_cut_to_the_cpuset_says_nothing(cpus):
    """Inside a cpuset of node 0, a driver that knows no node and one that means node 0 give the same list: no evidence."""
    host = allowing(two_nodes(device(A, -1, "0-7")), "0-3")

    found = locate(host, [sighting(A, cpus=cpus)])

    assert node_of(found) is None


def test_a_list_smaller_than_the_cpuset_says_something():
    """Of a cpuset that reaches into both nodes, the driver names only CPUs of node 1."""
    host = allowing(two_nodes(device(A, -1, "0-7")), "2-7")

    found = locate(host, [sighting(A, cpus="4-7")])

    assert node_of(found) == 1


def test_no_local_cpu_in_the_cpuset_is_no_place():
    """NVML gives an empty list for a GPU whose CPUs are outside the cpuset; sysfs still knows."""
    host = allowing(two_nodes(device(A, 1, "4-7")), "0-3")

    found = locate(host, [sighting(A, cpus="", nodes="1")])

    assert node_of(found) == 1
    assert found.gpus[0].disagreement is None


def test_disagreement_is_shown_with_the_choice():
    """sysfs says node 0, the driver node 1: sysfs is taken, because the driver sees the cpuset of its caller."""
    host = two_nodes(device(A, 0, "0-3"))

    found = locate(host, [sighting(A, cpus="4-7", nodes="1")])

    assert node_of(found) == 0
    assert "NVML CPU affinity names node 1" in found.gpus[0].disagreement
    assert "node 0 is taken" in found.gpus[0].disagreement
    assert any("node 0 is taken" in note for note in found.notes)


@pytest.mark.parametrize(("driver", "wanted"), [(None, 1), ("0-3", 0), ("4-7", 1)])
def test_where_sysfs_contradicts_itself_the_driver_decides(driver, wanted):
    """numa_node 0 beside CPUs of node 1: the CPUs count, unless the driver supports the number."""
    host = two_nodes(device(A, 0, "4-7"))

    found = locate(host, [sighting(A, cpus=driver)] if driver else [])

    assert node_of(found) == wanted
    assert found.gpus[0].disagreement


def test_devices_below_the_same_bridge_help():
    """A GPU without a node sits where the other function below its switch sits."""
    root, switch = "pci0000:40", "0000:40:01.0"
    host = two_nodes(
        device(A, -1, "0-7", switch, root),
        device("0000:01:00.1", 1, "4-7", switch, root, class_code="040300"),
        device("0000:09:00.0", 0, "0-3", "pci0000:00"),
    )

    found = locate(host)

    assert node_of(found) == 1
    assert found.gpus[0].evidence[-1].source == "PCI siblings"


def test_devices_of_one_root_on_two_nodes_help_nobody():
    """A guest with everything on one root complex and devices on both nodes tells nothing of the GPU."""
    root = "pci0000:00"
    host = two_nodes(
        device(A, -1, "0-7", root),
        device(B, 0, "0-3", root),
        device(C, 1, "4-7", root),
    )

    found = locate(host)

    assert node_of(found) is None
    assert "nodes 0-1" in found.gpus[0].evidence[-1].says


def test_nearer_devices_count_more_than_the_root():
    """What is below the same switch decides before what is below the same root."""
    root, switch = "pci0000:00", "0000:00:04.0"
    host = two_nodes(
        device(A, -1, "0-7", switch, root),
        device(B, 1, "4-7", switch, root),
        device(C, 0, "0-3", root),
    )

    found = locate(host)

    assert node_of(found) == 1


def test_everything_on_one_node_is_suspicious():
    """Eight GPUs and every other device on node 0 of two: the answer stays, a note warns of the firmware."""
    host = two_nodes(device(A, 0, "0-3"), device(B, 0, "0-3"))

    found = locate(host)

    assert [each.cpu_node for each in found.gpus] == [0, 0]
    assert any("some firmware says so of every device" in note for note in found.notes)


def test_a_device_on_the_other_node_lifts_the_suspicion():
    """Two GPUs on node 0 beside a disk on node 1 are an ordinary host."""
    host = two_nodes(
        device(A, 0, "0-3"), device(B, 0, "0-3"), device(C, 1, "4-7", class_code="010802")
    )

    found = locate(host)

    assert not found.notes


def test_gpu_memory_of_two_gpus_is_one_gpus():
    """Two GPUs that claim the same memory node are a contradiction that is said."""
    host = machine({0: "0-3", 2: ""}, gpus=[gpu(0, hbm_node=2), gpu(1, hbm_node=2)])

    found = locate(host)

    assert [each.hbm_node for each in found.gpus] == [2, None]
    assert any("the first is taken" in note for note in found.notes)


def test_a_slice_lies_where_its_gpu_lies():
    """MIG instances come from the driver and belong to a GPU that has a place."""
    host = two_nodes(device(A, 1, "4-7"))

    found = locate(
        host, [sighting(A, mig=(mig("MIG-377e0049-554c-540b-93c6-d0976f8426cb", 1, 0),))]
    )

    assert node_of(found) == 1
    assert found.gpus[0].mig[0].gpu_instance == 1


def test_identity_comes_from_either_source():
    """The kernel's UUID is kept, the driver's fills the gap."""
    host = two_nodes(device(A, 0), gpus=[gpu(0, uuid="GPU-kernel"), gpu(1, name=None)])

    found = locate(
        host, [sighting(A, uuid="GPU-driver"), sighting(B, uuid="GPU-b", name="NVIDIA L4")]
    )

    assert [each.uuid for each in found.gpus] == ["GPU-kernel", "GPU-b"]
    assert found.gpus[1].name == "NVIDIA L4"


def test_a_node_number_without_nodes_is_not_called_wrong():
    """Where the nodes cannot be read nobody can say that numa_node 1 is none of them."""
    host = replace(two_nodes(device(A, 1, "4-7"), gpus=[gpu(0)]), nodes=())

    (found,) = locate(host).gpus

    assert found.cpu_node is None
    assert "1, and no node is shown here" in [each.says for each in found.evidence]


def test_gpus_are_numbered_alike_by_sysfs_and_by_drivers():
    """NVIDIA's come before AMD's at lower addresses, whether sysfs shows them or only a driver."""
    amd = gpu(0, pci_address="0000:01:00.0", vendor="amd")
    host = two_nodes(gpus=[gpu(0, pci_address="0000:0a:00.0"), replace(amd, index=1)])

    found = locate(host, [sighting("00000000:0a:00.0"), sighting("00000000:41:00.0")])

    assert [each.pci_address for each in found.gpus] == [
        "0000:0a:00.0",
        "0000:41:00.0",
        "0000:01:00.0",
    ]


def test_a_gpu_that_only_the_driver_sees_joins_in_pci_order():
    """Without sysfs (WSL) the driver's GPUs are the machine's; indices follow the PCI addresses."""
    host = two_nodes(gpus=[gpu(1)])

    found = locate(host, [sighting("00000000:03:00.0"), sighting("00000000:00:0A.0")])

    assert [(each.index, each.pci_address) for each in found.gpus] == [
        (0, "0000:00:0a.0"),
        (1, B),
        (2, C),
    ]


def test_a_gpu_that_the_driver_hides_is_not_accessible():
    """Where the driver was asked, a GPU of the PCI tree that it does not show cannot be opened here."""
    found = locate(two_nodes(device(A, 0), device(B, 1)), [sighting(B)])

    assert [each.accessible for each in found.gpus] == [False, True]


def test_network_cards_and_disks_are_placed_the_same_way():
    """NICs and NVMe controllers get nodes from sysfs, or none."""
    host = replace(
        two_nodes(
            device(A, 1, "4-7", class_code="020700"), device(B, -1, "0-7", class_code="010802")
        ),
        nics=(Nic(A, rdma_devices=("mlx5_0",)), Nic(None, ("eth0",))),
        nvmes=(Nvme(B, "nvme0"),),
    )

    found = locate(host)

    assert [nic.cpu_node for nic in found.nics] == [1, None]
    assert found.nvmes[0].cpu_node is None
    assert [each.bound_node for each in found.pci] == [1, None]


def test_a_description_that_names_a_node_is_believed():
    """A source that gives the node itself is weighed like any other evidence."""
    host = two_nodes(
        gpus=[gpu(0, pci_address="gpu0", evidence=(Evidence("NCCL XML", "numaid 1", 1),))]
    )

    found = locate(host)

    assert node_of(found) == 1


def test_local_cpus_of_a_description_are_enough():
    """A description without PCI devices that only says which CPUs are local places a GPU by them."""
    host = two_nodes(gpus=[gpu(0, pci_address="gpu0", local_cpus=CpuSet.parse("4-7"))])

    found = locate(host)

    assert node_of(found) == 1


def test_a_memory_less_node_with_cpus_is_a_place():
    """A node without memory still has CPUs to be bound to."""
    host = machine(
        {0: "0-3", 1: "4-7"}, memory={0: 64 * GIB, 1: 0}, pci=[device(A, 1, "4-7")], gpus=[gpu(0)]
    )

    found = locate(host)

    assert node_of(found) == 1


@given(machines())
def test_locating_twice_changes_nothing_more(host):
    """What was decided stays decided, and only nodes with CPUs are places."""
    once = locate(host)

    assert locate(once) == once
    assert all(each.cpu_node is None or each.cpu_node in once.cpu_nodes for each in once.gpus)
