"""Are GPUs, network cards and disks found, told from their likes, and described with what each source says?"""

from __future__ import annotations

import pytest

from tests.trees import Pci, cpus, host, nodes
from wellfed.host.topology import read_machine
from wellfed.model.cpuset import CpuSet
from wellfed.model.machine import Machine, PciLink

TWO_NODES = cpus("0-7", packages={0: "0-3", 1: "4-7"}) | nodes({0: "0-3", 1: "4-7"})
NVIDIA = "/proc/driver/nvidia/gpus"


def machine_with(pci: Pci, *more: dict[str, str], **options: object) -> Machine:
    """Read a host of two nodes with some PCI devices."""
    links = pci.links | options.pop("links", {})
    return read_machine(host(TWO_NODES, pci.files, *more, links=links, **options))


def says(device) -> dict[str, tuple[str, int | None]]:
    """Give evidence by source."""
    return {evidence.source: (evidence.says, evidence.cpu_node) for evidence in device.evidence}


# ---- which functions are GPUs -------------------------------------------------------------------------------------


def test_functions_beside_a_gpu_are_no_gpus():
    """NVIDIA's audio, USB and NVSwitch functions, and other makers' console chips."""
    pci = Pci()
    pci.add("0000:01:00.0", "030200").add("0000:01:00.1", "040300").add("0000:01:00.2", "0c0330")
    pci.add("0000:02:00.0", "068000").add("0000:03:00.0", "030000", "1a03").add(
        "0000:04:00.0", "030000", "102b"
    )
    pci.add("0000:05:00.0", "030000", "1234").add("0000:06:00.0", "030000", "1414")

    machine = machine_with(pci)

    assert [gpu.pci_address for gpu in machine.gpus] == ["0000:01:00.0"]


@pytest.mark.parametrize(
    ("code", "vendor", "address", "files", "vendor_name"),
    [
        ("030000", "10de", "0000:01:00.0", {}, "nvidia"),
        ("030200", "10de", "0000:01:00.0", {}, "nvidia"),
        ("038000", "1002", "0000:c1:00.0", {}, "amd"),
        ("120000", "1002", "0000:c1:00.0", {}, "amd"),
        ("030000", "1002", "0000:03:00.0", {"max_link_speed": "16.0 GT/s PCIe"}, "amd"),
        ("030000", "1002", "0000:03:00.0", {"driver": "amdgpu"}, "amd"),
        ("030000", "1002", "0000:03:00.0", {"driver": "radeon"}, None),
        ("030000", "1002", "0000:03:00.0", {}, None),
        ("038000", "8086", "0000:29:00.0", {}, "intel"),
        ("030000", "8086", "0000:03:00.0", {}, "intel"),
        ("030000", "8086", "0000:00:02.0", {}, None),
        ("038000", "8086", "0000:00:02.0", {}, None),
    ],
)
def test_what_counts_as_a_gpu_that_computes(code, vendor, address, files, vendor_name):
    """By class and maker; a processor's own graphics and a 2000s server's ATI chip do not count."""
    machine = machine_with(Pci().add(address, code, vendor, **files))

    assert [gpu.vendor for gpu in machine.gpus] == ([vendor_name] if vendor_name else [])


def test_gpus_are_numbered_in_pci_order_by_number():
    """Domains and buses are numbers, not texts: 9f before 10000, and another maker's GPUs come after."""
    pci = Pci()
    for address in (
        "10000:01:00.0",
        "0000:9f:00.0",
        "000a:01:00.0",
        "0009:01:00.0",
        "0000:0a:00.0",
    ):
        pci.add(address)
    pci.add("0000:01:00.0", "038000", "1002")

    machine = machine_with(pci)

    assert [(gpu.index, gpu.pci_address) for gpu in machine.gpus] == [
        (0, "0000:0a:00.0"),
        (1, "0000:9f:00.0"),
        (2, "0009:01:00.0"),
        (3, "000a:01:00.0"),
        (4, "10000:01:00.0"),
        (5, "0000:01:00.0"),
    ]


def test_virtual_functions_of_a_gpu_are_no_gpus_of_the_host():
    """A host that hands out vGPUs shows their functions beside the physical one; NVML counts the latter."""
    pci = Pci().add("0000:41:00.0").add("0000:41:00.4").add("0000:41:00.5")
    virtual = {
        f"{pci.links['/sys/bus/pci/devices/' + a]}/physfn": "../0000:41:00.0"
        for a in ("0000:41:00.4", "0000:41:00.5")
    }

    machine = machine_with(pci, links=virtual)

    assert [gpu.pci_address for gpu in machine.gpus] == ["0000:41:00.0"]


