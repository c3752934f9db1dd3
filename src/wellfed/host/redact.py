"""What in a recording could name a person, a machine or a device, and how is it taken out?

Everything is text to text. Identifiers get pseudonyms (`identifiers`); what is nothing but a serial number, a name or
what a process was told is replaced by ``hidden``; what wellfed judges by is left as it is.
"""

from __future__ import annotations

import posixpath
import re

from wellfed.host.identifiers import (
    FAMILIES,
    Identifiers,
    collect,
    replace_identifiers,
    replace_names,
)
from wellfed.host.probes import launch_environment
from wellfed.host.recorded_tree import RecordedTree
from wellfed.host.redact_mounts import (
    HIDDEN,
    without_mount_names,
    without_mountinfo_names,
    without_swap_names,
)
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wellfed.model.tree import Reading

SECRET_FILES = frozenset(
    (
        "serial", "serial_number", "product_serial", "board_serial", "chassis_serial", "product_uuid", "uuid",
        "board_asset_tag", "chassis_asset_tag", "wwid", "wwn", "nguid", "eui", "subsysnqn", "hostnqn", "hostid",
        "phys_port_id", "phys_switch_id", "node_desc", "hostname", "domainname", "machine-id", "boot_id", "environ",
        "ifalias", "vpd", "vpd_pg80", "vpd_pg83", "DMI",
    )
)  # fmt: skip
"""Files that hold nothing but serial numbers and names."""
SECRET_PLACES = ("/etc/hosts", "/etc/passwd", "/etc/group", "/etc/resolv.conf", "/etc/fstab")
NETWORK_TABLES = frozenset(
    (
        "arp", "fib_trie", "if_inet6", "ipv6_route", "raw", "raw6", "route", "tcp", "tcp6", "udp", "udp6", "unix",
    )
)  # fmt: skip
"""Files of /proc/net that write addresses in hexadecimal."""

WITHOUT_NAMES = (
    "/sys/devices/", "/sys/class/", "/sys/bus/", "/proc/interrupts", "/proc/softirqs", "/proc/meminfo",
    "/proc/stat", "/proc/vmstat", "/proc/cpuinfo", "/proc/self/status",
)  # fmt: skip
"""Where a host's name is not written, and a word that looks like it is the kernel's."""

CGROUP_FILE = re.compile(
    r"(?:cgroup|cpu|cpuset|cpuacct|memory|io|blkio|pids|hugetlb|rdma|misc|dmem|devices|freezer|net_cls|net_prio|irq)\.[\w.]+"
    r"|tasks|notify_on_release|release_agent"
)
"""The kernel's own files in a cgroup (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/)."""

BUILDER = re.compile(r"\([^()\s@]+@[^()\s]+\)")
"""``(builder@lcy02-amd64-059)`` in the versions of kernels and drivers."""
RELEASE = re.compile(r"\b(\d+\.\d+(?:\.\d+)?)\S*")
SERIAL_LINE = re.compile(
    r"(?im)^([^\n:=]*\bserial(?:[ _-]?(?:number|num|no|nr))?\b[^\n:=]*[:=][ \t]*)([^\n]+)$"
)
NVML_SECRET = re.compile(
    r"(?m)^(nvml\w*(?:Serial|BoardId|Pdi|ProcessName|Hostname|VgpuInstance)\w* [^\n]*?= )(?!!)([^\n]+)$"
)
"""Calls whose answer is a serial number, a path or a name."""
NVML_FIELD = re.compile(
    r"(\"\w*(?:[Uu]uid|[Ss]erial\w*|[Gg]uid)\": )(\"[^\"\n]*\"|\[[^\]\n]*\]|-?\d+)"
)
"""Fields of answers that have several: ``"chassisSerialNumber": "…"`` of nvmlDeviceGetPlatformInfo."""

SYSTEM_PATH = re.compile(
    r"/(?!usr/local/(?!cuda)|dev/shm/|.*/\.\.(?:/|$))(?:usr|lib|lib64|bin|dev|sys|proc)(?:/|$)"
)
"""A path whose names are the distribution's or the kernel's."""
PATH = re.compile(r"(?<![\w.])/[^\s:;,=\"']+")
ADDRESS_VARIABLE = re.compile(
    r"ADDR|HOST|URI|NODELIST|NODENAME|COMM_ID|USER|ACCOUNT|PARTITION|CLUSTER|NAMESPACE|RUN_ID"
)
"""Variables whose whole value is an address or a name."""
FOLDER_VARIABLE = re.compile(r"(?:FILE|DIR|DIRECTORY|PATH|HOME)$")
"""Variables that name a place; one that does not begin with ``/`` is somebody's own."""
LOCAL_ADDRESSES = ("127.0.0.1", "localhost", "::1")

