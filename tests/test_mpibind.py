"""Does our placement give the mappings that mpibind gives on its own machines, and where not, why?

mpibind (LLNL) records, for many machines, which CPUs, threads and GPUs each of n tasks gets. Every recorded case is
asked of our planner. Where both mean the same, the mapping is equal. Where they differ by design, the case falls under
one of the reasons below, and the law that still holds is asserted. None is left out.
"""

from __future__ import annotations

import json

import pytest

from tests.corpus import ROOT, cases
from wellfed.host.sources._room import read_source
from wellfed.model.cpuset import CpuSet, union
from wellfed.model.errors import GpuError, PlacementError
from wellfed.model.job import Job, VisibleDevices
from wellfed.model.machine import Allowed, Machine
from wellfed.model.placement import Placement, Wishes
from wellfed.model.value import Value, replace
from wellfed.placement.choose import choose_gpus
from wellfed.placement.locate import locate
from wellfed.placement.plan import plan
from wellfed.placement.visible import main_vendor, visible_devices

EQUAL = "equal"
SOME_THREADS_OF_A_CORE = (
    "mpibind can use 2 or 3 of a core's 4 threads; ours are one thread a core or all of them, because a thread that "
    "stays free is taken by whatever the operating system runs"
)
LESS_THAN_A_CORE = (
    "mpibind gives ranks single threads of one core, or the same one; exclusive never splits a core and refuses, "
    "and ranks that shall share anyway share under the policy node"
)
REASONS = (EQUAL, SOME_THREADS_OF_A_CORE, LESS_THAN_A_CORE)


class Case(Value):
    """One recorded mapping."""

    number: int
    title: str
    parameters: dict[str, int | str | None]
    threads: tuple[int, ...]
    cpus: tuple[CpuSet, ...]
    gpus: tuple[CpuSet, ...]


def topology_of(expected) -> str | None:
    """Find the machine of an answer file: ``expected.NAME`` or ``expected.NAME.v1`` beside ``NAME*.xml``."""
    name = expected.name.removeprefix("expected.")
    wanted = f"{name.removesuffix('.v1')}-hwloc1" if name.endswith(".v1") else name
    found = sorted(expected.parent.glob(f"{wanted}*.xml"), key=lambda path: len(path.name))
    kept = [path for path in found if wanted.endswith("-hwloc1") or "-hwloc1" not in path.name]
    return str(kept[0]) if kept else None


def parse(expected) -> list[Case]:
    """Read an answer file; the older form has no parameters and numbers the same cases, so takes them from the newer."""
    newer = expected.with_name(expected.name.removesuffix(".v1"))
    known = (
        {}
        if newer == expected or not newer.exists()
        else {c.number: c.parameters for c in parse(newer)}
    )
    found: list[Case] = []
    number, parameters, body = 0, None, []
    for line in [*expected.read_text().splitlines(), "# end"]:
        if not line.startswith("#"):
            body += [line.strip()] if line.strip() else []
            continue
        if len(body) == 4:
            title, *rows = body
            threads, cpus, gpus = (row.strip('"').split(";") for row in rows)
            found.append(
                Case(
                    number,
                    title,
                    parameters or known[number],
                    tuple(map(int, threads)),
                    tuple(map(CpuSet.parse, cpus)),
                    tuple(map(CpuSet.parse, gpus)),
                )
            )
            body, parameters = [], None
        text = line.removeprefix("#").strip()
        if text.startswith("{"):
            parameters = json.loads(text)["params"]
        elif text.partition(":")[0].isdigit():
            number = int(text.partition(":")[0])
    return found


def every_case() -> list[object]:
    """Give every case of every answer file as a parameter, at collection time."""
    found = []
    for given in cases("topology/mpibind/expected.*"):
        path = given.values[0]
        if path is None:
            return [pytest.param(None, None, marks=given.marks)]
        topology = topology_of(path)
        for case in parse(path) if topology else ():
            found.append(
                pytest.param(
                    topology, case, id=f"{path.name}-{case.number}", marks=pytest.mark.corpus
                )
            )
    return found


