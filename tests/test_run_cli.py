"""Does the command line of ``wellfed run`` mean the same to both of its parsers, and say what is wrong in a sentence?"""

from __future__ import annotations

import importlib.resources
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import validate

from tests.hosts.assemble import assemble, write
from tests.launching import environment, launch
from wellfed.cli.run import request_of, settings_of
from wellfed.cli.run_command import command as make_command
from wellfed.cli.run_options import OPTIONS, Option, Words, defaults, parse
from wellfed.cli.run_teller import Teller
from wellfed.model.errors import GpuError, UsageError, WellfedError
from wellfed.model.value import replace
from wellfed.workflows.launch import explain_ranks
from wellfed.workflows.machine import (
    KnownHost,
    environment_of,
    know,
    known_for_launch,
    why_ask_nvidia,
)
from wellfed.workflows.plan import gpu_named, plan_launch

GOOD = {
    "--policy": ["node", "exclusive", "core-complex"],
    "--smt": ["on", "off"],
    "--reserve": ["0-3", "1,5"],
    "--reserve-cores": ["0", "2"],
    "--roles": ["main=4,loader=8", "loader"],
    "--threads": ["3"],
    "--memory": ["bind", "none"],
    "--memory-size": ["64G", "1.5T"],
    "--ranks": ["1", "8"],
    "--gpus": ["0,2", "GPU-8932f937", "0000:3b:00.0"],
    "--grace": ["0", "2.5"],
    "--log-dir": ["logs", "a b"],
    "--malloc": ["jemalloc", "none"],
    "--keep-env": ["OMP_NUM_THREADS", "X"],
    "--nice": ["5", "+3"],
    "--sched": ["batch", "idle"],
    "--cpu-latency": ["0", "50"],
    "--memlock": ["unlimited", "64K"],
    "--nofile": ["4096"],
    "--oom-score-adj": ["500"],
    "--memory-limit": ["1G"],
    "--verify": ["5"],
    "--watch-interval": ["0.5"],
    "--report": ["r.json"],
    "--format": ["json"],
    "--host": ["host.tar.xz"],
}  # fmt: skip
"""Values that each option takes."""

BAD = ["", "-1", "nonsense", "0-", "1e400", "nan", "9" * 30, "a=b", "fifo", "٣"]
NAMES = [name for option in OPTIONS for name in option.names]

words = st.lists(
    st.one_of(
        st.sampled_from(NAMES),
        st.sampled_from([f"{name}={value}" for name, values in GOOD.items() for value in values]),
        st.sampled_from([value for values in GOOD.values() for value in values]),
        st.sampled_from(BAD),
        st.sampled_from([f"{name}={value}" for name in GOOD for value in BAD]),
        st.sampled_from(
            ["--", "-", "-qv", "-vq", "--pol", "--policy node", "true", "-x", "--quiet=1", "-q=1"]
        ),
        st.text(max_size=6),
    ),
    max_size=7,
)


def by_click(given_words: list[str]) -> Words | None:
    """Read a command line as click does; None where it or a converter refuses."""
    import click

    found: list[Words] = []

    def take(understood: Words) -> int:
        found.append(understood)
        return 0

    try:
        make_command(OPTIONS, take).main(args=given_words, prog_name="run", standalone_mode=False)
    except (click.ClickException, WellfedError):
        return None
    except SystemExit:
        return found[0]
    return None


@settings(deadline=None, max_examples=300)
@given(words)
def test_both_parsers_read_the_same(line):
    """Whatever the small parser understands, click understands alike; the rest is click's."""
    understood = parse(line)

    if understood is not None:
        assert by_click(line) == understood


@pytest.mark.parametrize("name", sorted(GOOD))
def test_every_option_is_read_without_click(name):
    """Both ways of writing a value, in front of a command; what click reads is the same."""
    for value in GOOD[name]:
        apart, joined = [name, value, "--", "true"], [f"{name}={value}", "true"]

        assert parse(apart) == parse(joined) == by_click(apart) == by_click(joined) is not None


def test_every_option_has_good_values_here():
    """A new option comes with its values."""
    assert {option.names[-1] for option in OPTIONS if option.metavar is not None} == set(GOOD)


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.metavar is None], ids=lambda o: o.field)
def test_flags_are_off_unless_given(option: Option):
    """Every flag, by each of its names."""
    assert defaults()[option.field] is False
    for name in option.names:
        assert parse([name, "true"]).options[option.field] is True


