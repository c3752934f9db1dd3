"""On which NUMA nodes do a process's pages really lie?"""

from __future__ import annotations

import errno
import os
import time

from wellfed.host.live_tree import LiveTree
from wellfed.model.binding import PageCount
from wellfed.model.tree import Unreadable, unreadable
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

NUM_SAMPLES = 2048
"""Pages asked for one process: half a millisecond, and a share is known to about 2 %."""

MAX_AREAS = 512
"""Largest areas that get a sample; a CUDA process has thousands of small mappings."""

NUMA_MAPS_SECONDS = 0.5
"""numa_maps walks every page table of the process under its mmap lock; a large job must not wait longer for us."""

SHARED_MEMORY = ("/dev/shm/", "/dev/zero", "/memfd:", "/SYSV", "/anon_hugepage", "/dev/hugepages/")
"""Mappings that hold a job's data although they have a name. The driver gives pinned buffers as ``/dev/zero``."""


class Area(Value):
    """A range of addresses that holds data of the process."""

    start: int
    end: int
    name: str = ""
    """Empty for anonymous memory, ``[heap]``, ``/dev/shm/…``."""


class Pages(Value):
    """Where sampled pages lie."""

    counts: tuple[PageCount, ...] = ()
    """By node, ascending."""
    num_absent: int = 0
    """Sampled addresses without a page: never touched, or swapped out."""
    unknown: str | None = None
    """Why there is no sample, or why it is not whole."""


def sample_pages(pid: int, *, num_samples: int = NUM_SAMPLES) -> Pages:
    """Ask for the node of pages spread over anonymous, shared and pinned memory; nothing is moved or touched.

    move_pages first, which needs the right to trace the process; where it is refused (a container's seccomp filter
    denies it without CAP_SYS_NICE) the counts of numa_maps, file pages included.
    """
    maps = LiveTree().read(f"/proc/{pid}/maps")
    if isinstance(maps, Unreadable):
        return Pages(unknown=f"/proc/{pid}/maps: {maps}")
    addresses = spread(parse_maps(maps), num_samples, page_bytes())
    status = _ask(pid, addresses)
    if not isinstance(status, Unreadable):
        return count(status)
    counted = read_numa_maps(pid)
    reason = f"move_pages is refused ({status.errno_name}: {status})"
    if counted.counts:
        return Pages(counted.counts, 0, counted.unknown)
    return Pages(unknown=f"{reason}, and numa_maps says nothing: {counted.unknown or 'no page'}")


def page_bytes() -> int:
    """Return the size of an ordinary page: 4096 on x86, up to 65536 on ARM and POWER."""
    return os.sysconf("SC_PAGESIZE")


def parse_maps(text: str) -> tuple[Area, ...]:
    """Return the areas of a /proc/PID/maps text that hold data: writable, and anonymous or shared memory."""
    found = []
    for line in text.splitlines():
        words = line.split(None, 5)
        if len(words) < 5 or words[1][1:2] != "w":
            continue
        start, _, end = words[0].partition("-")
        name = words[5] if len(words) > 5 else ""
        if _holds_data(name):
            found.append(Area(int(start, 16), int(end, 16), name))
    return tuple(found)


def spread(areas: Sequence[Area], num_samples: int, page: int) -> tuple[int, ...]:
    """Choose addresses: every large area has one at least, and more in proportion to its size, evenly spaced."""
    largest = sorted(areas, key=lambda area: (area.start - area.end, area.start))
    chosen = largest[: min(MAX_AREAS, num_samples)]
    total = sum(area.end - area.start for area in chosen)
    spare = num_samples - len(chosen)
    addresses = []
    for area in chosen:
        num_pages = (area.end - area.start) // page
        wanted = min(num_pages, 1 + spare * (area.end - area.start) // total)
        addresses += [area.start + page * each for each in _scattered(num_pages, wanted)]
    return tuple(sorted(addresses))


def _scattered(num_pages: int, wanted: int) -> Iterator[int]:
    """Choose one page out of each of ``wanted`` equal stretches, at a place in it that looks random and is not.

    An even stride would meet only one node of interleaved memory.
    """
    for i in range(wanted):
        low = num_pages * i // wanted
        width = num_pages * (i + 1) // wanted - low
        yield low + (i * 2654435761 % 2**32 >> 8) % width


def count(status: Iterable[int]) -> Pages:
    """Count what move_pages answered: nodes, and addresses without a page. Another error is neither node nor absence."""
    by_node: dict[int, int] = {}
    num_absent, others = 0, set()
    for node in status:
        if node >= 0:
            by_node[node] = by_node.get(node, 0) + 1
        elif node in (-errno.ENOENT, -errno.EFAULT):
            num_absent += 1
        else:
            others.add(errno.errorcode.get(-node, f"errno {-node}"))
    unknown = f"move_pages answered {', '.join(sorted(others))} for some pages" if others else None
    return Pages(_page_counts(by_node), num_absent, unknown)


def read_numa_maps(pid: int) -> Pages:
    """Count pages by node from numa_maps, for half a second at most."""
    deadline = time.monotonic() + NUMA_MAPS_SECONDS
    try:
        descriptor = os.open(f"/proc/{pid}/numa_maps", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as refusal:
        return Pages(unknown=f"/proc/{pid}/numa_maps: {unreadable(refusal)}")
    chunks, whole = [], False
    try:
        while time.monotonic() < deadline and not whole:
            chunk = os.read(descriptor, 4096)
            whole = not chunk
            chunks.append(chunk)
    except OSError as refusal:
        return Pages(unknown=f"/proc/{pid}/numa_maps: {unreadable(refusal)}")
    finally:
        os.close(descriptor)
    text = b"".join(chunks).decode("utf-8", "replace")
    counts = parse_numa_maps(text if whole else text.rpartition("\n")[0])
    late = f"counted the first {NUMA_MAPS_SECONDS} s of numa_maps, not the whole process"
    return Pages(counts, 0, None if whole else late)


def parse_numa_maps(text: str) -> tuple[PageCount, ...]:
    """Add up the ``N0=12`` words of a numa_maps text, in ordinary pages (a huge page counts as many)."""
    by_node: dict[int, int] = {}
    for line in text.splitlines():
        words = line.split()
        size = next((w.partition("=")[2] for w in words if w.startswith("kernelpagesize_kB=")), "")
        weight = max(1, int(size) * 1024 // page_bytes()) if size.isdigit() else 1
        for word in words:
            node, equals, pages = word.partition("=")
            if equals and node[:1] == "N" and node[1:].isdigit() and pages.isdigit():
                by_node[int(node[1:])] = by_node.get(int(node[1:]), 0) + int(pages) * weight
    return _page_counts(by_node)


def _holds_data(name: str) -> bool:
    return not name.startswith("/") or name.startswith(SHARED_MEMORY)


def _page_counts(by_node: dict[int, int]) -> tuple[PageCount, ...]:
    return tuple(PageCount(node, by_node[node]) for node in sorted(by_node))


def _ask(pid: int, addresses: Sequence[int]) -> list[int] | Unreadable:
    from wellfed.host import syscalls

    try:
        return syscalls.move_pages_query(0 if pid == os.getpid() else pid, addresses)
    except OSError as refusal:
        return unreadable(refusal)
