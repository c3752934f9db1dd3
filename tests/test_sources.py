"""What do other tools' descriptions of a host say, and what do they leave open?"""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus import ROOT, cases
from wellfed.host.sources import _base, _room, topo_m
from wellfed.host.sources._room import read_source, sources
from wellfed.model.cpuset import CpuSet
from wellfed.model.errors import MalformedTextError, PlacementError, RecordingError, WellfedError
from wellfed.model.job import Job, VisibleDevices
from wellfed.model.placement import Wishes
from wellfed.placement.locate import locate
from wellfed.placement.plan import plan
from wellfed.placement.visible import visible_devices


@pytest.fixture
def machine_of(tmp_path):
    """Read a text as the machine that a person gives with --host."""

    def read(text: str):
        path = tmp_path / "described"
        path.write_text(text, encoding="utf-8")
        return locate(read_source(str(path)))

    return read


def homes(machine) -> dict[int, tuple[int | None, str]]:
    """Give each GPU's node and that node's CPUs."""
    found = {}
    for gpu in machine.gpus:
        node = None if gpu.cpu_node is None else machine.node(gpu.cpu_node)
        found[gpu.index] = (gpu.cpu_node, str(node.cpus) if node else "")
    return found


# --- every recording of the corpus ---------------------------------------------------------------------------


def answers(kind: str) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads((ROOT / "topology/ANSWERS.json").read_text())[
        kind
    ]
    return found


@pytest.mark.parametrize("path", cases("topology/topo-m/*.txt"))
def test_topo_m_answers(path):
    """Each GPU of every recorded matrix is on the node, and beside the CPUs, that a person read off it."""
    machine = locate(read_source(str(path)))
    known = answers("topo-m").get(path.name)
    if known is None:
        pytest.skip("ANSWERS.json has no answer for this text")

    found = homes(machine)
    for span, answer in known.items():
        if span == "note":
            continue
        for index in CpuSet.parse(span):
            gpu = machine.gpu(index)
            assert (gpu.cpu_node, gpu.hbm_node) == (answer.get("cpu_node"), answer.get("hbm_node"))
            assert found[index][1] == answer["cpus"] or str(gpu.local_cpus) == answer["cpus"]


@pytest.mark.parametrize("path", cases("topology/nccl/*.xml"))
def test_nccl_answers(path):
    """Every recorded NCCL topology gives each node's CPUs, GPUs, NICs and number of PCI functions."""
    machine = locate(read_source(str(path)))
    known = answers("nccl").get(path.name)
    if known is None:
        pytest.skip("ANSWERS.json has no answer for this file")

    assert {str(node.node) for node in machine.nodes} == set(known)
    for number, answer in known.items():
        node = machine.node(int(number))
        assert (str(node.cpus) if node.cpus_recorded else None) == answer["cpus"]
        gpus = [gpu.pci_address for gpu in machine.gpus if gpu.cpu_node == node.node]
        nics = [nic.pci_address for nic in machine.nics if nic.cpu_node == node.node]
        assert (gpus, sorted(nics)) == (sorted(answer["gpus"]), sorted(answer["nics"]))
        assert sum(pci.numa_node == node.node for pci in machine.pci) == answer["npci"]


@pytest.mark.parametrize("path", [*cases("topology/hwloc/*.xml"), *cases("topology/mpibind/*.xml")])
def test_every_hwloc_topology_is_whole(path):
    """In every hwloc topology each CPU is on one node that lists it, in one core, and every GPU is located."""
    machine = locate(read_source(str(path)))

    for cpu in machine.cpus:
        assert cpu.cpu in cpu.core <= machine.online
        assert cpu.cpu in machine.node(cpu.node).cpus
    assert sum(len(node.cpus) for node in machine.nodes) == len(machine.online)
    assert all(gpu.cpu_node in machine.cpu_nodes for gpu in machine.gpus)
    assert all(
        e.source.startswith("hwloc") or e.cpu_node is not None
        for g in machine.gpus
        for e in g.evidence
    )


@pytest.mark.parametrize("path", cases("topology/hwloc/*.xml"))
def test_hwloc_agrees_with_our_own_reading_of_the_same_host(path):
    """Where hwloc's XML and the files it was made from are both recorded, CPUs, cores, caches and nodes are equal."""
    from wellfed.host.archive import open_recording
    from wellfed.host.topology import read_machine

    lines = path.with_suffix(".test").read_text().splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("source")]
    tree = path.parent / (named[0] if named else path.with_suffix(".tar.bz2").name)
    if not tree.exists():
        pytest.skip("its files are not in the corpus")

    ours, theirs = locate(read_machine(open_recording(str(tree)))), locate(read_source(str(path)))

    assert [(n.node, n.cpus, n.memory_bytes) for n in theirs.nodes] == [
        (n.node, n.cpus, n.memory_bytes) for n in ours.nodes
    ]
    told = lambda m: {c.cpu: (c.node, c.package, c.core, c.l3, c.kind) for c in m.cpus if c.online}  # noqa: E731
    assert told(theirs) == told(ours)
    assert theirs.allowed.cpus == ours.allowed.cpus
    assert [n.pci_address for n in theirs.nics] == [n.pci_address for n in ours.nics]


# --- nvidia-smi topo -m --------------------------------------------------------------------------------------

