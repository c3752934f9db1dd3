"""Does NVML's every answer, and every refusal, arrive as what it is?"""

from __future__ import annotations

import os

import pytest

from tests.fake_nvml import RECORDINGS, python
from wellfed.gpus import _room, nvidia
from wellfed.gpus._base import Sightings, Unanswered
from wellfed.gpus.nvml_calls import RecordedCalls, RecordingCalls
from wellfed.gpus.nvml_log import format_calls, parse_calls
from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.cpuset import CpuSet, NodeSet
from wellfed.model.errors import MalformedTextError
from wellfed.model.machine import Evidence, MigInstance

ADDRESSES_OF_8_H100 = (
    "0000:1b:00.0",
    "0000:43:00.0",
    "0000:52:00.0",
    "0000:61:00.0",
    "0000:9d:00.0",
    "0000:c3:00.0",
    "0000:d1:00.0",
    "0000:df:00.0",
)


def seen(name: str, *more: str) -> Sightings:
    """Give what is seen in a recording, with lines added that hold instead of earlier ones."""
    text = (RECORDINGS / f"{name}.txt").read_text() + "".join(f"{line}\n" for line in more)
    return nvidia.sight(RecordedCalls(parse_calls(text)))


def evidence(sighting, source: str) -> Evidence:
    (found,) = [each for each in sighting.evidence if each.source == source]
    return found


def test_eight_gpus_are_seen_in_pci_order():
    """Each GPU of a DGX H100 has its address, UUID, name, and the CPUs and nodes that NVML calls local."""
    found = seen("h100x8").found

    assert tuple(each.pci_address for each in found) == ADDRESSES_OF_8_H100
    assert [str(each.affinity_cpus) for each in found] == ["0-55,112-167"] * 4 + [
        "56-111,168-223"
    ] * 4
    assert [str(each.affinity_nodes) for each in found] == ["0"] * 4 + ["1"] * 4
    assert found[7].uuid == "GPU-00000000-0000-4000-8000-000000000007"
    assert found[7].name == "NVIDIA H100 80GB HBM3"
    assert {each.hbm_node for each in found} == {None}


def test_gpu_memory_is_never_a_cpu_node():
    """vllm#39361, #38635: on GB200 the NUMA node id is the GPU's own memory, and no evidence makes it a CPU node."""
    found = seen("gb200x4").found

    assert [each.hbm_node for each in found] == [2, 10, 18, 26]
    assert {each.cpu_node for gpu in found for each in gpu.evidence} == {None}


def test_minus_one_written_without_a_sign_is_no_node():
    """NVML's node id is unsigned: 4294967295 is its −1, and a recording may say even more."""
    found = seen(
        "gb200x4",
        "nvmlDeviceGetNumaNodeId gpu0 = 4294967295",
        "nvmlDeviceGetNumaNodeId gpu1 = 9223372036854775807",
    ).found

    assert [each.hbm_node for each in found] == [None, None, 18, 26]
    assert evidence(found[0], nvidia.NODE_ID).says == "4294967295"


@pytest.mark.parametrize("address", ["", "\\u001b[31m", "GPU-0", "1b"])
def test_what_is_no_pci_address_is_no_gpu(address):
    """A place that cannot be one gives a reason, never a GPU beside the real ones."""
    sightings = seen("h100x8", f'nvmlDeviceGetPciInfo_v3 gpu0 = {{"busId": "{address}"}}')

    assert tuple(each.pci_address for each in sightings.found) == ADDRESSES_OF_8_H100[1:]
    assert "has no PCI address" in sightings.unanswered[0].reason


def test_memory_affinity_keeps_every_node():
    """sglang#11208: the answer with empty and GPU nodes in it is passed on whole, for `placement` to sort out."""
    first, *_, last = seen("gb200x4").found

    assert first.affinity_nodes == NodeSet.parse("0,3-9,11-17")
    assert last.affinity_nodes == NodeSet.parse("1,19-25,27-33")
    assert evidence(first, nvidia.MEMORY_AFFINITY).says == "0,3-9,11-17"
    assert first.pci_address == "0008:01:00.0"


