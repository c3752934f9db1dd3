"""Does the doctor tell a host's findings truly, in few words, and the same of a recording as of the host?"""

from __future__ import annotations

import importlib.resources
import json
import re

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus import cases
from tests.doctoring import (
    A100,
    CPU_ONLY,
    DGX,
    MIXED,
    ONE_NODE,
    POD,
    RANK,
    TWO_NODE_VM,
    changed,
    checks,
)
from tests.hosts.assemble import names, write
from tests.machines import machine
from wellfed.checks._base import Check, ok
from wellfed.checks._room import judge_all
from wellfed.cli.doctor import exit_code
from wellfed.host.live_tree import LiveTree
from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.errors import UsageError
from wellfed.model.finding import (
    FAIL,
    NOT_APPLICABLE,
    OK,
    UNKNOWN,
    WARN,
    WORKLOADS,
    Diagnosis,
    Finding,
    Proof,
)
from wellfed.model.tree import Unreadable
from wellfed.report import doctor_json, doctor_text
from wellfed.report.terminal import Terminal
from wellfed.workflows.capture import capture
from wellfed.workflows.doctor import examine
from wellfed.workflows.machine import know
from wellfed.workflows.snapshot import declared, parse_environment, paths_of, snapshot_of

SCHEMA = json.loads(
    importlib.resources.files("wellfed.report").joinpath("schemas/doctor-1.json").read_text()
)


def diagnosed(name, workload="training", **changes) -> Diagnosis:
    tree = changed(name, **changes)
    host = know(tree)
    return Diagnosis(
        host, workload, judge_all(snapshot_of(tree, host, checks()), workload, checks())
    )


def text_of(diagnosis, width=80, verbose=False, **terminal):
    return doctor_text.render(diagnosis, Terminal(width, **terminal), verbose=verbose)


def said(*findings: Finding, live=False) -> Diagnosis:
    return Diagnosis(machine({0: "0-3"}, live=live), "training", findings)


# what is found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (DGX, []),
        (A100, []),
        (ONE_NODE, []),
        (CPU_ONLY, []),
        (MIXED, [("warn", "env.cuda_device_order")]),
        (TWO_NODE_VM, [("warn", "gpu.numa_node")]),
        (
            POD,
            [
                ("fail", "cg.cpuset"),
                ("fail", "numa.cgroup_mems"),
                ("warn", "cg.cpu_max"),
                ("warn", "ctr.mempolicy_seccomp"),
            ],
        ),
    ],
)
def test_assembled_hosts(name, wanted):
    """The findings of each assembled host, written down by hand: no other, and none missing."""
    found = [
        (each.verdict, each.rule)
        for each in diagnosed(name).findings
        if each.verdict in (FAIL, WARN)
    ]

    assert found == wanted


@pytest.mark.parametrize(
    "path", cases("topology/hwloc/*.tar.bz2") + cases("topology/lscpu/*.tar.gz")
)
def test_recorded_roots_without_gpu_are_left_alone(path):
    """Machines that nobody here recorded, without a GPU: no finding for those who train or serve."""
    if path.name == "allowed_test1.fsroot.tar.bz2":
        pytest.skip("holds no CPU: reading it is refused with a reason")
    diagnosis = examine(str(path), sample_seconds=0)
    if diagnosis.machine.gpus:
        pytest.skip("has GPUs: see the test of that machine")

    assert {each.verdict for each in diagnosis.findings} <= {NOT_APPLICABLE, UNKNOWN}


@pytest.mark.parametrize("path", cases("topology/hwloc/nvidiagpunumanodes.tar.bz2"))
def test_power9_with_six_gpus(path):
    """Its cpuset left one socket of two: half the GPUs are out of reach, and everything else was not recorded."""
    diagnosis = examine(str(path), sample_seconds=0)
    found = {each.rule: each for each in diagnosis.findings if each.verdict in (FAIL, WARN)}

    assert {rule: each.verdict for rule, each in found.items()} == {
        "cg.cpuset": "warn",
        "numa.cgroup_mems": "warn",
    }
    assert "beside GPUs 0-2, none beside GPUs 3-5" in found["cg.cpuset"].summary


def test_description_of_another_tool(tmp_path):
    """`nvidia-smi topo -m` shows where GPUs are; everything else is unknown, and nothing is made up."""
    path = tmp_path / "topo.txt"
    path.write_text(
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV18\t0-47\t0\tN/A\n"
        "GPU1\tNV18\t X \t48-95\t1\tN/A\n"
    )

    diagnosis = examine(str(path), sample_seconds=0)
    verdicts = {each.rule: each.verdict for each in diagnosis.findings}

    assert verdicts["gpu.numa_node"] == "ok"
    assert verdicts["mem.numa_balancing"] == "unknown"
    assert verdicts["env.omp_affinity"] == "unknown"