def test_a_gpu_given_to_a_guest_is_kept_closed_and_counted_last():
    """vfio-pci holds it: NVML of this host does not see it, so that the others keep NVML's numbers."""
    pci = (
        Pci()
        .add("0000:01:00.0", driver="vfio-pci")
        .add("0000:02:00.0", driver="nvidia")
        .add("0000:03:00.0", driver="nvidia")
    )

    machine = machine_with(pci)

    assert [(gpu.pci_address, gpu.accessible) for gpu in machine.gpus] == [
        ("0000:02:00.0", None),
        ("0000:03:00.0", None),
        ("0000:01:00.0", False),
    ]
    assert any("0000:01:00.0" in note and "vfio-pci" in note for note in machine.notes)


def test_a_container_sees_all_gpus_in_sysfs_and_its_own_under_proc():
    """NVIDIA's runtime hides the others' /proc entries: they keep their place and are closed."""
    pci = Pci().add("0000:01:00.0", driver="nvidia").add("0000:02:00.0", driver="nvidia")
    information = {
        f"{NVIDIA}/0000:02:00.0/information": "Model: NVIDIA H100\nGPU UUID: GPU-1\nDevice Minor: 1"
    }

    machine = machine_with(pci, information)

    assert [(gpu.index, gpu.pci_address, gpu.accessible) for gpu in machine.gpus] == [
        (0, "0000:01:00.0", False),
        (1, "0000:02:00.0", None),
    ]


def test_what_the_driver_says_under_proc():
    """Model and UUID; question marks are what it prints before a GPU was opened once."""
    pci = Pci().add("0000:1b:00.0").add("0000:43:00.0").add("0000:52:00.0")
    files = {
        f"{NVIDIA}/0000:1b:00.0/information": (
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 321\n"
            "GPU UUID: \t GPU-5d2c1bba-1111-2222-3333-444455556666\nBus Location: \t 0000:1b:00.0\nGPU Excluded:\t No"
        ),
        f"{NVIDIA}/0000:43:00.0/information": "Model: Unknown\nGPU UUID: GPU-????????-????-????-????-????????????",
        f"{NVIDIA}/0000:52:00.0/information": "Model: NVIDIA H100\nGPU Excluded: Yes",
    }

    machine = machine_with(pci, files)

    first, second, third = machine.gpus
    assert (first.name, first.uuid) == (
        "NVIDIA H100 80GB HBM3",
        "GPU-5d2c1bba-1111-2222-3333-444455556666",
    )
    assert (second.name, second.uuid, second.accessible) == (None, None, None)
    assert third.accessible is False


@pytest.mark.parametrize(
    ("status", "hbm_node"),
    [
        ("Node:      1\nStatus:    online\n", 1),
        ("Node:      1\nStatus:    offline\n", None),
        ("Node:      -1\nStatus:    disabled\n", None),
        ("", None),
    ],
)
def test_memory_that_is_a_numa_node(status, hbm_node):
    """Only a node that is online is the GPU's memory, and it is no evidence of a CPU node."""
    machine = machine_with(
        Pci().add("0000:01:00.0", node=0), {f"{NVIDIA}/0000:01:00.0/numa_status": status}
    )

    (gpu,) = machine.gpus
    assert gpu.hbm_node == hbm_node
    if status:
        assert says(gpu)["/proc/driver/nvidia numa_status"][1] is None


def test_a_gpu_that_only_the_driver_shows():
    """A dump without PCI tree, or without vendor ids, still has the driver's folder."""
    machine = machine_with(
        Pci(), {f"{NVIDIA}/0004:05:00.0/numa_status": "Node: 255\nStatus: online"}
    )

    (gpu,) = machine.gpus
    assert (gpu.pci_address, gpu.vendor, gpu.hbm_node) == ("0004:05:00.0", "nvidia", 255)


def test_the_render_node_of_a_gpu():
    """/dev/dri/renderD129 belongs to this function."""
    pci = Pci().add("0000:01:00.0")
    pci.files["/sys/devices/pci0000:00/0000:01:00.0/drm/renderD129/dev"] = "226:129"

    assert machine_with(pci).gpus[0].drm_index == 129


