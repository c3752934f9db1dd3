"""Does a guest of ours boot under KVM here? Asked by booting one: a /dev/kvm that is there proves nothing."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Sequence

from tests.lab.kernel import Kernel, locked
from tests.lab.topology import CPU_MODEL

DEVICE = pathlib.Path("/dev/kvm")
WORD = "wellfed_lab_probe"
"""On the kernel's command line it tells ``init.sh`` to say that it runs, and no more."""
SAYS = "lab: this guest boots"
SECONDS = 10.0
"""A guest under KVM is up in one or two; nested virtualisation that does not work hangs for ever."""


def boots_under_kvm(kernel: Kernel) -> bool:
    """Boot a guest under KVM, once a boot of this machine: the answer is kept in the cache."""
    if not (DEVICE.exists() and os.access(DEVICE, os.R_OK | os.W_OK)):
        return False
    kept = kernel.initramfs.parent / "kvm.json"
    asked = [_boot_of_host(), kernel.initramfs.name]
    with locked(kept.with_suffix(".lock")):
        try:
            known = json.loads(kept.read_text())
        except (OSError, ValueError):
            known = {}
        if known.get("asked") != asked:
            boots = reaches_init(kernel, ("-accel", "kvm", "-cpu", CPU_MODEL), seconds=SECONDS)
            known = {"asked": asked, "boots": boots}
            kept.write_text(json.dumps(known))
    return bool(known["boots"])


def reaches_init(kernel: Kernel, accelerator: Sequence[str], *, seconds: float) -> bool:
    """Say whether a guest with these QEMU arguments comes as far as its first process, in so many seconds."""
    with tempfile.TemporaryDirectory(prefix=f"wellfed-lab-{os.getpid()}-") as scratch:
        console = pathlib.Path(scratch) / "console"
        console.touch()
        guest = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults", "-no-user-config",
             "-display", "none", "-no-reboot", "-machine", "q35,smm=off,hpet=off", *accelerator, "-m", "256M",
             "-kernel", str(kernel.image), "-initrd", str(kernel.initramfs),
             "-append", f"console=ttyS0 panic=-1 quiet {WORD}",
             "-chardev", f"file,id=console,path={console}", "-serial", "chardev:console"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            return _says_so(guest, console, time.monotonic() + seconds)
        finally:
            guest.kill()
            guest.wait()


def _says_so(guest: subprocess.Popen[bytes], console: pathlib.Path, deadline: float) -> bool:
    while True:
        ended = guest.poll() is not None or time.monotonic() > deadline
        if SAYS in console.read_text(errors="replace"):
            return True
        if ended:
            return False
        time.sleep(0.05)


def _boot_of_host() -> str:
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