def test_dashes_end_our_options():
    """What follows them is the command's, whatever it looks like."""
    assert parse(["-q", "--", "--policy", "node"]).command == ("--policy", "node")
    assert parse(["x", "--", "y"]).command == ("x", "--", "y")


def test_the_last_use_counts_and_repeated_ones_gather():
    """As everywhere on a command line."""
    found = parse(["--ranks", "2", "--ranks", "4", "--keep-env", "A", "--keep-env", "B", "true"])

    assert found.options["ranks"] == 4
    assert found.options["keep_env"] == ("A", "B")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--ranks", "0", "true"], "outside 1 to 4096"),
        (["--ranks", "many", "true"], "--ranks"),
        (["--policy", "nearest", "true"], "node, exclusive"),
        (["--reserve", "0-z", "true"], "--reserve"),
        (["--memory-size", "0", "true"], "--memory-size"),
        (["--roles", "main=4,driver=2", "true"], "driver=2"),
        (["--roles", "loader=0", "true"], "--roles"),
        (["--gpus", "0,,1", "true"], "--gpus"),
        (["--gpus", "0,0", "true"], "--gpus"),
        (["--keep-env", "A=B", "true"], "--keep-env"),
        (["--verify", "soon", "true"], "seconds"),
        (["--watch-interval", "0", "true"], "too short"),
        (["--sched", "fifo", "true"], "spins"),
        (["--nofile", "-1", "true"], "outside"),
        (["--unknown", "true"], "--unknown"),
        (["--policy"], "--policy"),
        ([], "no command"),
        (["-q"], "no command"),
        (["--host", "x", "true"], "--explain"),
        (["--format", "json", "true"], "--explain"),
        (["--log-dir", "x", "true"], "--per-gpu"),
        (["--memory-limit", "1G", "true"], "--isolate"),
        (["--per-gpu", "--ranks", "2", "true"], "once"),
        (["--per-gpu", "true"], "no GPU is visible"),
        (["--gpus", "99", "true"], "99"),
        (["--explain", "--host", "/no/such/file"], "/no/such/file"),
        (["--explain", "--host", "/etc/passwd"], "/etc/passwd"),
    ],
)  # fmt: skip
def test_bad_lines_are_answered_in_a_sentence(line, said):
    """What was found, exit 2, no traceback, nothing on stdout."""
    done = launch(*line)

    assert (done.returncode, done.stdout) == (2, b"")
    assert said.encode() in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {"LOCAL_RANK": "9", "LOCAL_WORLD_SIZE": "8"},
        {"LOCAL_RANK": "one", "LOCAL_WORLD_SIZE": "8"},
        {"LOCAL_RANK": "1"},
        {"LOCAL_RANK": "-1", "LOCAL_WORLD_SIZE": "2"},
    ],
)
def test_ranks_that_make_no_sense_are_refused(variables):
    """A rank outside its job, or without the job's size, is a sentence and exit 2."""
    done = launch("--", "echo", "started", **variables)

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"LOCAL_RANK" in done.stderr
    assert b"what to do" in done.stderr


def test_help_shows_every_option_once():
    """Made from the same table; the group's --help and run's own."""
    done = launch("--help")

    text = done.stdout.decode()
    assert done.returncode == 0
    assert all(option.group + ":" in text for option in OPTIONS)
    assert all(text.count(f" {option.names[-1]} ") >= 1 for option in OPTIONS)


def test_completion_offers_choices():
    """click's completion reads the same table."""
    done = subprocess.run(
        [sys.executable, "-m", "wellfed"],
        capture_output=True,
        env=environment(
            _WELLFED_COMPLETE="bash_complete", COMP_WORDS="wellfed run --policy ex", COMP_CWORD="3"
        ),
        check=False,
    )

    assert b"exclusive" in done.stdout


