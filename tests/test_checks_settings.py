"""Do the checks of kernel settings, limits and containers say the right thing?"""

from __future__ import annotations

import pytest

from tests.doctoring import A100, CPU_ONLY, DGX, GB200, ONE_NODE, POD, RANK, ask, changed
from wellfed.model.tree import Unreadable

BALANCING = "/proc/sys/kernel/numa_balancing"
RECLAIM = "/proc/sys/vm/zone_reclaim_mode"
THP = "/sys/kernel/mm/transparent_hugepage"
SWAPS, VMSTAT, SWAPPINESS = "/proc/swaps", "/proc/vmstat", "/proc/sys/vm/swappiness"
HEADER = "Filename Type Size Used Priority"
SWAP = f"{HEADER}\n/dev/sda2 partition 8388604 1024 -2"
POLICY = "/sys/devices/system/cpu/cpufreq/policy"
STATUS = "/proc/self/status"
GIB = 1 << 30


def shm(size: int, free: int) -> dict[str, str]:
    return {
        "statvfs /dev/shm": f"bsize=4096 blocks={size // 4096} bavail={free // 4096} files=1 favail=1"
    }


@pytest.mark.parametrize(
    ("host", "content", "workload", "verdict"),
    [
        (DGX, "0", "training", "ok"),
        (DGX, "1", "training", "warn"),
        (DGX, "2", "training", "warn"),
        (DGX, "3", "inference", "warn"),
        (DGX, "1", "data", "ok"),
        (DGX, "1", "generic", "ok"),
        (GB200, "1", "training", "fail"),
        (ONE_NODE, "1", "training", "n/a"),
        (CPU_ONLY, "1", "training", "n/a"),
        (DGX, "maybe", "training", "unknown"),
        (DGX, "", "training", "unknown"),
    ],
)
def test_numa_balancing(host, content, workload, verdict):
    """Every bit counts, not only 1 (ROCm/rccl#696); it matters with several nodes, and most where GPU memory is one."""
    finding = ask("mem.numa_balancing", changed(host, files={BALANCING: content}), workload)

    assert finding.verdict == verdict


def test_numa_balancing_and_a_bound_rank():
    """Once a rank is bound there is nothing that balancing could improve."""
    tree = changed(
        DGX, files={BALANCING: "1"}, answers={"sched_getaffinity": "0-13,112-125"}, environ=RANK
    )

    finding = ask("mem.numa_balancing", tree)

    assert (finding.verdict, finding.remedy) == ("fail", "sysctl -w kernel.numa_balancing=0")
    assert finding.undo == "sysctl -w kernel.numa_balancing=1"


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ("mem.numa_balancing", BALANCING),
        ("mem.zone_reclaim_mode", RECLAIM),
        ("mem.thp.enabled", f"{THP}/enabled"),
    ],
)
@pytest.mark.parametrize(
    ("errno_name", "verdict"), [("ENOENT", "n/a"), ("EACCES", "unknown"), ("EIO", "unknown")]
)
def test_absent_and_unreadable_are_two_things(rule, path, errno_name, verdict):
    """A kernel without the knob has no question to answer; one that refuses to show it leaves it open."""
    finding = ask(rule, changed(DGX, errnos={path: errno_name}))

    assert finding.verdict == verdict


@pytest.mark.parametrize(
    "rule",
    [
        "mem.numa_balancing",
        "mem.zone_reclaim_mode",
        "mem.thp.enabled",
        "mem.swap.devices",
        "cpu.governor",
    ],
)
def test_what_a_dump_does_not_hold_is_unknown(rule):
    """A file that another tool did not dump is not a file that the kernel does not have."""
    finding = ask(
        rule,
        changed(
            DGX,
            without=("/proc/sys", "/proc/swaps", "/sys/kernel", "/sys/devices/system/cpu/cpufreq"),
        ),
    )

    assert finding.verdict == "unknown"


