"""What does a launch change in the environment, and what does it leave alone?"""

from __future__ import annotations

import pytest

from tests.machines import dgx_h100, everything, gpu, machine, mig, placed, uuid
from wellfed.model.cpuset import CpuSet
from wellfed.model.environment import EnvironmentChange, changed
from wellfed.model.errors import UsageError
from wellfed.model.job import Job, VisibleDevices
from wellfed.model.machine import Machine
from wellfed.model.placement import MemoryPolicy, RankPlacement
from wellfed.placement.environment import LaunchSettings, rank_environment, with_known_order
from wellfed.placement.malloc import malloc_environment
from wellfed.placement.visible import visible_devices

RANK = RankPlacement(1, ("0000:02:00.0",), CpuSet.parse("4-7"), MemoryPolicy("none"), num_threads=4)


def pair(**fields: object) -> Machine:
    """Two GPUs of one model."""
    return machine({0: "0-7"}, gpus=[gpu(i, 0, **({"uuid": uuid(i)} | fields)) for i in range(2)])


def mixed() -> Machine:
    """Two GPUs of different models."""
    return machine({0: "0-7"}, gpus=[gpu(0, 0, name="RTX 3060"), gpu(1, 0, name="RTX 4090")])


def changes(
    environment: dict[str, str],
    *,
    rank: RankPlacement = RANK,
    job: Job | None = None,
    host: Machine | None = None,
    visible: VisibleDevices | None = None,
    **settings: object,
) -> dict[str, EnvironmentChange]:
    """Plan the environment of one rank, by variable."""
    host = host or pair()
    found = rank_environment(
        rank,
        job,
        environment,
        machine=host,
        visible=visible or everything(host),
        settings=LaunchSettings(**settings),  # type: ignore[arg-type]
    )
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def test_a_bound_rank_gets_threads_and_a_guard():
    """Threads for OpenMP and MKL, and OpenMP told not to pin: nothing else."""
    found = changes({})

    assert {name: each.value for name, each in found.items()} == {
        "OMP_NUM_THREADS": "4",
        "MKL_NUM_THREADS": "4",
        "OMP_PROC_BIND": "false",
    }
    assert all(each.reason for each in found.values())


def test_a_set_thread_count_stays():
    """What a person set is kept and reported; MKL follows OpenMP, so it is left alone."""
    found = changes({"OMP_NUM_THREADS": "16"})

    assert found["OMP_NUM_THREADS"].kept
    assert "cores for 4" in found["OMP_NUM_THREADS"].reason
    assert "MKL_NUM_THREADS" not in found