def test_empty_affinity_is_said_and_stays_empty():
    """cosmos-predict1#11: NVML's empty list is an empty set with a warning, never an error and never all CPUs."""
    found = seen("h100x8-cpuset8of224").found

    assert found[0].affinity_cpus == CpuSet.parse("4-11")
    assert found[4].affinity_cpus == CpuSet()
    assert evidence(found[4], nvidia.CPU_AFFINITY) == Evidence(nvidia.CPU_AFFINITY, "none")
    assert found[0].notes == ()
    assert found[4].notes == ("NVML names no CPU beside this GPU, as where a cpuset hides them",)


def test_nvml_knows_what_sysfs_does_not():
    """cuCascade#119: in a virtual machine with numa_node -1 the CPUs that NVML names are a source of their own."""
    first, second = seen("vm-h100x2").found

    assert first.affinity_cpus == CpuSet.parse("0-23,48-71")
    assert second.affinity_cpus == CpuSet.parse("24-47,72-95")


def test_unsupported_node_id_leaves_the_rest():
    """dra-driver-nvidia-gpu#1165: eight L4 without a NUMA node id still have their CPUs and memory nodes."""
    found = seen("l4x8").found

    assert {evidence(each, nvidia.NODE_ID).says for each in found} == {"Not Supported"}
    assert {each.hbm_node for each in found} == {None}
    assert [str(each.affinity_nodes) for each in found] == ["0"] * 4 + ["1"] * 4


def test_nothing_supported_is_evidence_of_nothing():
    """−1 and "Not Supported" stay as they are said: no node 0, no CPU, and the GPU is seen all the same."""
    (gpu,) = seen("vm-h100x1-silent").found

    assert [each.says for each in gpu.evidence] == ["Not Supported", "Not Supported", "-1"]
    assert {each.cpu_node for each in gpu.evidence} == {None}
    assert (gpu.affinity_cpus, gpu.affinity_nodes, gpu.hbm_node) == (None, None, None)
    assert gpu.uuid == "GPU-00000000-0000-4000-8000-000000000000"


def test_mig_instances_lie_with_their_parent():
    """container-engine-accelerators#483: instances are found past holes, under the GPU whose place is theirs."""
    cut, whole = seen("a100x2-mig").found

    assert cut.mig == (
        MigInstance(
            "MIG-377e0049-554c-540b-93c6-d0976f8426cb", 2, 0, "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
        ),
        MigInstance(
            "MIG-00000000-0000-5000-8000-000000000002", 9, 0, "NVIDIA A100-SXM4-80GB MIG 1c.2g.20gb"
        ),
        MigInstance(
            "MIG-00000000-0000-5000-8000-000000000003", 9, 1, "NVIDIA A100-SXM4-80GB MIG 1c.2g.20gb"
        ),
    )
    assert cut.affinity_cpus == CpuSet.parse("48-63,176-191")
    assert whole.mig == ()


def test_old_mig_identifiers_are_kept_as_they_are():
    """vllm#41848: an identifier is a text, also in the form MIG-GPU-UUID/gi/ci of drivers before 470."""
    old = "MIG-GPU-00000000-0000-4000-8000-000000000000/2/0"

    cut, _ = seen("a100x2-mig", f'nvmlDeviceGetUUID gpu0mig0 = "{old}"').found

    assert cut.mig[0].uuid == old


def test_mig_mode_without_instances_is_said():
    """A GPU in MIG mode on which no instance exists is no device for CUDA, and the sighting says so."""
    holes = [
        f"nvmlDeviceGetMigDeviceHandleByIndex gpu0 {index} = !NVML_ERROR_NOT_FOUND"
        for index in range(7)
    ]

    cut, _ = seen("a100x2-mig", *holes).found

    assert cut.mig == ()
    assert cut.notes == (
        "MIG mode is on and this process sees no instance: CUDA finds no device here",
    )


