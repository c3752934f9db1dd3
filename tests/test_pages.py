"""Are pages sampled where a job's data is, counted where they lie, and unknown where nobody tells?"""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import numa_kit as kit
from tests.faults.seccomp import run_denied
from wellfed.host import syscalls
from wellfed.host.pages import (
    Area,
    count,
    page_bytes,
    parse_maps,
    parse_numa_maps,
    read_numa_maps,
    sample_pages,
    spread,
)
from wellfed.model.binding import PageCount
from wellfed.model.cpuset import CpuSet

MAPS = """\
55d1a0000000-55d1a0001000 r--p 00000000 08:01 42                 /usr/bin/python3.11
55d1a0001000-55d1a0002000 rw-p 00001000 08:01 42                 /usr/bin/python3.11
55d1a1000000-55d1a1021000 rw-p 00000000 00:00 0                  [heap]
7f0000000000-7f0040000000 ---p 00000000 00:00 0
7f0040000000-7f0040100000 rw-p 00000000 00:00 0
7f0040100000-7f0040200000 rw-s 00000000 00:19 7                  /dev/shm/torch 1 (deleted)
7f0040200000-7f0040300000 rw-s 00000000 00:01 9                  /dev/zero (deleted)
7f0040300000-7f0040400000 rw-s 00000000 00:05 11                 /dev/nvidia-uvm
7f0040400000-7f0040500000 rw-p 00000000 00:00 0                  [anon:glibc: malloc]
7f0040600000-7f0040700000 rw-s 00000000 00:0f 3                  /anon_hugepage (deleted)
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                  [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0          [vsyscall]
"""

DENIED = """
import os
from wellfed.host.pages import sample_pages
found = sample_pages(os.getpid())
print(sum(each.num_pages for each in found.counts), found.unknown)
"""


def test_data_is_sampled_and_code_is_not():
    """Heap, stack, anonymous, shared and pinned memory count; program text, reservations and device windows do not."""
    names = [area.name for area in parse_maps(MAPS)]

    assert names == [
        "[heap]",
        "",
        "/dev/shm/torch 1 (deleted)",
        "/dev/zero (deleted)",
        "[anon:glibc: malloc]",
        "/anon_hugepage (deleted)",
        "[stack]",
    ]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 5000)), min_size=1, max_size=40),
    st.integers(1, 600),
)
def test_samples_lie_in_their_areas_and_are_few(shapes, num_samples):
    """Every address is the start of a page of an area; none is asked twice; never more than the budget."""
    areas = []
    start = 0
    for gap, pages in shapes:
        start += gap * 4096
        areas.append(Area(start, start + pages * 4096))
        start += pages * 4096
    addresses = spread(areas, num_samples, 4096)

    assert len(addresses) == len(set(addresses)) <= num_samples
    assert all(a % 4096 == 0 and any(x.start <= a < x.end for x in areas) for a in addresses)


def test_every_large_area_has_a_sample():
    """One huge buffer does not hide the small ones beside it."""
    areas = [
        Area(0, 1 << 40),
        *(Area((2 << 40) + i * 8192, (2 << 40) + i * 8192 + 4096) for i in range(50)),
    ]
    addresses = spread(areas, 256, 4096)

    assert all(any(area.start <= a < area.end for a in addresses) for area in areas)


@pytest.mark.parametrize("num_nodes", [2, 3, 4, 8])
def test_interleaved_pages_are_met_on_every_node(num_nodes):
    """A regular stride over interleaved memory would see one node only; the share is right within some per cent."""
    addresses = spread([Area(0, 65536 * 4096)], 2048, 4096)
    shares = [
        sum(a // 4096 % num_nodes == node for a in addresses) / 2048 for node in range(num_nodes)
    ]

    assert max(abs(share - 1 / num_nodes) for share in shares) < 0.05


def test_answers_are_counted_by_node_and_absence_is_no_node():
    """−ENOENT and −EFAULT are addresses without a page; any other error is told, and is never node 0."""
    found = count([1, 0, 1, -errno.ENOENT, -errno.EFAULT, -errno.EACCES])

    assert found.counts == (PageCount(0, 1), PageCount(1, 2))
    assert found.num_absent == 2
    assert found.unknown == "move_pages answered EACCES for some pages"


def test_numa_maps_counts_are_added_up_in_ordinary_pages():
    """The words N0=… of all mappings are added, a huge page as the many it is."""
    text = f"""\
7f00 default file=/usr/bin/N3=4 mapped=2 N0=2 kernelpagesize_kB={page_bytes() // 1024}
7f01 bind:1 anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB={page_bytes() // 1024}
7f02 bind:1 huge anon=1 N1=1 kernelpagesize_kB={page_bytes() // 1024 * 512}
"""

    assert parse_numa_maps(text) == (PageCount(0, 3), PageCount(1, 514))


def test_this_process_has_pages_where_it_may():
    """A live sample finds pages, and only on nodes with memory."""
    found = sample_pages(os.getpid())

    assert found.unknown is None
    assert sum(each.num_pages for each in found.counts) > 50
    assert CpuSet(each.node for each in found.counts) <= kit.read_set(kit.NODES / "has_memory")


def test_sampling_touches_nothing():
    """Asking makes no page: memory that was never touched stays untouched."""
    with mmap.mmap(-1, 64 << 20) as untouched:
        before = _resident_bytes()
        sample_pages(os.getpid())
        grown = _resident_bytes() - before

        assert len(untouched) == 64 << 20
    assert grown < 16 << 20


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * page_bytes()


def test_pages_of_another_process_are_found():
    """A process that we may trace is sampled from outside."""
    code = "import sys; b = bytearray(8 << 20); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"ready\n"
        found = sample_pages(other.pid)
        other.stdin.close()

    assert sum(each.num_pages for each in found.counts) > 50


def test_pages_lie_on_the_node_they_were_bound_to():
    """Fresh pages under a hard bind to each node are counted on that node, by both ways of asking."""
    nodes = list(kit.memory_nodes())

    def act(node: int) -> tuple[dict[int, int], dict[int, int]]:
        syscalls.set_mempolicy(kit.BIND, CpuSet([node]))
        memory = kit.Memory(8192)
        sampled = {each.node: each.num_pages for each in sample_pages(os.getpid()).counts}
        counted = {each.node: each.num_pages for each in read_numa_maps(os.getpid()).counts}
        assert memory.size
        return sampled, counted

    for node in nodes:
        sampled, counted = kit.in_child(act, node)
        assert max(sampled, key=sampled.__getitem__) == node
        assert counted[node] >= 8192


def test_where_move_pages_is_denied_numa_maps_counts():
    """Docker's filter denies move_pages too: the counts of numa_maps stand in."""
    done = run_denied("move_pages", "EPERM", sys.executable, "-c", DENIED)
    pages, unknown = done.stdout.split()

    assert int(pages) > 50
    assert unknown == "None"


def test_a_process_that_is_gone_has_unknown_pages():
    """No process, no counts: unknown with the reason, not zero pages."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    found = sample_pages(gone.pid)

    assert found.counts == ()
    assert found.unknown == f"/proc/{gone.pid}/maps: not there"