def test_torchruns_single_thread_is_explained():
    """torchrun sets OMP_NUM_THREADS=1 by itself; it is kept, and the reason names who did it."""
    found = changes({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"})

    assert found["OMP_NUM_THREADS"].value == "1"
    assert "torchrun sets 1" in found["OMP_NUM_THREADS"].reason


def test_mkls_own_count_stays():
    """MKL_NUM_THREADS set apart from OpenMP's is kept."""
    found = changes({"MKL_NUM_THREADS": "2"})

    assert found["MKL_NUM_THREADS"].kept
    assert found["OMP_NUM_THREADS"].value == "4"


@pytest.mark.parametrize("environment", [
    {"OMP_PROC_BIND": "true"}, {"OMP_PROC_BIND": "close"}, {"OMP_PLACES": "cores"},
    {"KMP_AFFINITY": "granularity=fine,compact,1,0"}, {"GOMP_CPU_AFFINITY": "4-15"},
])  # fmt: skip
def test_a_pinning_openmp_is_reported_and_kept(environment):
    """A variable that pins OpenMP threads leaves the main thread on one CPU: warned of, never overwritten."""
    found = changes(environment)

    (name,) = environment
    assert found[name].kept
    assert found[name].warning
    assert "one CPU" in found[name].reason
    assert "OMP_PROC_BIND" not in found or name == "OMP_PROC_BIND"


@pytest.mark.parametrize("environment", [
    {"OMP_PROC_BIND": "FALSE"}, {"KMP_AFFINITY": "disabled"}, {"KMP_AFFINITY": "verbose,none"},
    {"OMP_PROC_BIND": "false", "GOMP_CPU_AFFINITY": "0-3"},
])  # fmt: skip
def test_an_openmp_that_pins_nothing_needs_no_guard(environment):
    """What already keeps OpenMP from pinning is not mentioned."""
    found = changes(environment)

    assert set(found) == {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}


def test_nccl_is_kept_from_ignoring_the_mask():
    """NCCL_IGNORE_CPU_AFFINITY=1 throws the placement away: removed, said, and kept on request."""
    removed = changes({"NCCL_IGNORE_CPU_AFFINITY": "1"})["NCCL_IGNORE_CPU_AFFINITY"]
    asked = changes({"NCCL_IGNORE_CPU_AFFINITY": "1"}, keep=("NCCL_IGNORE_CPU_AFFINITY",))

    assert removed.value is None
    assert removed.warning
    assert "--keep-env" in removed.reason
    assert asked["NCCL_IGNORE_CPU_AFFINITY"].kept
    assert "NCCL_IGNORE_CPU_AFFINITY" not in changes({"NCCL_IGNORE_CPU_AFFINITY": "0"})


def test_without_cpus_there_is_nothing_to_guard():
    """Where the mask is left alone, so are NCCL and OpenMP."""
    alone = RankPlacement(0, (), CpuSet(), MemoryPolicy("none"), num_threads=2)

    found = changes({"NCCL_IGNORE_CPU_AFFINITY": "1"}, rank=alone)

    assert set(found) == {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}


def test_ranks_that_wellfed_starts_are_named():
    """The variables of torch.distributed, for two ranks of one host."""
    found = changes({}, job=Job(2), starts_ranks=True, master_port=29400)

    named = {
        name: found[name].value for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    }
    assert named == {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert (found["MASTER_ADDR"].value, found["MASTER_PORT"].value) == ("127.0.0.1", "29400")
    assert "CUDA_VISIBLE_DEVICES" not in found


def test_a_rank_of_another_launcher_is_not_renamed():
    """Under torchrun or srun the rank variables are theirs."""
    found = changes({"RANK": "5"}, job=Job(2, 1), starts_ranks=False)

    assert "RANK" not in found
    assert "MASTER_ADDR" not in found


def test_a_meeting_place_that_was_set_stays():
    """MASTER_ADDR and MASTER_PORT of a person are kept; a stale RANK is replaced aloud."""
    environment = {"MASTER_ADDR": "head", "MASTER_PORT": "1234", "RANK": "7"}

    found = changes(environment, job=Job(2), starts_ranks=True, master_port=29400)

    assert found["MASTER_ADDR"].value == "head"
    assert found["MASTER_PORT"].value == "1234"
    assert (found["RANK"].value, found["RANK"].warning) == ("1", True)


def test_mixed_gpus_get_a_known_order():
    """On different models CUDA_DEVICE_ORDER=PCI_BUS_ID is set, and a list of numbers is pointed out."""
    quiet = changes({}, host=mixed())["CUDA_DEVICE_ORDER"]
    numbered = changes({"CUDA_VISIBLE_DEVICES": "1"}, host=mixed())["CUDA_DEVICE_ORDER"]

    assert (quiet.value, quiet.warning) == ("PCI_BUS_ID", False)
    assert (numbered.value, numbered.warning) == ("PCI_BUS_ID", True)
    assert with_known_order(mixed(), {})["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_an_order_that_was_chosen_stays():
    """FASTEST_FIRST of a person is kept and warned of; one model needs no order."""
    chosen = changes({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, host=mixed())["CUDA_DEVICE_ORDER"]

    assert (chosen.kept, chosen.warning) == (True, True)
    assert "CUDA_DEVICE_ORDER" not in changes({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, host=mixed())
    assert "CUDA_DEVICE_ORDER" not in changes({})
    assert with_known_order(pair(), {}) == {}


def test_one_visible_narrows_to_the_ranks_gpu():
    """By UUID where it is known; by number, and then in PCI order, where it is not."""
    known = changes({}, job=Job(2), starts_ranks=True, one_visible=True)
    unknown = changes({}, job=Job(2), host=pair(uuid=None), starts_ranks=True, one_visible=True)

    assert known["CUDA_VISIBLE_DEVICES"].value == uuid(1)
    assert "CUDA_DEVICE_ORDER" not in known
    assert unknown["CUDA_VISIBLE_DEVICES"].value == "1"
    assert unknown["CUDA_DEVICE_ORDER"].value == "PCI_BUS_ID"


def test_one_visible_hands_out_slices():
    """Ranks on MIG slices get the slice, not the GPU."""
    slices = tuple(mig(f"MIG-{i}0000000-0000-5000-8000-000000000000", i + 1, 0) for i in range(2))
    host = machine({0: "0-7"}, gpus=[gpu(1, 0, uuid=uuid(1), mig=slices)])
    visible = visible_devices(
        host, {"CUDA_VISIBLE_DEVICES": ",".join(each.uuid for each in slices)}
    )

    found = changes({}, job=Job(2), host=host, visible=visible, starts_ranks=True, one_visible=True)

    assert found["CUDA_VISIBLE_DEVICES"].value == slices[1].uuid


def test_another_launchers_visibility_is_never_touched():
    """--one-visible beside torchrun is refused with what to do."""
    with pytest.raises(UsageError) as refusal:
        changes({}, job=Job(2, 1), one_visible=True)

    assert "--per-gpu" in refusal.value.remedy


def test_chosen_gpus_are_made_visible():
    """--gpus narrows the whole job's list, aloud where a list stood there."""
    host = dgx_h100()
    chosen = (host.gpus[4].pci_address, host.gpus[0].pci_address)
    rank = placed(host, 2, gpus=(4, 0)).ranks[0]

    found = changes({"CUDA_VISIBLE_DEVICES": "0,4"}, rank=rank, host=host, gpus=chosen)

    assert found["CUDA_VISIBLE_DEVICES"].value == f"{uuid(4)},{uuid(0)}"
    assert found["CUDA_VISIBLE_DEVICES"].warning


def test_amd_ranks_are_narrowed_inside_what_rocr_left():
    """HIP numbers what ROCR_VISIBLE_DEVICES left: GPU 1 of 1,0 is HIP's device 0."""
    host = pair(vendor="amd")
    environment = {"ROCR_VISIBLE_DEVICES": "1,0"}
    visible = visible_devices(host, environment, "amd")

    found = changes(
        environment, job=Job(2), host=host, visible=visible, starts_ranks=True, one_visible=True
    )

    assert found["HIP_VISIBLE_DEVICES"].value == "0"
    assert "CUDA_DEVICE_ORDER" not in found


def test_intel_ranks_are_narrowed_by_their_mask():
    """ZE_AFFINITY_MASK counts the cards of its vendor."""
    host = pair(vendor="intel")
    visible = visible_devices(host, {}, "intel")

    found = changes({}, job=Job(2), host=host, visible=visible, starts_ranks=True, one_visible=True)

    assert found["ZE_AFFINITY_MASK"].value == "1"


def test_network_cards_are_named_on_request_only():
    """NCCL's choice is its own; asked for, unset variables name the nearest cards."""
    rank = RankPlacement(0, (), CpuSet([0]), MemoryPolicy("none"), nics=("mlx5_0", "mlx5_1"))

    silent = changes({}, rank=rank)
    asked = changes({"UCX_NET_DEVICES": "all"}, rank=rank, nic_variables=True)

    assert "NCCL_IB_HCA" not in silent
    assert asked["NCCL_IB_HCA"].value == "=mlx5_0,mlx5_1"
    assert asked["UCX_NET_DEVICES"].kept


def test_changes_are_made_in_order():
    """Set, removed and kept variables make the environment of the rank."""
    before = {"PATH": "/bin", "A": "1", "B": "2"}
    made = (
        EnvironmentChange("A", None, "1", "removed"),
        EnvironmentChange("B", "2", "2", "kept"),
        EnvironmentChange("C", "3", None, "set"),
    )

    assert changed(before, made) == {"PATH": "/bin", "B": "2", "C": "3"}
    assert before["A"] == "1"


def test_jemalloc_gets_an_arena_a_thread():
    """Arenas from the loader threads, background purging, the library in front of LD_PRELOAD."""
    preload, conf = malloc_environment(
        "jemalloc", "/usr/lib/libjemalloc.so.2", 6, {"LD_PRELOAD": "/opt/a.so /opt/b.so"}
    )

    assert preload.value == "/usr/lib/libjemalloc.so.2:/opt/a.so:/opt/b.so"
    assert conf.name == "MALLOC_CONF"
    assert conf.value.startswith("narenas:8,background_thread:true,dirty_decay_ms:")


@pytest.mark.parametrize(("threads", "wanted"), [(0, 32 << 20), (6, 32 << 20), (14, 64 << 20)])
def test_tcmalloc_gets_a_thread_cache_and_keeps_its_release_rate(threads, wanted):
    """A full cache for every thread, never less than the default; the release rate is not ours to set."""
    found = malloc_environment("tcmalloc", "/usr/lib/libtcmalloc.so.4", threads, {})

    assert [each.name for each in found] == ["LD_PRELOAD", "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES"]
    assert found[1].value == str(wanted)


def test_an_allocator_setting_that_stands_stays():
    """MALLOC_CONF of a person is kept; a library that is preloaded already is not preloaded twice."""
    environment = {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2", "MALLOC_CONF": "narenas:1"}

    found = malloc_environment("jemalloc", "/usr/lib/libjemalloc.so.2", 4, environment)

    assert all(each.kept for each in found)


def test_a_second_allocator_is_warned_of():
    """Of two preloaded allocators the first is used."""
    preload, _ = malloc_environment(
        "tcmalloc", "/usr/lib/libtcmalloc.so.4", 4, {"LD_PRELOAD": "/x/libjemalloc.so.2"}
    )

    assert preload.warning
    assert preload.value.endswith(":/x/libjemalloc.so.2")


@pytest.mark.parametrize(("kind", "path", "threads"), [
    ("mimalloc", "/lib/a.so", 1), ("jemalloc", "libjemalloc.so.2", 1), ("jemalloc", "/my libs/a.so", 1),
    ("jemalloc", "/a:b.so", 1), ("jemalloc", "/a.so", -1),
])  # fmt: skip
def test_an_allocator_that_cannot_be_preloaded_is_refused(kind, path, threads):
    """Unknown kind, a path that LD_PRELOAD cannot hold, fewer threads than none."""
    with pytest.raises(UsageError):
        malloc_environment(kind, path, threads, {})