def test_lost_gpus_do_not_hide_the_others():
    """A GPU gone before NVML was opened is a reason; one lost after it is seen as lost; six are seen as ever."""
    sightings = seen("h100x8-2lost")

    by_address = {each.pci_address: each for each in sightings.found}
    lost = by_address["0000:c3:00.0"]
    assert len(by_address) == 7
    assert sightings.unanswered == (Unanswered("nvidia", "GPU 3 in NVML's order: GPU is lost"),)
    assert lost.notes == ("NVML says of this GPU: GPU is lost",)
    assert (lost.uuid, lost.affinity_cpus, lost.hbm_node) == (None, None, None)
    assert {each.says for each in lost.evidence} == {"GPU is lost"}
    assert by_address["0000:df:00.0"].affinity_cpus == CpuSet.parse("56-111,168-223")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("NVML_ERROR_NO_PERMISSION", "Insufficient Permissions"),
        ("NVML_ERROR_UNKNOWN", "Unknown Error"),
        ("NVML_ERROR_FUNCTION_NOT_FOUND", "Function Not Found"),
        ("NVML_ERROR_1234", "NVML_ERROR_1234"),
    ],
)
def test_every_refusal_is_evidence(code, words):
    """Whatever NVML refuses with stands in the evidence, without a node."""
    found = seen("h100x8", f"nvmlDeviceGetMemoryAffinity gpu2 0 = !{code}").found

    assert len(found) == 8
    assert evidence(found[2], nvidia.MEMORY_AFFINITY) == Evidence(nvidia.MEMORY_AFFINITY, words)
    assert found[2].affinity_nodes is None


def test_drivers_without_scopes_are_asked_the_old_way():
    """Where the scoped question is unknown, the unscoped one gives the CPUs."""
    (gpu,) = seen(
        "vm-h100x1-silent",
        "nvmlDeviceGetCpuAffinityWithinScope gpu0 0 = !NVML_ERROR_FUNCTION_NOT_FOUND",
        'nvmlDeviceGetCpuAffinity gpu0 = "8-15"',
    ).found

    assert gpu.affinity_cpus == CpuSet.parse("8-15")
    assert evidence(gpu, nvidia.CPU_AFFINITY).says == "8-15"


@pytest.mark.parametrize(
    ("name", "word"),
    [("version-mismatch", "different versions"), ("no-library", "libnvidia-ml.so.1 is not found")],
)
def test_a_closed_driver_is_a_reason(name, word):
    """No library, or one that does not fit the kernel module, is no error: nothing is seen, and the reason is given."""
    sightings = seen(name)

    assert sightings.found == ()
    assert word in sightings.unanswered[0].reason


def test_what_was_not_asked_is_not_unsupported():
    """A recording that lacks a question says "not recorded", which is another thing than "Not Supported"."""
    text = "\n".join(
        line
        for line in (RECORDINGS / "h100x8.txt").read_text().splitlines()
        if "NumaNodeId" not in line
    )

    found = nvidia.sight(RecordedCalls(parse_calls(text))).found

    assert {evidence(each, nvidia.NODE_ID).says for each in found} == {"not recorded"}


@pytest.mark.parametrize(
    "line",
    [
        'nvmlDeviceGetCount_v2 = "eight"',
        "nvmlDeviceGetHandleByIndex_v2 0 = 0",
        "nvmlDeviceGetUUID gpu0 = 7",
        'nvmlDeviceGetMigMode gpu0 = "on"',
        'nvmlDeviceGetCpuAffinityWithinScope gpu0 0 = "0-x"',
        'nvmlDeviceGetCpuAffinityWithinScope gpu0 0 = "0-999999999"',
    ],
)
def test_answers_of_another_kind_are_malformed(line):
    """A recording whose answer cannot be one is refused with a sentence."""
    with pytest.raises(MalformedTextError) as refusal:
        seen("h100x8", line)

    assert refusal.value.remedy


@pytest.mark.parametrize("count", ["-1", "0", "4000000000"])
def test_impossible_counts_end_at_once(count):
    """A recording may claim any number of GPUs; none of these is believed or looped over."""
    sightings = seen("h100x8", f"nvmlDeviceGetCount_v2 = {count}")

    assert sightings.found == ()
    assert count in sightings.unanswered[0].reason