TWO_SOCKETS = (
    "\t\x1b[4mGPU0\tGPU1\tmlx5_0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tSYS\tPIX\tSYS\t0-7,16-23\t0\t\tN/A\n"
    "GPU1\tSYS\t X \tSYS\tNODE\t8-15,24-31\t1\t\tN/A\n"
    "mlx5_0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tNODE\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC1: mlx5_bond_0\n"
)
EMPTY_CELLS = (
    "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV12\tSYS\t4-9\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\t4-9\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \t\t1\t\tN/A\n"
)
BOTH_SOCKETS = {0: (0, "0-7,16-23"), 1: (1, "8-15,24-31")}
SHAPES = {
    "as printed": lambda text: text,
    "tabs expanded": lambda text: text.expandtabs(8),
    "white space collapsed": lambda text: "\n".join(" ".join(x.split()) for x in text.splitlines()),
    "escape characters lost": lambda text: text.replace("\x1b", ""),
    "quoted in a mail": lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
    "indented": lambda text: "".join(f"    {line}\n" for line in text.expandtabs(8).splitlines()),
    "after a prompt": lambda text: f"[me@node ~]$ nvidia-smi topo -m\n{text}[me@node ~]$ exit\n",
    "in Windows lines": lambda text: text.replace("\n", "\r\n"),
    "from pdsh": lambda text: "".join(f"n07: {line}\n" for line in text.splitlines()),
    "header stripped": lambda text: text.replace("\t\x1b[4m", "\x1b[4m", 1).expandtabs(8),
    "blank lines between": lambda text: text.replace("\n", "\n\n"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_reads_the_same_however_it_was_pasted(machine_of, shape):
    """Tabs, spaces, colours, prompts and quotes around a matrix change nothing in what it says."""
    machine = machine_of(SHAPES[shape](TWO_SOCKETS))

    assert homes(machine) == BOTH_SOCKETS


@pytest.mark.parametrize("shape", SHAPES)
def test_an_empty_cell_moves_no_column(machine_of, shape):
    """A GPU whose CPUs are outside the cpuset keeps its node, and its node gets no CPUs from elsewhere."""
    machine = machine_of(SHAPES[shape](EMPTY_CELLS))

    assert homes(machine) == {0: (0, "4-9"), 1: (0, "4-9"), 2: (1, "")}
    assert machine.allowed.cpus == CpuSet.parse("4-9")
    assert any("no local CPU is in the cpuset" in note for note in machine.notes)


@pytest.mark.parametrize("width", [24, 40, 64])
def test_a_matrix_that_was_wrapped_at_a_blank_is_joined(machine_of, width):
    """Lines broken between cells belong to the row above."""
    import textwrap

    broken = "\n".join(
        "\n".join(textwrap.wrap(line, width, drop_whitespace=False, expand_tabs=False) or [""])
        for line in SHAPES["white space collapsed"](TWO_SOCKETS).splitlines()
    )

    assert homes(machine_of(broken)) == BOTH_SOCKETS


def test_links_glued_by_a_wrapped_terminal_are_cut(machine_of):
    """A line break that swallowed the blank between two links leaves both links readable."""
    machine = machine_of(
        "        GPU0    GPU1    CPU Affinity    NUMA Affinity\n"
        "GPU0     XSYS     0-7      0\n"
        "GPU1    NV18X      8-15     1\n"
    )

    assert homes(machine) == {0: (0, "0-7"), 1: (1, "8-15")}


def test_nics_stand_beside_the_gpus_they_reach_inside_a_node(machine_of):
    """A NIC is on the node of the GPUs that it reaches without crossing sockets, under the legend's name."""
    machine = machine_of(TWO_SOCKETS)

    assert [(nic.rdma_devices, nic.cpu_node) for nic in machine.nics] == [
        (("mlx5_0",), 0),
        (("mlx5_bond_0",), 1),
    ]


def test_grace_nodes_of_gpu_memory_are_no_cpu_nodes(machine_of):
    """Of CPU node, GPU memory and empty nodes kept for MIG, a GPU's CPUs are on the first, its memory on its own."""
    machine = machine_of(
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV18\t0-31\t0,3-5\t\t2\n"
        "GPU1\tNV18\t X \t32-63\t1,7-9\t\t6\n"
    )

    assert homes(machine) == {0: (0, "0-31"), 1: (1, "32-63")}
    assert {gpu.index: gpu.hbm_node for gpu in machine.gpus} == {0: 2, 1: 6}
    assert machine.cpu_nodes == CpuSet([0, 1])
    assert (machine.node(2).kind, machine.node(6).kind) == ("gpu-memory", "gpu-memory")


@pytest.mark.parametrize(
    ("rows", "nodes"),
    [
        pytest.param([("0-71", "0,2-8", "1")], [0], id="one Grace Hopper"),
        pytest.param([("0-35", "0,2-9", "N/A"), ("36-71", "1,10-17", "N/A")], [0, 1], id="memory hidden"),
        pytest.param([("0-31", "0,4-9", "4"), ("32-63", "1,4-9", "5")], [0, 1], id="shared empty nodes"),
        pytest.param([("8-87", "0", "255"), ("96-175", "8", "254")], [0, 8], id="POWER9"),
        pytest.param([("0-63", "0-1", "N/A"), ("0-63", "0-1", "N/A")], [None, None], id="no locality"),
        pytest.param([("0-31", "0-1", "N/A"), ("32-63", "2-3", "N/A")], [None, None], id="two nodes a socket"),
        pytest.param([("0-143", "0-1,4-9", "2"), ("0-143", "0-1,4-9", "3")], [None, None], id="Grace, none"),
        pytest.param([("0-15", "N/A", "N/A")], [None], id="not available"),
        pytest.param([("16-31", "3", "N/A"), ("0-15", "1", "N/A")], [3, 1], id="index order is not node order"),
    ],
)  # fmt: skip
def test_a_list_of_nodes_is_decided_only_where_the_kernels_numbering_decides_it(
    machine_of, rows, nodes
):
    """Several nodes beside a GPU give its CPU node by the kernel's numbering, or nothing, never simply the first."""
    names = [f"GPU{index}" for index in range(len(rows))]
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for index, (cpus, affinity, own) in enumerate(rows):
        links = [" X " if other == index else "SYS" for other in range(len(rows))]
        lines.append("\t".join([names[index], *links, cpus, affinity, "", own]))

    machine = machine_of("\n".join(lines))

    assert [gpu.cpu_node for gpu in machine.gpus] == nodes


def test_a_driver_without_numa_columns_leaves_node_numbers_unknown(machine_of):
    """Old drivers print CPUs only: those are kept, and no node number is made up."""
    machine = machine_of(
        "        GPU0    GPU1    mlx4_0  CPU Affinity\n"
        "GPU0     X      PHB     SOC     0-11,24-35\n"
        "GPU1    PHB      X      SOC     12-23,36-47\n"
        "mlx4_0  SOC     SOC      X \n"
    )

    assert [(g.cpu_node, str(g.local_cpus)) for g in machine.gpus] == [
        (None, "0-11,24-35"),
        (None, "12-23,36-47"),
    ]
    assert machine.online == CpuSet.parse("0-47")
    assert not machine.nodes
    assert any("no NUMA Affinity" in note for note in machine.notes)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("node", ["0-11,24-35", "0-11,24-35", "12-23,36-47"]),
        ("exclusive", ["0-11", "24-35", "12-23,36-47"]),
    ],
)
def test_cpus_that_are_called_local_are_enough_for_a_plan(machine_of, policy, expected):
    """Without node numbers each rank goes by its GPU's CPU Affinity, and its notes say so."""
    machine = machine_of(
        "        GPU0    GPU1    GPU2    CPU Affinity\n"
        "GPU0     X      PHB     SOC     0-11,24-35\n"
        "GPU1    PHB      X      SOC     0-11,24-35\n"
        "GPU2    SOC     SOC      X      12-23,36-47\n"
    )
    visible = VisibleDevices(None, ("gpu0", "gpu1", "gpu2"))

    ranks = plan(machine, Job(3), visible, Wishes(policy=policy)).ranks

    assert [str(rank.cpus) for rank in ranks] == expected
    assert all(rank.local and rank.memory.mode == "none" for rank in ranks)
    assert all("called local" in rank.notes[1] for rank in ranks)


