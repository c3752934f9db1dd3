"""Which GPUs does each rank use?

Under a launcher the job has decided already: rank *i* uses the *i*-th GPU it sees (``cuda:LOCAL_RANK``), and placement
has to follow. GPUs are chosen here only on request, for a job that needs fewer of them than there are.
"""

from __future__ import annotations

from wellfed.model.errors import GpuError, UsageError
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from wellfed.model.job import Job, VisibleDevices
    from wellfed.model.machine import Gpu, Machine
    from wellfed.model.placement import Wishes


class Seats(Value):
    """The ranks that can be planned, and the GPUs of each."""

    gpus: tuple[tuple[int, tuple[str, ...]], ...]
    """(rank, PCI addresses; the first is its own). Under ``by_device`` the number of a device instead of a rank."""
    own: tuple[int, ...] = ()
    """With ``by_device``: which of them are this process's."""
    by_device: bool = False
    """Only this rank's GPU is visible: each GPU or MIG slice of the host has a seat, whoever uses it."""
    notes: tuple[str, ...] = ()


def seats_of(machine: Machine, job: Job | None, visible: VisibleDevices, wishes: Wishes) -> Seats:
    """Give every rank of the job its GPUs. GpuError where a wished GPU is not there or not visible."""
    count = job.num_local_ranks if job is not None else 1
    if wishes.gpus is not None:
        return _wished(machine, count, visible, wishes.gpus, alone=job is None)
    entries = visible.gpus
    if not entries:
        return Seats(tuple((rank, ()) for rank in range(count)))
    if not visible.order_known:
        every = tuple(dict.fromkeys(entries))
        return Seats(tuple((rank, every) for rank in range(count)))
    if job is None or (count == 1 and job.launcher not in ("torchrun", "jax") and not job.devices):
        return _all_visible(visible)
    if job.devices:
        return _in_blocks(job, entries, len(job.devices))
    if _is_own_list(machine, job, visible):
        return _only_own(machine, job, visible)
    if job.launcher == "jax" and count == 1:
        return _all_visible(visible)
    if job.gpus_per_rank is not None and len(entries) == count * job.gpus_per_rank:
        return _in_blocks(job, entries, job.gpus_per_rank)
    return _in_turn(count, entries)


def choose_gpus(machine: Machine, visible: VisibleDevices, num_ranks: int) -> tuple[int, ...]:
    """Choose GPUs so that each rank has as many cores beside it as can be: indices in PCI order, smallest first.

    One after the other is taken from the node with most allowed cores for each rank that it would have; on a node, from
    the PCI root that has given fewest. Eight GPUs on two nodes and two ranks: one GPU of each node.
    """
    allowed = machine.allowed.cpus & machine.online
    listed = [gpu for address in dict.fromkeys(visible.gpus) if (gpu := machine.gpu_at(address))]
    if not visible.order_known or num_ranks > len(listed) or num_ranks < 1:
        raise GpuError(
            f"{len(listed)} GPUs are visible in a known order, and {num_ranks} are wanted"
            if visible.order_known
            else "which GPU has which number is not known, so none can be chosen by number",
            remedy="set CUDA_DEVICE_ORDER=PCI_BUS_ID and start one rank a GPU, or name GPUs: --gpus 0,4",
        )
    cores = {
        node.node: len(machine.cores(node.cpus & allowed)) for node in machine.nodes if node.cpus
    }
    roots = {device.address: device.parents[-1:] for device in machine.pci}
    chosen: list[Gpu] = []

    def worth(gpu: Gpu) -> tuple[float, int, int]:
        there = sum(other.cpu_node == gpu.cpu_node for other in chosen)
        root = roots.get(gpu.pci_address, ())
        crowd = sum(bool(root) and roots.get(other.pci_address) == root for other in chosen)
        room = cores.get(gpu.cpu_node, 0) if gpu.cpu_node is not None else 0
        return room / (there + 1), -crowd, -gpu.index

    for _ in range(num_ranks):
        chosen.append(max((gpu for gpu in listed if gpu not in chosen), key=worth))
    return tuple(sorted(gpu.index for gpu in chosen))


