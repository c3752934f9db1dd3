"""Do recorded machines read as lscpu and lstopo read them? Every difference is explained by what the machine shows."""

from __future__ import annotations

import functools
import json
import pathlib

import pytest

from tests.corpus import cases
from tests.goldens import Lscpu, Lstopo, read_lscpu, read_lstopo
from wellfed.host.allowed import read_allowed
from wellfed.host.archive import open_recording
from wellfed.host.facts import Facts
from wellfed.host.recording import RecordingTree
from wellfed.host.topology import read_machine
from wellfed.model.cpuset import CpuSet, NodeSet, union
from wellfed.model.machine import Machine, NumaNode
from wellfed.model.tree import HostTree
from wellfed.placement.locate import locate

HWLOC = cases("topology/hwloc/*.test")
LSCPU = cases("topology/lscpu/*.tar.gz")
CPUSET_V1 = ("cpuset.cpus", "cpuset.effective_cpus", "cpus")


@functools.lru_cache(maxsize=4)
def recorded(path: pathlib.Path) -> tuple[HostTree, Machine]:
    """Open and read a recorded root once for all questions."""
    tree = open_recording(path)
    return tree, read_machine(tree)


def lstopo_case(test: pathlib.Path) -> tuple[Lstopo, HostTree, Machine]:
    """Give lstopo's answer and ours; some `.test` files name a root that is not in every corpus."""
    golden = read_lstopo(test)
    source = test.parent / golden.source
    if not source.is_file():
        pytest.skip(f"{golden.source or 'the synthetic source'} is not in this corpus")
    return golden, *recorded(source)


def lscpu_case(root: pathlib.Path) -> tuple[Lscpu, Machine]:
    """Give lscpu's answer and ours."""
    return read_lscpu(root.parent / f"lscpu-{root.name.removesuffix('.tar.gz')}"), recorded(root)[1]


# ---- nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", HWLOC)
def test_nodes_have_the_cpus_that_lstopo_shows(test):
    """Each NUMA node has the CPUs lstopo prints beside it; memory without CPUs hangs beside whole nodes that have some."""
    golden, _, machine = lstopo_case(test)
    shown = {node.number: node.cpus for node in golden.of("NUMANode")}

    assert shown
    for number, cpus in shown.items():
        node = machine.node(number)
        assert node is not None
        if node.cpus:
            assert node.cpus & golden.cpus == cpus
        else:
            beside = [other for other in machine.nodes if other.cpus & cpus]
            assert union(other.cpus for other in beside) & golden.cpus == cpus


@pytest.mark.parametrize("test", HWLOC)
def test_a_node_that_lstopo_hides_is_one_that_it_hides_by_rule(test):
    """We list every node; lstopo hides those without memory, those outside the cpuset, and a GPU's own memory."""
    golden, _, machine = lstopo_case(test)
    shown = {node.number for node in golden.of("NUMANode")}
    gpu_memory = {gpu.hbm_node for gpu in machine.gpus}
    hidden = [node for node in machine.nodes if node.node not in shown]

    for node in hidden:
        assert why_hidden(node, machine, gpu_memory, golden)


def why_hidden(
    node: NumaNode, machine: Machine, gpu_memory: set[int | None], golden: Lstopo
) -> str | None:
    """Say by which of lstopo's rules a node is not shown; None: by none, so it is our mistake."""
    if not node.memory_bytes:
        return "no memory"
    if (
        "--disallowed" not in golden.options
        and machine.allowed.mems is not None
        and node.node not in machine.allowed.mems
    ):
        return "outside the cpuset"
    if node.node in gpu_memory and "HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES=1" not in golden.env:
        return "GPU memory"
    return None


@pytest.mark.parametrize("root", LSCPU)
def test_nodes_have_the_cpus_that_lscpu_shows(root):
    """Nodes and their CPUs are lscpu's; it also prints CPUs that are not online, and no node where the kernel has none."""
    golden, machine = lscpu_case(root)
    found = {node.node: node.cpus for node in machine.nodes}
    without_numa = any("shows no node" in note for note in machine.notes)

    if without_numa:
        assert golden.nodes == {}
        assert found == {0: machine.online}
    else:
        assert found == {number: cpus & golden.online for number, cpus in golden.nodes.items()}


@pytest.mark.parametrize("root", LSCPU)
def test_each_cpu_is_on_the_node_that_lscpu_prints_beside_it(root):
    """The table of `lscpu -p` names the same node for every CPU."""
    golden, machine = lscpu_case(root)

    for cpu in machine.cpus:
        printed = golden.table[cpu.cpu][2] if cpu.online else ""
        assert not printed or int(printed) == cpu.node