def test_cpus_local_to_every_gpu_tell_nothing(machine_of):
    """One list for all GPUs, of all CPUs there are, is what a driver prints that knows no locality."""
    machine = machine_of(
        "        GPU0    GPU1    CPU Affinity\nGPU0     X      PHB     0-7\nGPU1    PHB      X      0-7\n"
    )

    ranks = plan(machine, Job(2), VisibleDevices(None, ("gpu0", "gpu1")), Wishes()).ranks

    assert [(str(rank.cpus), rank.local) for rank in ranks] == [("0-7", None)] * 2


def test_an_empty_cell_beside_an_unknown_node_leaves_the_node_unknown(machine_of):
    """Inside a cpuset both CPU and NUMA Affinity may say nothing: the note claims no node."""
    machine = machine_of(
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV4\t\tN/A\t\tN/A\n"
        "GPU1\tNV4\t X \t0-15,56-71\t0\t\tN/A\n"
    )

    assert [(gpu.cpu_node, str(gpu.local_cpus)) for gpu in machine.gpus] == [
        (None, ""),
        (0, "0-15,56-71"),
    ]
    assert not any("only the node is known" in note for note in machine.notes)


def test_gpus_of_the_header_without_a_row_are_unknown(machine_of):
    """Rows that were cut away leave GPUs whose place is unknown; the others are read."""
    machine = machine_of(
        "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tNV12\tNV12\t48-63\t3\n"
        "GPU1\tNV12\t X \tNV12\t48-63\t3\n"
    )

    assert [gpu.cpu_node for gpu in machine.gpus] == [3, 3, None]
    assert any("GPU 2 stands in the header" in note for note in machine.notes)


def test_cpus_that_two_nodes_claim_are_given_to_none(machine_of):
    """Where GPUs of two nodes show the same CPUs, nobody can tell whose they are."""
    machine = machine_of(
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tSYS\t0-31\t0\n"
        "GPU1\tSYS\t X \t0-31\t1\n"
    )

    assert homes(machine) == {0: (0, ""), 1: (1, "")}
    assert all(cpu.node is None for cpu in machine.cpus)
    assert any("claimed by more than one node" in note for note in machine.notes)


def test_nothing_is_invented_that_the_matrix_does_not_show(machine_of):
    """Addresses, memory, distances, siblings and permitted nodes stay unknown."""
    machine = machine_of(TWO_SOCKETS)

    assert [gpu.pci_address for gpu in machine.gpus] == ["gpu0", "gpu1"]
    assert all(node.memory_bytes is None and not node.distances for node in machine.nodes)
    assert all(not cpu.core and cpu.package is None for cpu in machine.cpus)
    assert machine.allowed.mems is None
    assert any("no PCI addresses" in note for note in machine.notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(TWO_SOCKETS[: TWO_SOCKETS.index("8-15")], "row GPU1", id="cut in a row"),
        pytest.param(EMPTY_CELLS.replace("4-9", "4-", 1), "4-", id="broken CPUs"),
        pytest.param(EMPTY_CELLS + EMPTY_CELLS.partition("\n")[2], "two rows GPU0", id="two hosts"),
        pytest.param(
            EMPTY_CELLS.replace("4-9\t0", "4-9\t0\t7\t7", 1), "row GPU0", id="too many cells"
        ),
        pytest.param(
            EMPTY_CELLS.replace("0-", "0-").replace("4-9", "4-99999", 1), "65535", id="absurd"
        ),
    ],
)
def test_a_damaged_matrix_is_refused_in_one_sentence(machine_of, text, says):
    """What cannot be read as CPUs and nodes is named with its row, and with the command that records it anew."""
    with pytest.raises(MalformedTextError) as caught:
        machine_of(text)

    assert says in caught.value.message
    assert "nvidia-smi topo -m" in caught.value.remedy


spans = st.tuples(st.integers(0, 60), st.integers(0, 30)).map(
    lambda s: CpuSet(range(s[0], sum(s) + 1))
)
rows = st.lists(
    st.tuples(st.one_of(st.just(CpuSet()), spans), st.integers(0, 40)), min_size=1, max_size=9
)


