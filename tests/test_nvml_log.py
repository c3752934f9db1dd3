"""Is what NVML said read back as it was written, and is damage named by its line?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_nvml import RECORDINGS
from wellfed.gpus.nvml_log import Call, Handle, Refused, format_calls, parse_calls
from wellfed.model.errors import MalformedTextError

WORDS_OF_JSON = ("null", "true", "false")

integers = st.integers(-(1 << 63), (1 << 64) - 1)
texts = st.text(st.characters(exclude_categories=("Cs",)))
handles = st.from_regex(r"[a-z][a-z0-9]{0,11}", fullmatch=True).filter(
    lambda word: word not in WORDS_OF_JSON
)
functions = st.from_regex(r"nvml[A-Za-z0-9_]{1,40}", fullmatch=True)
refusals = st.from_regex(r"NVML_ERROR_[A-Z0-9_]{1,20}", fullmatch=True)
arguments = st.one_of(integers, texts, st.builds(Handle, handles))
structures = st.recursive(
    st.one_of(integers, texts, st.none()),
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple) | st.dictionaries(texts, inner, max_size=4)
    ),
    max_leaves=8,
)
answers = st.one_of(structures, st.builds(Handle, handles), st.builds(Refused, refusals))
calls = st.builds(Call, functions, st.lists(arguments, max_size=3).map(tuple), answers)


@given(st.lists(calls, max_size=5).map(tuple))
def test_what_is_written_is_read_back(written):
    """Formatting and parsing any calls gives the same calls."""
    assert parse_calls(format_calls(written)) == written


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.txt")), ids=lambda path: path.name)
def test_recordings_are_in_canonical_form(path):
    """Every recording, its comments aside, is exactly what writing its calls again gives."""
    text = path.read_text()
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("#")]

    assert format_calls(parse_calls(text)) == "".join(lines)


def test_a_person_can_read_and_write_it():
    """The forms that the description promises are the forms that are read."""
    text = """
# a comment, and an empty line above
nvmlSystemGetDriverVersion = "580.159.03"
nvmlDeviceGetHandleByIndex_v2 0 = gpu0
nvmlDeviceGetHandleByUUID "GPU-0 = 1" = gpu0
nvmlDeviceGetMigMode gpu0 = [0, 0]
nvmlDeviceGetNumaNodeId gpu0 = !NVML_ERROR_NOT_SUPPORTED
nvmlInitWithFlags 0 = null
"""

    assert parse_calls(text) == (
        Call("nvmlSystemGetDriverVersion", (), "580.159.03"),
        Call("nvmlDeviceGetHandleByIndex_v2", (0,), Handle("gpu0")),
        Call("nvmlDeviceGetHandleByUUID", ("GPU-0 = 1",), Handle("gpu0")),
        Call("nvmlDeviceGetMigMode", (Handle("gpu0"),), (0, 0)),
        Call("nvmlDeviceGetNumaNodeId", (Handle("gpu0"),), Refused("NVML_ERROR_NOT_SUPPORTED")),
        Call("nvmlInitWithFlags", (0,), None),
    )


DAMAGED = [
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetCount_v2 =",
    "nvmlDeviceGetCount_v2 = ",
    "nvmlDeviceGetCount_v2 8",
    "= 8",
    "8 = nvmlDeviceGetCount_v2",
    'nvmlDeviceGetUUID gpu0 = "GPU-5f1d',
    'nvmlDeviceGetUUID gpu0 = "GPU-5f1d" and more',
    'nvmlDeviceGetHandleByUUID "GPU-5f1d = gpu0',
    'nvmlDeviceGetHandleByUUID "GPU-5f1d"= gpu0',
    "nvmlDeviceGetMigMode gpu0 = [0, 0",
    "nvmlDeviceGetMigMode gpu0 = [false, true]",
    "nvmlDeviceGetMigMode GPU0 = [0, 0]",
    "nvmlDeviceGetPowerUsage gpu0 = 1.5",
    "nvmlDeviceGetPowerUsage gpu0 = [1.5]",
    "nvmlDeviceGetPowerUsage gpu0 = [NaN]",
    "nvmlDeviceGetPowerUsage gpu0 = 18446744073709551616",
    "nvmlDeviceGetPowerUsage gpu0 = [" + "9" * 5000 + "]",
    "nvmlDeviceGetPowerUsage gpu0 = ٣",
    'nvmlDeviceGetPciInfo_v3 gpu0 = {"bus": 1, "bus": 2}',
    "nvmlDeviceGetPciInfo_v3 gpu0 = " + "[" * 100_000,
    "nvmlDeviceGetNumaNodeId gpu0 = !",
    "nvmlDeviceGetNumaNodeId gpu0 = !not supported",
]


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: line[:60])
def test_damage_is_named_by_its_line(line):
    """A damaged line is a sentence with its number, never a guess and never a traceback."""
    with pytest.raises(MalformedTextError) as refusal:
        parse_calls(f"# a recording\nnvmlInitWithFlags 0 = null\n{line}\n")

    assert "line 3 of the NVML recording" in refusal.value.message
    assert len(refusal.value.message) < 400
    assert refusal.value.remedy


@given(st.text())
def test_no_text_is_worse_than_malformed(text):
    """Any text at all is read or refused as malformed."""
    try:
        parse_calls(text)
    except MalformedTextError as refusal:
        assert "NVML recording" in refusal.message