# ---- evidence -----------------------------------------------------------------------------------------------------


def test_every_source_is_told_with_its_own_words():
    """numa_node, local_cpulist and the bridge above, each with the CPU node that follows."""
    pci = Pci().add("0000:41:00.0", node=1, local="4-7", above=["pci0000:40", "0000:40:01.0"])
    pci.files["/sys/devices/pci0000:40/0000:40:01.0/numa_node"] = "1"

    (gpu,) = machine_with(pci).gpus

    assert says(gpu) == {
        "sysfs numa_node": ("1", 1),
        "sysfs local_cpulist": ("4-7", 1),
        "PCI parents": ("0000:40:01.0 numa_node 1", 1),
    }
    assert gpu.cpu_node is None
    assert gpu.local_cpus == CpuSet.parse("4-7")


@pytest.mark.parametrize("word", ["-1", "2", "garbage", "99999999999999999999"])
def test_words_from_which_no_node_follows(word):
    """−1, a node without CPUs, no number: kept as said, never node 0."""
    (gpu,) = machine_with(Pci().add("0000:41:00.0", node=word, local="0-7")).gpus

    assert says(gpu) == {"sysfs numa_node": (word, None), "sysfs local_cpulist": ("0-7", None)}


def test_a_missing_file_is_said_to_be_missing():
    """WSL and old kernels have no numa_node: not there, which is no node."""
    (gpu,) = machine_with(Pci().add("0000:41:00.0")).gpus

    assert says(gpu) == {"sysfs numa_node": ("not there", None)}


def test_a_mask_of_local_cpus_where_the_list_is_missing():
    """The mask says the same, under its own name."""
    (gpu,) = machine_with(Pci().add("0000:41:00.0", local_cpus="000000f0")).gpus

    assert says(gpu)["sysfs local_cpus"] == ("4-7", 1)


def test_the_nearest_bridge_with_a_node_speaks_for_the_device():
    """numa_node −1 below a switch on node 1 below a root port that does not know."""
    pci = Pci().add(
        "0000:43:00.0",
        node=-1,
        local="0-7",
        above=["pci0000:40", "0000:40:01.0", "0000:41:00.0", "0000:42:00.0"],
    )
    pci.files |= {
        "/sys/devices/pci0000:40/0000:40:01.0/numa_node": "-1",
        "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/numa_node": "1",
        "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0/numa_node": "-1",
    }

    assert says(machine_with(pci).gpus[0])["PCI parents"] == ("0000:41:00.0 numa_node 1", 1)


@pytest.mark.parametrize(("name", "near"), [("cpulistaffinity", "4-7"), ("cpuaffinity", "f0")])
def test_the_root_bus_speaks_where_no_bridge_does(name, near):
    """/sys/devices/pci0000:40/pci_bus/0000:40 lists the CPUs near to it."""
    pci = Pci().add("0000:41:00.0", node=-1, local="0-7", above=["pci0000:40", "0000:40:01.0"])
    pci.files[f"/sys/devices/pci0000:40/pci_bus/0000:40/{name}"] = near

    assert says(machine_with(pci).gpus[0])["PCI parents"] == ("pci0000:40 CPUs 4-7", 1)


def test_a_root_bus_that_is_near_to_all_says_nothing():
    """All CPUs is no place."""
    pci = Pci().add("0000:41:00.0", node=-1, above=["pci0000:40"])
    pci.files["/sys/devices/pci0000:40/pci_bus/0000:40/cpulistaffinity"] = "0-7"

    assert says(machine_with(pci).gpus[0])["PCI parents"] == ("pci0000:40 CPUs 0-7", None)


def test_damaged_words_of_a_device_become_notes():
    """A local_cpulist of garbage is not used, and said."""
    machine = machine_with(Pci().add("0000:41:00.0", node="1", local="4-x"))

    assert says(machine.gpus[0]) == {"sysfs numa_node": ("1", 1)}
    assert any("local_cpulist" in note and "not used" in note for note in machine.notes)