# a recording tells what the host told


def test_this_host_recorded_is_judged_as_it_was(tmp_path):
    """Capture here, judge there: word for word the same findings."""
    path = tmp_path / "host.tar.gz"
    capture(str(path), sample_seconds=0, identify=True)

    for workload in WORKLOADS:
        live = examine(workload=workload, sample_seconds=0)
        recorded = examine(str(path), workload=workload, sample_seconds=0)
        assert recorded.findings == live.findings


@pytest.mark.parametrize("name", names())
def test_assembled_host_on_disk_is_judged_as_in_memory(name, tmp_path):
    """`--host FOLDER` gives what the tree in memory gave."""
    write(name, tmp_path / "host")
    tree = changed(name)
    host = know(tree)

    on_disk = examine(str(tmp_path / "host"), sample_seconds=0)

    assert on_disk.findings == judge_all(snapshot_of(tree, host, checks()), "training", checks())


# the snapshot


def counting(*rates: str, reads: tuple[str, ...] = (), asks: tuple[str, ...] = ()) -> Check:
    return Check(
        "What?",
        ("test.x",),
        lambda s, w: [ok("test.x", "x")],
        "Because.",
        ("https://x.org",),
        reads,
        asks,
        rates,
    )


def test_counters_of_a_live_host_are_read_twice():
    """The second reading comes after the wait, and the interval is the time that really passed."""
    waited = []
    host = machine({0: "0-3"}, live=True)

    snapshot = snapshot_of(
        LiveTree(), host, [counting("/proc/uptime")], sample_seconds=0.05, wait=waited.append
    )

    rate = snapshot.rates["/proc/uptime"]
    assert len(waited) == 1 and 0 <= waited[0] <= 0.05
    assert (
        isinstance(rate.first, str) and isinstance(rate.second, str) and rate.interval_seconds > 0
    )


def test_nothing_is_waited_for_without_counters():
    """A question without rates costs no second."""

    def never(seconds):
        raise AssertionError(seconds)

    snapshot_of(
        LiveTree(),
        machine({0: "0-3"}),
        [counting(reads=("/proc/swaps",))],
        sample_seconds=5,
        wait=never,
    )


def test_no_sample_means_no_second_reading():
    """With 0 seconds a rate is unknown, not zero."""
    snapshot = snapshot_of(
        LiveTree(), machine({0: "0-3"}), [counting("/proc/vmstat")], sample_seconds=0
    )

    assert snapshot.rates["/proc/vmstat"].second == Unreadable("ENODATA")


def test_recorded_second_readings_are_used():
    """Whatever is asked of it, a recording gives the readings and the interval that were recorded."""
    tree = changed(DGX, files={"/proc/vmstat": "pswpin 1"}, second={"/proc/vmstat": "pswpin 9"})

    rate = snapshot_of(
        tree, know(tree), [counting("/proc/vmstat", "/proc/none")], sample_seconds=9
    ).rates

    assert (rate["/proc/vmstat"].second, rate["/proc/vmstat"].interval_seconds) == ("pswpin 9", 1.0)
    assert rate["/proc/none"].second == Unreadable("ENODATA")


def test_patterns_stand_for_what_is_there():
    """`*` and `?` within one component; what is not there does not match, what may not be read does."""
    tree = RecordedTree(
        "x",
        {
            "/sys/a1/v": b"1\n",
            "/sys/a2/v": b"2\n",
            "/sys/b1/v": b"3\n",
            "/sys/a10/v": b"4\n",
            "/sys/a3/w": b"5\n",
        },
        errnos={"/sys/a4/v": "EACCES"},
    )

    snapshot = snapshot_of(
        tree, machine({0: "0"}), [counting(reads=("/sys/a?/v", "/sys/a*/v", "/sys/a1/v"))]
    )

    assert snapshot.match("/sys/a?/v") == ("/sys/a1/v", "/sys/a2/v", "/sys/a4/v")
    assert snapshot.match("/sys/a*/v") == ("/sys/a1/v", "/sys/a10/v", "/sys/a2/v", "/sys/a4/v")
    assert snapshot.read("/sys/a2/v") == "2" and snapshot.read("/sys/a4/v") == Unreadable("EACCES")


