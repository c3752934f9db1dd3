"""Is a host read as it is, whatever its kernel leaves out, numbers oddly or gets wrong?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trees import CPU, NODE, cpus, host, nodes
from wellfed.host.recording import RecordingTree
from wellfed.host.topology import read_machine
from wellfed.model.cpuset import CpuSet, NodeSet, union
from wellfed.model.errors import TopologyError
from wellfed.model.machine import HugePages


def cpus_by_node(machine) -> dict[int, str]:
    """Give each node's CPUs as text."""
    return {node.node: str(node.cpus) for node in machine.nodes}


def notes_with(machine, *words: str) -> list[str]:
    """Give the notes that have all of these words."""
    return [note for note in machine.notes if all(word in note for word in words)]


# ---- which CPUs are online ----------------------------------------------------------------------------------------


def test_a_cpu_number_is_no_index():
    """Kernel fact K12: with CPU 3 offline there are 11 CPUs and the largest number is 11."""
    machine = read_machine(host(cpus("0-2,4-11", present="0-11"), nodes({0: "0-11"})))

    assert machine.online == CpuSet.parse("0-2,4-11")
    assert machine.offline == CpuSet([3])
    assert machine.cpu(3).core == CpuSet()
    assert machine.cpu(3).node is None
    assert machine.cpu(11).online


def test_numbers_may_start_anywhere_and_have_holes():
    """SPARC and s390 machines number from 1 or 8 on, with holes."""
    machine = read_machine(
        host(cpus("1,8-11,40-43", cores=["8-11", "40-43"]), nodes({1: "1,8-11", 3: "40-43"}))
    )

    assert cpus_by_node(machine) == {1: "1,8-11", 3: "40-43"}
    assert machine.cores(machine.online) == (
        CpuSet([1]),
        CpuSet.parse("8-11"),
        CpuSet.parse("40-43"),
    )


def test_old_kernels_say_it_cpu_by_cpu():
    """Without a list of online CPUs each cpuN/online says it, and the boot CPU has no such file."""
    said = {f"{CPU}/cpu{cpu}/online": "0" if cpu in (2, 5) else "1" for cpu in range(1, 8)}
    files = cpus("0-1,3-4,6-7", cores=["0,4", "1,6"])

    machine = read_machine(
        host(files, said, nodes({0: "0-7"}), without=["/online", "/present", "/possible"])
    )
    again = read_machine(
        host(files, said, nodes({0: "0-7"}), without=["cpu/online", "/present", "/possible"])
    )

    assert again.online == CpuSet.parse("0-1,3-4,6-7")
    assert again.offline == CpuSet([2, 5])
    assert cpus_by_node(again) == {0: "0-1,3-4,6-7"}
    assert machine.online == CpuSet.parse("0-1,3-4,6-7")


def test_a_folder_without_topology_is_an_offline_cpu_where_others_have_one():
    """Older still: nothing says online, but an offline CPU loses its topology folder."""
    files = cpus("0-3") | {f"{CPU}/cpu4/crash_notes": "1f"}

    machine = read_machine(
        host(files, nodes({0: "0-4"}), without=["/online", "/present", "/possible"])
    )

    assert machine.online == CpuSet.parse("0-3")
    assert machine.offline == CpuSet([4])


def test_cpuinfo_decides_where_sysfs_says_nothing_of_a_cpu():
    """A kernel without topology folders for any CPU: /proc/cpuinfo lists the online ones."""
    files = {f"{CPU}/cpu{cpu}/crash_notes": "1f" for cpu in range(4)}
    cpuinfo = {
        "/proc/cpuinfo": "\n\n".join(f"processor\t: {cpu}\nmodel name\t: X" for cpu in (0, 1, 3))
    }

    machine = read_machine(host(files, cpuinfo))

    assert machine.online == CpuSet([0, 1, 3])
    assert machine.offline == CpuSet([2])


