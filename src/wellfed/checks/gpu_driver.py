"""Is there a GPU, and does a driver hold it that computes?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, cannot_tell, does_not_apply, gpus_word, not_known, ok, warn
from wellfed.model.finding import Finding, Proof
from wellfed.model.machine import Gpu
from wellfed.model.snapshot import Snapshot

RULE = "gpu.driver"
BUS = "/sys/bus/pci/devices"
VERSION = "/proc/driver/nvidia/version"
COMPUTE = {"nvidia": ("nvidia",), "amd": ("amdgpu",), "intel": ("i915", "xe")}
GUESTS = ("vfio-pci", "pci-stub", "xen-pciback")
"""Drivers that keep a device for a virtual machine."""
REMEDY = {
    "nvidia": "modprobe nvidia && nvidia-smi",
    "amd": "modprobe amdgpu && amd-smi list",
    "intel": "modprobe xe || modprobe i915",
}


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Look at who holds each GPU: a compute driver, a display driver, a guest, or nobody."""
    machine = snapshot.machine
    if not machine.gpus:
        bus = snapshot.read(BUS)
        # Reading a directory is EISDIR: the bus is shown, and no GPU is on it.
        if not isinstance(bus, str) and bus.errno_name not in ("EISDIR", "ENOENT"):
            return (cannot_tell(RULE, BUS, bus),)
        return (does_not_apply(RULE, "no GPU is seen here"),)
    drivers = {device.address: device.driver for device in machine.pci}
    held = {gpu: drivers.get(gpu.pci_address) for gpu in machine.gpus}
    guests = [gpu for gpu, driver in held.items() if driver in GUESTS]
    working = [
        gpu
        for gpu, driver in held.items()
        if gpu.accessible or driver in COMPUTE.get(gpu.vendor, ())
    ]
    rest = [gpu for gpu in machine.gpus if gpu not in guests and gpu not in working]
    if rest:
        return (_without(snapshot, rest, {gpu: held[gpu] for gpu in rest}),)
    if not working:
        return (does_not_apply(RULE, f"{gpus_word(guests)}: kept for virtual machines (vfio-pci)"),)
    names = sorted({held[gpu] or gpu.vendor for gpu in working})
    return (
        ok(
            RULE,
            f"{gpus_word(working)}: driven by {', '.join(names)}",
            *map(_proof, working, map(held.get, working)),
        ),
    )


def _without(snapshot: Snapshot, rest: list[Gpu], held: dict[Gpu, str | None]) -> Finding:
    """Judge the GPUs that no compute driver holds, as far as that can be seen."""
    wrong = [gpu for gpu in rest if held[gpu]]
    if wrong:
        driver = held[wrong[0]]
        summary = f"{gpus_word(wrong)}: held by {driver}, with which nothing computes there"
        return warn(
            RULE,
            summary,
            *(_proof(gpu, held[gpu]) for gpu in wrong),
            remedy=REMEDY[wrong[0].vendor],
        )
    links_shown = any(device.driver for device in snapshot.machine.pci)
    version = snapshot.read(VERSION)
    nvidia = rest[0].vendor == "nvidia"
    if nvidia and isinstance(version, str):
        return ok(
            RULE,
            f"{gpus_word(rest)}: the NVIDIA driver is loaded",
            Proof(VERSION, version.splitlines()[0] if version else ""),
        )
    absent = not isinstance(version, str) and version.errno_name == "ENOENT"
    if links_shown or (snapshot.live and (absent or not nvidia)):
        summary = f"{gpus_word(rest)}: on the PCI bus, but no driver is loaded"
        return warn(
            RULE, summary, *(_proof(gpu, None) for gpu in rest), remedy=REMEDY[rest[0].vendor]
        )
    return not_known(
        RULE,
        f"the driver of {gpus_word(rest)} is not shown here",
        *(_proof(gpu, None) for gpu in rest),
    )


def _proof(gpu: Gpu, driver: str | None) -> Proof:
    return Proof(
        f"{BUS}/{gpu.pci_address}/driver",
        driver or "no driver",
        " or ".join(COMPUTE.get(gpu.vendor, ())) or None,
    )


CHECK = Check(
    question="Is there a GPU, and does a driver hold it that computes?",
    rules=(RULE,),
    judge=judge,
    why="Without its compute driver a GPU is only a PCI device: a job that asks for it stops at the first CUDA or HIP call.",
    sources=(
        "https://docs.kernel.org/driver-api/driver-model/binding.html",
        "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
    ),
    reads=(BUS, VERSION),
)