# ---- CPUs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", LSCPU)
def test_online_and_offline_cpus_are_those_of_lscpu(root):
    """Online CPUs are lscpu's; offline ones too, where it prints them."""
    golden, machine = lscpu_case(root)

    assert machine.online == golden.online
    assert golden.offline in (CpuSet(), machine.offline)


@pytest.mark.parametrize("root", LSCPU)
def test_cores_are_those_of_lscpu(root):
    """Threads of a core are lscpu's; where core numbers restart in each package, lscpu joins cores of several."""
    golden, machine = lscpu_case(root)
    ours = set(machine.cores(machine.online))

    if "-" in golden.summary["Thread(s) per core"] or len(golden.summary["Thread(s) per core"]) > 1:
        # Several kinds of core: lscpu prints each kind, and numbers cores within a kind.
        assert {str(len(core)) for core in ours} == set(golden.summary["Thread(s) per core"])
    else:
        assert golden.groups(0) == ours
        assert {len(core) for core in ours} == {int(golden.summary["Thread(s) per core"][0])}


@pytest.mark.parametrize("root", LSCPU)
def test_packages_are_the_sockets_of_lscpu(root):
    """CPUs share a package where lscpu prints the same socket; where the kernel says −1, we say unknown."""
    golden, machine = lscpu_case(root)
    packages = {cpu.package for cpu in machine.cpus if cpu.online}

    if packages == {None}:
        read = recorded(root)[0].read
        said = {
            read(f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id")
            for cpu in machine.online
        }
        assert said == {"-1"}
    elif len(golden.summary["Thread(s) per core"]) == 1:
        assert golden.groups(1) == {
            CpuSet(cpu.cpu for cpu in machine.cpus if cpu.package == package and cpu.online)
            for package in packages
        }


@pytest.mark.parametrize("root", LSCPU)
def test_level_3_caches_are_as_many_as_lscpu_counts(root):
    """There are as many groups of CPUs behind a level-3 cache as lscpu counts instances."""
    golden, machine = lscpu_case(root)
    printed = golden.summary.get("L3 cache", [""])[0]
    caches = {cpu.l3 for cpu in machine.cpus if cpu.l3}

    if "instance" in printed:
        assert f"({len(caches)} instance" in printed


@pytest.mark.parametrize("test", HWLOC)
def test_packages_are_those_of_lstopo(test):
    """Package numbers and their CPUs are lstopo's, unless numbers and lists of the kernel contradict each other."""
    golden, _, machine = lstopo_case(test)
    printed = {(thing.number, thing.cpus) for thing in golden.of("Package")}
    numbers = {cpu.package for cpu in machine.cpus if cpu.cpu in golden.cpus} - {None}
    found = {
        (number, CpuSet(c.cpu for c in machine.cpus if c.package == number) & golden.cpus)
        for number in numbers
    }

    if any("as their package" in note for note in machine.notes):
        assert {number for number, _ in printed} == numbers
    else:
        assert printed == found


@pytest.mark.parametrize("test", HWLOC)
def test_dies_are_those_of_lstopo(test):
    """Dies are lstopo's; it leaves out a die that is a whole package."""
    golden, _, machine = lstopo_case(test)
    places = {(cpu.package, cpu.die) for cpu in machine.cpus if cpu.die is not None}
    dies = {
        CpuSet(c.cpu for c in machine.cpus if (c.package, c.die) == place) & golden.cpus
        for place in places
    }
    packages = {
        CpuSet(c.cpu for c in machine.cpus if c.package == package) & golden.cpus
        for package, _ in places
    }

    assert {thing.cpus for thing in golden.of("Die")} == dies - packages


@pytest.mark.parametrize("test", HWLOC)
def test_level_3_caches_are_those_of_lstopo(test):
    """CPUs behind one level-3 cache are lstopo's; Itaniums that do not say which get one a core from it."""
    golden, _, machine = lstopo_case(test)
    if (
        "--no-caches" in golden.options
        or "--merge" in golden.options
        or "all:structure" in golden.options
    ):
        pytest.skip("this test of lstopo shows no caches")
    printed = {thing.cpus for thing in golden.of("L3Cache")}
    found = {cpu.l3 & golden.cpus for cpu in machine.cpus if cpu.l3 and cpu.cpu in golden.cpus}

    if any("lacks CPU" in note and "/cache/" in note for note in machine.notes) and not found:
        assert printed == set(machine.cores(golden.cpus))
    else:
        assert printed == found


@pytest.mark.parametrize("test", HWLOC)
def test_cores_are_those_of_lstopo(test):
    """Cores are lstopo's; it cuts AMD's compute units, whose two halves the kernel calls siblings, in two."""
    golden, tree, machine = lstopo_case(test)
    printed = {thing.cpus for thing in golden.of("Core")}
    if not printed:
        pytest.skip("this test of lstopo merges cores away")

    for core in machine.cores(golden.cpus):
        numbers = {tree.read(f"/sys/devices/system/cpu/cpu{cpu}/topology/core_id") for cpu in core}
        if len(numbers) == 1:
            assert core in printed
        else:
            assert {CpuSet([cpu]) for cpu in core} <= printed


@pytest.mark.parametrize("test", HWLOC)
def test_hybrid_cores_are_of_two_kinds(test):
    """We cut lstopo's kinds of CPUs, of which there may be five, between weak and strong; and equal ones not at all."""
    golden, _, machine = lstopo_case(test)
    strong = CpuSet(cpu.cpu for cpu in machine.cpus if cpu.kind == "performance")
    kinds = sorted(golden.kinds, key=lambda kind: kind[0])

    if len(kinds) < 2:
        assert {cpu.kind for cpu in machine.cpus} == {None}
    else:
        assert {cpu.kind for cpu in machine.cpus} == {"performance", "efficiency"}
        cut = [cpus <= strong for _, cpus in kinds]
        assert cut == sorted(cut) and not cut[0] and cut[-1]
        assert union(cpus for _, cpus in kinds if cpus <= strong) == strong


# ---- what this process may use ------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", HWLOC)
def test_allowed_cpus_are_those_that_lstopo_shows(test):
    """lstopo shows what the recorded process was allowed; it reads the configured cpuset, we what the kernel made of it."""
    golden, tree, machine = lstopo_case(test)
    allowed = golden.allowed_cpus if golden.allowed_cpus is not None else golden.cpus
    folder = machine.allowed.cpuset_path

    if "--disallowed" in golden.options:
        assert machine.allowed.cpus <= golden.cpus
    elif tree.read(f"{folder}/cpuset.effective_cpus") != tree.read(f"{folder}/cpuset.cpus"):
        configured = CpuSet.parse(tree.read(f"{folder}/cpuset.cpus"))
        assert machine.online & configured == allowed
        assert machine.allowed.cpus == allowed & machine.allowed.cpuset_cpus
    else:
        assert machine.allowed.cpus == allowed


@pytest.mark.parametrize("test", HWLOC)
def test_allowed_memory_nodes_are_those_that_lstopo_shows(test):
    """Where the recorded process had a cpuset, lstopo's nodes with memory are those of it."""
    golden, _, machine = lstopo_case(test)
    mems = machine.allowed.mems
    shown = NodeSet(node.number for node in golden.of("NUMANode"))

    if mems is not None and "--disallowed" not in golden.options and not machine.gpus:
        assert shown <= mems


@pytest.mark.parametrize("test", cases("topology/hwloc/allowed_*.test"))
def test_allowed_sets_on_a_machine_that_is_told_apart(test):
    """The cpuset file system says CPUs and memory nodes, for a machine of 4 nodes with 2 cores of 2 threads."""
    golden = read_lstopo(test)
    (root,) = test.parent.glob(f"{test.stem}*.tar.*")

    allowed = read_allowed(Facts(open_recording(root)), online=CpuSet(range(16)))

    assert allowed.cpus == golden.allowed_cpus
    assert allowed.mems == golden.allowed_mems
    assert allowed.cpuset_path == "/dev/cpuset/dummy"


# ---- devices ------------------------------------------------------------------------------------------------------


@pytest.mark.corpus
def test_gpus_whose_memory_is_a_numa_node(corpus):
    """On POWER9 each GPU's CPU node and memory node follow from local_cpus and the driver's numa_status."""
    answers = json.loads((corpus / "topology" / "ANSWERS.json").read_text())["hwloc"]
    for name, answer in answers.items():
        machine = locate(recorded(corpus / "topology" / "hwloc" / f"{name}.tar.bz2")[1])
        wanted = {address: says for address, says in answer.items() if isinstance(says, dict)}

        found = {
            g.pci_address: {"cpu_node": g.cpu_node, "hbm_node": g.hbm_node} for g in machine.gpus
        }

        assert found == wanted
        assert [gpu.index for gpu in machine.gpus] == list(range(len(wanted)))


@pytest.mark.corpus
def test_a_console_chip_is_no_gpu(corpus):
    """ASPEED, Matrox and QEMU's VGA are in many servers and compute nothing."""
    roots = sorted((corpus / "topology").glob("*/*.tar.*"))
    for root in roots:
        if root.name.startswith("allowed_"):
            continue
        machine = recorded(root)[1]
        screens = [
            d
            for d in machine.pci
            if d.class_code.startswith("03") and d.vendor in ("1a03", "102b", "1234")
        ]

        assert not {gpu.pci_address for gpu in machine.gpus} & {d.address for d in screens}


@pytest.mark.corpus
def test_network_cards_and_disks_have_names_and_places(corpus):
    """Interfaces, RDMA devices and disks are found at their PCI function, with what each source says of the node."""
    machine = recorded(corpus / "topology" / "hwloc" / "32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2")[1]

    cards = {nic.pci_address: (nic.interfaces, nic.rdma_devices) for nic in machine.nics}
    assert cards == {
        "0000:02:00.0": (("eth0",), ()),
        "0000:02:00.3": (("eth1",), ()),
        "0000:82:00.0": (("ib0",), ("mlx4_0",)),
    }
    assert [(disk.name, disk.pci_address) for disk in machine.nvmes] == [("nvme0", "0000:00:02.0")]
    disk = {
        evidence.source: (evidence.says, evidence.cpu_node)
        for evidence in machine.nvmes[0].evidence
    }
    assert disk["sysfs numa_node"] == ("-1", None)
    assert disk["sysfs local_cpulist"] == ("0-3", 0)


@pytest.mark.corpus
def test_minus_one_stays_minus_one(corpus):
    """A device whose node the kernel does not know says −1, lists all CPUs, and no node follows from either."""
    machine = recorded(corpus / "topology" / "hwloc" / "40intel64-2g2n4c+pcilocality.tar.bz2")[1]
    unknown = [device for device in machine.pci if device.numa_node == -1]

    assert unknown
    by_address = {nic.pci_address: nic for nic in machine.nics}
    for device in unknown:
        if device.address in by_address:
            assert {evidence.cpu_node for evidence in by_address[device.address].evidence} == {None}


@pytest.mark.corpus
def test_a_bridge_stands_between_a_card_and_its_root(corpus):
    """Parents are listed nearest first, up to the root bus."""
    machine = recorded(corpus / "topology" / "hwloc" / "32intel64-2p8co2t+8ve.tar.bz2")[1]
    device = next(device for device in machine.pci if device.address == "0000:60:00.0")

    assert device.parents == ("0000:5f:03.0", "0000:5e:00.0", "0000:5d:02.0", "pci0000:5d")
    assert {parent for parent in device.parents if not parent.startswith("pci")} <= {
        d.address for d in machine.pci
    }
    assert device.link.speed_gigatransfers_per_second == 2.5


# ---- the guest ----------------------------------------------------------------------------------------------------


@pytest.mark.corpus
def test_a_guest_with_memoryless_and_memory_only_nodes(corpus):
    """Kernel facts K11 to K13: node 2 has CPUs and no memory, node 3 memory and no CPUs, CPU 3 is offline."""
    machine = recorded(corpus / "topology" / "qemu" / "q35-4node-memless-memonly-smt2.tar.gz")[1]

    assert {node.node: (str(node.cpus), node.kind) for node in machine.nodes} == {
        0: ("0-2", "cpu+memory"),
        1: ("4-7", "cpu+memory"),
        2: ("8-11", "cpu-only"),
        3: ("", "memory-only"),
    }
    assert machine.offline == CpuSet([3])
    assert machine.cpu(2).core == CpuSet([2])
    assert machine.allowed.cpus == CpuSet.parse("0-2,4-11")
    assert machine.allowed.mems == NodeSet([0, 1, 3])
    assert machine.node(2).distance_to(3) == 40


@pytest.mark.parametrize("root", cases("topology/*/*.tar.*"))
def test_what_every_recorded_machine_obeys(root):
    """CPUs are on one node at most, cores lie inside caches, and nothing offline is anywhere."""
    if root.name.startswith("allowed_"):
        pytest.skip("this root records cpusets only")
    machine = recorded(root)[1]

    assert sum(len(node.cpus) for node in machine.nodes) == len(
        union(node.cpus for node in machine.nodes)
    )
    assert machine.allowed.cpus <= machine.online
    for cpu in machine.cpus:
        assert (cpu.cpu in cpu.core) == cpu.online
        assert cpu.core <= machine.online
        assert cpu.l3 is None or cpu.core <= cpu.l3
        assert cpu.node is None or cpu.cpu in machine.node(cpu.node).cpus


@pytest.mark.parametrize("root", cases("topology/*/*.tar.*"))
def test_what_was_asked_is_enough_to_read_a_machine_again(root):
    """A recording of exactly what the reading asked for gives the same machine, word for word."""
    if root.name.startswith("allowed_"):
        pytest.skip("this root records cpusets only")
    tree, machine = recorded(root)
    asked = RecordingTree(tree)

    read_machine(asked)

    assert read_machine(asked.recording(tree.name)) == machine