@pytest.mark.parametrize(
    ("text", "online"),
    [
        ("processor\t: 0\nBogoMIPS\t: 1\n\nprocessor\t: 7\n", "0,7"),
        ("vendor_id : IBM/S390\nprocessor 1: version = 00\nprocessor 9: version = 00\n", "1,9"),
        ("cpu\t\t: UltraSparc T2\nCpu8ClkTck\t: 4d\nCPU8:\t\tonline\nCPU9:\t\tonline\n", "8-9"),
    ],
    ids=["most", "s390", "sparc"],
)
def test_cpuinfo_of_every_architecture(text, online):
    """Where there is no sysfs at all, the processors of /proc/cpuinfo are taken, however they are written."""
    machine = read_machine(host({"/proc/cpuinfo": text}))

    assert machine.online == CpuSet.parse(online)


def test_cpuinfo_gives_cores_and_packages_on_x86():
    """Without topology folders, physical id and core id tell which threads are one core."""
    places = {0: (0, 0), 1: (0, 1), 2: (3, 0), 3: (0, 0)}
    text = "\n\n".join(
        f"processor : {c}\nphysical id : {p}\ncore id : {k}" for c, (p, k) in places.items()
    )

    machine = read_machine(host({"/proc/cpuinfo": text}))

    assert machine.cores(machine.online) == (CpuSet([0, 3]), CpuSet([1]), CpuSet([2]))
    assert [cpu.package for cpu in machine.cpus] == [0, 0, 3, 0]


def test_a_tree_without_any_cpu_is_refused_with_a_remedy():
    """Nothing can be placed on no CPU: one sentence, and what to type."""
    with pytest.raises(TopologyError) as refusal:
        read_machine(host({"/proc/meminfo": "MemTotal: 1 kB"}))

    assert "no CPU" in refusal.value.message
    assert "wellfed capture" in refusal.value.remedy


def test_an_online_list_that_is_garbage_is_not_believed():
    """A damaged list is named, and the folders are asked instead."""
    machine = read_machine(
        host(cpus("0-3"), {f"{CPU}/online": b"\xff\xfe\x01\x00garbage"}, nodes({0: "0-3"}))
    )

    assert machine.online == CpuSet.parse("0-3")
    assert notes_with(machine, f"{CPU}/online", "not used")


# ---- what CPUs share ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 4, 8])
def test_cores_of_1_2_4_and_8_threads(threads):
    """SMT siblings are whatever the kernel lists: pairs, POWER's four and eight."""
    cores = [f"{first}-{first + threads - 1}" for first in range(0, 16, threads)]

    machine = read_machine(host(cpus("0-15", cores=cores), nodes({0: "0-15"})))

    assert machine.cores(machine.online) == tuple(CpuSet.parse(core) for core in cores)


@pytest.mark.parametrize(
    "name", ["core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings"]
)
def test_siblings_by_any_name_the_kernel_gave_them(name):
    """Lists or masks, under the old name or the new."""
    value = "0,4" if name.endswith("list") else "00000011"
    files = {f"{CPU}/online": "0,4"} | {f"{CPU}/cpu{cpu}/topology/{name}": value for cpu in (0, 4)}

    machine = read_machine(host(files, nodes({0: "0,4"})))

    assert machine.cores(machine.online) == (CpuSet([0, 4]),)


def test_an_offline_sibling_is_no_sibling():
    """Some kernels still list it; no thread can run there."""
    machine = read_machine(
        host(cpus("0-2,4-5", cores=["0,3", "1,4", "2,5"], present="0-5"), nodes({0: "0-5"}))
    )

    assert machine.cpu(0).core == CpuSet([0])
    assert machine.cpu(1).core == CpuSet([1, 4])


