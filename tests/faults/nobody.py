"""How is wellfed run as a user without rights, who may not even read the folder that its interpreter is in?"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

from tests.faults.command import run_faulty

NEEDED = ("wellfed", "click", "pynvml")
"""Pure Python, so that another interpreter can run it. (rich is left out: reports are plain without a terminal.)"""
SYSTEM_PYTHON = "/usr/bin/python3"


def why_not() -> str | None:
    """Say why this cannot be had here."""
    if os.geteuid():
        return "only root may become somebody else"
    if not pathlib.Path(SYSTEM_PYTHON).exists():
        return f"needs {SYSTEM_PYTHON}, which everybody may run"
    asked = [SYSTEM_PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
    if subprocess.run(asked, check=False).returncode:
        return f"{SYSTEM_PYTHON} is older than 3.10"
    return None


class Nobody:
    """The user nobody, with a copy of wellfed that it may read."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def run(
        self, *words: str, faults: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``wellfed WORDS`` as nobody; upper-case keywords are environment variables."""
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": "/nonexistent",
            **variables,
        }
        # The interpreter that puts the faults on adds its own path; only the copy may be used after it.
        python = ["env", f"PYTHONPATH={self.folder}", SYSTEM_PYTHON, "-m", "wellfed"]
        return run_faulty(["user=nobody", *faults], *python, *words, environment=environment)


@contextlib.contextmanager
def unprivileged() -> Iterator[Nobody]:
    """Copy wellfed and what it needs to a folder that everybody may read, and remove it."""
    with tempfile.TemporaryDirectory(prefix="wellfed-nobody-") as made:
        folder = pathlib.Path(made)
        for name in NEEDED:
            found = importlib.util.find_spec(name)
            if found is None or found.origin is None:
                continue
            origin = pathlib.Path(found.origin)
            if origin.name == "__init__.py":
                unwanted = shutil.ignore_patterns("__pycache__")
                shutil.copytree(origin.parent, folder / name, ignore=unwanted)
            else:
                shutil.copy(origin, folder / origin.name)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield Nobody(folder)
