"""Where does NVML say that each NVIDIA GPU is?

The only user of nvidia-ml-py, which costs 28 ms to import and so is imported where the driver is asked. NVML gives
three answers about a place, none of them a CPU node by itself: CPUs beside the GPU, memory nodes beside it (on Grace
these include empty nodes and GPU memory), and the number of the node that *is* the GPU's own memory. They go out as
said; `placement` decides with the machine at hand.
"""

from __future__ import annotations

import os

from wellfed.gpus._apart import apart
from wellfed.gpus._base import Sightings, Unanswered, Vendor
from wellfed.gpus.nvml_calls import LiveCalls, RecordedCalls, RecordingCalls, ask, ask_set
from wellfed.gpus.nvml_log import Call, Handle, Refused, format_calls, parse_calls
from wellfed.model.cpuset import LARGEST_ID, CpuSet
from wellfed.model.machine import (
    Evidence,
    MigInstance,
    Sighting,
    normal_pci_address,
    pci_order,
)
from wellfed.model.tree import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from wellfed.gpus.nvml_calls import Calls
    from wellfed.model.tree import HostTree

    T = TypeVar("T")

NODE_SCOPE, SOCKET_SCOPE = 0, 1
"""nvmlAffinityScope_t of nvml.h."""

CPU_AFFINITY = "NVML CPU affinity"
MEMORY_AFFINITY = "NVML memory affinity"
NODE_ID = "NVML NUMA node id"

PATIENCE_SECONDS = 30.0
"""Without the persistence daemon, opening NVML initialises every GPU: seconds each on an 8-GPU node."""

LARGEST_COUNT = 1024
"""More devices than any host has: a recording, and a library that is not NVIDIA's, may say anything."""

FEWEST_IDS = 1024
"""Numbers that a set has room for in any case: what glibc's cpu_set_t holds, and as many nodes as a kernel can be built
for. A sandbox may show fewer CPUs under /sys than the driver, which sees the whole host, answers with."""

DRIVER_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
"""The kernel module, its control device, and the paravirtual GPU of WSL2."""

LIBRARY = "libnvidia-ml.so.1"

OF_THE_DRIVER = (
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
)
"""What a recording also holds of the driver."""

OF_A_GPU = (
    "nvmlDeviceGetMinorNumber",
    f"nvmlDeviceGetCpuAffinityWithinScope {SOCKET_SCOPE}",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetEccMode",
    *(f"nvmlDeviceGetTotalEccErrors {kind} {since}" for kind in (0, 1) for since in (0, 1)),
    "nvmlDeviceGetRemappedRows",
    *(f"nvmlDeviceGetClockInfo {clock}" for clock in (0, 1, 2)),
    *(f"nvmlDeviceGetMaxClockInfo {clock}" for clock in (0, 1, 2)),
    *(f"nvmlDeviceGetApplicationsClock {clock}" for clock in (0, 2)),
    *(f"nvmlDeviceGetDefaultApplicationsClock {clock}" for clock in (0, 2)),
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTemperature 0",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPcieReplayCounter",
)
"""What a recording also holds of each GPU. Numbers are those of nvml.h: errors 0 corrected and 1 uncorrected, since the
driver was loaded (0) and ever (1); clocks 0 graphics, 1 SM, 2 memory; sensor 0 is the GPU."""

MOST_LINKS = 18
"""NVML_NVLINK_MAX_LINKS of nvml.h, the 18 of an H100."""

WHY_CLOSED = {
    "NOT_INSTALLED": "nvidia-ml-py is not installed beside wellfed: pip install nvidia-ml-py",
    "NOT_RECORDED": "the recording holds no NVML answers",
    "NVML_ERROR_LIBRARY_NOT_FOUND": f"{LIBRARY} is not found: the NVIDIA driver is not installed, or this container was"
    " started without its `utility` capability (NVIDIA_DRIVER_CAPABILITIES)",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA kernel module is not loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the loaded NVIDIA kernel module and its library are of different versions,"
    " as after an update without a reboot",
}
"""Why NVML cannot be opened, by code; other codes are said in NVML's words."""


def look(tree: HostTree) -> Sightings:
    """Ask the driver of this host, or the recorded answers of another."""
    if not tree.live:
        text = tree.answer("nvml")
    elif _driver_in_reach():
        text = _written(sight)
    else:
        # What a recording of this host says too: there the library itself was tried.
        return _silent(WHY_CLOSED["NVML_ERROR_LIBRARY_NOT_FOUND"])
    if isinstance(text, Unreadable):
        return _silent(_why_silent(text))
    return sight(RecordedCalls(parse_calls(text)))


