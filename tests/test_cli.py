"""Does the command line parse, answer and fail as people expect?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.doctoring import DGX, MIXED, POD
from tests.hosts.assemble import write
from wellfed.cli.commands import COMMANDS, GROUP


@pytest.fixture
def say(capfd, monkeypatch):
    """Run the command line in this process: (exit code, stdout, stderr)."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            GROUP.main(list(words), prog_name="wellfed")
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    return run


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Three assembled hosts on disk."""
    folder = tmp_path_factory.mktemp("hosts")
    for name in (DGX, POD, MIXED):
        write(name, folder / name)
    return folder


def test_help_names_every_command(say):
    """One line each, without loading any of them."""
    code, out, _ = say("--help")

    assert code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name}  ", out, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_explains_itself(say, name):
    """`wellfed COMMAND --help` answers."""
    if name == "run":
        pytest.importorskip("wellfed.cli.run")
    code, out, _ = say(name, "--help")

    assert code == 0 and out.startswith(f"Usage: wellfed {name}")


def test_version(say):
    """Name and number."""
    assert re.fullmatch(r"wellfed \d+\.\d+\.\d+\S*\n", say("--version")[1])


@pytest.mark.parametrize(
    ("typed", "meant"), [("doctr", "doctor"), ("topology", "topo"), ("captur", "capture")]
)
def test_mistyped_command(say, typed, meant):
    """The one that was probably meant is named."""
    code, _, err = say(typed)

    assert code == 2 and f"did you mean `wellfed {meant}`?" in err


def test_unknown_command(say):
    """Something else is only refused."""
    code, _, err = say("zzz")

    assert code == 2 and "no command 'zzz'" in err and "mean" not in err


def test_group_loads_no_command_and_no_library():
    """`wellfed --help` pays for click alone."""
    script = "import sys; from wellfed.cli.commands import GROUP\ntry: GROUP(['--help'])\nexcept SystemExit: print(*sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"rich", "pynvml", "psutil", "msgspec", "json", "textwrap2"}
    assert not {
        each
        for each in loaded
        if each.startswith(
            ("wellfed.checks", "wellfed.host", "wellfed.workflows", "wellfed.report")
        )
    }


def test_reports_need_no_rich():
    """A report of a terminal is written without the library that only a progress bar needs."""
    script = (
        "import sys; from wellfed.cli.commands import GROUP\n"
        "try: GROUP(['doctor', '--sample', '0'])\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert "rich" not in done.stderr.split() and "torch" not in done.stderr.split()


def test_completion_names_commands():
    """click's completion works for names and choices."""
    environment = os.environ | {
        "_WELLFED_COMPLETE": "bash_complete",
        "COMP_WORDS": "wellfed ",
        "COMP_CWORD": "1",
    }
    script = "from wellfed.cli.commands import GROUP; GROUP(prog_name='wellfed')"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )

    assert {"plain,doctor", "plain,topo"} <= set(done.stdout.split())


# doctor


def test_doctor_of_a_recorded_host(say, hosts):
    """Findings lead to 1, the report goes to stdout, nothing to stderr, and a pipe gets no colours."""
    code, out, err = say("doctor", "--host", str(hosts / POD))

    assert (code, err) == (1, "")
    assert "FAIL  cg.cpuset" in out and "\x1b" not in out


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        (DGX, (), 0),
        (MIXED, ("--fail-on", "unknown"), 1),
        (MIXED, (), 0),
        (MIXED, ("--fail-on", "warn"), 1),
        (MIXED, ("--fail-on", "warn", "--ignore", "env.*"), 0),
        (POD, ("--select", "gpu.*"), 0),
    ],
)
def test_doctor_exit_codes(say, hosts, name, options, code):
    """--fail-on says from which verdict on, --select and --ignore what counts."""
    assert say("doctor", "--host", str(hosts / name), *options)[0] == code


def test_doctor_json(say, hosts):
    """Programs get JSON, whole with --verbose."""
    _, out, err = say(
        "doctor", "--host", str(hosts / POD), "--format", "json", "--verbose", "--for", "inference"
    )
    said = json.loads(out)

    assert err == ""
    assert said["schema"] == "wellfed/doctor/1" and said["workload"] == "inference"
    assert {"rule", "verdict", "summary", "evidence", "remedy"} <= set(said["rules"][0])


def test_doctor_of_this_host(say):
    """It answers, whatever this machine is."""
    code, out, _ = say("doctor", "--sample", "0")

    assert code in (0, 1) and " on this host for training" in out


# topo


def test_topo_formats(say, hosts, tmp_path):
    """Text by default; a file's ending chooses, and --format wins."""
    host = str(hosts / DGX)
    picture, data = tmp_path / "a.svg", tmp_path / "b.json"

    assert "\n  2 packages · 2 NUMA nodes" in say("topo", "--host", host)[1]
    assert (
        json.loads(say("topo", "--host", host, "--format", "json")[1])["schema"]
        == "wellfed/topology/1"
    )
    assert say("topo", "--host", host, "-o", str(picture)) == (0, "", "")
    assert say("topo", "--host", host, "-o", str(data), "--format", "text")[0] == 0
    assert picture.read_text().startswith("<svg ")
    assert "\n  2 packages · 2 NUMA nodes" in data.read_text()


@pytest.mark.parametrize("form", ["text", "svg", "json"])
def test_topo_where_only_ascii_can_be_written(hosts, form):
    """A pipe of the C locale gets a map in plain characters, and a picture all the same."""
    done = subprocess.run(
        [sys.executable, "-m", "wellfed", "topo", "--host", str(hosts / DGX), "--format", form],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=True,
    )

    assert done.stderr == b"" and done.stdout.isascii() == (form != "svg")