@pytest.mark.parametrize(
    ("host", "content", "verdict"),
    [
        (DGX, "0", "ok"),
        (DGX, "1", "warn"),
        (DGX, "7", "warn"),
        (ONE_NODE, "1", "n/a"),
        (DGX, "x", "unknown"),
        (CPU_ONLY, "1", "n/a"),
    ],
)
def test_zone_reclaim(host, content, verdict):
    """Local reclaim hurts where there is another node to use."""
    finding = ask("mem.zone_reclaim_mode", changed(host, files={RECLAIM: content}))

    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("content", "workload", "verdict"),
    [
        ("always [madvise] never", "training", "ok"),
        ("[always] madvise never", "training", "ok"),
        ("[always] madvise never", "inference", "warn"),
        ("always madvise [never]", "training", "warn"),
        ("always madvise [never]", "data", "warn"),
        ("always madvise [never]", "inference", "ok"),
        ("always madvise [never]", "generic", "ok"),
        ("always madvise never", "training", "unknown"),
        ("", "training", "unknown"),
    ],
)
def test_transparent_huge_pages(content, workload, verdict):
    """`madvise` suits everybody; what else suits depends on the workload."""
    finding = ask("mem.thp.enabled", changed(DGX, files={f"{THP}/enabled": content}), workload)

    assert finding.verdict == verdict


def test_huge_pages_of_half_a_gigabyte():
    """With 64 KiB pages a huge page is 512 MiB: advice that was made for 2 MiB does not hold."""
    files = {f"{THP}/enabled": "always madvise [never]", f"{THP}/hpage_pmd_size": str(512 << 20)}

    finding = ask("mem.thp.enabled", changed(GB200, files=files))

    assert finding.verdict == "ok"


@pytest.mark.parametrize(
    ("swaps", "value", "second", "workload", "verdict"),
    [
        (HEADER, "60", "pswpin 0\npswpout 900", "training", "n/a"),
        (SWAP, "60", "pswpin 0\npswpout 7", "training", "ok"),
        (SWAP, "60", "pswpin 0\npswpout 900", "training", "warn"),
        (SWAP, "1", "pswpin 0\npswpout 900", "training", "ok"),
        (SWAP, "60", "pswpin 0\npswpout 900", "generic", "ok"),
        (SWAP, "60", None, "training", "unknown"),
        (SWAP, "sixty", "pswpin 0\npswpout 7", "training", "unknown"),
    ],
)
def test_swappiness(swaps, value, second, workload, verdict):
    """Without swap the value means nothing (m3db/m3#1908); with swap the rate decides."""
    tree = changed(
        DGX,
        files={SWAPS: swaps, SWAPPINESS: value, VMSTAT: "pswpin 0\npswpout 7"},
        second={VMSTAT: second} if second else None,
    )

    finding = ask("mem.swappiness", tree, workload)

    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("swaps", "second", "verdict"),
    [
        (HEADER, None, "ok"),
        (SWAP, "pswpin 10\npswpout 7", "ok"),
        (SWAP, "pswpin 250\npswpout 7", "fail"),
        (SWAP, "pswpin 3\npswpout 7", "unknown"),
        (SWAP, None, "unknown"),
    ],
)
def test_swap_is_judged_by_its_rate(swaps, second, verdict):
    """Pages that lie in swap are harmless until they are wanted; a counter that went back says nothing."""
    tree = changed(
        DGX,
        files={SWAPS: swaps, VMSTAT: "pswpin 10\npswpout 7"},
        second={VMSTAT: second} if second else None,
    )

    finding = ask("mem.swap.devices", tree)

    assert finding.verdict == verdict


def governor(
    name: str, driver: str, preference: str | None = None, count: int = 2
) -> dict[str, str]:
    files = {}
    for number in range(count):
        files[f"{POLICY}{number}/scaling_governor"] = name
        files[f"{POLICY}{number}/scaling_driver"] = driver
        if preference:
            files[f"{POLICY}{number}/energy_performance_preference"] = preference
    return files