def record() -> str | Unreadable:
    """Ask the driver of this host everything that wellfed asks, and write it down for `parse_calls`.

    Identifiers stand in it as they are: UUIDs of GPUs and of MIG instances. A host without a driver gives a text too,
    which says so; ``ETIMEDOUT`` where the driver does not answer within PATIENCE_SECONDS, ``EIO`` where its library
    crashes.
    """
    return _written(_describe)


def sight(calls: Calls) -> Sightings:
    """Ask where every GPU is. A GPU that refuses a question keeps its other answers, and never hides another GPU.

    Opens NVML by ``nvmlInitWithFlags``; whoever made ``calls`` of a live driver closes it.
    """
    opened = calls.call("nvmlInitWithFlags", 0)
    if isinstance(opened, Refused):
        return _silent(WHY_CLOSED.get(opened.code, f"NVML cannot be opened: {opened}"))
    count = ask(calls, int, "nvmlDeviceGetCount_v2")
    if isinstance(count, Refused) or not 0 < count <= LARGEST_COUNT:
        return _silent(f"NVML sees no GPU: asked how many there are, it says {count}")
    seen = Sightings()
    for index in range(count):
        seen |= _sight_gpu(calls, index)
    return seen


def _sight_gpu(calls: Calls, index: int) -> Sightings:
    gpu = ask(calls, Handle, "nvmlDeviceGetHandleByIndex_v2", index)
    if isinstance(gpu, Refused):
        return _silent(f"GPU {index} in NVML's order: {gpu}")
    pci = ask(calls, dict, "nvmlDeviceGetPciInfo_v3", gpu)
    address = pci if isinstance(pci, Refused) else pci.get("busId")
    if not isinstance(address, str) or not pci_order(normal_pci_address(address))[0]:
        return _silent(f"GPU {index} in NVML's order has no PCI address: {address}")
    uuid = ask(calls, str, "nvmlDeviceGetUUID", gpu)
    name = ask(calls, str, "nvmlDeviceGetName", gpu)
    cpus = _sight_cpus(calls, gpu)
    nodes = ask_set(calls, "nvmlDeviceGetMemoryAffinity", gpu, NODE_SCOPE)
    own_node = ask(calls, int, "nvmlDeviceGetNumaNodeId", gpu)
    mig, mig_notes = _sight_mig(calls, gpu)
    notes = [f"NVML says of this GPU: {uuid}"] if isinstance(uuid, Refused) else []
    if isinstance(cpus, CpuSet) and not cpus:
        notes.append("NVML names no CPU beside this GPU, as where a cpuset hides them")
    sighting = Sighting(
        normal_pci_address(address),
        "nvidia",
        name=_known(name),
        uuid=_known(uuid),
        hbm_node=own_node if isinstance(own_node, int) and 0 <= own_node <= LARGEST_ID else None,
        evidence=(
            Evidence(CPU_AFFINITY, _says(cpus)),
            Evidence(MEMORY_AFFINITY, _says(nodes)),
            Evidence(NODE_ID, str(own_node)),
        ),
        affinity_cpus=_known(cpus),
        affinity_nodes=_known(nodes),
        mig=mig,
        notes=(*notes, *mig_notes),
    )
    return Sightings((sighting,))


def _sight_cpus(calls: Calls, gpu: Handle) -> CpuSet | Refused:
    """Find the CPUs beside a GPU. Older drivers know no scopes, and answer the plain question."""
    scoped = ask_set(calls, "nvmlDeviceGetCpuAffinityWithinScope", gpu, NODE_SCOPE)
    if not isinstance(scoped, Refused):
        return scoped
    plain = ask_set(calls, "nvmlDeviceGetCpuAffinity", gpu)
    return scoped if isinstance(plain, Refused) else plain


