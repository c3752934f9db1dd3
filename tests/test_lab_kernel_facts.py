"""Do the kernel facts that need several nodes hold in guests that have them, and does binding live up to them there?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SEVERAL_NODES = (
    "k4 or k5 or k6 or k8 or k9 or k10 or k11 or k12 or k13 or k15 or pages_follow or puts_pages"
    " or kernels_own_word or cpuset or pages_lie_on or there_before or node_without_memory"
)
"""Tests whose answer depends on nodes; the others were asked of the kernel outside."""

FILES = ("tests/test_kernel_facts.py", "tests/test_verify.py", "tests/test_pages.py")


@pytest.mark.lab("2n", "odd")
def test_every_fact_about_nodes_holds_in_a_guest(topology):
    """Two sockets, and an odd host with a node without memory and one without CPUs: nothing is skipped for want of nodes."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "pytest_timeout",
         "-k", SEVERAL_NODES, *FILES],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-4000:]
    assert "needs 2 NUMA nodes" not in done.stdout
    if topology == "odd":
        assert "SKIPPED" not in done.stdout, done.stdout[-2000:]
