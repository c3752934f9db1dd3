"""How is one rule asked of an assembled host that was changed a little?

The host goes the whole way (tree, machine, snapshot of what checks declare), so a check that looks at what it did not
declare fails here.
"""

from __future__ import annotations

import functools

from tests.hosts.assemble import assemble
from wellfed.checks._room import all_checks, judge_all
from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.finding import Finding
from wellfed.model.tree import Unreadable
from wellfed.workflows.machine import know
from wellfed.workflows.snapshot import snapshot_of

DGX = "ubuntu2204-dgxh100-8h100"
POD = "kubernetes-dgxh100-1of8h100"
A100 = "ubuntu2004-dgxa100-8a100"
GB200 = "ubuntu2404-gb200-4gb200"
ONE_NODE = "ubuntu2404-vm-1h200"
TWO_NODE_VM = "ubuntu2204-2socketvm-2h100"
MIXED = "debian12-workstation-2mixed"
CPU_ONLY = "no GPU"
"""The DGX without its PCI devices."""

RANK = "LOCAL_RANK=3\nLOCAL_WORLD_SIZE=8\nRANK=3\nWORLD_SIZE=8"


@functools.cache
def checks():
    return all_checks()


def changed(
    name: str,
    *,
    files: dict[str, str] | None = None,
    errnos: dict[str, str] | None = None,
    answers: dict[str, str | Unreadable] | None = None,
    environ: str | None = None,
    second: dict[str, str] | None = None,
    without: tuple[str, ...] = (),
) -> RecordedTree:
    """Assemble a host, and lay other texts, errnos, answers and second readings over it; ``without`` leaves paths out."""
    tree = assemble(DGX if name == CPU_ONLY else name)
    devices = (
        "/sys/devices/pci",
        "/sys/bus/pci",
        "/sys/class/infiniband",
        "/sys/class/n",
        "/proc/driver",
    )
    drop = without + (devices if name == CPU_ONLY else ())
    said = dict(tree.answers) | (answers or {})
    if name == CPU_ONLY:
        said.pop("nvml", None)
    if environ is not None:
        said["environ"] = environ
    kept = {
        path: content for path, content in tree.files.items() if not path.startswith(drop or "\0")
    }
    links = {
        path: target for path, target in tree.links.items() if not path.startswith(drop or "\0")
    }
    gone = set(errnos or ())
    return RecordedTree(
        tree.name,
        {p: c for p, c in kept.items() if p not in gone}
        | {path: text.encode() + b"\n" for path, text in (files or {}).items()},
        links=links,
        errnos=dict(tree.errnos) | (errnos or {}),
        answers=said,
        second={path: text.encode() for path, text in (second or {}).items()},
        interval_seconds=1.0 if second else None,
        assembled=True,
    )


def ask(rule: str, tree: RecordedTree | str, workload: str = "training") -> Finding:
    """Return what one rule says of a host."""
    tree = changed(tree) if isinstance(tree, str) else tree
    those = [check for check in checks() if rule in check.rules]
    snapshot = snapshot_of(tree, know(tree), those)
    (finding,) = [each for each in judge_all(snapshot, workload, those) if each.rule == rule]
    return finding
