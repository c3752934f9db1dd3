"""Is the map of a host true, complete and readable: as text, as JSON, as a picture?"""

from __future__ import annotations

import functools
import importlib.resources
import json
import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus import cases
from tests.doctoring import A100, DGX, GB200, MIXED, ONE_NODE, POD, TWO_NODE_VM, changed
from tests.hosts.assemble import names
from tests.machines import device, dgx_a100, dgx_h100, gpu, machine, placed
from wellfed.model.cpuset import CpuSet
from wellfed.model.machine import HugePages, Nic, Nvme, PciLink
from wellfed.model.value import replace
from wellfed.report import topology_json, topology_svg, topology_svg_colours, topology_text
from wellfed.report.svg import escaped, fitted, text_width, wrapped
from wellfed.report.terminal import PLAIN, Span, Terminal, columns, flow, spans, terminal_of
from wellfed.report.topology_parts import branches, devices, gathered, say_cores, say_l3
from wellfed.workflows.machine import know, machine_of

SCHEMA = json.loads(
    importlib.resources.files("wellfed.report").joinpath("schemas/topology-1.json").read_text()
)
ANSI = re.compile("\x1b")
SVG = "{http://www.w3.org/2000/svg}"


@functools.cache
def known(name):
    return know(changed(name))


def text_of(host, width=80, placement=None, **terminal):
    return topology_text.render(host, Terminal(width, **terminal), placement)


# JSON


def test_schema_is_one():
    """The published schema is itself valid, and packaged."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", names())
def test_json_keeps_its_schema(name):
    """Every host, with and without ranks, fulfils the published schema."""
    host = known(name)

    for placement in (None, placed(host, 2, policy="node")):
        said = json.loads(json.dumps(topology_json.as_json(host, placement)))
        jsonschema.validate(said, SCHEMA)


def test_json_has_the_stable_keys():
    """Others build on these names: they stay."""
    said = topology_json.as_json(known(DGX))

    assert said["schema"] == "wellfed/topology/1"
    assert {"node", "cpus", "memory_bytes"} <= set(said["numa_nodes"][0])
    assert {
        "index",
        "pci_address",
        "uuid",
        "cpu_node",
        "hbm_node",
        "visible_index",
        "evidence",
    } <= set(said["gpus"][0])
    assert set(said["gpus"][0]["evidence"][0]) == {"source", "says", "cpu_node"}
    assert {"cpus", "mems"} <= set(said["allowed"])


def test_json_says_what_is_there():
    """Figures of a DGX H100."""
    said = topology_json.as_json(known(DGX))

    assert [node["cpus"] for node in said["numa_nodes"]] == ["0-55,112-167", "56-111,168-223"]
    assert said["numa_nodes"][0]["memory_bytes"] == 1031000 << 20
    assert [each["cpu_node"] for each in said["gpus"]] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert said["gpus"][0]["pci_address"] == "0000:1b:00.0"
    assert said["gpus"][0]["hbm_node"] is None
    assert said["allowed"]["cpus"] == "0-223"


def test_json_leaves_the_unknown_null():
    """A GPU without a place has none, and never node 0."""
    said = topology_json.as_json(known(TWO_NODE_VM))

    assert [each["cpu_node"] for each in said["gpus"]] == [None, None]
    assert {e["says"] for e in said["gpus"][0]["evidence"]} >= {"-1"}


def test_json_of_gpu_memory_nodes():
    """The node that is a GPU's memory is told from the one with CPUs beside it."""
    said = topology_json.as_json(known(GB200))

    assert [(each["cpu_node"], each["hbm_node"]) for each in said["gpus"]] == [
        (0, 2),
        (0, 10),
        (1, 18),
        (1, 26),
    ]
    assert said["numa_nodes"][2]["hbm_of"] == "0008:01:00.0"
    assert (said["numa_nodes"][2]["cpus"], said["numa_nodes"][2]["kind"]) == ("", "gpu-memory")


def test_json_of_visible_devices():
    """``index`` is the PCI order, ``visible_index`` what the process counts, null outside the list."""
    host = know(changed(DGX, environ="CUDA_VISIBLE_DEVICES=3,1"))

    said = {each["index"]: each["visible_index"] for each in topology_json.as_json(host)["gpus"]}

    assert said == {0: None, 1: 1, 2: None, 3: 0, 4: None, 5: None, 6: None, 7: None}


