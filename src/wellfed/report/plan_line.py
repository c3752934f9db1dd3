"""Where does one process go, in a line?"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.binding import Binding
    from wellfed.model.machine import Machine
    from wellfed.model.placement import MemoryPolicy, RankPlacement

LEFT_ALONE, UNKNOWN = "left alone", "unknown"


def one_line(
    machine: Machine, rank: RankPlacement, binding: Binding | None = None, *, alone: bool = False
) -> str:
    """Say in one sentence where a process goes, and what of that the kernel did not confirm."""
    gpus = ", ".join(_gpu_name(machine, address) for address in rank.gpus)
    subject = "" if alone else f"rank {rank.local_rank}: "
    place = f"beside {gpus}: " if gpus else ""
    if not rank.cpus and rank.memory.mode == "none":
        return f"{subject}{place}CPU mask and memory policy are left alone"
    node = "node" if len(rank.cpu_nodes) == 1 else "nodes"
    nodes = f" of {node} {rank.cpu_nodes}" if rank.cpu_nodes else ""
    cpus = f"CPUs {rank.cpus}{nodes}" if rank.cpus else "CPU mask left alone"
    if binding is not None and rank.cpus and binding.cpus != rank.cpus:
        cpus = f"CPUs {binding.cpus if binding.cpus is not None else UNKNOWN}, planned {rank.cpus}"
    memory = f"memory {memory_text(rank.memory)}"
    if binding is not None and rank.memory.mode != "none":
        found = binding.memory if binding.memory is not None else "not confirmed"
        memory = f"memory {found}"
        if not binding.memory_bound:
            memory += f", planned {binding.planned_memory}"
    state = "" if binding is None or binding.bound else "NOT bound as planned: "
    return f"{subject}{state}{place}{cpus}, {memory}"


def memory_text(memory: MemoryPolicy) -> str:
    """Write a policy with its nodes: ``preferred 0-1``."""
    if memory.mode == "none":
        return LEFT_ALONE
    return f"{memory.mode} {memory.nodes}" if memory.nodes else memory.mode


def _gpu_name(machine: Machine, address: str) -> str:
    gpu = machine.gpu_at(address)
    return f"GPU {address}" if gpu is None else f"GPU {gpu.index}"
