"""Which environment variables does a rank need, so that its libraries respect its placement?

A variable that a person has set is never overwritten silently: it is kept and reported. Removed is only what would
throw the placement away (NCCL_IGNORE_CPU_AFFINITY), and that is said, and ``keep`` keeps it.
"""

from __future__ import annotations

from wellfed.model.environment import EnvironmentChange
from wellfed.model.errors import UsageError
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellfed.model.job import Job, VisibleDevices
    from wellfed.model.machine import Gpu, Machine
    from wellfed.model.placement import RankPlacement

UNBOUND = ("false", "0")
"""OMP_PROC_BIND values that pin nothing (OpenMP 5.2, 21.2.1)."""

UNBOUND_KMP = ("disabled", "none")
"""KMP_AFFINITY types that pin nothing (Intel oneAPI compiler reference, Thread Affinity Interface)."""

PINS = (
    "it pins OpenMP threads itself, the main thread too: after `import torch` that one, and every process it forks, is"
    " left on one CPU (pytorch#49971, pytorch#91989)"
)


class LaunchSettings(Value):
    """What the launch itself decides."""

    starts_ranks: bool = False
    """Whether wellfed starts the ranks, rather than being one that another launcher started."""
    master_address: str = "127.0.0.1"
    master_port: int | None = None
    one_visible: bool = False
    """Show each rank its own GPU only. Under another launcher this is that launcher's business."""
    gpus: tuple[str, ...] = ()
    """PCI addresses of the GPUs that a person chose for the whole job; empty: visibility is left as it is."""
    nic_variables: bool = False
    keep: tuple[str, ...] = ()
    """Variables to leave alone whatever they do."""


def rank_environment(
    rank: RankPlacement,
    job: Job | None,
    environment: Mapping[str, str],
    *,
    machine: Machine,
    visible: VisibleDevices,
    settings: LaunchSettings = LaunchSettings(),  # noqa: B008 (frozen)
) -> tuple[EnvironmentChange, ...]:
    """Return what changes for one rank, and what was found and kept although it matters; each with its reason."""
    changes = [
        *_rank_variables(rank, job, environment, settings),
        *_device_variables(rank, environment, machine, visible, settings),
        *_thread_variables(rank, environment),
        *_pinning_guard(rank, environment),
        *_nccl_guard(rank, environment),
    ]
    if settings.nic_variables:
        changes += _nic_variables(rank, environment)
    return tuple(
        EnvironmentChange(each.name, each.before, each.before, f"kept as you asked: {each.reason}")
        if each.name in settings.keep and not each.kept
        else each
        for each in changes
    )