def test_json_of_a_placement():
    """Ranks are told with their CPUs, memory and whether they are local."""
    host = dgx_h100()

    said = topology_json.as_json(host, placed(host, 8, policy="exclusive"))["placement"]

    assert [rank["local"] for rank in said["ranks"]] == [True] * 8
    assert said["ranks"][0]["cpus"] == "0-13,112-125"
    assert said["ranks"][7]["memory"] == {"mode": "preferred", "nodes": "1"}


@pytest.mark.parametrize("path", cases("topology/hwloc/*.tar.bz2"))
def test_recorded_roots_can_be_drawn(path):
    """No machine that hwloc ever recorded breaks a report, overflows a line or leaves the schema."""
    if path.name == "allowed_test1.fsroot.tar.bz2":
        pytest.skip("holds no CPU: reading it is refused with a reason")
    host = machine_of(str(path))

    jsonschema.validate(json.loads(json.dumps(topology_json.as_json(host))), SCHEMA)
    ET.fromstring(topology_svg.render(host))
    for width in (80, 200):
        assert max(map(len, text_of(host, width).splitlines())) <= width


@pytest.mark.parametrize("path", cases("topology/topo-m/*.txt") + cases("topology/nccl/*.xml"))
def test_descriptions_can_be_drawn(path):
    """What another tool does not record is said to be unknown, not left out."""
    host = machine_of(str(path))

    text = text_of(host)

    jsonschema.validate(json.loads(json.dumps(topology_json.as_json(host))), SCHEMA)
    ET.fromstring(topology_svg.render(host))
    for each in host.gpus:
        assert f"GPU {each.index}" in text


# text


@pytest.mark.parametrize("name", names())
@settings(deadline=None, max_examples=10)
@given(width=st.integers(60, 220), colour=st.booleans())
def test_lines_fit(name, width, colour):
    """No line is wider than the terminal, and colour changes no letter."""
    host = known(name)

    plain = text_of(host, width)
    painted = text_of(host, width, colour=colour)

    assert max(map(len, plain.splitlines())) <= width
    assert re.sub("\x1b\\[[0-9;]*m", "", painted) == plain
    assert bool(ANSI.search(painted)) == colour


@pytest.mark.parametrize("name", names())
def test_everything_is_on_the_map(name):
    """Each node, each GPU, each disk and each card stands on it, GPUs exactly once in the tree."""
    host = known(name)
    text = text_of(host, 200)

    for node in host.nodes:
        if node.kind != "empty":
            assert f"NUMA node {node.node} " in text
    for each in host.gpus:
        assert len(re.findall(rf"─ .*\b{each.pci_address}\b", text)) == 1
    for nic in host.nics:
        assert all(name in text for name in nic.rdma_devices)
    for disk in host.nvmes:
        assert disk.name in text


def test_plain_characters_where_a_terminal_has_no_others():
    """A terminal of ASCII gets the same map, drawn with what it has."""
    text = text_of(known(DGX), unicode=False)

    assert text.isascii()
    assert "`- NUMA node 0" in text and "56 cores x 2 threads" in text


def test_dgx_h100_in_eighty_columns():
    """The map of a DGX H100, line for line where it matters."""
    lines = text_of(known(DGX)).splitlines()

    assert lines[1] == "  2 packages · 2 NUMA nodes · 112 cores × 2 threads · 8 GPUs · 8 NICs ·"
    assert "└─ NUMA node 0  1007 GiB  56 cores × 2 threads  CPUs 0-55,112-167" in lines
    assert "   │  ├─ GPU 0   0000:1b:00.0  ×16 32 GT/s  NVIDIA H100 80GB HBM3" in lines
    assert "   │  └─ mlx5_0  0000:18:00.0  ×16 32 GT/s  ib0  RDMA" in lines
    assert any(
        line.startswith("  GPUs 0-7 placed by sysfs numa_node, sysfs local_cpulist")
        for line in lines
    )
    assert "     0  10  21" in lines


