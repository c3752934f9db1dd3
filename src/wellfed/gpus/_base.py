"""What is a vendor: how its GPUs are asked where they are."""

from __future__ import annotations

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from wellfed.model.machine import Sighting
    from wellfed.model.tree import HostTree


class Unanswered(Value):
    """Why a vendor, or one of its GPUs, gave no answer. Worth a person's time only where the host has such a GPU."""

    vendor: str
    reason: str
    """One sentence."""


class Sightings(Value):
    """Every GPU that a source sees, and what it could not see."""

    found: tuple[Sighting, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()

    def __or__(self, other: Sightings) -> Sightings:
        """Join what two vendors see."""
        return Sightings(self.found + other.found, self.unanswered + other.unanswered)


class Vendor(Value):
    """One maker of GPUs. A file of this room exposes one as ``VENDOR``; its room finds it."""

    name: str
    """``nvidia``, ``amd``: as in `Gpu.vendor`, and the name of its file."""
    look: Callable[[HostTree], Sightings]
    """Ask a live or recorded host. Never an error because a driver is missing or refuses: that is `Unanswered`.
    MalformedTextError where a recording is damaged."""