def test_cgroup_files_are_found_where_the_process_is():
    """The process's own group first, then each one above it, wherever they are mounted."""
    assert paths_of(changed(DGX), "cgroup.cpu/cpu.stat") == (
        "/sys/fs/cgroup/user.slice/user-1000.slice/session-4.scope/cpu.stat",
        "/sys/fs/cgroup/user.slice/user-1000.slice/cpu.stat",
        "/sys/fs/cgroup/user.slice/cpu.stat",
        "/sys/fs/cgroup/cpu.stat",
    )
    assert paths_of(RecordedTree("x", {}), "cgroup.cpu/cpu.stat") == ()


def test_everything_declared_is_read_once():
    """Declarations of several checks are joined."""
    both = declared(
        [counting("/r", reads=("/a", "/b"), asks=("q",)), counting(reads=("/b",), asks=("q",))]
    )

    assert (both.reads, both.asks, both.rates) == (("/a", "/b"), ("environ", "q"), ("/r",))


def test_contradicting_rank_variables_are_a_finding_not_an_error():
    """A launch environment that makes no sense is told; the other checks still speak."""
    diagnosis = diagnosed(DGX, environ="LOCAL_RANK=9\nLOCAL_WORLD_SIZE=8")

    (finding,) = [each for each in diagnosis.findings if each.rule == "placement.rank"]
    assert finding.verdict == WARN and "outside its 8 ranks" in finding.summary


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text("ab=1 ,\r\x0b\x85\u2028", max_size=9)
    )
)
def test_environment_is_read_as_it_was_written(environment):
    """`NAME=value`, one a line; a value may hold equals signs."""
    text = "\n".join(f"{name}={value}" for name, value in environment.items())

    assert parse_environment(text) == environment
    assert parse_environment(Unreadable("ENODATA")) == {}


# JSON


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", [*names(), CPU_ONLY])
def test_json_keeps_its_schema(name, verbose):
    """Every host fulfils the published schema."""
    said = json.loads(json.dumps(doctor_json.as_json(diagnosed(name), verbose=verbose)))

    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(said, SCHEMA)


def test_json_lists_every_rule_when_asked():
    """With --verbose all verdicts, without only those that want attention."""
    diagnosis = diagnosed(POD)
    quiet = doctor_json.as_json(diagnosis)["rules"]
    whole = doctor_json.as_json(diagnosis, verbose=True)["rules"]

    assert {each["rule"] for each in whole} == {rule for check in checks() for rule in check.rules}
    assert {each["verdict"] for each in quiet} == {"fail", "warn"}
    assert [each["verdict"] for each in whole][:2] == ["fail", "fail"]


def test_json_counts():
    """Counts are those of all rules, listed or not."""
    said = doctor_json.as_json(diagnosed(POD))

    assert said["counts"]["fail"] == 2 and said["counts"]["warn"] == 2 and said["counts"]["ok"] > 5
    assert said["verdict"] == "fail"
    assert sum(said["counts"].values()) == len(checks())


# text


def test_text_leads_with_few_words():
    """The first line says how the host is."""
    first = text_of(diagnosed(POD), 120).splitlines()[0]

    assert re.fullmatch(
        r"4 findings on kubernetes-dgxh100-1of8h100 for training, \d\d ok(, [1-9]\d* unknown)?, \d+ not applicable",
        first,
    )
    assert text_of(diagnosed(DGX), 120).startswith(
        "no findings on ubuntu2204-dgxh100-8h100 for training, "
    )


def test_text_of_a_host_without_gpu():
    """Where nothing applies the reason stands in the first sentence, and nothing else is said."""
    text = text_of(
        said(
            *[Finding(f"a.{n}", NOT_APPLICABLE, "no GPU is seen here") for n in range(3)], live=True
        ),
        100,
    )

    assert (
        text.splitlines()[0]
        == "no findings on this host for training: no GPU is seen here, 3 rules not applicable"
    )
    assert len(text.splitlines()) == 2


def test_finding_in_full():
    """The sentence, what was read and wanted, why, and each command on a line of its own."""
    finding = Finding(
        "mem.x",
        WARN,
        "the knob is 1",
        (Proof("/proc/x", "1", "0"),),
        "sysctl -w x=0   # now\n# or never",
        "echo x=0 > /etc/sysctl.d/60-x.conf",
        "sysctl -w x=1",
        "It hurts.",
        ("https://a.org", "https://b.org"),
    )

    assert text_of(said(finding)).split("\n\n")[1].splitlines() == [
        "WARN  mem.x",
        "  The knob is 1",
        "  found   /proc/x: 1 (wanted: 0)",
        "  why     It hurts.",
        "  fix     sysctl -w x=0   # now",
        "          # or never",
        "  keep    echo x=0 > /etc/sysctl.d/60-x.conf",
        "  undo    sysctl -w x=1",
        "  source  https://a.org",
    ]
    assert "https://b.org" in text_of(said(finding), verbose=True)