# ---- the tree -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("above", "address", "parents"),
    [
        (["pci0000:40", "0000:40:01.0"], "0000:41:00.0", ("0000:40:01.0", "pci0000:40")),
        (["pci10000:00"], "10000:00:02.0", ("pci10000:00",)),
        (["pci12345678:00"], "12345678:00:02.0", ("pci12345678:00",)),
        (["pci0000:00", "0000:00:0e.0", "pci10000:e0", "10000:e0:06.0"], "10000:e1:00.0",
         ("10000:e0:06.0", "pci10000:e0", "0000:00:0e.0", "pci0000:00")),
        (["LNXSYSTM:00", "LNXSYBUS:00", "ACPI0004:00", "VMBUS:01", "47505500-0001-0000-3130-444532454238", "pci0001:00"],
         "0001:00:00.0", ("pci0001:00",)),
        (["platform", "soc@0", "pci0004:00", "0004:00:00.0"], "0004:01:00.0", ("0004:00:00.0", "pci0004:00")),
    ],
    ids=["bridge", "5-digit domain", "32-bit domain", "vmd", "hyper-v", "soc"],
)  # fmt: skip
def test_what_is_above_a_device(above, address, parents):
    """Nearest first, root last, whatever the path is made of."""
    machine = machine_with(Pci().add(address, above=above))

    (gpu,) = machine.gpus
    device = next(device for device in machine.pci if device.address == gpu.pci_address)
    assert device.parents == parents
    assert {parent for parent in parents if not parent.startswith("pci")} <= {
        d.address for d in machine.pci
    }


def test_the_tree_is_walked_where_the_bus_is_not_recorded():
    """Some dumps lack /sys/bus/pci/devices, or its links."""
    pci = Pci().add("0000:41:00.0", node=1, above=["pci0000:40", "0000:40:01.0"])
    pci.add(
        "10000:e1:00.0",
        "010802",
        "8086",
        above=["pci0000:00", "0000:00:0e.0", "pci10000:e0", "10000:e0:06.0"],
    )

    machine = read_machine(host(TWO_NODES, pci.files))

    assert [gpu.pci_address for gpu in machine.gpus] == ["0000:41:00.0"]
    assert next(d for d in machine.pci if d.address == "10000:e1:00.0").parents[-1] == "pci0000:00"


def test_one_uevent_says_class_vendor_device_and_driver():
    """One read instead of four, on hosts with hundreds of functions."""
    uevent = "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:16C1\nPCI_SLOT_NAME=0000:1b:00.0"
    path = "/sys/devices/pci0000:15/0000:1b:00.0"

    machine = read_machine(
        host(
            TWO_NODES, {f"{path}/uevent": uevent}, links={"/sys/bus/pci/devices/0000:1b:00.0": path}
        )
    )

    (device,) = machine.pci
    assert (device.class_code, device.vendor, device.device, device.driver) == (
        "030200",
        "10de",
        "2330",
        "nvidia",
    )
    assert machine.gpus[0].pci_address == "0000:1b:00.0"


@pytest.mark.parametrize(
    ("speed", "width", "link"),
    [
        ("32.0 GT/s PCIe", "16", PciLink(32.0, 16, 32.0, 16)),
        ("2.5 GT/s", "8", PciLink(2.5, 8, 2.5, 8)),
        ("8 GT/s", "8", PciLink(8.0, 8, 8.0, 8)),
        ("Unknown", "255", PciLink()),
        ("Unknown speed", "0", PciLink()),
        ("fast", "wide", PciLink()),
    ],
)
def test_link_speed_and_width_in_every_spelling(speed, width, link):
    """Unknown is unknown: neither 0 nor 255 lanes."""
    names = ("current_link_speed", "max_link_speed")
    files = dict.fromkeys(names, speed) | dict.fromkeys(
        ("current_link_width", "max_link_width"), width
    )

    machine = machine_with(Pci().add("0000:41:00.0", **files))

    assert machine.pci[0].link == link


def test_functions_that_carry_no_data_are_left_out():
    """Memory controllers and counters of a processor are hundreds, and feed no GPU."""
    machine = machine_with(
        Pci().add("0000:16:08.0", "088000", "8086").add("0000:16:08.1", "110100", "8086")
    )

    assert machine.pci == ()


# ---- network cards ------------------------------------------------------------------------------------------------


def test_a_card_has_interfaces_and_rdma_devices():
    """Both are found at the PCI function, also through virtio and with two ports."""
    pci = (
        Pci()
        .add("0000:18:00.0", "020700", "15b3", node=0, local="0-3")
        .add("0000:00:03.0", "020000", "1af4", node=-1)
    )
    pci.shows("0000:18:00.0", "net", "ibp24s0").shows("0000:18:00.0", "net", "ibp24s0d1")
    pci.shows("0000:18:00.0", "infiniband", "mlx5_0").shows(
        "0000:00:03.0", "net", "eth0", through="/virtio0"
    )

    machine = machine_with(pci)

    assert [(nic.pci_address, nic.interfaces, nic.rdma_devices) for nic in machine.nics] == [
        ("0000:00:03.0", ("eth0",), ()),
        ("0000:18:00.0", ("ibp24s0", "ibp24s0d1"), ("mlx5_0",)),
    ]
    assert says(machine.nics[1])["sysfs numa_node"] == ("0", 0)