def test_an_impossible_count_is_not_recorded_for_ever():
    """Nor is it looped over where a driver is recorded."""
    text = "nvmlInitWithFlags 0 = null\nnvmlDeviceGetCount_v2 = 4000000000\n"
    recorder = RecordingCalls(RecordedCalls(parse_calls(text)))

    nvidia._describe(recorder)

    assert len(recorder.calls) < 2 * nvidia.LARGEST_COUNT


@pytest.mark.parametrize("count", ["-1", "4000000000"])
def test_impossible_mig_counts_end_at_once(count):
    """The same for the number of MIG instances."""
    cut, _ = seen("a100x2-mig", f"nvmlDeviceGetMaxMigDeviceCount gpu0 = {count}").found

    assert len(cut.mig) in (0, 3)


def test_a_recorded_host_is_asked_for_its_recording():
    """The room finds the vendor and gives what the recorded host's driver said."""
    text = (RECORDINGS / "h100x8.txt").read_text()
    tree = RecordedTree("a recording", {}, answers={"nvml": text})

    found = _room.look(tree).found

    assert tuple(each.pci_address for each in found) == ADDRESSES_OF_8_H100


def test_a_host_recorded_without_nvml_says_so():
    """A recorded host that holds no NVML answers gives no sightings and the reason."""
    sightings = _room.vendor("nvidia").look(RecordedTree("a recording", {}))

    assert sightings == Sightings((), (Unanswered("nvidia", "NVML answers are not recorded"),))


def test_the_room_finds_its_vendors():
    """Each plug-in file is found by its constant, and each is loaded alone by its name."""
    assert [each.name for each in _room.vendors()] == ["amd", "nvidia"]
    assert _room.vendor("amd").name == "amd"


def asked_apart(code: str, patience_seconds: float = 20) -> str:
    """Ask in a process of its own, which has one thread whatever runs the tests, and print what became of it."""
    return python(
        f"""
import os, signal, time
from wellfed.gpus._apart import apart
{code}
answer = apart(question, patience_seconds={patience_seconds})
print(len(answer) if isinstance(answer, str) else answer.errno_name)
try:
    print("child left:", os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no child left")
""",
        dict(os.environ),
        seconds=30,
    )


def test_asking_apart_gives_the_answer():
    """An answer from the child arrives whole, also when it is longer than a pipe holds."""
    printed = asked_apart("question = lambda: 'ä' * 300_000")

    assert printed == "300000\nno child left\n"


def test_asking_apart_outlives_a_hang():
    """A question that is never answered ends at its time, and leaves no child behind."""
    printed = asked_apart("question = lambda: str(time.sleep(600))", patience_seconds=0.2)

    assert printed == "ETIMEDOUT\nno child left\n"


def test_asking_apart_outlives_a_crash():
    """A library that takes its process down is an answer too."""
    printed = asked_apart("question = lambda: str(os.kill(os.getpid(), signal.SIGKILL))")

    assert printed == "EIO\nno child left\n"


def test_asking_apart_outlives_our_own_mistakes():
    """An exception in the child ends the child, never runs our caller's code twice, and prints nothing."""
    printed = asked_apart("question = lambda: 1 / 0")

    assert printed == "EIO\nno child left\n"


def test_asking_apart_survives_ignored_children():
    """Where SIGCHLD is ignored the kernel reaps, and the answer still arrives."""
    printed = asked_apart(
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN); question = lambda: 'here'"
    )

    assert printed == "4\nno child left\n"


def test_processes_with_threads_are_not_forked():
    """Locks of other threads would stay locked in a child: such a process asks itself."""
    printed = asked_apart(
        "import threading; threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n"
        "asking = os.getpid(); question = lambda: 'same' if os.getpid() == asking else 'forked'"
    )

    assert printed == "4\nno child left\n"


def test_words_of_a_recording_need_no_driver():
    """Reading a recording and writing it again needs neither the library nor nvidia-ml-py."""
    text = (RECORDINGS / "gb200x4.txt").read_text()

    assert parse_calls(format_calls(parse_calls(text))) == parse_calls(text)
