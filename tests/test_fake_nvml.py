"""Does the whole way through nvidia-ml-py and a library give what the recording says?"""

from __future__ import annotations

import pathlib
import time

import pytest

from tests.fake_nvml import COMPILER, RECORDINGS, build, environment, python
from wellfed.gpus import nvidia
from wellfed.gpus.nvml_calls import RecordedCalls
from wellfed.gpus.nvml_log import parse_calls

ALL = [
    pytest.param(path, id=path.stem)
    for path in sorted(RECORDINGS.glob("*.txt"))
    if path.stem != "no-library"
]

LOOK = """
from wellfed.gpus import nvidia
from wellfed.host.live_tree import LiveTree
print(repr(nvidia.look(LiveTree())))
"""

LOOK_WITHOUT_A_CHILD = f"""
import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
{LOOK}
"""

RECORD = """
from wellfed.gpus import nvidia
print(nvidia.record(), end="")
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> pathlib.Path:
    """Compile the stand-in once."""
    if COMPILER is None:
        pytest.skip("no C compiler is here")
    return build(tmp_path_factory.mktemp("fake_nvml"))


def with_lines(recording: pathlib.Path, folder: pathlib.Path, *lines: str) -> pathlib.Path:
    """Copy a recording and add lines to it."""
    copy = folder / recording.name
    copy.write_text(recording.read_text() + "".join(f"{line}\n" for line in lines))
    return copy


@pytest.mark.parametrize("recording", ALL)
def test_live_and_recorded_see_the_same(library, recording):
    """A driver that gives the recorded answers is seen exactly as the recording is."""
    live = python(LOOK, environment(library, recording))

    recorded = nvidia.sight(RecordedCalls(parse_calls(recording.read_text())))
    assert live == f"{recorded!r}\n"


@pytest.mark.parametrize("recording", ALL)
def test_recording_a_driver_gives_its_recording(library, recording):
    """Recording a driver that answers from a file gives that file again, comments aside."""
    written = python(RECORD, environment(library, recording))

    said = [line for line in recording.read_text().splitlines() if not line.startswith("#")]
    assert written.splitlines() == said


def test_a_process_with_threads_sees_the_same(library):
    """Asked in this very process, because it has threads, the driver is seen as through a child."""
    recording = RECORDINGS / "gb200x4.txt"

    live = python(LOOK_WITHOUT_A_CHILD, environment(library, recording))

    recorded = nvidia.sight(RecordedCalls(parse_calls(recording.read_text())))
    assert live == f"{recorded!r}\n"


def test_nvml_is_opened_and_closed_once(library, tmp_path):
    """Each question goes to the driver once, between one opening and one closing."""
    log = tmp_path / "log"

    python(RECORD, environment(library, RECORDINGS / "h100x8.txt", log))

    called = log.read_text().splitlines()
    assert called[0] == "nvmlInitWithFlags"
    assert called[-1] == "nvmlShutdown"
    assert called.count("nvmlInitWithFlags") == called.count("nvmlShutdown") == 1
    assert called.count("nvmlDeviceGetUUID") == 8


def test_cpu_numbers_beyond_the_count_are_kept(library, tmp_path):
    """Sets are sized by the highest number the kernel can give, so a sparse host loses none of its CPUs."""
    recording = with_lines(
        RECORDINGS / "vm-h100x2.txt",
        tmp_path,
        'nvmlDeviceGetCpuAffinityWithinScope gpu0 0 = "0-3,2044-2047"',
    )
    code = """
import pynvml
from wellfed.gpus import nvidia
from wellfed.gpus.nvml_calls import LiveCalls
live = LiveCalls(pynvml, num_cpu_ids=2048, num_node_ids=4)
print(nvidia.sight(live).found[0].affinity_cpus)
"""

    assert python(code, environment(library, recording)) == "0-3,2044-2047\n"


def test_a_hanging_driver_is_left_behind(library, tmp_path):
    """A driver that does not come back ends in a reason, in the time that wellfed is patient."""
    recording = with_lines(RECORDINGS / "h100x8.txt", tmp_path, "#! delay nvmlDeviceGetUUID 600000")
    started = time.monotonic()

    live = python(
        "from wellfed.gpus import nvidia; nvidia.PATIENCE_SECONDS = 2.0" + LOOK,
        environment(library, recording),
    )

    assert "NVML did not answer in 2 s" in live
    assert time.monotonic() - started < 30


def test_a_crashing_library_is_a_reason(library, tmp_path):
    """A library that dies takes its child down, and not wellfed."""
    recording = with_lines(RECORDINGS / "h100x8.txt", tmp_path, "#! crash nvmlDeviceGetUUID")

    live = python(LOOK, environment(library, recording))

    assert "ended without an answer" in live


def test_a_host_without_a_driver_imports_nothing(tmp_path):
    """Without a driver the reason is given before nvidia-ml-py is even imported."""
    code = LOOK + "import sys; print('pynvml' in sys.modules)"
    env = environment(tmp_path, tmp_path / "none")
    if nvidia._driver_in_reach():
        pytest.skip("an NVIDIA driver is here")

    live = python(code, env)

    assert "libnvidia-ml.so.1 is not found" in live
    assert live.endswith("False\n")


def test_recording_without_a_library_says_so(tmp_path):
    """Recording a host that has no library is a recording that says so."""
    if nvidia._driver_in_reach():
        pytest.skip("an NVIDIA driver is here")

    written = python(RECORD, environment(tmp_path, tmp_path / "none"))

    assert written == "nvmlInitWithFlags 0 = !NVML_ERROR_LIBRARY_NOT_FOUND\n"


def test_undecodable_names_are_refused_alone(library, tmp_path):
    """A name that is not text costs that name, and nothing else."""
    recording = tmp_path / "damaged.txt"
    recording.write_bytes(
        (RECORDINGS / "vm-h100x1-silent.txt").read_bytes()
        + b'nvmlDeviceGetName gpu0 = "\xff\xfe"\n'
    )

    live = python(LOOK, environment(library, recording))

    assert "name=None, uuid='GPU-00000000-0000-4000-8000-000000000000'" in live
