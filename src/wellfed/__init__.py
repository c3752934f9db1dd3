"""Keep GPUs fed: names only, each loaded when it is first used."""

from __future__ import annotations

__version__ = "0.1.0"
