"""Tell compressed files by content, and decompress them without leaving anything out.

Place in the flow: file on disk -> [compressed] -> raw -> a format's reader -> Record.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import zlib
from collections.abc import Callable
from typing import Any, Protocol

BUFFER_BYTES = 1 << 17
MAGIC_BYTES = 16  # enough of the start of a file for ``find_compression``
SHORTEST = 14  # bytes of an empty bzip2 file; gzip and xz need more

# What reading compressed data raises when they are cut or damaged.
DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)
SUFFIXES = {".gz": "gzip", ".bgz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
READ = ("gzip", "bzip2", "xz", "zstd")
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
    new: dict[str, Callable[[], _Decompressor]] = {
        "gzip": _GzipMember, "bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor, "zstd": _ZstdFrame}
    return io.BufferedReader(_Streams(file, new[compression]), BUFFER_BYTES)


class _Decompressor(Protocol):
    """Decompresses one stream, as the classes of the standard library do."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _GzipMember:
    """One gzip member; its length and checksum are checked at its end."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._more = False  # whether there may be bytes that did not fit

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def needs_input(self) -> bool:
        return not (self._more or self._member.unconsumed_tail)

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        piece = self._member.decompress(data or self._member.unconsumed_tail, max_length)
        self._more = len(piece) == max_length
        return piece


class _ZstdFrame:
    """One zstd frame. (The stream reader of ``zstandard`` takes a cut frame for a whole one.)"""

    STEP = 1024  # bytes decompressed at a time: they may become 32,000 times as many

    def __init__(self) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._data, self._at = b"", 0
        self._made, self._given = b"", 0

    @property
    def eof(self) -> bool:
        return self._frame.eof and self._given == len(self._made)

    @property
    def needs_input(self) -> bool:
        return self._given == len(self._made) and self._at >= len(self._data)

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data + self._data[self._at :]

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        if data:
            self._data, self._at = data, 0
        while self._given == len(self._made) and self._at < len(self._data) and not self._frame.eof:
            try:
                self._made = self._frame.decompress(self._data[self._at : self._at + self.STEP])
            except self._error as error:
                raise OSError(str(error)) from error
            self._at += self.STEP
            self._given = 0
        piece = self._made[self._given : self._given + max_length]
        self._given += len(piece)
        return piece


class _Streams(io.RawIOBase):
    """The decompressed bytes of gzip, bzip2, xz or zstd streams that stand one after the other.

    The classes of the standard library leave out whatever follows the first stream and does
    not start another, so a damaged second stream would be lost without a word.
    """

    def __init__(self, file: io.FileIO, new: Callable[[], _Decompressor]) -> None:
        self._file = file
        self._new = new
        self._decompressor = new()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
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
