"""Does every archive open as the host it holds, or say in one sentence why not?"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import subprocess
import sys
import tarfile
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus import cases
from tests.packing import FORMATS, compress, member, plain_tar, small_trees, write_archive
from wellfed.host import compression, layout, tar
from wellfed.host.archive import is_recording, open_recording
from wellfed.model.errors import RecordingError
from wellfed.model.tree import Unreadable

STAT = member("host/proc/stat", b"cpu\n")


def opened(path, members, kind="tar.gz", form=tarfile.PAX_FORMAT):
    """Write an archive of these members and open it."""
    return opened_bytes(path, compress(plain_tar(members, form=form), kind))


def opened_bytes(path, content):
    """Write these bytes and open them."""
    file = path / "host.archive"
    file.write_bytes(content)
    return open_recording(str(file))


def refusal(path, members, **more):
    """Give the sentence with which an archive of these members is refused."""
    with pytest.raises(RecordingError) as caught:
        opened(path, members, **more)
    return said(caught)


def said(caught):
    """Give the message of a refusal, which has a remedy and fits on a line."""
    assert caught.value.remedy
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400
    return caught.value.message


@pytest.mark.parametrize("kind", FORMATS)
def test_compression_is_recognised_by_content(tmp_path, kind):
    """A name without a suffix opens all the same."""
    assert opened(tmp_path, [STAT], kind).read("/proc/stat") == "cpu"


@pytest.mark.parametrize("prefix", ["", "./", "host/", "./host/", "any name/"])
def test_leading_component_is_dropped_unless_the_host_is_at_the_top(tmp_path, prefix):
    """``proc`` at the top stays, one folder around it goes."""
    tree = opened(tmp_path, [member(prefix + "proc/stat", b"x"), member(prefix + "sys/a", b"y")])

    assert tree.list("/") == ("proc", "sys")
    assert tree.read("/sys/a") == "y"


def test_other_things_at_the_top_do_not_matter(tmp_path):
    """What a file manager leaves beside the host is not the host."""
    tree = opened(tmp_path, [STAT, member("._host", b"junk"), member("README", b"text")])

    assert tree.list("/") == ("proc",)


def test_two_hosts_are_one_too_many(tmp_path):
    """Which of two hosts is meant is not guessed."""
    message = refusal(tmp_path, [member("a/proc/stat"), member("b/sys/x")])

    assert "2 hosts: a, b" in message


def test_nul_bytes_leave_read_and_stay_in_read_bytes(tmp_path):
    """Dumped sysfs values carry NUL bytes."""
    tree = opened(tmp_path, [member("sys/a", b"0-3\n\0\0\0")])

    assert tree.read("/sys/a") == "0-3"
    assert tree.read_bytes("/sys/a") == b"0-3\n\0\0\0"


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_targets(tmp_path, form):
    """ustar's prefix, GNU's long names and pax headers give the same paths."""
    deep = "/".join(["d" * 30] * (7 if form == tarfile.USTAR_FORMAT else 20))
    target = "x" * (90 if form == tarfile.USTAR_FORMAT else 300)
    members = [
        member(f"sys/{deep}/file", b"y"),
        member("sys/l", kind=tarfile.SYMTYPE, target=target),
    ]
    tree = opened(tmp_path, members, form=form)

    assert tree.read(f"/sys/{deep}/file") == "y"
    assert tree.links["/sys/l"] == target


def test_empty_directories_are_remembered(tmp_path):
    """A directory without files is there, and empty."""
    tree = opened(tmp_path, [STAT, member("host/sys/class/net", kind=tarfile.DIRTYPE)])

    assert tree.list("/sys/class/net") == ()
    assert tree.list("/sys/class/nvme") == Unreadable("ENOENT")


def test_hard_and_symbolic_links(tmp_path):
    """Links inside the archive lead where they led on the host."""
    tree = opened(
        tmp_path,
        [
            STAT,
            member("host/proc/hard", kind=tarfile.LNKTYPE, target="host/proc/stat"),
            member("host/proc/harder", kind=tarfile.LNKTYPE, target="host/proc/hard"),
            member("host/sys/soft", kind=tarfile.SYMTYPE, target="../proc/hard"),
        ],
    )

    assert tree.read("/proc/harder") == "cpu"
    assert tree.read("/sys/soft") == "cpu"
    assert tree.link("/sys/soft") == "/proc/hard"


def test_device_nodes_have_nothing_to_read(tmp_path):
    """A device node or FIFO in an archive is a name."""
    kinds = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    tree = opened(tmp_path, [STAT, *(member(f"host/proc/d{kind[0]}", kind=kind) for kind in kinds)])

    assert tree.list("/proc") == ("d51", "d52", "d54", "stat")
    assert tree.read("/proc/d51") == Unreadable("ENODATA")


def test_names_of_any_bytes(tmp_path):
    """A name that is no UTF-8 is kept as Python keeps file names."""
    tree = opened(tmp_path, [member("sys/odd\udce9", b"x")])

    assert tree.list("/sys") == ("odd\udce9",)
    assert tree.read("/sys/odd\udce9") == "x"


def test_same_member_twice_is_harmless(tmp_path):
    """What is said twice alike is said."""
    assert opened(tmp_path, [STAT, STAT]).read("/proc/stat") == "cpu"


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (member("host/proc/stat", b"other"), "twice"),
        (member("host/proc/stat", kind=tarfile.SYMTYPE, target="x"), "twice"),
        (member("host/proc/stat", kind=tarfile.DIRTYPE), "something else"),
        (member("host/proc/stat/below", b"x"), "something else"),
        (member("host/proc", b"x"), "twice"),
        (member("host/proc", kind=tarfile.SYMTYPE, target="/etc"), "twice"),
    ],
)
def test_contradicting_members_are_refused(tmp_path, second, words):
    """Two things of one name: which is meant is not guessed."""
    assert words in refusal(tmp_path, [STAT, second])


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../proc/stat", tarfile.REGTYPE, ""),
        ("host/../../proc/stat", tarfile.REGTYPE, ""),
        ("/proc/stat", tarfile.REGTYPE, ""),
        ("host/proc/out", tarfile.SYMTYPE, "../../../etc/passwd"),
        ("host/proc/out", tarfile.SYMTYPE, "../../etc/passwd"),
        ("host/proc/out", tarfile.LNKTYPE, "../etc/passwd"),
        ("host/proc/out", tarfile.LNKTYPE, "/etc/passwd"),
    ],
)
def test_what_leads_out_is_refused(tmp_path, name, kind, target):
    """Neither a member nor a link leaves the archive."""
    message = refusal(tmp_path, [STAT, member(name, kind=kind, target=target)])

    assert "leads out of it" in message


def test_absolute_link_shows_nothing_of_this_machine(tmp_path):
    """An absolute target begins at the recorded root."""
    tree = opened(
        tmp_path, [STAT, member("host/proc/p", kind=tarfile.SYMTYPE, target="/etc/passwd")]
    )

    assert tree.read("/proc/p") == Unreadable("ENOENT")


def test_link_loops_end(tmp_path):
    """Symbolic loops are ELOOP, hard ones are damage."""
    tree = opened(
        tmp_path,
        [
            STAT,
            member("host/proc/a", kind=tarfile.SYMTYPE, target="b"),
            member("host/proc/b", kind=tarfile.SYMTYPE, target="a"),
        ],
    )
    assert tree.read("/proc/a") == Unreadable("ELOOP")

    message = refusal(
        tmp_path,
        [
            STAT,
            member("host/proc/a", kind=tarfile.LNKTYPE, target="host/proc/b"),
            member("host/proc/b", kind=tarfile.LNKTYPE, target="host/proc/a"),
        ],
    )
    assert "hard link to nothing" in message


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("kept", [0.05, 0.3, 0.6])
def test_truncated_archives_are_refused(tmp_path, kind, kept):
    """A download that broke off is not half a host."""
    rng = random.Random(1)
    content = compress(plain_tar([member("sys/a", rng.randbytes(20000)), STAT]), kind)

    with pytest.raises(RecordingError) as caught:
        opened_bytes(tmp_path, content[: int(len(content) * kept)])

    assert "not all there" in said(caught)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_last_byte_counts(tmp_path, kind):
    """An archive without its last byte is refused, but for the padding of a plain tar."""
    content = compress(plain_tar([STAT]), kind)
    content = content[:-1] if kind != "tar" else content[:1024]

    with pytest.raises(RecordingError):
        opened_bytes(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (
            b"no archive at all, but a text of more than five hundred bytes " * 20,
            "is no tar archive",
        ),
        (bytes(10240), "no proc and no sys"),
        (gzip.compress(b""), "not all there"),
        (gzip.compress(b"hello"), "not all there"),
        (b"\x1f\x8b" + b"junk" * 300, "damaged"),
        (b"BZh9" + b"junk" * 300, "damaged"),
        (b"\xfd7zXZ\0" + b"junk" * 300, "damaged"),
        (b"\x28\xb5\x2f\xfd" + b"junk" * 300, "damaged"),
        (b"PK\x03\x04" + b"zip" * 300, "is no tar archive"),
    ],
)
def test_what_is_no_archive_says_so(tmp_path, content, words):
    """Random bytes, empty files and archives of other kinds get a sentence."""
    with pytest.raises(RecordingError) as caught:
        opened_bytes(tmp_path, content)

    assert words in said(caught)


def test_random_bytes_are_refused(tmp_path):
    """Whatever comes, it is a refusal or a host."""
    rng = random.Random(2)
    magics = (b"", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")
    for _ in range(200):
        with pytest.raises(RecordingError):
            opened_bytes(tmp_path, rng.choice(magics) + rng.randbytes(rng.randrange(2000)))


@pytest.mark.parametrize(
    "members",
    [
        [member("host/etc/passwd", b"x")],
        [member("proctor/stat", b"x")],
        [member("a/b/proc/stat", b"x")],
    ],
)
def test_what_holds_no_host_says_so(tmp_path, members):
    """An archive of something else is no host without CPUs."""
    assert "no proc and no sys" in refusal(tmp_path, members)


def test_paths_that_are_no_recording(tmp_path):
    """A missing file, a directory of something else and a device get a sentence each."""
    (tmp_path / "empty").mkdir()
    for path, words in (
        (str(tmp_path / "nothing"), "not there"),
        (str(tmp_path / "empty"), "no proc and no sys"),
        ("/dev/null", "neither a directory nor a regular file"),
        ("a\0b", "is no path"),
    ):
        with pytest.raises(RecordingError) as caught:
            open_recording(path)
        assert words in said(caught)


def test_directory_inside_a_directory(tmp_path):
    """A folder around the host is dropped for directories too, two hosts are refused."""
    (tmp_path / "one" / "proc").mkdir(parents=True)
    (tmp_path / "one" / "proc" / "stat").write_text("cpu")
    assert open_recording(str(tmp_path)).read("/proc/stat") == "cpu"

    (tmp_path / "two" / "sys").mkdir(parents=True)
    with pytest.raises(RecordingError, match="2 hosts"):
        open_recording(str(tmp_path))


PACKERS = {
    "gz": lambda: zlib.compressobj(1, zlib.DEFLATED, 31),
    "xz": lambda: lzma.LZMACompressor(preset=0),
    "zst": lambda: zstandard.ZstdCompressor(level=1).compressobj(),
}


def opened_with_little_memory(path):
    """Open an archive in a process of 700 MiB, and give what it says."""
    code = (
        "import resource, sys\n"
        "from wellfed.host.archive import open_recording\n"
        "from wellfed.model.errors import RecordingError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))\n"
        "try: open_recording(sys.argv[1]); print('opened')\n"
        "except RecordingError as refusal: print(refusal.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("kind", PACKERS)
def test_bomb_is_noticed_before_memory_is_filled(tmp_path, kind):
    """Hundreds of megabytes of files in an archive of one stop at the limit, not at the end of memory."""
    file = tmp_path / "bomb"
    pack = PACKERS[kind]()
    parts = []
    for number in range(20):
        header = claiming(b"%011o\0" % (15 << 20), f"host/proc/{number}")
        parts += [pack.compress(header), *(pack.compress(bytes(1 << 20)) for _ in range(15))]
    file.write_bytes(b"".join(parts) + pack.flush())

    assert file.stat().st_size < 8 << 20
    assert "holds more than 256 MiB of files" in opened_with_little_memory(file)


def claiming(size_field, name="host/proc/a"):
    """Give the header of a member that claims a size."""
    header = plain_tar([member(name)])[:512]
    header = header[:124] + size_field + header[136:148] + b" " * 8 + header[156:]
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


@pytest.mark.parametrize(
    "size_field",
    [
        b"77777777777\0",
        b"\x80" + (1 << 60).to_bytes(11, "big"),
        b"\xff" * 12,
        b"-0000000001\0",
        b"no number!\0\0",
    ],
)
def test_lying_headers_are_refused_at_once(tmp_path, size_field):
    """A header that claims eight gigabytes is refused before one is unpacked."""
    with pytest.raises(RecordingError):
        opened_bytes(tmp_path, gzip.compress(claiming(size_field)) + gzip.compress(bytes(1 << 20)))


def test_large_file_is_not_kept(tmp_path):
    """A file past the limit is EFBIG, and the rest of the host is there."""
    tree = opened(tmp_path, [member("host/proc/kcore", bytes(tar.MAX_FILE_BYTES + 1)), STAT])

    assert tree.read("/proc/kcore") == Unreadable("EFBIG")
    assert tree.read("/proc/stat") == "cpu"


def test_stream_longer_than_a_host_is_refused(tmp_path, monkeypatch):
    """The whole archive is bounded, also where nothing of it is kept."""
    monkeypatch.setattr(tar, "MAX_STREAM_BYTES", 1 << 20)
    content = plain_tar([STAT]) + bytes(2 << 20)

    with pytest.raises(RecordingError, match="unpacks to more than"):
        opened_bytes(tmp_path, gzip.compress(content))


def test_members_without_end_are_refused(tmp_path, monkeypatch):
    """The number of members is bounded."""
    monkeypatch.setattr(tar, "MAX_MEMBERS", 100)

    assert "more than 100 members" in refusal(
        tmp_path, [member(f"host/proc/{i}") for i in range(101)]
    )


def test_deep_names_do_not_fill_memory(tmp_path, monkeypatch):
    """A thousand directories in each of a few names count as what they take."""
    monkeypatch.setattr(tar, "MAX_ALL_NAMES_BYTES", 1 << 20)
    members = [member(f"host/proc/{i}/" + "a/" * 1500 + "x") for i in range(10)]

    assert "very long names" in refusal(tmp_path, members)


def test_links_do_not_fill_memory(tmp_path, monkeypatch):
    """What a link says counts like a name."""
    monkeypatch.setattr(tar, "MAX_ALL_NAMES_BYTES", 1 << 16)
    links = [member(f"host/proc/{i}", kind=tarfile.SYMTYPE, target="a/" * 2000) for i in range(20)]

    assert "very long names" in refusal(tmp_path, links)


def test_extended_headers_without_end_are_refused(tmp_path, monkeypatch):
    """Records of extended headers are counted, whether anybody needs them or not."""
    monkeypatch.setattr(tar, "MAX_RECORDS", 1000)
    with pytest.raises(RecordingError, match="more than 1000 records"):
        opened_bytes(tmp_path, gzip.compress(pax_headed(b"5 a=\n" * 1001)))


def test_names_longer_than_a_path_are_refused(tmp_path):
    """No path of Linux has more than 4096 bytes."""
    assert "proper name" in refusal(tmp_path, [member("host/proc/" + "a" * 5000)])


def pax_headed(records, kind=b"x"):
    """Give a member whose pax header holds these bytes."""
    info = tarfile.TarInfo("pax")
    info.type, info.size = kind, len(records)
    return (
        info.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512) + plain_tar([STAT])
    )


@pytest.mark.parametrize(
    "records",
    [
        b"30 path=short\n",
        b"x path=host/proc/a\n",
        b"0 path=a\n",
        b"99999999999999999999 path=a\n",
        b"22 path=host/../../etc\n\n",
        b"16 size=nothing\n",
        b"13 size=-100\n",
        b"28 GNU.sparse.size=99999999\n",
        b"20 path=host/p\0oc/a\n",
        b"a" * (tar.MAX_HEADER_BYTES + 1),
    ],
)
def test_damaged_extended_headers_are_refused(tmp_path, records):
    """Whatever a pax header says, it is refused where it makes no sense."""
    with pytest.raises(RecordingError) as caught:
        opened_bytes(tmp_path, gzip.compress(pax_headed(records)))

    assert said(caught)


def test_global_header_with_a_comment_is_harmless(tmp_path):
    """``git archive`` writes one."""
    tree = opened_bytes(tmp_path, gzip.compress(pax_headed(b"16 comment=abcd\n", b"g")))

    assert tree.read("/proc/stat") == "cpu"


@pytest.mark.parametrize("kind", [b"S", b"M", b"Z", b"\x80"])
def test_strange_kinds_of_members_are_refused(tmp_path, kind):
    """Sparse members, parts of files and unknown kinds get a sentence."""
    assert "member" in refusal(tmp_path, [STAT, member("host/proc/x", kind=kind)])


def test_many_tiny_streams_are_refused(tmp_path, monkeypatch):
    """Streams one after the other are read, but not for ever."""
    content = plain_tar([STAT])
    halves = gzip.compress(content[:700]) + gzip.compress(content[700:])
    assert opened_bytes(tmp_path, halves).read("/proc/stat") == "cpu"

    monkeypatch.setattr(compression, "MAX_STREAMS", 5)
    with pytest.raises(RecordingError, match="more than 5 compressed streams"):
        opened_bytes(tmp_path, gzip.compress(b"") * 10 + gzip.compress(content))


@pytest.mark.parametrize("kind", ["tar.gz", "tar.bz2", "tar.xz", "tar.zst"])
def test_several_streams_make_one_archive(tmp_path, kind):
    """pigz, pbzip2, ``xz -T`` and pzstd write several streams, with or without padding."""
    content = plain_tar([STAT])
    parts = [compress(content[at : at + 3000], kind) for at in range(0, len(content), 3000)]

    assert opened_bytes(tmp_path, b"".join(parts)).read("/proc/stat") == "cpu"
    assert opened_bytes(tmp_path, b"".join(parts) + bytes(1024)).read("/proc/stat") == "cpu"


def xz_with_window(exponent):
    """Give an xz file whose header wants a dictionary of 2 ** exponent bytes (The .xz File Format, 5.3.1)."""
    content = bytearray(
        lzma.compress(b"x" * 100, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 4096}])
    )
    end = 12 + (content[12] + 1) * 4 - 4
    content[12 + 4] = (exponent - 12) * 2
    content[end : end + 4] = zlib.crc32(content[12:end]).to_bytes(4, "little")
    return bytes(content)


def zstd_with_window(exponent):
    """Give a zstd frame of one byte that wants a window of 2 ** exponent bytes (RFC 8878, 3.1.1.1.2)."""
    return b"\x28\xb5\x2f\xfd\x00" + bytes([(exponent - 10) << 3]) + b"\x09\x00\x00x"


@pytest.mark.parametrize("made", [xz_with_window, zstd_with_window])
def test_window_bombs_are_refused(tmp_path, made):
    """An archive that wants a gigabyte of memory to unpack does not get it; a small window is no trouble."""
    with pytest.raises(RecordingError, match="not all there"):
        opened_bytes(tmp_path, made(20))
    with pytest.raises(RecordingError, match="cannot be unpacked"):
        opened_bytes(tmp_path, made(30))


def test_zstd_without_a_package_names_the_extra(tmp_path, monkeypatch):
    """Where nothing unpacks zstd, the sentence says what to install."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)

    with pytest.raises(RecordingError) as caught:
        opened(tmp_path, [STAT], "tar.zst")

    assert "wellfed[zstd]" in caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "[]",
        "{}",
        '{"schema": "wellfed/capture/2"}',
        '{"schema": "wellfed/capture/1", "errnos": []}',
        '{"schema": "wellfed/capture/1", "errnos": {"relative": "ENOENT"}}',
        '{"schema": "wellfed/capture/1", "errnos": {"/proc/../x": "ENOENT"}}',
        '{"schema": "wellfed/capture/1", "errnos": {"/proc/x": "no errno"}}',
        '{"schema": "wellfed/capture/1", "answers": {"fifo": 3}}',
        '{"schema": "wellfed/capture/1", "answers": {"fifo": {"errno": 3}}}',
        '{"schema": "wellfed/capture/1", "answers": {"fifo": {}}}',
        '{"schema": "wellfed/capture/1", "second": {"/proc/stat": null}}',
        '{"schema": "wellfed/capture/1", "interval_seconds": NaN}',
        '{"schema": "wellfed/capture/1", "interval_seconds": -1}',
        '{"schema": "wellfed/capture/1", "interval_seconds": 1e999}',
        '{"schema": "wellfed/capture/1", "interval_seconds": ' + "9" * 5000 + "}",
        '{"schema": "wellfed/capture/1", "directories": {"/proc": [3]}}',
        '{"schema": "wellfed/capture/1", "directories": {"/proc": ["a/b"]}}',
    ],
)
def test_damaged_capture_json_is_refused(tmp_path, text):
    """What a recording says of itself is read as carefully as the rest."""
    about = member("host/.wellfed/capture.json", text.encode())

    assert refusal(tmp_path, [STAT, about])


