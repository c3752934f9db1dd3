"""What may this process use: which CPUs, which memory, how much time?"""

from __future__ import annotations

from wellfed.host.cgroups import read_cgroups
from wellfed.host.facts import shown
from wellfed.model.machine import Allowed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.host.cgroups import Cgroup
    from wellfed.host.facts import Facts
    from wellfed.model.cpuset import CpuSet, NodeSet

STATUS = "/proc/self/status"
LARGEST_LIMIT_BYTES = 1 << 62
"""cgroup v1 writes 2^63 rounded down to a page for "no limit" (PAGE_COUNTER_MAX); no machine has this much."""

CPUS_FILES = (
    "cpuset.cpus.effective",
    "cpuset.effective_cpus",
    "cpuset.cpus",
    "effective_cpus",
    "cpus",
)
"""cgroup v2; v1 since v3.17; v1; and v1 mounted ``noprefix`` or as the older cpuset file system."""
MEMS_FILES = (
    "cpuset.mems.effective",
    "cpuset.effective_mems",
    "cpuset.mems",
    "effective_mems",
    "mems",
)


def read_allowed(facts: Facts, online: CpuSet) -> Allowed:
    """Return online ∩ affinity ∩ cpuset, each only where it is known. What is unknown is named, never "all"."""
    unknown: list[str] = []
    affinity = _read_affinity(facts, unknown)
    cgroups = read_cgroups(facts)
    cpuset_cpus, path = _read_cpuset(facts, cgroups["cpuset"], CPUS_FILES, "cpuset CPUs", unknown)
    cpus = online
    for narrower in (affinity, cpuset_cpus):
        cpus = cpus if narrower is None else cpus & narrower
    if not cpus:
        said = f"online {online}, affinity {affinity}, cpuset {cpuset_cpus}"
        facts.remark("allowed", f"limits contradict each other, no CPU is left: {said}")
    return Allowed(
        cpus=cpus,
        mems=_read_mems(facts, cgroups["cpuset"], unknown),
        affinity=affinity,
        cpuset_cpus=cpuset_cpus,
        cpuset_path=path,
        cpu_quota=_read_quota(facts, cgroups["cpu"], unknown),
        memory_limit_bytes=_read_memory_limit(facts, cgroups["memory"], unknown),
        unknown=tuple(unknown),
    )


def _read_affinity(facts: Facts, unknown: list[str]) -> CpuSet | None:
    answer = facts.tree.answer("sched_getaffinity")
    if isinstance(answer, str):
        found = facts.parsed(answer, "sched_getaffinity", is_list=True)
        if found:
            return found
    found = _of_status(facts, "Cpus_allowed")
    if found is None:
        unknown.append(f"affinity: neither sched_getaffinity nor {STATUS} is recorded")
    return found


def _read_mems(facts: Facts, cgroup: Cgroup, unknown: list[str]) -> NodeSet | None:
    """Return the nodes memory may come from; the process's own word and its cpuset's must both allow one."""
    own = _of_status(facts, "Mems_allowed")
    ignored: list[str] = []
    cpuset, _ = _read_cpuset(facts, cgroup, MEMS_FILES, "cpuset memory nodes", ignored)
    if own is None:
        unknown += ignored
        return cpuset
    return own if cpuset is None else own & cpuset


def _of_status(facts: Facts, field: str) -> CpuSet | None:
    """Read ``Cpus_allowed_list`` of the process's status, else the mask ``Cpus_allowed`` (before 2.6.26)."""
    mask = None
    for line in (facts.tree.read(STATUS) or "").splitlines():
        name, _, value = line.partition(":")
        if name == f"{field}_list":
            return facts.parsed(value.strip(), f"{STATUS} {name}", is_list=True)
        if name == field:
            mask = facts.parsed(value.strip(), f"{STATUS} {name}", is_list=False)
    return mask


def _read_cpuset(
    facts: Facts, cgroup: Cgroup, names: tuple[str, ...], what: str, unknown: list[str]
) -> tuple[CpuSet | None, str | None]:
    """Return the cpuset and the folder that said so.

    In v2 a cgroup without these files has those of the nearest one above it; in v1 every cgroup has its own.
    """
    for folder in cgroup.folders if cgroup.version == 2 else cgroup.folders[:1]:
        found = facts.cpus(folder, names)
        if found:
            return found, folder
    place = (
        f"no file in {cgroup.folders[0]} or above says" if cgroup.folders else cgroup.why_unknown
    )
    unknown.append(f"{what}: {place}")
    return None, None


def _read_quota(facts: Facts, cgroup: Cgroup, unknown: list[str]) -> float | None:
    """Return the smallest quota from this cgroup up, in CPUs' worth of time; None for no limit.

    ``cpu.max`` reads ``400000 100000``: 0.4 s of every 0.1 s, 4 CPUs. A GPU job with more runnable threads
    stands still, all of it, until the next period.
    """
    quotas = []
    asked = 0
    for folder in cgroup.folders:
        if cgroup.version == 2:
            text = facts.tree.read(f"{folder}/cpu.max")
        else:
            quota = facts.tree.read(f"{folder}/cpu.cfs_quota_us")
            period = facts.tree.read(f"{folder}/cpu.cfs_period_us")
            text = (
                f"{quota} {period}" if isinstance(quota, str) and isinstance(period, str) else quota
            )
        if not isinstance(text, str):
            continue
        asked += 1
        if text.split()[:1] in (["max"], ["-1"]):
            continue
        words = [
            int(word)
            for word in text.split()
            if word.isascii() and word.isdigit() and len(word) < 19
        ]
        if len(words) != 2 or 0 in words:
            unknown.append(
                f"CPU quota: {folder} reads {shown(text)}, not a quota and a period in microseconds"
            )
            continue
        quotas.append(words[0] / words[1])
    _name_unasked(facts, cgroup, "cpu", "CPU quota", asked, unknown)
    return min(quotas, default=None)


def _read_memory_limit(facts: Facts, cgroup: Cgroup, unknown: list[str]) -> int | None:
    """Return the smallest memory limit from this cgroup up, in bytes; None for no limit."""
    name = "memory.max" if cgroup.version == 2 else "memory.limit_in_bytes"
    limits = []
    asked = 0
    for folder in cgroup.folders:
        text = facts.tree.read(f"{folder}/{name}")
        if not isinstance(text, str):
            continue
        asked += 1
        if text == "max":
            continue
        if text.isascii() and text.isdigit() and len(text) <= 20:
            limits.append(int(text))
        else:
            unknown.append(
                f"memory limit: {folder}/{name} reads {shown(text)}, not a number of bytes"
            )
    _name_unasked(facts, cgroup, "memory", "memory limit", asked, unknown)
    return min((limit for limit in limits if limit < LARGEST_LIMIT_BYTES), default=None)


def _name_unasked(
    facts: Facts, cgroup: Cgroup, controller: str, what: str, num_asked: int, unknown: list[str]
) -> None:
    """Say that a limit is unknown where no file told it, unless v2 says that it does not apply.

    A v2 cgroup whose ``cgroup.controllers`` lacks a controller, or that is the root, has no limit of its own.
    """
    if num_asked:
        return
    if not cgroup.folders:
        unknown.append(f"{what}: {cgroup.why_unknown}")
        return
    own = cgroup.folders[0]
    controllers = facts.tree.read(f"{own}/cgroup.controllers") if cgroup.version == 2 else None
    if not isinstance(controllers, str) or (
        controllers.split().count(controller) and len(cgroup.folders) > 1
    ):
        unknown.append(f"{what}: no file in {own} or above says")
