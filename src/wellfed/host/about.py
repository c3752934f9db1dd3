"""What does a recording say of itself in ``.wellfed/capture.json``?"""

from __future__ import annotations

import json

from wellfed.model.errors import RecordingError
from wellfed.model.tree import Unreadable
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from wellfed.model.tree import Reading

    T = TypeVar("T")

SCHEMA = "wellfed/capture/1"

PLACE = "/.wellfed/capture.json"
"""Where a recording says these things of itself."""

NVML = "nvml"
"""The question whose answer is a file of its own."""


class About(Value):
    """What stands beside the files of a recording."""

    errnos: Mapping[str, str] = {}
    answers: Mapping[str, Reading] = {}
    second: Mapping[str, bytes] = {}
    directories: Mapping[str, tuple[str, ...]] | None = None
    """Names in each directory that was listed; None where the recording holds all there was."""
    interval_seconds: float | None = None
    assembled: bool = False
    wellfed: str = ""
    """Version that recorded it."""
    captured_at: str = ""
    """UTC, ISO 8601."""
    kernel: str = ""


def format_about(about: About) -> str:
    """Write ``capture.json``: sorted, and in ASCII, so that names of any bytes survive."""
    answers = {
        question: answer if isinstance(answer, str) else {"errno": answer.errno_name}
        for question, answer in about.answers.items()
        if question != NVML or not isinstance(answer, str)
    }
    second = {path: text.decode("utf-8", "surrogateescape") for path, text in about.second.items()}
    said: dict[str, object] = {
        "schema": SCHEMA,
        "wellfed": about.wellfed,
        "assembled": about.assembled,
        "captured_at": about.captured_at,
        "kernel": about.kernel,
        "interval_seconds": about.interval_seconds,
        "errnos": dict(sorted(about.errnos.items())),
        "answers": dict(sorted(answers.items())),
        "second": dict(sorted(second.items())),
    }
    if about.directories is not None:
        said["directories"] = {
            path: list(names) for path, names in sorted(about.directories.items())
        }
    return json.dumps(said, indent=1)


def parse_about(text: str, recording: str) -> About:
    """Read ``capture.json``; RecordingError where it is damaged or of another time."""
    try:
        said = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise _damaged(recording, "is no JSON document") from None
    if not isinstance(said, dict):
        raise _damaged(recording, "is no JSON object")
    if said.get("schema") != SCHEMA:
        raise RecordingError(
            f"{recording} follows the schema {said.get('schema')!r:.40}, this wellfed reads {SCHEMA!r}",
            remedy="pip install --upgrade wellfed, or record the host again with this one",
        )
    try:
        return _about(said)
    except (ValueError, TypeError) as wrong:
        raise _damaged(recording, f"is not well formed: {wrong}") from None


def _about(said: dict[str, object]) -> About:
    interval = said.get("interval_seconds")
    if interval is not None:
        interval = _number(interval)
    directories = said.get("directories")
    return About(
        errnos=_table(said, "errnos", str, _errno, paths=True),
        answers=_table(said, "answers", (str, dict), _reading, paths=False),
        second=_table(said, "second", str, _bytes, paths=True),
        directories=None
        if directories is None
        else _table(said, "directories", list, _names, paths=True),
        interval_seconds=interval,
        assembled=said.get("assembled") is True,
        wellfed=str(said.get("wellfed", "")),
        captured_at=str(said.get("captured_at", "")),
        kernel=str(said.get("kernel", "")),
    )


def _table(
    said: dict[str, object],
    key: str,
    wanted: type | tuple[type, ...],
    read: Callable[[object], T],
    *,
    paths: bool,
) -> dict[str, T]:
    """Return one object of the document, each of its values read; paths must be absolute and plain."""
    table = said.get(key, {})
    if not isinstance(table, dict):
        raise TypeError(f"{key!r} is no object")
    made: dict[str, T] = {}
    for name, value in table.items():
        if not isinstance(value, wanted):
            raise TypeError(f"{key!r} has a strange value for {name!r:.80}")
        if paths and not _is_plain(name):
            raise ValueError(f"{key!r} names {name!r:.80}, which is no plain absolute path")
        made[name] = read(value)
    return made


def _is_plain(path: str) -> bool:
    steps = path.split("/")[1:]
    return path == "/" or (
        path.startswith("/") and not {"", ".", ".."} & set(steps) and "\0" not in path
    )


def _number(said: object) -> float:
    if isinstance(said, bool) or not isinstance(said, (int, float)) or not 0 <= said < 1e9:
        raise ValueError("'interval_seconds' is no number of seconds")
    return float(said)


def _errno(said: object) -> str:
    name = str(said)
    kernel_name = name[:1] == "E" and name.isascii() and name.isalnum() and name.isupper()
    if not kernel_name and not name.startswith("errno "):
        raise ValueError(f"{name!r:.40} is no errno")
    return name


def _reading(said: object) -> Reading:
    if isinstance(said, dict):
        return Unreadable(_errno(said.get("errno")))
    return str(said).encode("utf-8", "replace").decode()


def _bytes(said: object) -> bytes:
    return str(said).encode("utf-8", "surrogateescape")


def _names(said: object) -> tuple[str, ...]:
    assert isinstance(said, list)
    if not all(
        isinstance(name, str) and name not in ("", ".", "..") and "/" not in name for name in said
    ):
        raise ValueError("'directories' has a strange name")
    return tuple(said)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _damaged(recording: str, what: str) -> RecordingError:
    return RecordingError(
        f"{PLACE[1:]} of {recording} {what}",
        remedy="record the host again with `wellfed capture host.tar.xz`",
    )