def test_ranks_stand_beside_their_gpus():
    """Local and remote ranks are told apart, and the table names CPUs and memory."""
    host = dgx_h100()
    narrow = replace(host, allowed=replace(host.allowed, cpus=CpuSet.parse("0-55,112-167")))

    text = text_of(narrow, 100, placed(narrow, 8, policy="exclusive"), colour=True)

    assert "\x1b[32m[rank 0 local]" in text
    assert "\x1b[33m[rank 7 remote]" in text
    assert "closed to this process" in text


def test_unknown_place_comes_with_its_reason():
    """What sources say stands beside the GPUs that it does not place, once."""
    text = text_of(known(TWO_NODE_VM), 120)

    assert "NUMA node not known" in text
    assert text.count("sysfs numa_node says -1") == 1


def test_limits_of_the_process_are_told():
    """A pod learns what it may use, and which node is closed to it."""
    text = text_of(known(POD), 200)

    assert (
        "may use 16 of 224 CPUs (4-11,116-123), memory of node 0 only, 6 CPUs' worth of time, 64 GiB of memory"
        in text
    )
    assert "closed to this process" in text
    assert "this process may use 4-11,116-123" in text


def test_empty_nodes_are_summed_up():
    """Thirty nodes without CPUs or memory take one line."""
    text = text_of(known(GB200), 120)

    assert "NUMA nodes 3-9,11-17,19-25,27-33  empty: no CPUs and no memory" in text
    assert "NUMA node 10  184 GiB  memory of GPU 1" in text


def test_huge_pages_are_told():
    """Pages that are set aside are memory that nobody else can have."""
    host = machine({0: "0-3"})
    node = replace(
        host.nodes[0], hugepages=(HugePages(2 << 20, 512, 500), HugePages(1 << 30, 0, 0))
    )

    text = text_of(replace(host, nodes=(node,)))

    assert "huge pages 512 × 2 MiB (500 free)" in text
    assert "1 GiB" not in text.replace("64 GiB", "")


def test_distances_that_do_not_fit_are_summed_up():
    """A matrix wider than the terminal becomes its range."""
    host = machine({number: str(number) for number in range(64)})

    assert "20 to 20 between nodes" in text_of(host, 80)


def test_hostile_names_reach_no_terminal():
    """A recording is a stranger's text: its control characters are shown as what they are."""
    host = machine({0: "0-3"}, gpus=[gpu(0, 0, name="\x1b[2J\x07evil<b>")])

    assert "\x1b" not in text_of(host) and "\ufffd[2J\ufffdevil" in text_of(host)
    assert (
        "<b>" not in topology_svg.render(host)
        and ET.fromstring(topology_svg.render(host)) is not None
    )


def test_cores_in_words():
    """Uniform and hybrid cores, and caches of several sizes."""
    host = machine({0: "0-5"}, cores=["0-1", "2-3", "4", "5"], l3=["0-3", "4-5"])

    assert say_cores(host, CpuSet.parse("0-5")) == "4 cores, 6 threads"
    assert say_cores(host, CpuSet.parse("0-3")) == "2 cores × 2 threads"
    assert say_cores(host, CpuSet.parse("4")) == "1 core"
    assert say_l3(host, CpuSet.parse("0-5")) == "2 × L3 of 2 cores"
    assert say_l3(dgx_a100(), CpuSet.parse("0-15,128-143")) == "4 × L3 of 4 cores"
    assert say_l3(machine({0: "0-3"}), CpuSet.parse("0-3")) == ""


# what shares a switch


def tree_of(gpus, nics=(), nvmes=(), pci=()):
    host = machine({0: "0-3"}, gpus=list(gpus), nics=list(nics), pci=list(pci))
    return branches(devices(replace(host, nvmes=tuple(nvmes))))


def test_gpu_and_card_behind_one_switch():
    """The bridge nearest to both is the switch; the ports that lead to one of them only are left out."""
    pci = [
        device(
            "0000:04:00.0", 0, None, "0000:03:00.0", "0000:02:00.0", "0000:01:00.0", "pci0000:00"
        ),
        device(
            "0000:05:00.0", 0, None, "0000:03:01.0", "0000:02:00.0", "0000:01:00.0", "pci0000:00"
        ),
    ]

    tree = tree_of(
        [gpu(0, 0, pci_address="0000:04:00.0")], [Nic("0000:05:00.0", ("eth0",), (), 0)], pci=pci
    )

    (switch,) = tree.branches
    assert (switch.address, [each.title for each in switch.devices]) == (
        "0000:02:00.0",
        ["GPU 0", "eth0"],
    )