def test_capture_json_gives_errnos_answers_and_second_readings(tmp_path):
    """What stands beside the files is answered like them."""
    text = (
        '{"schema": "wellfed/capture/1", "assembled": true, "interval_seconds": 2,'
        ' "errnos": {"/proc/iomem": "EACCES"}, "second": {"/proc/stat": "cpu 2"},'
        ' "answers": {"fifo": {"errno": "EPERM"}, "page size": "4096"}}'
    )
    nvml = member("host/.wellfed/nvml.txt", b"nvmlDeviceGetCount_v2 = 8\n")
    tree = opened(tmp_path, [STAT, member("host/.wellfed/capture.json", text.encode()), nvml])

    assert tree.read("/proc/iomem") == Unreadable("EACCES")
    assert tree.answer("fifo") == Unreadable("EPERM")
    assert tree.answer("page size") == "4096"
    assert tree.answer("nvml") == "nvmlDeviceGetCount_v2 = 8\n"
    assert (tree.second, tree.interval_seconds) == ({"/proc/stat": b"cpu 2"}, 2.0)
    assert tree.assembled
    assert tree.list("/") == ("proc",)
    assert tree.read("/.wellfed/capture.json") == Unreadable("ENOENT")


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_mutated_archives_never_crash(data, tmp_path_factory):
    """Bytes flipped, cut or doubled anywhere: a host or a RecordingError."""
    kind = data.draw(st.sampled_from(FORMATS))
    plain = bytearray(MUTATED_TAR)
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(plain) - 1), st.integers(0, 255)), max_size=6)
    ):
        plain[at] = value
    if data.draw(st.booleans()):
        plain = with_right_checksums(plain)
    packed = bytearray(compress(bytes(plain), kind))
    spots = st.tuples(st.integers(0, len(packed) - 1), st.integers(0, 255))
    for at, value in data.draw(st.lists(spots, max_size=3)):
        packed[at] = value
    packed = packed[: data.draw(st.sampled_from([len(packed), len(packed) // 2]))]
    file = tmp_path_factory.getbasetemp() / "mutated"
    file.write_bytes(packed)

    try:
        tree = open_recording(str(file))
    except RecordingError as refused:
        assert refused.remedy
        return
    for path in (*tree.files, *tree.links, *tree.directories):
        tree.read(path)
        tree.list(path)
        tree.link(path)


MUTATED_TAR = plain_tar(
    [
        STAT,
        member("host/sys/" + "deep/" * 30 + "file", b"x" * 600),
        member("host/sys/link", kind=tarfile.SYMTYPE, target="../proc/stat"),
        member("host/sys/hard", kind=tarfile.LNKTYPE, target="host/proc/stat"),
        member("host/sys/empty", kind=tarfile.DIRTYPE),
        member(
            "host/.wellfed/capture.json",
            b'{"schema": "wellfed/capture/1", "errnos": {"/proc/x": "EACCES"}, "directories": {"/sys": ["a"]}}',
        ),
    ]
)


def with_right_checksums(plain):
    """Repair the checksum of every block that looks like a header, so that the mutation behind it is met."""
    made = bytearray(plain)
    for at in range(0, len(made) - 511, 512):
        if made[at + 257 : at + 262] == b"ustar":
            made[at + 148 : at + 156] = b" " * 8
            made[at + 148 : at + 156] = b"%06o\0 " % sum(made[at : at + 512])
    return made


@settings(deadline=None, max_examples=40)
@given(tree=small_trees())
def test_python_and_we_read_the_same(tree, tmp_path_factory):
    """``tarfile`` and our reader find the same files and links."""
    path = write_archive(tmp_path_factory.getbasetemp() / "same.tar.gz", tree)
    ours = open_recording(path)

    with tarfile.open(path) as theirs:
        members = theirs.getmembers()
        files = {
            m.name.removeprefix("host"): theirs.extractfile(m).read() for m in members if m.isreg()
        }
        links = {m.name.removeprefix("host"): m.linkname for m in members if m.issym()}

    assert (dict(ours.files), dict(ours.links)) == (files, links)


@pytest.mark.parametrize("path", cases("topology/*/*.tar.*"))
def test_corpus_archives_read_as_tarfile_reads_them(path):
    """Every recorded host opens, with every file that Python's reader finds in it."""
    ours = open_recording(str(path))

    with tarfile.open(path) as theirs:
        members = theirs.getmembers()
        top = members[0].name.split("/")[0]
        at = len(top) if top not in layout.OF_A_HOST else -1
        files = {
            m.name[at:] if at >= 0 else "/" + m.name: theirs.extractfile(m).read()
            for m in members
            if m.isreg()
        }
    assert dict(ours.files) == files


def test_a_pipe_is_not_peeked_into(tmp_path):
    """What is read from ``<(nvidia-smi topo -m)`` to look at it is gone; a FIFO that nobody writes to holds nobody up."""
    reading, writing = os.pipe()
    os.write(writing, b"GPU0 CPU Affinity")
    os.close(writing)
    os.mkfifo(tmp_path / "fifo")

    found = [is_recording(f"/dev/fd/{reading}"), is_recording(str(tmp_path / "fifo"))]
    left = os.read(reading, 100)
    os.close(reading)

    assert found == [False, False]
    assert left == b"GPU0 CPU Affinity"


def test_is_recording_tells_packed_from_text(tmp_path):
    """A topology XML is a text, an archive or a directory may be a host."""
    (tmp_path / "topo.xml").write_text("<topology/>")
    (tmp_path / "host.tar").write_bytes(plain_tar([STAT]))
    (tmp_path / "host.gz").write_bytes(bz2.compress(b""))

    assert not is_recording(str(tmp_path / "topo.xml"))
    assert not is_recording(str(tmp_path / "nothing"))
    assert is_recording(str(tmp_path / "host.tar"))
    assert is_recording(str(tmp_path / "host.gz"))
    assert is_recording(str(tmp_path))
