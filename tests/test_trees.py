"""Do a live host, a directory, an archive and a tree in memory give the same answers?"""

from __future__ import annotations

import os
import pathlib
import stat
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packing import FORMATS, small_trees, write_archive, write_folder
from wellfed.host.archive import open_recording
from wellfed.host.folder import open_folder
from wellfed.host.live_tree import READ_LIMIT_BYTES, LiveTree
from wellfed.host.recorded_tree import RecordedTree
from wellfed.model.tree import Unreadable


@pytest.fixture
def live_root(tmp_path):
    """Give a folder with a file, a link, a loop and an empty directory."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "text").write_bytes(b"a\0b \n\n")
    (tmp_path / "proc" / "odd").write_bytes(b"odd\xe9\n")
    (tmp_path / "proc" / "empty").mkdir()
    (tmp_path / "link").symlink_to("proc/text")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


def test_live_read_strips_nul_and_trailing_space(live_root):
    """What a text cannot hold is dropped, what it ends with does not count."""
    assert LiveTree().read(f"{live_root}/proc/text") == "ab"


def test_live_read_bytes_keeps_every_byte(live_root):
    """Bytes are given as they stand."""
    assert LiveTree().read_bytes(f"{live_root}/proc/text") == b"a\0b \n\n"


def test_live_read_marks_undecodable_bytes(live_root):
    """A byte that is no UTF-8 becomes U+FFFD, never an exception."""
    assert LiveTree().read(f"{live_root}/proc/odd") == "odd\ufffd"


@pytest.mark.parametrize(
    ("ask", "path", "errno_name"),
    [
        ("read", "nothing", "ENOENT"),
        ("read", "proc", "EISDIR"),
        ("read", "proc/text/below", "ENOTDIR"),
        ("read", "loop", "ELOOP"),
        ("list", "nothing", "ENOENT"),
        ("list", "proc/text", "ENOTDIR"),
        ("link", "nothing", "ENOENT"),
        ("link", "loop", "ELOOP"),
        ("read", "nul\0inside", "ENOENT"),
        ("list", "nul\0inside", "ENOENT"),
        ("link", "nul\0inside", "ENOENT"),
    ],
)
def test_live_refusals_are_errnos(live_root, ask, path, errno_name):
    """What cannot be read is the kernel's own word."""
    assert getattr(LiveTree(), ask)(f"{live_root}/{path}") == Unreadable(errno_name)


def test_live_link_is_where_the_path_really_is(live_root):
    """A link leads to its target, anything else to itself."""
    tree = LiveTree()

    assert tree.link(f"{live_root}/link") == os.path.realpath(live_root / "proc/text")
    assert tree.link(f"{live_root}/proc") == os.path.realpath(live_root / "proc")


def test_live_endless_file_is_too_big():
    """A file without an end is refused, neither cut nor read for ever."""
    assert LiveTree().read_bytes("/dev/zero") == Unreadable("EFBIG")


def test_live_file_at_the_limit_is_whole(tmp_path):
    """The limit refuses what is larger, not what is as large."""
    (tmp_path / "large").write_bytes(b"x" * READ_LIMIT_BYTES)
    (tmp_path / "larger").write_bytes(b"x" * (READ_LIMIT_BYTES + 1))

    assert len(LiveTree().read_bytes(f"{tmp_path}/large")) == READ_LIMIT_BYTES
    assert LiveTree().read_bytes(f"{tmp_path}/larger") == Unreadable("EFBIG")


def test_live_fifo_does_not_wait(tmp_path):
    """A FIFO that nobody writes to is empty, and does not hold us up."""
    os.mkfifo(tmp_path / "fifo")

    assert LiveTree().read_bytes(f"{tmp_path}/fifo") == b""


def test_recorded_link_loop_ends():
    """A loop is ELOOP, as on a live host."""
    tree = RecordedTree("host", {}, links={"/sys/a": "b", "/sys/b": "a"})

    assert tree.read("/sys/a") == Unreadable("ELOOP")


def test_recorded_link_never_leads_out():
    """A link that climbs above the root ends there."""
    tree = RecordedTree("host", {"/etc/passwd": b"inside"}, links={"/sys/a": "../../../etc/passwd"})

    assert tree.read("/sys/a") == Unreadable("EXDEV")


def test_recorded_absolute_link_begins_at_the_recorded_root():
    """An absolute target lies in the recording: /proc/device-tree is such a link."""
    tree = RecordedTree("host", {"/sys/model": b"x"}, links={"/proc/device-tree": "/sys/model"})

    assert tree.read("/proc/device-tree") == "x"
    assert tree.link("/proc/device-tree") == "/sys/model"


def test_recorded_errno_stands_for_itself():
    """An errno is recorded as faithfully as a value, and its place is known to exist."""
    tree = RecordedTree("host", {}, errnos={"/proc/iomem": "EACCES", "/proc/gone": "ENOENT"})

    assert tree.read("/proc/iomem") == Unreadable("EACCES")
    assert tree.link("/proc/iomem") == "/proc/iomem"
    assert tree.list("/proc") == ("iomem",)
    assert tree.read("/proc/gone") == Unreadable("ENOENT")


@pytest.fixture
def partial():
    """Give a recording of what was asked: one file, one absence, one listing."""
    return RecordedTree(
        "host",
        {"/proc/stat": b"cpu"},
        errnos={"/sys/class/kfd/kfd/topology": "ENOENT"},
        directories={"/sys/class/net": ("eth0", "lo")},
        complete=False,
    )