def test_contradicting_siblings_give_disjoint_cores_and_a_note():
    """CPU 1 claims 2, which claims 3: the lowest CPU's list holds, and the person is told."""
    files = cpus("0-3") | {
        f"{CPU}/cpu{cpu}/topology/thread_siblings_list": said
        for cpu, said in ((1, "1-2"), (2, "2-3"))
    }

    machine = read_machine(host(files, nodes({0: "0-3"})))

    assert machine.cores(machine.online) == (CpuSet([0]), CpuSet([1, 2]), CpuSet([3]))
    assert notes_with(machine, "CPU 2 lists 2-3", "contradicts")


def test_contradicting_caches_give_disjoint_groups_and_a_note():
    """Two caches of level 3 cannot share a CPU."""
    files = cpus("0-5", l3=["0-2", "3-5"]) | {f"{CPU}/cpu3/cache/index3/shared_cpu_list": "2-5"}

    machine = read_machine(host(files, nodes({0: "0-5"})))

    assert {str(cpu.l3) for cpu in machine.cpus} == {"0-2", "3-5"}
    assert notes_with(machine, "CPU 3 lists 2-5", "level-3 cache")


def test_a_cache_that_lacks_its_own_cpu_is_unknown():
    """Itanium kernels wrote an empty mask; a list about others is no list about this one."""
    files = cpus("0-3", l3=["0-3"]) | {f"{CPU}/cpu3/cache/index3/shared_cpu_list": "0-2"}

    machine = read_machine(host(files, nodes({0: "0-3"})))

    assert machine.cpu(0).l3 == CpuSet.parse("0-3")
    assert notes_with(machine, "lacks CPU 3 itself")


def test_the_level_3_cache_is_found_by_its_level_not_by_its_folder():
    """index2 is the third level where instruction and data share the first; an instruction cache is none."""
    files = cpus("0-1")
    for cpu in (0, 1):
        cache = f"{CPU}/cpu{cpu}/cache"
        files |= {f"{cache}/index{i}/level": level for i, level in enumerate("123")}
        files |= {f"{cache}/index{i}/shared_cpu_map": "3" for i in range(3)}
        files |= {f"{cache}/index4/level": "3", f"{cache}/index4/type": "Instruction"}
        files |= {f"{cache}/index4/shared_cpu_list": str(cpu)}

    machine = read_machine(host(files, nodes({0: "0-1"})))

    assert machine.cpu(1).l3 == CpuSet([0, 1])


def test_cores_without_a_level_3_cache_have_none_beside_cores_that_have_one():
    """Low-power cores of some processors hang beside the cache, not behind it."""
    files = cpus("0-3", l3=["0-1"]) | {
        f"{CPU}/cpu2/cache/index0/level": "1",
        f"{CPU}/cpu3/cache/index0/level": "1",
    }

    machine = read_machine(host(files, nodes({0: "0-3"})))

    assert [str(cpu.l3) if cpu.l3 else None for cpu in machine.cpus] == ["0-1", "0-1", None, None]


def test_package_minus_one_is_unknown_not_zero():
    """Firmware without packages makes the kernel say −1."""
    machine = read_machine(host(cpus("0-1", packages={-1: "0-1"}), nodes({0: "0-1"})))

    assert {cpu.package for cpu in machine.cpus} == {None}


def test_package_number_and_package_list_may_contradict_each_other():
    """Two sockets that both call themselves 0, as on an Altix: said, and the number taken."""
    files = cpus("0-3") | {
        f"{CPU}/cpu{cpu}/topology/core_siblings_list": f"{cpu}" for cpu in range(4)
    }

    machine = read_machine(host(files, nodes({0: "0-3"})))

    assert {cpu.package for cpu in machine.cpus} == {0}
    assert notes_with(machine, "0-3", "as their package", "CPU 0 lists 0")


