"""How does a rank get a control group of its own: its CPUs, its memory nodes, no swap, a memory limit?

Only in cgroup v2. Where systemd runs, it owns the tree and is asked for a scope; elsewhere the cgroup is made here,
recorded before (`host/borrowed.py`), and removed with the job.
"""

from __future__ import annotations

import errno
import os
import time

from wellfed.host.borrowed import CGROUP, CONTROLLERS, Borrowed, Loan
from wellfed.host.cgroups import read_cgroups
from wellfed.host.facts import Facts
from wellfed.host.live_tree import LiveTree
from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet
from wellfed.model.errors import IsolationError
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellfed.model.tree import HostTree

WANTED = ("cpuset", "memory")
SYSTEMD_RUNS = "/run/systemd/system"
"""sd_booted(3): exists where systemd is process 1."""

REMOVAL_SECONDS = 2.0
"""Killed processes leave their cgroup when the kernel has torn them down; a large one takes a second."""

OTHER_WAYS = "use --policy exclusive instead: masks without a cgroup"


class Walls(Value):
    """What a rank's cgroup confines it to."""

    cpus: CpuSet = EMPTY
    """Empty: no limit of its own."""
    mems: NodeSet = EMPTY
    """Empty: no limit of its own."""
    memory_limit_bytes: int | None = None


class Site(Value):
    """Where cgroups of ranks can be made."""

    base: str
    """The folder in which they are made; empty: by systemd."""
    missing: tuple[str, ...] = ()
    """Controllers that the base must hand to its children first."""
    systemd_run: str = ""
    systemd_options: tuple[str, ...] = ()


def find_site(environment: Mapping[str, str]) -> Site:
    """Find out how a cgroup can be had here; IsolationError says what was found and what to do."""
    if os.path.isdir(SYSTEMD_RUNS):
        return _systemd(environment)
    return choose_base(LiveTree())


def choose_base(tree: HostTree) -> Site:
    """Choose the cgroup in which to make others: our own, or the one above it.

    A cgroup other than the root that holds processes cannot hand controllers to children ("no internal processes",
    Documentation/admin-guide/cgroup-v2.rst), so it is often the one above.
    """
    cgroups = read_cgroups(Facts(tree))
    for name in WANTED:
        if cgroups[name].version == 1:
            where = cgroups[name].folders[:1] or ("a v1 hierarchy",)
            raise IsolationError(
                f"--isolate needs cgroup v2, and the {name} controller is in v1 here ({where[0]})",
                remedy=f"boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all, or {OTHER_WAYS}",
            )
        if not cgroups[name].folders:
            raise IsolationError(
                f"--isolate needs cgroup v2, and none is found: {cgroups[name].why_unknown}",
                remedy=f"mount it: mount -t cgroup2 none /sys/fs/cgroup, or {OTHER_WAYS}",
            )
    folders = cgroups[WANTED[0]].folders
    refusals = []
    for base in folders[:2]:
        refusal, missing = _fitness(tree, base)
        if refusal is None:
            return Site(base, missing)
        refusals.append(f"{base} {refusal}")
    raise IsolationError(
        f"--isolate cannot make a cgroup: {'; '.join(refusals)}",
        remedy="start it as root on a host, in a delegated cgroup (systemd-run --user --scope -p Delegate=yes), or in a "
        f"container with a writable /sys/fs/cgroup of its own; or {OTHER_WAYS}",
    )


def open_base(site: Site, borrowed: Borrowed) -> None:
    """Let a base hand the missing controllers to its children; recorded before."""
    if not site.missing:
        return
    path = f"{site.base}/cgroup.subtree_control"
    words = " ".join(site.missing)
    borrowed.note(Loan(CONTROLLERS, path, words, "/".join(_children(site.base))))
    _write(path, " ".join(f"+{name}" for name in site.missing))


def make_cgroup(site: Site, name: str, walls: Walls, borrowed: Borrowed) -> str:
    """Make one cgroup and return its folder; it is recorded before, and what the kernel made of it is read back."""
    folder = f"{site.base.rstrip('/')}/{name}"
    borrowed.note(Loan(CGROUP, folder))
    try:
        os.mkdir(folder)
    except OSError as refusal:
        raise _refused(folder, refusal) from None
    # Nodes before CPUs: a cpuset without either takes no process in older kernels.
    if walls.mems:
        _write(f"{folder}/cpuset.mems", str(walls.mems))
    if walls.cpus:
        _write(f"{folder}/cpuset.cpus", str(walls.cpus))
    if os.path.exists(f"{folder}/memory.swap.max"):
        _write(f"{folder}/memory.swap.max", "0")
    if walls.memory_limit_bytes is not None:
        _write(f"{folder}/memory.max", str(walls.memory_limit_bytes))
    _check(folder, walls)
    return folder


def join(folder: str) -> None:
    """Move this process into a cgroup; all that it starts will be in it. Its mask is reset: bind afterwards."""
    _write(f"{folder}/cgroup.procs", "0")


