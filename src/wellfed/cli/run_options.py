"""Which options does ``wellfed run`` take, and how are they read without a library?"""

from __future__ import annotations

from wellfed.cli.run_values import (
    gpu_names,
    interval,
    path,
    roles,
    scheduler,
    seconds,
    size,
    size_or_unlimited,
    variable,
    whole,
)
from wellfed.model.cpuset import CpuSet
from wellfed.model.errors import UsageError, WellfedError
from wellfed.model.placement import MEMORY_MODES, POLICIES, SMT_MODES
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

ALLOCATORS = ("jemalloc", "tcmalloc", "none")
FORMATS = ("text", "json")


class Option(Value):
    """One option. The small parser below and the click command of ``--help`` are both made from it."""

    names: tuple[str, ...]
    """``("-q", "--quiet")``; the last one is the long one and names the field."""
    help: str
    metavar: str | None = None
    """None: a flag, which takes no value."""
    convert: Callable[[str], Any] = str
    """From the word to the value; a WellfedError says why it is none."""
    default: Any = None
    choices: tuple[str, ...] = ()
    repeats: bool = False
    """Every use counts, the values are a tuple; else the last use does."""
    group: str = ""
    """Heading under which ``--help`` shows it."""

    @property
    def field(self) -> str:
        """The key of its value."""
        return self.names[-1].removeprefix("--").replace("-", "_")


class Words(Value):
    """A command line, understood."""

    options: Mapping[str, Any]
    command: tuple[str, ...]


def parse(words: Sequence[str]) -> Words | None:
    """Read the words after ``run``; None for whatever needs a person's attention, which click then explains.

    The command begins after ``--``, or at the first word that is neither an option nor an option's value.
    """
    named = {name: option for option in OPTIONS for name in option.names}
    values: dict[str, Any] = defaults()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--" or not word.startswith("-") or word == "-":
            return Words(values, tuple(words[at if word == "--" else at - 1 :]))
        name, equals, value = word.partition("=")
        option = named.get(name)
        if option is None or (equals and not name.startswith("--")):
            return None
        if option.metavar is None:
            if equals:
                return None
            values[option.field] = True
            continue
        if not equals:
            if at == len(words) or words[at].startswith("-"):
                return None
            value = words[at]
            at += 1
        try:
            found = convert(option, value)
        except WellfedError:
            return None
        values[option.field] = (*values[option.field], found) if option.repeats else found
    return Words(values, ())


def defaults() -> dict[str, Any]:
    """Return the value of every option that is not given."""
    return {option.field: absent_value(option) for option in OPTIONS}


def absent_value(option: Option) -> Any:
    """Return what an option is worth where it is not given: False for a flag, nothing for a repeated one."""
    if option.repeats:
        return ()
    return False if option.metavar is None else option.default


def convert(option: Option, text: str) -> Any:
    """Turn the word after an option into its value, or raise UsageError with what was wanted."""
    if option.choices and text not in option.choices:
        wanted = ", ".join(option.choices)
        raise UsageError(
            f"{option.names[-1]} {text!r} is not one of {wanted}",
            remedy=f"write {option.names[-1]} with one of {wanted}",
        )
    try:
        return option.convert(text)
    except WellfedError as error:
        named = error.message.startswith("--")
        message = error.message if named else f"{option.names[-1]}: {error.message}"
        raise UsageError(message, remedy=error.remedy) from None


PLACE, MEMORY, RANKS, ENVIRONMENT, LIMITS, AFTERWARDS, REPORT = (
    "Where the ranks go",
    "Memory",
    "Ranks and GPUs",
    "Environment and allocator",
    "Priority and limits",
    "After the start",
    "What is said",
)
"""Headings of ``--help``."""

