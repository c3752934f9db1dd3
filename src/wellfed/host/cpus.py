"""Which CPUs are online, and which of them share a core, a cache, a die and a package?"""

from __future__ import annotations

from wellfed.host.facts import number_after, shown
from wellfed.model.cpuset import EMPTY, CpuSet, union
from wellfed.model.errors import TopologyError
from wellfed.model.machine import Cpu
from wellfed.model.tree import read_int
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellfed.host.facts import Facts

FOLDER = "/sys/devices/system/cpu"
CORE_FILES = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
"""Newest first: core_cpus since v5.3, where thread_siblings became its deprecated name; masks since 2.6."""
PACKAGE_FILES = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")
CLUSTER_FILES = ("cluster_cpus_list", "cluster_cpus")
L3_FILES = ("shared_cpu_list", "shared_cpu_map")
NO_CLUSTER = (-1, 65535)
"""What cluster_id says where firmware describes no clusters (drivers/base/arch_topology.c; x86 BAD_APICID)."""


class Presence(Value):
    """Which CPUs are there."""

    online: CpuSet
    offline: CpuSet
    """Present and offline."""
    shown: CpuSet
    """Those with a folder, which says what they share."""


def read_presence(facts: Facts) -> Presence:
    """Return the CPUs of a host; TopologyError where it shows none.

    Kernels before 2.6.26 have no list of online CPUs: there each ``cpuN/online`` says it, and where that is
    missing too (the boot CPU, or no hotplug) the directory ``cpuN/topology``, which an offline CPU loses.
    """
    listed = facts.cpus(FOLDER, ("online",))
    names = facts.tree.list(FOLDER) or ()
    numbers = (number_after("cpu", name) for name in names)
    folders = CpuSet(number for number in numbers if number is not None)
    online = listed or _online_by_folder(facts, folders) or _in_cpuinfo(facts)
    if not online:
        raise TopologyError(
            f"{facts.tree.name} shows no CPU: {FOLDER}/online, {FOLDER}/cpu*, and /proc/cpuinfo name none",
            remedy="record the host with `wellfed capture FILE`, or with hwloc-gather-topology",
        )
    if listed and folders and listed - folders:
        facts.remark(
            "online without folder",
            f"CPUs {listed - folders} are online and have no folder under {FOLDER}: what they share is unknown",
        )
    present = facts.cpus(FOLDER, ("present",))
    offline = (folders if present is None else present) - online
    return Presence(online, offline, folders)


def read_cpus(facts: Facts, presence: Presence, node_of: Mapping[int, int]) -> tuple[Cpu, ...]:
    """Return every present CPU, by number."""
    online, shown = presence.online, presence.online & presence.shown
    core_of = _read_cores(facts, online, shown)
    package_of = _read_packages(facts, online, shown, core_of)
    firsts = CpuSet(core_of[cpu].first for cpu in shown)
    die_of = _read_dies(facts, firsts)
    cluster_of = _read_clusters(facts, shown)
    l3_of = _read_l3(facts, shown)
    kind_of = _read_kinds(facts, firsts, num_packages=len(set(package_of.values())))
    cpus = []
    for number in online | presence.offline:
        if number in presence.offline:
            cpus.append(Cpu(number, False))
            continue
        core = core_of[number]
        cpus.append(
            Cpu(
                number,
                True,
                node_of.get(number),
                package_of.get(number),
                die_of.get(core.first),
                core,
                cluster_of.get(number),
                l3_of.get(number),
                kind_of.get(core.first),
            )
        )
    return tuple(cpus)


def _online_by_folder(facts: Facts, folders: CpuSet) -> CpuSet:
    states = {number: facts.tree.read(f"{FOLDER}/cpu{number}/online") for number in folders}
    alive = CpuSet(
        number
        for number, state in states.items()
        if state == "1" or (state != "0" and facts.tree.list(f"{FOLDER}/cpu{number}/topology"))
    )
    unsaid = CpuSet(number for number, state in states.items() if state != "0") - alive
    running = _in_cpuinfo(facts) if unsaid else EMPTY
    if running:
        return alive | unsaid & running
    return alive or unsaid


def _in_cpuinfo(facts: Facts) -> CpuSet:
    """Return the CPUs that /proc/cpuinfo lists; it lists online CPUs only."""
    return CpuSet(_cpuinfo(facts))


