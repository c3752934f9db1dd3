"""From which nodes shall a rank's memory come?

The default is soft: pages come from the GPU's own node and spill to the next when it is full. A hard bind kills the job
there instead (measured on kernel 6.1: SIGKILL, ``constraint=CONSTRAINT_MEMORY_POLICY`` in dmesg, while other nodes had
gigabytes free), so it is refused where the nodes cannot hold what is wanted. A GPU's own memory is never a target.
"""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY, NodeSet
from wellfed.model.errors import PlacementError, UsageError
from wellfed.model.placement import MEMORY_MODES, MemoryPolicy
from wellfed.placement.distances import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.machine import Machine, NumaNode
    from wellfed.model.placement import Wishes

SOFT = "or use --memory preferred, which spills to the next node instead of killing the job"


def memory_policy(machine: Machine, nodes: NodeSet | None, wishes: Wishes) -> MemoryPolicy:
    """Return the policy for a rank whose GPUs are beside ``nodes``; None: where they are cannot be known."""
    return choose_memory(machine, nodes, wishes)[0]


def choose_memory(
    machine: Machine, nodes: NodeSet | None, wishes: Wishes
) -> tuple[MemoryPolicy, tuple[str, ...]]:
    """Return the policy, and a sentence for everything that differs from what was asked for."""
    mode = wishes.memory
    if mode not in MEMORY_MODES:
        raise UsageError(
            f"{mode!r} is no memory mode", remedy=f"choose one of: {', '.join(MEMORY_MODES)}"
        )
    if mode in ("local", "none"):
        return MemoryPolicy(mode), ()
    if mode in ("interleave", "weighted"):
        return _spread(machine, mode)
    if nodes is None:
        return _without_place(mode)
    targets, notes = _targets(machine, nodes)
    if targets:
        return MemoryPolicy(mode, targets), notes
    if mode == "bind":
        raise PlacementError(
            "no node that memory may come from is near the GPU", remedy="use --memory none"
        )
    return MemoryPolicy("none"), (*notes, "the memory policy is left alone: no node is near")


def refuse_hard_bind(machine: Machine, nodes: NodeSet, wanted_bytes: int | None) -> None:
    """Raise PlacementError where nodes cannot hold what will be bound to them; figures are bytes.

    What can be had is MemFree + Inactive(file) of the nodes. What is wanted is the estimate, else the smallest
    ``memory.max``: with neither, nobody knows, and only nodes without known memory are refused.
    """
    from wellfed.model.units import format_bytes

    found = [machine.node(node) for node in nodes]
    sizes = [node.available_bytes for node in found if node is not None]
    if not sizes or any(size is None for size in sizes) or len(sizes) != len(nodes):
        raise PlacementError(
            f"how much memory node {nodes} has left is not known, so nothing can be bound to it",
            remedy=f"read the host itself, {SOFT}",
        )
    left = sum(size for size in sizes if size is not None)
    wanted = wanted_bytes if wanted_bytes is not None else machine.allowed.memory_limit_bytes
    what = (
        "the ranks there want" if wanted_bytes is not None else "the memory limit lets the job use"
    )
    if left == 0 or (wanted is not None and wanted > left):
        needs = "" if wanted is None else f", and {what} {format_bytes(wanted)}"
        raise PlacementError(
            f"node {nodes} has {format_bytes(left)} left{needs}",
            remedy=f"say what a rank needs if that is less (--memory-size 64G), {SOFT}",
        )


def host_memory_nodes(machine: Machine) -> NodeSet:
    """Return the nodes that a job's pages may come from: host memory, and inside Mems_allowed."""
    allowed = machine.allowed.mems
    found = machine.memory_nodes
    return found if allowed is None else found & allowed


def _targets(machine: Machine, nodes: NodeSet) -> tuple[NodeSet, tuple[str, ...]]:
    """Replace each node that cannot give memory by the nearest that can, as the kernel itself would fall back."""
    usable = host_memory_nodes(machine)
    found, notes = EMPTY, []
    for number in nodes:
        node = machine.node(number)
        if number in usable or _maybe(machine, node):
            found |= NodeSet([number])
            if number not in usable:
                notes.append(f"how much memory node {number} has is not recorded")
            continue
        near = nearest(machine, NodeSet([number]), usable)
        why = _why_not(machine, node)
        if near:
            notes.append(
                f"node {number} {why}: memory comes from node {near}, the nearest that has"
            )
            found |= near
        else:
            notes.append(f"node {number} {why}, and which other node is near is not recorded")
    return found, tuple(notes)


def _maybe(machine: Machine, node: NumaNode | None) -> bool:
    """Say whether a node may be asked for memory although its size is not recorded: soft, and only by a description."""
    mems = machine.allowed.mems
    return (
        node is not None
        and node.memory_bytes is None
        and node.hbm_of is None
        and not machine.memory_nodes
        and (mems is None or node.node in mems)
    )


def _why_not(machine: Machine, node: NumaNode | None) -> str:
    if node is None or node.memory_bytes is None:
        return "has no recorded memory"
    if not node.memory_bytes:
        return "has no memory"
    if node.hbm_of is not None:
        return f"is the memory of GPU {node.hbm_of}"
    return f"is outside Mems_allowed ({machine.allowed.mems})"


def _spread(machine: Machine, mode: str) -> tuple[MemoryPolicy, tuple[str, ...]]:
    """Spread over every node of host memory; what is left out is said (numactl#184 fails on an empty node)."""
    targets = host_memory_nodes(machine)
    if not targets:
        raise PlacementError(
            "no node with host memory is allowed, so there is nothing to spread pages over",
            remedy="use --memory none",
        )
    notes = [
        f"node {node.node} is left out: it {_why_not(machine, node)}"
        for node in machine.nodes
        if node.node not in targets
    ]
    return MemoryPolicy(mode, targets), tuple(notes)


def _without_place(mode: str) -> tuple[MemoryPolicy, tuple[str, ...]]:
    if mode == "bind":
        raise PlacementError(
            "memory cannot be bound beside a GPU whose place is not known",
            remedy="use --memory none, or --memory interleave to spread it",
        )
    return MemoryPolicy("none"), ()