def test_two_functions_of_one_card_are_no_switch():
    """A card with two ports hangs on one port of the root: nothing is shared that a person could part."""
    pci = [device(f"0000:05:00.{f}", 0, None, "0000:00:01.0", "pci0000:00") for f in (0, 1)]
    nics = [Nic(f"0000:05:00.{f}", (f"eth{f}",), (), 0) for f in (0, 1)]

    tree = tree_of([], nics, pci=pci)

    assert [branch.address for branch in tree.branches] == []
    assert [each.title for each in tree.devices] == ["eth0", "eth1"]


def test_switch_behind_a_switch():
    """GPUs that share an inner bridge are nearer to each other than those that share the outer one."""
    outer, root = "0000:02:00.0", "pci0000:00"
    pci = [
        device("0000:0a:00.0", 0, None, "0000:08:00.0", "0000:07:00.0", outer, root),
        device("0000:0b:00.0", 0, None, "0000:08:01.0", "0000:07:00.0", outer, root),
        device("0000:0c:00.0", 0, None, "0000:09:00.0", outer, root),
    ]
    gpus = [gpu(index, 0, pci_address=each.address) for index, each in enumerate(pci)]

    (switch,) = tree_of(gpus, pci=pci).branches

    assert (switch.address, [each.title for each in switch.devices]) == (outer, ["GPU 2"])
    assert [each.title for each in switch.branches[0].devices] == ["GPU 0", "GPU 1"]


def test_many_cards_become_one_line():
    """Thirty-two network cards on a switch are counted; GPUs never are."""
    nics = [Nic(f"0000:{bus:02x}:00.0", (), (f"rdmap{bus}s0",), 0) for bus in range(1, 33)]
    host = machine(
        {0: "0-3"},
        nics=nics,
        gpus=[gpu(index, 0, pci_address=f"0001:{index:02x}:00.0") for index in range(8)],
    )

    shown = gathered(devices(host))

    assert [each.kind for each in shown] == ["GPU"] * 8 + ["NIC"]
    assert "32 NICs" in text_of(host, 80) and "rdmap32s0" in text_of(host, 80)


def test_lost_lanes_are_shown():
    """A link below what it could be says both."""
    narrow = device("0000:01:00.0", 0, link=PciLink(2.5, 8, 32.0, 16))
    host = machine({0: "0-3"}, gpus=[gpu(0, 0)], pci=[narrow])

    assert "×8 of ×16 2.5 of 32 GT/s" in text_of(host)


def test_disk_without_address():
    """A disk that is no PCI device is still on the map."""
    host = replace(machine({0: "0-3"}), nvmes=(Nvme(None, "nvme0", 0),))

    assert "nvme0" in text_of(host) and "nvme0" in topology_svg.render(host)


# picture


@functools.cache
def drawn(name, count=0):
    host = known(name)
    return topology_svg.render(host, placed(host, count, policy="exclusive") if count else None)


@pytest.mark.parametrize("name", names())
def test_picture_needs_nothing_else(name):
    """One file: no font, no script, no link, no other address than SVG's own name; and it is small."""
    picture = drawn(name)
    root = ET.fromstring(picture)

    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {
        "svg",
        "g",
        "rect",
        "path",
        "text",
        "title",
        "desc",
        "style",
    }
    assert re.findall(r"[a-z]+://[^\"' ]*", picture) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"url\(|@import|@font-face|href|\bon[a-z]+=", picture)
    assert len(picture) < 60_000


@pytest.mark.parametrize("name", names())
def test_picture_can_be_heard(name):
    """Title and description come first, are named by the picture, and say where each GPU is."""
    host = known(name)
    root = ET.fromstring(drawn(name))
    title, description = list(root)[:2]

    assert (
        root.get("role") == "img"
        and root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    )
    assert name in (title.text or "")
    for each in host.gpus:
        assert f"GPU {each.index}" in (description.text or "")


def test_picture_is_light_and_dark():
    """Both palettes colour the same classes, and every shape has one of them."""
    root = ET.fromstring(drawn(DGX, 8))
    used = {name for each in root.iter() for name in (each.get("class") or "").split()}

    assert set(topology_svg_colours.LIGHT) == set(topology_svg_colours.DARK)
    assert used <= set(topology_svg_colours.LIGHT) | {"b", "m"}
    assert "prefers-color-scheme:dark" in drawn(DGX)


