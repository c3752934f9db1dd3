"""Which GPUs does ROCm show to a process, and in which order?

Two layers filter one after the other. ROCr (rocr-runtime, amd_filter_device.cpp) reads ``ROCR_VISIBLE_DEVICES``:
numbers in base 0 and prefixes of ``GPU-<16 hexadecimal digits>``, mixed as you like; it stops at the first invalid,
ambiguous or repeated entry, and an empty text leaves none. HIP (clr, rocdevice.cpp) then numbers what is left, by
``HIP_VISIBLE_DEVICES``, or ``CUDA_VISIBLE_DEVICES`` where that is empty: plain numbers, newer ones also UUIDs; it stops
at the first invalid entry and skips repeated ones. ``GPU_DEVICE_ORDINAL`` is read for OpenCL alone.
"""

from __future__ import annotations

from wellfed.model.job import VisibleDevices
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wellfed.model.machine import Machine

ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


class RocmDevice(Value):
    """A GPU, or a partition of one, that ROCr makes a device of its own."""

    pci_address: str
    uuid: str | None
    partition_uuid: str | None = None


def rocm_devices(machine: Machine, environment: Mapping[str, str]) -> VisibleDevices:
    """Return the AMD GPUs as HIP numbers them in a process with this environment."""
    devices = [
        RocmDevice(gpu.pci_address, part or gpu.uuid, part)
        for gpu in machine.gpus
        if gpu.vendor == "amd" and gpu.accessible is not False
        for part in ([each.uuid or None for each in gpu.mig] or [None])
    ]
    notes: list[str] = []
    variables: list[str] = []
    text = environment.get(ROCR)
    if text is not None:
        variables.append(ROCR)
        devices, said = _by_rocr(text, devices)
        notes += said
    variable = HIP if environment.get(HIP) else CUDA
    text = environment.get(variable)
    if text:
        variables.append(variable)
        devices, said = _by_hip(text, devices, variable)
        notes += said
    if environment.get("GPU_DEVICE_ORDINAL"):
        notes.append("GPU_DEVICE_ORDINAL is read for OpenCL: HIP hides nothing for it")
    return VisibleDevices(
        ", ".join(variables) or None,
        tuple(device.pci_address for device in devices),
        mig_uuids=tuple(device.partition_uuid for device in devices),
        notes=tuple(notes),
        vendor="amd",
    )


def parse_base_0(token: str) -> int | None:
    """Read a number as strtol in base 0 does: ``0x1F``, octal ``010``, decimal; None unless it is all of the text."""
    sign = -1 if token.startswith("-") else 1
    digits = token[1:] if token[:1] in ("+", "-") else token
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    digits = digits[2:] if base == 16 else digits
    allowed = "0123456789abcdef"[:base]
    if not digits or len(digits) > 9 or any(letter not in allowed for letter in digits.lower()):
        return None
    return sign * int(digits, base)


def _by_rocr(text: str, devices: Sequence[RocmDevice]) -> tuple[list[RocmDevice], list[str]]:
    found: dict[int, RocmDevice] = {}
    tokens = [each.strip().upper() for each in text.split(",")] if text else []
    for token in tokens[: len(devices)]:
        index = _rocr_uuid(token, devices) if token.startswith("G") else parse_base_0(token)
        if index is None or not 0 <= index < len(devices):
            why = f"{ROCR}: {token!r} is no device here, and nothing after it is read"
            return list(found.values()), [why]
        if index in found:
            why = f"{ROCR}: {token!r} comes twice, and nothing after it is read"
            return list(found.values()), [why]
        found[index] = devices[index]
    return list(found.values()), []


def _rocr_uuid(token: str, devices: Sequence[RocmDevice]) -> int | None:
    """Find the one device whose UUID begins so; 5 to 20 characters count (ProcessUuidToken)."""
    if not 5 <= len(token) <= 20:
        return None
    matching = [
        index
        for index, device in enumerate(devices)
        if device.uuid and device.uuid.upper().startswith(token)
    ]
    return matching[0] if len(matching) == 1 else None


def _by_hip(
    text: str, devices: Sequence[RocmDevice], variable: str
) -> tuple[list[RocmDevice], list[str]]:
    found: dict[int, RocmDevice] = {}
    for token in text.split(","):
        index: int | None = None
        if "GPU-" in token:
            index = next((i for i, d in enumerate(devices) if d.uuid and token in d.uuid), None)
        elif token.isascii() and token.isdigit() and len(token) < 9 and token == str(int(token)):
            index = int(token)
        if index is None or index >= len(devices):
            why = f"{variable}: {token!r} is no device here, and nothing after it is read"
            return list(found.values()), [why]
        found.setdefault(index, devices[index])
    return list(found.values()), []
