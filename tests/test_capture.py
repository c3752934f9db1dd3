"""Is a captured host the host, nobody's host, and one whole file?"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hosts.assemble import assemble
from tests.packing import small_trees
from wellfed.checks._base import Check
from wellfed.checks._room import all_checks
from wellfed.cli.capture import COMMAND, lines, wait_with_bar
from wellfed.host.archive import open_recording
from wellfed.host.bundle import about, check_destination, pack, write_bundle
from wellfed.host.live_tree import LiveTree
from wellfed.host.recorded_tree import RecordedTree
from wellfed.host.recording import RecordingTree
from wellfed.host.redact import redact_recording
from wellfed.model.errors import RecordingError, UsageError
from wellfed.model.tree import Unreadable
from wellfed.model.value import replace
from wellfed.workflows import capture as workflow
from wellfed.workflows.capture import capture, record
from wellfed.workflows.machine import know
from wellfed.workflows.snapshot import snapshot_of

SUFFIXES = (".tar.xz", ".tar.gz", ".tar.zst", ".tar.bz2")


def bundled(recording, path):
    """Write a recording and open it again."""
    write_bundle(str(path), pack(recording, about(recording), when=1_700_000_000), force=True)
    return open_recording(str(path))


def everything(tree):
    """Give all that a recording holds."""
    return (
        dict(tree.files),
        dict(tree.links),
        dict(tree.errnos),
        dict(tree.directories),
        dict(tree.answers),
        tree.second,
        tree.interval_seconds,
        tree.assembled,
        tree.complete,
    )


def machines_agree(one, other):
    """Compare two machines but for what says where they were read."""
    return replace(one, name="", live=False) == replace(other, name="", live=False)


READINGS = st.one_of(st.text(max_size=5), st.sampled_from(["EPERM", "ENOSYS"]).map(Unreadable))


@settings(deadline=None, max_examples=60)
@given(
    tree=small_trees(),
    answers=st.dictionaries(st.text(max_size=4), READINGS, max_size=3),
    second=st.dictionaries(st.just("/proc/stat"), st.binary(max_size=9)),
    errnos=st.dictionaries(
        st.sampled_from(["/sys/x", "/sys/y/z"]), st.sampled_from(["EACCES", "ENOENT"])
    ),
    suffix=st.sampled_from(SUFFIXES),
    partial=st.booleans(),
)
def test_open_undoes_write(tree, answers, second, errnos, suffix, partial, tmp_path_factory):
    """What is written is what is opened, in every compression, complete recordings and partial ones."""
    inside = {path: target for path, target in tree.links.items() if not target.startswith("/")}
    made = RecordedTree(
        "host",
        tree.files,
        links=inside,
        errnos=errnos,
        directories=dict.fromkeys(tree.directories, ()),
        answers=answers,
        second=second,
        interval_seconds=1.5,
        assembled=not partial,
        complete=not partial,
    )

    opened = bundled(made, tmp_path_factory.getbasetemp() / f"host{suffix}")

    assert everything(opened) == everything(made)


@settings(deadline=None, max_examples=80)
@given(tree=small_trees(), data=st.data())
def test_recording_holds_what_was_asked_and_nothing_else(tree, data, tmp_path_factory):
    """Asked again, a recording says the same; asked anything new, it says that nobody looked."""
    known = sorted(
        {*tree.files, *tree.links, *tree.directories, "/proc/zz", "/proc/a/zz", "/sys/x"}
    )
    asked = data.draw(
        st.lists(st.tuples(st.sampled_from(("read_bytes", "list", "link")), st.sampled_from(known)))
    )
    remembering = RecordingTree(tree)
    said = [getattr(remembering, ask)(path) for ask, path in asked]

    recording = bundled(
        remembering.recording("host"), tmp_path_factory.getbasetemp() / "asked.tar.gz"
    )

    assert [getattr(tree, ask)(path) for ask, path in asked] == said
    for (ask, path), answer in zip(asked, said, strict=True):
        # What is no file and no directory was asked for the wrong thing, which is told either way.
        wrong = isinstance(answer, Unreadable) and answer.errno_name in ("EISDIR", "ENOTDIR")
        again = getattr(recording, ask)(path)
        assert again == answer or (wrong and again == Unreadable("ENODATA"))
    for path in known:
        for ask in ("read_bytes", "list", "link"):
            again = getattr(recording, ask)(path)
            assert again in (getattr(tree, ask)(path), Unreadable("ENODATA"))


def test_this_host_captured_is_this_host(tmp_path):
    """A capture of the running machine, opened, is the same machine."""
    path = str(tmp_path / "host.tar.xz")
    live = LiveTree()
    before = know(live)

    capture(path, sample_seconds=0, identify=True)

    opened = open_recording(path)
    after = know(opened)
    assert machines_agree(_steady(after), _steady(before))
    assert not opened.live
    assert not opened.assembled


def _steady(machine):
    """Leave out how much memory is free, which changes while one looks."""
    nodes = tuple(replace(node, available_bytes=None) for node in machine.nodes)
    return replace(machine, nodes=nodes)


def test_hiding_changes_no_place(tmp_path):
    """Without names the machine has the same CPUs, nodes and devices."""
    path = str(tmp_path / "host.tar.xz")

    capture(path, sample_seconds=0)

    seen, expected = know(open_recording(path)), know(LiveTree())
    assert (seen.cpus, seen.pci, seen.nics, seen.nvmes) == (
        expected.cpus,
        expected.pci,
        expected.nics,
        expected.nvmes,
    )
    assert replace(seen.allowed, cpuset_path=None) == replace(expected.allowed, cpuset_path=None)
    assert len(seen.gpus) == len(expected.gpus)


def test_everything_that_checks_want_is_in_a_capture(tmp_path):
    """No check of a captured host is told that nobody looked."""
    path = str(tmp_path / "host.tar.xz")
    checks = all_checks()

    capture(path, sample_seconds=0.05, identify=True)

    tree = open_recording(path)
    snapshot = snapshot_of(tree, know(tree), checks)
    unseen = Unreadable("ENODATA")
    assert [path for path, reading in snapshot.readings.items() if reading == unseen] == []
    assert [question for question, answer in snapshot.answers.items() if answer == unseen] == []
    assert [
        path for path, rate in snapshot.rates.items() if unseen in (rate.first, rate.second)
    ] == []
    assert all(0.05 <= rate.interval_seconds < 20 for rate in snapshot.rates.values())


def test_counters_are_read_twice(tmp_path):
    """Both readings of a counter are kept, and how far they are apart."""
    waited = []

    class Ticking(RecordedTree):
        def read_bytes(self, path):
            if path == "/proc/vmstat":
                return b"pswpin %d\n" % (7 + len(waited))
            return super().read_bytes(path)

    tree = Ticking("host", {"/proc/vmstat": b""})
    checks = [_check(rates=("/proc/vmstat",))]

    recording, _ = record(
        tree, checks, sample_seconds=2, nvml="", wait=lambda seconds: waited.append(seconds)
    )

    assert recording.read("/proc/vmstat") == "pswpin 7"
    assert recording.second == {"/proc/vmstat": b"pswpin 8\n"}
    assert 0 < waited[0] <= 2
    assert recording.interval_seconds > 0


def _check(**more):
    return Check("?", ("test.rule",), lambda *_: (), "", (), **more)


def test_host_without_cpus_is_recorded_with_a_note():
    """A host that cannot be understood is the one whose recording somebody needs."""
    tree = RecordedTree("host", {"/proc/stat": b"cpu\n"})

    recording, notes = record(tree, [_check(reads=("/proc/stat",))], sample_seconds=0, nvml="")

    assert recording.read("/proc/stat") == "cpu"
    assert len(notes) == 1
    assert "could not be read as a machine" in notes[0]


def test_directories_that_the_person_names_are_asked(tmp_path):
    """``--path`` records what a file system can do."""
    path = str(tmp_path / "host.tar.gz")

    capture(path, sample_seconds=0, paths=[str(tmp_path), "/no/such/place"], identify=True)

    opened = open_recording(path)
    assert opened.answer(f"statvfs {tmp_path}").startswith("bsize=")
    assert opened.answer(f"odirect {tmp_path}") != Unreadable("ENODATA")
    assert opened.answer("statvfs /no/such/place") == Unreadable("ENOENT")


HOST = "trn-a17.cluster.acme.example"
SECRETS = {
    "host": "trn-a17",
    "domain": "acme",
    "user": "alice",
    "mac": "3c:ec:ef:12:34:56",
    "uuid": "8932f937-d72c-4106-c12f-20bd9faed9f6",
    "container": "3f2a9c4b5d6e7f80112233445566778899aabbccddeeff00a1b2c3d4e5f60718",
    "serial": "S6EUNA0R123456",
    "board serial": "1652322010757",
    "address": "10.17.3.9",
    "release": "91-generic",
    "builder": "lcy02-amd64-045",
    "server": "filer7",
    "project": "moonshot",
    "job": "llm-pretrain",
}


def a_host_with_secrets():
    """Give a host whose every corner names somebody."""
    s = SECRETS
    cgroup = f"/user.slice/user-{s['user']}.slice/docker-{s['container']}.scope"
    return RecordedTree(
        "host",
        {
            "/proc/version": f"Linux version 5.15.0-{s['release']} (builder@{s['builder']}) (gcc 11) #1 SMP".encode(),
            "/proc/sys/kernel/hostname": HOST.encode(),
            "/proc/sys/kernel/osrelease": f"5.15.0-{s['release']}\n".encode(),
            "/proc/cmdline": f"root=UUID={s['uuid']} ip={s['address']} isolcpus=2-3\n".encode(),
            "/proc/self/cgroup": f"0::{cgroup}\n".encode(),
            "/proc/self/mountinfo": (
                f"36 35 0:31 / /mnt/{s['project']} rw - nfs {s['server']}:/vol/{s['project']} rw,addr={s['address']}\n"
                "24 23 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
            ).encode(),
            "/proc/self/cmdline": f"python\0/home/{s['user']}/{s['project']}/train.py".encode(),
            f"/sys/fs/cgroup{cgroup}/cpu.max": b"max 100000\n",
            f"/sys/fs/cgroup{cgroup}/cpuset.cpus.effective": b"0-3\n",
            "/sys/class/net/eth0/address": f"{s['mac']}\n".encode(),
            "/sys/class/dmi/id/product_serial": f"{s['serial']}\n".encode(),
            "/sys/class/nvme/nvme0/serial": f"{s['serial']}\n".encode(),
            "/sys/class/infiniband/mlx5_0/node_desc": f"{s['host']} HCA-1\n".encode(),
            "/proc/driver/nvidia/gpus/0000:3b:00.0/information": (
                f"Model: \t NVIDIA H100\nGPU UUID: \t GPU-{s['uuid']}\nSerial Number: {s['serial']}\n"
            ).encode(),
            "/sys/devices/system/cpu/online": b"0-3\n",
        },
        answers={
            "environ": "\n".join(
                (
                    f"CUDA_VISIBLE_DEVICES=GPU-{s['uuid'][:8]}",
                    f"LD_PRELOAD=/home/{s['user']}/{s['project']}/libjemalloc.so.2",
                    f"MASTER_ADDR={HOST}",
                    f"NCCL_DEBUG_FILE=/scratch/{s['project']}/log",
                    f"SLURM_JOB_NAME={s['job']}",
                )
            ),
            "uname release": f"5.15.0-{s['release']}",
            f"statvfs /home/{s['user']}": "bsize=4096 blocks=1 bavail=1 files=1 favail=1",
        },
    )


EVERYTHING = _check(
    reads=(
        "/proc/*",
        "/proc/self/*",
        "/proc/sys/kernel/*",
        "/proc/driver/nvidia/gpus/*/information",
        "/sys/class/net/*/address",
        "/sys/class/dmi/id/*",
        "/sys/class/nvme/*/serial",
        "/sys/class/infiniband/*/node_desc",
        "cgroup.cpu/cpu.max",
    ),
    asks=("environ", "uname release", f"statvfs /home/{SECRETS['user']}"),
)
NVML = (
    f'nvmlDeviceGetUUID gpu0 = "GPU-{SECRETS["uuid"]}"\n'
    f'nvmlDeviceGetSerial gpu0 = "{SECRETS["board serial"]}"\n'
)


def captured(tree, path, *, identify=False):
    """Capture a host in memory, as `capture` does with the running one, and give the bytes that were packed."""
    recording, _ = record(tree, [EVERYTHING], sample_seconds=0, nvml=NVML)
    if not identify:
        recording = redact_recording(recording, hosts=[HOST], people=[SECRETS["user"]]).recording
    content = pack(recording, about(recording), when=0)
    write_bundle(str(path), content, force=True)
    return content


@pytest.mark.parametrize("kind", SECRETS)
def test_capture_names_nobody(tmp_path, kind):
    """No name, address, serial number or path of a person is in the bytes of a capture."""
    content = captured(a_host_with_secrets(), tmp_path / "host.tar.gz")

    assert SECRETS[kind].encode() not in content
    assert b"isolcpus=2-3" in content
    assert b"NVIDIA H100" in content


@pytest.mark.parametrize(
    "kind", ["host", "mac", "uuid", "serial", "board serial", "address", "release"]
)
def test_identify_keeps_everything(tmp_path, kind):
    """Who asks for names gets them."""
    content = captured(a_host_with_secrets(), tmp_path / "host.tar.gz", identify=True)

    assert SECRETS[kind].encode() in content


def test_hidden_names_still_lead_to_their_files(tmp_path):
    """The cgroup is found, and the GPU that CUDA_VISIBLE_DEVICES names is the one of the driver."""
    captured(a_host_with_secrets(), tmp_path / "host.tar.gz")

    tree = open_recording(str(tmp_path / "host.tar.gz"))
    cgroup = tree.read("/proc/self/cgroup").removeprefix("0::")
    assert tree.read(f"/sys/fs/cgroup{cgroup}/cpu.max") == "max 100000"
    uuid = re.search("GPU-\\S+", tree.read("/proc/driver/nvidia/gpus/0000:3b:00.0/information"))[0]
    asked = re.search("CUDA_VISIBLE_DEVICES=(\\S+)", tree.answer("environ"))[1]
    assert uuid.startswith(asked)
    assert f'"{uuid}"' in tree.answer("nvml")
    assert "LD_PRELOAD=libjemalloc.so.2" in tree.answer("environ")


def test_capture_of_this_host_names_nobody(tmp_path):
    """No hardware address of this machine is in its capture, nor its user's name, nor its name if it is one."""
    path = tmp_path / "host.tar.gz"
    addresses = [
        LiveTree().read(f"/sys/class/net/{name}/address") for name in os.listdir("/sys/class/net")
    ]

    capture(str(path), sample_seconds=0)

    import gzip

    content = gzip.decompress(path.read_bytes())
    names = [os.uname().nodename] if len(os.uname().nodename) > 8 else []
    for secret in (*addresses, *names):
        if secret and secret != "00:00:00:00:00:00":
            assert str(secret).encode() not in content


