"""Where is an allocator that this command can preload, and which one does a process really use?"""

from __future__ import annotations

import os
import sys

from wellfed.host.launch import find_command
from wellfed.host.live_tree import LiveTree
from wellfed.model.errors import LaunchError
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LIBRARIES = {
    "jemalloc": ("libjemalloc.so.2",),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"),
}
"""Names by which the loader knows them; the minimal tcmalloc is the one without a profiler."""

PACKAGES = {
    "jemalloc": "apt install libjemalloc2, dnf install jemalloc, or conda install -c conda-forge jemalloc",
    "tcmalloc": "apt install libtcmalloc-minimal4, dnf install gperftools-libs, or conda install -c conda-forge gperftools",
}

FOLDERS = ("/usr/local/lib", "/usr/local/lib64", "/usr/lib64", "/usr/lib", "/lib64", "/lib")

ELF_MAGIC = b"\x7fELF"
EI_CLASS, EI_DATA = 4, 5
E_MACHINE = 18
PT_INTERP = 3
HEADER_BYTES = 4096
"""Holds the program headers of every linker's output: they follow the 64 bytes of the header."""
MAX_SCRIPTS = 4
"""As deep as Linux follows scripts whose interpreter is a script (fs/exec.c)."""


class Elf(Value):
    """What of a file decides which libraries it can load."""

    kind: tuple[int, int, int]
    """Class (1: 32 bits, 2: 64), byte order, machine."""
    dynamic: bool
    """Whether it asks for a loader; without one nothing is preloaded."""


def find_allocator(name: str, command: str, environment: Mapping[str, str]) -> str:
    """Return the path of an allocator's library that fits the command; LaunchError where there is none.

    Looked for in LD_LIBRARY_PATH, this interpreter's and conda's folders, those of ld.so.conf, and the usual ones.
    A library of another machine or word size than the command's is passed over, because the loader would ignore it.
    """
    wanted = elf_of(command, environment)
    others: list[str] = []
    for folder in _folders(environment):
        for library in LIBRARIES[name]:
            path = os.path.join(folder, library)
            if not os.path.exists(path):
                continue
            found = parse_elf(_read_start(path))
            if found is not None and (wanted is None or found.kind == wanted.kind):
                return os.path.abspath(path)
            others.append(path)
    if others:
        raise LaunchError(
            f"--malloc {name}: {others[0]} is for another machine or word size than {command}",
            remedy=f"install the one that fits: {PACKAGES[name]}",
        )
    raise LaunchError(
        f"--malloc {name}: {' or '.join(LIBRARIES[name])} is not found", remedy=PACKAGES[name]
    )


def why_not_preloaded(command: str, environment: Mapping[str, str]) -> str | None:
    """Say why LD_PRELOAD will do nothing for a command, None where nothing speaks against it (ld.so(8))."""
    if _runs_securely(command):
        return f"{command} runs with other rights than its caller, and for such the loader ignores LD_PRELOAD"
    elf = elf_of(command, environment)
    if elf is not None and not elf.dynamic:
        return f"{command} is linked statically, so nothing can be preloaded"
    return None


def allocator_in_use(pid: int) -> str | None:
    """Return the path of the allocator library whose ``malloc`` a process calls, None where it has its own.

    /proc/PID/maps proves that a library is there; of several the loader takes the first in LD_PRELOAD. OSError where
    the process is gone or not ours to look into.
    """
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        mapped = allocators_of(file.read())
    if len(mapped) < 2:
        return mapped[0] if mapped else None
    with open(f"/proc/{pid}/environ", "rb") as file:
        variables = file.read().split(b"\0")
    preload = next((v for v in variables if v.startswith(b"LD_PRELOAD=")), b"LD_PRELOAD=")
    order = os.fsdecode(preload.partition(b"=")[2]).replace(":", " ").split()
    return min(mapped, key=lambda path: _place(path, order))