@pytest.mark.parametrize(
    ("files", "workload", "verdict"),
    [
        (governor("performance", "acpi-cpufreq"), "training", "ok"),
        (governor("schedutil", "acpi-cpufreq"), "training", "warn"),
        (governor("ondemand", "acpi-cpufreq"), "inference", "warn"),
        (governor("ondemand", "acpi-cpufreq"), "generic", "ok"),
        (governor("powersave", "intel_pstate", "performance"), "training", "ok"),
        (governor("powersave", "intel_pstate", "balance_performance"), "training", "ok"),
        (governor("powersave", "intel_pstate", "power"), "training", "warn"),
        (governor("powersave", "amd-pstate-epp", "balance_power"), "training", "warn"),
        (governor("powersave", "intel_cpufreq"), "training", "warn"),
        (governor("walt", "qcom-cpufreq-hw"), "training", "ok"),
        (
            governor("performance", "acpi-cpufreq") | {f"{POLICY}1/scaling_governor": "powersave"},
            "training",
            "warn",
        ),
        (governor("", "acpi-cpufreq"), "training", "unknown"),
    ],
)
def test_governor(files, workload, verdict):
    """`powersave` is slow under acpi-cpufreq and not under intel_pstate; every policy counts."""
    finding = ask("cpu.governor", changed(DGX, files=files), workload)

    assert finding.verdict == verdict


def test_no_cpufreq():
    """A virtual machine has no clocks to set: that is no fault (redhat-performance/tuned#857)."""
    finding = ask(
        "cpu.governor", changed(DGX, errnos={"/sys/devices/system/cpu/cpufreq": "ENOENT"})
    )

    assert finding.verdict == "n/a"


@pytest.mark.parametrize(
    ("host", "answer", "workload", "verdict"),
    [
        (DGX, "unlimited unlimited", "training", "ok"),
        (DGX, f"{2 * GIB} {2 * GIB}", "training", "ok"),
        (DGX, "8388608 8388608", "training", "fail"),
        (DGX, "65536 unlimited", "inference", "fail"),
        (DGX, "what 1", "training", "unknown"),
        (DGX, Unreadable("EINVAL"), "training", "unknown"),
        (ONE_NODE, "65536 65536", "training", "n/a"),
        (CPU_ONLY, "65536 65536", "training", "n/a"),
    ],
)
def test_memlock(host, answer, workload, verdict):
    """8 MiB is a fault where RDMA registers buffers (NVIDIA/nccl-tests#206), and nobody's business elsewhere."""
    finding = ask("lim.memlock.shell", changed(host, answers={"rlimit memlock": answer}), workload)

    assert finding.verdict == verdict


def test_memlock_of_root():
    """With CAP_IPC_LOCK the limit does not bind; the sentence says that another user has it."""
    status = f"CapEff:\t{1 << 14:016x}\nCpus_allowed_list:\t0-223\nMems_allowed_list:\t0-1"

    finding = ask(
        "lim.memlock.shell",
        changed(DGX, files={STATUS: status}, answers={"rlimit memlock": "8388608 8388608"}),
    )

    assert finding.verdict == "ok"
    assert "another user is held to 8 MiB" in finding.summary


def test_memlock_that_can_be_raised_is_raised_by_one_command():
    """Where the hard limit allows it, the fix needs no administrator."""
    tree = changed(DGX, answers={"rlimit memlock": "65536 unlimited"})

    assert ask("lim.memlock.shell", tree).remedy == "ulimit -l unlimited"


@pytest.mark.parametrize(
    ("answer", "workload", "verdict", "remedy"),
    [
        ("1048576 1048576", "training", "ok", None),
        ("unlimited unlimited", "training", "ok", None),
        ("1024 1048576", "training", "warn", "ulimit -n 65536"),
        ("1024 4096", "training", "warn", "ulimit -n 4096"),
        ("1024 1048576", "generic", "ok", None),
        ("1024", "training", "warn", "docker run --ulimit nofile=65536 …"),
        ("?", "training", "unknown", None),
    ],
)
def test_nofile(answer, workload, verdict, remedy):
    """The soft limit is what counts, and the hard one says how far it can go (pytorch/pytorch#973)."""
    finding = ask("lim.nofile", changed(DGX, answers={"rlimit nofile": answer}), workload)

    assert finding.verdict == verdict
    assert (finding.remedy or "").partition("\n")[0] == (remedy or "")