@pytest.mark.parametrize(
    ("identity", "clusters"), [("7", ["0-1", "2-3"]), ("65535", [None]), ("-1", [None])]
)
def test_clusters_where_firmware_names_them(identity, clusters):
    """A cluster id of −1 or 65535 is the kernel's word for none."""
    files = cpus("0-3")
    for cpu in range(4):
        topology = f"{CPU}/cpu{cpu}/topology"
        files |= {
            f"{topology}/cluster_cpus_list": "0-1" if cpu < 2 else "2-3",
            f"{topology}/cluster_id": identity,
        }

    machine = read_machine(host(files, nodes({0: "0-3"})))

    assert (
        sorted({str(cpu.cluster) if cpu.cluster else None for cpu in machine.cpus}, key=str)
        == clusters
    )


def test_dies_where_firmware_names_them():
    """A die of −1 is unknown, not 0."""
    dies = {f"{CPU}/cpu{cpu}/topology/die_id": str(cpu // 2 - 1) for cpu in range(4)}

    machine = read_machine(host(cpus("0-3"), dies, nodes({0: "0-3"})))

    assert [cpu.die for cpu in machine.cpus] == [None, None, 0, 0]


def hybrid(**values: list[int]) -> dict[str, str]:
    """Write one number a CPU into files such as cpu_capacity."""
    paths = {
        "capacity": "cpu_capacity",
        "base": "cpufreq/base_frequency",
        "highest": "acpi_cppc/highest_perf",
    }
    return {
        f"{CPU}/cpu{cpu}/{paths[name]}": str(value)
        for name, numbers in values.items()
        for cpu, value in enumerate(numbers)
    }


@pytest.mark.parametrize(
    ("files", "performance"),
    [
        (hybrid(capacity=[718, 731, 997, 1024]), "2-3"),
        (hybrid(capacity=[1024, 1024, 1024, 1024]), ""),
        (hybrid(capacity=[980, 1000, 1010, 1024]), ""),
        (hybrid(base=[1900000, 1900000, 1400000, 1400000], highest=[67, 64, 39, 39]), "0-1"),
        (hybrid(highest=[236, 231, 176, 166]), ""),
        (hybrid(base=[2700000, 2700000, 2100000, 2100000], highest=[38, 38, 38, 38]), ""),
        ({"/sys/devices/cpu_core/cpus": "0-1", "/sys/devices/cpu_atom/cpus": "2-3"}, "0-1"),
        (
            {
                "/sys/devices/cpu_core/cpus": "3",
                "/sys/devices/cpu_atom/cpus": "0-1",
                "/sys/devices/cpu_lowpower/cpus": "2",
            },
            "3",
        ),
    ],
    ids=[
        "gb10",
        "equal",
        "nearly equal",
        "alder lake",
        "amd's ranking",
        "speed select",
        "counters",
        "three kinds",
    ],
)
def test_hybrid_processors(files, performance):
    """Performance and efficiency cores by what tells them apart, and never by a ranking of equal cores."""
    machine = read_machine(host(cpus("0-3"), files, nodes({0: "0-3"})))

    assert CpuSet(cpu.cpu for cpu in machine.cpus if cpu.kind == "performance") == CpuSet.parse(
        performance
    )
    assert {cpu.kind for cpu in machine.cpus} == (
        {"performance", "efficiency"} if performance else {None}
    )


# ---- nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        {0: "0-1", 2: "2-3", 3: "4-5"},
        {0: "0", 1: "1", 2: "2", 33: "3", 34: "4", 45: "5", 72: "6", 73: "7"},
        {0: "0-3", 8: "8-11", 250: "", 251: "", 255: ""},
    ],
    ids=["0,2,3", "0-2,33-34,45,72-73", "power9"],
)
def test_node_numbers_may_be_sparse(said):
    """Nodes are listed, never counted; and a column of the distance row is an online node, not a number."""
    online = ",".join(text for text in said.values() if text)
    rows = {
        node: " ".join("10" if other == node else str(20 + other) for other in said)
        for node in said
    }

    machine = read_machine(host(cpus(online), nodes(said, distances=rows)))

    assert cpus_by_node(machine) == said
    for node in machine.nodes:
        assert dict(node.distances) == {
            other: 10 if other == node.node else 20 + other for other in said
        }