def a_large_host():
    """Give a node of eight GPUs, 256 CPUs and 2000 interrupts, each with a file for its CPUs."""
    small = assemble("ubuntu2204-dgxh100-8h100")
    files = dict(small.files)
    for cpu in range(256):
        base = f"/sys/devices/system/cpu/cpu{cpu}"
        siblings = f"{cpu % 128},{cpu % 128 + 128}\n".encode()
        for name, text in {
            "topology/physical_package_id": b"%d\n" % (cpu % 128 // 64),
            "topology/core_id": b"%d\n" % (cpu % 128),
            "topology/core_cpus_list": siblings,
            "topology/thread_siblings_list": siblings,
            "topology/die_id": b"0\n",
            "cache/index3/level": b"3\n",
            "cache/index3/shared_cpu_list": siblings,
            "cpufreq/scaling_governor": b"performance\n",
        }.items():
            files[f"{base}/{name}"] = text
    files["/sys/devices/system/cpu/online"] = files["/sys/devices/system/cpu/present"] = b"0-255\n"
    rng = random.Random(3)
    numbers = [
        rng.randrange(100_000) * (cpu % 16 == irq % 16) for irq in range(2000) for cpu in range(256)
    ]
    rows = (
        f"{irq:5}: "
        + " ".join(f"{n:10}" for n in numbers[irq * 256 : irq * 256 + 256])
        + "  PCI-MSIX  mlx5_comp"
        for irq in range(2000)
    )
    files["/proc/interrupts"] = "\n".join(rows).encode()
    for irq in range(2000):
        files[f"/proc/irq/{irq}/smp_affinity_list"] = b"%d-%d\n" % (irq % 128, irq % 128 + 1)
        files[f"/proc/irq/{irq}/effective_affinity_list"] = b"%d\n" % (irq % 128)
    return RecordedTree(
        small.name,
        files,
        links=small.links,
        errnos=small.errnos,
        answers=small.answers,
        assembled=True,
    )


def test_eight_gpu_node_fits_into_two_megabytes(tmp_path):
    """256 CPUs, 8 GPUs, 2000 interrupts with their counters twice: under 2 MB, the same machine, in seconds."""
    tree = a_large_host()
    interrupts = _check(
        reads=("/proc/irq/*/smp_affinity_list", "/proc/irq/*/effective_affinity_list"),
        rates=("/proc/interrupts",),
    )

    recording, notes = record(
        tree,
        [*all_checks(), interrupts],
        sample_seconds=0.001,
        nvml=tree.answer("nvml") or "",
        wait=lambda _: None,
    )
    made = redact_recording(recording, hosts=["somehost"]).recording
    size = write_bundle(str(tmp_path / "host.tar.xz"), pack(made, about(made), when=0), force=False)

    assert notes == ()
    assert size < 2_000_000
    opened = open_recording(str(tmp_path / "host.tar.xz"))
    assert opened.second["/proc/interrupts"] == tree.files["/proc/interrupts"]
    seen, expected = know(opened), know(tree)
    assert len(seen.cpus) == 256
    assert [(g.pci_address, g.cpu_node) for g in seen.gpus] == [
        (g.pci_address, g.cpu_node) for g in expected.gpus
    ]
    assert len(seen.gpus) == 8


@pytest.mark.parametrize("name", ["host", "host.tar", "host.zip", "host.tgz", ".xz"])
def test_suffix_must_name_a_compression(tmp_path, name):
    """What the file should be is said by its name, and not guessed."""
    with pytest.raises(UsageError) as caught:
        capture(str(tmp_path / name))

    assert ".tar.xz" in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_existing_file_is_kept(tmp_path):
    """A file that is there is replaced only with --force."""
    path = tmp_path / "host.tar.gz"
    path.write_text("mine")

    with pytest.raises(UsageError) as caught:
        capture(str(path), sample_seconds=0)
    assert "--force" in caught.value.remedy
    assert path.read_text() == "mine"

    capture(str(path), sample_seconds=0, force=True)
    assert open_recording(str(path)).answer("sched_getaffinity")


def test_file_that_appears_meanwhile_is_kept(tmp_path):
    """The name is taken in one step: a file that came while we recorded is not overwritten."""
    path = tmp_path / "host.tar.gz"
    check_destination(str(path), force=False)
    path.write_text("mine")

    with pytest.raises(UsageError, match="exists already"):
        write_bundle(str(path), b"", force=False)

    assert path.read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["host.tar.gz"]


def test_file_system_without_hard_links(tmp_path, monkeypatch):
    """FAT and some network file systems have no hard links; the file gets its name all the same."""

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    write_bundle(str(tmp_path / "host.tar.gz"), b"", force=False)

    assert [each.name for each in tmp_path.iterdir()] == ["host.tar.gz"]


def test_failure_leaves_nothing(tmp_path, monkeypatch):
    """A disk that is full leaves neither half a file nor a temporary one."""

    def refuse(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)

    with pytest.raises(RecordingError) as caught:
        capture(str(tmp_path / "host.tar.gz"), sample_seconds=0)

    assert "No space left" in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_interruption_leaves_nothing(tmp_path, monkeypatch):
    """Ctrl-C while the file is written leaves nothing."""

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)

    with pytest.raises(KeyboardInterrupt):
        capture(str(tmp_path / "host.tar.gz"), sample_seconds=0)

    assert list(tmp_path.iterdir()) == []