def test_topo_with_ranks(say, hosts):
    """Where ranks would go is drawn beside GPUs."""
    _, out, _ = say("topo", "--host", str(hosts / DGX), "--per-gpu", "--policy", "exclusive")

    assert "[rank 7 local]" in out and "Ranks under the policy exclusive" in out
    assert "0-13,112-125" in out


def test_topo_of_ranks_that_cannot_be(say, hosts):
    """A plan that cannot be made is refused with the reason and what to do."""
    code, out, err = say(
        "topo", "--host", str(hosts / MIXED), "--ranks", "500", "--policy", "exclusive"
    )

    assert (code, out) == (2, "") and "what to do:" in err


def test_topo_into_a_place_that_is_none(say, tmp_path):
    """No traceback: the path, the reason, what to do."""
    code, _, err = say("topo", "-o", str(tmp_path / "none" / "a.svg"))

    assert code == 2 and "cannot be written" in err and "what to do:" in err


# explain


def test_explain(say):
    """One rule in full, or all in a line each."""
    _, page, _ = say("explain", "mem.numa_balancing")
    _, table, _ = say("explain")

    assert (
        "/proc/sys/kernel/numa_balancing" in page
        and "https://github.com/deepseek-ai/DeepEP/issues/624" in page
    )
    assert table.count("\n") >= 20 and "mem.swappiness" in table


# bad input


@pytest.mark.parametrize("command", ["doctor", "topo"])
@pytest.mark.parametrize(
    "content", [None, b"", b"\x00" * 100, b"hello", b"<xml>", b"\x1f\x8b\x08broken"]
)
def test_host_that_is_none(say, tmp_path, command, content):
    """One sentence and what to do, on stderr, exit code 2: never a traceback."""
    path = tmp_path / "host"
    if content is not None:
        path.write_bytes(content)

    code, out, err = say(command, "--host", str(path))

    assert (code, out) == (2, "")
    assert err.startswith("wellfed: ") and "what to do: " in err and "Traceback" not in err


def test_rule_that_is_none(say):
    """A mistyped rule ends with 2, not with a clean report."""
    for words in (("doctor", "--select", "mem.swapping"), ("explain", "mem.swapping")):
        code, _, err = say(*words)
        assert code == 2 and "mem.swapping" in err


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "--for", "fun"),
        ("doctor", "--sample", "-1"),
        ("topo", "--format", "png"),
        ("topo", "--ranks", "0"),
        ("topo", "--ranks"),
        ("topo", "--per-gpu=1"),
        ("topo", "--format", "text", "left", "over"),
        ("capture",),
        ("doctor", "--verbos"),
        ("run", "--polcy", "node", "true"),
        ("run", "--policy"),
        ("run", "--quiet=1", "true"),
        ("--nope",),
        ("nope",),
    ],
)
def test_options_that_make_no_sense(say, words):
    """click knows what would; it is told in our form: what was found, and what to type."""
    code, out, err = say(*words)

    assert (code, out) == (2, "")
    assert re.fullmatch(r"wellfed: .+\n  what to do: .*`wellfed( \w+)? --help` .+\n", err)


def test_a_mistyped_option_names_the_nearest(say):
    """One, not three."""
    _, _, err = say("run", "--polcy", "node", "true")

    assert "`wellfed run` has no option --polcy\n" in err and "did you mean --policy? " in err


@pytest.mark.parametrize(
    "words",
    [
        ("topo", "--host", "{}"),
        ("doctor", "--host", "{}"),
        ("capture", "{}.tar.gz", "--sample", "0"),
    ],
)
def test_no_control_character_reaches_the_terminal(say, tmp_path, words):
    """A file may be called anything: no colour, no title, no cursor of a name is obeyed (CVE-2003-0063's kind)."""
    name = str(tmp_path / "a\x1b[31m\x07\x9b\u202eb")

    _, out, err = say(*(word.replace("{}", name) for word in words))

    assert "a\ufffd[31m\ufffd\ufffd\ufffdb" in err
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", out + err)


def test_the_name_alone_shows_the_help(say):
    """On stdout, as if it had been asked for."""
    assert say() == say("--help")


@pytest.mark.parametrize("words", ["topo", "--help", "run --help", "run --explain", "explain"])
@pytest.mark.parametrize("where", ["/dev/full", "&-"])
def test_a_report_that_nobody_can_take(words, where):
    """A full disk is one sentence and exit 2; a closed stdout takes nothing, and is no error of ours."""
    line = f"{sys.executable} -m wellfed {words} >{where}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)

    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert done.returncode == (0 if where == "&-" else 2)
    assert ("no space left" in done.stderr) == (where != "&-")


@pytest.mark.parametrize(
    "words", ["run --explain", "run --explain -v --format json", "run --nope", "run true"]
)
def test_any_bytes_can_be_said(words):
    """In a locale that knows only ASCII, with a variable that is no text in any."""
    changes = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    changes |= {"OMP_PROC_BIND": os.fsdecode(b"\xff"), "OMP_NUM_THREADS": os.fsdecode(b"\xfe")}
    done = subprocess.run(
        [sys.executable, "-m", "wellfed", *words.split()],
        capture_output=True,
        env=os.environ | changes,
        check=False,
    )

    assert b"Traceback" not in done.stderr
    assert done.returncode == (2 if "--nope" in words else 0)