def test_only_node_1_is_left():
    """CPU 0 and node 0 are offline, node 1 still lists offline CPUs: they are no place for a thread."""
    machine = read_machine(host(cpus("4-15", present="0-20"), nodes({1: "4-20"})))

    assert cpus_by_node(machine) == {1: "4-15"}
    assert machine.cpu_nodes == NodeSet([1])


def test_nodes_without_memory_without_cpus_and_without_both():
    """Each stays what it is."""
    memory = {0: 0, 1: 1 << 20, 2: 0, 6: 1 << 20}

    machine = read_machine(
        host(cpus("0-3"), nodes({0: "0-1", 1: "", 2: "", 6: "2-3"}, memory_kb=memory))
    )

    assert {n.node: n.kind for n in machine.nodes} == {
        0: "cpu-only",
        1: "memory-only",
        2: "empty",
        6: "cpu+memory",
    }
    assert machine.memory_nodes == NodeSet([1, 6])


def test_many_nodes_that_claim_the_same_cpus():
    """Firmware that gives every node all CPUs: the lowest has them, and the person is told."""
    machine = read_machine(host(cpus("0-7"), nodes({node: "0-7" for node in range(8)})))

    assert cpus_by_node(machine) == {0: "0-7"} | {node: "" for node in range(1, 8)}
    assert notes_with(machine, "node 1 lists CPUs 0-7", "lower number")


def test_a_cpu_that_no_node_names_has_no_node():
    """Unknown is not node 0."""
    machine = read_machine(host(cpus("0-3"), nodes({0: "0-1"})))

    assert machine.cpu(3).node is None
    assert notes_with(machine, "CPUs 2-3 are on no node")


def test_a_mask_is_read_where_the_list_is_missing():
    """Old kernels and most dumps have cpumap only."""
    machine = read_machine(host(cpus("0-3"), nodes({0: "0,2", 2: "1,3"}), without=["cpulist"]))

    assert cpus_by_node(machine) == {0: "0,2", 2: "1,3"}


def test_links_to_cpus_are_read_where_list_and_mask_are_missing():
    """node1/cpu3 says the same."""
    links = {
        f"{NODE}/node{node}/cpu{cpu}/uevent": "" for node, cpu in ((0, 0), (0, 1), (1, 2), (1, 3))
    }

    machine = read_machine(
        host(cpus("0-3"), nodes({0: "", 1: ""}), links, without=["cpulist", "cpumap"])
    )

    assert cpus_by_node(machine) == {0: "0-1", 1: "2-3"}


def test_a_node_that_says_nothing_of_its_cpus_is_unknown():
    """Neither empty nor full: not recorded."""
    machine = read_machine(
        host(cpus("0-3"), nodes({0: "0-3", 1: ""}), without=["node1/cpulist", "node1/cpumap"])
    )

    assert not machine.node(1).cpus_recorded
    assert machine.node(0).cpus_recorded
    assert notes_with(machine, "node 1", "does not say")


def test_list_and_mask_that_contradict_each_other():
    """The mask is taken, since a long list was cut at a page in older kernels; said aloud."""
    machine = read_machine(host(cpus("0-3"), nodes({0: "0-3"}), {f"{NODE}/node0/cpulist": "0-2"}))

    assert cpus_by_node(machine) == {0: "0-3"}
    assert notes_with(machine, "node 0", "cpulist", "cpumap is taken")


def test_list_and_mask_that_differ_in_offline_cpus_agree():
    """A list of all possible CPUs and a mask of the online ones name the same place for a thread."""
    machine = read_machine(
        host(cpus("0-1", present="0-3"), nodes({0: "0-3"}), {f"{NODE}/node0/cpumap": "3"})
    )

    assert cpus_by_node(machine) == {0: "0-1"}
    assert machine.notes == ()