def restricted(machine: Machine, case: Case) -> Machine:
    """Narrow what is allowed as the case asks: to CPUs (type 0) or to the CPUs of nodes (type 1)."""
    said = case.parameters.get("restr_set")
    if said is None:
        return machine
    wanted = CpuSet.parse(str(said))
    if case.parameters["restrict_type"] == 1:
        wanted = machine.cpus_of(wanted)
    return replace(machine, allowed=Allowed(machine.allowed.cpus & wanted, machine.allowed.mems))


def visible_to(machine: Machine) -> VisibleDevices:
    """Show every device; each partition of an AMD GPU is one, as in mpibind's count."""
    return visible_devices(machine, {}, main_vendor(machine))


def threads_a_core(machine: Machine, case: Case) -> set[int]:
    return {len(core) for cpus in case.cpus for core in machine.cores(cpus)}


def reason(machine: Machine, case: Case) -> str:
    """Say whether a case means the same to us, or why not."""
    cores = machine.cores(machine.allowed.cpus)
    if len(case.cpus) > len(cores) or any(
        a & b for a, b in zip(case.cpus, case.cpus[1:], strict=False)
    ):
        return LESS_THAN_A_CORE
    if threads_a_core(machine, case) <= {1, max(map(len, cores))}:
        return EQUAL
    return SOME_THREADS_OF_A_CORE


def ours(machine: Machine, case: Case, *, policy: str) -> Placement:
    """Ask for the same: as many ranks, the GPUs that mpibind gave each task first, as many threads a core."""
    visible = visible_to(machine)
    alone = len(case.cpus) == 1 and len(case.gpus[0]) > 1
    if not alone:
        chosen = tuple(visible.gpus[task.first] for task in case.gpus if task)
        visible = replace(visible, gpus=chosen or visible.gpus, mig_uuids=())
    smt = "off" if threads_a_core(machine, case) == {1} else "on"
    job = None if alone else Job(len(case.cpus))
    return plan(machine, job, visible, Wishes(policy=policy, smt=smt))


def nodes_of_gpus(machine: Machine, case: Case) -> list[set[int | None]]:
    devices = visible_to(machine).gpus
    return [{machine.gpu_at(devices[index]).cpu_node for index in task} for task in case.gpus]


@pytest.mark.parametrize(("topology", "case"), every_case())
def test_each_mapping_is_ours_or_differs_for_a_reason(topology, case):
    """CPUs, cores, threads and GPU locality of each task are mpibind's, or what still holds is shown."""
    machine = restricted(locate(read_source(topology)), case)

    why = reason(machine, case)

    assert why in REASONS
    if why == LESS_THAN_A_CORE:
        check_that_only_sharing_is_offered(machine, case)
        return
    policy = "node" if len(case.cpus) == 1 and len(case.gpus[0]) > 1 else "exclusive"
    ranks = ours(machine, case, policy=policy).ranks
    if why == EQUAL:
        assert [rank.cpus for rank in ranks] == list(case.cpus)
    else:
        assert all(theirs < rank.cpus for rank, theirs in zip(ranks, case.cpus, strict=True))
        assert [
            machine.cores(rank.cpus & theirs) for rank, theirs in zip(ranks, case.cpus, strict=True)
        ] == [machine.cores(theirs) for theirs in case.cpus]
    # Both count threads; ours for OpenMP are one a core, mpibind's one a CPU where it uses all threads of a core.
    assert [rank.num_cores for rank in ranks] == [
        len(machine.cores(theirs)) for theirs in case.cpus
    ]
    assert [rank.num_threads for rank in ranks] == [rank.num_cores for rank in ranks]
    assert list(case.threads) == [len(theirs) for theirs in case.cpus]
    check_gpus(machine, case, ranks)


