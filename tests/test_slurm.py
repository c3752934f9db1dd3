"""Is a launch under Slurm the rank that Slurm says it is? A private cluster of four nodes with four GPUs each answers."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time

import pytest

from tests.lab.programs import program

RUN = (sys.executable, "-m", "wellfed", "run")


def documents(text: str) -> list[dict]:
    """Read the JSON documents that several tasks wrote one after the other."""
    decoder, found = json.JSONDecoder(), []
    while text := text.strip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        (("-N4", "--ntasks-per-node=2"), [(rank, rank % 2, 2) for rank in range(8)]),
        (("-N1", "-n3"), [(0, 0, 3), (1, 1, 3), (2, 2, 3)]),
        (("-N2", "-n4", "--gpus-per-task=1"), [(0, 0, 3), (1, 1, 3), (2, 2, 3), (3, 0, 1)]),
        (("-N4", "-n4", "--gres=gpu:2", "--cpus-per-task=2"), [(rank, 0, 1) for rank in range(4)]),
    ],
)
def test_each_task_is_the_rank_that_slurm_says(slurm, tmp_path, words, jobs):
    """Rank, local rank, and how many are on its node: also where Slurm spreads four tasks as three and one."""
    script = f'exec {" ".join(RUN)} --explain --format json >"{tmp_path}/$SLURM_PROCID"'
    slurm.run("srun", *words, "sh", "-c", script)

    plans = [json.loads(path.read_text())["job"] for path in tmp_path.iterdir()]

    told = sorted((job["rank"], job["local_rank"], job["num_local_ranks"]) for job in plans)
    assert told == jobs
    assert {(job["world_size"], job["launcher"]) for job in plans} == {(len(jobs), "slurm")}


def test_torchrun_inside_an_allocation_is_believed_before_slurm(slurm):
    """Slurm started one task, torchrun eight: the variables nearest to the process say which rank it is."""
    done = slurm.run(
        "srun", "-N1", "-n1", *RUN, "--explain", "--format", "json",
        LOCAL_RANK="3", LOCAL_WORLD_SIZE="8", RANK="11", WORLD_SIZE="16",
    )  # fmt: skip

    (plan,) = documents(done.stdout)

    told = plan["job"]
    assert (told["launcher"], told["rank"], told["local_rank"]) == ("torchrun", 11, 3)


@pytest.mark.parametrize(("script", "code"), [("exit 9", 9), ("kill -SEGV $$", 139)])
def test_slurm_sees_how_the_job_ended(slurm, script, code):
    """wellfed has become the command: its exit code, or its signal, is what srun reports."""
    done = slurm.run("srun", "-N2", "-n2", *RUN, "-q", "--", "sh", "-c", script, check=False)

    assert done.returncode == code


def test_a_batch_script_launches_its_steps(slurm, tmp_path):
    """sbatch, and srun inside it, as most jobs are started."""
    script = tmp_path / "job.sh"
    said = tmp_path / "said"
    step = f"echo $SLURM_PROCID/$SLURM_NTASKS >>{said}"
    script.write_text(f"#!/bin/sh\nsrun {' '.join(RUN)} -q -- sh -c '{step}'\n")

    slurm.run("sbatch", "--wait", "-N2", "-n2", f"--output={tmp_path}/out", str(script))

    assert sorted(said.read_text().split()) == ["0/2", "1/2"]


def test_a_cancelled_job_leaves_no_rank(slurm, tmp_path):
    """scancel ends the ranks that one task started, and the processes that they started."""
    script = f"echo ready >>{tmp_path}/ready; sleep 300 & wait"
    words = ("srun", "-N1", "-n1", "--job-name=cancelled", *RUN, "-q", "--ranks", "2", "--")
    running = subprocess.Popen(
        slurm.island.words("env", f"SLURM_CONF={slurm.folder}/slurm.conf", *words, "sh", "-c", script),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    ready = tmp_path / "ready"
    deadline = time.monotonic() + 60
    while not (ready.exists() and ready.read_text().count("ready") == 2):
        assert time.monotonic() < deadline, slurm.logs()
        time.sleep(0.1)

    slurm.run("scancel", "--name=cancelled")
    running.wait(timeout=60)
    deadline = time.monotonic() + 30
    while "sleep" in slurm.island.processes() and time.monotonic() < deadline:
        time.sleep(0.1)

    assert running.returncode != 0
    assert "sleep" not in slurm.island.processes()


@pytest.mark.lab("2n")
def test_slurms_gpus_decide_where_a_rank_goes(slurm, tmp_path):
    """Four GPUs on two sockets, one for each task: each rank is beside the GPU that Slurm gave it."""
    probe = program("probe")
    words = ("srun", "-N1", "-n4", "--gpus-per-task=1", *RUN, "-q", "--", str(probe))

    slurm.run(*words, "--into", str(tmp_path), timeout=300)

    ranks = [json.loads(pathlib.Path(path).read_text()) for path in tmp_path.iterdir()]
    told = {rank["environment"]["CUDA_VISIBLE_DEVICES"]: rank["main"] for rank in ranks}
    assert {gpu: place["cpus"] for gpu, place in told.items()} == {
        "0": "0-3", "1": "0-3", "2": "4-7", "3": "4-7",
    }  # fmt: skip
    assert {gpu: place["pages"] for gpu, place in told.items()} == {
        "0": {"0": 64}, "1": {"0": 64}, "2": {"1": 64}, "3": {"1": 64},
    }  # fmt: skip