def scope_command(site: Site, name: str, walls: Walls, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs another inside a scope of systemd: systemd-run registers itself, then becomes it."""
    properties = ["MemorySwapMax=0"]
    if walls.cpus:
        properties.append(f"AllowedCPUs={walls.cpus}")
    if walls.mems:
        properties.append(f"AllowedMemoryNodes={walls.mems}")
    if walls.memory_limit_bytes is not None:
        properties.append(f"MemoryMax={walls.memory_limit_bytes}")
    words = [word for each in properties for word in ("-p", each)]
    return (site.systemd_run, *site.systemd_options, f"--unit={name}", *words, "--", *command)


def try_scope(site: Site, name: str, walls: Walls) -> None:
    """Start a scope that only reads what holds inside it; IsolationError where systemd or the kernel does otherwise."""
    import subprocess

    show = 'cat "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/cpuset.cpus.effective"'
    command = scope_command(site, name, walls, ("/bin/sh", "-c", show))
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise IsolationError(
            f"--isolate: systemd-run gives no scope with a cpuset: {said[-1] if said else done.returncode}",
            remedy="start it as root, or delegate the controller: Delegate=cpuset in user@.service; "
            f"or {OTHER_WAYS}",
        )
    found = CpuSet.parse(done.stdout)
    if walls.cpus and found != walls.cpus:
        raise IsolationError(
            f"--isolate: systemd's scope may use CPUs {found or 'none'}, planned were {walls.cpus}",
            remedy="look which slice narrows it: systemctl show -p AllowedCPUs user.slice system.slice",
        )


def remove_cgroup(loan: Loan) -> str | None:
    """Kill what is left in a cgroup and remove it; say what could not be removed."""
    folder = loan.path
    deadline = time.monotonic() + REMOVAL_SECONDS
    while os.path.isdir(folder):
        try:
            os.rmdir(folder)
        except OSError as refusal:
            if refusal.errno != errno.EBUSY or time.monotonic() > deadline:
                name = errno.errorcode.get(refusal.errno or 0, "error")
                return f"the cgroup {folder} could not be removed: {name}"
            _kill_all(folder)
            time.sleep(0.01)
    return None


def withdraw_controllers(loan: Loan) -> str | None:
    """Take controllers back from a base's children, unless cgroups that were not there before may use them by now."""
    base = os.path.dirname(loan.path)
    newer = [name for name in _children(base) if name not in loan.found.split("/")]
    if newer:
        return f"{base} goes on handing {loan.written} to its children: {newer[0]} is there now"
    try:
        _write(loan.path, " ".join(f"-{name}" for name in loan.written.split()))
    except IsolationError as refusal:
        return refusal.message
    return None


def _fitness(tree: HostTree, base: str) -> tuple[str | None, tuple[str, ...]]:
    """Say why cgroups cannot be made in a base, or which controllers it has to hand down first."""
    offered = (tree.read(f"{base}/cgroup.controllers") or "").split()
    absent = [name for name in WANTED if name not in offered]
    if absent:
        return f"is not given the {' and '.join(absent)} controller", ()
    handed_down = (tree.read(f"{base}/cgroup.subtree_control") or "").split()
    missing = tuple(name for name in WANTED if name not in handed_down)
    # Only the root of the whole tree has no cgroup.type.
    is_root = not isinstance(tree.read(f"{base}/cgroup.type"), str)
    if missing and not is_root and tree.read(f"{base}/cgroup.procs"):
        return f"holds processes, so it cannot hand down {' and '.join(missing)}", ()
    if tree.live and not os.access(base, os.W_OK):
        return "may not be written", ()
    return None, missing


def _systemd(environment: Mapping[str, str]) -> Site:
    import subprocess

    from wellfed.host.launch import find_command
    from wellfed.model.errors import LaunchError

    try:
        path = find_command("systemd-run", environment)
    except LaunchError:
        raise IsolationError(
            "systemd owns the cgroups here, and systemd-run, which asks it for one, is not found",
            remedy=f"install it (it is part of systemd), or {OTHER_WAYS}",
        ) from None
    options = ["--scope", "--quiet", "--collect"]
    if os.geteuid() != 0:
        options.append("--user")
    helped = subprocess.run(
        (path, "--help"), capture_output=True, text=True, timeout=30, check=False
    )
    if "--expand-environment" in helped.stdout:
        # Since v254 a `$` in the job's arguments may be taken for a variable.
        options.append("--expand-environment=no")
    return Site("", (), path, tuple(options))


def _check(folder: str, walls: Walls) -> None:
    """Compare what the kernel lets a cgroup use with what was written: a parent may give less."""
    tree = LiveTree()
    for name, wanted in (("cpus", walls.cpus), ("mems", walls.mems)):
        text = tree.read(f"{folder}/cpuset.{name}.effective")
        if wanted and (not isinstance(text, str) or CpuSet.parse(text) != wanted):
            raise IsolationError(
                f"--isolate: {folder} may use {name} {text or 'none'}, planned were {wanted}",
                remedy="look at cpuset.cpus.effective of the cgroups above it",
            )


def _children(base: str) -> list[str]:
    """List the cgroups in a cgroup."""
    try:
        return sorted(entry.name for entry in os.scandir(base) if entry.is_dir())
    except OSError:
        return []


def _kill_all(folder: str) -> None:
    """End every process of a cgroup: by cgroup.kill (since v5.14), else one by one."""
    try:
        _write(f"{folder}/cgroup.kill", "1")
    except IsolationError:
        for word in (LiveTree().read(f"{folder}/cgroup.procs") or "").split():
            try:
                os.kill(int(word), 9)
            except OSError:
                # It ended by itself.
                continue


def _write(path: str, text: str) -> None:
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(text.encode())
    except OSError as refusal:
        raise _refused(path, refusal) from None


def _refused(path: str, refusal: OSError) -> IsolationError:
    name = errno.errorcode.get(refusal.errno or 0, "error")
    return IsolationError(
        f"--isolate: {path} is refused: {name}, {os.strerror(refusal.errno or 0)}",
        remedy=f"start it as root or in a delegated cgroup; or {OTHER_WAYS}",
    )
