"""How is a memory policy set, and which one does the kernel say is in force?"""

from __future__ import annotations

import os

from wellfed.host.live_tree import LiveTree
from wellfed.model.binding import Step
from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet
from wellfed.model.errors import MalformedTextError
from wellfed.model.tree import Unreadable, unreadable
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.placement import MemoryPolicy
    from wellfed.model.tree import HostTree

MODE_NAMES = ("default", "preferred", "bind", "interleave", "local", "preferred-many", "weighted")
"""By number, MPOL_DEFAULT first (include/uapi/linux/mempolicy.h); an operator's words, not the kernel's."""

MODE_TEXTS = {
    "default": "default",
    "prefer (many)": "preferred-many",
    "prefer": "preferred",
    "bind": "bind",
    "interleave": "interleave",
    "weighted interleave": "weighted",
    "local": "local",
}
"""What numa_maps writes (mm/mempolicy.c, policy_modes) -> our word."""

LADDERS = {
    "preferred": ("preferred-many", "preferred", "local"),
    "bind": ("bind",),
    "interleave": ("interleave",),
    "weighted": ("weighted", "interleave"),
    "local": ("local",),
    "none": (),
}
"""Planned mode -> what is tried in turn while the kernel answers EINVAL. A hard bind is never replaced."""

STATIC_BIT, RELATIVE_BIT, BALANCING_BIT = 1 << 15, 1 << 14, 1 << 13
FLAG_NAMES = ((STATIC_BIT, "static"), (RELATIVE_BIT, "relative"), (BALANCING_BIT, "balancing"))

CAP_SYS_NICE = 23
"""include/uapi/linux/capability.h"""

NUMA_MAPS_TEXT_LIMIT = 63
"""The kernel formats a policy into 64 bytes (fs/proc/task_mmu.c, show_numa_map); longer node lists are cut."""


class PolicyInForce(Value):
    """A policy as the kernel reports it."""

    mode: str
    """One of MODE_NAMES, or ``mode 9`` for one that this version does not know."""
    nodes: NodeSet = EMPTY
    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Write ``preferred-many:0-1 (static)``."""
        text = f"{self.mode}:{self.nodes}" if self.nodes else self.mode
        return f"{text} ({', '.join(self.flags)})" if self.flags else text


def set_policy(policy: MemoryPolicy) -> tuple[Step, ...]:
    """Set the policy of the calling thread, stepping down from the best one while the kernel answers EINVAL.

    Every attempt is a step; the last one that worked was read back with get_mempolicy, or is followed by a step that
    says why it could not be. Threads that run already keep their own policy: it belongs to a thread, not to a process.
    """
    steps: list[Step] = []
    for mode in LADDERS[policy.mode]:
        nodes, flags = _arguments(mode, policy.nodes)
        what = f"set_mempolicy({_spell(mode, flags)}{f', {nodes}' if nodes else ''})"
        refusal = _try(MODE_NAMES.index(mode) | flags, nodes)
        if refusal is None:
            return (*steps, *_read_back(what, PolicyInForce(mode, nodes, flag_names(flags))))
        steps.append(Step(what, str(refusal.errno_name), why_refused(mode, nodes, refusal)))
        if refusal.errno_name != "EINVAL":
            break
    return tuple(steps)


def read_own() -> PolicyInForce | Unreadable:
    """Return the policy of the calling thread, as get_mempolicy tells it."""
    from wellfed.host import syscalls

    try:
        mode, nodes = syscalls.get_mempolicy()
    except OSError as refusal:
        return unreadable(refusal)
    return of_number(mode, nodes)


def read_thread(pid: int, tid: int) -> PolicyInForce | Unreadable:
    """Return the policy of any thread, from the first line of its numa_maps.

    A mapping without a policy of its own is shown with the thread's; the first mapping is the program's own text,
    which never has one. Only a few bytes are read, because the kernel walks the page tables of what it prints.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/task/{tid}/numa_maps", os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(descriptor, 160)
        finally:
            os.close(descriptor)
    except OSError as refusal:
        return unreadable(refusal)
    return parse_numa_maps_policy(line.decode("ascii", "replace")) or Unreadable("ENODATA")


def parse_numa_maps_policy(line: str) -> PolicyInForce | None:
    """Read the policy out of one line: ``7f00 prefer (many)=static:0-1 file=/usr/bin/x``; None where it says nothing sure."""
    _, _, rest = line.partition("\n")[0].partition(" ")
    spelled = next((text for text in MODE_TEXTS if _begins(rest, text)), None)
    if spelled is None:
        return None
    word = rest[len(spelled) :].split(" ", 1)[0]
    if len(spelled) + len(word) >= NUMA_MAPS_TEXT_LIMIT:
        return None
    flags, _, nodes = word.partition(":")
    try:
        return PolicyInForce(
            MODE_TEXTS[spelled],
            CpuSet.parse(nodes),
            tuple(flags.removeprefix("=").split("|")) if flags else (),
        )
    except MalformedTextError:
        return None


