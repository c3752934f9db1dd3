"""Which vendors are there, and what do they see?"""

from __future__ import annotations

import os

from wellfed.gpus._base import Sightings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from wellfed.gpus._base import Vendor
    from wellfed.model.tree import HostTree


def look(tree: HostTree) -> Sightings:
    """Ask every vendor, and keep the reasons where one gave no answer; a launch that knows its vendor asks only `vendor`."""
    seen = Sightings()
    for each in vendors():
        seen |= each.look(tree)
    return seen


def vendors() -> tuple[Vendor, ...]:
    """Find every plug-in of this room, by name."""
    # Not pkgutil: it imports inspect and costs a launch 20 ms.
    names = sorted({entry.partition(".")[0] for entry in os.listdir(os.path.dirname(__file__))})
    loaded = [_load(name) for name in names if not name.startswith("_")]
    return tuple(module.VENDOR for module in loaded if hasattr(module, "VENDOR"))


def vendor(name: str) -> Vendor:
    """Load one plug-in and no other; the name comes from `Gpu.vendor`, so a wrong one is our own mistake."""
    found: Vendor = _load(name).VENDOR
    return found


def _load(name: str) -> Any:
    # `__import__` and not importlib, which costs a launch another import.
    return __import__(f"wellfed.gpus.{name}", fromlist=["VENDOR"])
