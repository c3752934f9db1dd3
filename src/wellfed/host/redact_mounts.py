"""What in the tables of mounts and swap areas names a server, a disk or a person?"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.host.identifiers import Identifiers

HIDDEN = "hidden"

MOUNT_WORDS = frozenset(
    (
        "proc", "sys", "dev", "run", "tmp", "var", "lib", "lib64", "log", "cache", "home", "mnt", "media", "opt",
        "usr", "local", "share", "boot", "efi", "etc", "srv", "data", "scratch", "nvme", "raid", "work", "workspace",
        "shared", "root", "bin", "sbin", "shm", "user", "lock", "docker", "containerd", "kubelet", "pods", "volumes",
        "overlay2", "merged", "cgroup", "cgroup2", "secrets", "kubernetes.io", "serviceaccount", "nvidia", "nfs",
        "lustre", "gpfs", "beegfs", "weka", "models", "datasets", "checkpoints", "dataset", "checkpoint", "ssd",
    )
)  # fmt: skip
"""Parts of a mount point that name nobody."""
KERNEL_SOURCE = re.compile(r"/dev/(?:nvme|sd|vd|xvd|md|dm-|loop|zram|pmem|ram|fuse|root)[\w-]*")
SOURCE_WORDS = frozenset(
    (
        "none", "udev", "shm", "overlay", "rootfs", "systemd-1", "sunrpc", "cgroup", "cgroup2", "tmpfs", "devtmpfs",
        "hugetlbfs", "mqueue", "devpts", "proc", "sysfs", "bpf", "tracefs", "debugfs", "securityfs", "configfs",
        "pstore", "efivarfs", "fusectl", "binfmt_misc", "nsfs", "hugepages",
    )
)  # fmt: skip
NAMING_OPTIONS = frozenset(
    (
        "username",
        "user",
        "domain",
        "secret",
        "credentials",
        "cred",
        "mds_namespace",
        "fsname",
        "servern",
    )
)
CGROUP_TYPES = ("cgroup", "cgroup2", "cpuset")


def without_mount_names(text: str, _: Identifiers) -> str:
    """Return ``/proc/mounts`` without servers, volumes and folders of people."""
    return "\n".join(map(_mount, text.split("\n")))


def _mount(line: str) -> str:
    """``source point type options 0 0``; a source may be a server, a disk or a pool with a name."""
    fields = line.split(" ")
    if len(fields) < 4:
        return line
    kind = fields[2]
    fields[0] = _mount_source(fields[0], kind)
    fields[1] = fields[1] if kind in CGROUP_TYPES else _mount_point(fields[1])
    fields[3] = _mount_options(fields[3], kind)
    return " ".join(fields)


def without_mountinfo_names(text: str, _: Identifiers) -> str:
    """Return ``/proc/self/mountinfo`` in the same way."""
    return "\n".join(map(_mountinfo_line, text.split("\n")))


def _mountinfo_line(line: str) -> str:
    """``36 35 98:0 root point options optional… - type source options`` (proc_pid_mountinfo(5))."""
    fields = line.split(" ")
    if "-" not in fields[6:-2]:
        return line
    dash = fields.index("-", 6)
    kind = fields[dash + 1]
    if kind not in CGROUP_TYPES:
        fields[3], fields[4] = _mount_point(fields[3]), _mount_point(fields[4])
    fields[dash + 2] = _mount_source(fields[dash + 2], kind)
    fields[-1] = _mount_options(fields[-1], kind)
    return " ".join(fields)


def _mount_source(source: str, kind: str) -> str:
    kept = source == kind or source in SOURCE_WORDS or KERNEL_SOURCE.fullmatch(source)
    return source if kept else HIDDEN


def _mount_point(path: str) -> str:
    """``/home/alice/data`` becomes ``/home/hidden/data``; below /proc, /sys and /dev everything is the kernel's."""
    if not path.startswith("/") or path.startswith(("/proc/", "/sys/", "/dev/")):
        return path
    return "/".join(
        step if step in MOUNT_WORDS or step == "" or step.isdigit() else HIDDEN
        for step in path.split("/")
    )


def _mount_options(options: str, kind: str) -> str:
    return ",".join(_mount_option(option, kind) for option in options.split(","))


def _mount_option(option: str, kind: str) -> str:
    name, equals, value = option.partition("=")
    names_somebody = name in NAMING_OPTIONS or "/" in value or "@" in value
    return f"{name}={HIDDEN}" if equals and names_somebody and kind not in CGROUP_TYPES else option


def without_swap_names(text: str, _: Identifiers) -> str:
    """Return ``/proc/swaps`` without the folders of swap files."""
    return "\n".join(map(_swap, text.split("\n")))


def _swap(line: str) -> str:
    """``/dev/dm-1  partition  8388604  0  -2``; a file may lie in somebody's folder."""
    name, space, rest = line.partition(" ")
    if not name.startswith("/") or KERNEL_SOURCE.fullmatch(name):
        return line
    return f"/{HIDDEN}{space}{rest}"