def allocators_of(maps: str) -> tuple[str, ...]:
    """Return the allocator libraries in a /proc/PID/maps text."""
    found: dict[str, None] = {}
    for line in maps.splitlines():
        words = line.split(None, 5)
        path = words[5] if len(words) == 6 else ""
        if path.rpartition("/")[2].startswith(("libjemalloc", "libtcmalloc", "libmimalloc")):
            found[path] = None
    return tuple(found)


def elf_of(path: str, environment: Mapping[str, str], depth: int = 0) -> Elf | None:
    """Describe the program that runs when a path is executed, through the first lines of scripts; None: unknown."""
    start = _read_start(path)
    if start[:2] != b"#!" or depth == MAX_SCRIPTS:
        return parse_elf(start)
    words = start[2:].split(b"\n", 1)[0].split()
    interpreter = os.fsdecode(words[0]) if words else ""
    if interpreter.rpartition("/")[2] == "env":
        named = [word for word in words[1:] if not word.startswith(b"-") and b"=" not in word]
        interpreter = os.fsdecode(named[0]) if named else ""
    try:
        return elf_of(find_command(interpreter, environment), environment, depth + 1)
    except LaunchError:
        return None


def parse_elf(start: bytes) -> Elf | None:
    """Read an ELF header and the program headers behind it (elf(5)); None for anything else."""
    if not start.startswith(ELF_MAGIC) or len(start) < 64:
        return None
    wide, order = start[EI_CLASS] == 2, "little" if start[EI_DATA] == 1 else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(start[at : at + size], "little" if order == "little" else "big")

    table = number(32, 8) if wide else number(28, 4)
    entry, count = (number(54, 2), number(56, 2)) if wide else (number(42, 2), number(44, 2))
    kinds = {number(table + i * entry, 4) for i in range(count)}
    return Elf((start[EI_CLASS], start[EI_DATA], number(E_MACHINE, 2)), PT_INTERP in kinds)


def _place(path: str, order: Sequence[str]) -> int:
    """Return a library's position in LD_PRELOAD, which may name a link to it."""
    for i, each in enumerate(order):
        if os.path.realpath(each) == os.path.realpath(path):
            return i
    return len(order)


def _folders(environment: Mapping[str, str]) -> Iterator[str]:
    yield from filter(None, environment.get("LD_LIBRARY_PATH", "").split(":"))
    yield os.path.join(sys.prefix, "lib")
    if environment.get("CONDA_PREFIX"):
        yield os.path.join(environment["CONDA_PREFIX"], "lib")
    yield from _configured("/etc/ld.so.conf", depth=0)
    yield from FOLDERS


def _configured(path: str, depth: int) -> Iterator[str]:
    """Read the folders of an ld.so.conf, and of the files that it includes (ldconfig(8))."""
    text = LiveTree().read(path)
    for line in (text or "").splitlines() if depth < MAX_SCRIPTS else ():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                for included in _matching(os.path.join(os.path.dirname(path), pattern)):
                    yield from _configured(included, depth + 1)
        elif words:
            yield words[0].partition("=")[0]


def _matching(pattern: str) -> Iterator[str]:
    """List files by a pattern whose last part may hold stars, as all ld.so.conf files write them."""
    from fnmatch import fnmatch

    folder, _, last = pattern.rpartition("/")
    for name in LiveTree().list(folder or "/") or ():
        if fnmatch(name, last):
            yield f"{folder}/{name}"


def _runs_securely(command: str) -> bool:
    """Say whether executing a file changes rights: setuid, setgid or capabilities of the file."""
    try:
        about = os.stat(command)
    except OSError:
        return False
    changes_user = bool(about.st_mode & 0o4000) and about.st_uid != os.geteuid()
    changes_group = bool(about.st_mode & 0o2000) and about.st_gid != os.getegid()
    if changes_user or changes_group:
        return True
    try:
        return bool(os.getxattr(command, "security.capability")) and os.geteuid() != 0
    except OSError:
        return False


def _read_start(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(HEADER_BYTES)
    except OSError:
        return b""
