"""How does one command run in a guest of its own?"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from tests.lab.kernel import Kernel
from tests.lab.topology import Device, Topology

HIDDEN = ("/tmp", "/run", "/dev/shm")
"""Folders that the guest has for itself."""
GUEST_DIED = 125
TIMED_OUT = 124
BOOT_SECONDS = 90
"""A guest that has not reached its command by then hangs: seen once in dozens of boots of 16 CPUs on two busy cores."""
BOOTS = 3


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command in a guest ended."""

    exit_code: int
    """The command's own; 124 timed out, 125 the guest died or never reported."""
    stdout: str
    stderr: str
    console: str
    boot_seconds: float | None
    wall_seconds: float
    folder: pathlib.Path
    """What the guest wrote under ``/lab``."""
    boots: int = 1
    """How often it was started; more than 1 means that earlier boots hung before the command began."""

    def reason(self) -> str:
        """Say what a person needs to see when the guest itself failed."""
        return f"exit {self.exit_code} after {self.wall_seconds:.0f} s\n{self.stderr[-2000:]}\n{self.console[-2000:]}"


def run(
    kernel: Kernel,
    topology: Topology,
    command: Sequence[str],
    *,
    folder: pathlib.Path,
    environment: Mapping[str, str] | None = None,
    kernel_arguments: str = "",
    modules: Sequence[str] = (),
    timeout_seconds: float = 300,
    follow: bool = False,
) -> Outcome:
    """Boot, run the command as root in the current folder, and end the guest. ``folder`` is the guest's ``/lab``."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    for boots in range(1, BOOTS + 1):
        disks = pathlib.Path(tempfile.mkdtemp(prefix="wellfed-lab-"))
        _write_command(kernel, topology, command, folder, environment or {}, modules)
        arguments = qemu_arguments(kernel, topology, folder=folder, disks=disks, kernel_arguments=kernel_arguments)
        try:
            ended = _boot(arguments, folder, begun + timeout_seconds, follow=follow)
        finally:
            shutil.rmtree(disks, ignore_errors=True)
        if ended != "hung":
            break
    return _outcome(folder, timed_out=ended != "ended", wall_seconds=time.monotonic() - begun, boots=boots)


def _boot(arguments: list[str], folder: pathlib.Path, deadline: float, *, follow: bool) -> str:
    """Start a guest and end it: ``ended`` by itself, ``late`` at the deadline, ``hung`` before its command began."""
    with (folder / "qemu.log").open("wb") as log:
        # In a group of its own: Ctrl-C reaches us, and we end the guest.
        guest = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            return _wait(guest, folder, deadline, follow=follow)
        finally:
            if guest.poll() is None:
                os.killpg(guest.pid, signal.SIGKILL)
            guest.wait()


def _write_command(
    kernel: Kernel,
    topology: Topology,
    command: Sequence[str],
    folder: pathlib.Path,
    environment: Mapping[str, str],
    modules: Sequence[str],
) -> None:
    for name in ("exit_code", "boot_seconds"):
        (folder / name).unlink(missing_ok=True)
    for name in ("stdout", "stderr"):
        (folder / name).write_bytes(b"")
    needed = {os.getcwd(), sys.prefix, sys.base_prefix}
    bound = sorted(path for path in needed if path.startswith(tuple(f"{hidden}/" for hidden in HIDDEN)))
    (folder / "bound").write_text("".join(f"{path}\n" for path in bound))
    (folder / "kernel_root").write_text(str(kernel.root))
    path = f"{pathlib.Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    exports = {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", "WELLFED_LAB_GUEST": topology.name, **environment}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
    lines += [f"modprobe {shlex.quote(module)} || exit 125" for module in modules]
    if any(device.kind == "gpu" for device in topology.devices):
        lines.append(f"insmod {shlex.quote(str(kernel.modules / 'fakegpu.ko'))} || exit 125")
    lines += [f"echo 0 >/sys/devices/system/cpu/cpu{cpu}/online || exit 125" for cpu in topology.offline]
    lines += [f"cd {shlex.quote(os.getcwd())} || exit 125", f"exec {shlex.join(command)}"]
    (folder / "command").write_text("\n".join(lines) + "\n")


def _wait(guest: subprocess.Popen[bytes], folder: pathlib.Path, deadline: float, *, follow: bool) -> str:
    shown = {"stdout": 0, "stderr": 0}
    boot_deadline = time.monotonic() + BOOT_SECONDS
    while True:
        ended = guest.poll() is not None or (folder / "exit_code").exists()
        now = time.monotonic()
        hung = now > boot_deadline and not (folder / "boot_seconds").exists()
        if follow:
            for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
                shown[name] += _pass_on(folder / name, shown[name], stream)
        if ended or hung or now > deadline:
            return "ended" if ended else "late" if now > deadline else "hung"
        time.sleep(0.1)


def _pass_on(path: pathlib.Path, offset: int, stream: TextIO) -> int:
    with path.open("rb") as source:
        source.seek(offset)
        fresh = source.read()
    stream.buffer.write(fresh)
    stream.flush()
    return len(fresh)


def _outcome(folder: pathlib.Path, *, timed_out: bool, wall_seconds: float, boots: int) -> Outcome:
    def text(name: str) -> str:
        path = folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    reported = text("exit_code").strip()
    booted = text("boot_seconds").strip()
    return Outcome(
        exit_code=int(reported) if reported else TIMED_OUT if timed_out else GUEST_DIED,
        stdout=text("stdout"),
        stderr=text("stderr"),
        console=text("qemu.log") + text("console.log"),
        boot_seconds=float(booted) if booted else None,
        wall_seconds=wall_seconds,
        folder=folder,
        boots=boots,
    )


def qemu_arguments(
    kernel: Kernel, topology: Topology, *, folder: pathlib.Path, disks: pathlib.Path, kernel_arguments: str = ""
) -> list[str]:
    """Write the guest as QEMU arguments. TCG: a /dev/kvm that exists proves nothing, and CI has none that boots."""
    quiet = "console=ttyS0 panic=-1 quiet loglevel=4"
    calm = "tsc=reliable no_timer_check nokaslr mitigations=off random.trust_cpu=on"
    smp = (
        f"{topology.num_cpus},sockets={topology.sockets},dies={topology.dies},"
        f"cores={topology.cores},threads={topology.threads}"
    )
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-machine", "q35,smm=off,hpet=off", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", topology.cpu_model,
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
        told = f"node,nodeid={number}" + "".join(f",cpus={part}" for part in str(node.cpus).split(",") if part)
        if node.memory_mib:
            arguments += ["-object", f"memory-backend-ram,id=memory{number},size={node.memory_mib}M"]
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
            arguments += ["-device", f"pcie-root-port,id={root}top,bus={root},chassis={100 + number},slot=0"]
            arguments += ["-device", f"x3130-upstream,id={root}up,bus={root}top"]
            parent, port = f"{root}up", "xio3130-downstream"
        for slot, device in enumerate(here):
            name = f"{root}port{slot}"
            chassis = 8 * number + slot + 1
            arguments += ["-device", f"{port},id={name},bus={parent},chassis={chassis},slot={slot},addr={slot}"]
            arguments += _device_arguments(device, f"{root}device{slot}", name, disks)
    return arguments


def _device_arguments(device: Device, name: str, bus: str, disks: pathlib.Path) -> list[str]:
    if device.kind == "nic":
        return ["-netdev", f"hubport,id={name}net,hubid=0", "-device", f"virtio-net-pci,id={name},bus={bus},netdev={name}net"]
    image = disks / f"{name}.img"
    with image.open("wb") as disk:
        disk.truncate(64 << 20 if device.kind == "nvme" else 1 << 20)
    drive = ["-drive", f"file={image},if=none,format=raw,id={name}disk,cache=unsafe"]
    if device.kind == "nvme":
        shown = f"nvme,id={name},bus={bus},drive={name}disk,serial={name},max_ioqpairs={max(device.queues, 1)}"
        return [*drive, "-device", shown]
    # A disk whose class says 3D controller; our fakegpu module gives it NVIDIA's ids.
    return [*drive, "-device", f"virtio-blk-pci,id={name},bus={bus},drive={name}disk,class=0x0302,vectors=3"]