@given(rows=rows, shape=st.sampled_from(["as printed", "tabs expanded", "white space collapsed"]))
def test_parse_is_the_inverse_of_printing(rows, shape):
    """Whatever cells nvidia-smi prints, empty ones included, are read back as printed."""
    names = [f"GPU{index}" for index in range(len(rows))]
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for index, (cpus, node) in enumerate(rows):
        links = [" X " if other == index else "NODE" for other in range(len(rows))]
        lines.append("\t".join([names[index], *links, str(cpus), str(node), "", "N/A"]))
    text = SHAPES[shape]("\n".join(lines))

    machine = topo_m.read(text, "printed")

    assert [(gpu.local_cpus or CpuSet(), gpu.evidence[0].cpu_node) for gpu in machine.gpus] == rows


# --- NCCL ----------------------------------------------------------------------------------------------------

FOUR_NODES = """\
<?xml version="1.0"?>
<!-- made by hand -->
<system version="1">
 <cpu affinity="0000000f" numaid="0" arch="x86_64">
  <pci link_width="16" link_speed="32.0 GT/s PCIe" class="0x030200" busid="0003:00:00.0"/>
  <pci busid="ffff:ff:01.0" class="0x060400">
   <pci busid="0101:00:00.0" class="0x020700" vendor="0x15b3"><nic><net name="mlx5_0+mlx5_1"/></nic></pci>
  </pci>
 </cpu>
 <cpu numaid="1" affinity="000000f0" arch="x86_64"><pci busid="0001:00:00.0" class="0x030200"/></cpu>
 <cpu numaid="2" affinity="00000f00" arch="x86_64"><pci busid="000d:00:00.0" class="0x030200"/></cpu>
 <cpu numaid="3" affinity="0000f000" arch="x86_64"><pci busid="000b:00:00.0" class="0x030200"/></cpu>
</system>
"""


def test_gpus_are_numbered_by_address_wherever_nodes_put_them(machine_of):
    """GPUs come in PCI order while their nodes come in any."""
    machine = machine_of(FOUR_NODES)

    assert homes(machine) == {0: (1, "4-7"), 1: (0, "0-3"), 2: (3, "12-15"), 3: (2, "8-11")}


def test_a_dump_names_nics_links_and_the_bridges_above(machine_of):
    """Net names, link speeds and synthetic switches are kept as they stand."""
    machine = machine_of(FOUR_NODES)

    assert [(n.pci_address, n.rdma_devices, n.cpu_node) for n in machine.nics] == [
        ("0101:00:00.0", ("mlx5_0", "mlx5_1"), 0)
    ]
    pci = {device.address: device for device in machine.pci}
    assert pci["0101:00:00.0"].parents == ("ffff:ff:01.0",)
    assert pci["0003:00:00.0"].link.max_speed_gigatransfers_per_second == 32.0
    assert machine.architecture == "x86_64"


def test_a_gpu_without_class_is_known_by_what_is_inside(machine_of):
    """A dump's <gpu> marks a GPU, RCCL's marks an AMD one, and a function with neither is not called a GPU."""
    machine = machine_of(
        '<system version="2"><cpu host_hash="0x1" numaid="0" affinity="ff">'
        '<pci busid="0000:9b:00.0"><gpu dev="0" sm="90" rank="0"><nvlink target="0000:07:00.0"/></gpu></pci>'
        '<pci busid="0000:0a:00.0" class="0x120000" vendor="0x1002"><gpu dev="1" gcn="gfx942"/></pci>'
        '<pci busid="0000:0c:00.0" link_speed="32 GT/s PCIe/s"/>'
        "</cpu></system>"
    )

    assert [(gpu.pci_address, gpu.vendor) for gpu in machine.gpus] == [
        ("0000:9b:00.0", "nvidia"),
        ("0000:0a:00.0", "amd"),
    ]
    assert any("1 PCI functions have no class" in note for note in machine.notes)


def test_a_node_without_affinity_keeps_its_devices(machine_of):
    """CPUs that a file does not give stay unknown, and the GPU still has its node."""
    machine = machine_of(
        '<system version="1"><cpu numaid="1"><pci busid="0000:1b:00.0" class="0x030200"/></cpu></system>'
    )

    assert homes(machine) == {0: (1, "")}
    assert not machine.node(1).cpus_recorded
    assert not machine.allowed.cpus


@pytest.mark.parametrize("first", ["", 'affinity="00000000"', 'affinity="0000ff00"'])
def test_a_node_whose_cpus_are_not_told_sends_nobody_to_another_node(machine_of, first):
    """No affinity, an empty one, or one that another node claims too: all CPUs are kept, and memory comes from the node."""
    machine = machine_of(
        f'<system version="1"><cpu numaid="0" {first}><pci busid="0000:16:00.0" class="0x030200"/></cpu>'
        '<cpu numaid="1" affinity="0000ff00"><pci busid="0000:1b:00.0" class="0x030200"/></cpu></system>'
    )
    visible = VisibleDevices(None, ("0000:16:00.0", "0000:1b:00.0"))

    rank = plan(machine, Job(2), visible, Wishes()).ranks[0]

    assert machine.gpus[0].cpu_node == 0
    assert (str(rank.cpus), rank.local, str(rank.memory.nodes)) == ("8-15", None, "0")
    assert "which CPUs node 0 beside GPU 0 (0000:16:00.0) has is not recorded" in rank.notes


def test_minus_one_is_no_node(machine_of):
    """numaid −1 leaves devices without a node and CPUs without a home; nothing becomes node 0."""
    machine = machine_of(
        '<system version="1"><cpu numaid="-1" affinity="ff"><pci busid="0000:1b:00.0" class="0x030000"/></cpu>'
        "</system>"
    )

    assert [gpu.cpu_node for gpu in machine.gpus] == [None]
    assert (machine.online, machine.nodes) == (CpuSet(range(8)), ())
    assert any("numaid −1" in note for note in machine.notes)


