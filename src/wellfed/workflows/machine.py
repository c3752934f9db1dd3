"""What is in a host, and where is each of its devices: the live one, a recording, or another tool's description?"""

from __future__ import annotations

import os

from wellfed.host.live_tree import LiveTree
from wellfed.host.topology import read_machine
from wellfed.model.value import Value, replace
from wellfed.placement.locate import locate
from wellfed.placement.visible import main_vendor, visible_devices, with_visibility

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellfed.gpus._base import Sightings
    from wellfed.model.machine import Machine
    from wellfed.model.tree import HostTree

MIG = "MIG-"
PCI_ORDER = "PCI_BUS_ID"


class KnownHost(Value):
    """A machine, and the environment in which its processes start."""

    machine: Machine
    environment: Mapping[str, str]
    """Of this process; of the recorded one; empty for a description that has none."""
    asked_driver: tuple[str, ...] = ()
    """Why the driver had to be asked, one sentence each; empty where files alone could decide."""


def machine_of(where: str | None) -> Machine:
    """Return a host with the place of every device, from all sources that there are.

    ``where``: None for this host; a folder or an archive of a recorded one; an hwloc XML, an NCCL topology XML, or the
    text of ``nvidia-smi topo -m``. RecordingError, MalformedTextError or TopologyError where it is none of these.
    """
    return host_of(where).machine


def host_of(where: str | None) -> KnownHost:
    """Return `machine_of`, and the environment that belongs to it."""
    if where is not None and not _is_recording(where):
        from wellfed.host.sources._room import read_source

        return KnownHost(_visible(locate(read_source(where)), {}), {})
    tree = open_host(where)
    return KnownHost(know(tree), environment_of(tree))


def open_host(where: str | None) -> HostTree:
    """Open the live host (None) or a recorded one, a folder or an archive."""
    if where is None:
        return LiveTree()
    from wellfed.host.archive import open_recording

    return open_recording(where)


def know(tree: HostTree) -> Machine:
    """Read a host and ask every vendor's driver where its GPUs are."""
    from wellfed.gpus._room import look

    return _with_sightings(read_machine(tree), look(tree), environment_of(tree))


def known_for_launch(tree: HostTree) -> KnownHost:
    """Read a host, and ask the NVIDIA driver only where files cannot decide: opening it costs more than a launch."""
    environment = environment_of(tree)
    found = read_machine(tree)
    machine = _visible(locate(found), environment)
    if any(gpu.vendor == "amd" for gpu in found.gpus):
        from wellfed.gpus._room import vendor

        machine = _with_sightings(found, vendor("amd").look(tree), environment)
    reasons = why_ask_nvidia(machine, environment) or _hidden_driver(machine, tree)
    if reasons:
        from wellfed.gpus._room import vendor

        machine = _with_sightings(found, vendor("nvidia").look(tree), environment)
    return KnownHost(machine, environment, reasons)


def why_ask_nvidia(machine: Machine, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Say what of this host only NVIDIA's driver can tell, one sentence each; empty where nothing is left open."""
    from wellfed.placement.visible_cuda import is_mixed, shown_gpus

    gpus, _ = shown_gpus(machine)
    if not gpus:
        return ()
    listed = environment.get("CUDA_VISIBLE_DEVICES", "")
    reasons = []
    if MIG in listed:
        reasons.append("CUDA_VISIBLE_DEVICES names a MIG slice")
    lost = [str(gpu.index) for gpu in gpus if gpu.cpu_node is None]
    if lost:
        reasons.append(f"sysfs does not say where GPU {', '.join(lost)} is")
    # A container shows those that were handed in: some are enough.
    if not any(gpu.uuid for gpu in gpus):
        reasons.append("/proc/driver/nvidia shows none of the GPUs")
    if environment.get("CUDA_DEVICE_ORDER") != PCI_ORDER and is_mixed(gpus, machine):
        reasons.append("the GPUs are of different models and CUDA_DEVICE_ORDER is not PCI_BUS_ID")
    return tuple(reasons)


def environment_of(tree: HostTree) -> Mapping[str, str]:
    """Return the variables that decide a launch: this process's own, or the recorded ones."""
    if tree.live:
        return os.environ
    from wellfed.workflows.snapshot import parse_environment

    return parse_environment(tree.answer("environ"))


def _is_recording(where: str) -> bool:
    from wellfed.host.archive import is_recording

    return is_recording(where)


def _with_sightings(found: Machine, seen: Sightings, environment: Mapping[str, str]) -> Machine:
    """Join what sysfs and drivers say. A silent driver is worth a note only where its GPUs are."""
    machine = locate(found, seen.found)
    present = {gpu.vendor for gpu in machine.gpus}
    silent = [each.reason for each in seen.unanswered if each.vendor in present]
    machine = replace(machine, notes=tuple(dict.fromkeys((*machine.notes, *silent))))
    return _visible(machine, environment)


def _visible(machine: Machine, environment: Mapping[str, str]) -> Machine:
    return with_visibility(machine, visible_devices(machine, environment, main_vendor(machine)))


def _hidden_driver(machine: Machine, tree: HostTree) -> tuple[str, ...]:
    """Notice a driver whose GPUs are no PCI devices here, as in WSL2 or a container that hides /sys."""
    if any(gpu.vendor == "nvidia" for gpu in machine.gpus):
        return ()
    if tree.read("/proc/driver/nvidia/version") or isinstance(tree.link("/dev/dxg"), str):
        return ("the NVIDIA driver is here, and /sys shows none of its GPUs",)
    return ()
