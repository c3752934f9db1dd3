"""Which environment variables put another memory allocator under a process?

Decoding in loader workers allocates and frees large blocks from several threads; glibc keeps them in arenas that it
seldom gives back. Whether another allocator helps is to be proved for a job, so it is asked for and never a default.
"""

from __future__ import annotations

from wellfed.model.environment import EnvironmentChange
from wellfed.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = ("jemalloc", "tcmalloc")

OTHER_THREADS = 2
"""The main thread and the one that pins batches allocate beside the loader's."""

DECAY_MILLISECONDS = 30_000
"""What jemalloc's TUNING.md gives for programs that shall spend memory rather than CPU time."""

THREAD_CACHE_BYTES = 4 << 20
"""The largest cache gperftools gives one thread (common.h, kMaxThreadCacheSize)."""

DEFAULT_CACHE_BYTES = 32 << 20
"""What gperftools lets the caches of all threads have together (common.h, kDefaultOverallThreadCacheSize)."""


def malloc_environment(
    kind: str, library_path: str, num_loader_threads: int, environment: Mapping[str, str]
) -> tuple[EnvironmentChange, ...]:
    """Return the variables that preload an allocator and fit it to that many loader threads.

    A preload or a configuration that a person has set stays: the library is put in front of LD_PRELOAD, and a set
    MALLOC_CONF or TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES is kept.
    """
    if kind not in KINDS:
        raise UsageError(f"{kind!r} is no allocator", remedy=f"choose one of: {', '.join(KINDS)}")
    if not library_path.startswith("/") or any(letter in library_path for letter in " :\n\t"):
        # ld.so(8): LD_PRELOAD is separated by spaces or colons, and there is no escape.
        raise UsageError(
            f"{library_path!r} cannot stand in LD_PRELOAD",
            remedy="give the absolute path of the library, without spaces and colons",
        )
    if num_loader_threads < 0:
        raise UsageError(
            f"{num_loader_threads} loader threads are less than none", remedy="give 0 or more"
        )
    threads = num_loader_threads + OTHER_THREADS
    tuned = _jemalloc(threads) if kind == "jemalloc" else _tcmalloc(threads)
    return (_preload(kind, library_path, environment), _unless_set(tuned, environment))


def _preload(kind: str, library_path: str, environment: Mapping[str, str]) -> EnvironmentChange:
    before = environment.get("LD_PRELOAD")
    listed = (before or "").replace(":", " ").split()
    if library_path in listed:
        return EnvironmentChange("LD_PRELOAD", before, before, f"{kind} is preloaded already")
    value = ":".join([library_path, *listed])
    reason = f"preloads {kind}" + (", before what was preloaded already" if listed else "")
    others = [path for path in listed if _is_allocator(path)]
    if others:
        reason += f"; of two allocators the first is used, not {others[0]}"
    return EnvironmentChange("LD_PRELOAD", value, before, reason, warning=bool(others))


def _is_allocator(path: str) -> bool:
    name = path.rpartition("/")[2]
    return any(word in name for word in ("jemalloc", "tcmalloc", "mimalloc", "hoard", "tbbmalloc"))


def _jemalloc(threads: int) -> tuple[str, str, str]:
    """One arena a thread, instead of four a CPU of the host; freed pages go back in the background."""
    value = (
        f"narenas:{threads},background_thread:true,"
        f"dirty_decay_ms:{DECAY_MILLISECONDS},muzzy_decay_ms:{DECAY_MILLISECONDS}"
    )
    return "MALLOC_CONF", value, f"an arena for each of {threads} threads, purged in the background"


def _tcmalloc(threads: int) -> tuple[str, str, str]:
    """Let each thread have a full cache, which the default does for eight; the release rate stays gperftools' own."""
    value = max(DEFAULT_CACHE_BYTES, threads * THREAD_CACHE_BYTES)
    reason = f"a full thread cache for each of {threads} threads"
    return "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES", str(value), reason


def _unless_set(tuned: tuple[str, str, str], environment: Mapping[str, str]) -> EnvironmentChange:
    name, value, reason = tuned
    before = environment.get(name)
    if before is None:
        return EnvironmentChange(name, value, None, reason)
    return EnvironmentChange(name, before, before, f"set before; would be {value}: {reason}")
