"""Do sets of CPUs read and write the kernel's formats, and behave as sets?"""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wellfed.model.cpuset import EMPTY, LARGEST_ID, CpuSet, union
from wellfed.model.errors import MalformedTextError

IDS = st.sets(st.integers(0, 300) | st.integers(0, LARGEST_ID), max_size=60)


# ---- text ---------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(IDS)
def test_a_list_that_is_written_reads_back(ids):
    """parse∘format is the identity for lists."""
    assert CpuSet.parse(str(CpuSet(ids))) == CpuSet(ids)


@settings(deadline=None)
@given(IDS)
def test_a_mask_that_is_written_reads_back(ids):
    """parse∘format is the identity for masks; the empty set is 0, as the kernel writes it."""
    assert CpuSet.parse_mask(CpuSet(ids).format_mask()) == CpuSet(ids)


@settings(deadline=None)
@given(IDS)
def test_a_list_is_written_as_short_as_the_kernel_does(ids):
    """Ranges go up, never touch, and are ranges only from two numbers on."""
    parts = [[int(n) for n in part.split("-")] for part in str(CpuSet(ids)).split(",") if part]

    assert all(len(part) == 1 or part[0] < part[1] for part in parts)
    assert all(before[-1] + 1 < after[0] for before, after in itertools.pairwise(parts))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        ("\n", []),
        ("0", [0]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        (" 0-1 , 3 \n", [0, 1, 3]),
        ("0-31:2/4", [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29]),
        ("0-62:1/2", list(range(0, 63, 2))),
        ("3-3", [3]),
        ("5,1,5", [1, 5]),
        ("0,8,250-255", [0, 8, 250, 251, 252, 253, 254, 255]),
        ("65535", [65535]),
    ],
)
def test_lists_of_the_kernel(text, ids):
    """Documentation/admin-guide/kernel-parameters.rst, strides included."""
    assert list(CpuSet.parse(text)) == ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0", []),
        ("ff", [*range(8)]),
        ("00000000,0000000f", [0, 1, 2, 3]),
        ("1,00000000", [32]),
        ("80000000,00000000", [63]),
        ("0x0000747e", [1, 2, 3, 4, 5, 6, 10, 12, 13, 14]),
        ("1010", [4, 12]),
        ("FF,00000000\n", [*range(32, 40)]),
        ("0xfc000000,,,,,,,0x0", [250, 251, 252, 253, 254, 255]),
    ],
)
def test_masks_of_the_kernel_and_of_hwloc(text, ids):
    """Words of 32 bits, most significant first; hwloc leaves out words of zeros."""
    assert list(CpuSet.parse_mask(text)) == ids


@pytest.mark.parametrize(
    "text",
    ["x", "0-", "-3", "3-1", "1,,2", ",", "0-3,", "1;2", "0x3", "1.5", "٣", "0-65536", "99999999999", "0-31:0/4",
     "0-31:5/4", "0-31:2/", "0-31:/4", "0-3:", "1 2", "0--3", "+1", "0-3 4"],
)  # fmt: skip
def test_texts_that_are_no_list(text):
    """One sentence with what was found and what was wanted, and a remedy."""
    with pytest.raises(MalformedTextError) as refusal:
        CpuSet.parse(text)

    assert repr(text) in refusal.value.message
    assert refusal.value.remedy


@pytest.mark.parametrize("text", ["\0" * 500, "\U00012544" * 500, "x" * 500])
def test_a_refused_text_is_shown_short(text):
    """Escaped characters are ten times as long as they are many."""
    with pytest.raises(MalformedTextError) as refusal:
        CpuSet.parse(text)

    assert len(refusal.value.message) < 160


@pytest.mark.parametrize(
    "text",
    ["", " ", "g", "0-3", "ff ff", "ff,000000000", "-1", "f_f", "+f", "f" * 20000, "ff;ff", "²"],
)
def test_texts_that_are_no_mask(text):
    """No sign, no underscore, no word of more than 32 bits among several, no more bits than there are numbers."""
    with pytest.raises(MalformedTextError):
        CpuSet.parse_mask(text)


@settings(deadline=None)
@given(st.text(max_size=40) | st.text(alphabet="0123456789-,:/ abcdefx", max_size=40))
def test_no_text_does_worse_than_be_refused(text):
    """Hostile text is read or refused, and what was read reads back."""
    for parse in (CpuSet.parse, CpuSet.parse_mask):
        try:
            found = parse(text)
        except MalformedTextError as refusal:
            assert len(refusal.message) < 200
            continue
        assert CpuSet.parse(str(found)) == found


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 40), st.integers(1, 40))
def test_strides_take_some_of_every_group(low, length, used, group):
    """`low-high:used/group` are the first `used` of every `group` numbers from `low` on."""
    assume(used <= group)
    high = low + length

    found = CpuSet.parse(f"{low}-{high}:{used}/{group}")

    assert list(found) == [n for n in range(low, high + 1) if (n - low) % group < used]


# ---- sets ---------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(IDS, IDS)
def test_operations_are_those_of_python_sets(one, other):
    """Union, meeting, difference, either-or, order and equality."""
    left, right = CpuSet(one), CpuSet(other)

    assert set(left | right) == one | other
    assert set(left & right) == one & other
    assert set(left - right) == one - other
    assert set(left ^ right) == one ^ other
    assert (left <= right) == (one <= other)
    assert (left < right) == (one < other)
    assert (left == right) == (one == other)
    assert hash(left) == hash(CpuSet(sorted(one, reverse=True)))
    assert union([left, right]) == left | right


@settings(deadline=None)
@given(IDS)
def test_members_are_counted_and_visited_in_order(ids):
    """Length, truth, order, membership and the first number."""
    found = CpuSet(ids)

    assert list(found) == sorted(ids)
    assert len(found) == len(ids)
    assert bool(found) == bool(ids)
    assert all(each in found for each in ids)
    assert -1 not in found
    assert "0" not in found
    assert LARGEST_ID + 1 not in found
    assert not ids or found.first == min(ids)


@pytest.mark.parametrize("each", [-1, LARGEST_ID + 1, 1 << 70])
def test_numbers_that_no_kernel_gives_are_refused(each):
    """A hostile number must not cost gigabytes."""
    with pytest.raises(MalformedTextError):
        CpuSet([each])
    with pytest.raises(MalformedTextError):
        CpuSet.of_mask(-1)


def test_a_set_never_changes():
    """Frozen, as every value here; copies and pickles are equal."""
    found = CpuSet.parse("0-3,8")

    with pytest.raises(AttributeError):
        found.mask = 1
    assert copy.deepcopy(found) == found == pickle.loads(pickle.dumps(found))
    assert repr(found) == "CpuSet('0-3,8')"
    assert found != "0-3,8"


def test_the_empty_set_has_no_first_number():
    """Asking for it is our own mistake."""
    with pytest.raises(ValueError, match="empty"):
        _ = EMPTY.first
    assert str(EMPTY) == ""
    assert EMPTY.format_mask() == "0"
    assert union([]) == EMPTY
