"""How is a topology written as QEMU arguments?"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from tests.lab.kernel import Kernel
from tests.lab.topology import Device, Topology


def qemu_arguments(
    kernel: Kernel,
    topology: Topology,
    *,
    folder: pathlib.Path,
    disks: pathlib.Path,
    accelerator: Sequence[str],
    kernel_arguments: str = "",
) -> list[str]:
    """Write the guest as QEMU arguments. folder becomes its /lab, images of its disks go to disks."""
    quiet = "console=ttyS0 panic=-1 quiet loglevel=4"
    calm = "no_timer_check nokaslr mitigations=off random.trust_cpu=on"
    smp = (
        f"{topology.num_cpus},sockets={topology.sockets},dies={topology.dies},"
        f"cores={topology.cores},threads={topology.threads}"
    )
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-machine", "q35,smm=off,hpet=off", *accelerator, "-cpu", topology.cpu_model,
        "-smp", smp, "-m", f"{topology.memory_mib}M", *_numa_arguments(topology), *_pci_arguments(topology, disks),
        "-kernel", str(kernel.image), "-initrd", str(kernel.initramfs),
        "-append", f"{quiet} {calm} {topology.kernel_arguments} {kernel_arguments}",
        "-chardev", f"file,id=console,path={folder}/console.log", "-serial", "chardev:console",
        "-fsdev", "local,id=hostroot,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device", "virtio-9p-pci,bus=pcie.0,fsdev=hostroot,mount_tag=hostroot",
        "-fsdev", f"local,id=lab,path={folder},security_model=none",
        "-device", "virtio-9p-pci,bus=pcie.0,fsdev=lab,mount_tag=lab",
    ]  # fmt: skip


def _numa_arguments(topology: Topology) -> list[str]:
    arguments: list[str] = []
    for number, node in enumerate(topology.nodes):
        told = f"node,nodeid={number}" + "".join(
            f",cpus={part}" for part in str(node.cpus).split(",") if part
        )
        if node.memory_mib:
            arguments += [
                "-object",
                f"memory-backend-ram,id=memory{number},size={node.memory_mib}M",
            ]
            told += f",memdev=memory{number}"
        arguments += ["-numa", told]
    for source, row in enumerate(topology.distances):
        for target, distance in enumerate(row):
            arguments += ["-numa", f"dist,src={source},dst={target},val={distance}"]
    return arguments


def _pci_arguments(topology: Topology, disks: pathlib.Path) -> list[str]:
    """Put each device on an expander bus of its node; one function a bus, because fakegpu takes a bus over."""
    arguments: list[str] = []
    buses = sorted({device.bus for device in topology.devices})
    for number, bus in enumerate(buses):
        here = [device for device in topology.devices if device.bus == bus]
        node = "" if here[0].node is None else f",numa_node={here[0].node}"
        root = f"root{number}"
        arguments += ["-device", f"pxb-pcie,id={root},bus=pcie.0,bus_nr={bus}{node}"]
        parent, port = root, "pcie-root-port"
        if here[0].behind_switch:
            arguments += [
                "-device",
                f"pcie-root-port,id={root}top,bus={root},chassis={100 + number},slot=0",
            ]
            arguments += ["-device", f"x3130-upstream,id={root}up,bus={root}top"]
            parent, port = f"{root}up", "xio3130-downstream"
        for slot, device in enumerate(here):
            name = f"{root}port{slot}"
            chassis = 8 * number + slot + 1
            arguments += [
                "-device",
                f"{port},id={name},bus={parent},chassis={chassis},slot={slot},addr={slot}",
            ]
            arguments += _device_arguments(device, f"{root}device{slot}", name, disks)
    return arguments


def _device_arguments(device: Device, name: str, bus: str, disks: pathlib.Path) -> list[str]:
    if device.kind == "nic":
        return [
            "-netdev",
            f"hubport,id={name}net,hubid=0",
            "-device",
            f"virtio-net-pci,id={name},bus={bus},netdev={name}net",
        ]
    image = disks / f"{name}.img"
    with image.open("wb") as disk:
        disk.truncate(64 << 20 if device.kind == "nvme" else 1 << 20)
    drive = ["-drive", f"file={image},if=none,format=raw,id={name}disk,cache=unsafe"]
    if device.kind == "nvme":
        shown = f"nvme,id={name},bus={bus},drive={name}disk,serial={name},max_ioqpairs={max(device.queues, 1)}"
        return [*drive, "-device", shown]
    # A disk whose class says 3D controller; our fakegpu module gives it NVIDIA's ids.
    return [
        *drive,
        "-device",
        f"virtio-blk-pci,id={name},bus={bus},drive={name}disk,class=0x0302,vectors=3",
    ]
