"""What goes into a dataset, as it is or in compressed chunks.

Place in the flow: arrays -> [packing] -> writer.

Chunks are compressed into a temporary file first: their sizes decide how much room the store needs.
"""

from __future__ import annotations

import math
import mmap
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from seqpipe.layout import Checksums, chunk_rows

LEVEL = 4  # of zlib
OVERHEAD = 128  # bytes of room a chunk: the library's index of it, and what it leaves unused


@dataclass(frozen=True)
class Content:
    """What goes into one dataset.

    Attributes:
        shape: of the dataset.
        dtype: little-endian.
        blocks: arrays of ``dtype`` which, end to end, are the dataset in C order.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Iterable[np.ndarray]

    @classmethod
    def of(cls, array: np.ndarray) -> Content:
        """Wrap an array, in memory or mapped; it is written in slices of about 4 MiB."""
        rows = max(1, (4 << 20) // max(1, array.itemsize * math.prod(array.shape[1:])))
        blocks = (array[first : first + rows] for first in range(0, len(array), rows))
        return cls(array.shape, array.dtype, blocks)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one item along the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def parts(self, name: str) -> Iterator[memoryview]:
        """Yield the bytes of the dataset, block by block; ``name`` is for our own mistakes."""
        num_bytes = 0
        for block in self.blocks:
            assert block.dtype == self.dtype, (name, block.dtype, self.dtype)
            data = np.ascontiguousarray(block).reshape(-1).view("u1").data
            num_bytes += len(data)
            yield data
        assert num_bytes == self.num_bytes, (name, num_bytes, self.num_bytes)


@dataclass(frozen=True)
class Packed:
    """A dataset whose compressed chunks lie end to end in a file.

    Attributes:
        shape: of the dataset, of one chunk of it.
        chunk_shape: the last chunk is filled up with zeros.
        dtype: of the dataset.
        start: of the first chunk in the file.
        sizes: bytes of each chunk.
        checksums: CRC-32 of each 64 KiB block of the dataset.
        places: (chunks, 2) uint64, first byte and bytes of each chunk in the store; filled by ``write``.
    """

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: np.dtype
    start: int
    sizes: np.ndarray
    checksums: np.ndarray
    places: np.ndarray

    @property
    def num_bytes(self) -> int:
        """Room to reserve for the chunks in the store."""
        return int(self.sizes.sum()) + OVERHEAD * len(self.sizes)

    def table(self) -> Content:
        """Return the dataset of the chunks' places; it must be read after ``write``."""
        return Content.of(self.places)

    def describe_to(self, properties: Any) -> None:
        """Set the properties that the dataset is created with."""
        properties.set_chunk(self.chunk_shape)
        if self.dtype.itemsize > 1:
            properties.set_shuffle()
        properties.set_deflate(LEVEL)

    def write(self, path: Path, name: str, spool: Path) -> None:
        """Hand the chunks to the HDF5 library as they are, and note where it puts them."""
        with (open(spool, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
              memoryview(data) as view, h5py.File(path, "r+", libver=("v110", "v110")) as store):
            dataset = store[name].id
            position, tail = self.start, (0,) * (len(self.shape) - 1)
            for k, size in enumerate(self.sizes.tolist()):
                with view[position : position + size] as chunk:
                    dataset.write_direct_chunk((k * self.chunk_shape[0], *tail), chunk)
                position += size
        with h5py.File(path, "r", libver=("v110", "v110")) as store:
            store[name].id.chunk_iter(self._note)

    def _note(self, chunk: Any) -> None:
        self.places[chunk.chunk_offset[0] // self.chunk_shape[0]] = chunk.byte_offset, chunk.size


def pack(content: Content, name: str, spool: Path) -> Packed:
    """Compress a dataset, chunk by chunk, to the end of the file ``spool``.

    Raises:
        OSError: the disk is full.
    """
    rows = chunk_rows(content.shape[0], content.row_bytes)
    chunk_bytes = rows * content.row_bytes
    checksums, rest = Checksums(), bytearray()
    sizes = []
    with open(spool, "ab") as file:
        start = file.tell()

        def compress(chunk: memoryview) -> None:
            data = zlib.compress(_shuffled(chunk, content.dtype.itemsize), LEVEL)
            file.write(data)
            sizes.append(len(data))

        for part in content.parts(name):
            checksums.add(part)
            rest += part
            whole = len(rest) // chunk_bytes * chunk_bytes
            with memoryview(rest) as view:
                for first in range(0, whole, chunk_bytes):
                    compress(view[first : first + chunk_bytes])
            del rest[:whole]
        if rest:
            compress(memoryview(rest.ljust(chunk_bytes, b"\0")))
    return Packed(content.shape, (rows, *content.shape[1:]), content.dtype, start, np.array(sizes, np.int64),
                  checksums.array(), np.zeros((len(sizes), 2), "<u8"))


def _shuffled(chunk: memoryview, itemsize: int) -> memoryview:
    """Return first all first bytes of the numbers, then all second ones, and so on: floats pack better so."""
    if itemsize == 1:
        return chunk
    numbers = np.frombuffer(chunk, "u1").reshape(-1, itemsize)
    shuffled = np.empty(numbers.shape[::-1], "u1")
    for i, part in enumerate(shuffled):
        part[:] = numbers[:, i]
    return shuffled.reshape(-1).data
