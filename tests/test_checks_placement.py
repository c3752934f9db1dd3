"""Do the checks of topology, placement and the launch environment say the right thing?"""

from __future__ import annotations

import pytest

from tests.doctoring import (
    A100,
    CPU_ONLY,
    DGX,
    GB200,
    MIXED,
    ONE_NODE,
    POD,
    RANK,
    TWO_NODE_VM,
    ask,
    changed,
)
from tests.machines import device, gpu, machine
from wellfed.checks import gpu_driver, gpu_numa_node, numa_contradiction, pci_link
from wellfed.model.cpuset import CpuSet
from wellfed.model.machine import Evidence, NumaNode, PciLink
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable
from wellfed.model.value import replace

SLOT = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0"
GPU_0 = f"{SLOT}/0000:1b:00.0"
NARROW = {f"{SLOT}/max_link_width": "8", f"{SLOT}/max_link_speed": "32.0 GT/s PCIe"}
UUID = "GPU-00000000-0000-4000-8000-00000000000"


def seen(host, *, readings=None, live=False):
    """A snapshot of nothing but a machine."""
    return Snapshot(host, readings or {}, {}, {}, {}, {}, live=live)


@pytest.mark.parametrize(
    ("host", "verdict", "words"),
    [
        (DGX, "ok", "GPUs 0-3 beside node 0; GPUs 4-7 beside node 1"),
        (GB200, "ok", "GPUs 0-1 beside node 0; GPUs 2-3 beside node 1"),
        (A100, "ok", "GPUs 0-1 beside node 3"),
        (ONE_NODE, "ok", "only node with CPUs"),
        (TWO_NODE_VM, "warn", "told by no source"),
        (CPU_ONLY, "n/a", "no GPU is seen"),
    ],
)
def test_gpu_numa_node(host, verdict, words):
    """-1 on one node is no fault, on two nodes it is one; GPU memory nodes are never the answer."""
    finding = ask("gpu.numa_node", host)

    assert finding.verdict == verdict
    assert words in finding.summary


def test_gpu_that_nothing_speaks_of():
    """No source at all is "not recorded", not a fault of the host."""
    host = machine({0: "0-3", 1: "4-7"}, gpus=[gpu(0, None)])

    (finding,) = gpu_numa_node.CHECK.judge(seen(host), "training")

    assert finding.verdict == "unknown"


def test_contradicting_sources():
    """A disagreement is shown with the choice."""
    said = (Evidence("sysfs numa_node", "1", 1), Evidence("NVML CPU affinity", "0-3", 0))
    one = gpu(0, 1, evidence=said, disagreement="sysfs says 1, NVML says 0: 1 is taken")

    (finding,) = gpu_numa_node.CHECK.judge(
        seen(machine({0: "0-3", 1: "4-7"}, gpus=[one])), "training"
    )

    assert finding.verdict == "warn"
    assert [proof.found for proof in finding.evidence] == ["1", "0-3"]


@pytest.mark.parametrize(("host", "verdict"), [(DGX, "ok"), (CPU_ONLY, "n/a"), (GB200, "ok")])
def test_nodes_fit_together(host, verdict):
    """Ordinary hosts have every online CPU in exactly one node."""
    assert ask("numa.contradiction", host).verdict == verdict


def test_cpu_in_two_nodes():
    """Eight nodes that all claim the same CPUs are a contradiction."""
    nodes = tuple(NumaNode(number, CpuSet.parse("0-7"), 1 << 30) for number in range(2))
    host = replace(machine({0: "0-7"}, gpus=[gpu(0, 0)]), nodes=nodes)

    (finding,) = numa_contradiction.CHECK.judge(seen(host), "training")

    assert (finding.verdict, "0-7 are in more than one" in finding.summary) == ("warn", True)


def test_cpu_in_no_node():
    """An online CPU outside every node cannot be bound by node."""
    host = machine({0: "0-7"}, gpus=[gpu(0, 0)])
    host = replace(host, nodes=(NumaNode(0, CpuSet.parse("0-3"), 1 << 30),))

    (finding,) = numa_contradiction.CHECK.judge(seen(host), "training")

    assert (finding.verdict, "CPUs 4-7" in finding.summary) == ("warn", True)


def test_firmware_that_puts_everything_on_one_node():
    """Two nodes with CPUs, and every device on the first: some firmware says so of all."""
    gpus = [gpu(0, 0), gpu(1, 0)]
    pci = [device(each.pci_address, 0) for each in gpus]

    (alone,) = numa_contradiction.CHECK.judge(
        seen(machine({0: "0-3", 1: "4-7"}, gpus=gpus, pci=pci)), "training"
    )
    (shared,) = numa_contradiction.CHECK.judge(
        seen(machine({0: "0-3", 1: "4-7"}, gpus=gpus, pci=[*pci, device("0000:80:00.0", 1)])),
        "training",
    )

    assert (alone.verdict, shared.verdict) == ("warn", "ok")


