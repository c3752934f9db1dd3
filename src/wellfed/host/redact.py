"""What in a recording could name a person, a machine or a device, and what stands there instead?

Everything here is text to text. Names that lead from one text to another (GPU UUIDs, cgroups, addresses) get
pseudonyms of the same form, so that what was joined stays joined: ``GPU-00000003-0000-0000-0000-000000000003``.
"""

from __future__ import annotations

import re

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

HIDDEN = "hidden"

GENERIC_NAME = re.compile(
    r"(?i)(?:root|user|admin|nobody|host|localhost|node|cpu|gpu|vm|linux|server|worker|default|none|[a-z]{0,2})[-_]?\d*"
)
"""Names that name nobody. Hidden where a name stands by itself, left where they could be a word of the kernel."""

UUID = re.compile(r"(?i)(?<![0-9a-f])[0-9a-f]{8}([-_])[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}(?![0-9a-f])")
GPU_PREFIX = re.compile(r"\b((?:MIG|GPU)-(?:GPU-)?)([0-9a-f]{8}[0-9a-f-]*|[0-9a-f]{1,7})(?![0-9a-zA-Z-])")
"""CUDA takes any unique beginning of a UUID: ``GPU-8932f937``. AMD's are 16 digits."""
LONG_HEX = re.compile(r"(?i)(?<![0-9a-z])(?:0x)?[0-9a-f]{32,128}(?![0-9a-z])")
"""Container ids, machine ids, NGUIDs. Masks have a comma every eight digits."""
MAC = re.compile(r"(?i)(?<![0-9a-f:])[0-9a-f]{2}(?::[0-9a-f]{2}){5,19}(?![0-9a-f:])")
"""Ethernet has 6 groups, InfiniBand's hardware address 20."""
GUID = re.compile(r"(?i)(?<![0-9a-f:])[0-9a-f]{4}(?::[0-9a-f]{4}){3,7}(?![0-9a-f:])")
IPV4 = re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.])")
IPV6 = re.compile(r"(?i)(?<![\w:.])(?:[0-9a-f]{1,4}:){1,7}(?::[0-9a-f]{1,4}){1,7}(?![\w:])")
SUSPECT = re.compile(r"(?i)[0-9a-f]{32}|[0-9a-f]{4}[-_:][0-9a-f]{4}|(?:GPU|MIG)-|(?::[0-9a-f]{2}){5}|::|\d\.\d+\.\d+\.\d|@|serial|unique_id")
"""A text without any of these holds none of the above: most texts of /sys are left at one glance."""

BUILDER = re.compile(r"\([^()\s@]+@[^()\s]+\)")
"""``(buildd@lcy02-amd64-059)`` in the versions of kernels and drivers."""
SERIAL_LINE = re.compile(r"(?im)^([^\n:=]*\bserial\b[^\n:=]*[:=][ \t]*\"?)(?!!)([^\n\"]+)")
UNIQUE_ID = re.compile(r"(?m)^(unique_id )(\d+)$")
"""KFD's number of one GPU, in decimal; its UUID is the same in hexadecimal."""
NVML_SECRET = re.compile(
    r"(?m)^(nvml\w*(?:Serial|BoardId|Pdi|ProcessName|PlatformInfo|HostId|Hostname|VgpuInstance|FabricInfo)\w* [^\n]*?= )(?!!)([^\n]+)$"
)

