"""Is what KFD shows of AMD GPUs read as the kernel means it?

The hosts are put together here from the kernel's own writing of these files (drivers/gpu/drm/amd/amdkfd/kfd_topology.c,
kfd_crat.c): two CPU nodes, and GPUs at the PCI addresses that MI300X servers are seen with.
"""

from __future__ import annotations

import pytest

from wellfed.gpus import amd
from wellfed.gpus._base import Unanswered
from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.machine import Evidence, MigInstance

CPU_NODE = {"cpu_cores_count": 96, "simd_count": 0, "vendor_id": 0, "location_id": 0}

MI300X = {
    "cpu_cores_count": 0,
    "simd_count": 1216,
    "gfx_target_version": 90402,
    "vendor_id": 4098,
    "device_id": 29857,
    "domain": 0,
    "num_xcc": 8,
}

PCIE, XGMI = 2, 11


def host(*, kfd=(), pci=(), has_cpu="0-1", errnos=(), files=()) -> RecordedTree:
    """Put a host together: KFD nodes as (properties, links), PCI functions as (address, numa_node)."""
    made = {"/sys/devices/system/node/has_cpu": has_cpu}
    for number, (properties, links) in enumerate(kfd):
        here = f"{amd.KFD_NODES}/{number}"
        made[f"{here}/properties"] = lines(properties)
        for count, link in enumerate(links):
            made[f"{here}/io_links/{count}/properties"] = lines(link)
    for address, numa_node in pci:
        made[f"{amd.PCI_DEVICES}/{address}/numa_node"] = str(numa_node)
    made |= dict(files)
    return RecordedTree(
        "a recording",
        {path: f"{text}\n".encode() for path, text in made.items() if path not in dict(errnos)},
        errnos=dict(errnos),
    )


def lines(properties: dict[str, int]) -> str:
    return "\n".join(f"{name} {value}" for name, value in properties.items())


def gpu(location_id: int, unique_id: int, **more: int) -> dict[str, int]:
    return MI300X | {"location_id": location_id, "unique_id": unique_id} | more


def link(node_to: int, weight: int = 20, kind: int = PCIE) -> dict[str, int]:
    return {"type": kind, "node_to": node_to, "weight": weight, "flags": 1}


def two_socket_server(**more) -> RecordedTree:
    """Give two CPU nodes, and a GPU on each."""
    return host(
        kfd=[
            (CPU_NODE, [link(1, 32)]),
            (CPU_NODE, [link(0, 32)]),
            (gpu(0x0500, 0x21B6D61638A86F8C), [link(0), link(3, 15, XGMI)]),
            (gpu(0xE500, 0xA0C2F7E16C11D4), [link(1), link(2, 15, XGMI)]),
        ],
        pci=[("0000:05:00.0", 0), ("0000:e5:00.0", 1)],
        **more,
    )


def test_gpus_are_found_by_pci_address():
    """Address, the UUID that rocminfo prints, the architecture, and the CPU node it hangs on."""
    sightings = amd.look(two_socket_server())

    first, second = sightings.found
    assert (first.pci_address, second.pci_address) == ("0000:05:00.0", "0000:e5:00.0")
    assert (first.uuid, second.uuid) == ("GPU-21b6d61638a86f8c", "GPU-00a0c2f7e16c11d4")
    assert (first.vendor, first.name, first.mig) == ("amd", "gfx942", ())
    assert first.evidence == (Evidence("KFD io_links", "node 0", 0),)
    assert second.evidence == (Evidence("KFD io_links", "node 1", 1),)
    assert sightings.unanswered == ()


def test_product_name_is_preferred():
    """Where the card says what it is called, that is its name."""
    tree = two_socket_server(
        files={f"{amd.PCI_DEVICES}/0000:05:00.0/product_name": "AMD Instinct MI300X OAM"}
    )

    assert [each.name for each in amd.look(tree).found] == ["AMD Instinct MI300X OAM", "gfx942"]


