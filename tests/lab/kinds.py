"""Which tests share a guest?"""

from __future__ import annotations

import dataclasses

import pytest


@dataclasses.dataclass(frozen=True)
class GuestKind:
    """What makes two tests share a guest."""

    topology: str
    append: str = ""
    """More kernel arguments."""
    modules: str = ""
    """Kernel modules to load first, with commas."""

    def __str__(self) -> str:
        return " ".join(part for part in (self.topology, self.append, self.modules) if part)


def kind_of(item: pytest.Item) -> GuestKind | None:
    """Say which guest a test wants, None where it wants none."""
    marker = item.get_closest_marker("lab")
    if marker is None:
        return None
    chosen = getattr(item, "callspec", None)
    named = chosen.params.get("topology") if chosen else None
    if named is None and len(marker.args) != 1:
        raise pytest.UsageError(
            f"{item.nodeid}: a test in several topologies takes the fixture `topology`"
        )
    try:
        return GuestKind(named or marker.args[0], **marker.kwargs)
    except TypeError as mistake:
        raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.lab: {mistake}") from None