def test_options_become_wishes():
    """Each option lands in its field."""
    line = ["--policy", "exclusive", "--smt", "off", "--reserve", "0-1", "--reserve-cores", "1", "--memory", "bind",
            "--memory-size", "1G", "--roles", "loader=2", "--gpus", "0", "--per-gpu", "--nice", "3", "true"]  # fmt: skip
    options = parse(line).options

    request, rest = request_of(options), settings_of(options)

    wishes = request.wishes
    assert (wishes.policy, wishes.smt, str(wishes.reserve), wishes.reserve_cores_per_node) == (
        "exclusive",
        "off",
        "0-1",
        1,
    )
    assert (wishes.memory, wishes.wanted_bytes, wishes.roles) == ("bind", 1 << 30, (("loader", 2),))
    assert (request.gpus, request.per_gpu, request.starts_ranks) == (("0",), True, True)
    assert rest.nice == 3


def planned(name: str, *line: str, **variables: str):
    """Plan for an assembled host as `run` would there."""
    tree = assemble(name)
    known = KnownHost(know(tree), {**environment_of(tree), **variables})
    return plan_launch(known, request_of(parse([*line, "true"]).options))


def test_one_rank_per_gpu_on_an_eight_gpu_host():
    """Four ranks on each socket, in PCI order, each with 14 cores of its own."""
    plan = planned("ubuntu2204-dgxh100-8h100", "--per-gpu", "--policy", "exclusive")

    ranks = plan.placement.ranks
    assert [len(rank.gpus) for rank in ranks] == [1] * 8
    assert [str(rank.memory.nodes) for rank in ranks] == ["0"] * 4 + ["1"] * 4
    assert [rank.num_cores for rank in ranks] == [14] * 8


def test_a_process_without_a_launcher_is_beside_all_its_gpus():
    """One process, every GPU it may see."""
    plan = planned("ubuntu2204-dgxh100-8h100", CUDA_VISIBLE_DEVICES="5,6")

    assert plan.job is None
    assert len(plan.own.gpus) == 2
    assert str(plan.own.memory.nodes) == "1"


def test_a_rank_of_torchrun_takes_its_own_part():
    """Every rank plans all and takes its own."""
    plan = planned(
        "ubuntu2204-dgxh100-8h100", LOCAL_RANK="5", LOCAL_WORLD_SIZE="8", RANK="5", WORLD_SIZE="8"
    )

    assert plan.own.local_rank == 5
    assert plan.own.gpus == (plan.machine.gpus[5].pci_address,)


@pytest.mark.parametrize(
    ("rank", "option", "told"),
    [("0", "-q", False), ("0", None, True), ("5", None, False), ("5", "-v", True)],
)
def test_what_holds_for_a_host_is_told_by_its_first_rank(capfd, rank, option, told):
    """Eight ranks of torchrun plan the same: seven of them need not say it again."""
    plan = planned(
        "ubuntu2204-dgxh100-8h100", LOCAL_RANK=rank, LOCAL_WORLD_SIZE="8", RANK=rank, WORLD_SIZE="8"
    )
    plan = replace(plan, machine=replace(plan.machine, notes=("the moon is full",)))
    options = parse([*([option] if option else []), "true"]).options
    Teller(options).planned(plan, ())

    assert ("the moon is full" in capfd.readouterr().err) == told


@pytest.mark.parametrize("name", ["5", "0000:c3:00.0", "00000000:C3:00.0", "c3:00.0"])
def test_a_gpu_has_several_names(name):
    """Index in PCI order, PCI address as sysfs or NVML writes it."""
    machine = know(assemble("ubuntu2204-dgxh100-8h100"))

    assert gpu_named(machine, name).index == 5


def test_a_gpu_is_named_by_the_beginning_of_its_uuid():
    """As in CUDA_VISIBLE_DEVICES; what fits several is refused."""
    machine = know(assemble("ubuntu2204-dgxh100-8h100"))

    assert gpu_named(machine, machine.gpus[3].uuid).index == 3
    assert gpu_named(machine, machine.gpus[3].uuid.upper()).index == 3
    with pytest.raises(GpuError, match="more than one"):
        gpu_named(machine, "GPU-")
    with pytest.raises(GpuError, match="is no GPU"):
        gpu_named(machine, "8")