def test_everything_on_the_only_node_is_called_suspicious(machine_of):
    """A file that hangs all GPUs on one node is read as it stands, with the doubt beside it."""
    functions = "".join(
        f'<pci busid="0000:{bus:02x}:00.0" class="0x030200"/>' for bus in range(16, 24)
    )

    machine = machine_of(
        f'<system version="1"><cpu numaid="0" affinity="ffff">{functions}</cpu></system>'
    )

    assert set(homes(machine).values()) == {(0, "0-15")}
    assert any("all 8 GPUs" in note for note in machine.notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(FOUR_NODES.replace("0000000f", "fffz"), "fffz", id="mask"),
        pytest.param(FOUR_NODES.replace('busid="0001:00', 'busid="one:00'), "one:00", id="address"),
        pytest.param(FOUR_NODES.replace('numaid="1"', 'numaid="one"'), "'one'", id="node"),
        pytest.param(
            FOUR_NODES.replace("0001:00:00.0", "0003:00:00.0"), "twice", id="one GPU on two nodes"
        ),
        pytest.param(FOUR_NODES[:300], "broken XML", id="cut"),
        pytest.param('<system version="1"></system>', "no <cpu>", id="empty"),
        pytest.param(
            '<system><cpu host_hash="0x1" numaid="0"/><cpu host_hash="0x2" numaid="0"/></system>',
            "2 hosts",
            id="several hosts",
        ),
    ],
)
def test_a_damaged_nccl_topology_is_refused_in_one_sentence(machine_of, text, says):
    """What was found, what was wanted, and how to write the file anew."""
    with pytest.raises(MalformedTextError) as caught:
        machine_of(text)

    assert says in caught.value.message
    assert "NCCL_TOPO_DUMP_FILE" in caught.value.remedy


# --- hwloc ---------------------------------------------------------------------------------------------------


def pus(*cpus: int) -> str:
    return "".join(
        f'<object type="PU" os_index="{cpu}" cpuset="0x{1 << cpu:08x}" complete_cpuset="0x{1 << cpu:08x}"/>'
        for cpu in cpus
    )


def core(*cpus: int) -> str:
    mask = sum(1 << cpu for cpu in cpus)
    return f'<object type="Core" cpuset="0x{mask:08x}">{pus(*cpus)}</object>'


GPU_BELOW = (
    '<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[{bus}-{bus}]">'
    '<object type="Bridge" bridge_type="1-1" pci_busid="0000:{bus}:01.0" pci_type="0604 [1022:1483] [1022:1234] 00">'
    '<object type="PCIDev" pci_busid="0000:{gpu}:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1">'
    '<object type="OSDev" name="nvml0" subtype="NVML" osdev_type="{kind}"><info name="Backend" value="NVML"/>'
    '<info name="GPUModel" value="Great GPU"/><info name="NVIDIAUUID" value="GPU-{gpu}"/></object>'
    "</object></object></object>"
)
LATENCIES = (10, 21, 21, 10)
VERSION_1 = (
    '<!DOCTYPE topology SYSTEM "hwloc.dtd">\n<topology>'
    '<object type="Machine" cpuset="0x0000000f" allowed_cpuset="0x00000007" allowed_nodeset="0x00000003">'
    '<distances nbobjs="2" relative_depth="1" latency_base="10.000000">'
    + "".join(f'<latency value="{value / 10:.6f}"/>' for value in LATENCIES)
    + '</distances><info name="Architecture" value="x86_64"/>'
    + "".join(
        f'<object type="NUMANode" os_index="{node}" cpuset="{mask}" local_memory="4096">'
        f'<page_type size="4096" count="1"/><page_type size="2097152" count="0"/>'
        f'<object type="Socket" os_index="{node}" cpuset="{mask}"><object type="Cache" depth="3" cpuset="{mask}">'
        f"{core(*cpus)}</object></object>{GPU_BELOW.format(bus=bus, gpu=gpu, kind=1)}</object>"
        for node, mask, cpus, bus, gpu in (
            (0, "0x3", (0, 1), "90", "9b"),
            (1, "0xc", (2, 3), "10", "1b"),
        )
    )
    + "</object></topology>"
)
VERSIONS_2_AND_3 = {
    version: (
        f'<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="{version}">'
        '<object type="Machine" cpuset="0x0000000f" allowed_cpuset="0x00000007" allowed_nodeset="0x00000003">'
        '<info name="Architecture" value="x86_64"/>'
        + "".join(
            f'<object type="Package" os_index="{node}" cpuset="{mask}">'
            f'<object type="NUMANode" os_index="{node}" gp_index="{node + 70}" cpuset="{mask}" local_memory="4096">'
            f'<page_type size="4096" count="1"/><page_type size="2097152" count="0"/></object>'
            f'<object type="L3Cache" depth="3" cpuset="{mask}">{core(*cpus)}</object>'
            f"{GPU_BELOW.format(bus=bus, gpu=gpu, kind=kind)}</object>"
            for node, mask, cpus, bus, gpu in (
                (0, "0x3", (0, 1), "90", "9b"),
                (1, "0xc", (2, 3), "10", "1b"),
            )
        )
        + '</object><distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" '
        f'indexing="{indexing}"><indexes length="4">{ids}</indexes>'
        '<u64values length="6">10 21 </u64values><u64values length="6">21 10 </u64values></distances2>'
        "</topology>"
    )
    for version, kind, indexing, ids in (("2.0", 1, "os", "0 1 "), ("3.0", 4, "gp", "70 71 "))
}


def test_three_versions_of_hwloc_describe_one_machine(machine_of):
    """The same host in versions 1, 2 and 3 of the format is the same machine."""
    first, *others = (machine_of(text) for text in (VERSION_1, *VERSIONS_2_AND_3.values()))

    assert others == [first, first]


def test_hwloc_tells_cpus_memory_distances_and_devices(machine_of):
    """Cores, caches, nodes, permitted CPUs, GPUs in PCI order with UUID, and the bridges above them."""
    machine = machine_of(VERSIONS_2_AND_3["2.0"])

    assert homes(machine) == {0: (1, "2-3"), 1: (0, "0-1")}
    gpu = machine.gpu(0)
    assert (gpu.name, gpu.uuid, str(gpu.local_cpus)) == ("Great GPU", "GPU-1b", "2-3")
    assert machine.node(1).distances == ((0, 21), (1, 10))
    assert [(page.size_bytes, page.num_total) for page in machine.node(0).hugepages] == [
        (2097152, 0)
    ]
    assert (str(machine.allowed.cpus), str(machine.allowed.mems)) == ("0-2", "0-1")
    assert machine.cpu(3).core == machine.cpu(3).l3 == CpuSet([2, 3])
    assert {d.address: d.parents for d in machine.pci}["0000:1b:00.0"] == (
        "0000:10:01.0",
        "pci0000:10",
    )


