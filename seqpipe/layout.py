"""What a store is made of: names, types and checksums shared by its writer and its readers.

    /values  /offsets                       all sequences end to end, and where each one ends
    /metadata/NAME                          (N,) numbers, or a group values + offsets for text
    /tracks/NAME                            (M,) one number per element
    /splits/NAME                            ascending row numbers
    /checksums/PATH                         CRC-32 of each 64 KiB block of the dataset at PATH
    /chunks/PATH                            (chunks, 2) first byte and bytes of each chunk of the dataset at PATH
    /header                                 JSON text, see ``header``

All datasets are contiguous, but for /values and /tracks/NAME of a store made with ``--compression
gzip``: these lie in chunks of 16 KiB that any HDF5 library inflates. Their checksums are those of
the blocks before compression; each chunk has an Adler-32 of its own (part of zlib's format), and
/chunks says where it lies, so that it can be read without the HDF5 library.

N is the number of sequences, M the number of values of all sequences together, C channels.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

try:
    from isal.isal_zlib import crc32  # extra "fast": the same numbers at memory speed, zlib's at a third of it
except ImportError:
    from zlib import crc32

FORMAT = "seqpipe"
FORMAT_VERSION = 1
SIGNATURE = b"\x89HDF\r\n\x1a\n"
CHECKSUM_BLOCK = 65536  # bytes
ALIGNMENT = 64  # bytes
CHUNK = 16384  # bytes of a chunk before compression, a whole number of items
MAX_CHUNK = 1 << 20  # bytes; an array whose single item takes more is not compressed
MAX_COLUMN_NAME = 1000  # bytes of UTF-8
NUMBER_TYPES = frozenset("<" + code if code[1] != "1" else "|" + code for code in
                         ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"))

_ARRAY = re.compile(r"(checksums/)?(values|offsets|header|metadata/[^/]+(/values|/offsets)?|(tracks|splits)/[^/]+"
                    r"|chunks/(values|tracks/[^/]+))")
_GROUP = re.compile(r"checksums|(checksums/)?(metadata(/[^/]+)?|tracks|splits|chunks(/tracks)?)")
_COMPRESSIBLE = re.compile(r"values|tracks/[^/]+")


@dataclass(frozen=True)
class Extent:
    """One array inside the file, and how to read it.

    Attributes:
        offset: where it starts, in bytes; 0 for an array in chunks.
        shape, dtype: of the array.
        chunk_rows: items in a chunk; 0 for an array that is contiguous.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    chunk_rows: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the array, before compression; an int of any size, whatever the shape claims."""
        return math.prod(self.shape) * self.dtype.itemsize


def is_array(path: str) -> bool:
    """Say whether a store may hold an array at ``path``."""
    return _ARRAY.fullmatch(path) is not None


def is_group(path: str) -> bool:
    """Say whether a store may hold a group at ``path``."""
    return _GROUP.fullmatch(path) is not None


def is_compressible(path: str) -> bool:
    """Say whether the array at ``path`` may lie in compressed chunks."""
    return _COMPRESSIBLE.fullmatch(path) is not None


def chunk_rows(num_items: int, width: int) -> int:
    """Return the items in a chunk of an array of ``num_items`` items of ``width`` bytes."""
    return min(num_items, max(1, CHUNK // width))


def dataset_name(column: str) -> str:
    """Return the HDF5 link name of a column: its own, with "/", "%", NUL and a leading "." escaped."""
    name = column.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return "%2E" + name[1:] if name.startswith(".") else name or "%"


def column_name(name: str) -> str:
    """Return the column of an HDF5 link name: the inverse of ``dataset_name``."""
    if name == "%":
        return ""
    return name.replace("%2E", ".").replace("%00", "\0").replace("%2F", "/").replace("%25", "%")


def num_blocks(num_bytes: int) -> int:
    """Return how many checksum blocks ``num_bytes`` bytes take."""
    return -(-num_bytes // CHECKSUM_BLOCK)


def block_checksums(data: memoryview) -> np.ndarray:
    """Return the CRC-32 (zlib's) of each 64 KiB block of ``data`` as uint32."""
    starts = range(0, len(data), CHECKSUM_BLOCK)
    return np.array([crc32(data[a : a + CHECKSUM_BLOCK]) for a in starts], "<u4")


class Checksums:
    """The CRC-32 of each 64 KiB block of bytes that come in parts of any size."""

    def __init__(self) -> None:
        self._finished: list[int] = []
        self._crc, self._room = 0, CHECKSUM_BLOCK

    def add(self, data: memoryview) -> None:
        """Take the next bytes."""
        while len(data):
            self._crc = crc32(data[: self._room], self._crc)
            self._room, data = self._room - min(self._room, len(data)), data[self._room :]
            if not self._room:
                self._finished.append(self._crc)
                self._crc, self._room = 0, CHECKSUM_BLOCK

    def array(self) -> np.ndarray:
        """Return the checksums of all bytes so far as uint32."""
        return np.array(self._finished + [self._crc] * (self._room < CHECKSUM_BLOCK), "<u4")
