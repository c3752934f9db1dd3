"""Which rank is a process, by the variables of its launcher?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellfed.model.errors import UsageError
from wellfed.placement.ranks import LAUNCHERS, expand_tasks, job_from

TORCHRUN = {
    "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "RANK": "11", "WORLD_SIZE": "16", "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
SRUN = {
    "SLURM_LOCALID": "3", "SLURM_PROCID": "11", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_NTASKS": "16",
}  # fmt: skip


@pytest.mark.parametrize(("environment", "wanted"), [
    (TORCHRUN, (8, 3, 11, 16, "torchrun")),
    ({"LOCAL_RANK": "1", "LOCAL_SIZE": "4", "RANK": "5", "WORLD_SIZE": "8"}, (4, 1, 5, 8, "torchrun")),
    ({"LOCAL_RANK": "0", "WORLD_SIZE": "1", "RANK": "0"}, (1, 0, 0, 1, "torchrun")),
    (SRUN, (8, 3, 11, 16, "slurm")),
    (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3", "SLURM_LOCALID": "0",
             "SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "7"}, (1, 0, 6, 7, "slurm")),
    ({"SLURM_LOCALID": "3", "SLURM_PROCID": "3", "SLURM_NTASKS_PER_NODE": "4"}, (4, 3, 3, None, "slurm")),
    ({"SLURM_LOCALID": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NNODES": "1"}, (2, 1, 1, 2, "slurm")),
    ({"SLURM_LOCALID": "1", "SLURM_PROCID": "1", "SLURM_TASKS_PER_NODE": "4(x2)"}, (4, 1, 1, None, "slurm")),
    ({"SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "1",
      "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"}, (1, 0, 0, 1, "slurm")),
    ({"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_RANK": "6",
      "OMPI_COMM_WORLD_SIZE": "8"}, (4, 2, 6, 8, "openmpi")),
    ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_RANK": "3", "PMI_SIZE": "4"}, (2, 1, 3, 4, "mpich")),
    ({"MV2_COMM_WORLD_LOCAL_RANK": "0", "MV2_COMM_WORLD_LOCAL_SIZE": "2", "MV2_COMM_WORLD_RANK": "0",
      "MV2_COMM_WORLD_SIZE": "2"}, (2, 0, 0, 2, "mvapich")),
    ({"PALS_LOCAL_RANKID": "5", "PALS_LOCAL_SIZE": "6", "PALS_RANKID": "11", "PMI_SIZE": "12"}, (6, 5, 11, 12, "pals")),
    ({"FLUX_TASK_LOCAL_ID": "1", "FLUX_TASK_RANK": "5", "FLUX_JOB_SIZE": "8", "FLUX_JOB_NNODES": "2"},
     (4, 1, 5, 8, "flux")),
    ({"JAX_PROCESS_ID": "2", "JAX_NUM_PROCESSES": "4"}, (1, 0, 2, 4, "jax")),
    ({"JAX_PROCESS_ID": "3", "JAX_NUM_PROCESSES": "4", "JAX_LOCAL_DEVICE_IDS": "2,3", "LOCAL_WORLD_SIZE": "2"},
     (2, 1, 3, 4, "jax")),
    ({"PMI_RANK": "0", "PMI_SIZE": "1"}, (1, 0, 0, 1, "pmi")),
])  # fmt: skip
def test_every_launchers_ranks_are_read(environment, wanted):
    """Number of ranks on this host, local rank, rank, world size and launcher follow from the variables."""
    job = job_from(environment)

    assert (job.num_local_ranks, job.local_rank, job.rank, job.world_size, job.launcher) == wanted


@pytest.mark.parametrize("environment", [
    {},
    {"PATH": "/usr/bin", "LOCAL_RANK": ""},
    {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "head"},
    {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": "0",
     "SLURM_TASKS_PER_NODE": "8", "SLURM_NTASKS_PER_NODE": "8"},
    SRUN | {"SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"},
    SRUN | {"SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"},
])  # fmt: skip
def test_what_is_no_rank_is_none(environment):
    """A shell, a pod's RANK, a batch script and an interactive Slurm shell are no rank of a host."""
    assert job_from(environment) is None