def _cpuinfo(facts: Facts) -> dict[int, dict[str, str]]:
    """Return each processor's fields: ``processor : 3`` (most), ``processor 3: …`` (s390), ``CPU3: online`` (sparc)."""
    found: dict[int, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in (facts.tree.read("/proc/cpuinfo") or "").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        number = None
        if name == "processor":
            number = number_after("", value)
        elif name.startswith("processor "):
            number = number_after("processor ", name)
        elif value == "online":
            number = number_after("CPU", name)
        if number is None:
            fields[name] = value
        else:
            fields = found.setdefault(number, {})
    return found


def _read_cores(facts: Facts, online: CpuSet, shown: CpuSet) -> dict[int, CpuSet]:
    """Return each online CPU's core: itself and its online SMT siblings, 1 to 8 of them."""
    said = {}
    for cpu in shown:
        siblings = _shared_with(facts, cpu, f"{FOLDER}/cpu{cpu}/topology", CORE_FILES)
        if siblings is not None:
            said[cpu] = siblings
    if not said:
        said = _cores_of_cpuinfo(facts)
    unsaid = online - CpuSet(said)
    if unsaid:
        facts.remark(
            "unknown cores",
            f"SMT siblings of CPUs {unsaid} are not recorded: each counts as a core of its own",
        )
    found = _disjoint(facts, said, online, "SMT siblings")
    return {cpu: found.get(cpu) or CpuSet([cpu]) for cpu in online}


def _cores_of_cpuinfo(facts: Facts) -> dict[int, CpuSet]:
    """Group by ``physical id`` and ``core id``, which x86 prints."""
    masks: dict[tuple[str, str], int] = {}
    placed = {}
    for cpu, fields in _cpuinfo(facts).items():
        if "physical id" in fields and "core id" in fields:
            placed[cpu] = (fields["physical id"], fields["core id"])
            masks[placed[cpu]] = masks.get(placed[cpu], 0) | 1 << cpu
    return {cpu: CpuSet.of_mask(masks[core]) for cpu, core in placed.items()}


def _disjoint(
    facts: Facts, said: Mapping[int, CpuSet], online: CpuSet, what: str
) -> dict[int, CpuSet]:
    """Make groups of which each CPU is in one: where lists contradict each other, the lowest CPU's list holds."""
    group_of: dict[int, CpuSet] = {}
    taken = 0
    for cpu, listed in said.items():
        wanted = listed.mask & online.mask | 1 << cpu
        if cpu in group_of:
            agreed = wanted == group_of[cpu].mask
        else:
            agreed = not wanted & taken
            group = CpuSet.of_mask(wanted & ~taken)
            taken |= group.mask
            for member in group:
                group_of[member] = group
        if not agreed:
            facts.remark(
                f"contradicting {what}",
                f"CPU {cpu} lists {listed} as its {what}, which contradicts a CPU of a lower number: "
                f"taken as {group_of[cpu]}",
            )
    return group_of


def _read_packages(
    facts: Facts, online: CpuSet, shown: CpuSet, core_of: Mapping[int, CpuSet]
) -> dict[int, int]:
    """Return each online CPU's package; −1 (no package known to firmware) is left out, never 0."""
    found = {}
    for cpu in shown:
        package = read_int(facts.tree, f"{FOLDER}/cpu{cpu}/topology/physical_package_id")
        if package is not None and package >= 0:
            found[cpu] = package
    if not found:
        packages = {cpu: fields.get("physical id") for cpu, fields in _cpuinfo(facts).items()}
        found = {c: int(p) for c, p in packages.items() if c in online and p and p.isdecimal()}
    for first, core in core_of.items():
        if first == core.first and len({found.get(cpu) for cpu in core}) > 1:
            facts.remark(
                "core across packages",
                f"CPUs {core} are called one core and lie in different packages: both are taken as said",
            )
    _compare_packages(facts, found)
    return found


def _compare_packages(facts: Facts, package_of: Mapping[int, int]) -> None:
    """Say where a package's number and its list of CPUs contradict each other; the number is taken."""
    members: dict[int, int] = {}
    for cpu, package in package_of.items():
        members[package] = members.get(package, 0) | 1 << cpu
    for package, mask in members.items():
        cpus = CpuSet.of_mask(mask)
        listed = facts.cpus(f"{FOLDER}/cpu{cpus.first}/topology", PACKAGE_FILES)
        if listed is not None and listed & CpuSet(package_of) != cpus:
            facts.remark(
                "contradicting packages",
                f"CPUs {cpus} all give {package} as their package, CPU {cpus.first} lists {listed}: "
                f"the number is taken",
            )


def _read_dies(facts: Facts, firsts: CpuSet) -> dict[int, int]:
    """Return the die of each core's first CPU (since v5.3); −1 means that firmware names none."""
    found: dict[int, int] = {}
    for first in firsts:
        die = read_int(facts.tree, f"{FOLDER}/cpu{first}/topology/die_id")
        if die is None and not found:
            return {}
        if die is not None and die >= 0:
            found[first] = die
    return found


def _read_clusters(facts: Facts, online: CpuSet) -> dict[int, CpuSet]:
    """Return the CPUs that share an L2 or a tag directory with each (since v5.16), where firmware says."""
    said: dict[int, CpuSet] = {}
    covered = EMPTY
    for cpu in online:
        if cpu in covered:
            continue
        folder = f"{FOLDER}/cpu{cpu}/topology"
        cluster = _shared_with(facts, cpu, folder, CLUSTER_FILES)
        if not said and (
            cluster is None or read_int(facts.tree, f"{folder}/cluster_id") in NO_CLUSTER
        ):
            return {}
        if cluster is not None:
            said[cpu] = cluster
            covered |= cluster
    return _disjoint(facts, said, online, "cluster")


def _read_l3(facts: Facts, online: CpuSet) -> dict[int, CpuSet]:
    """Return the CPUs behind the same level-3 cache as each; CPUs without one are left out.

    The directory (index3 on nearly every machine) is looked for once, and again where it is another one.
    """
    said = {}
    known: set[tuple[str, int]] = set()
    without: set[tuple[str, ...]] = set()
    index: str | None = None
    for cpu in online:
        cache = f"{FOLDER}/cpu{cpu}/cache"
        shared = _shared_with(facts, cpu, f"{cache}/{index}", L3_FILES) if index else None
        if shared is None or (index, shared.mask) not in known:
            names = facts.tree.list(cache) or ()
            index = None if names in without else _l3_index(facts, cache, names)
            if index is None:
                without.add(names)
                continue
            shared = _shared_with(facts, cpu, f"{cache}/{index}", L3_FILES)
            if shared is not None:
                known.add((index, shared.mask))
        if shared is not None:
            said[cpu] = shared
    return _disjoint(facts, said, online, "level-3 cache")


def _l3_index(facts: Facts, cache: str, names: tuple[str, ...]) -> str | None:
    """Find the directory of the level-3 cache that holds data."""
    for name in reversed(names):
        if name.startswith("index") and facts.tree.read(f"{cache}/{name}/level") == "3":
            kind = facts.tree.read(f"{cache}/{name}/type")
            if kind != "Instruction":
                return name
    return None


def _shared_with(facts: Facts, cpu: int, folder: str, names: tuple[str, ...]) -> CpuSet | None:
    """Return the set of CPUs that one CPU shares something with, itself included.

    Some Itanium kernels write an empty mask, and a list may contradict the mask beside it: a set that lacks
    the CPU it is about is not used, and the next file asked.
    """
    for name in names:
        found = facts.cpus(folder, (name,))
        if found is not None and cpu in found:
            return found
        if found is not None:
            path = f"{folder}/{name}"
            facts.remark(
                f"without itself {names[0]}",
                f"{path} lacks CPU {cpu} itself (it names {found or 'none'}): not used",
            )
    return None


def _read_kinds(facts: Facts, firsts: CpuSet, *, num_packages: int) -> dict[int, str]:
    """Tell performance from efficiency cores on a hybrid machine, by each core's first CPU; empty elsewhere."""
    named = _kinds_by_pmu(facts, firsts)
    if named:
        return named
    capacity = _numbers(facts, firsts, "cpu_capacity")
    if capacity:
        return _kinds_by_strength(capacity)
    if num_packages > 1:
        return {}  # Hybrid x86 processors are sold for one socket only; servers save two reads a core.
    # highest_perf alone does not tell: AMD ranks equal cores by it ("preferred cores",
    # Documentation/admin-guide/pm/amd-pstate.rst). base_frequency alone neither: Intel's SST-BF raises it
    # for some of equal cores. Cores that differ in both are of two kinds.
    base = _numbers(facts, firsts, "cpufreq/base_frequency")
    if len(set(base.values())) < 2:
        return {}
    return _kinds_by_strength(_numbers(facts, firsts, "acpi_cppc/highest_perf"))


def _kinds_by_pmu(facts: Facts, firsts: CpuSet) -> dict[int, str]:
    """Ask the counters that Intel's hybrid processors have apart (arch/x86/events/intel/core.c, since v5.13)."""
    strong = facts.cpus("/sys/devices/cpu_core", ("cpus",))
    if not strong:
        return {}
    weak = union(
        facts.cpus(f"/sys/devices/{name}", ("cpus",)) or EMPTY
        for name in ("cpu_atom", "cpu_lowpower")
    )
    return {
        first: "performance" if first in strong else "efficiency"
        for first in firsts
        if weak and (first in strong or first in weak)
    }


def _kinds_by_strength(strength: Mapping[int, int]) -> dict[int, str]:
    """Cut at the middle, where the weakest core is below 80 % of the strongest.

    The scheduler lets a task stay where it fills less than 80 % of a CPU's capacity (fits_capacity in
    kernel/sched/fair.c): closer cores are interchangeable to it. A GB10 has 718 to 731 and 997 to 1024.
    """
    if not strength or min(strength.values()) * 1280 >= max(strength.values()) * 1024:
        return {}
    middle = (min(strength.values()) + max(strength.values())) / 2
    return {
        cpu: "performance" if value >= middle else "efficiency" for cpu, value in strength.items()
    }


def _numbers(facts: Facts, cpus: CpuSet, name: str) -> dict[int, int]:
    """Read one number of each CPU; none where any is missing or damaged."""
    found: dict[int, int] = {}
    for cpu in cpus:
        path = f"{FOLDER}/cpu{cpu}/{name}"
        number = read_int(facts.tree, path)
        if number is None or number <= 0:
            text = facts.tree.read(path)
            if found and isinstance(text, str):
                facts.remark(f"damaged {name}", f"{path} reads {shown(text)}: {name} is not used")
            return {}
        found[cpu] = number
    return found
