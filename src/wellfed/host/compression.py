"""How is a compressed stream unpacked piece by piece, so that a bomb is noticed before it fills memory?"""

from __future__ import annotations

import bz2
import lzma
import zlib

from wellfed.host.tar import RECORD_AGAIN
from wellfed.model.errors import RecordingError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO, Protocol
else:
    Protocol = object

INPUT_BYTES = 256 << 10
CHUNK_BYTES = 1 << 20
"""Most that is unpacked at a time."""
XZ_MEMORY_BYTES = 256 << 20
"""``xz -9`` wants 65 MiB to unpack; a header may claim 4 GiB."""
ZSTD_WINDOW_LOG = 27
"""128 MiB, as much as ``zstd`` itself unpacks without ``--long`` (lib/zstd.h, ZSTD_WINDOWLOG_LIMIT_DEFAULT)."""
ZSTD_LEVEL = 10
MAX_STREAMS = 20_000
"""Streams one after the other, as pbzip2 and bgzip write them: 512 MiB in blocks of 64 KiB are 8192."""

SUFFIXES = (".tar.xz", ".tar.gz", ".tar.zst", ".tar.bz2")

_GZIP, _BZIP2, _XZ, _ZSTD = "gzip", "bzip2", "xz", "zstd"
_MAGIC = (
    (b"\x1f\x8b", _GZIP),
    (b"BZh", _BZIP2),
    (b"\xfd7zXZ\0", _XZ),
    (b"\x28\xb5\x2f\xfd", _ZSTD),
)
"""RFC 1952; bzip2's manual; The .xz File Format 1.2; RFC 8878. A skippable zstd frame first is nothing we write."""


class Decoder(Protocol):
    """What the decompressors of the standard library have in common."""

    @property
    def eof(self) -> bool:
        """Whether the stream is complete."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing more comes without more input."""

    @property
    def unused_data(self) -> bytes:
        """What follows the stream."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return at most ``max_length`` bytes."""


def compression_of(start: bytes) -> str | None:
    """Recognise a compression by the first bytes of a file; None for none that we know."""
    return next((name for magic, name in _MAGIC if start.startswith(magic)), None)


def unpacked(name: str, file: BinaryIO) -> Iterator[bytes]:
    """Give what a file holds, unpacked, in chunks of a few megabytes. RecordingError where it is damaged."""
    start = file.read(8)
    file.seek(0)
    compression = compression_of(start)
    if compression is None:
        yield from iter(lambda: file.read(CHUNK_BYTES), b"")
        return
    fresh, errors = _decoder(compression, name)
    try:
        yield from _decoded(name, file, fresh)
    except errors as damage:
        raise _damaged(
            name, f"is damaged: its {compression} stream cannot be unpacked ({damage})"
        ) from None
    except EOFError:
        raise _damaged(
            name, f"ends in the middle of its {compression} stream: it is not all there"
        ) from None


def _decoded(name: str, file: BinaryIO, fresh: Callable[[], Decoder]) -> Iterator[bytes]:
    """Unpack stream after stream; EOFError where the last one is not complete."""
    decoder, begun = fresh(), False
    streams_left = MAX_STREAMS
    piece = file.read(INPUT_BYTES)
    while piece:
        begun = True
        chunk = decoder.decompress(piece, CHUNK_BYTES)
        while chunk:
            yield chunk
            more = not decoder.eof and not decoder.needs_input
            chunk = decoder.decompress(b"", CHUNK_BYTES) if more else b""
        piece = b""
        if decoder.eof:
            # Streams may be followed by padding (xz: in fours of NUL bytes; tapes: whole blocks).
            piece = decoder.unused_data.lstrip(b"\0")
            decoder, begun = fresh(), False
            streams_left -= 1
        if not streams_left:
            raise _damaged(name, f"is cut into more than {MAX_STREAMS} compressed streams")
        piece = piece or _next_piece(file, begun)
    if begun:
        raise EOFError


def _next_piece(file: BinaryIO, begun: bool) -> bytes:
    piece = file.read(INPUT_BYTES)
    while piece and not begun:
        stripped = piece.lstrip(b"\0")
        if stripped:
            return stripped
        piece = file.read(INPUT_BYTES)
    return piece