def of_number(mode: int, nodes: NodeSet) -> PolicyInForce:
    """Name what get_mempolicy returned."""
    plain = mode & ~(STATIC_BIT | RELATIVE_BIT | BALANCING_BIT)
    name = MODE_NAMES[plain] if plain < len(MODE_NAMES) else f"mode {plain}"
    # Before v5.14 MPOL_LOCAL was kept as MPOL_PREFERRED without nodes.
    return PolicyInForce(
        "local" if name == "preferred" and not nodes else name, nodes, flag_names(mode)
    )


def flag_names(mode: int) -> tuple[str, ...]:
    """Name the MPOL_F flags in a mode."""
    return tuple(name for bit, name in FLAG_NAMES if mode & bit)


def why_refused(
    mode: str, nodes: NodeSet, refusal: Unreadable, tree: HostTree | None = None
) -> str:
    """Say in one sentence why set_mempolicy was refused, and what to type, from what the kernel shows of this process."""
    host = tree or LiveTree()
    status = host.read("/proc/self/status") or ""
    if refusal.errno_name == "EINVAL":
        return _why_invalid(mode, nodes, status, host)
    filtered = field(status, "Seccomp") == "2"
    if refusal.errno_name == "ENOSYS" and not filtered:
        return "this kernel was built without NUMA policies"
    if not filtered:
        return "the kernel refuses set_mempolicy to this process"
    effective = field(status, "CapEff") or "0"
    if int(effective, 16) >> CAP_SYS_NICE & 1:
        return (
            "a seccomp filter refuses set_mempolicy although CAP_SYS_NICE is held: "
            "allow set_mempolicy in the filter's profile (docker run --security-opt seccomp=FILE)"
        )
    return (
        "the container's seccomp filter refuses set_mempolicy without CAP_SYS_NICE: start it with "
        "`--cap-add SYS_NICE` (Docker, Podman) or "
        '`securityContext: {capabilities: {add: ["SYS_NICE"]}}` (Kubernetes)'
    )


def field(status: str, name: str) -> str | None:
    """Return one ``Name:  value`` line of a /proc/PID/status text, None where it is not there."""
    _, found, rest = f"\n{status}".partition(f"\n{name}:")
    return rest.partition("\n")[0].strip() if found else None


def _why_invalid(mode: str, nodes: NodeSet, status: str, host: HostTree) -> str:
    allowed = _set_or_none(field(status, "Mems_allowed_list"))
    with_memory = _set_or_none(host.read("/sys/devices/system/node/has_memory") or None)
    outside = nodes - allowed if allowed is not None else EMPTY
    bare = nodes - with_memory if with_memory is not None else EMPTY
    if nodes and nodes <= outside | bare:
        reasons = [f"node {bare} has no memory"] if bare else []
        if outside - bare:
            reasons.append(
                f"node {outside - bare} is outside this process's Mems_allowed_list ({allowed}), "
                "so its cpuset must be widened"
            )
        return "; ".join(reasons)
    newer = {"preferred-many": "Linux 5.15", "weighted": "Linux 6.9"}
    if mode in newer:
        return f"this kernel does not know the mode (since {newer[mode]})"
    return "the kernel calls the mode or its nodes invalid"


def _set_or_none(text: str | None) -> NodeSet | None:
    return None if text is None else CpuSet.parse(text)


def _arguments(mode: str, nodes: NodeSet) -> tuple[NodeSet, int]:
    """Return nodes and flags for one rung: one node for ``preferred`` (more are ignored by the kernel), none for ``local``."""
    if mode == "local":
        return EMPTY, 0
    if mode == "preferred" and nodes:
        return NodeSet([nodes.first]), STATIC_BIT
    return nodes, STATIC_BIT


def _spell(mode: str, flags: int) -> str:
    constants = {"preferred-many": "PREFERRED_MANY", "weighted": "WEIGHTED_INTERLEAVE"}
    name = f"MPOL_{constants.get(mode, mode.upper())}"
    return f"{name}|MPOL_F_STATIC_NODES" if flags & STATIC_BIT else name


def _try(mode: int, nodes: NodeSet) -> Unreadable | None:
    from wellfed.host import syscalls

    try:
        syscalls.set_mempolicy(mode, nodes)
    except OSError as refusal:
        return unreadable(refusal)
    return None


def _read_back(what: str, wanted: PolicyInForce) -> tuple[Step, ...]:
    """Confirm that the kernel now reports what it accepted; a sandbox may accept a call and do nothing."""
    found = read_own()
    if isinstance(found, Unreadable):
        why = "the policy was accepted, but it cannot be asked whether it holds"
        return Step(what), Step("get_mempolicy()", found.errno_name, why)
    if found == wanted:
        return (Step(what),)
    return Step(what), Step("get_mempolicy()", None, f"reports {found}, not {wanted}")


def _begins(rest: str, text: str) -> bool:
    return rest.startswith(text) and rest[len(text) : len(text) + 1] in ("", " ", "=", ":")