def hwloc(inside: str, mask: str = "0xf", after: str = "", attributes: str = "") -> str:
    return (
        f'<topology version="2.0"><object type="Machine" cpuset="{mask}" {attributes}>{inside}</object>'
        f"{after}</topology>"
    )


def node(number: int, mask: str, inside: str = "", **attributes: str) -> str:
    extra = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f'<object type="NUMANode" os_index="{number}" cpuset="{mask}"{extra}>{inside}</object>'


def test_special_memory_has_no_cpus_even_where_hwloc_shows_it_beside_some(machine_of):
    """hwloc 2 shows HBM, CXL and GPU memory with the CPUs they are near; the kernel gives a CPU one node."""
    own = '<info name="PCIBusID" value="00000000:9B:00.0"/>'
    tier = '<info name="MemoryTier" value="HBM"/>'
    machine = machine_of(
        hwloc(
            node(1, "0xf", own, subtype="GPUMemory", local_memory="99")
            + node(0, "0x3", local_memory="8")
            + node(2, "0x3", tier, local_memory="9")
            + node(3, "0xf", subtype="CXL", local_memory="9")
            + node(4, "0xc", local_memory="7")
            + core(0, 1)
            + core(2, 3)
            + '<object type="PCIDev" pci_busid="0000:9b:00.0" pci_type="0302 [10de:2342] [10de:16eb] a1"/>'
        )
    )

    assert [str(each.cpus) for each in machine.nodes] == ["0-1", "", "", "", "2-3"]
    assert machine.node(1).hbm_of == "0000:9b:00.0"
    assert machine.gpu(0).hbm_node == 1
    assert machine.gpu(0).cpu_node is None


def test_a_machine_without_numa_is_one_node(machine_of):
    """hwloc 1 writes no node where the kernel knows none: all CPUs are beside all devices."""
    machine = machine_of(
        hwloc(
            core(0, 1) + GPU_BELOW.format(bus="00", gpu="01", kind=1),
            "0x3",
            attributes='local_memory="64"',
        )
    )

    assert homes(machine) == {0: (0, "0-1")}
    assert machine.node(0).memory_bytes == 64
    assert any("no NUMA node is described" in note for note in machine.notes)


def test_a_device_on_the_whole_machine_has_no_locality(machine_of):
    """A bus that hangs on the machine itself says nothing of a node."""
    machine = machine_of(
        hwloc(
            node(0, "0x3")
            + node(1, "0xc")
            + core(0, 1)
            + core(2, 3)
            + GPU_BELOW.format(bus="00", gpu="01", kind=1)
        )
    )

    assert [(gpu.cpu_node, gpu.evidence[0].says) for gpu in machine.gpus] == [
        (None, "the whole machine")
    ]


def test_cpus_and_nodes_outside_the_cgroup_of_lstopo_are_named(machine_of):
    """What exists and is not described is a note, and a node whose memory alone is forbidden keeps its CPUs."""
    hidden = '<object type="PU" os_index="3" cpuset="0x8" complete_nodeset="0x00000020"/>'
    attributes = 'complete_cpuset="0xff" complete_nodeset="0x000000a1" allowed_cpuset="0x9" allowed_nodeset="0x1"'

    machine = machine_of(
        hwloc(
            node(0, "0x1") + node(7, "0x0", complete_cpuset="0x80") + core(0) + hidden,
            "0x9",
            "",
            attributes,
        )
    )

    assert {each.node: str(each.cpus) for each in machine.nodes} == {0: "0", 5: "3", 7: ""}
    assert (machine.node(5).memory_bytes, machine.node(7).cpus_recorded) == (None, False)
    assert any("CPUs 1-2,4-7 exist and are not described" in note for note in machine.notes)
    assert any("SMT siblings are unknown" in note for note in machine.notes)


def test_offline_cpus_of_version_1_are_offline(machine_of):
    """hwloc 1 can list CPUs that are not online: they are on no node and nobody's sibling."""
    offline = '<object type="PU" os_index="1" cpuset="0x2" online_cpuset="0x0"/>'
    machine = machine_of(
        f'<topology><object type="Machine" cpuset="0x3"><object type="Core" cpuset="0x3">{pus(0)}{offline}</object>'
        "</object></topology>"
    )

    assert (machine.online, machine.offline) == (CpuSet([0]), CpuSet([1]))
    assert machine.cpu(0).core == CpuSet([0])
    assert machine.node(0).cpus == CpuSet([0])


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        pytest.param(
            ["CoreType=IntelAtom", "CoreType=IntelCore"], ["efficiency", "performance"], id="hybrid"
        ),
        pytest.param(
            ["LinuxCapacity=718", "LinuxCapacity=1024"],
            ["efficiency", "performance"],
            id="big.LITTLE",
        ),
        pytest.param(["LinuxCapacity=1000", "LinuxCapacity=1024"], [None, None], id="nearly alike"),
        pytest.param(["FrequencyMaxMHz=3900", "FrequencyMaxMHz=4100"], [None, None], id="turbo"),
    ],
)
def test_only_a_hybrid_machine_has_kinds_of_cores(machine_of, kinds, expected):
    """Names and capacities make kinds; unequal turbo of equal cores does not."""
    after = "".join(
        f'<cpukind cpuset="0x{1 << cpu:x}"><info name="{kind.partition("=")[0]}" value="{kind.partition("=")[2]}"/>'
        "</cpukind>"
        for cpu, kind in enumerate(kinds)
    )

    machine = machine_of(hwloc(core(0) + core(1), "0x3", after))

    assert [cpu.kind for cpu in machine.cpus] == expected


