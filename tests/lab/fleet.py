"""A fleet of hosts for tests that ssh reaches: each has a network, processes, a host name and an sshd of its own.

All of them see this machine's files and kernel; `Island.show` gives one of them others.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest

from tests.lab import islands

PACKAGES = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "ps": "procps",
}
NUM_HOSTS = 3
NETWORK = "10.77.0"

SERVER = """\
Subsystem sftp internal-sftp
HostKey {folder}/host
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
"""
CLIENT = """\
Host *
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  ConnectTimeout 20
  LogLevel ERROR
"""


class Fleet:
    """Hosts h1, h2, … and the island from which they are reached."""

    def __init__(
        self, desk: islands.Island, hosts: dict[str, islands.Island], folder: pathlib.Path
    ) -> None:
        self.desk = desk
        self.hosts = hosts
        self.folder = folder

    def ssh(
        self, host: str, command: str, *, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on a host."""
        return self.desk.run(
            "ssh",
            "-F",
            str(self.folder / "ssh_config"),
            host,
            command,
            check=check,
            timeout=timeout,
        )

    def fetch(self, host: str, path: str, to: pathlib.Path) -> None:
        """Copy a file from a host."""
        self.desk.run("scp", "-q", "-F", str(self.folder / "ssh_config"), f"{host}:{path}", str(to))


# Not for the session: later tests count the children of their process.
@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Give a fleet of 3 hosts."""
    try:
        islands.require(PACKAGES)
        with contextlib.ExitStack() as stack:
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="wellfed-fleet-"))
            desk = stack.enter_context(islands.Island("desk"))
            names = [f"h{n}" for n in range(1, NUM_HOSTS + 1)]
            hosts = {name: stack.enter_context(islands.Island(name)) for name in names}
            fleet = Fleet(desk, hosts, pathlib.Path(made))
            _write_configuration(fleet)
            _connect(fleet)
            _start(fleet)
            yield fleet
    except islands.UnavailableError as reason:
        islands.give_up(str(reason))


def _write_configuration(fleet: Fleet) -> None:
    folder = fleet.folder
    for name in ("host", "key"):
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text(
        "".join(f"{address} {key}" for address in _addresses(fleet).values())
    )
    entries = "".join(
        f"Host {name}\n  HostName {address}\n" for name, address in _addresses(fleet).items()
    )
    (folder / "ssh_config").write_text(entries + CLIENT.format(folder=folder))
    (folder / "sshd_config").write_text(SERVER.format(folder=folder))
    # sshd lets nobody in whose account is locked, as root's is in some images.
    lines = pathlib.Path("/etc/shadow").read_text().splitlines()
    opened = [
        f"root:*:{line.split(':', 2)[2]}" if line.startswith("root:!") else line for line in lines
    ]
    shadow = folder / "shadow"
    shadow.touch(mode=0o600)
    shadow.write_text("\n".join(opened) + "\n")


def _addresses(fleet: Fleet) -> dict[str, str]:
    return {name: f"{NETWORK}.{n}" for n, name in enumerate(fleet.hosts, start=1)}


def _connect(fleet: Fleet) -> None:
    """Put every host on one wire: a bridge at the desk, and a cable from it to each."""

    def ip(island: islands.Island, words: str) -> None:
        # Of the desk only the network is entered: a process number is known outside.
        done = subprocess.run(
            ["nsenter", f"--target={island.pid}", "--net", "ip", *words.split()],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise islands.UnavailableError(
                f"ip {words}: {done.stderr.strip()} (needs bridge and veth)"
            )

    ip(fleet.desk, "link add wire type bridge")
    ip(fleet.desk, f"address add {NETWORK}.254/24 dev wire")
    ip(fleet.desk, "link set wire up")
    for (name, address), island in zip(
        _addresses(fleet).items(), fleet.hosts.values(), strict=True
    ):
        ip(fleet.desk, f"link add {name} type veth peer name eth0 netns {island.pid}")
        ip(fleet.desk, f"link set {name} master wire up")
        ip(island, f"address add {address}/24 dev eth0")
        ip(island, "link set eth0 up")


def _start(fleet: Fleet, seconds: float = 30) -> None:
    # sshd starts itself again for each connection and wants to know where it lies.
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "sshd"
    for island in fleet.hosts.values():
        island.run("mkdir", "/run/sshd")
        island.show("/etc/shadow", str(fleet.folder / "shadow"))
        island.run(sshd, "-f", str(fleet.folder / "sshd_config"))
    deadline = time.monotonic() + seconds
    for name in fleet.hosts:
        while (done := fleet.ssh(name, "true", check=False)).returncode:
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} does not answer: {done.stderr}")
            time.sleep(0.1)
