"""How does a test start ``wellfed run`` as a person does, and see what it leaves behind?"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

LAUNCHER_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "LD_PRELOAD", "MALLOC_CONF", "WELLFED_JOB",
)  # fmt: skip
"""What a launcher around the tests may have set."""

COMMAND = (sys.executable, "-m", "wellfed", "run")


def environment(**changes: str) -> dict[str, str]:
    """Return this environment without any launcher's variables, with changes.

    No GPU is visible unless a test says so: the tests claim the same on a machine that has some.
    """
    kept = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
    return kept | {"CUDA_VISIBLE_DEVICES": ""} | changes


def launch(
    *words: str | bytes, stdin: bytes = b"", timeout: float = 30, **changes: str
) -> subprocess.CompletedProcess[bytes]:
    """Run ``wellfed run WORDS`` to its end; upper-case keywords are environment variables."""
    return subprocess.run(
        (*COMMAND, *words),
        input=stdin,
        capture_output=True,
        timeout=timeout,
        env=environment(**changes),
        check=False,
    )


def begin(*words: str, **changes: str) -> subprocess.Popen[bytes]:
    """Start ``wellfed run WORDS`` in a process group of its own."""
    return subprocess.Popen(
        (*COMMAND, *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**changes),
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes], timeout: float = 20) -> tuple[bytes, bytes]:
    """Wait for a process and return what it wrote; one that does not end is killed and fails the test."""
    try:
        return process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise


def await_file(path: pathlib.Path, *, lines: int = 1, seconds: float = 15) -> list[str]:
    """Wait until a file has so many lines: ranks write to it when they are ready."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = path.read_text().splitlines() if path.exists() else []
        if len(found) >= lines:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{path} has {found}, wanted {lines} lines")


def is_running(pid: int) -> bool:
    """Say whether a process runs: one that nobody has waited for yet does not."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def await_end(*pids: int, seconds: float = 10) -> bool:
    """Wait until none of these processes runs any more."""
    deadline = time.monotonic() + seconds
    while any(is_running(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
