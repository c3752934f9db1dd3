"""How does a test ask for a fault, and get a reason where it cannot be had here?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@pytest.fixture
def full_disk() -> Iterator:
    """Give a folder on a disk of 1 MiB: ENOSPC on write."""
    from tests.faults import disks

    with _or_skip(disks.NoDiskError, disks.full_disk()) as folder:
        yield folder
    assert disks.left_over() == []


@pytest.fixture
def late_disk() -> Iterator:
    """Give a folder on a disk where write() succeeds and fsync() fails."""
    from tests.faults import disks

    with _or_skip(disks.NoDiskError, disks.late_disk()) as folder:
        yield folder
    assert disks.left_over() == []


@pytest.fixture(scope="session")
def nobody() -> Iterator:
    """Give the user nobody, who runs wellfed and has no rights."""
    from tests.faults import nobody as nobodys

    reason = nobodys.why_not()
    if reason:
        pytest.skip(reason)
    with nobodys.unprivileged() as user:
        yield user


@pytest.fixture(scope="session")
def tracing():
    """Give the tracer: `calls_of`, `killed_at`, `failing_at`, `overtaken_at`."""
    from tests.faults import tracing as tracer

    reason = tracer.why_not()
    if reason:
        pytest.skip(reason)
    return tracer


@pytest.fixture
def cpu_group() -> Iterator:
    """Give a control group of the cpu controller."""
    from tests.faults import cgroups

    with _or_skip(cgroups.NoGroupError, cgroups.Group("cpu")) as group:
        yield group
    assert not group.path.exists()


@pytest.fixture
def memory_group() -> Iterator:
    """Give a control group of the memory controller."""
    from tests.faults import cgroups

    with _or_skip(cgroups.NoGroupError, cgroups.Group("memory")) as group:
        yield group
    assert not group.path.exists()


@contextlib.contextmanager
def _or_skip(refusal: type[Exception], context: contextlib.AbstractContextManager) -> Iterator:
    """Enter a context, or skip with the reason for which that is impossible here."""
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(context)
        except refusal as reason:
            pytest.skip(str(reason))
        yield found
