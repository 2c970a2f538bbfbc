"""Find and read pieces of the flat arrays of a store; each block of the file is checked on its first touch.

Place in the flow: store -> [pieces] -> reading.

No array is made per piece: the bytes are named where they lie in the map.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seqpipe.checking import Checked
from seqpipe.chunks import Chunks
from seqpipe.store import Store

Buffer = memoryview | bytearray | bytes

PROBE = 16  # batches between two looks at whether the file is in memory


class Pieces:
    """N pieces of a flat array, found by their offsets."""

    def __init__(self, store: Store, name: str, offsets: Checked, total: int) -> None:
        self._store, self._name, self._total = store, name, total
        self._checked, self._array, self._ends = offsets, offsets.array, offsets.array.data
        self._last = len(offsets.array) - 2
        # Item i is the bytes of offsets i and i + 1: one look-up finds where a piece starts and ends.
        self._pairs = np.ndarray(self._last + 1, f"V{2 * offsets.array.itemsize}", self._ends, 0, offsets.array.strides)

    def one(self, row: int) -> tuple[int, int]:
        """Return where piece ``row`` >= 0 starts and ends.

        Raises:
            StoreError: there is no such row, or its offsets are damaged.
        """
        if row > self._last:
            raise self._store.no_row(row)
        if self._checked.left:
            self._checked.touch(row, row + 2)
        start, stop = self._ends[row], self._ends[row + 1]
        if not start <= stop <= self._total:
            raise self._store.bad_offsets(self._name, row)
        return start, stop

    def many(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Return starts and lengths of (B,) int64 rows >= 0 as int64, and the largest length; raises as ``one``."""
        try:
            if self._checked.left:  # before they are read: so they are fetched all at once
                self._checked.touch_items(rows)
                self._checked.touch_items(rows + 1)
            found = self._pairs[rows].view(self._array.dtype)
        except IndexError:
            raise self._store.no_row(int(rows.max())) from None
        starts, stops = found[::2], found[1::2]
        if not len(rows):
            return starts.view(np.int64), stops.view(np.int64), 0
        lengths = stops - starts  # unsigned: where the order is wrong, a length beyond all
        longest = int(np.maximum.reduce(lengths))
        if longest > self._total or np.maximum.reduce(stops) > self._total:
            wrong = (lengths > self._total) | (stops > self._total)
            raise self._store.bad_offsets(self._name, int(rows[np.argmax(wrong)]))
        return starts.view(np.int64), lengths.view(np.int64), longest