def test_what_is_no_card():
    """Loopback, veth, bonds, software RDMA, a BMC's USB adapter, and files in the class folder."""
    pci = Pci().add("0000:00:14.0", "0c0330", "8086")
    pci.shows("0000:00:14.0", "net", "enxbe3af2b6059f", through="/usb1/1-14/1-14:1.0")
    virtual = {
        f"/sys/devices/virtual/{path}/uevent": ""
        for path in ("net/lo", "net/veth1", "net/bond0", "infiniband/rxe0")
    }
    links = {
        f"/sys/class/{path}": f"/sys/devices/virtual/{path}"
        for path in ("net/lo", "net/veth1", "net/bond0", "infiniband/rxe0")
    }

    machine = machine_with(pci, virtual, {"/sys/class/net/bonding_masters": "bond0"}, links=links)

    assert machine.nics == ()


def test_a_card_on_another_bus_has_no_pci_address():
    """Hyper-V's synthetic card is real and lies on VMBUS."""
    folder = "/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/000d3a7c/net/eth0"

    machine = machine_with(Pci(), {f"{folder}/uevent": ""}, links={"/sys/class/net/eth0": folder})

    assert [(nic.pci_address, nic.interfaces) for nic in machine.nics] == [(None, ("eth0",))]


def test_virtual_functions_count_where_they_carry_something():
    """A pod gets a virtual function with an RDMA device; idle ones are left out."""
    pci = (
        Pci()
        .add("0000:18:00.0", "020000", "15b3")
        .add("0000:18:00.1", "020000", "15b3")
        .add("0000:18:00.2", "020000", "15b3")
    )
    pci.shows("0000:18:00.2", "infiniband", "mlx5_9")
    links = {
        f"{pci.links['/sys/bus/pci/devices/' + a]}/physfn": "../0000:18:00.0"
        for a in ("0000:18:00.1", "0000:18:00.2")
    }

    machine = machine_with(pci, links=links)

    assert [nic.pci_address for nic in machine.nics] == ["0000:18:00.0", "0000:18:00.2"]


# ---- disks --------------------------------------------------------------------------------------------------------


def test_disks_in_the_order_a_person_counts():
    """nvme2 before nvme10; a controller over the network has no PCI address."""
    pci = Pci()
    for bus, name in (("21", "nvme10"), ("22", "nvme2")):
        pci.add(f"0000:{bus}:00.0", "010802", "144d", node=1).shows(
            f"0000:{bus}:00.0", "nvme", name
        )
    fabric = "/sys/devices/virtual/nvme-fabrics/ctl/nvme3"

    machine = machine_with(pci, {f"{fabric}/uevent": ""}, links={"/sys/class/nvme/nvme3": fabric})

    assert [(disk.name, disk.pci_address) for disk in machine.nvmes] == [
        ("nvme2", "0000:22:00.0"),
        ("nvme3", None),
        ("nvme10", "0000:21:00.0"),
    ]
    assert says(machine.nvmes[0])["sysfs numa_node"] == ("1", 1)


def test_disks_of_kernels_without_the_class():
    """Before it had a class of its own, the controller was a misc device."""
    pci = Pci().add("0000:21:00.0", "010802", "8086", node=0)
    pci.files["/sys/devices/pci0000:00/0000:21:00.0/misc/nvme0/dev"] = "10:60"

    assert [(disk.name, disk.pci_address) for disk in machine_with(pci).nvmes] == [
        ("nvme0", "0000:21:00.0")
    ]


@pytest.mark.parametrize("name", ["0000:zz:00.0", "1:2:3.4", "0000:01:00.8x", "..", "0000:01:00"])
def test_names_that_are_no_addresses_are_no_devices(name):
    """The bus folder of a hostile recording may hold anything."""
    machine = read_machine(host(TWO_NODES, {f"/sys/bus/pci/devices/{name}/class": "0x030200"}))

    assert machine.pci == ()
    assert machine.gpus == ()
