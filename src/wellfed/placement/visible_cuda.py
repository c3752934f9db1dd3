"""Which GPUs does CUDA show to a process, and in which order?

``CUDA_VISIBLE_DEVICES`` is read as the driver reads it. The CUDA Programming Guide ("CUDA Environment Variables")
describes the list, prefixes of UUIDs, and that everything after an invalid entry is ignored. What it leaves open was
asked of the driver itself (CUDA 13.0 on one H200, some hundred values, cuInit and cuDeviceGetCount after each):

- a number is read by strtoul in base 10 and cut to 32 bits: ``" 0"``, ``+0``, ``-0``, ``0abc`` and ``4294967296`` are
  device 0, ``08`` is device 8, ``abc`` and an empty entry are invalid;
- a UUID is ``GPU-`` in capitals, then hexadecimal digits of either case with dashes anywhere; after 32 digits the rest
  is ignored, before that anything else makes it invalid, and so does white space in front;
- the first entry decides between numbers and UUIDs: an entry of the other kind ends the list;
- one device named twice is an error (101, invalid device), even as ``0,00`` or by two prefixes: no device at all.
"""

from __future__ import annotations

from wellfed.model.cpuset import CpuSet
from wellfed.model.errors import MalformedTextError
from wellfed.model.job import VisibleDevices
from wellfed.model.value import Value, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wellfed.model.machine import Gpu, Machine

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
ONE_MIG = (
    "CUDA gives a process only the first MIG slice it finds (MIG User Guide, Device Enumeration):"
    " start one process per slice, each with its own CUDA_VISIBLE_DEVICES"
)
WHITE = " \t\n\v\f\r"
LARGEST = (1 << 64) - 1


class Entry(Value):
    """What one entry of the list names."""

    gpu: Gpu | None
    """None: nothing, the list ends here."""
    mig_uuid: str | None = None
    note: str | None = None
    candidates: bool = False
    """It may well name a GPU, but which one only the driver knows."""


def cuda_devices(machine: Machine, environment: Mapping[str, str]) -> VisibleDevices:
    """Return the NVIDIA GPUs as CUDA numbers them in a process with this environment."""
    gpus, notes = shown_gpus(machine)
    text = environment.get(VARIABLE)
    notes += _container_note(environment, gpus)
    if text is None:
        found = VisibleDevices(None, tuple(gpu.pci_address for gpu in gpus))
        found = replace(found, mig_uuids=tuple(_first_slice(gpu) for gpu in gpus))
        return _finish(found, _order_note(machine, gpus, environment), notes)
    tokens = text.split(",")
    if tokens[0].startswith(("GPU-", "MIG-")):
        prefix = tokens[0][:4]
        return _finish(
            _walk(tokens, lambda token: _by_uuid(token, prefix, gpus), gpus), None, notes
        )
    gpus, slurm_notes, slurm_doubt = _slurm_numbering(gpus, tokens, environment)
    found = _walk(tokens, lambda token: _by_number(token, gpus), gpus)
    doubt = slurm_doubt or _order_note(machine, gpus, environment)
    return _finish(found, doubt if found.gpus else None, notes + slurm_notes, gpus)