@pytest.mark.parametrize(("environment", "said"), [
    ({"LOCAL_RANK": "3"}, "nothing says how many"),
    ({"LOCAL_RANK": "8", "LOCAL_WORLD_SIZE": "8"}, "outside its 8 ranks"),
    ({"LOCAL_RANK": "-1", "LOCAL_WORLD_SIZE": "8"}, "not a whole number"),
    ({"LOCAL_RANK": "two", "LOCAL_WORLD_SIZE": "8"}, "not a whole number"),
    ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8.0"}, "not a whole number"),
    ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "0"}, "at least one rank"),
    ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "4"}, "do not fit in a job of 4"),
    ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "8", "RANK": "8"}, "do not fit in a job of 8"),
    ({"SLURM_LOCALID": "3", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"}, "nothing says how many"),
    (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "8(y2)"}, "not Slurm's list"),
    ({"FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "7", "FLUX_JOB_NNODES": "2"}, "nothing says how many"),
    ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8"}, "nothing says how many"),
    ({"PMI_RANK": "3", "PMI_SIZE": "8"}, "which one of this host"),
    ({"PMIX_RANK": "3"}, "which one of this host"),
    ({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2", "JAX_LOCAL_DEVICE_IDS": "1"}, "how many processes share"),
    ({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2", "JAX_LOCAL_DEVICE_IDS": "1,2", "LOCAL_WORLD_SIZE": "2"}, "wanted the"),
])  # fmt: skip
def test_what_does_not_fit_together_is_refused(environment, said):
    """A rank without a known number of ranks, outside it, or no number at all: one sentence and a remedy."""
    with pytest.raises(UsageError) as refusal:
        job_from(environment)

    assert said in refusal.value.message
    assert refusal.value.remedy


def test_the_variables_that_said_so_are_kept():
    """A person can look up which variables were believed."""
    assert job_from(TORCHRUN).source == "LOCAL_RANK=3, LOCAL_WORLD_SIZE=8"
    assert (
        job_from(SRUN).source == "SLURM_LOCALID=3, SLURM_STEP_TASKS_PER_NODE=8(x2), SLURM_NODEID=1"
    )


def test_torchrun_inside_srun_is_torchruns_rank():
    """Where Slurm started one torchrun a node, LOCAL_RANK counts and SLURM_LOCALID is told apart in a note."""
    outer = SRUN | {
        "SLURM_LOCALID": "0",
        "SLURM_PROCID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NUM_TASKS": "2",
    }

    job = job_from(outer | TORCHRUN)

    assert (job.local_rank, job.num_local_ranks) == (3, 8)
    assert "SLURM_LOCALID=0" in job.notes[0]


def test_mpirun_inside_slurm_is_mpiruns_rank():
    """mpirun's daemons are Slurm tasks of their own: every rank carries SLURM_LOCALID=0."""
    daemon = {"SLURM_LOCALID": "0", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2",
              "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "1"}  # fmt: skip
    rank = {"OMPI_COMM_WORLD_LOCAL_RANK": "5", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}

    job = job_from(daemon | rank)

    assert (job.launcher, job.local_rank, job.num_local_ranks) == ("openmpi", 5, 8)


def test_two_launchers_that_agree_need_no_note():
    """A script that copies SLURM_LOCALID into LOCAL_RANK and leaves the size to Slurm is one rank of eight."""
    job = job_from(SRUN | {"LOCAL_RANK": "3"})

    assert (job.local_rank, job.num_local_ranks, job.notes) == (3, 8, ())
    assert "SLURM_STEP_TASKS_PER_NODE" in job.source


def test_a_jax_process_keeps_its_device_ids():
    """JAX_LOCAL_DEVICE_IDS says which visible GPUs a process uses."""
    environment = {
        "JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2", "JAX_LOCAL_DEVICE_IDS": "4,5,6,7", "LOCAL_WORLD_SIZE": "2",
    }  # fmt: skip

    assert job_from(environment).devices == (4, 5, 6, 7)


@pytest.mark.parametrize(("text", "wanted"), [
    ("2(x3),1", (2, 2, 2, 1)),
    ("8", (8,)),
    ("4,4", (4, 4)),
    ("1(x1)", (1,)),
])  # fmt: skip
def test_slurms_tasks_per_node_are_expanded(text, wanted):
    """``2(x3),1`` is three nodes with two tasks and one with one."""
    assert expand_tasks(text) == wanted


@pytest.mark.parametrize("text", ["", "x", "2(x", "2(x-1)", "-2", "2(x9999999)", "2,,1"])
def test_a_damaged_list_of_tasks_is_refused(text):
    """Damaged or hostile lists are no list."""
    with pytest.raises(UsageError):
        expand_tasks(text)


@pytest.mark.parametrize(
    ("text", "wanted"), [("2", 2), ("a100:4", 4), ("", None), ("all", None), ("0", None)]
)
def test_slurm_says_how_many_gpus_a_task_has(text, wanted):
    """--gpus-per-task, with or without the type of GPU."""
    assert job_from(SRUN | {"SLURM_GPUS_PER_TASK": text}).gpus_per_rank == wanted


NAMES = sorted({name for launcher in LAUNCHERS for field in ("local_rank", "local_size", "rank", "size") for name in getattr(launcher, field)}
               | {"SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", "SLURM_STEP_ID", "FLUX_JOB_NNODES", "JAX_PROCESS_ID",
                  "JAX_LOCAL_DEVICE_IDS", "JAX_NUM_PROCESSES"})  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.one_of(st.integers(-1, 9).map(str), st.text(max_size=5)),
        max_size=8,
    )
)
def test_any_environment_is_a_job_or_none_or_refused(environment):
    """Whatever launchers left behind: a rank inside its job, no rank, or a UsageError."""
    try:
        job = job_from(environment)
    except UsageError as refusal:
        assert refusal.remedy
        return

    assert job is None or 0 <= job.local_rank < job.num_local_ranks
