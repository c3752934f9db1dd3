"""``python -m wellfed`` is ``wellfed``."""

from __future__ import annotations

import sys

from wellfed.cli import main

if __name__ == "__main__":
    sys.exit(main())
