"""How is a node filled, and swap given? In a throw-away guest only: here it would take memory from others."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

from tests.faults.command import ROOT

CHUNK_BYTES = 4 << 20


def free_bytes(node: int) -> int:
    """Return how much memory of a node is free."""
    text = pathlib.Path(f"/sys/devices/system/node/node{node}/meminfo").read_text()
    return int(text.partition("MemFree:")[2].split()[0]) << 10


def swapped_bytes(pid: int) -> int:
    """Return how much of a process lies in swap."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmSwap:")[2].split()[0]) << 10


@contextlib.contextmanager
def full_node(node: int, *, leave_bytes: int) -> Iterator[int]:
    """Hold so much of a node's memory that only ``leave_bytes`` stay free there; give the process that does."""
    _only_in_a_guest()
    command = [sys.executable, "-m", "tests.faults.pressure", str(node), str(leave_bytes)]
    holder = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != "held\n":
            raise AssertionError(f"node {node} could not be filled")
        yield holder.pid
    finally:
        holder.kill()
        holder.communicate()


@contextlib.contextmanager
def swap(device: str) -> Iterator[None]:
    """Give the guest swap on a disk (whose content is lost), and take it back."""
    _only_in_a_guest()
    subprocess.run(["mkswap", device], check=True, capture_output=True)
    subprocess.run(["swapon", device], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["swapoff", device], check=True, capture_output=True)


def _only_in_a_guest() -> None:
    if not os.environ.get("WELLFED_LAB_GUEST"):
        raise AssertionError("only in a guest: it takes memory from everybody else")


def _hold(node: int, leave_bytes: int) -> None:
    """Take memory of one node, piece by piece, and keep it until we are told to end."""
    from wellfed.host import syscalls
    from wellfed.model.cpuset import CpuSet

    syscalls.set_mempolicy(syscalls.MPOL_BIND, CpuSet([node]))
    # What the kernel gives back under pressure would be ours for a moment only.
    ctypes.CDLL(None).mlockall(2)
    held = []
    while free_bytes(node) > leave_bytes + CHUNK_BYTES:
        held.append(mmap.mmap(-1, CHUNK_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        for page in range(0, CHUNK_BYTES, mmap.PAGESIZE):
            held[-1][page] = 1
    print("held", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _hold(int(sys.argv[1]), int(sys.argv[2]))