def _decoder(
    compression: str, name: str
) -> tuple[Callable[[], Decoder], tuple[type[Exception], ...]]:
    """Return what makes a decompressor, and what it raises on damage."""
    if compression == _GZIP:
        return _Gunzip, (zlib.error,)
    if compression == _BZIP2:
        return bz2.BZ2Decompressor, (OSError,)
    if compression == _XZ:
        return _unxz, (lzma.LZMAError,)
    return _zstd_decoder(name)


def _unxz() -> Decoder:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)


class _Gunzip:
    """zlib's decompressor with the face of the other ones; it looks at gzip's CRC and length."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(31)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not self._full

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        chunk = self._stream.decompress(self._stream.unconsumed_tail + data, max_length)
        self._full = len(chunk) == max_length or bool(self._stream.unconsumed_tail)
        return chunk


class _Unzstd:
    """python-zstandard's decompressor, fed so little at a time that it cannot give much."""

    # A block of at most 128 KiB may be written in four bytes (RFC 8878, RLE_Block): 512 bytes are 16 MiB at most.
    BITE = 512

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._waiting = b""

    @property
    def eof(self) -> bool:
        return bool(self._stream.eof)

    @property
    def needs_input(self) -> bool:
        return not self._waiting

    @property
    def unused_data(self) -> bytes:
        return bytes(self._stream.unused_data) + self._waiting

    def decompress(self, data: bytes, _max_length: int, /) -> bytes:
        self._waiting += data
        chunk, at = b"", 0
        while not chunk and at < len(self._waiting) and not self._stream.eof:
            chunk = self._stream.decompress(self._waiting[at : at + self.BITE])
            at += self.BITE
        self._waiting = self._waiting[at:]
        return chunk


def _zstd_decoder(name: str) -> tuple[Callable[[], Decoder], tuple[type[Exception], ...]]:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        return _zstandard_decoder(name)
    options = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
    return lambda: zstd.ZstdDecompressor(options=options), (zstd.ZstdError,)


def _zstandard_decoder(name: str) -> tuple[Callable[[], Decoder], tuple[type[Exception], ...]]:
    try:
        import zstandard
    except ImportError:
        raise RecordingError(
            f"{name} is compressed by zstd, which this Python cannot unpack",
            remedy="pip install 'wellfed[zstd]', or unpack it with `zstd -d` first",
        ) from None
    factory = zstandard.ZstdDecompressor(max_window_size=1 << ZSTD_WINDOW_LOG)
    return lambda: _Unzstd(factory.decompressobj()), (zstandard.ZstdError,)


def _damaged(name: str, what: str) -> RecordingError:
    return RecordingError(f"{name} {what}", remedy=RECORD_AGAIN)


def packer(path: str) -> Callable[[bytes], bytes]:
    """Return what compresses a tar for the suffix of ``path``; UsageError where the suffix names no compression."""
    if path.endswith(".tar.xz"):
        # A dump of all of /sys takes 0.09 s and 106 kB at level 2, 0.68 s and 99 kB at level 6.
        return lambda content: lzma.compress(content, preset=2)
    if path.endswith(".tar.gz"):
        return _gzip
    if path.endswith(".tar.bz2"):
        return bz2.compress
    if path.endswith(".tar.zst"):
        return _zstd_packer()
    raise UsageError(
        f"{path} does not say how to compress: wanted a name that ends in {', '.join(SUFFIXES)}",
        remedy="wellfed capture host.tar.xz",
    )


def _gzip(content: bytes) -> bytes:
    stream = zlib.compressobj(6, zlib.DEFLATED, 31)
    return stream.compress(content) + stream.flush()


def _zstd_packer() -> Callable[[bytes], bytes]:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        pass
    else:
        wanted = {
            zstd.CompressionParameter.compression_level: ZSTD_LEVEL,
            zstd.CompressionParameter.checksum_flag: 1,
        }
        return lambda content: bytes(zstd.compress(content, options=wanted))
    try:
        import zstandard
    except ImportError:
        raise UsageError(
            "this Python cannot compress by zstd",
            remedy="pip install 'wellfed[zstd]', or choose a name that ends in .tar.xz",
        ) from None
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compress