@pytest.mark.parametrize(
    ("ask", "path", "said"),
    [
        ("read", "/proc/stat", "cpu"),
        ("read", "/proc/meminfo", Unreadable("ENODATA")),
        ("read", "/sys/class/kfd/kfd/topology", Unreadable("ENOENT")),
        ("read", "/sys/class/kfd/kfd", Unreadable("ENODATA")),
        ("list", "/sys/class/net", ("eth0", "lo")),
        ("list", "/sys/class", Unreadable("ENODATA")),
        ("list", "/proc", Unreadable("ENODATA")),
        ("list", "/proc/stat", Unreadable("ENOTDIR")),
        ("read", "/sys/class/net/eth0/mtu", Unreadable("ENODATA")),
        ("read", "/sys/class/net/eth1/mtu", Unreadable("ENOENT")),
        ("link", "/sys/class/net/eth0", Unreadable("ENODATA")),
        ("link", "/sys/class/net/eth1", Unreadable("ENOENT")),
    ],
)
def test_partial_recording_tells_absent_from_not_asked(partial, ask, path, said):
    """Only what was looked for and missing is ENOENT; what nobody looked for is ENODATA."""
    assert getattr(partial, ask)(path) == said


@pytest.mark.parametrize("path", ["/proc/stat/", "/proc/stat/.", "/proc/stat/x", "/proc/stat/.."])
def test_file_is_no_directory(path, tmp_path):
    """What goes through a file is ENOTDIR on every kind of tree."""
    memory = RecordedTree("host", {"/proc/stat": b"cpu"})
    write_folder(tmp_path, memory)

    assert memory.read(path) == Unreadable("ENOTDIR")
    assert open_recording(str(tmp_path)).read(path) == Unreadable("ENOTDIR")
    assert LiveTree().read(f"{tmp_path}{path}") == Unreadable("ENOTDIR")


@settings(deadline=None, max_examples=60)
@given(tree=small_trees(), paths=st.lists(st.text("abc/.", max_size=12), max_size=5))
def test_every_kind_of_recording_reads_the_same(tree, paths, tmp_path_factory):
    """A directory and each archive format give the values and errnos of the tree they were written from."""
    place = tmp_path_factory.mktemp("host")
    write_folder(place / "folder", tree)
    opened = [open_recording(str(place / "folder"))]
    opened += [open_recording(write_archive(place / f"host.{kind}", tree)) for kind in FORMATS]

    known = {*tree.files, *tree.links, *tree.directories, *("/proc/" + path for path in paths)}
    for path in known | {path + "/x" for path in known} | {path + "/.." for path in known}:
        for other in opened:
            assert other.read_bytes(path) == tree.read_bytes(path), (path, other.name)
            assert other.read(path) == tree.read(path), (path, other.name)
            assert other.list(path) == tree.list(path), (path, other.name)
            assert other.link(path) == tree.link(path), (path, other.name)


@settings(deadline=None, max_examples=60)
@given(tree=small_trees())
def test_directory_reads_as_the_kernel_reads_it(tree, tmp_path_factory):
    """Following links and errnos of a recording are the kernel's own, below the same root."""
    root = os.path.realpath(tmp_path_factory.mktemp("live"))
    inside = {path: target for path, target in tree.links.items() if not target.startswith("/")}
    empty = dict.fromkeys(tree.directories, ())
    tree = RecordedTree("host", tree.files, links=inside, directories=empty)
    write_folder(root, tree)

    for path in (*tree.files, *tree.links, *tree.directories):
        assert LiveTree().read_bytes(root + path) == tree.read_bytes(path)
        assert LiveTree().list(root + path) == tree.list(path)
        real = LiveTree().link(root + path)
        assert (real[len(root) :] or "/" if isinstance(real, str) else real) == tree.link(path)


def test_folder_never_opens_a_special_file(tmp_path):
    """A FIFO and a device node have a name and no content."""
    (tmp_path / "proc").mkdir()
    os.mkfifo(tmp_path / "proc" / "fifo")
    tree = open_recording(str(tmp_path))

    assert tree.read("/proc/fifo") == Unreadable("ENODATA")
    assert tree.list("/proc") == ("fifo",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_folder_never_opens_a_device(tmp_path):
    """A device node in a recording is not the device."""
    (tmp_path / "proc").mkdir()
    try:
        os.mknod(tmp_path / "proc" / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this container may not make device nodes")

    assert open_recording(str(tmp_path)).read_bytes("/proc/zero") == Unreadable("ENODATA")


def test_folder_link_never_leads_out(tmp_path):
    """Neither an absolute nor a climbing link shows a file of this machine."""
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "host" / "proc").mkdir(parents=True)
    (tmp_path / "host" / "proc" / "up").symlink_to("../../secret")
    (tmp_path / "host" / "proc" / "absolute").symlink_to(tmp_path / "secret")
    tree = open_recording(str(tmp_path / "host"))

    assert tree.read("/proc/up") == Unreadable("EXDEV")
    assert tree.read("/proc/absolute") == Unreadable("ENOENT")


def test_folder_file_that_may_not_be_read_is_an_errno():
    """EACCES on a file of a recording is what its reader is told."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        root.chmod(0o755)
        (root / "proc").mkdir()
        (root / "proc" / "secret").write_text("x")
        (root / "proc" / "secret").chmod(0)

        said = as_nobody(lambda: open_folder(folder).read("/proc/secret"))

    assert said == "permission denied"


def test_folder_file_past_the_limit_is_too_big(tmp_path):
    """A file is bounded by what stands in it, not by what it claims."""
    (tmp_path / "sys").mkdir()
    with open(tmp_path / "sys" / "large", "wb") as file:
        file.truncate(READ_LIMIT_BYTES + 1)

    assert open_recording(str(tmp_path)).read_bytes("/sys/large") == Unreadable("EFBIG")


def as_nobody(ask):
    """Ask as a user without rights, in a child where we are root."""
    if os.geteuid() != 0:
        return str(ask())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writing, str(ask()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said