class Flat:
    """The elements of all sequences, or of a track, end to end in one array of the map.

    Attributes:
        dtype: of a number; tail: shape of an element; width: its bytes.
    """

    def __init__(self, store: Store, name: str, checked: Checked) -> None:
        self._store, self._name, self._checked = store, name, checked
        array = checked.array
        self.dtype, self.tail = array.dtype, array.shape[1:]
        self.width = array.itemsize * int(np.prod(self.tail, dtype=np.int64))
        self._array, self._cells = array, array.reshape(-1).view(np.uint8)
        self._bytes = self._cells.data
        self._shuffled = False

    def touch(self, start: int, stop: int) -> None:
        """Check the blocks of some elements, where that is still to be done."""
        if self._checked.left and start < stop:
            self._checked.touch(start, stop)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return some elements as an array of its own."""
        self.touch(start, stop)
        return self._array[start:stop].copy()

    def pieces(self, starts: np.ndarray, lengths: np.ndarray, longest: int) -> list[memoryview]:
        """Return the bytes of B pieces, in the map; as ``Pieces.many`` finds them."""
        stops, width = starts + lengths, self.width
        if self._checked.left:
            self._checked.touch_ranges(starts, stops, longest)
        if width > 1:
            starts, stops = starts * width, stops * width
        if longest:  # the processor waits for all pieces at once here, for one after the other below
            self._cells.take(starts, mode="clip")
        source = self._bytes
        return [source[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]

    def places(self, starts: np.ndarray) -> list[int]:
        """Return the bytes that some elements begin at, as the store counts them for advice."""
        return (starts * self.width).tolist()

    def will_need(self, starts: np.ndarray, lengths: np.ndarray) -> None:
        """Have the system fetch B pieces from the disk, all at once."""
        first, size = (starts * self.width).tolist(), (lengths * self.width).tolist()
        if not self._shuffled and first != sorted(first):
            # Reading ahead of shuffled accesses would fetch the whole file.
            self._store.mapping.advise(self._name, "MADV_RANDOM", 0, len(self._bytes))
            self._shuffled = True
        # Blocks that are still to be checked are fetched whole, where that is done.
        for start, count, done in zip(first, size, self._checked.is_done(starts).tolist(), strict=True):
            if count and done:
                self._store.mapping.advise(self._name, "MADV_WILLNEED", start, start + count)


class Inflated:
    """As ``Flat``, of an array in compressed chunks.

    Where a chunk is inflated, zlib checks its Adler-32; what its numbers must be is looked at once.
    """

    def __init__(self, store: Store, name: str, *, verify: bool) -> None:
        chunks: Chunks = store.arrays[name]
        self._store, self._name, self._chunks = store, name, chunks
        self.dtype, self.tail = chunks.dtype, chunks.shape[1:]
        self.width = chunks.itemsize * math.prod(self.tail)
        self._rule = store.rule(name) if verify else None
        self._done = np.zeros(len(chunks.table), bool)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return some elements as an array of its own."""
        return self._chunks.read(start, stop, self._check if self._rule else None)

    def pieces(self, starts: np.ndarray, lengths: np.ndarray, longest: int) -> list[bytearray]:
        """As ``Flat.pieces``, of their own."""
        order = np.argsort(starts)  # pieces of one chunk follow each other: it is inflated once
        starts, sizes = starts * self.width, lengths * self.width
        pieces = [bytearray(size) for size in sizes.tolist()]
        copy, check = self._chunks.copy, self._check if self._rule else None
        for i, start, size in zip(order.tolist(), starts[order].tolist(), sizes[order].tolist(), strict=True):
            copy(start, start + size, memoryview(pieces[i]), 0, check)
        return pieces

    def places(self, starts: np.ndarray) -> list[int]:
        """As ``Flat.places``: of the chunks, in the file."""
        return [start for start, _ in self._chunks.places_of(starts, starts + 1)]

    def will_need(self, starts: np.ndarray, lengths: np.ndarray) -> None:
        """Have the system fetch B pieces from the disk, all at once."""
        for start, stop in self._chunks.places_of(starts, starts + lengths):
            self._store.mapping.advise(self._name, "MADV_WILLNEED", start, stop)

    def _check(self, k: int, chunk: memoryview) -> None:
        if self._done[k]:
            return
        assert self._rule is not None
        first = k * self._chunks.chunk_rows
        rows = min(self._chunks.chunk_rows, len(self._chunks) - first)
        numbers = np.frombuffer(chunk[: rows * self.width], self.dtype)
        at = self._rule.first_misfit(numbers)
        if at >= 0:
            low = first * self.width + at * self.dtype.itemsize
            raise self._store.bad_bytes(
                self._name, f"[{low // self.width}] is {numbers[at]}; expected {self._rule.expected}", low, low + 1)
        self._done[k] = True


class Residency:
    """Whether batches are in the page cache: asked of the system for a few sequences of one batch in sixteen."""

    def __init__(self, store: Store, name: str, flat: Flat | Inflated) -> None:
        self._store, self._name, self._flat = store, name, flat
        self._batches, self._cold = 0, False

    def is_cold(self, starts: np.ndarray) -> bool:
        """Say whether a batch whose sequences start at (B,) elements will have to wait for the disk."""
        if self._batches % PROBE == 0:
            self._cold = not self._store.mapping.in_memory(self._name, self._flat.places(starts))
        self._batches += 1
        return self._cold


class SplitRows:
    """The rows of a split, in blocks that are checked when they are touched."""

    def __init__(self, rows: Any, checked: Checked | None) -> None:
        self._rows, self._checked = rows, checked

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """Return an int for an integer 0 <= key < len(self), int64 for an index array or a slice."""
        checked = self._checked if self._checked is not None and self._checked.left else None
        if isinstance(key, int):
            if checked:
                checked.touch(key, key + 1)
            return int(self._rows[key])
        if checked and isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            checked.touch(0, len(self)) if step != 1 else checked.touch(start, stop) if start < stop else None
        elif checked:
            checked.touch_items(key)
        return self._rows[key].astype(np.int64)