def test_ranks_are_coloured():
    """Local green, remote orange: in cores, marks and legend; a rank whose GPU may be anywhere is neither."""
    host = dgx_h100()
    narrow = replace(host, allowed=replace(host.allowed, cpus=CpuSet.parse("0-55,112-167")))

    apart = topology_svg.render(narrow, placed(narrow, 8, policy="exclusive"))

    assert 'class="local-a"' in apart and 'class="remote-a"' in apart and 'class="closed"' in apart
    assert "rank 7 remote" in apart and "core of a rank far from its GPU" in apart
    assert "unknown-a" in drawn(TWO_NODE_VM, 2).partition("</style>")[2]
    assert "unknown-a" not in drawn(DGX, 8).partition("</style>")[2]


def test_picture_is_the_same_every_time():
    """The same host gives the same bytes."""
    assert topology_svg.render(known(A100)) == topology_svg.render(known(A100))


def test_picture_names_no_folder():
    """A picture is passed on: it carries the name of the recording, not where it lay."""
    host = replace(known(MIXED), name="/home/somebody/secret/host.tar.xz")

    assert "somebody" not in topology_svg.render(host) and "host.tar.xz" in topology_svg.render(
        host
    )


@given(st.text(max_size=80), st.floats(0, 400), st.floats(8, 22), st.booleans(), st.booleans())
def test_fitted_text_fits(text, room, size, bold, mono):
    """What is cut fits, and the whole of it is kept for the tooltip."""
    fit = fitted(text, room, size, bold=bold, mono=mono)

    assert fit.shown == "" or text_width(fit.shown, size, bold=bold, mono=mono) <= room
    assert (fit.whole or fit.shown) == text


@given(st.text(max_size=200))
def test_any_text_is_xml(text):
    """Every text can stand in the picture."""
    assert ET.fromstring(f"<a>{escaped(text)}</a>") is not None


def test_wrapped_sentences():
    """Lines end at spaces; a word that is too long is cut."""
    assert len(wrapped("one two three", 40, 12)) > 1
    assert all(text_width(line, 12) <= 50 for line in wrapped("short " + "x" * 100, 50, 12))


OVERFLOW = """
const out = [];
for (const svg of document.querySelectorAll('svg')) {
  const boxes = [...svg.querySelectorAll('rect')].map(r => r.getBoundingClientRect());
  const texts = [...svg.querySelectorAll('text')];
  const at = texts.map(t => t.getBoundingClientRect());
  texts.forEach((t, i) => {
    const b = at[i], anchor = t.getAttribute('text-anchor');
    const x = anchor === 'end' ? b.right - 1 : anchor === 'middle' ? (b.left + b.right) / 2 : b.left + 1;
    const y = (b.top + b.bottom) / 2;
    const around = boxes.filter(r => r.left <= x && x <= r.right && r.top <= y && y <= r.bottom)
      .sort((p, q) => p.width * p.height - q.width * q.height)[0];
    if (!around || b.left < around.left - 1 || b.right > around.right + 1)
      out.push('overflows: ' + t.textContent);
    for (let j = 0; j < i; j++) {
      const c = at[j];
      if (b.left < c.right - 1 && c.left < b.right - 1 && b.top + 3 < c.bottom - 3 && c.top + 3 < b.bottom - 3)
        out.push('overlaps: ' + t.textContent + ' | ' + texts[j].textContent);
    }
  });
  out.push('looked at ' + texts.length);
}
document.body.innerHTML = '<pre>' + out.join('\\n') + '</pre>';
"""


def crowded():
    """A host whose every name is too long: what a picture has to cut."""
    odd = {
        0: ",".join(str(cpu) for cpu in range(0, 128, 2)),
        1: ",".join(str(cpu) for cpu in range(1, 128, 2)),
    }
    gpus = [
        gpu(
            index,
            index % 2,
            name="NVIDIA WWWWW MMMMM Very Long Product Name Edition %%%" * 2,
            hbm_node=None,
        )
        for index in range(8)
    ]
    gpus = [replace(each, accessible=False) if each.index > 5 else each for each in gpus]
    nics = [
        Nic(f"00000001:{bus:02x}:00.0", ("enp" + "w" * 40,), ("mlx5_bond_" + "m" * 30,), bus % 2)
        for bus in range(3)
    ]
    host = machine(odd, gpus=gpus, nics=nics, allowed="0,3,5-9")
    notes = ("A note " + "without end " * 60, "W" * 400)
    return replace(host, name="/x/" + "host-with-a-name-that-never-ends-" * 6, notes=notes)


