"""A Slurm cluster of its own for tests: several nodes with GPUs, all of them this machine.

Debian's slurmd is built with multiple-slurmd: each daemon plays one node. The nodes' CPUs and GPUs are said, not there;
Slurm binds nothing (``task/none``), so that what a job finds bound is the launcher's work.
"""

from __future__ import annotations

import os
import pathlib
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest

from tests.lab import islands
from tests.lab.plugin import INSIDE

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
    "nsenter": "util-linux",
    "ps": "procps",
}
NUM_NODES = 4
NUM_GPUS = 4
NAME = "cluster"

CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={name}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
GresTypes=gpu
KillWait=2
"""
NODE = "NodeName=n{n} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=512 Gres=gpu:{gpus} State=UNKNOWN\n"
PARTITION = "PartitionName=all Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4\n"


class Cluster:
    """A cluster that runs; commands such as ``srun`` are started on its island."""

    def __init__(self, island: islands.Island, folder: pathlib.Path) -> None:
        self.island = island
        self.folder = folder

    def run(
        self, *command: str, check: bool = True, timeout: float = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm; upper-case keywords are environment variables."""
        environment = {
            **os.environ,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
            **variables,
        }
        return self.island.run(*command, check=check, timeout=timeout, environment=environment)

    def logs(self) -> str:
        """Give what the daemons wrote last."""
        return "\n".join(
            f"{log.name}: {log.read_text()[-1000:]}" for log in self.folder.glob("*.log")
        )


# Not for the session: later tests count the children of their process.
@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """Give a cluster of 4 nodes with 4 GPUs each."""
    try:
        islands.require(PACKAGES)
        with (
            tempfile.TemporaryDirectory(prefix="wellfed-slurm-") as made,
            islands.Island(NAME) as island,
        ):
            cluster = Cluster(island, pathlib.Path(made))
            _start(cluster)
            yield cluster
    except islands.UnavailableError as reason:
        islands.give_up(str(reason))


def _start(cluster: Cluster, seconds: float = 60) -> None:
    folder = cluster.folder
    # Slurm's daemons and munge refuse folders that others may write; jobs look into it.
    folder.chmod(0o755)
    (folder / "state").mkdir()
    _write_configuration(folder)
    # Every daemon looks its own host's name up before it listens.
    (folder / "hosts").write_text(f"127.0.0.1 localhost {NAME}\n")
    cluster.island.show("/etc/hosts", str(folder / "hosts"))
    # glibc's AI_ADDRCONFIG, which Slurm asks with, finds no IPv4 where 127.0.0.1 is the only address.
    cluster.island.run("ip", "address", "add", "127.0.0.2/8", "dev", "lo")
    if os.environ.get(INSIDE):
        # Without systemd slurmd makes its group in this one; the guest goes, and it with it.
        pathlib.Path("/sys/fs/cgroup/system.slice").mkdir(exist_ok=True)
    _start_munge(cluster)
    cluster.run("slurmctld", "-i", "-c")
    for n in range(1, NUM_NODES + 1):
        started = cluster.run("slurmd", "-N", f"n{n}", check=False)
        assert started.returncode == 0, started.stderr + cluster.logs()
    deadline = time.monotonic() + seconds
    while True:
        states = cluster.run("sinfo", "-h", "-N", "-o", "%T", check=False).stdout.split()
        if states == ["idle"] * NUM_NODES:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"the cluster did not come up: {states}\n{cluster.logs()}")
        time.sleep(0.2)


def _write_configuration(folder: pathlib.Path) -> None:
    text = CONFIGURATION.format(name=NAME, folder=folder)
    for n in range(1, NUM_NODES + 1):
        text += NODE.format(n=n, name=NAME, port=17000 + n, gpus=NUM_GPUS)
    (folder / "slurm.conf").write_text(text + PARTITION.format(nodes=NUM_NODES))
    # On a host with cgroup v2 alone slurmd wants systemd, which a guest does not have.
    (folder / "cgroup.conf").write_text(
        "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n" if _has_only_v2() else ""
    )
    # Slurm tells a task its GPUs only where they are devices; 240 is for local use, and nobody opens these.
    for gpu in range(NUM_GPUS):
        os.mknod(folder / f"gpu{gpu}", stat.S_IFCHR | 0o600, os.makedev(240, gpu))
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{NUM_GPUS - 1}]\n")


def _start_munge(cluster: Cluster) -> None:
    folder = cluster.folder / "munge"
    folder.mkdir(mode=0o700)
    key = folder / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    cluster.run(
        "munged", "--force", f"--key-file={key}", f"--socket={cluster.folder}/munge.socket",
        f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed",
    )  # fmt: skip


def _has_only_v2() -> bool:
    return pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists()