OPTIONS: tuple[Option, ...] = (
    Option(
        ("--policy",),
        "How ranks share CPUs: node (all of the GPU's node), exclusive (whole cores of their own), core-complex "
        "(whole L3 groups), socket, or none (masks are left alone).",
        "NAME",
        default="node",
        choices=POLICIES,
        group=PLACE,
    ),
    Option(
        ("--smt",),
        "Hardware threads: on (all of a core), off (one a core), first (first threads for main, siblings for the rest).",
        "MODE",
        default="on",
        choices=SMT_MODES,
        group=PLACE,
    ),
    Option(
        ("--reserve",),
        "CPUs that stay with the operating system.",
        "CPUS",
        CpuSet.parse,
        CpuSet(),
        group=PLACE,
    ),
    Option(
        ("--reserve-cores",),
        "Physical cores on each node that stay with the operating system.",
        "N",
        whole(0, 4096, "a number of cores"),
        0,
        group=PLACE,
    ),
    Option(
        ("--roles",),
        "Cores that a rank sets apart, told to the job in WELLFED_ROLES: main=4,loader=8 (also pin, nccl, checkpoint).",
        "ROLE=N,…",
        roles,
        (),
        group=PLACE,
    ),
    Option(
        ("--threads",),
        "Threads for OpenMP and MKL, instead of the number of cores within cpu.max.",
        "N",
        whole(1, 65536, "a number of threads"),
        group=PLACE,
    ),
    Option(
        ("--memory",),
        "Policy for new pages: preferred (soft: spills to the next node), bind (hard: kills the job when the node is "
        "full), interleave, weighted, local or none.",
        "MODE",
        default="preferred",
        choices=MEMORY_MODES,
        group=MEMORY,
    ),
    Option(
        ("--memory-size",),
        "Host memory that one rank will use; --memory bind is refused where its nodes cannot hold it.",
        "BYTES",
        size,
        group=MEMORY,
    ),
    Option(
        ("--per-gpu",),
        "Start one rank for each visible GPU of this host.",
        group=RANKS,
    ),
    Option(
        ("--ranks",),
        "Start N ranks on this host.",
        "N",
        whole(1, 4096, "a number of ranks"),
        group=RANKS,
    ),
    Option(
        ("--gpus",),
        "Use these GPUs only: indices in PCI order, UUIDs or PCI addresses, or auto: those with most cores beside them.",
        "LIST",
        gpu_names,
        (),
        group=RANKS,
    ),
    Option(
        ("--one-visible",),
        "Show each rank its own GPU only; without it every rank sees all.",
        group=RANKS,
    ),
    Option(
        ("--grace",),
        "Seconds between SIGTERM and SIGKILL when one rank fails and the others are ended.",
        "SECONDS",
        seconds,
        10.0,
        group=RANKS,
    ),
    Option(
        ("--log-dir",),
        "Write each rank's output to FOLDER/rank-N.out and .err, instead of here with a prefix.",
        "FOLDER",
        path,
        group=RANKS,
    ),
    Option(
        ("--malloc",),
        "Preload an allocator that suits loader threads.",
        "NAME",
        default="none",
        choices=ALLOCATORS,
        group=ENVIRONMENT,
    ),
    Option(
        ("--nic-env",),
        "Set NCCL_IB_HCA and UCX_NET_DEVICES to the network cards beside the GPU (NCCL's own choice is mostly better).",
        group=ENVIRONMENT,
    ),
    Option(
        ("--keep-env",),
        "Leave this variable as it is, whatever is wrong with it. May be repeated.",
        "NAME",
        variable,
        repeats=True,
        group=ENVIRONMENT,
    ),
    Option(
        ("--nice",),
        "Niceness of the command.",
        "N",
        whole(-20, 19, "a niceness"),
        group=LIMITS,
    ),
    Option(
        ("--sched",),
        "Scheduling class of the command: other, batch or idle.",
        "NAME",
        scheduler,
        group=LIMITS,
    ),
    Option(
        ("--cpu-latency",),
        "Longest wake-up of the rank's cores in microseconds; deeper sleep states stay shut while the job runs.",
        "US",
        whole(0, 2_000_000_000, "a number of microseconds"),
        group=LIMITS,
    ),
    Option(
        ("--memlock",),
        "Memory that may be locked (RLIMIT_MEMLOCK), or unlimited.",
        "BYTES",
        size_or_unlimited,
        group=LIMITS,
    ),
    Option(
        ("--nofile",),
        "Open files (RLIMIT_NOFILE).",
        "N",
        whole(16, 1 << 30, "a number of files"),
        group=LIMITS,
    ),
    Option(
        ("--oom-score-adj",),
        "Who dies first when memory runs out: −1000 (never this) to 1000 (this).",
        "N",
        whole(-1000, 1000, "a score"),
        group=LIMITS,
    ),
    Option(
        ("--isolate",),
        "Put each rank into a cgroup of its own: its CPUs and memory nodes, and no swap.",
        group=LIMITS,
    ),
    Option(
        ("--memory-limit",),
        "Most memory of each rank, with --isolate.",
        "BYTES",
        size,
        group=LIMITS,
    ),
    Option(
        ("--verify",),
        "Ask the kernel again where threads and pages are, SECONDS after the start.",
        "SECONDS",
        seconds,
        group=AFTERWARDS,
    ),
    Option(
        ("--watch",),
        "Give threads that drift off their CPUs the planned ones again, and count them.",
        group=AFTERWARDS,
    ),
    Option(
        ("--watch-interval",),
        "Seconds between two looks of --watch.",
        "SECONDS",
        interval,
        5.0,
        group=AFTERWARDS,
    ),
    Option(
        ("--report",),
        "Write what was planned and what the kernel confirmed as JSON; {rank} in the name becomes the rank.",
        "FILE",
        path,
        group=REPORT,
    ),
    Option(
        ("--explain",),
        "Show the whole plan and do nothing.",
        group=REPORT,
    ),
    Option(
        ("--format",),
        "Form of --explain: text or json.",
        "NAME",
        default="text",
        choices=FORMATS,
        group=REPORT,
    ),
    Option(
        ("--host",),
        "With --explain, plan for a recorded host: a capture, a folder, hwloc XML, NCCL XML or `nvidia-smi topo -m` text.",
        "FILE",
        path,
        group=REPORT,
    ),
    Option(
        ("--strict",),
        "Refuse to start what is not bound, or not beside its GPU.",
        group=REPORT,
    ),
    Option(("-q", "--quiet"), "Say nothing but warnings and errors.", group=REPORT),
    Option(
        ("-v", "--verbose"),
        "Say every step, the evidence for each GPU, and every variable that changes.",
        group=REPORT,
    ),
)
