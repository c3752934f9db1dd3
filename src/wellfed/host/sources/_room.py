"""Which formats are there, and which one is this file?"""

from __future__ import annotations

import importlib
import os
import pkgutil

import wellfed.host.sources
from wellfed.host.sources._base import root_tag
from wellfed.model.errors import RecordingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.host.sources._base import Source
    from wellfed.model.machine import Machine

MAX_BYTES = 16 * 2**20
"""hwloc writes 200 kB for 256 CPUs. Nothing that describes one host is a hundred times as large as the largest."""

COMPRESSED = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)


def sources() -> tuple[Source, ...]:
    """Find every plug-in of this room, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(wellfed.host.sources.__path__))
    loaded = [
        importlib.import_module(f"{wellfed.host.sources.__name__}.{name}")
        for name in names
        if not name.startswith("_")
    ]
    return tuple(module.SOURCE for module in loaded if hasattr(module, "SOURCE"))


def read_source(path: str) -> Machine:
    """Read another tool's description of a host, whichever of the known formats it is.

    RecordingError where the file cannot be read or is of no known format, MalformedTextError where it is
    damaged. The machine has evidence and no decisions: `placement.locate` makes those.
    """
    text = _read_text(path)
    for source in sources():
        if source.recognises(text):
            return source.read(text, path)
    known = ", ".join(source.name for source in sources())
    raise RecordingError(
        f"{path} holds {_what(text)}, which is none of the known descriptions of a host: {known}",
        remedy="give one of these, or a recording made by `wellfed capture FILE`",
    )


def _read_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecordingError(
            f"{path} cannot be read: {os.strerror(error.errno or 0).lower()}",
            remedy="give a readable file",
        ) from None
    if len(content) > MAX_BYTES:
        raise RecordingError(
            f"{path} is larger than {MAX_BYTES >> 20} MiB, which no description of one host is",
            remedy="give the description alone",
        )
    for magic, tool in COMPRESSED:
        if content.startswith(magic):
            raise RecordingError(
                f"{path} is compressed by {tool}, wanted plain text",
                remedy=f"decompress it with {tool} -d, and give the result",
            )
    # PowerShell and some editors save UTF-16, which says so in its first two bytes.
    utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = content.decode("utf-16" if utf16 else "utf-8-sig", "replace")
    if "\0" in text:
        raise RecordingError(
            f"{path} holds binary data, wanted text", remedy="give a description of a host"
        )
    return text


def _what(text: str) -> str:
    """Say in a few words what a text begins with."""
    tag = root_tag(text)
    if tag:
        return f"XML of the kind <{tag[:40]}>"
    first = next((line.strip() for line in text[:10_000].splitlines() if line.strip()), "")
    if not first:
        return "nothing"
    return f"a text that begins with {first if len(first) <= 60 else first[:57] + '...'!r}"
