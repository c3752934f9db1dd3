"""What does wellfed say of machines that were recorded by `wellfed capture`, and do the recordings keep secrets?"""

from __future__ import annotations

import pathlib
import re

import pytest

from wellfed.host.archive import open_recording
from wellfed.workflows.doctor import examine
from wellfed.workflows.machine import machine_of

FOLDER = pathlib.Path(__file__).parent / "recordings" / "hosts"
H200 = str(FOLDER / "vm-1h200.tar.xz")
NVML = FOLDER.parent / "nvml"
KINDS = {
    "the UUID of a GPU": rb"(GPU|MIG)-(?!0000000\d-0000-|377e0049)[0-9a-f]{8}-",
    "a MAC address": rb"\b([0-9a-f]{2}:){5}(?!00)[0-9a-f]{2}\b",
    "a private address": rb"\b(10|192\.168|172\.(1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}\b",
    "a home folder": rb"/home/|/root\b|/Users/",
    "a Python path": rb"site-packages|python3?\.\d|\.py\b|\.venv",
    "a serial number": rb"[Ss]erial",
    "a kernel's own suffix": rb"\b[3-9]\.\d{1,2}\.\d{1,3}-\w",
    "a mount's source": rb" - (nfs4?|cifs|lustre|ceph|9p|virtiofs|fuse\S*) (?!hidden)\S",
    "who built it": rb"\(\w+@(?!host\))",
    "a mail address or registry": rb"\w@\w+\.\w|\b(?!docs\.)[\w-]+\.(com|io|org|net|local|internal)\b",
    "a container, pod or job": rb"[0-9a-f]{64}|kubepods\S*pod(?!0)[0-9a-f]{8}|slurm\w*/uid_",
    "a trace's name": rb"traceparent|TRACE_ID|SESSION_ID",
}
"""What could tell whose machine a recording is of."""


def told(text: bytes) -> list[str]:
    """Name what a text tells of its machine."""
    return [kind for kind, pattern in KINDS.items() if re.search(pattern, text)]


def test_an_h200_without_a_numa_node_lies_on_the_only_node():
    """The recorded firmware says -1; one node with CPUs leaves nothing to guess, and two drivers' words agree."""
    machine = machine_of(H200)

    assert [(gpu.name, gpu.cpu_node, gpu.hbm_node) for gpu in machine.gpus] == [
        ("NVIDIA H200", 0, None)
    ]
    assert {e.source: e.says for e in machine.gpus[0].evidence}["sysfs numa_node"] == "-1"


def test_a_sound_machine_gets_no_finding():
    """Nothing warns on a machine that was in order when it was recorded, and nothing there is unknown."""
    verdicts = {finding.verdict for finding in examine(H200).findings}

    assert verdicts == {"ok", "n/a"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*")), ids=lambda path: path.name)
def test_no_recording_tells_who_it_was(path):
    """Names, addresses, UUIDs, serial numbers, paths: whatever could identify a machine is replaced or left out."""
    tree = open_recording(str(path))
    texts = [*tree.files.values(), *(str(answer).encode() for answer in tree.answers.values())]
    names = "\n".join((*tree.files, *map(str, tree.errnos))).encode()

    assert {kind for text in (*texts, names) for kind in told(text)} == set()


@pytest.mark.parametrize("path", sorted(NVML.glob("*.txt")), ids=lambda path: path.name)
def test_no_answers_of_a_driver_tell_whose_it_is(path):
    """The UUIDs of GPUs and MIG slices are pseudonyms."""
    assert told(path.read_bytes()) == []


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        (b"GPU-5f1d8c3e-0a6b-4c1e-9d59-0d6f0f4b7a11", "the UUID of a GPU"),
        (b"link/ether 3c:ec:ef:12:34:56", "a MAC address"),
        (b"inet 10.12.0.7/16", "a private address"),
        (b"/home/ana/train", "a home folder"),
        (b"/opt/env/lib/python3.12/x", "a Python path"),
        (b"Serial Number: 1650", "a serial number"),
        (b"Linux version 5.15.0-1053-aws", "a kernel's own suffix"),
        (b"36 24 0:31 / /data rw - nfs4 filer:/vol rw", "a mount's source"),
        (b"Release Build (dvs@u22)", "who built it"),
        (b"image registry.example.com/team/x", "a mail address or registry"),
        (b"0::/kubepods/burstable/pod5d3f9a1c-1", "a container, pod or job"),
        (b"SESSION_ID=7", "a trace's name"),
    ],
)
def test_what_must_not_be_told_is_found_where_it_is(planted, kind):
    """Each pattern finds what it is for: an empty answer above means something."""
    assert kind in told(planted)
