"""Do launched ranks really run, and keep their memory, beside their GPUs, on every topology?

A program that shares no code with wellfed says what the kernel granted; the guest's description says what is right.
"""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest
from click.testing import CliRunner

from tests.lab import expected
from tests.lab import topology as topologies
from tests.lab.programs import program
from tests.launching import COMMAND, environment
from wellfed.cli.commands import GROUP

EVERY = ("1n", "2n", "4n", "8n", "odd", "gh200", "gb200", "offline", "ccx")
WHO = ("main", "thread", "child")
"""Whose mask, policy and pages the probe tells."""


def told_by_ranks(folder: pathlib.Path, *words: str) -> list[dict]:
    """Launch the probe with `wellfed run`, and give what each rank found, by rank."""
    run("-q", *words, "--", str(program("probe")), "--into", str(folder))
    found = [json.loads(path.read_text()) for path in folder.iterdir()]
    return sorted(found, key=lambda rank: int(rank["environment"]["RANK"]))


def run(*words: str) -> str:
    """Run `wellfed run` among all GPUs to its end, and give its output; anything but success fails the test."""
    env = environment()
    del env["CUDA_VISIBLE_DEVICES"]
    done = subprocess.run(
        (*COMMAND, *words), capture_output=True, text=True, env=env, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(*words: str) -> str:
    """Ask another command inside this process: under emulation imports are slow, and paid once."""
    done = CliRunner().invoke(GROUP, words)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.lab(*EVERY)
def test_every_rank_is_beside_its_gpu(topology, tmp_path):
    """Masks, policies and pages of main thread, second thread and child; without a place all CPUs, and no policy."""
    places = expected.places(topologies.read(topology))
    everything = str(topologies.read(topology).online)

    ranks = told_by_ranks(tmp_path, "--per-gpu")

    assert len(ranks) == len(places)
    for rank, place in zip(ranks, places, strict=True):
        for who in WHO:
            told = rank[who]
            if place.memory_node is None:
                assert (told["cpus"], told["policy"]) == (everything, "default")
                continue
            node = str(place.memory_node)
            assert told["cpus"] == str(place.cpus)
            assert (told["policy"], told["static"]) == ("preferred-many", True)
            assert told["policy_nodes"] == node
            assert told["pages"] == {node: 64}


@pytest.mark.lab("2n", "4n", "8n", "odd")
def test_a_hard_bind_on_cores_of_their_own_is_what_was_planned(topology, tmp_path):
    """--explain promises CPUs and nodes, rank by rank; no CPU is shared, and every page is on the node."""
    places = expected.places(topologies.read(topology))
    placed = [number for number, place in enumerate(places) if place.memory_node is not None]
    words = (
        "--per-gpu", "--gpus", ",".join(map(str, placed)), "--policy", "exclusive",
        "--memory", "bind", "--memory-size", "8M",
    )  # fmt: skip
    plan = json.loads(run("--explain", "--format", "json", *words))

    ranks = told_by_ranks(tmp_path, *words)

    taken: set[int] = set()
    for rank, planned, number in zip(ranks, plan["ranks"], placed, strict=True):
        cpus = set(expand(rank["main"]["cpus"]))
        assert cpus and cpus <= set(places[number].cpus) - taken
        taken |= cpus
        for who in WHO:
            assert rank[who]["cpus"] == planned["cpus"]
            assert (rank[who]["policy"], rank[who]["policy_nodes"]) == (
                "bind",
                planned["memory"]["nodes"],
            )
            assert rank[who]["pages"] == {str(places[number].memory_node): 64}


def expand(text: str) -> list[int]:
    """Read the kernel's list by means of its own."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


@pytest.mark.lab(*EVERY)
def test_a_capture_answers_as_its_host(topology, tmp_path):
    """Topology and plan of the recording are those of the running guest; only its name and being alive differ."""
    recording = str(tmp_path / "host.tar.gz")
    ask("capture", "--sample", "0", recording)
    topo = ("topo", "--per-gpu", "--format", "json")

    live, recorded = json.loads(ask(*topo)), json.loads(ask(*topo, "--host", recording))

    assert without_life(recorded) == without_life(live)
    assert len(live["placement"]["ranks"]) == len(expected.places(topologies.read(topology)))


def without_life(said: object) -> object:
    """Leave out what must differ: which host was asked, and how much memory is free at this moment."""
    if isinstance(said, dict):
        return {
            key: without_life(value)
            for key, value in said.items()
            if key not in ("host", "available_bytes")
        }
    return [without_life(value) for value in said] if isinstance(said, list) else said


@pytest.mark.lab("2n", append="isolcpus=2-3,6-7")
def test_isolated_cpus_are_no_place_for_a_rank(tmp_path):
    """The kernel does not balance load on isolated CPUs: all threads of a rank would pile up on the first of them."""
    isolated = pathlib.Path("/sys/devices/system/cpu/isolated").read_text().strip()

    ranks = told_by_ranks(tmp_path, "--per-gpu")

    assert isolated == "2-3,6-7"
    assert [rank["main"]["cpus"] for rank in ranks] == ["0-1", "0-1", "4-5", "4-5"]
    assert [rank["main"]["pages"] for rank in ranks] == [{"0": 64}] * 2 + [{"1": 64}] * 2