def shown_gpus(machine: Machine) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs that the driver shows this process: CUDA's numbers count those only.

    In a container sysfs lists every GPU of the host, while the driver shows those that were handed in.
    """
    every = [gpu for gpu in machine.gpus if gpu.vendor == "nvidia"]
    shown = [gpu for gpu in every if gpu.accessible is not False]
    if all(gpu.accessible is None for gpu in shown) and any(gpu.uuid for gpu in shown):
        shown = [gpu for gpu in shown if gpu.uuid]
    if len(shown) == len(every):
        return shown, []
    hidden = [gpu for gpu in every if gpu not in shown]
    names = CpuSet(gpu.index for gpu in hidden)
    count = "1 GPU" if len(hidden) == 1 else f"{len(hidden)} GPUs"
    return shown, [f"{count} of this host (index {names}) cannot be opened by this process"]


def is_mixed(gpus: Sequence[Gpu], machine: Machine) -> bool:
    """Say whether GPUs are known to be of different models, by name or else by PCI device number."""
    names = {gpu.name for gpu in gpus if gpu.name}
    if len(names) > 1:
        return True
    if len(names) == 1 and all(gpu.name for gpu in gpus):
        return False
    addresses = {gpu.pci_address for gpu in gpus}
    return len({d.device for d in machine.pci if d.address in addresses and d.device}) > 1


def parse_number(token: str) -> int | None:
    """Read an entry as the driver does: strtoul in base 10, then the low 32 bits; None where no digit stands."""
    rest = token.lstrip(WHITE)
    negative = rest.startswith("-")
    rest = rest[1:] if rest[:1] in ("+", "-") else rest
    digits = _leading(rest, "0123456789")
    if not digits:
        return None
    value = int(digits) if len(digits) <= 20 else LARGEST + 1
    value = LARGEST if value > LARGEST else -value & LARGEST if negative else value
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


def parse_uuid(text: str) -> str | None:
    """Read the digits after ``GPU-`` as the driver does; None where they are no beginning of a UUID."""
    digits = ""
    for letter in text.lower():
        if letter in "0123456789abcdef":
            digits += letter
        elif letter != "-":
            return None
        if len(digits) == 32:
            break
    return digits or None


def _walk(
    tokens: Sequence[str], read: Callable[[str], Entry], gpus: Sequence[Gpu]
) -> VisibleDevices:
    """Go through the list until an entry is invalid; a device that comes twice leaves none."""
    found: list[tuple[str, str | None]] = []
    notes: list[str] = []
    for at, token in enumerate(tokens):
        entry = read(token)
        notes += [entry.note] if entry.note else []
        if entry.candidates:
            return VisibleDevices(
                VARIABLE,
                tuple(gpu.pci_address for gpu in gpus),
                order_known=False,
                notes=tuple(notes),
                num_devices=min(len(tokens), len(gpus)),
            )
        if entry.gpu is None:
            left = ",".join(tokens[at + 1 :])
            notes += [f"after it {VARIABLE} is not read: {left}"] if left else []
            break
        device = (entry.gpu.pci_address, entry.mig_uuid or _first_slice(entry.gpu))
        if device in found:
            why = f"{VARIABLE} names GPU {entry.gpu.index} twice: CUDA fails and shows no device"
            return VisibleDevices(VARIABLE, (), notes=(why,))
        found.append(device)
    return VisibleDevices(
        VARIABLE,
        tuple(address for address, _ in found),
        mig_uuids=tuple(uuid for _, uuid in found),
        notes=tuple(notes),
    )


def _by_number(token: str, gpus: Sequence[Gpu]) -> Entry:
    number = parse_number(token)
    if number is None or not 0 <= number < len(gpus):
        if number == -1 or (not token and len(gpus)):
            return Entry(None)
        have = f"0 to {len(gpus) - 1}" if gpus else "none"
        return Entry(None, note=f"{VARIABLE}: {token!r} is no device here (there are {have})")
    clean = token.strip(WHITE).lstrip("+").lstrip("0") or "0"
    odd = clean != str(number)
    return Entry(
        gpus[number],
        note=f"{VARIABLE}: CUDA reads {token!r} as device {number}" if odd else None,
    )


def _by_uuid(token: str, prefix: str, gpus: Sequence[Gpu]) -> Entry:
    """Find the GPU or the MIG slice that an entry names, by as much of its UUID as is given."""
    if not token.startswith(prefix):
        return Entry(None, note=f"{VARIABLE}: {token!r} is of another kind than the first entry")
    if prefix == "MIG-":
        return _by_mig(token, gpus)
    wanted = parse_uuid(token[4:])
    if wanted is None:
        return Entry(None, note=f"{VARIABLE}: {token!r} is no UUID of a GPU")
    matching = [gpu for gpu in gpus if gpu.uuid and _digits(gpu.uuid).startswith(wanted)]
    if len(matching) == 1:
        return Entry(matching[0])
    if matching:
        which = CpuSet(gpu.index for gpu in matching)
        return Entry(None, note=f"{VARIABLE}: {token!r} fits GPUs {which}, so none of them")
    return _unmatched(token, [gpu for gpu in gpus if not gpu.uuid])


def _by_mig(token: str, gpus: Sequence[Gpu]) -> Entry:
    """Find a MIG slice: ``MIG-<uuid>``, or before driver 470 ``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``."""
    exact = [
        (gpu, each.uuid) for gpu in gpus for each in gpu.mig if each.uuid == token.strip(WHITE)
    ]
    if exact:
        return Entry(*exact[0])
    if token.startswith("MIG-GPU-"):
        return _by_legacy_mig(token, gpus)
    wanted = parse_uuid(token[4:])
    slices = [(gpu, each.uuid) for gpu in gpus for each in gpu.mig if each.uuid[:4] == "MIG-"]
    matching = [(gpu, uuid) for gpu, uuid in slices if wanted and _digits(uuid).startswith(wanted)]
    if len(matching) == 1:
        return Entry(*matching[0])
    if matching:
        return Entry(None, note=f"{VARIABLE}: {token!r} fits several MIG slices, so none of them")
    if wanted is None:
        return Entry(None, note=f"{VARIABLE}: {token!r} is no UUID of a MIG slice")
    return _unmatched(token, [] if slices else list(gpus))


def _by_legacy_mig(token: str, gpus: Sequence[Gpu]) -> Entry:
    uuid, _, instances = token[8:].partition("/")
    gpu_instance, _, compute_instance = instances.partition("/")
    wanted, numbers = parse_uuid(uuid), (parse_number(gpu_instance), parse_number(compute_instance))
    matching = [g for g in gpus if wanted and g.uuid and _digits(g.uuid).startswith(wanted)]
    if wanted is None or None in numbers or len(matching) > 1:
        return Entry(None, note=f"{VARIABLE}: {token!r} names no MIG slice")
    if not matching:
        return _unmatched(token, [gpu for gpu in gpus if not gpu.uuid])
    parent = matching[0]
    for each in parent.mig:
        if (each.gpu_instance, each.compute_instance) == numbers:
            return Entry(parent, each.uuid)
    if any(each.gpu_instance is not None for gpu in gpus for each in gpu.mig):
        return Entry(None, note=f"{VARIABLE}: GPU {parent.index} has no MIG slice {instances}")
    return Entry(parent, token.strip(WHITE))


def _unmatched(token: str, unknown: Sequence[Gpu]) -> Entry:
    """Tell an identifier that fits nothing from one that cannot be looked up because UUIDs are not known."""
    if not unknown:
        return Entry(None, note=f"{VARIABLE}: {token!r} is none of the devices here")
    return Entry(
        None,
        candidates=True,
        note=f"{VARIABLE}: which device {token!r} is cannot be told, because UUIDs are not known here",
    )


def _finish(
    found: VisibleDevices, doubt: str | None, notes: list[str], among: Sequence[Gpu] = ()
) -> VisibleDevices:
    """Add what holds for every list: the order may be unknown, and a process gets one MIG slice."""
    said = [*notes, *found.notes]
    sliced = [at for at, uuid in enumerate(found.mig_uuids) if uuid is not None]
    count = found.num_devices
    if len(sliced) > 1:
        count = sliced[1]
        said.append(ONE_MIG)
    if doubt is not None and found.order_known:
        whole = tuple(gpu.pci_address for gpu in among)
        count = count if count is not None or not whole else len(found.gpus)
        found = replace(found, gpus=whole or found.gpus, mig_uuids=(), order_known=False)
        said.append(doubt)
    return replace(found, notes=tuple(dict.fromkeys(said)), num_devices=count)


def _order_note(
    machine: Machine, gpus: Sequence[Gpu], environment: Mapping[str, str]
) -> str | None:
    """Say why the order is unknown: by default CUDA puts the fastest GPU first, by a rule that is not published.

    CUDA Programming Guide, CUDA_DEVICE_ORDER: FASTEST_FIRST (default) or PCI_BUS_ID. GPUs of one model are in PCI
    order either way. flux-framework/flux-core#1591 is what happens to those who take it for PCI order.
    """
    if environment.get(ORDER) == "PCI_BUS_ID" or len(gpus) < 2 or not is_mixed(gpus, machine):
        return None
    models = ", ".join(dict.fromkeys(gpu.name or "an unnamed model" for gpu in gpus))
    return (
        f"GPUs of different models ({models}) are numbered fastest first, which only the driver can tell:"
        f" {ORDER}=PCI_BUS_ID numbers them as nvidia-smi does"
    )


def _slurm_numbering(
    gpus: list[Gpu], tokens: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[Gpu], list[str], str | None]:
    """Undo what Slurm's device cgroup does to numbers where nobody said which GPUs this process may open.

    With ConstrainDevices=yes (cgroup.conf) the driver shows a job its own GPUs only, and Slurm numbers
    CUDA_VISIBLE_DEVICES from 0 among those; SLURM_STEP_GPUS or SLURM_JOB_GPUS keep the host's numbers.
    """
    text = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS")
    if not text or any(gpu.accessible is not None for gpu in gpus):
        return gpus, [], None
    try:
        granted = [number for number in CpuSet.parse(text) if number < len(gpus)]
    except MalformedTextError:
        return gpus, [f"Slurm's list of granted GPUs, {text}, is none of numbers: not used"], None
    numbers = [parse_number(token) for token in tokens]
    if numbers != list(range(len(numbers))) or len(numbers) > len(granted):
        return gpus, [], None
    own = [gpus[number] for number in granted]
    listed = f"Slurm granted GPUs {CpuSet(granted)} and numbers them from 0"
    if len(numbers) == len(granted):
        return (own, [listed], None) if granted != numbers else (gpus, [], None)
    if environment.get("SLURM_LOCALID", "0") == "0" and granted[0] == 0:
        return gpus, [], None
    return (
        own,
        [],
        f"{listed} in each task's device cgroup: which of them is meant only the driver can tell",
    )


def _container_note(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> list[str]:
    """Say that NVIDIA_VISIBLE_DEVICES hides nothing from CUDA, where a person could think that it does."""
    asked = environment.get("NVIDIA_VISIBLE_DEVICES")
    if asked in (None, "", "all", "void", "none") or asked == environment.get(VARIABLE):
        return []
    if VARIABLE not in environment and len(asked.split(",")) == len(gpus):
        return []
    return [
        f"NVIDIA_VISIBLE_DEVICES={asked} is read by the container runtime alone: CUDA hides nothing for it"
    ]


def _first_slice(gpu: Gpu) -> str | None:
    """Name the slice that CUDA takes where a GPU in MIG mode is named as a whole."""
    return gpu.mig[0].uuid if gpu.mig else None


def _digits(uuid: str) -> str:
    return uuid[4:].replace("-", "").lower()


def _leading(text: str, letters: str) -> str:
    end = 0
    while end < len(text) and text[end] in letters:
        end += 1
    return text[:end]
