"""Does the whole way through nvidia-ml-py and a library give what the recording says?"""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
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
    """Recording a driver that answers from a file gives that file again; what is not in it the driver does not support."""
    written = python(RECORD, environment(library, recording)).splitlines()

    said = [line for line in recording.read_text().splitlines() if not line.startswith("#")]
    more = [line for line in written if line not in said]
    assert [line for line in written if line in said] == said
    assert all(line.endswith("= !NVML_ERROR_NOT_SUPPORTED") for line in more)


def test_every_call_that_is_made_has_a_stand_in(library):
    """A function of NVML that wellfed's source names and the library lacks would look like an old driver."""
    source = "".join(path.read_text() for path in pathlib.Path(nvidia.__file__).parent.glob("*.py"))
    named = set(re.findall(r"\bnvml(?:Device|System|Init|Shutdown)\w*", source))

    exported = ctypes.CDLL(str(library / "libnvidia-ml.so.1"))

    assert len(named) > 40
    assert [name for name in sorted(named) if not hasattr(exported, name)] == []


FULL = """
nvmlDeviceGetPersistenceMode gpu0 = 0
nvmlDeviceGetComputeMode gpu0 = 0
nvmlDeviceGetEccMode gpu0 = [1, 1]
nvmlDeviceGetTotalEccErrors gpu0 1 0 = 18446744073709551615
nvmlDeviceGetMemoryErrorCounter gpu0 1 0 2 = 3
nvmlDeviceGetRemappedRows gpu0 = [1, 2, 0, 1]
nvmlDeviceGetClockInfo gpu0 1 = 345
nvmlDeviceGetMaxClockInfo gpu0 0 = 1980
nvmlDeviceGetMaxClockInfo gpu0 2 = 2619
nvmlDeviceGetApplicationsClock gpu0 0 = 1980
nvmlDeviceGetApplicationsClock gpu0 2 = 2619
nvmlDeviceGetDefaultApplicationsClock gpu0 0 = 1755
nvmlDeviceGetDefaultApplicationsClock gpu0 2 = 2619
nvmlDeviceGetCurrentClocksEventReasons gpu0 = 72
nvmlDeviceGetSupportedClocksEventReasons gpu0 = 511
nvmlDeviceGetPowerManagementLimit gpu0 = 700000
nvmlDeviceGetPowerManagementLimitConstraints gpu0 = [200000, 700000]
nvmlDeviceGetMemoryInfo gpu0 = {"total": 85520809984, "free": 85009104896, "used": 511705088}
nvmlDeviceGetBAR1MemoryInfo gpu0 = {"bar1Total": 137438953472, "bar1Free": 137437904896, "bar1Used": 1048576}
nvmlDeviceGetUtilizationRates gpu0 = {"gpu": 97, "memory": 41}
nvmlDeviceGetNvLinkState gpu0 3 = 1
nvmlDeviceGetNvLinkErrorCounter gpu0 3 0 = 4294967296
nvmlDeviceGetTopologyCommonAncestor gpu0 gpu1 = 40
"""
ASKED = """
import pynvml as n
n.nvmlInit()
g, h = n.nvmlDeviceGetHandleByIndex(0), n.nvmlDeviceGetHandleByIndex(1)
"""


@pytest.fixture
def full(tmp_path) -> pathlib.Path:
    """Give a recording in which a GPU answers everything."""
    return with_lines(RECORDINGS / "h100x8.txt", tmp_path, FULL)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("n.nvmlDeviceGetTotalEccErrors(g, 1, 0)", "18446744073709551615"),
        ("n.nvmlDeviceGetMemoryErrorCounter(g, 1, 0, 2)", "3"),
        ("n.nvmlDeviceGetRemappedRows(g)", "(1, 2, 0, 1)"),
        ("n.nvmlDeviceGetEccMode(g)", "[1, 1]"),
        ("n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_SM)", "345"),
        ("n.nvmlDeviceGetMaxClockInfo(g, n.NVML_CLOCK_MEM)", "2619"),
        ("n.nvmlDeviceGetCurrentClocksEventReasons(g)", "72"),
        ("n.nvmlDeviceGetMemoryInfo(g).free", "85009104896"),
        ("n.nvmlDeviceGetBAR1MemoryInfo(g).bar1Total", "137438953472"),
        ("n.nvmlDeviceGetUtilizationRates(g).gpu", "97"),
        ("n.nvmlDeviceGetNvLinkState(g, 3)", "1"),
        ("n.nvmlDeviceGetNvLinkErrorCounter(g, 3, 0)", "4294967296"),
        ("n.nvmlDeviceGetTopologyCommonAncestor(g, h)", "40"),
        ("n.nvmlDeviceGetPowerManagementLimitConstraints(g)", "[200000, 700000]"),
    ],
)
def test_nvidia_ml_py_reads_what_the_recording_says(library, full, asked, answered):
    """Layouts and widths are those of nvml.h, as nvidia-ml-py has them."""
    said = python(f"{ASKED}print({asked})", environment(library, full))

    assert said.strip() == answered