SECRET_FILES = frozenset(
    (
        "serial", "serial_number", "product_serial", "board_serial", "chassis_serial", "product_uuid",
        "board_asset_tag", "chassis_asset_tag", "wwid", "wwn", "uuid", "nguid", "eui", "subsysnqn", "hostnqn", "hostid",
        "unique_id", "vpd", "vpd_pg80", "vpd_pg83", "phys_port_id", "phys_switch_id", "node_desc", "hostname",
        "domainname", "machine-id", "boot_id", "cmdline", "environ", "comm", "DMI", "ifalias", "board_id", "fru_id",
    )
)  # fmt: skip
"""Files that hold nothing but a serial number, a name, or what a process was told."""
SECRET_PLACES = ("/etc/host", "/etc/passwd", "/etc/group", "/etc/resolv", "/etc/machine-id", "/etc/fstab", "/etc/exports")
NETWORK_TABLES = frozenset(
    "arp fib_trie fib_triestat if_inet6 ipv6_route raw raw6 route rt_cache tcp tcp6 udp udp6 unix".split()
)
"""Files of /proc/net with addresses, which they write in hexadecimal."""

KERNEL_DEVICE = re.compile(r"/dev/(?:nvme|sd|vd|xvd|md|dm-|loop|zram|pmem|ram|fuse|shm|root)[\w-]*$|[\w.-]+$")
"""A mount source that is a word of the kernel: ``tmpfs``, ``cgroup2``, ``/dev/nvme0n1p2``."""
KEPT_MOUNT = re.compile(r"/(?:$|(?:proc|sys|dev|run|tmp|boot|usr|lib|lib64|opt|bin|sbin)(?:/|$)|var(?:$|/(?:tmp|run|log)(?:/|$))|(?:home|mnt|media|srv|data|scratch|nvme|raid|local|work|workspace|shared)(?:$|(?=/)))")
"""The beginning of a mount point that names nobody."""
MOUNT_OPTION = re.compile(r"\b((?:lowerdir|upperdir|workdir|addr|clientaddr|mountaddr|username|user|domain|dir|source|name|secret|mds_namespace|fsid)\+?=)[^,\s]*")

SYSTEM_PATH = re.compile(r"/(?:usr|lib|lib64|bin|dev|sys|proc)(?:/|$)")
PATH = re.compile(r"(?<![\w.])/[^\s:;,=\"']+")
ADDRESS_VARIABLE = re.compile(r"ADDR|HOST|URI|NODELIST|NODENAME|COMM_ID|JOB_NAME|USER|ACCOUNT|PARTITION|SUBMIT|CLUSTER")
"""Variables whose whole value is an address or a name."""

KERNEL_VALUE = re.compile(r"[\w.,:+*%@-]*$")
KERNEL_SECRET = re.compile(r"(?i)^(?:boot_image|root|ip|resume|nfsroot|ifname|initrd|ds|url|ks|netroot|hostname|bootdev|vconsole|rd\.|inst\.|systemd\.(?:hostname|machine_id)|cloud|coreos|ignition|ostree|.*(?:host|serial|uuid|token|key|secret|pass|user|mac|addr|url))")
"""Kernel parameters whose value names a disk, a machine or a place."""


class Context(Value):
    """What to hide on one host."""

    pseudonyms: Mapping[str, str]
    """Identifier as it is written, in lower case -> what stands there instead."""
    names: tuple[tuple[str, str], ...] = ()
    """(name of a host or a person, what stands there instead), longest first."""
    mounts: Mapping[str, str] = {}
    """Mount point -> what stands there instead."""


def context(texts: Iterable[str], *, hosts: Iterable[str], people: Iterable[str], paths: Iterable[str] = ()) -> Context:
    """Collect the identifiers of all texts, numbered in the order in which they come; ``paths`` stay as they are."""
    found = _Numbers()
    mounts: dict[str, str] = {}
    kept = set(paths)
    for text in texts:
        if SUSPECT.search(text):
            found.collect(text)
    names = {name: "host" for host in hosts for name in (host, host.partition(".")[0])}
    names |= {name: "user" for name in people}
    usable = [(name, put) for name, put in names.items() if name and not GENERIC_NAME.fullmatch(name)]
    return Context(
        pseudonyms=found.pseudonyms,
        names=tuple(sorted(usable, key=lambda pair: (-len(pair[0]), pair[0]))),
        mounts=mounts | {path: path for path in kept},
    )
