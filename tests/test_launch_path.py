"""What does launching pay for?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = {
    "argparse", "click", "collections.abc", "ctypes.util", "dataclasses", "enum", "inspect", "json", "logging",
    "msgspec", "pathlib", "pkgutil", "psutil", "pynvml", "re", "rich", "shutil", "subprocess", "tempfile", "torch",
    "typing", "zstandard",
}  # fmt: skip


def imported_by(*arguments: str) -> set[str]:
    """Give the modules that a fresh interpreter imports; the ones of a bare start are left out."""
    bare = _imports(sys.executable, "-X", "importtime", "-c", "pass")
    return _imports(sys.executable, "-X", "importtime", *arguments) - bare


def _imports(*command: str) -> set[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COVERAGE", "PYTEST"))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    lines = (
        line.split("|") for line in done.stderr.splitlines() if line.startswith("import time:")
    )
    return {fields[2].strip() for fields in lines if len(fields) == 3}


def test_import_wellfed_pays_for_nothing():
    """`import wellfed` loads the package's own face and no library."""
    found = imported_by("-c", "import wellfed")

    assert not found & HEAVY


@pytest.mark.parametrize("options", [(), ("--policy", "exclusive"), ("--memory", "none")])
def test_run_imports_no_library_before_it_becomes_the_command(options):
    """A launch of one rank loads neither click nor anything else that costs more than it gives."""
    found = imported_by("-m", "wellfed", "run", "--quiet", *options, "--", "true")

    assert not found & HEAVY


def test_help_imports_no_plug_ins():
    """`wellfed --help` loads click, and neither rich nor a room of plug-ins."""
    found = imported_by("-m", "wellfed", "--help")

    assert "click" in found
    assert not found & {"rich", "torch", "pynvml", "psutil", "msgspec"}
    assert not {
        name
        for name in found
        if name.startswith(("wellfed.checks.", "wellfed.gpus.", "wellfed.host."))
    }
