"""Tell compressed files by content, and decompress them without leaving anything out.

Place in the flow: file on disk -> [compressed] -> raw -> a format's reader -> Record.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable

BUFFER_BYTES = 1 << 18
MAGIC_BYTES = 16  # enough of the start of a file for ``find_compression``
SHORTEST = 14  # bytes of an empty bzip2 file; gzip and xz need more

# What reading compressed data raises when they are cut or damaged.
DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)
SUFFIXES = {".gz": "gzip", ".bgz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
READ = ("gzip", "bzip2", "xz")
_MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "bzip2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
    "ZIP": re.compile(rb"PK\x03\x04"),
}


def find_compression(start: bytes) -> str | None:
    """Return how a file that begins with ``start`` is compressed, or None.

    Only the kinds in ``READ`` can be opened with ``decompressed``.
    """
    return next((name for name, magic in _MAGIC.items() if magic.match(start)), None)


def decompressed(file: io.FileIO, compression: str | None) -> io.BufferedReader:
    """Return a stream of the decompressed bytes of ``file``, from where it stands."""
    if compression is None:
        return io.BufferedReader(file, BUFFER_BYTES)
    if compression == "gzip":
        return gzip.GzipFile(fileobj=file, mode="rb")  # type: ignore[return-value]
    new = bz2.BZ2Decompressor if compression == "bzip2" else lzma.LZMADecompressor
    return io.BufferedReader(_Streams(file, new), BUFFER_BYTES)


class _Streams(io.RawIOBase):
    """The decompressed bytes of bzip2 or xz streams that stand one after the other.

    The classes of the standard library leave out whatever follows the first stream and does
    not start another, so a damaged second stream would be lost without a word.
    """

    def __init__(
        self, file: io.FileIO, new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
    ) -> None:
        self._file = file
        self._new = new
        self._decompressor = new()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        while True:
            data = b""
            if self._decompressor.eof:
                data = self._decompressor.unused_data
                while not data.strip(b"\0"):  # zeros may pad a stream
                    data = self._file.read(BUFFER_BYTES)
                    if not data:
                        return 0
                self._decompressor = self._new()
                data = data.lstrip(b"\0")
            elif self._decompressor.needs_input:
                data = self._file.read(BUFFER_BYTES)
                if not data:
                    raise EOFError("the file ends inside a stream")
            piece = self._decompressor.decompress(data, len(buffer))
            if piece:
                buffer[: len(piece)] = piece
                return len(piece)