@pytest.mark.skipif(os.geteuid() != 0, reason="setters are for root, as on a driver")
@pytest.mark.parametrize(
    ("change", "look", "before", "after", "undo"),
    [
        ("SetPersistenceMode(g, 1)", "GetPersistenceMode(g)", "0", "1", "SetPersistenceMode(g, 0)"),
        ("SetComputeMode(g, 3)", "GetComputeMode(g)", "0", "3", "SetComputeMode(g, 0)"),
        ("SetEccMode(g, 0)", "GetEccMode(g)", "[1, 1]", "[1, 0]", "SetEccMode(g, 1)"),
        ("SetMigMode(g, 1)", "GetMigMode(g)", "[0, 0]", "[0, 1]", "SetMigMode(g, 0)"),
        ("SetPowerManagementLimit(g, 500000)", "GetPowerManagementLimit(g)", "700000", "500000",
         "SetPowerManagementLimit(g, 700000)"),
        ("SetApplicationsClocks(g, 2619, 1200)", "GetApplicationsClock(g, 0)", "1980", "1200",
         "SetApplicationsClocks(g, 2619, 1980)"),
        ("ResetApplicationsClocks(g)", "GetApplicationsClock(g, 0)", "1980", "1755",
         "SetApplicationsClocks(g, 2619, 1980)"),
    ],
)  # fmt: skip
def test_a_change_outlives_the_process_and_can_be_undone(
    library, full, change, look, before, after, undo
):
    """Each step is a process of its own: what one sets the next one reads."""
    env = environment(library, full)

    def do(call: str) -> str:
        return python(f"{ASKED}print(n.nvmlDevice{call})", env).strip()

    seen = [do(look)]
    for step in (change, undo):
        do(step)
        seen.append(do(look))

    assert seen == [before, after, before]


@pytest.mark.skipif(os.geteuid() != 0, reason="setters are for root, as on a driver")
@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("SetPersistenceMode(g, 2)", "NVMLError_InvalidArgument"),
        ("SetComputeMode(g, 4)", "NVMLError_InvalidArgument"),
        ("SetPowerManagementLimit(g, 100000)", "NVMLError_InvalidArgument"),
        ("SetPowerManagementLimit(g, 700001)", "NVMLError_InvalidArgument"),
        ("SetGpuLockedClocks(g, 1200, 1981)", "NVMLError_InvalidArgument"),
        ("SetGpuLockedClocks(g, 1200, 300)", "NVMLError_InvalidArgument"),
        ("SetPersistenceMode(h, 1)", "NVMLError_NotSupported"),
        ("SetEccMode(h, 1)", "NVMLError_NotSupported"),
        ("SetGpuLockedClocks(h, 300, 1200)", "NVMLError_NotSupported"),
    ],
)
def test_a_change_that_a_driver_refuses_changes_nothing(library, full, change, refusal):
    """Values out of range, and GPUs that do not have the setting."""
    before = full.read_bytes()
    code = f"{ASKED}\ntry: n.nvmlDevice{change}\nexcept n.NVMLError as no: print(type(no).__name__)"

    said = python(code, environment(library, full))

    assert said.strip() == refusal
    assert full.read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="setters are for root, as on a driver")
def test_locked_clocks_are_written_where_a_test_can_read_them(library, full):
    """NVML cannot be asked for them: the file can."""
    env = environment(library, full)
    for call in ("SetGpuLockedClocks(g, 1200, 1980)", "ResetGpuLockedClocks(g)"):
        python(f"{ASKED}n.nvmlDevice{call}", env)

    locked = [line for line in full.read_text().splitlines() if line.startswith("# locked")]

    assert locked == ["# locked gpu0 0 = [1200, 1980]", "# locked gpu0 0 = none"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_nobody_but_root_changes_a_gpu(library, full, tmp_path):
    """As a driver does, the stand-in refuses with Insufficient Permissions, and says what it said before."""
    before = full.read_bytes()
    code = (
        f"{ASKED}\nimport os; os.seteuid(65534)\n"
        "try: n.nvmlDeviceSetPersistenceMode(g, 1)\nexcept n.NVMLError as no: print(type(no).__name__)"
    )
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    full.chmod(0o666)

    said = python(code, environment(library, full))

    assert said.strip() == "NVMLError_NoPermission"
    assert full.read_bytes() == before


def test_any_call_can_be_refused_with_any_error(library, full, tmp_path):
    """One line a call: the setter too, whatever its getter says."""
    recording = with_lines(full, tmp_path, "nvmlDeviceSetPersistenceMode gpu0 = !NVML_ERROR_IN_USE")
    code = f"{ASKED}\ntry: n.nvmlDeviceSetPersistenceMode(g, 1)\nexcept n.NVMLError as no: print(type(no).__name__)"

    said = python(code, environment(library, recording))

    assert said.strip() == "NVMLError_InUse"


def test_a_gpu_that_falls_off_the_bus_takes_no_other_with_it(library, tmp_path):
    """From its third call on GPU 2 is lost: its answers so far are kept, and the other seven are whole."""
    recording = with_lines(RECORDINGS / "h100x8.txt", tmp_path, "#! lost gpu2 2")

    lines = python(RECORD, environment(library, recording)).splitlines()

    about = [line for line in lines if line.split()[1] == "gpu2"]
    lost = [line for line in about if line.endswith("= !NVML_ERROR_GPU_IS_LOST")]
    others = [line for line in lines if line.endswith("GPU_IS_LOST") and line not in lost]
    assert len(about) - len(lost) == 2
    assert len(lost) > 30
    assert others == []


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