def test_cpus_that_the_host_cannot_have_are_said():
    """A node may list CPUs that are absent; ones that are not even possible are a contradiction."""
    machine = read_machine(host(cpus("0-3", present="0-7"), nodes({0: "0-63"})))

    assert cpus_by_node(machine) == {0: "0-3"}
    assert notes_with(machine, "8-63", "cannot have")


@pytest.mark.parametrize("name", ["cpulist", "cpumap"])
def test_damaged_node_files_are_said_and_the_other_one_is_used(name):
    """Binary in one of two files leaves the other."""
    damaged = {f"{NODE}/node0/{name}": b"\x7fELF\x02\x01\xff"}

    machine = read_machine(host(cpus("0-3"), nodes({0: "0-3"}), damaged))

    assert cpus_by_node(machine) == {0: "0-3"}
    assert notes_with(machine, f"node0/{name}", "not used")


def test_a_kernel_without_numa_has_one_memory():
    """No node folder: everything is local, and the person is told what that rests on."""
    meminfo = "MemTotal: 4096 kB\nMemFree: 1024 kB\nInactive(file): 512 kB"
    pools = {"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "4"}
    pools |= {"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "1"}

    machine = read_machine(host(cpus("0-3"), {"/proc/meminfo": meminfo}, pools))

    assert cpus_by_node(machine) == {0: "0-3"}
    assert machine.nodes[0].memory_bytes == 4 << 20
    assert machine.nodes[0].available_bytes == 1536 << 10
    assert machine.nodes[0].hugepages == (HugePages(2 << 20, 4, 1),)
    assert notes_with(machine, "without NUMA")


@pytest.mark.parametrize("errno_name", ["EACCES", "ENODATA", "EIO"])
def test_nodes_that_could_not_be_looked_at_are_unknown(errno_name):
    """A folder that was closed to us is not a kernel without NUMA."""
    machine = read_machine(host(cpus("0-3"), errnos={NODE: errno_name}))

    assert machine.nodes == ()
    assert {cpu.node for cpu in machine.cpus} == {None}
    assert notes_with(machine, errno_name)


def test_other_things_in_the_node_folder_are_no_nodes():
    """power, has_cpu, node_stats, and a number that no kernel gives."""
    others = {
        f"{NODE}/power/control": "auto",
        f"{NODE}/nodes": "1",
        f"{NODE}/node99999999999/cpulist": "0-3",
    }

    machine = read_machine(host(cpus("0-3"), nodes({0: "0-3"}), others))

    assert cpus_by_node(machine) == {0: "0-3"}


def test_memory_and_huge_pages_of_a_node():
    """Bytes, not kilobytes; what can be had is free memory and clean page cache."""
    pool = f"{NODE}/node0/hugepages/hugepages-1048576kB"
    meminfo = "Node 0 MemTotal:  8192 kB\nNode 0 MemFree:  2048 kB\nNode 0 Inactive(file):  1024 kB\nNode 0 Inactive: 9 kB"

    machine = read_machine(
        host(
            cpus("0"),
            nodes({0: "0"}),
            {
                f"{NODE}/node0/meminfo": meminfo,
                f"{pool}/nr_hugepages": "8",
                f"{pool}/free_hugepages": "3",
            },
        )
    )

    assert machine.nodes[0].memory_bytes == 8 << 20
    assert machine.nodes[0].available_bytes == 3 << 20
    assert machine.nodes[0].hugepages == (HugePages(1 << 30, 8, 3),)


def whole_host(kilobytes: int) -> dict[str, str]:
    """Write what /proc/meminfo says of memory."""
    return {"/proc/meminfo": f"MemTotal: {kilobytes} kB\nMemFree: {kilobytes // 2} kB"}


@pytest.mark.parametrize("others", [(), (1,)], ids=["alone", "beside a node without memory"])
def test_the_only_node_with_memory_has_all_of_the_hosts(others):
    """Memory that was added to a virtual machine may be on no node: a hard bind must not be refused for it."""
    said = {0: "0-3"} | {number: "" for number in others}
    sizes = {0: 8 << 20} | dict.fromkeys(others, 0)

    machine = read_machine(host(cpus("0-3"), nodes(said, memory_kb=sizes), whole_host(24 << 20)))

    assert machine.nodes[0].memory_bytes == 24 << 30
    assert machine.nodes[0].available_bytes == 12 << 30
    assert notes_with(machine, "24 GiB", "8 GiB", "node 0")


def test_memory_that_no_node_of_several_shows_is_given_to_none():
    """Which node has the rest, nobody says."""
    said = nodes({0: "0-1", 1: "2-3"}, memory_kb={0: 8 << 20, 1: 8 << 20})

    machine = read_machine(host(cpus("0-3"), said, whole_host(24 << 20)))

    assert [node.memory_bytes for node in machine.nodes] == [8 << 30, 8 << 30]
    assert notes_with(machine, "24 GiB", "16 GiB", "not known")


@pytest.mark.parametrize(
    "kilobytes", [8 << 20, (8 << 20) + 1000, 1 << 20], ids=["equal", "near", "a container's limit"]
)
def test_memory_that_agrees_is_no_contradiction(kilobytes):
    """Nodes and host read the same; what lxcfs shows of a container's limit is less, and no fault of the nodes."""
    said = nodes({0: "0-3"}, memory_kb={0: 8 << 20})

    machine = read_machine(host(cpus("0-3"), said, whole_host(kilobytes)))

    assert machine.nodes[0].memory_bytes == 8 << 30
    assert machine.notes == ()


@pytest.mark.parametrize("row", ["0", "10", "10 20 30", "10 twenty", "10 -20", "9 20"])
def test_a_distance_row_that_cannot_be_right_is_not_used(row):
    """Too few, too many, no numbers, or below the firmware's 10."""
    machine = read_machine(
        host(cpus("0-1"), nodes({0: "0", 3: "1"}, distances={0: row, 3: "20 10"}))
    )

    assert machine.node(0).distances == ()
    assert machine.node(3).distances == ((0, 20), (3, 10))
    assert notes_with(machine, "node0/distance", "not used")


def test_meminfo_that_is_missing_is_unknown_memory():
    """Not zero: a node whose memory is not recorded may have some."""
    machine = read_machine(host(cpus("0-1"), nodes({0: "0-1"}), without=["meminfo"]))

    assert machine.nodes[0].memory_bytes is None
    assert machine.nodes[0].kind == "cpu+unknown-memory"


def test_nodes_that_cut_through_packages_are_said():
    """A guest with nodes 0-31,64-95 and packages of other 64 CPUs (hwloc#712): the node's list is trusted, and said."""
    files = cpus("0-7", packages={0: "0-3", 1: "4-7"})

    machine = read_machine(host(files, nodes({0: "0-1,4-5", 1: "2-3,6-7"})))

    assert cpus_by_node(machine) == {0: "0-1,4-5", 1: "2-3,6-7"}
    assert notes_with(machine, "node 0 has some CPUs of package 0", "made-up")


@pytest.mark.parametrize(
    "said", [{0: "0-7"}, {0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}, {0: "0-3", 1: "4-7"}]
)
def test_nodes_of_several_packages_and_packages_of_several_nodes_are_no_contradiction(said):
    """Two sockets without NUMA, sub-NUMA clusters, and one node a socket."""
    machine = read_machine(host(cpus("0-7", packages={0: "0-3", 1: "4-7"}), nodes(said)))

    assert machine.notes == ()


def test_a_core_on_two_nodes_is_said():
    """No processor is made so; a guest's description may be."""
    machine = read_machine(host(cpus("0-3", cores=["0,2", "1,3"]), nodes({0: "0-1", 1: "2-3"})))

    assert notes_with(machine, "CPUs 0,2 are called one core", "different nodes")


# ---- laws ---------------------------------------------------------------------------------------------------------


def test_the_same_tree_gives_the_same_machine():
    """Nothing depends on when or how often a host is read."""
    tree = host(cpus("0-7", cores=["0,4", "1,5"], l3=["0-3", "4-7"]), nodes({0: "0-3", 1: "2-7"}))

    assert read_machine(tree) == read_machine(tree)


def test_a_list_of_65536_cpus_that_nothing_else_shows_is_read_at_once():
    """A hostile list costs what the folders cost, not what it claims."""
    machine = read_machine(host(cpus("0-3"), {f"{CPU}/online": "0-65535"}, nodes({0: "0-3"})))

    assert len(machine.cpus) == 65536
    assert machine.cpu(3).core == CpuSet([3])
    assert notes_with(machine, "4-65535", "have no folder")


class CountingTree(RecordingTree):
    """A host that counts how often it is asked."""

    num_asked = 0

    def read_bytes(self, path):
        """Count, and read."""
        self.num_asked += 1
        return super().read_bytes(path)

    def list(self, path):
        """Count, and list."""
        self.num_asked += 1
        return super().list(path)


def test_a_host_of_256_cpus_is_asked_2000_times_at_most():
    """At 10 to 15 microseconds a question that is 30 ms of a launch; a file read twice shows here."""
    cores = [f"{core},{core + 128}" for core in range(128)]
    caches = [f"{first}-{first + 7},{first + 128}-{first + 135}" for first in range(0, 128, 8)]
    tree = CountingTree(
        host(
            cpus(
                "0-255", cores=cores, l3=caches, packages={0: "0-63,128-191", 1: "64-127,192-255"}
            ),
            nodes({0: "0-63,128-191", 1: "64-127,192-255"}),
        )
    )

    machine = read_machine(tree)

    assert len(machine.cores(machine.online)) == 128
    assert tree.num_asked <= 2000


def test_many_remarks_of_a_kind_are_three_and_a_count():
    """256 damaged files are not 256 sentences."""
    damaged = {f"{CPU}/cpu{cpu}/topology/thread_siblings_list": "x" for cpu in range(256)}

    machine = read_machine(host(cpus("0-255"), damaged, nodes({0: "0-255"})))

    assert len(notes_with(machine, "thread_siblings_list")) == 3
    assert any("and 253 more" in note for note in machine.notes)


WORDS = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [
            b"",
            b"0",
            b"-1",
            b"0-3",
            b"7-4",
            b"0-99999999",
            b"f",
            b"ffffffff,",
            b"3",
            b"10 20",
            b"0-1,x",
            b"\0\0",
        ]
    ),
)
BASE = cpus("0-7", cores=["0,4", "1,5"], l3=["0-3", "4-7"], present="0-9") | nodes(
    {0: "0-3", 2: "4-7", 5: ""}, distances={0: "10 20 30", 2: "20 10 30", 5: "30 30 10"}
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(BASE)), WORDS, max_size=6),
    st.sets(st.sampled_from(sorted(BASE)), max_size=6),
)
def test_no_text_breaks_the_reading(replaced, removed):
    """Whatever stands in these files: a machine whose parts are disjoint, or one clear refusal."""
    tree = host(BASE, replaced, without=tuple(removed) or ("nothing",))
    try:
        machine = read_machine(tree)
    except TopologyError as refusal:
        assert refusal.remedy
        return

    assert sum(len(node.cpus) for node in machine.nodes) == len(
        union(node.cpus for node in machine.nodes)
    )
    assert union(node.cpus for node in machine.nodes) <= machine.online
    cores = machine.cores(machine.online)
    assert sum(map(len, cores)) == len(machine.online)
    assert machine.allowed.cpus <= machine.online
    caches = {cpu.l3 for cpu in machine.cpus if cpu.l3}
    assert sum(map(len, caches)) == len(union(caches))