@pytest.mark.parametrize(
    ("answers", "workload", "verdict"),
    [
        (shm(64 << 20, 64 << 20), "training", "fail"),
        (shm(64 << 20, 64 << 20), "generic", "ok"),
        (shm(512 << 20, 512 << 20), "data", "warn"),
        (shm(504 * GIB, 500 * GIB), "training", "ok"),
        (shm(2 * GIB, GIB // 8), "training", "fail"),
        (shm(504 * GIB, 40 * GIB), "training", "ok"),
        ({"statvfs /dev/shm": "bsize=0 blocks=1 bavail=1"}, "training", "unknown"),
        ({"statvfs /dev/shm": "nonsense"}, "training", "unknown"),
        ({"statvfs /dev/shm": Unreadable("EACCES")}, "training", "unknown"),
    ],
)
def test_shared_memory(answers, workload, verdict):
    """64 MiB is what a container gets that asks for nothing (pytorch/pytorch#5040)."""
    finding = ask("ctr.shm_size", changed(DGX, answers=answers), workload)

    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("host", "answer", "verdict"),
    [
        (DGX, "ok", "ok"),
        (DGX, Unreadable("EPERM"), "warn"),
        (DGX, Unreadable("ENOSYS"), "n/a"),
        (DGX, Unreadable("ENODATA"), "unknown"),
        (ONE_NODE, Unreadable("EPERM"), "n/a"),
        (CPU_ONLY, Unreadable("EPERM"), "n/a"),
    ],
)
def test_memory_policy(host, answer, verdict):
    """A seccomp profile that denies set_mempolicy (moby/moby#37241) matters where there is a choice of nodes."""
    finding = ask("ctr.mempolicy_seccomp", changed(host, answers={"mempolicy": answer}))

    assert finding.verdict == verdict


QUOTA = "/sys/fs/cgroup/cpu.max"
STAT = "/sys/fs/cgroup/cpu.stat"


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        ({QUOTA: "600000 100000"}, "warn"),
        ({QUOTA: "1600000 100000"}, "ok"),
        ({QUOTA: "max 100000"}, "ok"),
        (
            {QUOTA: "600000 100000", STAT: "nr_periods 16\nnr_throttled 16\nthrottled_usec 1"},
            "fail",
        ),
        ({QUOTA: "600000 100000", STAT: "nr_periods 9000\nnr_throttled 2"}, "ok"),
        ({QUOTA: "600000 100000", STAT: "nr_periods 50\nnr_throttled 0"}, "warn"),
        ({QUOTA: "600000 100000", STAT: "usage_usec 1"}, "warn"),
        ({QUOTA: "nonsense"}, "unknown"),
    ],
)
def test_cpu_quota(files, verdict):
    """A quota below the CPUs is a trap until a minute of periods has shown that it stops nobody."""
    finding = ask("cg.cpu_max", changed(POD, files=files))

    assert finding.verdict == verdict


def test_quota_of_an_ancestor():
    """The child's file says `max` while a parent throttles: both are looked at."""
    above = "/sys/fs/cgroup/user.slice"
    files = {
        f"{above}/cpu.max": "200000 100000",
        f"{above}/cpu.stat": "nr_periods 100\nnr_throttled 40",
    }

    finding = ask("cg.cpu_max", changed(DGX, files=files))

    assert finding.verdict == "fail"
    assert "40% of its periods" in finding.summary


def test_no_quota_without_gpu_is_no_question():
    """A host without GPU is left alone, except by those who prepare data on it."""
    tree = changed(CPU_ONLY, files={QUOTA: "600000 100000"})

    verdicts = {
        workload: ask("cg.cpu_max", tree, workload).verdict
        for workload in ("training", "inference")
    }

    assert verdicts == {"training": "n/a", "inference": "n/a"}


def test_well_tuned_host_has_no_finding_from_settings():
    """What the advice asks for is not itself complained about."""
    files = {
        BALANCING: "0",
        RECLAIM: "0",
        f"{THP}/enabled": "always [madvise] never",
        SWAPS: HEADER,
        **governor("performance", "acpi-cpufreq"),
    }
    answers = {
        "rlimit memlock": "unlimited unlimited",
        "rlimit nofile": "1048576 1048576",
        "mempolicy": "ok",
    }
    rules = ("mem.numa_balancing", "mem.zone_reclaim_mode", "mem.thp.enabled", "mem.swap.devices", "cpu.governor",
             "lim.memlock.shell", "lim.nofile", "ctr.mempolicy_seccomp", "ctr.shm_size")  # fmt: skip

    for host in (DGX, A100):
        tree = changed(host, files=files, answers=answers | shm(500 * GIB, 500 * GIB))
        assert {ask(rule, tree).verdict for rule in rules} == {"ok"}