def _wished(
    machine: Machine, count: int, visible: VisibleDevices, wanted: Iterable[int], *, alone: bool
) -> Seats:
    """Take GPUs by their index in PCI order, one a rank in turn; a process without ranks takes all of them."""
    found: list[str] = []
    for index in wanted:
        gpu = next(
            (g for g in machine.gpus if g.index == index and g.vendor == visible.vendor), None
        )
        if gpu is None:
            have = ", ".join(str(g.index) for g in machine.gpus) or "none"
            raise GpuError(
                f"GPU {index} is not on this host (it has: {have})", remedy="choose one of these"
            )
        if gpu.pci_address not in visible.gpus:
            raise GpuError(
                f"GPU {index} ({gpu.pci_address}) is not visible to this process"
                + (f": {visible.variable} leaves it out" if visible.variable else ""),
                remedy="choose GPUs that are visible, or change the variable",
            )
        found.append(gpu.pci_address)
    if not found:
        raise UsageError("an empty list of GPUs was given", remedy="name GPUs: --gpus 0,4")
    if alone:
        return Seats(((0, tuple(dict.fromkeys(found))),))
    return Seats(tuple((rank, (found[rank % len(found)],)) for rank in range(count)))


def _all_visible(visible: VisibleDevices) -> Seats:
    """One process beside all GPUs it may see."""
    mine = visible.gpus if visible.num_devices is None else visible.gpus[: visible.num_devices]
    return Seats(((0, tuple(dict.fromkeys(mine))),))


def _is_own_list(machine: Machine, job: Job, visible: VisibleDevices) -> bool:
    """Say whether the visible GPUs are this rank's alone, because each rank was given its own.

    Ray, ``srun --gpus-per-task`` and ``--one-visible`` narrow the list for each rank: LOCAL_RANK=5 beside
    CUDA_VISIBLE_DEVICES=5 means GPU 5, not the sixth of one (NovaSky-AI/SkyRL#1936). Fewer GPUs than ranks are each
    rank's own under torchrun and Flux too, whose ranks never share: cuda:LOCAL_RANK has to exist.
    """
    host = _slots(gpu for gpu in machine.gpus if gpu.vendor == visible.vendor)
    seen, count = len(visible.gpus), job.num_local_ranks
    if job.local_rank is None or seen >= host or (count == 1 and job.launcher != "jax"):
        return False
    if seen == 1 or job.gpus_per_rank == seen:
        return True
    return job.launcher in ("torchrun", "flux") and seen < count <= host // seen


def _slots(gpus: Iterable[Gpu]) -> int:
    return sum(max(1, len(gpu.mig)) for gpu in gpus)


def _only_own(machine: Machine, job: Job, visible: VisibleDevices) -> Seats:
    """Seat the host's devices instead of the job's ranks, because the GPUs of other ranks cannot be seen from here.

    Every rank then computes the same shares, whichever GPUs it has, and takes those of its own.
    """
    seats: list[tuple[int, tuple[str, ...]]] = []
    slots: dict[tuple[str, str | None], int] = {}
    for gpu in machine.gpus:
        if gpu.vendor == visible.vendor:
            parts: list[str | None] = [each.uuid for each in gpu.mig]
            for part in parts or [None]:
                slots.setdefault((gpu.pci_address, None), len(seats))
                slots.setdefault((gpu.pci_address, part), len(seats))
                seats.append((len(seats), (gpu.pci_address,)))
    uuids = visible.mig_uuids or (None,) * len(visible.gpus)
    own = tuple(
        slots.get((address, uuid), slots[address, None])
        for address, uuid in zip(visible.gpus, uuids, strict=True)
    )
    gpus = "one GPU is" if len(own) == 1 else f"{len(own)} GPUs are"
    note = (
        f"{gpus} visible to rank {job.local_rank} of {job.num_local_ranks}: taken for its own, and every other GPU of"
        " this host for another rank's"
    )
    return Seats(tuple(seats), own=own, by_device=True, notes=(note,))


def _in_blocks(job: Job, entries: tuple[str, ...], width: int) -> Seats:
    """Give each rank as many GPUs as the launcher says, rank after rank."""
    if job.num_local_ranks * width > len(entries):
        raise GpuError(
            f"{job.source}: {job.num_local_ranks} ranks with {width} GPUs each need more than the {len(entries)} visible",
            remedy="give each rank fewer devices, or make more GPUs visible",
        )
    return Seats(
        tuple(
            (rank, entries[rank * width : (rank + 1) * width])
            for rank in range(job.num_local_ranks)
        )
    )


def _in_turn(count: int, entries: tuple[str, ...]) -> Seats:
    notes: tuple[str, ...] = ()
    if count > len(entries):
        gpus = "1 visible GPU" if len(entries) == 1 else f"{len(entries)} visible GPUs, in turn"
        notes = (f"{count} ranks share {gpus}",)
    elif count < len(entries):
        ranks = "1 rank" if count == 1 else f"{count} ranks"
        notes = (
            f"{len(entries)} GPUs are visible to {ranks}: rank i is taken to use the i-th, as cuda:LOCAL_RANK does",
        )
    return Seats(
        tuple((rank, (entries[rank % len(entries)],)) for rank in range(count)), notes=notes
    )