def test_only_gpus_for_computing_are_gpus(machine_of):
    """A server's VGA chip and a processor's own graphics are none; GPUs outside PCI are named by their library."""
    others = (
        '<object type="PCIDev" pci_busid="0000:07:00.0" pci_type="0300 [1a03:2000] [1a03:2000] 41"/>'
        '<object type="PCIDev" pci_busid="0000:00:02.0" pci_type="0300 [8086:46a6] [8086:2212] 0c"/>'
        '<object type="OSDev" name="cuda0" subtype="CUDA" osdev_type="5"/>'
        '<object type="OSDev" name="opencl0d0" subtype="OpenCL" osdev_type="5"/>'
    )

    machine = machine_of(hwloc(core(0) + others, "0x1"))

    assert [(gpu.pci_address, gpu.vendor, gpu.cpu_node) for gpu in machine.gpus] == [
        ("cuda0", "nvidia", 0)
    ]


def test_gpus_outside_pci_are_numbered_by_number(machine_of):
    """cuda10 comes after cuda2."""
    names = ("cuda10", "cuda2", "cuda0")
    others = "".join(
        f'<object type="OSDev" name="{n}" subtype="CUDA" osdev_type="5"/>' for n in names
    )

    machine = machine_of(hwloc(core(0) + others, "0x1"))

    assert [gpu.pci_address for gpu in machine.gpus] == ["cuda0", "cuda2", "cuda10"]


RSMI = (
    '<object type="OSDev" name="rsmi{}" subtype="RSMI" osdev_type="5"><info name="Backend" value="RSMI"/>'
    '<info name="AMDUUID" value="{:x}"/></object>'
)
APU = '<object type="PCIDev" pci_busid="000{}:01:00.0" pci_type="1200 [1002:74a0] [1002:74a0] 00">{}</object>'


@pytest.mark.parametrize("inside", [3, 1], ids=["below the GPU", "beside the GPU"])
def test_partitions_of_a_gpu_are_devices_of_their_own(machine_of, inside):
    """Two APUs cut in three: six ranks use one partition each, and the first three are beside the first APU."""
    sockets = ""
    for socket in (0, 1):
        parts = [RSMI.format(number, number + 1) for number in range(socket * 3, socket * 3 + 3)]
        apu = APU.format(socket, "".join(parts[:inside])) + "".join(parts[inside:])
        cpuset = hex(3 << 2 * socket)
        sockets += f'<object type="Package" os_index="{socket}" cpuset="{cpuset}">'
        sockets += (
            node(socket, cpuset) + core(2 * socket) + core(2 * socket + 1) + apu + "</object>"
        )
    machine = machine_of(hwloc(sockets, "0xf"))

    ranks = plan(machine, Job(6), visible_devices(machine, {}, "amd"), Wishes()).ranks

    assert [len(gpu.mig) for gpu in machine.gpus] == [3, 3]
    assert [str(rank.cpus) for rank in ranks] == ["0-1"] * 3 + ["2-3"] * 3


def test_nics_and_disks_carry_the_names_of_their_software(machine_of):
    """Interfaces, RDMA devices and NVMe controllers are those that hwloc names, in either numbering of kinds."""
    text = (
        '<object type="PCIDev" pci_busid="0000:05:00.0" pci_type="0207 [15b3:101b] [15b3:0007] 00">'
        '<object type="OSDev" name="ib0" osdev_type="{net}"/><object type="OSDev" name="mlx5_0" osdev_type="{rdma}"/>'
        "</object>"
        '<object type="PCIDev" pci_busid="0000:06:00.0" pci_type="0108 [144d:a808] [144d:a801] 00">'
        '<object type="OSDev" name="nvme3n1" subtype="Disk" osdev_type="{disk}"/></object>'
    )
    old = hwloc(core(0) + text.format(net=2, rdma=3, disk=0), "0x1")
    new = hwloc(core(0) + text.format(net=16, rdma=48, disk=1), "0x1").replace('"2.0"', '"3.0"')

    for machine in (machine_of(old), machine_of(new)):
        assert [(n.pci_address, n.interfaces, n.rdma_devices) for n in machine.nics] == [
            ("0000:05:00.0", ("ib0",), ("mlx5_0",))
        ]
        assert [(disk.name, disk.pci_address) for disk in machine.nvmes] == [
            ("nvme3", "0000:06:00.0")
        ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(VERSION_1[:-20], "broken XML", id="cut"),
        pytest.param("<topology></topology>", "no <object>", id="empty"),
        pytest.param(hwloc(""), "no PU", id="no CPUs"),
        pytest.param(hwloc(pus(1, 1)), "PU 1 twice", id="a CPU twice"),
        pytest.param(
            hwloc('<object type="PU" os_index="4294967295"/>'), "without os_index", id="no number"
        ),
        pytest.param(hwloc(core(0) + node(0, "0xzz")), "0xzz", id="mask"),
        pytest.param(hwloc(core(0) + '<object type="PCIDev" pci_busid="9b"/>'), "9b", id="address"),
        pytest.param(hwloc('<object type="PU" os_index="70000"/>'), "65535", id="absurd CPU"),
    ],
)
def test_a_damaged_hwloc_topology_is_refused_in_one_sentence(machine_of, text, says):
    """What was found, what was wanted, and how to write the file anew."""
    with pytest.raises(MalformedTextError) as caught:
        machine_of(text)

    assert says in caught.value.message
    assert "lstopo" in caught.value.remedy


# --- hostile and unknown files -------------------------------------------------------------------------------


def test_entities_do_not_expand(machine_of):
    """A document type that declares entities is refused before anything grows."""
    bomb = (
        '<!DOCTYPE topology [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>'
        "<topology><object>&c;</object></topology>"
    )

    with pytest.raises(MalformedTextError, match="document type with declarations"):
        machine_of(bomb)


def test_the_document_type_of_hwloc_reads_no_other_file(machine_of, tmp_path):
    """hwloc's own DOCTYPE line names a file, which is never opened."""
    (tmp_path / "hwloc2.dtd").write_text("<!ENTITY broken")
    text = '<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n' + hwloc(core(0), "0x1")

    assert machine_of(text).online == CpuSet([0])


