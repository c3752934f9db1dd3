"""Which small programs of our own do guests and their tests use, and where do they lie once compiled?"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).parent
FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")


class NoCompilerError(Exception):
    """There is no C compiler; the message says what to install."""


def cache_folder() -> pathlib.Path:
    """Give the folder that keeps what the lab fetched and built between runs; never in the checkout."""
    named = os.environ.get("WELLFED_LAB_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(named) if named else pathlib.Path(base) / "wellfed" / "lab"


def program(name: str) -> pathlib.Path:
    """Return the compiled ``NAME.c``, compiling it where its text is not the one compiled before."""
    source = HERE / f"{name}.c"
    text = hashlib.sha256(source.read_bytes() + repr(FLAGS).encode()).hexdigest()[:12]
    folder = cache_folder() / "programs"
    compiled = folder / f"{name}-{text}"
    if compiled.exists():
        return compiled
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NoCompilerError("not installed: apt-get install gcc libc6-dev")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unfinished = folder / f"{name}.{os.getpid()}"
        done = subprocess.run(
            [compiler, *FLAGS, "-o", str(unfinished), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NoCompilerError(f"{source.name} does not compile: {done.stderr[-500:]}")
        unfinished.replace(compiled)
    return compiled


def ticks_khz() -> int:
    """Measure how fast the time stamp counter of this machine counts, in kHz."""
    done = subprocess.run([program("tsc")], capture_output=True, text=True, check=True)
    return int(done.stdout)
