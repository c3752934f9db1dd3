"""How does a test give the real nvidia-ml-py a driver that answers from a recording?"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
RECORDINGS = HERE.parent / "recordings" / "nvml"
COMPILER = shutil.which("gcc") or shutil.which("cc")


def build(folder: pathlib.Path) -> pathlib.Path:
    """Compile the library into a folder for LD_LIBRARY_PATH, and give that folder."""
    assert COMPILER, "skip where COMPILER is None"
    flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1", "-shared", "-fPIC"]
    library = folder / "libnvidia-ml.so.1"
    soname = f"-Wl,-soname,{library.name}"
    subprocess.run(
        [
            COMPILER,
            *flags,
            "-Wall",
            "-Wextra",
            "-Werror",
            soname,
            "-o",
            str(library),
            str(HERE / "fake_nvml.c"),
        ],
        check=True,
    )
    return folder


def environment(
    folder: pathlib.Path, recording: pathlib.Path, log: pathlib.Path | None = None
) -> dict[str, str]:
    """Give the environment in which NVML answers from a recording, and logs its calls where asked."""
    made = dict(os.environ) | {
        "LD_LIBRARY_PATH": str(folder),
        "WELLFED_FAKE_NVML": str(recording),
    }
    return made | {"WELLFED_FAKE_NVML_LOG": str(log)} if log else made


def python(code: str, env: dict[str, str], *, seconds: float = 60) -> str:
    """Run a few lines of Python there, and give what they print."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