def test_chosen_gpus_become_the_only_visible_ones():
    """--gpus 5,2 for ranks we start: rank 0 on GPU 5, rank 1 on GPU 2, and CUDA shows them in that order."""
    plan = planned("ubuntu2204-dgxh100-8h100", "--per-gpu", "--gpus", "5,2")
    ranks = explain_ranks(plan, settings_of(parse(["true"]).options))

    uuids = [plan.machine.gpus[i].uuid for i in (5, 2)]
    assert [rank.placement.gpus for rank in ranks] == [
        (plan.machine.gpus[i].pci_address,) for i in (5, 2)
    ]
    assert {rank.environment["CUDA_VISIBLE_DEVICES"] for rank in ranks} == {",".join(uuids)}


def test_gpus_can_be_chosen_by_the_cores_beside_them():
    """Two ranks on eight GPUs: one GPU of each socket."""
    plan = planned("ubuntu2204-dgxh100-8h100", "--ranks", "2", "--gpus", "auto")

    assert [str(rank.cpu_nodes) for rank in plan.placement.ranks] == ["0", "1"]


def test_mixed_gpus_are_put_in_pci_order():
    """Without CUDA_DEVICE_ORDER nobody knows the order; children of run get PCI_BUS_ID, so here it is known."""
    plan = planned("debian12-workstation-2mixed", "--per-gpu")
    ranks = explain_ranks(plan, settings_of(parse(["true"]).options))

    assert plan.visible.order_known
    assert [rank.environment["CUDA_DEVICE_ORDER"] for rank in ranks] == ["PCI_BUS_ID"] * 2
    assert [rank.placement.gpus for rank in ranks] == [
        (gpu.pci_address,) for gpu in plan.machine.gpus
    ]


@pytest.mark.parametrize(
    ("name", "variables", "reason"),
    [
        ("ubuntu2204-dgxh100-8h100", {}, None),
        ("ubuntu2204-dgxh100-8h100", {"CUDA_VISIBLE_DEVICES": "3,1"}, None),
        ("ubuntu2204-dgxh100-8h100", {"CUDA_VISIBLE_DEVICES": "MIG-377e0049-554c-540b-93c6-d0976f8426cb"}, "MIG"),
        ("ubuntu2204-2socketvm-2h100", {}, "does not say where GPU 0, 1 is"),
        ("debian12-workstation-2mixed", {}, "different models"),
        ("debian12-workstation-2mixed", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, None),
        ("kubernetes-dgxh100-1of8h100", {}, None),
    ],
)  # fmt: skip
def test_the_driver_is_asked_only_where_files_cannot_decide(name, variables, reason):
    """And the reason is said."""
    tree = assemble(name)
    machine = known_for_launch(tree).machine

    reasons = why_ask_nvidia(machine, variables)

    assert (reason is None) == (reasons == ())
    assert reason is None or any(reason in each for each in reasons)


def schema(name: str) -> dict:
    """Load a published schema."""
    return json.loads(
        importlib.resources.files("wellfed.report").joinpath(f"schemas/{name}.json").read_text()
    )


@pytest.fixture(scope="module")
def dgx(tmp_path_factory):
    """Write an eight-GPU host as a folder for --host."""
    folder = tmp_path_factory.mktemp("dgx")
    write("ubuntu2204-dgxh100-8h100", folder)
    return str(folder)


@pytest.mark.parametrize("width", ["80", "100", "200"])
def test_the_plan_fits_the_terminal(dgx, width):
    """No line of the table is wider than the terminal, and a wide one shows more."""
    done = launch("--explain", "--per-gpu", "--policy", "exclusive", "--host", dgx, COLUMNS=width)

    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0
    assert max(map(len, lines)) <= int(width)
    assert ("model" in done.stdout.decode()) == (width == "200")
    assert sum(line.split()[-1:] == ["yes"] or "yes" in line.split() for line in lines) == 8


def test_a_long_list_of_cpus_is_folded(dgx):
    """One process beside eight GPUs, many ranges: nothing is cut."""
    done = launch(
        "--explain",
        "--per-gpu",
        "--smt",
        "off",
        "--reserve",
        "1,3,5,7,9,11,13,15,17,19,21",
        "--host",
        dgx,
        COLUMNS="80",
    )

    assert max(map(len, done.stdout.decode().splitlines())) <= 80