def with_known_order(machine: Machine, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that a launched rank will have as far as the order of GPUs goes: plan by this one."""
    ordered = dict(environment)
    if _is_mixed(machine):
        ordered.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return ordered


def _rank_variables(
    rank: RankPlacement, job: Job | None, environment: Mapping[str, str], settings: LaunchSettings
) -> list[EnvironmentChange]:
    """Name the rank for torch.distributed, as torchrun would (PyTorch documentation, "torchrun", Environment Variables)."""
    if not settings.starts_ranks or job is None:
        return []
    number = str(rank.local_rank)
    size = str(job.num_local_ranks)
    reason = "wellfed starts the ranks of this host"
    changes = [
        EnvironmentChange(
            name,
            value,
            environment.get(name),
            reason,
            warning=environment.get(name) not in (None, value),
        )
        for name, value in (
            ("RANK", number),
            ("LOCAL_RANK", number),
            ("WORLD_SIZE", size),
            ("LOCAL_WORLD_SIZE", size),
        )
    ]
    port = "" if settings.master_port is None else str(settings.master_port)
    for name, value in (("MASTER_ADDR", settings.master_address), ("MASTER_PORT", port)):
        before = environment.get(name)
        if before is not None:
            changes.append(EnvironmentChange(name, before, before, "set before: ranks meet there"))
        elif value:
            changes.append(EnvironmentChange(name, value, None, "where the ranks meet"))
    return changes


def _device_variables(
    rank: RankPlacement,
    environment: Mapping[str, str],
    machine: Machine,
    visible: VisibleDevices,
    settings: LaunchSettings,
) -> list[EnvironmentChange]:
    """Fix the order of mixed GPUs, and narrow what is visible where that was asked for."""
    changes = []
    if settings.one_visible and not settings.starts_ranks:
        raise UsageError(
            "--one-visible was asked for ranks that another launcher starts",
            remedy="let that launcher narrow the GPUs, or start the ranks with wellfed run --per-gpu",
        )
    wanted = rank.gpus[:1] if settings.one_visible else settings.gpus
    by_number = False
    if wanted:
        change = _narrowed(rank, environment, machine, visible, settings, wanted)
        by_number = change.name == "CUDA_VISIBLE_DEVICES" and "-" not in (change.value or "")
        changes.append(change)
    if visible.vendor == "nvidia" and (by_number or _is_mixed(machine)):
        changes += _order(environment, by_number)
    return changes


def _order(environment: Mapping[str, str], by_number: bool) -> list[EnvironmentChange]:
    name, before = "CUDA_DEVICE_ORDER", environment.get("CUDA_DEVICE_ORDER")
    why = "the GPUs are given by number" if by_number else "the GPUs are of different models"
    if before == "PCI_BUS_ID":
        return []
    if before is None:
        reason = f"{why}, and without it CUDA numbers them fastest first, unlike nvidia-smi"
        listed = environment.get("CUDA_VISIBLE_DEVICES", "")
        renumbers = bool(listed) and not by_number and not listed.startswith(("GPU-", "MIG-"))
        if renumbers:
            reason += f"; CUDA_VISIBLE_DEVICES={listed} means nvidia-smi's numbers now"
        return [EnvironmentChange(name, "PCI_BUS_ID", None, reason, warning=renumbers)]
    reason = f"{why}, and with it CUDA numbers them in an order that is not known here"
    return [EnvironmentChange(name, before, before, reason, warning=True)]


def _is_mixed(machine: Machine) -> bool:
    from wellfed.placement.visible_cuda import is_mixed, shown_gpus

    shown, _ = shown_gpus(machine)
    return is_mixed(shown, machine)


def _narrowed(
    rank: RankPlacement,
    environment: Mapping[str, str],
    machine: Machine,
    visible: VisibleDevices,
    settings: LaunchSettings,
    wanted: tuple[str, ...],
) -> EnvironmentChange:
    """Name the wanted GPUs in the variable of their vendor: by UUID where it is known, else by number."""
    reason = "each rank sees its own GPU" if settings.one_visible else "these GPUs were chosen"
    if visible.vendor == "nvidia":
        name, value = "CUDA_VISIBLE_DEVICES", _cuda_list(rank, machine, visible, settings, wanted)
    elif visible.vendor == "amd":
        from wellfed.placement.visible_rocm import ROCR, rocm_devices

        base = rocm_devices(machine, {k: v for k, v in environment.items() if k == ROCR}).gpus
        name, value = "HIP_VISIBLE_DEVICES", ",".join(str(base.index(each)) for each in wanted)
    else:
        every = [gpu.pci_address for gpu in machine.gpus if gpu.vendor == visible.vendor]
        name, value = "ZE_AFFINITY_MASK", ",".join(str(every.index(each)) for each in wanted)
    before = environment.get(name)
    return EnvironmentChange(name, value, before, reason, warning=before not in (None, value))


def _cuda_list(
    rank: RankPlacement,
    machine: Machine,
    visible: VisibleDevices,
    settings: LaunchSettings,
    wanted: tuple[str, ...],
) -> str:
    from wellfed.placement.visible_cuda import shown_gpus

    if settings.one_visible and visible.mig_uuids and visible.gpus:
        uuid = visible.mig_uuids[rank.local_rank % len(visible.gpus)]
        if uuid is not None and visible.gpus[rank.local_rank % len(visible.gpus)] == wanted[0]:
            return uuid
    gpus = [gpu for address in wanted if (gpu := machine.gpu_at(address)) is not None]
    if all(gpu.uuid for gpu in gpus):
        return ",".join(gpu.uuid for gpu in gpus if gpu.uuid)
    shown: list[Gpu] = shown_gpus(machine)[0]
    return ",".join(str(shown.index(gpu)) for gpu in gpus if gpu in shown)


def _thread_variables(
    rank: RankPlacement, environment: Mapping[str, str]
) -> list[EnvironmentChange]:
    """Give OpenMP and MKL as many threads as the rank has cores of its own; MKL follows OpenMP where that is set."""
    name, value = "OMP_NUM_THREADS", str(rank.num_threads)
    before = environment.get(name)
    mkl = environment.get("MKL_NUM_THREADS")
    reason = "cores that this rank does not share with another, within cpu.max"
    if before is not None:
        torchrun = before == "1" and rank.num_threads > 1 and "TORCHELASTIC_RUN_ID" in environment
        why = f"set before; this rank has cores for {value}"
        if torchrun:
            why += ": torchrun sets 1 where nobody set it, so set it before torchrun"
        return [] if before == value else [EnvironmentChange(name, before, before, why)]
    changes = [EnvironmentChange(name, value, None, reason)]
    if mkl is None:
        changes.append(EnvironmentChange("MKL_NUM_THREADS", value, None, reason))
    elif mkl != value:
        why = f"set before; this rank has cores for {value}"
        changes.append(EnvironmentChange("MKL_NUM_THREADS", mkl, mkl, why))
    return changes


def _pinning_guard(rank: RankPlacement, environment: Mapping[str, str]) -> list[EnvironmentChange]:
    """Keep OpenMP from pinning threads on its own; what a person asked of it is kept and reported.

    One variable is enough: GNU, LLVM and Intel runtimes obey OMP_PROC_BIND=false, and Intel's complains in every
    process where KMP_AFFINITY stands beside it.
    """
    found = []
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY"):
        value = environment.get(name)
        if value and not _pins_nothing(name, value.lower(), environment):
            found.append(EnvironmentChange(name, value, value, PINS, warning=True))
    if found or not rank.cpus:
        return found
    if environment.get("OMP_PROC_BIND") or environment.get("KMP_AFFINITY"):
        return []
    reason = "keeps OpenMP from pinning threads inside the CPUs of this rank"
    return [EnvironmentChange("OMP_PROC_BIND", "false", environment.get("OMP_PROC_BIND"), reason)]


def _pins_nothing(name: str, value: str, environment: Mapping[str, str]) -> bool:
    if name == "OMP_PROC_BIND":
        return value.strip() in UNBOUND
    if name == "KMP_AFFINITY":
        return any(word.strip() in UNBOUND_KMP for word in value.split(","))
    return environment.get("OMP_PROC_BIND", "").lower().strip() in UNBOUND


def _nccl_guard(rank: RankPlacement, environment: Mapping[str, str]) -> list[EnvironmentChange]:
    """Remove what makes NCCL forget the rank's mask (NCCL documentation, NCCL_IGNORE_CPU_AFFINITY)."""
    name = "NCCL_IGNORE_CPU_AFFINITY"
    before = environment.get(name)
    if before is None or before.strip() in ("", "0") or not rank.cpus:
        return []
    reason = (
        "with it NCCL's threads ignore this rank's CPUs and take those NCCL finds near the GPU;"
        f" keep it with --keep-env {name}"
    )
    return [EnvironmentChange(name, None, before, reason, warning=True)]


def _nic_variables(rank: RankPlacement, environment: Mapping[str, str]) -> list[EnvironmentChange]:
    """Name the nearest RDMA devices, on request only: NCCL's own choice uses all rails, and a rank's own list breaks that."""
    if not rank.nics:
        return []
    changes = []
    for name, value in (
        ("NCCL_IB_HCA", "=" + ",".join(rank.nics)),
        ("UCX_NET_DEVICES", ",".join(f"{nic}:1" for nic in rank.nics)),
    ):
        before = environment.get(name)
        if before is None:
            changes.append(
                EnvironmentChange(name, value, None, "the network cards nearest to its GPU")
            )
        else:
            changes.append(
                EnvironmentChange(name, before, before, f"set before; nearest is {value}")
            )
    return changes
