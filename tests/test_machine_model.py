"""Do the values of a machine keep their promises?"""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wellfed.model.cpuset import CpuSet, NodeSet
from wellfed.model.machine import Allowed, Cpu, Gpu, Machine, NumaNode, normal_pci_address
from wellfed.model.value import Value, as_dict, as_tuple, replace


def machine_of(*cpus: Cpu, nodes: tuple[NumaNode, ...] = (), gpus: tuple[Gpu, ...] = ()) -> Machine:
    """Make a machine of some parts."""
    allowed = Allowed(CpuSet(cpu.cpu for cpu in cpus if cpu.online), None)
    return Machine("a machine", cpus, nodes, allowed, gpus=gpus)


# ---- values -------------------------------------------------------------------------------------------------------


class Point(Value):
    """A value with a default."""

    x: int
    y: int = 0


class Spot(Point):
    """A value that adds a field."""

    name: str = "here"


def test_values_are_made_by_position_and_by_name():
    """As a dataclass would, inherited fields first."""
    assert as_tuple(Spot(1, 2, "there")) == (1, 2, "there")
    assert as_dict(Spot(x=1)) == {"x": 1, "y": 0, "name": "here"}
    assert replace(Point(1), y=5) == Point(1, 5)
    assert repr(Point(1)) == "Point(x=1, y=0)"


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((), {}, "needs the field 'x'"),
        ((1, 2, 3), {}, "takes 2 fields"),
        ((1,), {"x": 1}, "twice"),
        ((1,), {"z": 1}, "'z'"),
    ],
)
def test_values_refuse_what_does_not_fit(arguments, named, message):
    """A field too few, too many, twice or unknown."""
    with pytest.raises(TypeError, match=message):
        Point(*arguments, **named)


def test_values_never_change():
    """Neither set nor deleted; equal by type and fields; usable as keys; copied and pickled by the constructor."""
    point = Point(1, 2)

    with pytest.raises(AttributeError):
        point.x = 2
    with pytest.raises(AttributeError):
        del point.x
    assert point != Spot(1, 2)
    assert point != (1, 2)
    assert len({point, Point(1, 2), Spot(1, 2)}) == 2
    cpu = Cpu(3, core=CpuSet([3]))
    assert copy.deepcopy(cpu) == cpu == pickle.loads(pickle.dumps(cpu))


# ---- machines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (NumaNode(0, CpuSet([0]), 1), "cpu+memory"),
        (NumaNode(0, CpuSet([0]), 0), "cpu-only"),
        (NumaNode(0, CpuSet(), 1), "memory-only"),
        (NumaNode(0, CpuSet(), 0), "empty"),
        (NumaNode(0, CpuSet(), 1, hbm_of="0000:01:00.0"), "gpu-memory"),
        (NumaNode(0, CpuSet([0])), "cpu+unknown-memory"),
        (NumaNode(0), "unknown-memory"),
    ],
)
def test_kinds_of_nodes(node, kind):
    """Unknown memory is neither none nor some."""
    assert node.kind == kind


def test_distances_go_by_node_number():
    """The distance to a node that is not recorded is unknown."""
    node = NumaNode(8, distances=((0, 40), (8, 10), (250, 80)))

    assert node.distance_to(250) == 80
    assert node.distance_to(1) is None


def test_a_machine_tells_nodes_for_threads_from_nodes_for_pages():
    """CPU nodes have an online CPU; memory nodes have memory and are no GPU's own."""
    machine = machine_of(
        Cpu(0),
        Cpu(4),
        Cpu(5, online=False),
        nodes=(
            NumaNode(0, CpuSet([0]), 1 << 30),
            NumaNode(2, CpuSet([4]), 0),
            NumaNode(4, CpuSet(), 1 << 30),
            NumaNode(250, CpuSet(), 1 << 30, hbm_of="0004:05:00.0"),
        ),
    )

    assert machine.cpu_nodes == NodeSet([0, 2])
    assert machine.memory_nodes == NodeSet([0, 4])
    assert machine.online == CpuSet([0, 4])
    assert machine.offline == CpuSet([5])
    assert machine.cpus_of([2, 250, 7]) == CpuSet([4])
    assert machine.node(1) is None
    assert machine.node(250).kind == "gpu-memory"
    assert machine.cpu(4).cpu == 4
    assert machine.cpu(1) is None


def test_gpus_are_found_by_index_and_by_address():
    """And are None where there is none."""
    gpu = Gpu(1, "0000:41:00.0")
    machine = machine_of(Cpu(0), gpus=(Gpu(0, "0000:01:00.0"), gpu))

    assert machine.gpu(1) == machine.gpu_at("0000:41:00.0") == gpu
    assert machine.gpu(2) is None
    assert machine.gpu_at("0000:42:00.0") is None


@settings(deadline=None)
@given(st.lists(st.integers(1, 8), max_size=20), st.sets(st.integers(0, 100)))
def test_cores_cut_a_set_into_disjoint_parts(sizes, wanted):
    """Whole cores where the set has them whole, else the part of each that is in it; nothing is lost or doubled."""
    cores, first = [], 0
    for size in sizes:
        cores.append(CpuSet(range(first, first + size)))
        first += size
    machine = machine_of(*(Cpu(cpu, core=core) for core in cores for cpu in core))
    asked = CpuSet(wanted)

    found = machine.cores(asked)

    assert sum(map(len, found)) == len(asked & machine.online)
    assert all(part == core & asked for part in found for core in cores if core & part)
    assert [part.first for part in found] == sorted(part.first for part in found)


# ---- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("3B:00", "0000:3b:00.0"),
        ("0009:01:00.0\n", "0009:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("12345678:01:00.0", "12345678:01:00.0"),
        ("0:1f:00.0", "0000:1f:00.0"),
    ],
)
def test_addresses_are_written_as_sysfs_does(text, address):
    """NVML writes domains with 8 digits, people with none."""
    assert normal_pci_address(text) == address


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_a_normal_address_stays_as_it_is(domain, bus, device, function):
    """Normalising twice changes nothing, and drivers' spelling is the same address."""
    sysfs = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"

    assert normal_pci_address(sysfs) == sysfs
    assert normal_pci_address(f"{domain:08X}:{bus:02X}:{device:02X}.{function}") == sysfs