def test_the_plan_is_json(dgx):
    """wellfed/plan/1: ranks with GPUs, CPUs, memory and the variables that change."""
    done = launch(
        "--explain", "--format", "json", "--per-gpu", "--policy", "exclusive", "--host", dgx
    )
    plan = json.loads(done.stdout)

    validate(plan, schema("plan-1"))
    assert [rank["gpus"][0]["index"] for rank in plan["ranks"]] == list(range(8))
    assert plan["ranks"][0]["cpus"] == "0-13,112-125"
    assert plan["ranks"][0]["memory"] == {"mode": "preferred", "nodes": "0"}
    assert {"name", "value", "before", "reason", "warning"} == set(
        plan["ranks"][0]["environment"][0]
    )


def test_explain_acts_on_nothing(dgx, tmp_path):
    """Neither the command runs nor anything is written."""
    done = launch(
        "--explain",
        "--host",
        dgx,
        "--",
        "touch",
        str(tmp_path / "made"),
        WELLFED_STATE_DIR=str(tmp_path / "state"),
    )

    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_explain_shows_all_that_would_be_done(dgx):
    """Limits, priority, cgroup, allocator and what happens after the start, as well as places."""
    words = ("--nice", "3", "--sched", "batch", "--memlock", "unlimited", "--nofile", "4096", "--oom-score-adj", "9",
             "--cpu-latency", "20", "--isolate", "--memory-limit", "64G", "--verify", "30", "--watch",
             "--malloc", "jemalloc", "--log-dir", "/logs")  # fmt: skip
    text = " ".join(launch("--explain", "--per-gpu", *words, "--host", dgx).stdout.decode().split())

    wanted = ("niceness 3", "class batch", "lock any amount", "4096 files", "oom_score_adj 9", "within 20 µs",
              "cgroup of its own", "64 GiB", "after 30 s", "every 5 s", "libjemalloc.so.2", "/logs")  # fmt: skip
    assert [each for each in wanted if each not in text] == []


def test_explain_shows_evidence_on_request(dgx):
    """-v: every source and what it says."""
    plain, verbose = launch("--explain", "--host", dgx), launch("--explain", "-v", "--host", dgx)

    assert b"sysfs numa_node" not in plain.stdout
    assert b"sysfs numa_node" in verbose.stdout


def test_explain_into_a_closed_pipe_is_quiet(dgx):
    """`| head -1` is no traceback."""
    script = f"{sys.executable} -m wellfed run --explain -v --host {dgx} | head -1"

    done = subprocess.run(["sh", "-c", script], capture_output=True, env=environment(), check=False)

    assert done.stdout.startswith(b"plan for")
    assert done.stderr == b""


def test_explain_of_this_host_plans_it():
    """Without --host it is this one."""
    done = launch("--explain", "--ranks", "2", "--format", "json")
    plan = json.loads(done.stdout)

    assert plan["host"]["live"] is True
    assert len(plan["ranks"]) == 2


@pytest.mark.corpus
@pytest.mark.parametrize("pattern", ["topo-m/*.txt", "nccl/*.xml", "mpibind/*.xml"])
def test_other_tools_descriptions_can_be_planned(corpus, pattern):
    """hwloc XML, NCCL XML, topo -m text: a plan, or one sentence that says what is missing; never a traceback."""
    files = sorted((corpus / "topology").glob(pattern))
    assert files
    done = [launch("--explain", "--ranks", "2", "--host", str(path)) for path in files[:4]]

    for each in done:
        assert each.returncode in (0, 2)
        assert b"Traceback" not in each.stderr
        assert each.returncode == 0 or b"what to do" in each.stderr


def test_a_plan_needs_a_rank_of_its_own():
    """A rank that sees nobody's GPU is told so."""
    with pytest.raises(UsageError):
        planned("ubuntu2204-dgxh100-8h100", LOCAL_RANK="9", LOCAL_WORLD_SIZE="8")


def test_the_report_is_as_published(tmp_path):
    """wellfed/run/1, its plan and its bindings, of ranks that were verified."""
    path = tmp_path / "r.json"
    words = ("--ranks", "2", "--memory", "local", "--verify", "0.1", "--report", str(path))

    done = launch("-q", *words, "--", "sleep", "0.5")
    found = json.loads(path.read_text())

    assert done.returncode == 0
    validate(found, schema("run-1"))
    validate(found["plan"], schema("plan-1"))
    assert [rank["exit_code"] for rank in found["ranks"]] == [0, 0]
    assert all(rank["verified"] is not None for rank in found["ranks"])
