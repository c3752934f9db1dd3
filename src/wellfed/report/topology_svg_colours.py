"""Which colours has the picture of a host, on a light page and on a dark one?"""

from __future__ import annotations

from wellfed.report.svg import MONO, SANS

LIGHT = {
    "bg": "fill:#ffffff",
    "package": "fill:#f3f5f8;stroke:#d5dbe1",
    "card": "fill:#ffffff;stroke:#b6bfc9",
    "switch": "fill:#f6f8fb;stroke:#ccd5df",
    "lost": "fill:none;stroke:#a1632b;stroke-dasharray:5 4",
    "cache": "fill:#f3f5f8;stroke:#d5dbe1",
    "core": "fill:#8793a1",
    "closed": "fill:none;stroke:#b9c1ca",
    "gpu": "fill:#dcecff;stroke:#2f74d0",
    "nic": "fill:#f1e6ff;stroke:#8a55d6",
    "nvme": "fill:#dff3f0;stroke:#1d7f79",
    "local-a": "fill:#1a7f37",
    "local-b": "fill:#63bf7a",
    "remote-a": "fill:#c2540a",
    "remote-b": "fill:#f0965a",
    "unknown-a": "fill:#6b5f9c",
    "unknown-b": "fill:#a59bd0",
    "heat": "fill:#c2540a",
    "ink": "fill:#1f2328",
    "soft": "fill:#57606a",
    "alarm": "fill:#a04706",
    "pill": "fill:#ffffff",
    "rule": "fill:none;stroke:#d5dbe1",
}
"""Fill and stroke of each class of shape on a light page."""

DARK = {
    "bg": "fill:#0e1218",
    "package": "fill:#151b23;stroke:#2c343f",
    "card": "fill:#0e1218;stroke:#465160",
    "switch": "fill:#141a22;stroke:#333d4a",
    "lost": "fill:none;stroke:#d99a5b;stroke-dasharray:5 4",
    "cache": "fill:#171d26;stroke:#2c343f",
    "core": "fill:#7d8896",
    "closed": "fill:none;stroke:#465160",
    "gpu": "fill:#12305c;stroke:#5c9ef0",
    "nic": "fill:#33205a;stroke:#b48cf0",
    "nvme": "fill:#0f3a38;stroke:#3fb8ae",
    "local-a": "fill:#2ea04f",
    "local-b": "fill:#1b6b34",
    "remote-a": "fill:#e0762c",
    "remote-b": "fill:#9c4a12",
    "unknown-a": "fill:#8c80c4",
    "unknown-b": "fill:#5d5390",
    "heat": "fill:#e0762c",
    "ink": "fill:#e8edf3",
    "soft": "fill:#a2acb8",
    "alarm": "fill:#f0b070",
    "pill": "fill:#ffffff",
    "rule": "fill:none;stroke:#2c343f",
}
"""The same on a dark page."""


def style_sheet() -> str:
    """Write both palettes; the viewer's own setting chooses."""
    light = "".join(f".{name}{{{rule}}}" for name, rule in LIGHT.items())
    dark = "".join(f".{name}{{{rule}}}" for name, rule in DARK.items())
    return (
        f"text{{font-family:{SANS};white-space:pre}}.m{{font-family:{MONO}}}.b{{font-weight:600}}"
        f"{light}@media (prefers-color-scheme:dark){{{dark}}}"
    )