KERNEL_VALUE = re.compile(r"[\w.,:+*%=-]*")
KERNEL_SECRET = re.compile(
    r"(?i)(?:boot_image|root|rootflags|ip|resume|nfsroot|ifname|initrd|ds|ks|netroot|bootdev|cryptdevice|"
    r"(?:rd|inst|cloud|coreos|ignition|ostree)\b.*|"
    r".*(?:hostname|nodename|serial|uuid|token|secret|passw|credential|machine_id|addr|url).*)"
)
"""Kernel parameters whose value names a disk, a machine or a place."""
KERNEL_LABEL = re.compile(r"(?i)(?:part)?(?:label|uuid)=.*")


class Redacted(Value):
    """A recording without names, and what was taken out: (what one is called, how many different ones)."""

    recording: RecordedTree
    hidden: tuple[tuple[str, int], ...]


def redact_recording(
    recording: RecordedTree, *, hosts: Iterable[str] = (), people: Iterable[str] = ()
) -> Redacted:
    """Take names, addresses and serial numbers out of everything a recording holds, its paths included."""
    known = collect(_texts(recording), hosts=hosts, people=people)
    num_slots = 0
    files: dict[str, bytes] = {}
    for path, content in recording.files.items():
        text = _decoded(content)
        instead = redact(path, text, known)
        num_slots += instead == HIDDEN + "\n" and text != instead
        files[_path(path, known)] = _encoded(instead)
    answers: dict[str, Reading] = {
        _words(question, known): redact_answer(question, answer, known)
        if isinstance(answer, str)
        else answer
        for question, answer in recording.answers.items()
    }
    made = RecordedTree(
        recording.name,
        files,
        links={
            _path(p, known): replace_identifiers(to, known) for p, to in recording.links.items()
        },
        errnos={_path(p, known): name for p, name in recording.errnos.items()},
        directories={
            _path(p, known): _names(p, names, recording, known)
            for p, names in recording.directories.items()
        },
        answers=answers,
        second={
            _path(p, known): _encoded(redact(p, _decoded(text), known))
            for p, text in recording.second.items()
        },
        interval_seconds=recording.interval_seconds,
        assembled=recording.assembled,
        complete=recording.complete,
    )
    return Redacted(made, _counts(recording, known, num_slots))


def redact(path: str, text: str, known: Identifiers) -> str:
    """Return what a file of a host says without what names anybody."""
    name = posixpath.basename(path)
    if name in SECRET_FILES or _is_private(path, name):
        return HIDDEN + "\n" if text.strip() else text
    if name == "unique_id":
        return _unique_id(text, known)
    rule = _RULES.get(path) or _RULES.get(name)
    if rule is not None:
        text = rule(text, known)
    text = _without_identifiers(text, known)
    return text if path.startswith(WITHOUT_NAMES) else replace_names(text, known)


def redact_answer(question: str, answer: str, known: Identifiers) -> str:
    """Return an answer without what names anybody."""
    if question == "environ":
        return _environment(answer, known)
    if question == "nvml":
        answer = NVML_FIELD.sub(_nvml_field, NVML_SECRET.sub(_nvml_secret, answer))
        return _words(answer, known)
    if question == "uname release":
        return short_release(answer)
    return _words(answer, known)


def _words(text: str, known: Identifiers) -> str:
    return replace_names(_without_identifiers(text, known), known)


def _without_identifiers(text: str, known: Identifiers) -> str:
    if "@" in text:
        text = BUILDER.sub(f"({HIDDEN})", text)
    if "erial" in text or "ERIAL" in text:
        text = SERIAL_LINE.sub(rf"\1{HIDDEN}", text)
    return replace_identifiers(text, known)


def _path(path: str, known: Identifiers) -> str:
    """Return a path of a recording; only cgroups are named by people."""
    path = replace_identifiers(path, known)
    return replace_names(path, known) if "/cgroup" in path else path


def _names(
    folder: str, names: Iterable[str], recording: RecordedTree, known: Identifiers
) -> tuple[str, ...]:
    """Return a listing. Who else runs below this process's cgroup, as its children's names tell, nobody needs to know."""
    if "/cgroup" not in folder:
        return tuple(replace_identifiers(name, known) for name in names)
    shown = []
    for name in names:
        path = f"{folder}/{name}"
        kept = CGROUP_FILE.fullmatch(name) or recording.link(path)
        shown.append(posixpath.basename(_path(path, known)) if kept else HIDDEN)
    return tuple(dict.fromkeys(shown))


def _is_private(path: str, name: str) -> bool:
    """Say whether a file holds the arguments of a process, or addresses."""
    if name == "cmdline":
        return path != "/proc/cmdline"
    if path in SECRET_PLACES:
        return True
    return name in NETWORK_TABLES and "/net/" in path and path.startswith("/proc/")


