"""Which machines, jobs and wishes can there be? For properties that must hold on all of them."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.machines import GIB, gpu, machine
from wellfed.model.cpuset import CpuSet
from wellfed.model.job import Job
from wellfed.model.machine import Gpu, Machine
from wellfed.model.placement import MEMORY_MODES, ROLES, Wishes
from wellfed.model.value import replace


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Nodes with sparse numbers, without CPUs or memory, GPU memory; 1 to 8 threads a core; holes, cpusets, lost GPUs."""
    threads = draw(st.sampled_from([1, 1, 2, 2, 4, 8]))
    numbers = draw(st.lists(st.integers(0, 40), min_size=1, max_size=5, unique=True))
    core_counts = draw(st.lists(st.integers(0, 6), min_size=len(numbers), max_size=len(numbers)))
    if not any(core_counts):
        core_counts[0] = draw(st.integers(1, 6))
    start = draw(st.sampled_from([0, 0, 1, 4]))
    strided = draw(st.booleans())
    total = sum(core_counts)
    cores = [
        CpuSet(
            start + (core + thread * total if strided else core * threads + thread)
            for thread in range(threads)
        )
        for core in range(total)
    ]
    nodes, l3, clusters, packages, at = {}, [], [], {}, 0
    per_l3 = draw(st.sampled_from([None, 1, 2, 3, 100]))
    per_cluster = draw(st.sampled_from([None, 2]))
    for position, (number, count) in enumerate(zip(numbers, core_counts, strict=True)):
        mine = cores[at : at + count]
        nodes[number] = _join(mine)
        l3 += _chunks(mine, per_l3)
        clusters += _chunks(mine, per_cluster)
        packages[position // 2] = ",".join(
            filter(None, [packages.get(position // 2, ""), nodes[number]])
        )
        at += count
    every = CpuSet(cpu for core in cores for cpu in core)
    offline = draw(_subsets(every, full=False))
    online = every - offline
    with_cpus = [n for n in numbers if CpuSet.parse(nodes[n]) & online]
    gpus = [
        gpu(
            index,
            draw(st.sampled_from([None, *with_cpus, *with_cpus])),
            local_cpus=draw(st.one_of(st.none(), _subsets(every))),
        )
        for index in range(draw(st.integers(0, 8)))
    ]
    sizes = {n: draw(st.sampled_from([0, 0, 8 * GIB, 64 * GIB, 64 * GIB])) for n in numbers}
    mems = draw(st.one_of(st.none(), _subsets(CpuSet(numbers), empty=False)))
    host = machine(
        nodes,
        cores=[str(core) for core in cores],
        l3=l3,
        clusters=clusters,
        packages=packages if draw(st.booleans()) else None,
        memory=sizes,
        distances=draw(_distances(sorted(numbers))),
        offline=str(offline),
        allowed=str(draw(_subsets(online, empty=False))),
        mems=None if mems is None else str(mems),
        quota=draw(st.sampled_from([None, None, 0.5, 3.0, 16.0])),
        gpus=gpus,
    )
    if draw(st.integers(0, 9)) == 0:
        # As an old driver's matrix describes a host: local CPUs, and no node at all.
        nowhere = tuple(replace(each, cpu_node=None) for each in host.gpus)
        cpus = tuple(replace(each, node=None) for each in host.cpus)
        return replace(host, nodes=(), gpus=nowhere, cpus=cpus)
    return draw(_with_gpu_memory(host))


def jobs() -> st.SearchStrategy[Job | None]:
    """No job, or up to eight ranks on this host."""
    return st.one_of(
        st.none(),
        st.builds(
            lambda n, who: Job(n, launcher=who),
            st.integers(1, 8),
            st.sampled_from(["torchrun", "slurm"]),
        ),
    )


def wishes(policies: tuple[str, ...]) -> st.SearchStrategy[Wishes]:
    """Policies, SMT modes, reserves, roles and CPUs taken by other jobs."""
    return st.builds(
        Wishes,
        policy=st.sampled_from(policies),
        smt=st.sampled_from(["on", "on", "off", "first"]),
        memory=st.sampled_from([mode for mode in MEMORY_MODES if mode != "bind"]),
        reserve=st.sets(st.integers(0, 60), max_size=3).map(CpuSet),
        reserve_cores_per_node=st.sampled_from([0, 0, 0, 1, 2]),
        roles=st.one_of(
            st.just(()),
            st.lists(
                st.tuples(st.sampled_from(ROLES), st.integers(0, 2)),
                max_size=3,
                unique_by=lambda r: r[0],
            ).map(tuple),
        ),
        taken=st.sets(st.integers(0, 60), max_size=6).map(CpuSet),
    )


@st.composite
def _subsets(draw: st.DrawFn, whole: CpuSet, *, empty: bool = True, full: bool = True) -> CpuSet:
    """Often nothing or all, else any part."""
    choices = [CpuSet()] * empty + [whole] * full
    if choices and draw(st.booleans()):
        return draw(st.sampled_from(choices))
    members = list(whole)
    lowest = 0 if empty else 1
    highest = len(members) if full else len(members) - 1
    if highest < lowest:
        return CpuSet()
    return CpuSet(draw(st.sets(st.sampled_from(members), min_size=lowest, max_size=highest)))


@st.composite
def _distances(draw: st.DrawFn, numbers: list[int]) -> dict[int, list[int]] | None:
    if draw(st.booleans()):
        return draw(st.sampled_from([None, {}]))
    far = st.sampled_from([11, 12, 20, 32, 80])
    return {here: [10 if here == there else draw(far) for there in numbers] for here in numbers}


@st.composite
def _with_gpu_memory(draw: st.DrawFn, host: Machine) -> Machine:
    """Make some memory-only nodes the memory of GPUs."""
    free: list[Gpu] = list(host.gpus)
    nodes, owners = [], {}
    for node in host.nodes:
        if free and not node.cpus and node.memory_bytes and draw(st.booleans()):
            owners[free[0].pci_address] = node.node
            node = replace(node, hbm_of=free.pop(0).pci_address)
        nodes.append(node)
    gpus = tuple(replace(each, hbm_node=owners.get(each.pci_address)) for each in host.gpus)
    return replace(host, nodes=tuple(nodes), gpus=gpus)


def _chunks(cores: list[CpuSet], size: int | None) -> list[str]:
    if size is None:
        return []
    return [_join(cores[at : at + size]) for at in range(0, len(cores), size)]


def _join(cores: list[CpuSet]) -> str:
    return ",".join(str(core) for core in cores)