def test_kernel_without_nodes():
    """Without NUMA there is nothing to contradict."""
    host = replace(machine({0: "0-3"}, gpus=[gpu(0, 0)]), nodes=())

    assert next(iter(numa_contradiction.CHECK.judge(seen(host), "training"))).verdict == "n/a"


@pytest.mark.parametrize(
    ("host", "affinity", "verdict", "words"),
    [
        (DGX, None, "ok", "beside GPUs 0-7"),
        (DGX, "0-3", "warn", "none beside GPUs 4-7"),
        (POD, None, "fail", "none of them beside GPU 4 (node 1)"),
        (ONE_NODE, "0-1", "n/a", "one NUMA node"),
        (TWO_NODE_VM, None, "unknown", "gpu.numa_node"),
        (CPU_ONLY, "0-3", "n/a", "no GPU"),
    ],
)
def test_cpuset(host, affinity, verdict, words):
    """A mask without a CPU beside any visible GPU is a fault; GPUs that the job cannot see are not asked about."""
    finding = ask(
        "cg.cpuset", changed(host, answers={"sched_getaffinity": affinity} if affinity else None)
    )

    assert finding.verdict == verdict
    assert words in finding.summary


def test_cpuset_remedy_names_who_can_change_it():
    """A mask is changed by the process itself, a cpuset by whoever started the container."""
    mask = changed(DGX, answers={"sched_getaffinity": "0-3"})

    assert (ask("cg.cpuset", mask).remedy or "").startswith("taskset -c 56-111,168-223 ")
    assert (ask("cg.cpuset", POD).remedy or "").startswith(
        "docker run --cpuset-cpus=56-111,168-223 "
    )


@pytest.mark.parametrize(
    ("host", "mems", "verdict"),
    [(DGX, "0-1", "ok"), (DGX, "0", "warn"), (POD, "0", "fail"), (POD, "0-1", "fail"), (ONE_NODE, "0", "n/a"),
     (CPU_ONLY, "0", "n/a"), (TWO_NODE_VM, "0-1", "unknown"), (DGX, None, "unknown")],
)  # fmt: skip
def test_mems(host, mems, verdict):
    """Memory that may not come from the GPU's node is a fault; the pod's cpuset says node 0 whatever the status says."""
    status = f"Cpus_allowed_list:\t0-223\nMems_allowed_list:\t{mems}" if mems else "Name:\tx"

    without = () if mems else ("/sys/fs/cgroup",)
    finding = ask(
        "numa.cgroup_mems", changed(host, files={"/proc/self/status": status}, without=without)
    )

    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("host", "environ", "affinity", "verdict"),
    [
        (DGX, RANK, None, "warn"),
        (DGX, RANK, "0-13,112-125", "ok"),
        (DGX, RANK.replace("8", "1").replace("3", "0"), None, "ok"),
        (DGX, "", None, "n/a"),
        (DGX, "LOCAL_RANK=3", None, "warn"),
        (DGX, "LOCAL_RANK=9\nLOCAL_WORLD_SIZE=8", None, "warn"),
        (ONE_NODE, RANK, None, "n/a"),
        (CPU_ONLY, RANK, None, "n/a"),
    ],
)
def test_rank(host, environ, affinity, verdict):
    """Only a process that a launcher made a rank is judged; several nodes in its mask are a finding."""
    answers = {"sched_getaffinity": affinity} if affinity else None

    assert ask("placement.rank", changed(host, environ=environ, answers=answers)).verdict == verdict


@pytest.mark.parametrize(
    "rule",
    ["placement.rank", "env.nccl_ignore_cpu_affinity", "env.omp_affinity", "env.omp_threads",
     "env.cuda_device_order", "env.cuda_visible_devices"],
)  # fmt: skip
def test_environment_that_was_not_recorded(rule):
    """A recording without an environment leaves it unknown: "not set" would be a guess."""
    tree = changed(DGX, answers={"environ": Unreadable("ENODATA")})

    assert ask(rule, tree).verdict == "unknown"