@pytest.mark.parametrize("numa_node", ["-1", None])
def test_the_drivers_default_is_not_node_0(numa_node):
    """Where the PCI device has no node the driver writes 0: that says nothing, and must not become node 0."""
    pci = [("0000:05:00.0", numa_node)] if numa_node else []
    tree = host(
        kfd=[(CPU_NODE, []), (CPU_NODE, []), (gpu(0x0500, 1), [link(0)])],
        pci=pci,
    )

    (found,) = amd.look(tree).found

    (evidence,) = found.evidence
    assert evidence.cpu_node is None
    assert evidence.says == "node 0, which the driver writes where it does not know"


def test_sparse_nodes_are_numa_nodes():
    """On nodes 0 and 8 the link says 8, the NUMA node, though KFD counts its CPU nodes 0 and 1."""
    tree = host(
        kfd=[(CPU_NODE, []), (CPU_NODE, []), (gpu(0x0500, 1), [link(8)])],
        pci=[("0000:05:00.0", 8)],
        has_cpu="0,8",
    )

    (found,) = amd.look(tree).found

    assert found.evidence == (Evidence("KFD io_links", "node 8", 8),)


def test_a_number_that_two_nodes_could_mean_is_undecided():
    """With CPUs on nodes 1 and 2 alone, KFD's second CPU node and NUMA node 1 are not the same: no node follows."""
    tree = host(
        kfd=[(CPU_NODE, []), (CPU_NODE, []), (gpu(0x0500, 1), [link(1)])],
        pci=[("0000:05:00.0", 1)],
        has_cpu="1-2",
    )

    (found,) = amd.look(tree).found

    assert found.evidence[0].cpu_node is None
    assert found.evidence[0].says == "node 1, or the CPU node that KFD counts so, 2"


@pytest.mark.parametrize("has_cpu", ["1", "garbage"])
def test_nodes_without_cpus_do_not_follow(has_cpu):
    """A node of which it is not known that it has CPUs is never a CPU node."""
    tree = two_socket_server(has_cpu=has_cpu)

    first, _ = amd.look(tree).found

    assert first.evidence[0].cpu_node is None


def test_gpus_linked_only_to_gpus_have_no_node():
    """Links to other GPUs say nothing about CPUs."""
    tree = host(
        kfd=[(CPU_NODE, []), (gpu(0x0500, 1), []), (gpu(0xE500, 2), [])],
        pci=[("0000:05:00.0", 0), ("0000:e5:00.0", 0)],
    )

    assert {each.evidence[0].says for each in amd.look(tree).found} == {"no link to a CPU node"}


def test_partitions_are_one_gpu():
    """mpibind#45: in CPX mode eight devices of HIP share one PCI function, and lie where it lies."""
    parts = [gpu(0x0500 | part << 28, 0x100 + part, num_xcc=1, simd_count=152) for part in range(8)]
    tree = host(
        kfd=[(CPU_NODE, []), (CPU_NODE, []), *((part, [link(1)]) for part in parts)],
        pci=[("0000:05:00.0", 1)],
        files={f"{amd.PCI_DEVICES}/0000:05:00.0/current_compute_partition": "CPX"},
    )

    (found,) = amd.look(tree).found

    assert found.pci_address == "0000:05:00.0"
    assert found.evidence == (Evidence("KFD io_links", "node 1", 1),)
    assert found.mig[3] == MigInstance("GPU-0000000000000103", 3, None, "CPX partition 3")
    assert len(found.mig) == 8
    assert found.notes == ("runs as 8 CPX partitions, each a device of its own for HIP",)


def test_partitions_in_the_function_number_are_the_same_gpu():
    """Kernels that or-ed the partition into the function name functions that do not exist: they are function 0."""
    parts = [gpu(0x0500 | part, 0x100 + part) for part in range(3)]
    tree = host(
        kfd=[(CPU_NODE, []), *((part, [link(0)]) for part in parts)],
        pci=[("0000:05:00.0", 0)],
    )

    (found,) = amd.look(tree).found

    assert found.pci_address == "0000:05:00.0"
    assert [each.gpu_instance for each in found.mig] == [0, 1, 2]
    assert found.mig[1].name == "partition 1"


