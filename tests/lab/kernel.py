"""Where does the guest's kernel come from? From Debian's archive, unpacked and never installed."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import gzip
import hashlib
import lzma
import os
import pathlib
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator

from tests.lab.programs import cache_folder

HERE = pathlib.Path(__file__).parent
FIRST_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
"""Enough to reach the shared root; everything else is loaded from there."""
TEST_MODULES = ("fakegpu", "fakecpu")
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "modprobe": "kmod",
    "gcc": "gcc",
    "make": "make",
    "setpriv": "util-linux",
}
HEADERS = "linux-headers-amd64"


class LabUnavailableError(Exception):
    """The lab cannot run here; the message says why and what to install."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel that boots."""

    release: str
    image: pathlib.Path
    root: pathlib.Path
    """Holds ``lib/modules/RELEASE``."""
    initramfs: pathlib.Path
    modules: pathlib.Path
    """Holds our test modules, ``NAME.ko``."""


def prepare() -> Kernel:
    """Return a kernel, fetching and building what is not cached. Raises LabUnavailableError."""
    if platform.machine() != "x86_64":
        raise LabUnavailableError(
            f"the lab boots x86-64 guests, this machine is {platform.machine()}"
        )
    absent = sorted(package for program, package in PROGRAMS.items() if not shutil.which(program))
    if absent:
        raise LabUnavailableError(f"not installed: apt-get install {' '.join(absent)} {HEADERS}")
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        root = _unpacked(folder)
        release = max(
            path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-*")
        )
        image = _elf_image(folder, root / "boot" / f"vmlinuz-{release}", release)
        modules = _built_modules(folder, release)
        initramfs = _initramfs(folder, root, release)
    return Kernel(release, image, root, initramfs, modules)


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Hold a file's lock: two runs at once fetch and build one after the other."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*command: str | pathlib.Path, cwd: pathlib.Path | None = None) -> str:
    """Run a tool to its end; its own words are the reason where it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        raise LabUnavailableError(
            f"`{' '.join(map(str, command))}` failed: {(done.stderr or done.stdout).strip()[-500:]}"
        )
    return done.stdout


def _unpacked(folder: pathlib.Path) -> pathlib.Path:
    root = folder / "root"
    if (root / "complete").exists():
        return root
    names = _run("apt-cache", "depends", "linux-image-amd64").split()
    package = next(
        (name for name in names if name.startswith("linux-image-") and name != "linux-image-amd64"),
        None,
    )
    if package is None:
        raise LabUnavailableError(
            "apt knows no linux-image-amd64, Debian's kernel: run apt-get update"
        )
    # The sandbox user of apt cannot write below a home directory; downloading as root is what apt falls back to.
    _run("apt-get", "-o", "APT::Sandbox::User=root", "download", package, cwd=folder)
    deb = next(folder.glob(f"{package}_*.deb"))
    shutil.rmtree(root, ignore_errors=True)
    _run("dpkg", "-x", deb, root)
    _run("depmod", "-b", root, package.removeprefix("linux-image-"))
    deb.unlink()
    (root / "complete").touch()
    return root


def _elf_image(folder: pathlib.Path, compressed: pathlib.Path, release: str) -> pathlib.Path:
    """Return the kernel as ELF: QEMU starts it through PVH, without real mode and the decompressor, slow under TCG.

    Documentation/arch/x86/boot.rst: setup_sects at 0x1f1, payload_offset and payload_length at 0x248.
    """
    image = folder / f"vmlinux-{release}"
    if image.exists():
        return image
    content = compressed.read_bytes()
    start = ((content[0x1F1] or 4) + 1) * 512
    offset, length = struct.unpack_from("<II", content, 0x248)
    payload = content[start + offset : start + offset + length]
    if payload.startswith(b"\xfd7zXZ"):
        elf = lzma.LZMADecompressor().decompress(payload)
    elif payload.startswith(b"\x1f\x8b"):
        elf = gzip.decompress(payload[:-4])
    else:
        return compressed
    _replace(image, elf)
    return image


def _built_modules(folder: pathlib.Path, release: str) -> pathlib.Path:
    """Build our test modules for this kernel, outside the checkout."""
    sources = sorted((HERE / "modules").glob("*/*"))
    built = folder / f"modules-{release}-{_digest(*sources)}"
    if all((built / f"{name}.ko").exists() for name in TEST_MODULES):
        return built
    headers = pathlib.Path(f"/lib/modules/{release}/build")
    if not headers.exists():
        raise LabUnavailableError(f"not installed: apt-get install linux-headers-{release}")
    built.mkdir(exist_ok=True)
    for name in TEST_MODULES:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            source = pathlib.Path(scratch) / name
            shutil.copytree(HERE / "modules" / name, source)
            _run("make", "-s", "-C", headers, f"M={source}", "modules")
            _replace(built / f"{name}.ko", (source / f"{name}.ko").read_bytes())
    return built


def _initramfs(folder: pathlib.Path, root: pathlib.Path, release: str) -> pathlib.Path:
    script = HERE / "init.sh"
    packed = folder / f"initramfs-{release}-{_digest(script, HERE / 'kernel.py')}.cpio"
    if packed.exists():
        return packed
    order: list[str] = []
    for module in FIRST_MODULES:
        for line in _run(
            "modprobe", "-d", root, "-S", release, "--show-depends", module
        ).splitlines():
            word, _, path = line.partition(" ")
            if word == "insmod" and path.split()[0] not in order:
                order.append(path.split()[0])
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        tree = pathlib.Path(scratch)
        for name in ("bin", "proc", "sys", "dev", "mnt/ro", "mnt/rw", "new", "mod"):
            (tree / name).mkdir(parents=True)
        shutil.copy(shutil.which("busybox") or "busybox", tree / "bin/busybox")
        names = [f"{number:02}-{pathlib.Path(path).name}" for number, path in enumerate(order)]
        for name, path in zip(names, order, strict=True):
            shutil.copy(path, tree / "mod" / name)
        (tree / "mod/order").write_text("\n".join(names) + "\n")
        shutil.copy(script, tree / "init")
        (tree / "init").chmod(0o755)
        listed = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
        archive = subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            input=listed.encode(),
            cwd=tree,
            capture_output=True,
            check=True,
        )
        _replace(packed, archive.stdout)
    return packed


def _digest(*files: pathlib.Path) -> str:
    """Name a text by its content: checkouts of several ages share one cache."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _replace(path: pathlib.Path, content: bytes) -> None:
    """Write a cached file so that nobody sees half of it."""
    unfinished = path.with_name(path.name + f".{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(path)
