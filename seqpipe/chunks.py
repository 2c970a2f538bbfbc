"""Arrays in compressed chunks, inflated by us from the map of the file where they are read.

Place in the flow: locate -> [chunks] -> store.

The table ``/chunks/PATH`` says where each chunk lies, so that reading takes neither the HDF5
library nor its lock. The table is looked at as a whole when a store is opened; a chunk when it is
inflated: it must give exactly its bytes, and the Adler-32 at its end must be theirs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from seqpipe.layout import Extent

try:  # extra "fast": the same bytes, under the same Adler-32, in half the time
    from isal import isal_zlib as zlib
except ImportError:
    import zlib  # type: ignore[no-redef]

Check = Callable[[int, memoryview], None]

CACHE = 8 << 20  # bytes of inflated chunks that an array keeps, in each process: as much as HDF5 2.0


class Chunks:
    """(M, ...) numbers in compressed chunks; slices like an array, into arrays of their own.

    Args:
        extent: shape and type, and the items of a chunk.
        table: (chunks, 2) uint64, first byte and bytes of each chunk in the file; found good.
        data: the file.
        refuse: makes the error of a bad chunk, given what is wrong, and from which byte to which of the
            array (before compression).

    Attributes:
        chunk_bytes: of a chunk before compression.
        num_inflated: bytes inflated so far.
    """

    def __init__(self, extent: Extent, table: np.ndarray, data: memoryview,
                 refuse: Callable[[str, int, int], Exception]) -> None:
        self.shape, self.dtype, self.nbytes = extent.shape, extent.dtype, extent.num_bytes
        self.table, self.chunk_rows = table, extent.chunk_rows
        self.num_inflated = 0
        self._width = extent.num_bytes // extent.shape[0]
        self.chunk_bytes = extent.chunk_rows * self._width
        self._places, self._data, self._refuse = table.data, data, refuse
        # Of chunk k: its bytes, zeros after the end of the array; raises StoreError where it is damaged.
        self.chunk = lru_cache(max(1, CACHE // self.chunk_bytes))(self._inflate)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def __getitem__(self, key: Any) -> Any:
        """Return one item for an integer, an array for a slice, an array of integers or a mask.

        Raises:
            IndexError: an index is out of range.
            StoreError: a chunk is damaged.
        """
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self.read(start, max(start, stop))
            return self[np.arange(start, stop, step)]
        if np.ndim(key) == 0:
            i = operator.index(key)
            i += len(self) * (i < 0)
            if not 0 <= i < len(self):
                raise IndexError(f"index {key} is out of range; expected 0 <= index < {len(self)}")
            return self.read(i, i + 1)[0]
        index = np.asarray(key)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        return np.array([self[i] for i in index.tolist()], self.dtype).reshape(len(index), *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def read(self, start: int, stop: int, check: Check | None = None) -> np.ndarray:
        """Return the items ``start`` to ``stop``, 0 <= start <= stop <= M, as an array of its own; as ``copy``."""
        array = np.empty((stop - start, *self.shape[1:]), self.dtype)
        self.copy(start * self._width, stop * self._width, array.reshape(-1).view(np.uint8).data, 0, check)
        return array

    def copy(self, start: int, stop: int, target: memoryview, place: int, check: Check | None = None) -> None:
        """Copy the bytes ``start`` to ``stop`` of the array to those of ``target`` from ``place`` on.

        Args:
            check: called with the number and the bytes of each chunk before it is copied from.

        Raises:
            StoreError: a chunk is damaged.
        """
        size = self.chunk_bytes
        while start < stop:
            k, first = divmod(start, size)
            count = min(size - first, stop - start)
            chunk = self.chunk(k)
            if check is not None:
                check(k, chunk)
            target[place : place + count] = chunk[first : first + count]
            start, place = start + count, place + count

    def places_of(self, starts: np.ndarray, stops: np.ndarray) -> list[tuple[int, int]]:
        """Return the file's first and last byte of the chunks of some ranges of items, each chunk once."""
        ranges = zip((starts // self.chunk_rows).tolist(), (-(-stops // self.chunk_rows)).tolist(), strict=True)
        wanted = sorted({k for first, last in ranges for k in range(first, last)})
        return [(start, start + size) for start, size in self.table[wanted].tolist()]

    def inflated_per_byte(self, starts: np.ndarray, stops: np.ndarray) -> float:
        """Return how many bytes are inflated per byte used where each of some ranges of items is read for itself."""
        some = stops > starts
        starts, stops = starts[some].astype(np.int64), stops[some].astype(np.int64)
        chunks = (stops - 1) // self.chunk_rows - starts // self.chunk_rows + 1
        return float(chunks.sum() * self.chunk_bytes / max(1, (stops - starts).sum() * self._width))

    def _inflate(self, k: int) -> memoryview:
        start, size = self._places[k, 0], self._places[k, 1]
        inflate = zlib.decompressobj()
        try:  # one byte more than expected, if there is one, and never a thousand times as many
            data = inflate.decompress(self._data[start : start + size], self.chunk_bytes + 1)
        except zlib.error as error:  # type: ignore[misc]  # isal's types have an instance here
            raise self._bad(k, f"cannot be inflated ({error})") from None
        if len(data) != self.chunk_bytes or not inflate.eof:
            more = " or more" * (len(data) > self.chunk_bytes)
            raise self._bad(k, f"inflates to {len(data)} bytes{more}; expected {self.chunk_bytes} and an end")
        self.num_inflated += len(data)
        if self.itemsize > 1:  # bytes of the same place in a number lie together
            size, count = self.itemsize, len(data) // self.itemsize
            numbers = bytearray(len(data))
            for i in range(size):  # half of the time that a copy of the transpose takes
                numbers[i::size] = data[i * count : (i + 1) * count]
            return memoryview(numbers)
        return memoryview(data)

    def _bad(self, k: int, finding: str) -> Exception:
        start, size = self.table[k].tolist()
        low = k * self.chunk_bytes
        return self._refuse(f": chunk {k} (bytes {start} to {start + size} of the file) {finding}", low,
                            min(low + self.chunk_bytes, self.nbytes))


def table_problem(extent: Extent, table: Any, file_size: int) -> str | None:
    """Return what is wrong with the table of an array's chunks, or None.

    Args:
        extent: of the array.
        table: what the file has as its table, or None.
        file_size: in bytes.
    """
    count = -(-extent.shape[0] // extent.chunk_rows)
    if table is None or table.dtype != "<u8" or table.shape != (count, 2):
        return f" is missing, or not the table of {count} chunks"
    most = _most_bytes(extent.num_bytes // extent.shape[0] * extent.chunk_rows)
    starts, sizes = table[:, 0], table[:, 1]
    wrong = (sizes < 1) | (sizes > most) | (starts > file_size)
    wrong |= starts + sizes > file_size  # which does not overflow where the others hold
    if wrong.any():
        k = int(np.argmax(wrong))
        return (f"[{k}] is {starts[k]}, {sizes[k]}; expected a place in the file of {file_size} bytes, and 1 to {most} "
                "bytes")
    return None


def overlap(tables: Mapping[str, np.ndarray], extents: Iterable[tuple[str, Extent]]) -> str | None:
    """Return which chunk overlaps another one or another array, or None; each for itself has been found good.

    Args:
        tables: of all arrays in chunks, by their paths.
        extents: of all other arrays, with their paths.
    """
    if not tables:
        return None
    places = np.concatenate(list(tables.values())).astype(np.int64)
    order = np.argsort(places[:, 0], kind="stable")  # already in order, or nearly so: fast
    starts, ends = places[order, 0], places[order].sum(axis=1)
    names = np.repeat(np.arange(len(tables)), list(map(len, tables.values())))[order]
    wrong = np.flatnonzero(starts[1:] < ends[:-1])
    if len(wrong):
        return f"a chunk of /{list(tables)[names[wrong[0]]]} at byte {starts[wrong[0] + 1]} overlaps another chunk"
    for name, extent in extents:
        k = int(np.searchsorted(ends, extent.offset, "right"))
        if extent.num_bytes and k < len(starts) and starts[k] < extent.offset + extent.num_bytes:
            return f"a chunk of /{list(tables)[names[k]]} at byte {starts[k]} overlaps /{name}"
    return None


def _most_bytes(num_bytes: int) -> int:
    """Return the most bytes that zlib makes of ``num_bytes``."""
    return num_bytes + num_bytes // 1000 + 64