def _unique_id(text: str, known: Identifiers) -> str:
    """AMD's number of a GPU, in hexadecimal; KFD writes it in decimal."""
    digits = text.strip()
    try:
        number = known.numbers.get(("amd", str(int(digits, 16))), 0)
    except ValueError:
        return HIDDEN + "\n"
    return f"{number:016x}\n"


def short_release(text: str) -> str:
    """Return a kernel's version without what its builder added: ``6.8.0`` of ``6.8.0-1021-aws``."""
    return RELEASE.sub(r"\1", text, count=1)


def _release(text: str, _: Identifiers) -> str:
    return short_release(text)


def _kernel_parameters(text: str, _: Identifiers) -> str:
    return " ".join(map(_kernel_parameter, text.split())) + "\n"


def _kernel_parameter(word: str) -> str:
    name, equals, value = word.partition("=")
    if not equals:
        return word if "/" not in name else HIDDEN
    plain = KERNEL_VALUE.fullmatch(value) and not KERNEL_LABEL.fullmatch(value)
    return word if plain and not KERNEL_SECRET.fullmatch(name) else f"{name}={HIDDEN}"


def _settings(text: str, known: Identifiers) -> str:
    """``/etc/nccl.conf``: variables, one a line, and what somebody thought of them."""
    lines = []
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        comment = line.lstrip().startswith("#")
        lines.append(
            f"{name}={_variable(name, value, known)}"
            if equals and not comment
            else "# hidden" * comment
        )
    return "\n".join(lines)


def _environment(text: str, known: Identifiers) -> str:
    lines = (line.partition("=") for line in text.split("\n") if "=" in line)
    kept = launch_environment({name: value for name, _, value in lines})
    return "\n".join(f"{name}={_variable(name, value, known)}" for name, value in kept.items())


def _variable(name: str, value: str, known: Identifiers) -> str:
    """Return a variable's value: libraries by their file name, addresses and folders not at all."""
    if name == "LD_PRELOAD":
        files = ":".join(posixpath.basename(path) for path in re.split(r"[: ]+", value) if path)
        return _words(files, known)
    if ADDRESS_VARIABLE.search(name):
        return value if value in LOCAL_ADDRESSES or not value else HIDDEN
    if FOLDER_VARIABLE.search(name) and not value.startswith("/"):
        return value and HIDDEN
    value = PATH.sub(lambda m: m[0] if SYSTEM_PATH.match(m[0]) else f"/{HIDDEN}", value)
    return _words(value, known)


def _nvml_secret(match: re.Match[str]) -> str:
    """Return a call with an answer of the same kind."""
    answer = match[2]
    if answer.startswith('"'):
        return f'{match[1]}"{HIDDEN}"'
    return match[1] + ("0" if answer.lstrip("-").isdigit() else "!NOT_RECORDED")


def _nvml_field(match: re.Match[str]) -> str:
    instead = {'"': f'"{HIDDEN}"', "[": "[]"}.get(match[2][0], "0")
    return match[1] + instead


_RULES: dict[str, Callable[[str, Identifiers], str]] = {
    "/proc/version": _release,
    "/proc/sys/kernel/osrelease": _release,
    "/proc/cmdline": _kernel_parameters,
    "/proc/swaps": without_swap_names,
    "/etc/nccl.conf": _settings,
    "mounts": without_mount_names,
    "mountinfo": without_mountinfo_names,
}
"""Path or name of a file -> what else is done to it."""


def _texts(recording: RecordedTree) -> Iterator[str]:
    """Give everything in which an identifier may stand, device files first, in a fixed order."""
    nvml = recording.answers.get("nvml", "")
    yield nvml if isinstance(nvml, str) else ""
    for path in sorted(recording.files):
        yield path
        text = _decoded(recording.files[path])
        yield _as_kfd(text) if path.endswith("/unique_id") else text
    for question in sorted(recording.answers):
        answer = recording.answers[question]
        yield question
        yield answer if isinstance(answer, str) else ""
    yield from (f"{path}\n{target}" for path, target in sorted(recording.links.items()))
    yield from sorted(recording.errnos)
    yield from ("\n".join((path, *names)) for path, names in sorted(recording.directories.items()))
    yield from (_decoded(text) for _, text in sorted(recording.second.items()))


def _as_kfd(text: str) -> str:
    digits = text.strip()
    hexadecimal = re.fullmatch(r"[0-9a-fA-F]{1,16}", digits)
    return f"unique_id {int(digits, 16)}" if hexadecimal else ""


def _counts(
    recording: RecordedTree, known: Identifiers, num_slots: int
) -> tuple[tuple[str, int], ...]:
    counts = dict.fromkeys(FAMILIES.values(), 0)
    for family, _ in known.numbers:
        counts[FAMILIES[family]] += 1
    everything = "\n".join(_texts(recording))
    counts["name"] = sum(name in everything for name, _ in known.names)
    counts["file of names or serial numbers"] = num_slots
    return tuple((what, count) for what, count in counts.items() if count)


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