def _sight_mig(calls: Calls, gpu: Handle) -> tuple[tuple[MigInstance, ...], tuple[str, ...]]:
    """Find the MIG instances of a GPU, which lie where it lies. Their indices have holes: instances come and go."""
    mode = ask(calls, tuple, "nvmlDeviceGetMigMode", gpu)
    if isinstance(mode, Refused) or not mode or mode[0] != 1:
        return (), ()
    most = ask(calls, int, "nvmlDeviceGetMaxMigDeviceCount", gpu)
    if isinstance(most, Refused):
        return (), (
            f"MIG mode is on, and NVML does not say how many instances there can be: {most}",
        )
    found, notes = [], []
    for index in range(min(most, LARGEST_COUNT)):
        instance = ask(calls, Handle, "nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
        if isinstance(instance, Refused):
            continue
        uuid = ask(calls, str, "nvmlDeviceGetUUID", instance)
        gpu_instance = ask(calls, int, "nvmlDeviceGetGpuInstanceId", instance)
        compute_instance = ask(calls, int, "nvmlDeviceGetComputeInstanceId", instance)
        name = ask(calls, str, "nvmlDeviceGetName", instance)
        if isinstance(uuid, Refused):
            notes.append(f"MIG instance {index} has no UUID: {uuid}")
            continue
        instance_ids = _known(gpu_instance), _known(compute_instance)
        found.append(MigInstance(uuid, *instance_ids, name=_known(name) or ""))
    if not found:
        notes.append("MIG mode is on and this process sees no instance: CUDA finds no device here")
    return tuple(found), tuple(notes)


def _describe(calls: Calls) -> None:
    """Ask what `sight` asks, and what a person wants to know who reads a recording later."""
    sight(calls)
    if isinstance(calls.call("nvmlInitWithFlags", 0), Refused):
        return
    for function in OF_THE_DRIVER:
        calls.call(function)
    count = ask(calls, int, "nvmlDeviceGetCount_v2")
    for index in range(0 if isinstance(count, Refused) else min(count, LARGEST_COUNT)):
        gpu = calls.call("nvmlDeviceGetHandleByIndex_v2", index)
        if isinstance(gpu, Handle):
            for question in OF_A_GPU:
                function, *arguments = question.split()
                calls.call(function, gpu, *map(int, arguments))
            _describe_links(calls, gpu)


def _describe_links(calls: Calls, gpu: Handle) -> None:
    """Ask for every NVLink until there is none of that number: cards without a bridge have none."""
    for link in range(MOST_LINKS):
        if isinstance(calls.call("nvmlDeviceGetNvLinkState", gpu, link), Refused):
            return


def _written(walk: Callable[[Calls], object]) -> str | Unreadable:
    """Write down every call that a walk makes of the live driver, in a child that may hang without us."""
    return apart(lambda: _walked(walk), patience_seconds=PATIENCE_SECONDS)


def _walked(walk: Callable[[Calls], object]) -> str:
    """Walk through the live driver of this very process, and close it again."""
    try:
        import pynvml
    except ImportError:
        return format_calls([Call("nvmlInitWithFlags", (0,), Refused("NOT_INSTALLED"))])
    live = LiveCalls(pynvml, num_cpu_ids=_num_ids("cpu"), num_node_ids=_num_ids("node"))
    recorder = RecordingCalls(live)
    try:
        walk(recorder)
    finally:
        live.call("nvmlShutdown")
    return format_calls(recorder.calls)


def _num_ids(kind: str) -> int:
    """Return how many CPU or node numbers the driver's answer may need: the kernel's possible ones, FEWEST_IDS at least."""
    try:
        with open(f"/sys/devices/system/{kind}/possible") as possible:
            return max(FEWEST_IDS, CpuSet.parse(possible.read()).mask.bit_length())
    except OSError:
        return FEWEST_IDS


def _driver_in_reach() -> bool:
    """Say whether asking NVML can lead anywhere, by a handful of system calls instead of an import."""
    if any(os.path.exists(sign) for sign in DRIVER_SIGNS):
        return True
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if any(folder and os.path.exists(f"{folder}/{LIBRARY}") for folder in folders):
        return True
    try:
        with open("/etc/ld.so.cache", "rb") as cache:
            return LIBRARY.encode() in cache.read()
    except OSError:
        return False


def _why_silent(text: Unreadable) -> str:
    if text.errno_name == "ETIMEDOUT":
        return f"NVML did not answer in {PATIENCE_SECONDS:.0f} s: the driver hangs, look for Xid lines in `dmesg`"
    if text.errno_name == "EIO":
        return "the process that asked NVML ended without an answer, as when the driver's library crashes"
    return f"NVML answers are {text}"


def _silent(reason: str) -> Sightings:
    return Sightings((), (Unanswered("nvidia", reason),))


def _says(answer: CpuSet | Refused) -> str:
    """Give the words for evidence; an empty set must not look like nothing said."""
    return str(answer) or "none"


def _known(answer: T | Refused) -> T | None:
    return None if isinstance(answer, Refused) else answer


VENDOR = Vendor("nvidia", look)
