"""Does wellfed read in a guest what the guest's file says?"""

from __future__ import annotations

import os

import pytest

from tests.lab import topology as topologies


@pytest.mark.lab("1n", "2n", "4n", "8n", "odd", "gh200", "gb200", "offline", "ccx")
def test_the_machine_read_is_the_machine_described(topology):
    """CPUs, nodes, distances, memory, siblings and the GPUs' nodes are those of the topology file."""
    from wellfed.workflows.machine import machine_of

    machine = machine_of(None)

    assert os.environ["WELLFED_LAB_GUEST"] == topology
    assert topologies.differences(topologies.read(topology), machine) == []