def check_that_only_sharing_is_offered(machine: Machine, case: Case) -> None:
    """Whole cores do not suffice and exclusive says so; sharing puts every rank on the CPUs that mpibind uses."""
    if len(case.cpus) > len(machine.cores(machine.allowed.cpus)):
        with pytest.raises(PlacementError, match="free whole cores"):
            ours(machine, case, policy="exclusive")
    ranks = ours(
        machine, replace(case, cpus=tuple(union(case.cpus) for _ in case.cpus)), policy="node"
    ).ranks
    # Without a GPU to be beside, sharing means the mask that the ranks inherit.
    assert {rank.cpus or machine.allowed.cpus for rank in ranks} == {union(case.cpus)}


def check_gpus(machine: Machine, case: Case, ranks) -> None:
    """Every rank's GPUs are among mpibind's, and lie where all of mpibind's for that task lie."""
    devices = visible_to(machine).gpus
    for rank, theirs, nodes in zip(ranks, case.gpus, nodes_of_gpus(machine, case), strict=True):
        found = [machine.gpu_at(address) for address in rank.gpus]
        assert set(rank.gpus) <= {devices[index] for index in theirs}
        assert {gpu.cpu_node for gpu in found} <= nodes
        assert rank.local is (True if theirs else None)
        own = {devices[index] for index in theirs}
        assert len(found) == (len(own) if len(ranks) == 1 else min(1, len(own)))


@pytest.mark.parametrize(("topology", "case"), every_case())
def test_gpus_that_we_choose_lie_where_mpibinds_do(topology, case):
    """Where a job has fewer ranks than there are GPUs, ours are taken from the same nodes as mpibind's."""
    machine = restricted(locate(read_source(topology)), case)
    num_tasks, theirs = len(case.cpus), nodes_of_gpus(machine, case)
    if num_tasks > len(machine.gpus):
        with pytest.raises(GpuError):
            choose_gpus(machine, visible_to(machine), num_tasks)
        return

    chosen = choose_gpus(machine, visible_to(machine), num_tasks)

    nodes = [machine.gpu(index).cpu_node for index in chosen]
    assert len(set(chosen)) == num_tasks
    if len(union(case.gpus)) < num_tasks:
        # mpibind lets tasks share a GPU while others idle; ours have one each, and reach further for it.
        assert set().union(*theirs) <= set(nodes)
    else:
        assert set(nodes) <= set().union(*theirs)
        assert num_tasks == 1 or sorted(nodes) == sorted(n for each in theirs for n in each)


@pytest.mark.corpus
def test_no_recorded_case_is_left_out():
    """Every numbered case of every answer file with a topology is asked above."""
    if ROOT is None:
        pytest.skip("WELLFED_CORPUS is not set: it names the folder of recorded hosts")
    files = [path for path in sorted(ROOT.glob("topology/mpibind/expected.*")) if topology_of(path)]

    assert files
    for path in files:
        numbered = [
            line
            for line in path.read_text().splitlines()
            if line.startswith("# ") and line[2:3].isdigit()
        ]
        counted = [
            line
            for line in numbered
            if line.partition(":")[1] and line[2:].partition(":")[0].isdigit()
        ]
        assert [case.number for case in parse(path)] == [
            int(line[2:].partition(":")[0]) for line in counted
        ]


@pytest.mark.parametrize("path", cases("topology/mpibind/*.xml"))
def test_every_gpu_of_every_machine_gets_cores_of_its_own_node(path):
    """One rank a GPU: disjoint, whole cores inside what is allowed, all of them on the GPU's node."""
    machine = locate(read_source(str(path)))
    if not machine.gpus:
        assert not any(pci.vendor == "10de" for pci in machine.pci)
        return

    ranks = plan(
        machine, Job(len(machine.gpus)), visible_to(machine), Wishes(policy="exclusive")
    ).ranks

    for rank, gpu in zip(ranks, machine.gpus, strict=True):
        assert rank.gpus == (gpu.pci_address,)
        assert rank.cpus <= machine.node(gpu.cpu_node).cpus & machine.allowed.cpus
        assert machine.cores(rank.cpus) == tuple(
            machine.cpu(core.first).core for core in machine.cores(rank.cpus)
        )
    assert sum(len(rank.cpus) for rank in ranks) == len(union(rank.cpus for rank in ranks))
