"""What stands where in a recorded host, and how do its parts become one tree?"""

from __future__ import annotations

from wellfed.host.about import parse_about
from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.errors import RecordingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from wellfed.host.about import About
    from wellfed.model.tree import Reading

OWN = ".wellfed"
NVML_PLACE = "/.wellfed/nvml.txt"
"""NVML's answers, one call a line: the answer to the question ``nvml``."""

OF_A_HOST = frozenset(("proc", "sys", OWN))
"""What stands at the top of a recorded host."""

WANTED = "wanted a folder or a .tar.{gz,bz2,xz,zst} that holds proc and sys"


def recorded(
    name: str,
    about: About | None,
    answers: Mapping[str, Reading],
    *,
    files: Mapping[str, bytes],
    links: Mapping[str, str],
    errnos: Mapping[str, str],
    directories: Mapping[str, Collection[str]],
) -> RecordedTree:
    """Join what a recording holds and what it says of itself."""
    if about is None:
        return RecordedTree(
            name, files, links=links, errnos=errnos, directories=directories, answers=answers
        )
    return RecordedTree(
        name,
        files,
        links=links,
        errnos={**about.errnos, **errnos},
        directories=directories if about.directories is None else about.directories,
        answers=answers,
        second=about.second,
        interval_seconds=about.interval_seconds,
        assembled=about.assembled,
        complete=about.directories is None,
    )


def read_about(
    name: str, capture: bytes | None, nvml: bytes | None
) -> tuple[About | None, dict[str, Reading]]:
    """Read what a recording says of itself, and its answers; a plain dump of /proc and /sys says nothing."""
    about, answers = None, {}
    if capture is not None:
        about = parse_about(capture.decode("utf-8", "replace"), name)
        answers = dict(about.answers)
    if nvml is not None:
        answers["nvml"] = nvml.decode("utf-8", "replace")
    return about, answers


def top_of(name: str, tops: Mapping[str, Collection[str]]) -> str:
    """Return the component under which the host's root is, ``""`` for none. ``tops``: names under each top name."""
    if OF_A_HOST & tops.keys():
        return ""
    hosts = [top for top, names in tops.items() if OF_A_HOST & set(names)]
    if len(hosts) == 1:
        return hosts[0]
    if hosts:
        shown = ", ".join(sorted(hosts)[:3])
        raise RecordingError(
            f"{name} holds {len(hosts)} hosts: {shown} …", remedy="choose one, and give that"
        )
    raise RecordingError(
        f"{name} holds no proc and no sys, so it is no recorded host; {WANTED}",
        remedy="give what `wellfed capture host.tar.xz` wrote, or a copy of /proc and /sys",
    )
