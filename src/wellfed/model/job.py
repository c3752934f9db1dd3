"""Which part of a job runs here: ranks, launcher, and the GPUs a process may see."""

from __future__ import annotations

from wellfed.model.value import Value


class Job(Value):
    """The ranks of one job on this host."""

    num_local_ranks: int
    local_rank: int | None = None
    """The rank that this process is; None when it is none of them, or all of them."""
    rank: int | None = None
    world_size: int | None = None
    launcher: str | None = None
    """Who set the rank: ``torchrun``, ``slurm``, ``openmpi``, ``mpich``, ``flux``, ``jax`` …"""
    source: str | None = None
    """The variables that said so: ``LOCAL_RANK=3, LOCAL_WORLD_SIZE=8``."""
    devices: tuple[int, ...] = ()
    """Positions among the visible GPUs that this rank uses, where the launcher names them (JAX), else empty."""
    notes: tuple[str, ...] = ()
    """What a person should know: variables of another launcher that were not believed."""
    gpus_per_rank: int | None = None
    """How many GPUs the launcher gives each rank, where it says so (SLURM_GPUS_PER_TASK)."""


class VisibleDevices(Value):
    """Which GPUs a process sees, and how that is known."""

    variable: str | None
    """The variable that restricts, None where nothing does."""
    gpus: tuple[str, ...]
    """PCI addresses in the order the process numbers them; a MIG slice appears under its parent's address."""
    mig_uuids: tuple[str | None, ...] = ()
    """For each visible device the MIG slice it is, else None."""
    order_known: bool = True
    """False where only the driver knows the order (mixed GPUs without CUDA_DEVICE_ORDER=PCI_BUS_ID)."""
    notes: tuple[str, ...] = ()
    """What a person should know: where parsing stopped, duplicates, unknown identifiers."""
    num_devices: int | None = None
    """Devices the process really gets, where that is fewer than ``gpus`` lists: a process gets one MIG slice, and
    where the order is unknown ``gpus`` are the candidates. None: as many as ``gpus``."""
    vendor: str = "nvidia"
    """Whose GPUs these are."""
