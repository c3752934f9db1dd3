"""What is a source: how its text is recognised and read."""

from __future__ import annotations

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from wellfed.model.machine import Machine


class Source(Value):
    """One format. A file of this room exposes one as ``SOURCE``; its room finds it."""

    name: str
    """For sentences: ``an hwloc XML topology``."""
    recognises: Callable[[str], bool]
    """Whether a text is of this format, by its content."""
    read: Callable[[str, str], Machine]
    """(text, name) -> machine with GPU evidence, before `placement.locate`. MalformedTextError where it is damaged."""
