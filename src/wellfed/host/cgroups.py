"""In which control groups is this process, and where are they mounted?"""

from __future__ import annotations

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from wellfed.host.facts import Facts
    from wellfed.model.tree import HostTree

CONTROLLERS = ("cpuset", "cpu", "memory")
OCTAL_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))
"""How the kernel writes white space in mount points (seq_path in fs/seq_file.c)."""


class Cgroup(Value):
    """Where the files of one controller are for this process."""

    version: int
    """1, 2, or 0 where it is unknown."""
    folders: tuple[str, ...] = ()
    """The process's own cgroup first, then each one above it up to the mount point; empty where unknown."""
    why_unknown: str = ""


class Mount(Value):
    """A cgroup file system that this process sees."""

    version: int
    point: str
    root: str | None
    """Which cgroup its top is (a container's own, for example); None where only /proc/mounts tells."""
    options: frozenset[str]


def read_cgroups(facts: Facts) -> dict[str, Cgroup]:
    """Return where ``cpuset``, ``cpu`` and ``memory`` limit this process, in cgroup v1, v2 or both at once."""
    mounts = _read_mounts(facts.tree)
    v1, v2 = _read_paths(facts.tree, mounts)
    return {name: _locate(facts.tree, name, mounts, v1.get(name), v2) for name in CONTROLLERS}


def _locate(
    tree: HostTree, name: str, mounts: list[Mount], v1_path: str | None, v2_path: str | None
) -> Cgroup:
    """Join a cgroup's path with the first mount that shows it. A controller is in v1 or in v2, never in both."""
    if v1_path is None:
        path, shown = v2_path, [mount for mount in mounts if mount.version == 2]
    else:
        path, shown = v1_path, [m for m in mounts if m.version == 1 and name in m.options]
    if path is None:
        return Cgroup(0, (), "the process's cgroup is not recorded")
    why = f"no mount shows cgroup {path}"
    for mount in shown:
        inside = _below(path, mount.root)
        if inside is None:
            why = f"cgroup {path} is not below {mount.root or '/'}, which {mount.point} shows"
            continue
        folder = (mount.point.rstrip("/") + inside).rstrip("/") or "/"
        names = tree.list(folder)
        if isinstance(names, tuple):
            return Cgroup(mount.version, tuple(_upwards(folder, mount.point)))
        why = f"{folder} is {names}"
    return Cgroup(0, (), why)


def _read_paths(tree: HostTree, mounts: list[Mount]) -> tuple[dict[str, str], str | None]:
    """Return this process's path in each v1 hierarchy, and in the v2 one."""
    v1: dict[str, str] = {}
    v2 = None
    text = tree.read("/proc/self/cgroup")
    for line in (text or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names:
            v1 |= dict.fromkeys(names.split(","), path)
        elif number == "0" and path:
            v2 = path
    cpuset = tree.read("/proc/self/cpuset")
    if text or not isinstance(cpuset, str) or not cpuset:
        return v1, v2
    # Kernels before 2.6.24 have no more than /proc/self/cpuset, and dumps often have no more.
    if any(mount.version == 1 and "cpuset" in mount.options for mount in mounts):
        return {"cpuset": cpuset}, None
    return {}, cpuset


def _read_mounts(tree: HostTree) -> list[Mount]:
    """Return cgroup mounts in the order in which they were made."""
    text = tree.read("/proc/self/mountinfo")
    if text:
        return [mount for line in text.splitlines() if (mount := _of_mountinfo(line))]
    text = tree.read("/proc/self/mounts") or tree.read("/proc/mounts") or ""
    return [mount for line in text.splitlines() if (mount := _of_mounts(line))]


def _of_mountinfo(line: str) -> Mount | None:
    """Read ``31 23 0:28 /docker/4f /sys/fs/cgroup rw - cgroup2 cgroup rw`` (Documentation/filesystems/proc.rst)."""
    left, _, right = line.partition(" - ")
    place, kind = left.split(), right.split()
    if len(place) < 6 or len(kind) < 3:
        return None
    return _mount(kind[0], place[4], place[3], kind[2])


def _of_mounts(line: str) -> Mount | None:
    """Read ``none /dev/cpuset cgroup rw,cpuset 0 0``."""
    words = line.split()
    return _mount(words[2], words[1], None, words[3]) if len(words) >= 4 else None


def _mount(kind: str, point: str, root: str | None, options: str) -> Mount | None:
    version = {"cgroup2": 2, "cgroup": 1, "cpuset": 1}.get(kind)
    if version is None:
        return None
    named = frozenset((*options.split(","), *(("cpuset",) if kind == "cpuset" else ())))
    return Mount(version, _unescaped(point), None if root is None else _unescaped(root), named)


def _unescaped(text: str) -> str:
    for escape, character in OCTAL_ESCAPES:
        text = text.replace(escape, character)
    return text


def _below(path: str, root: str | None) -> str | None:
    """Return a cgroup's path as seen below a mount's root; None where the mount does not show it.

    Docker without a cgroup namespace: path /docker/4f, root /docker/4f, so the mount point itself is it. Both
    begin with ``/..`` where the process or the mount is from outside the namespace: then only names that both
    share can be taken away.
    """
    if root is not None and root != "/":
        if path != root and not path.startswith(root + "/"):
            return None
        path = path[len(root) :]
    return None if ".." in path.split("/") else path.rstrip("/")


def _upwards(folder: str, top: str) -> Iterator[str]:
    top = top.rstrip("/") or "/"
    while True:
        yield folder
        if folder in (top, "/"):
            return
        folder = folder.rpartition("/")[0] or "/"