@pytest.mark.parametrize(
    ("host", "environ", "file", "verdict"),
    [
        (DGX, "", None, "ok"),
        (DGX, "NCCL_IGNORE_CPU_AFFINITY=1", None, "warn"),
        (DGX, "NCCL_IGNORE_CPU_AFFINITY=0", "NCCL_IGNORE_CPU_AFFINITY=1", "ok"),
        (DGX, "", "# comment\nNCCL_DEBUG=WARN\nNCCL_IGNORE_CPU_AFFINITY=1", "warn"),
        (DGX, "NCCL_IGNORE_CPU_AFFINITY=yes", None, "ok"),
        (CPU_ONLY, "NCCL_IGNORE_CPU_AFFINITY=1", None, "n/a"),
    ],
)
def test_nccl_ignores_the_mask(host, environ, file, verdict):
    """The variable counts before the file that stands in for it."""
    tree = changed(host, environ=environ, files={"/etc/nccl.conf": file} if file else None)

    assert ask("env.nccl_ignore_cpu_affinity", tree).verdict == verdict


@pytest.mark.parametrize(
    ("environ", "verdict"),
    [
        ("", "ok"),
        ("OMP_PROC_BIND=false\nOMP_PLACES=cores", "ok"),
        ("OMP_PROC_BIND=FALSE\nGOMP_CPU_AFFINITY=0-3", "ok"),
        ("KMP_AFFINITY=disabled", "ok"),
        ("KMP_AFFINITY=none,verbose", "ok"),
        ("KMP_AFFINITY=granularity=fine", "ok"),
        ("KMP_AFFINITY=granularity=fine,compact,1,0", "warn"),
        ("GOMP_CPU_AFFINITY=4-15", "warn"),
        ("OMP_PROC_BIND=close", "warn"),
        ("OMP_PLACES=cores", "warn"),
        (f"KMP_AFFINITY=granularity=fine,compact,1,0\n{RANK}", "fail"),
        (f"GOMP_CPU_AFFINITY=4-15\n{RANK}", "fail"),
    ],
)
def test_openmp_pins(environ, verdict):
    """OpenMP's own pinning leaves workers on one core (pytorch/pytorch#101850); with several ranks it is a fault."""
    assert ask("env.omp_affinity", changed(DGX, environ=environ)).verdict == verdict


@pytest.mark.parametrize(
    ("host", "environ", "affinity", "verdict"),
    [
        (DGX, "", None, "ok"),
        (DGX, "OMP_NUM_THREADS=14", None, "ok"),
        (DGX, f"OMP_NUM_THREADS=28\n{RANK}", None, "ok"),
        (DGX, f"OMP_NUM_THREADS=112\n{RANK}", None, "fail"),
        (DGX, f"OMP_NUM_THREADS=28\n{RANK}", "0-13,112-125", "ok"),
        (DGX, f"OMP_NUM_THREADS=112\n{RANK}", "0-13,112-125", "fail"),
        (DGX, "OMP_NUM_THREADS=4,2", None, "ok"),
        (DGX, "OMP_NUM_THREADS=many", None, "warn"),
        (DGX, "OMP_NUM_THREADS=0", None, "warn"),
        (POD, "OMP_NUM_THREADS=16", None, "fail"),
        (POD, "OMP_NUM_THREADS=6", None, "ok"),
        (POD, "", None, "n/a"),
        (CPU_ONLY, "OMP_NUM_THREADS=1000", None, "n/a"),
    ],
)
def test_openmp_threads(host, environ, affinity, verdict):
    """Threads are counted against CPUs and quota; a mask of one rank is not shared by the others."""
    answers = {"sched_getaffinity": affinity} if affinity else None

    assert (
        ask("env.omp_threads", changed(host, environ=environ, answers=answers)).verdict == verdict
    )


@pytest.mark.parametrize(
    ("host", "environ", "verdict"),
    [
        (MIXED, "", "warn"),
        (MIXED, "CUDA_DEVICE_ORDER=FASTEST_FIRST", "warn"),
        (MIXED, "CUDA_DEVICE_ORDER=PCI_BUS_ID", "ok"),
        (DGX, "", "ok"),
        (ONE_NODE, "", "n/a"),
    ],
)
def test_device_order(host, environ, verdict):
    """The order is in doubt where models differ (flux-framework/flux-core#1591)."""
    assert ask("env.cuda_device_order", changed(host, environ=environ)).verdict == verdict


@pytest.mark.parametrize(
    ("environ", "verdict", "words"),
    [
        ("", "ok", "no variable hides GPUs 0-7"),
        ("CUDA_VISIBLE_DEVICES=3,4", "ok", "2 devices visible"),
        (f"CUDA_VISIBLE_DEVICES={UUID}3", "ok", "1 device visible"),
        ("CUDA_VISIBLE_DEVICES=", "ok", "0 devices visible"),
        ("CUDA_VISIBLE_DEVICES=0,9,1", "warn", "1 of 8 GPUs visible"),
        ("CUDA_VISIBLE_DEVICES=0,0", "warn", "0 of 8 GPUs visible"),
        ("CUDA_VISIBLE_DEVICES=GPU-ffff", "warn", "0 of 8 GPUs visible"),
    ],
)
def test_visible_devices(environ, verdict, words):
    """The list is read up to the first entry that names nothing, as the driver does."""
    finding = ask("env.cuda_visible_devices", changed(DGX, environ=environ))

    assert finding.verdict == verdict
    assert words in finding.summary


