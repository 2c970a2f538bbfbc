"""What a store is made of: names, types and checksums shared by its writer and its readers.

    /values  /offsets                       all sequences end to end, and where each one ends
    /metadata/NAME                          (N,) numbers, or a group values + offsets for text
    /tracks/NAME                            (M,) one number per element
    /splits/NAME                            ascending row numbers
    /checksums/PATH                         CRC-32 of each 64 KiB block of the dataset at PATH
    /header                                 JSON text, see ``header``

N is the number of sequences, M the number of values of all sequences together, C channels.
"""

from __future__ import annotations

import re
import zlib

import numpy as np

FORMAT = "seqpipe"
FORMAT_VERSION = 1
SIGNATURE = b"\x89HDF\r\n\x1a\n"
CHECKSUM_BLOCK = 65536  # bytes
ALIGNMENT = 64  # bytes
MAX_COLUMN_NAME = 1000  # bytes of UTF-8
NUMBER_TYPES = frozenset("<" + code if code[1] != "1" else "|" + code for code in
                         ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"))

_ARRAY = re.compile(r"(checksums/)?(values|offsets|header|metadata/[^/]+(/values|/offsets)?|(tracks|splits)/[^/]+)")
_GROUP = re.compile(r"checksums|(checksums/)?(metadata(/[^/]+)?|tracks|splits)")


def is_array(path: str) -> bool:
    """Say whether a store may hold an array at ``path``."""
    return _ARRAY.fullmatch(path) is not None


def is_group(path: str) -> bool:
    """Say whether a store may hold a group at ``path``."""
    return _GROUP.fullmatch(path) is not None


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
    """Return the CRC-32 (zlib) of each 64 KiB block of ``data`` as uint32."""
    starts = range(0, len(data), CHECKSUM_BLOCK)
    return np.array([zlib.crc32(data[a : a + CHECKSUM_BLOCK]) for a in starts], "<u4")