def test_depth_and_number_of_elements_are_bounded(machine_of, monkeypatch):
    """A document deeper or larger than any host's is refused while it is read."""
    with pytest.raises(MalformedTextError, match="more XML than a host has"):
        machine_of("<topology>" + "<object>" * 100_000)

    monkeypatch.setattr(_base, "MAX_ELEMENTS", 1000)
    with pytest.raises(MalformedTextError, match="more XML than a host has"):
        machine_of("<topology>" + "<object/>" * 2000 + "</topology>")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("GPU0 CPU Affinity\n" * 200_000, id="headers only"),
        pytest.param("GPU0 " * 1_000_000 + "CPU Affinity\nGPU0 X 0\n", id="one endless line"),
        pytest.param(
            "GPU0 " + "a_b" * 3000 + " CPU Affinity\nGPU0 X 0\n", id="a name of many names"
        ),
        pytest.param("<!DOCTYPE a>" * 300_000, id="endless prolog"),
        pytest.param("\tGPU0\tCPU Affinity\nGPU0\t X \t" + "0 " * 1_000_000, id="endless row"),
    ],
)
@pytest.mark.timeout(20)
def test_no_text_keeps_the_reader_busy(machine_of, text):
    """Texts made to be searched forever are refused in the time that their size takes."""
    with pytest.raises(WellfedError):
        machine_of(text)


def test_a_huge_file_is_not_read(tmp_path, monkeypatch):
    """No more than the limit is ever read."""
    monkeypatch.setattr(_room, "MAX_BYTES", 1 << 20)
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(RecordingError, match="larger than 1 MiB"):
        read_source(str(path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"", "holds nothing", id="empty"),
        pytest.param(
            b"Architecture: x86_64\nCPU(s): 8\n", "begins with 'Architecture: x86_64'", id="lscpu"
        ),
        pytest.param(
            b'<?xml version="1.0"?><!-- a --><graphs version="1"/>', "<graphs>", id="another XML"
        ),
        pytest.param(b"<topologydiff/>", "<topologydiff>", id="hwloc's difference"),
        pytest.param(b"\x7fELF\0\0\0", "binary data", id="program"),
        pytest.param(gzip.compress(b"x"), "compressed by gzip", id="gzip"),
        pytest.param(b"<!-- never closed", "begins with '<!-- never closed'", id="comment"),
    ],
)
def test_an_unknown_file_is_named_by_what_it_holds(tmp_path, content, says):
    """The error says what was found, which descriptions are known, and what to do."""
    path = tmp_path / "unknown"
    path.write_bytes(content)

    with pytest.raises(RecordingError) as caught:
        read_source(str(path))

    assert says in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(("name", "says"), [("absent", "no such file"), (".", "is a directory")])
def test_a_path_that_is_no_file_is_refused(tmp_path, name, says):
    """A missing file and a directory are one sentence each."""
    with pytest.raises(RecordingError, match=says):
        read_source(str(tmp_path / name))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_saved_by_an_editor_are_read(tmp_path, encoding):
    """A byte order mark in front, or UTF-16 as PowerShell writes it, hides nothing."""
    path = tmp_path / "saved"
    path.write_text(TWO_SOCKETS, encoding=encoding)

    assert homes(locate(read_source(str(path)))) == BOTH_SOCKETS


def test_every_source_recognises_its_own_text_only():
    """Formats are told apart by content, so that the order of plug-ins does not matter."""
    texts = [VERSION_1, FOUR_NODES, TWO_SOCKETS]

    told = [[source.recognises(text) for source in sources()] for text in texts]

    assert told == [[True, False, False], [False, True, False], [False, False, True]]


@settings(max_examples=300, deadline=None)
@given(
    text=st.sampled_from(
        [VERSION_1, *VERSIONS_2_AND_3.values(), FOUR_NODES, TWO_SOCKETS, EMPTY_CELLS]
    ),
    start=st.integers(0, 4000),
    length=st.integers(0, 60),
    put=st.text(st.sampled_from('0123456789-,x" <>/\t\nGPUXNA'), max_size=6),
)
def test_damage_anywhere_is_an_error_of_ours_or_a_machine(text, start, length, put):
    """Whatever is cut out or written over, reading ends in a machine or in one sentence with a remedy."""
    start %= len(text)
    damaged = text[:start] + put + text[start + length :]
    source = next((source for source in sources() if source.recognises(damaged)), None)
    if source is None:
        return

    try:
        machine = locate(source.read(damaged, "damaged"))
    except WellfedError as error:
        assert error.remedy
    else:
        assert all(gpu.cpu_node is None or machine.node(gpu.cpu_node) for gpu in machine.gpus)


@pytest.mark.parametrize("path", [*cases("topology/topo-m/*.txt"), *cases("topology/nccl/*.xml")])
def test_a_description_can_be_planned_from(path):
    """Each rank's CPUs lie beside its GPU, or a note says why not; a description without CPUs is an error."""
    machine = locate(read_source(str(path)))
    visible = VisibleDevices(None, tuple(gpu.pci_address for gpu in machine.gpus))
    job = Job(max(1, len(machine.gpus)))
    if not machine.cpus:
        with pytest.raises(PlacementError, match="names no CPU"):
            plan(machine, job, visible, Wishes(policy="node"))
        return

    ranks = plan(machine, job, visible, Wishes(policy="node")).ranks

    for rank, gpu in zip(ranks, machine.gpus, strict=True):
        node = machine.node(gpu.cpu_node) if gpu.cpu_node is not None else None
        beside = node.cpus if node is not None and node.cpus else gpu.local_cpus or CpuSet()
        tells = bool(beside) and (node is not None or beside != machine.online)
        assert rank.cpus == (beside if tells else machine.allowed.cpus)
        assert rank.local is (
            True if tells else None if node is None or gpu.local_cpus is None else False
        )
        assert (tells and node is not None) or rank.notes
        assert gpu.hbm_node not in rank.memory.nodes