@pytest.mark.skipif(
    not shutil.which("chromium"),
    reason="chromium is not installed: nothing else here measures text",
)
def test_no_text_leaves_its_box(tmp_path):
    """Measured by a browser: no text overflows the box around it, and none lies over another."""
    pictures = [
        drawn(name, count)
        for name, count in (
            (DGX, 8),
            (A100, 8),
            (GB200, 4),
            (TWO_NODE_VM, 0),
            (POD, 0),
            (MIXED, 2),
            (ONE_NODE, 0),
        )
    ]
    host = crowded()
    pictures += [
        topology_svg.render(host),
        topology_svg.render(host, placed(host, 16, policy="node")),
    ]
    page = tmp_path / "page.html"
    bodies = "".join(f"<div>{picture}</div>" for picture in pictures)
    page.write_text(
        f"<meta charset=utf-8><body>{bodies}<script>{OVERFLOW}</script></body>", encoding="utf-8"
    )

    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    said = re.search("<pre>(.*?)</pre>", done.stdout, re.DOTALL)

    assert said is not None, done.stderr[-500:]
    lines = said[1].splitlines()
    assert [line for line in lines if not line.startswith("looked at")] == []
    assert len(lines) == len(pictures)


# terminal


class Screen:
    """A stream that is a terminal, or not."""

    def __init__(self, terminal: bool, encoding: str = "utf-8"):
        self.encoding = encoding
        self._terminal = terminal

    def isatty(self):
        return self._terminal

    def fileno(self):
        raise OSError("no descriptor")


@pytest.mark.parametrize(
    ("screen", "environment", "wanted"),
    [
        (Screen(True), {}, Terminal(80, True, True)),
        (Screen(False), {}, Terminal(80, False, True)),
        (Screen(True), {"NO_COLOR": "1"}, Terminal(80, False, True)),
        (Screen(True), {"NO_COLOR": ""}, Terminal(80, True, True)),
        (Screen(True), {"TERM": "dumb"}, Terminal(80, False, True)),
        (Screen(True), {"COLUMNS": "132"}, Terminal(132, True, True)),
        (Screen(True), {"COLUMNS": "wide"}, Terminal(80, True, True)),
        (Screen(True, "ascii"), {}, Terminal(80, True, False)),
        (Screen(True, "no-such-encoding"), {}, Terminal(80, True, False)),
    ],
)
def test_terminal(screen, environment, wanted):
    """Colour only on a terminal and without NO_COLOR; a width that is none is not believed."""
    assert terminal_of(screen, environment) == wanted


@given(
    st.lists(st.tuples(st.text("ab ,/\u00a0x", max_size=30), st.sampled_from(["", "good", "bad"]))),
    st.integers(40, 90),
)
def test_flow_loses_no_word(parts, width):
    """Broken lines hold every word in order, and none is too wide."""
    lines = flow(spans(*parts), Terminal(width), first="  ", rest="    ")

    assert all(len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join("".join(text for text, _ in parts).split())


def test_columns_stand_below_each_other():
    """Cells are as wide as the widest; the last one flows under itself."""
    rows = [(Span("a"), Span("word " * 20)), (Span("bbb"), Span("x"))]

    lines = columns(rows, Terminal(50))

    assert (
        lines[0].startswith("a    word")
        and lines[1].startswith("     word")
        and lines[-1] == "bbb  x"
    )
    assert columns([], Terminal(50)) == []


def test_plain_characters_cover_what_reports_use():
    """Every character beyond ASCII in a report has a plain one."""
    source = "".join(
        path.read_text() for path in pathlib.Path(topology_text.__file__).parent.glob("*_text.py")
    )
    code = re.sub(r'"""(?s:.*?)"""|#.*', "", source)

    assert {letter for letter in code if ord(letter) > 127 and letter not in map(chr, PLAIN)} <= {
        "✓",
        "✗",
    }