END_WHILE_WRITING = """
import os, signal, sys
from wellfed.cli import main
os.fsync = lambda _: os.kill(os.getpid(), getattr(signal, sys.argv[1]))
sys.exit(main(["capture", sys.argv[2], "--sample", "0"]))
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_leaves_nothing(tmp_path, name, code):
    """A job that is cancelled, a terminal that hangs up: nothing, as after Ctrl-C."""
    path = str(tmp_path / "host.tar.gz")
    done = subprocess.run([sys.executable, "-c", END_WHILE_WRITING, name, path], check=False)

    assert done.returncode == code
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_has_room_for_the_file_beside_it(tmp_path):
    """255 bytes are a name on Linux; the unfinished file must not want a longer one."""
    path = tmp_path / ("n" * 248 + ".tar.gz")

    capture(str(path), sample_seconds=0)

    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["no/such/folder/host.tar.gz", "host.tar.gz/"])
def test_place_that_is_none(tmp_path, name):
    """A folder that is not there is said before anything is recorded."""
    with pytest.raises(UsageError):
        capture(str(tmp_path / name) + ("/" if name.endswith("/") else ""))


@pytest.mark.parametrize("seconds", [-1, float("nan"), 1e9])
def test_sample_must_be_a_time(tmp_path, seconds):
    """A sample is a number of seconds that somebody can wait for."""
    with pytest.raises(UsageError):
        capture(str(tmp_path / "host.tar.gz"), sample_seconds=seconds)


def test_missing_driver_is_recorded(tmp_path, monkeypatch):
    """A driver that does not answer is an errno in the recording, not the end of it."""
    monkeypatch.setattr(workflow.nvidia, "record", lambda: Unreadable("ETIMEDOUT"))

    capture(str(tmp_path / "host.tar.gz"), sample_seconds=0)

    assert open_recording(str(tmp_path / "host.tar.gz")).answer("nvml") == Unreadable("ETIMEDOUT")


def test_command_says_what_was_written(tmp_path):
    """The last lines on stderr say what is in the file and what is not; stdout stays empty."""
    path = str(tmp_path / "host.tar.xz")

    done = CliRunner().invoke(COMMAND, [path, "--sample", "0"])

    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    first, *_, last = done.stderr.splitlines()
    assert first.startswith(f"{path}: ")
    assert "files" in first
    assert last.startswith("hidden")


def test_command_says_that_nothing_was_hidden(tmp_path):
    """--identify is said aloud."""
    captured_all = capture(str(tmp_path / "host.tar.gz"), sample_seconds=0, identify=True)

    assert lines(captured_all)[-1].startswith("nothing is hidden")


def test_waiting_in_a_pipe_is_silent(capfd):
    """Without a terminal there is no bar."""
    wait_with_bar(1.1)

    assert capfd.readouterr() == ("", "")


def test_bundle_unpacked_on_disk_is_the_same_recording(tmp_path):
    """Whoever unpacks a capture and gives the directory gets the same answers."""
    import tarfile

    path = tmp_path / "host.tar.gz"
    capture(str(path), sample_seconds=0.01)
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")

    packed, unpacked = open_recording(str(path)), open_recording(str(tmp_path / "unpacked"))

    assert everything(unpacked) == everything(packed)
    assert machines_agree(know(unpacked), know(packed))
