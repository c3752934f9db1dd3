"""Can a fleet be recorded over ssh, and each host asked afterwards? Three hosts with an sshd each answer."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import time

import pytest

from tests.lab.fleet import NETWORK, Fleet
from wellfed.workflows.doctor import examine
from wellfed.workflows.machine import machine_of

WELLFED = f"{sys.executable} -m wellfed"


@pytest.fixture
def folder(fleet, tmp_path):
    """Give a folder that every host of the fleet sees, and prove that no host is left with a capture that runs."""
    yield tmp_path
    for host in fleet.hosts.values():
        assert [name for name in host.processes() if "python" in name] == []


def test_every_host_is_recorded_and_asked_elsewhere(fleet, folder):
    """wellfed capture on each, scp, and the recording has the topology and the findings that its host has."""
    found = {}
    for host in fleet.hosts:
        there = f"{folder}/there-{host}.tar.gz"
        fleet.ssh(host, f"{WELLFED} capture --sample 0 {there}")
        fleet.fetch(host, there, folder / f"{host}.tar.gz")
        recorded = str(folder / f"{host}.tar.gz")
        found[host] = (len(machine_of(recorded).cpus), len(examine(recorded).findings))

    assert sorted(found) == ["h1", "h2", "h3"]
    assert len(set(found.values())) == 1
    assert all(cpus > 0 and findings > 10 for cpus, findings in found.values())


def test_a_recording_does_not_name_its_host(fleet, folder):
    """Neither its name nor its address is anywhere in the file."""
    fleet.ssh("h2", f"{WELLFED} capture --sample 0 {folder}/h2.tar.gz")
    text = gzip.decompress((folder / "h2.tar.gz").read_bytes())

    assert fleet.ssh("h2", "hostname").stdout.strip() == "h2"
    assert NETWORK.encode() not in text
    assert re.search(rb"\bh2\b", text) is None


def test_a_host_without_wellfed_says_so(fleet, folder):
    """The shell's 127 and its sentence come back; nothing is written."""
    done = fleet.ssh("h1", f"PATH=/usr/bin wellfed capture {folder}/none.tar.gz", check=False)

    assert done.returncode == 127
    assert "wellfed" in done.stderr
    assert list(folder.iterdir()) == []


def test_a_capture_that_dies_leaves_no_half_recording(fleet, folder):
    """Killed between the two readings of its counters: there is no file of the wanted name."""
    target = folder / "killed.tar.gz"
    running = begin(fleet, "h3", f"echo $$; exec {WELLFED} capture --sample 60 {target}")
    with running:
        assert running.stdout is not None
        pid = running.stdout.readline().strip()
        time.sleep(1.5)
        fleet.ssh("h3", f"kill -9 {pid}")
        code = running.wait(timeout=30)

    assert code != 0
    assert not target.exists()


def begin(fleet: Fleet, host: str, command: str) -> subprocess.Popen[str]:
    """Start a shell command on a host."""
    words = fleet.desk.words("ssh", "-F", str(fleet.folder / "ssh_config"), host, command)
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def test_a_host_that_is_away_is_one_sentence(fleet):
    """ssh's own code and words come back, within its time."""
    done = fleet.desk.run(
        "ssh", "-F", str(fleet.folder / "ssh_config"), "-o", "ConnectTimeout=3",
        "-o", "StrictHostKeyChecking=no", "192.0.2.9", "true", check=False,
    )  # fmt: skip

    assert done.returncode == 255
    assert "connect to host" in done.stderr
