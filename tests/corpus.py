"""Which recorded hosts are there? For parametrised tests, at collection time."""

from __future__ import annotations

import os
import pathlib

import pytest

ROOT = pathlib.Path(os.environ["WELLFED_CORPUS"]) if os.environ.get("WELLFED_CORPUS") else None
REASON = "WELLFED_CORPUS is not set: it names the folder of recorded hosts"


def cases(pattern: str) -> list[object]:
    """Give a parameter for each recording that matches, or one that is skipped with the reason."""
    if ROOT is None:
        return [pytest.param(None, marks=[pytest.mark.corpus, pytest.mark.skip(reason=REASON)])]
    found = sorted(ROOT.glob(pattern))
    if not found:
        raise FileNotFoundError(
            f"{ROOT / pattern} matches nothing: WELLFED_CORPUS names another folder"
        )
    return [pytest.param(path, id=path.name, marks=pytest.mark.corpus) for path in found]