def test_commands_are_never_broken():
    """What will be pasted stays on one line, however narrow the terminal."""
    command = "echo " + "long " * 30 + "> /sys/x"

    assert command in text_of(said(Finding("a.b", FAIL, "x", remedy=command)), 60)


def test_unknown_is_summed_up_in_one_sentence():
    """How many, which first, and how to get to know."""
    unknown = [Finding(f"a.r{n}", UNKNOWN, "permission denied") for n in range(5)]

    live = text_of(said(*unknown, live=True), 200)
    recorded = text_of(said(*unknown), 200)

    assert "5 cannot be told: a.r0, a.r1, a.r2 and 2 more." in live and "as root" in live
    assert "wellfed capture" in recorded


def test_verbose_shows_what_is_fine_and_why():
    """Each rule stands beside its reason; rules with one reason stand together."""
    text = text_of(diagnosed(ONE_NODE), verbose=True)

    assert "beside the only node with CPUs" in text
    assert re.search(r"one NUMA node has all memory:\n    [a-z_., ]*mem.zone_reclaim_mode", text)
    assert "unknown\n" in text and "not applicable\n" in text and "ok\n" in text


@pytest.mark.parametrize("name", names())
@settings(deadline=None, max_examples=8)
@given(width=st.integers(60, 220), verbose=st.booleans())
def test_prose_fits(name, width, verbose):
    """Only commands and addresses may be wider than the terminal; colour changes no letter."""
    diagnosis = diagnosed(name)
    plain = text_of(diagnosis, width, verbose)
    painted = text_of(diagnosis, width, verbose, colour=True)

    for line in plain.splitlines():
        assert (
            len(line) <= width
            or "http" in line
            or line.startswith(("  fix", "  keep", "  undo", " " * 10))
        )
    assert re.sub("\x1b\\[[0-9;]*m", "", painted) == plain
    assert "\x1b" not in plain


def test_hostile_texts_reach_no_terminal():
    """What stood in a recorded file is quoted, and its control characters are not passed on."""
    tree = changed(DGX, files={"/proc/sys/kernel/numa_balancing": "\x1b[2J\x07"})
    host = know(tree)
    diagnosis = Diagnosis(
        host, "training", judge_all(snapshot_of(tree, host, checks()), "training", checks())
    )

    assert "\x1b" not in text_of(diagnosis, verbose=True)


# exit code and choice


@pytest.mark.parametrize(
    ("verdicts", "on_fail", "on_warn", "on_unknown"),
    [
        ((), 0, 0, 0),
        ((OK, NOT_APPLICABLE), 0, 0, 0),
        ((UNKNOWN, OK), 0, 0, 1),
        ((WARN,), 0, 1, 1),
        ((FAIL, OK), 1, 1, 1),
    ],
)
def test_exit_code(verdicts, on_fail, on_warn, on_unknown):
    """1 for findings at or above the chosen verdict; what does not apply never counts."""
    diagnosis = said(*[Finding("a.b", verdict, "x") for verdict in verdicts])

    codes = [exit_code(diagnosis, verdict) for verdict in (FAIL, WARN, UNKNOWN)]

    assert codes == [on_fail, on_warn, on_unknown]


def test_rules_are_chosen():
    """--select and --ignore choose by glob, and a mistyped rule is an error."""
    diagnosis = examine(select=["mem.*"], ignore=["mem.thp*"], sample_seconds=0)

    assert {each.rule for each in diagnosis.findings} == {
        rule
        for check in checks()
        for rule in check.rules
        if rule.startswith("mem.") and "thp" not in rule
    }
    with pytest.raises(UsageError):
        examine(ignore=["no.such.rule"], sample_seconds=0)


def test_this_host_is_judged_quickly_and_without_error():
    """Whatever this machine is, each rule has a verdict for each workload."""
    for workload in WORKLOADS:
        diagnosis = examine(workload=workload, sample_seconds=0)
        assert len(diagnosis.findings) == len(checks())


def test_two_checks_do_not_contradict_each_other_about_threads():
    """Where a quota is the matter one rule speaks of it, and the other points there."""
    diagnosis = diagnosed(POD, environ=RANK)
    said = {each.rule: each for each in diagnosis.findings}

    assert said["cg.cpu_max"].verdict == "warn"
    assert (
        said["env.omp_threads"].verdict == "n/a" and "cg.cpu_max" in said["env.omp_threads"].summary
    )
