"""How is a tree written as a directory, and as every kind of archive, by other people's tools?"""

from __future__ import annotations

import io
import pathlib
import tarfile

import zstandard
from hypothesis import strategies as st

from wellfed.host.recorded_tree import RecordedTree

FORMATS = ("tar.gz", "tar.bz2", "tar.xz", "tar.zst", "tar")

NAMES = st.text("abc", min_size=1, max_size=2)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda steps: "/proc/" + "/".join(steps))
TARGETS = st.one_of(
    PATHS,
    st.lists(st.sampled_from(["a", "b", "ab", ".."]), min_size=1, max_size=3).map("/".join),
)


@st.composite
def small_trees(draw):
    """Give a host of a few files, links and empty directories that do not contradict each other."""
    files, links, directories = {}, {}, {"/proc": ()}
    taken: set[str] = set()

    def free(path: str) -> bool:
        above = {"/".join(path.split("/")[:depth]) for depth in range(2, path.count("/") + 1)}
        leaves = {*files, *links}
        return path not in taken and not above & leaves

    for path in draw(st.lists(PATHS, max_size=8)):
        if not free(path):
            continue
        kind = draw(st.sampled_from(("file", "link", "directory")))
        if kind == "file":
            files[path] = draw(st.binary(max_size=20))
        elif kind == "link":
            target = draw(TARGETS)
            if target.startswith("/") or target.count("..") < path.count("/"):
                links[path] = target
        else:
            directories[path] = ()
        steps = path.split("/")
        taken |= {"/".join(steps[:depth]) for depth in range(2, len(steps) + 1)}
    return RecordedTree("small", files, links=links, directories=directories)


def write_folder(place, tree: RecordedTree) -> None:
    """Write a tree below a directory."""
    root = pathlib.Path(place)
    for path in sorted(tree.directories):
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path, content in tree.files.items():
        (root / path.lstrip("/")).write_bytes(content)
    for path, target in tree.links.items():
        (root / path.lstrip("/")).symlink_to(target)


def plain_tar(members, *, form=tarfile.PAX_FORMAT) -> bytes:
    """Give a tar of (TarInfo, content) as Python writes it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def member(name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, target: str = ""):
    """Give one member."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, content


def members_of(tree: RecordedTree, top: str = "host"):
    """Give the members of a tree, its directories first."""
    made = [member(top + path, kind=tarfile.DIRTYPE) for path in sorted(tree.directories)]
    made += [member(top + path, content) for path, content in tree.files.items()]
    made += [member(top + path, kind=tarfile.SYMTYPE, target=to) for path, to in tree.links.items()]
    return made


def compress(content: bytes, kind: str) -> bytes:
    """Compress as the suffix says, with the tools of the standard library and python-zstandard."""
    import bz2
    import gzip
    import lzma

    packers = {
        "tar.gz": gzip.compress,
        "tar.bz2": bz2.compress,
        "tar.xz": lzma.compress,
        "tar.zst": zstandard.ZstdCompressor(write_checksum=True).compress,
        "tar": bytes,
    }
    return packers[kind](content)


def write_archive(path, tree: RecordedTree) -> str:
    """Write a tree as an archive whose compression its suffix names, and give its path."""
    kind = path.name.partition(".")[2]
    path.write_bytes(compress(plain_tar(members_of(tree)), kind))
    return str(path)