def test_virtual_functions_are_gpus_of_their_own():
    """A function that exists is a device, not a partition."""
    tree = host(
        kfd=[(CPU_NODE, []), (gpu(0x0500, 1), [link(0)]), (gpu(0x0501, 2), [link(0)])],
        pci=[("0000:05:00.0", 0), ("0000:05:00.1", 0)],
    )

    assert [each.pci_address for each in amd.look(tree).found] == ["0000:05:00.0", "0000:05:00.1"]


@pytest.mark.parametrize(
    ("domain", "address"), [(0, "0000:05:00.0"), (3, "0003:05:00.0"), (0x10000, "10000:05:00.0")]
)
def test_domains_are_written_as_sysfs_does(domain, address):
    """Four digits at least, and more where a domain has 32 bits."""
    tree = host(kfd=[(CPU_NODE, []), (gpu(0x0500, 1, domain=domain), [])])

    assert [each.pci_address for each in amd.look(tree).found] == [address]


def test_kernels_without_domains_are_matched_by_the_bus():
    """Without ``domain`` the only PCI function with that number is the GPU; two such functions leave it unknown."""
    old = gpu(0x0500, 1)
    del old["domain"]
    kfd = [(CPU_NODE, []), (old, [link(0)])]

    single = amd.look(host(kfd=kfd, pci=[("0002:05:00.0", 0), ("0000:06:00.0", 0)]))
    double = amd.look(host(kfd=kfd, pci=[("0002:05:00.0", 0), ("0000:05:00.0", 0)]))

    assert [each.pci_address for each in single.found] == ["0002:05:00.0"]
    assert double.found == ()
    assert double.unanswered == (
        Unanswered("amd", "KFD node 1: its location_id fits no PCI function"),
    )


def test_denied_gpus_are_reasons():
    """In a container with one of two GPUs the other's properties are not permitted: one is seen, one is said."""
    tree = two_socket_server(errnos={f"{amd.KFD_NODES}/2/properties": "EPERM"})

    sightings = amd.look(tree)

    assert [each.pci_address for each in sightings.found] == ["0000:e5:00.0"]
    assert sightings.unanswered == (Unanswered("amd", "KFD node 2: properties are not permitted"),)


def test_no_driver_is_a_reason():
    """Without KFD nothing is seen, and the reason names the place that was looked at."""
    sightings = amd.look(RecordedTree("a recording", {}))

    assert sightings.found == ()
    assert sightings.unanswered[0].reason == (
        "/sys/class/kfd/kfd/topology/nodes is not there: is the amdgpu driver loaded?"
    )


def test_gpus_without_identity_have_no_uuid():
    """Chips without a unique id, for which ROCr prints GPU-XX, have none here either."""
    tree = host(kfd=[(CPU_NODE, []), (gpu(0x0500, 0), [link(0)])], pci=[("0000:05:00.0", 0)])

    assert [each.uuid for each in amd.look(tree).found] == [None]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "simd_count",
        "simd_count many\nvendor_id 4098",
        "simd_count 9 9",
        "location_id -1",
        "\x00",
    ],
)
def test_damaged_properties_are_no_gpu(text):
    """Whatever stands in a properties file, it is read or left out, and never an exception."""
    tree = host(kfd=[(CPU_NODE, [])], files={f"{amd.KFD_NODES}/1/properties": text})

    assert amd.look(tree).found == ()


@pytest.mark.parametrize(
    ("version", "name"),
    [(90402, "gfx942"), (90010, "gfx90a"), (110000, "gfx1100"), (90500, "gfx950")],
)
def test_architectures_are_named_as_compilers_do(version, name):
    """The stepping is a hexadecimal digit in the name."""
    tree = host(kfd=[(gpu(0x0500, 1, gfx_target_version=version), [])])

    assert [each.name for each in amd.look(tree).found] == [name]
