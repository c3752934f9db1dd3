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
IDENTIFYING = re.compile(
    rb"GPU-(?!0000000\d-0000-0000-0000-00000000000\d)[0-9a-f]{8}-"  # a UUID that is no pseudonym
    rb"|([0-9a-f]{2}:){5}(?!00)[0-9a-f]{2}\b"  # a MAC address
    rb"|\b(10|192\.168|172\.(1[6-9]|2\d|3[01]))\.\d+\.\d+\b"
    rb"|/home/|/root/|site-packages|python3?\.\d|\.py\b"
    rb"|[Ss]erial"
)


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
    """UUIDs are pseudonyms; no MAC or private address, home folder, Python path or serial number is left."""
    tree = open_recording(str(path))
    texts = [*tree.files.values(), *(str(answer).encode() for answer in tree.answers.values())]

    assert [match.group() for text in texts if (match := IDENTIFYING.search(text))] == []