def test_visible_devices_that_only_the_driver_can_tell():
    """A UUID cannot be looked up where UUIDs are not known."""
    names = [f"/proc/driver/nvidia/gpus/0000:{bus}:00.0/information" for bus in ("01", "21")]
    tree = changed(
        MIXED, environ=f"CUDA_VISIBLE_DEVICES={UUID}0", files=dict.fromkeys(names, "Model: x")
    )

    assert ask("env.cuda_visible_devices", tree).verdict == "unknown"


def test_no_gpu_has_no_list():
    """Without a GPU the list names nothing, and that is no finding."""
    assert (
        ask("env.cuda_visible_devices", changed(CPU_ONLY, environ="CUDA_VISIBLE_DEVICES=7")).verdict
        == "n/a"
    )


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        ({}, "ok"),
        ({f"{GPU_0}/current_link_width": "8"}, "warn"),
        ({f"{GPU_0}/current_link_speed": "2.5 GT/s PCIe"}, "ok"),
        ({f"{GPU_0}/current_link_width": "8", **NARROW}, "ok"),
        ({f"{GPU_0}/current_link_width": "4", **NARROW}, "warn"),
    ],
)
def test_link(files, verdict):
    """Lost lanes are a finding; a slow idle link (Syllo/nvtop#6) and a narrow slot are none."""
    assert ask("pci.link", changed(DGX, files=files)).verdict == verdict


@pytest.mark.parametrize(("host", "verdict"), [(ONE_NODE, "unknown"), (CPU_ONLY, "n/a")])
def test_link_that_a_virtual_machine_hides(host, verdict):
    """`Unknown` and 255 lanes are no link width."""
    assert ask("pci.link", host).verdict == verdict


def test_link_sentence_counts():
    """Half the lanes take twice the time."""
    narrow = device("0000:01:00.0", link=PciLink(16.0, 4, 16.0, 16))
    host = machine({0: "0-3"}, gpus=[gpu(0, 0)], pci=[narrow])

    (finding,) = pci_link.CHECK.judge(seen(host), "training")

    assert finding.summary == "GPU 0: 4 of 16 lanes in use, so copies take 4 times as long"


ABSENT, FOLDER = Unreadable("ENOENT"), Unreadable("EISDIR")


def driven(
    driver,
    *,
    live=False,
    version=ABSENT,
    vendor="nvidia",
    bus=FOLDER,
    others=(),
):
    """Judge one GPU whose PCI device has this driver."""
    host = machine(
        {0: "0-3"},
        gpus=[gpu(0, 0, vendor=vendor)],
        pci=[device("0000:01:00.0", 0, driver=driver), *others],
    )
    readings = {gpu_driver.BUS: bus, gpu_driver.VERSION: version}
    (finding,) = gpu_driver.CHECK.judge(seen(host, readings=readings, live=live), "training")
    return finding


def test_drivers():
    """A compute driver is fine, a display driver or none is a finding, a guest's is nobody's business."""
    assert driven("nvidia").verdict == "ok"
    assert driven("amdgpu", vendor="amd").verdict == "ok"
    assert driven("nouveau").verdict == "warn"
    assert driven("vfio-pci").verdict == "n/a"
    assert driven(None, live=True).verdict == "warn"
    assert driven(None, others=[device("0000:02:00.0", 0, driver="mlx5_core")]).verdict == "warn"


def test_driver_that_is_not_shown():
    """A dump without driver links tells nothing, unless the driver's own version file is in it."""
    assert driven(None).verdict == "unknown"
    assert (
        driven(None, version="NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54").verdict
        == "ok"
    )
    assert driven(None, vendor="amd", version="NVRM version: 550.54").verdict == "unknown"
    assert driven(None, live=True, version=Unreadable("EACCES")).verdict == "unknown"


@pytest.mark.parametrize(
    ("errno_name", "verdict"),
    [("EISDIR", "n/a"), ("ENOENT", "n/a"), ("EACCES", "unknown"), ("ENODATA", "unknown")],
)
def test_bus_that_is_not_shown(errno_name, verdict):
    """Where the PCI bus may not be looked at, nobody can say that there is no GPU."""
    host = machine({0: "0-3"})
    readings = {gpu_driver.BUS: Unreadable(errno_name), gpu_driver.VERSION: Unreadable("ENOENT")}

    (finding,) = gpu_driver.CHECK.judge(seen(host, readings=readings), "training")

    assert finding.verdict == verdict
