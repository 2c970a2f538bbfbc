"""Read samples and whole batches of rows; each block of the file is checked on its first touch.

Place in the flow: store -> [reading] -> sequences, collate.

A reader has two doors: ``sample(row)`` and ``plan(rows)``. A plan knows the lengths of its B
sequences; labels and ids are gathered when they are asked for, and the bytes of sequences and
tracks are named where they lie in the map: no array is made per sequence, none is copied twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from seqpipe.checking import Checked
from seqpipe.chunks import Chunks
from seqpipe.columns import ListColumn, TextColumn
from seqpipe.joined import Joined, locate_part, parts_of
from seqpipe.layout import dataset_name
from seqpipe.store import Store
from seqpipe.transforms import Sample

Buffer = memoryview | bytearray | bytes

PROBE = 16  # batches between two looks at whether the file is in memory


class Pieces:
    """N pieces of a flat array, found by their offsets."""

    def __init__(self, store: Store, name: str, offsets: Checked, total: int) -> None:
        self._store, self._name, self._total = store, name, total
        self._checked, self._array, self._ends = offsets, offsets.array, offsets.array.data
        self._last = len(offsets.array) - 2

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
        after = rows + 1
        try:
            starts, stops = self._array[rows], self._array[after]
        except IndexError:
            raise self._store.no_row(int(rows.max())) from None
        if self._checked.left:
            self._checked.touch_items(rows)
            self._checked.touch_items(after)
        if not len(rows):
            return starts.view(np.int64), starts.view(np.int64), 0
        lengths = stops - starts  # unsigned: where the order is wrong, a length beyond all
        longest = int(lengths.max())
        if longest > self._total or stops.max() > self._total:
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
        self._array, self._bytes = array, array.reshape(-1).view(np.uint8).data
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
            self._store.advise(self._name, "MADV_RANDOM", 0, len(self._bytes))
            self._shuffled = True
        for start, count in zip(first, size, strict=True):
            if count:
                self._store.advise(self._name, "MADV_WILLNEED", start, start + count)


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
            self._store.advise(self._name, "MADV_WILLNEED", start, stop)

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
            self._cold = not self._store.in_memory(self._name, self._flat.places(starts))
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


class StoreReader:
    """Reads one store.

    Args:
        store: to read.
        columns: the metadata columns and tracks wanted.
        verify: check each block on its first touch.

    Attributes:
        flats: the elements of the sequences, by None, and of each track, by name.
    """

    def __init__(self, store: Store, columns: Sequence[str], *, verify: bool) -> None:
        def checked(name: str) -> Checked:
            return store.checked(name) if verify else Checked(store.arrays[name], None)

        def flat_of(name: str) -> Flat | Inflated:
            return Inflated(store, name, verify=verify) if isinstance(store.arrays[name], Chunks) else \
                Flat(store, name, checked(name))

        def pieces(path: str) -> tuple[Pieces, Any]:
            flat = flat_of(f"{path}values")
            total = len(store.arrays[f"{path}values"])
            return Pieces(store, f"{path}offsets", checked(f"{path}offsets"), total), flat

        self._store, self._opened = store, checked
        self.sequences, values = pieces("")
        self._residency = Residency(store, "values", values)
        self.flats: dict[str | None, Flat | Inflated] = {None: values}
        self.numbers: dict[str, tuple[Checked, np.dtype]] = {}
        self.texts: dict[str, tuple[Pieces, Flat, TextColumn]] = {}
        self.lists: dict[str, tuple[Pieces, Flat]] = {}
        for name in columns:
            column, path = store.metadata.get(name), f"metadata/{dataset_name(name)}"
            if isinstance(column, TextColumn):
                self.texts[name] = (*pieces(path + "/"), column)
            elif isinstance(column, ListColumn):
                self.lists[name] = pieces(path + "/")
            elif column is not None:
                number = name == "label" and store.header["label_type"] == "number"
                self.numbers[name] = checked(path), np.dtype(np.float32) if number else column.dtype
            elif name in store.tracks:
                path = f"tracks/{dataset_name(name)}"
                self.flats[name] = flat_of(path)

    def sample(self, row: int) -> Sample:
        """Return the sequence and the metadata of one row >= 0, in arrays of their own.

        Raises:
            StoreError: there is no such row, or what is read of it is damaged.
        """
        self._store.check_size()
        start, stop = self.sequences.one(row)
        metadata: dict[str, Any] = {"index": row}
        for name, (checked, dtype) in self.numbers.items():
            if checked.left:
                checked.touch(row, row + 1)
            number = checked.array[row]
            metadata[name] = number if number.dtype == dtype else dtype.type(number)
        for name in self.texts:
            metadata[name] = self.text(name, row)
        for name, (pieces, flat) in self.lists.items():
            metadata[name] = flat.read(*pieces.one(row))
        for key, track in self.flats.items():
            if key is not None:
                metadata[key] = track.read(start, stop)
        return self.flats[None].read(start, stop), metadata

    def plan(self, rows: np.ndarray) -> Plan:
        """Return the reading of (B,) int64 rows >= 0; raises as ``sample``."""
        self._store.check_size()
        plan = Plan(self, rows)
        if self._residency.is_cold(plan.starts):
            for flat in self.flats.values():
                flat.will_need(plan.starts, plan.lengths)
        return plan

    def lengths(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the lengths of some rows >= 0 as int64; raises as ``sample``."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self._store)))
        return self.sequences.many(rows)[1]

    def split(self, name: str) -> SplitRows:
        """Return the rows of a split."""
        if name not in self._store.splits:
            raise self._store.no_split(name)
        return SplitRows(self._store.splits[name], self._opened(f"splits/{dataset_name(name)}"))

    def text(self, name: str, row: int) -> str:
        """Return the text of one row in the column ``name``; raises as ``sample``."""
        pieces, flat, column = self.texts[name]
        flat.touch(*pieces.one(row))
        return column[row]


class Plan:
    """The reading of B rows of one store.

    Attributes:
        rows: (B,) int64.
        starts: (B,) int64, where each sequence starts among all elements.
        lengths: (B,) int64; ``longest`` is the largest of them.
        flats: dtype, shape and width of the elements of sequences (None) and tracks, as ``Flat`` has them.
    """

    __slots__ = ("_reader", "rows", "starts", "lengths", "longest")

    def __init__(self, reader: StoreReader, rows: np.ndarray) -> None:
        self._reader, self.rows = reader, rows
        self.starts, self.lengths, self.longest = reader.sequences.many(rows)

    @property
    def flats(self) -> dict[str | None, Flat | Inflated]:
        return self._reader.flats

    def pieces(self, name: str | None) -> Sequence[Buffer]:
        """Return the bytes of the B sequences (None), or of a track along them."""
        return self._reader.flats[name].pieces(self.starts, self.lengths, self.longest)

    def labels(self) -> np.ndarray | list[np.ndarray] | None:
        """Return (B,) int64 class numbers or float32 numbers, or B lists of class numbers, or None."""
        reader = self._reader
        if "label" in reader.numbers:
            checked, dtype = reader.numbers["label"]
            if checked.left:
                checked.touch_items(self.rows)
            return checked.array[self.rows].astype(np.float32 if dtype.kind == "f" else np.int64, copy=False)
        if "label" in reader.lists:
            pieces, flat = reader.lists["label"]
            return [flat.read(*pieces.one(row)) for row in self.rows.tolist()]
        return None

    @property
    def has_ids(self) -> bool:
        return "id" in self._reader.texts

    def ids(self) -> list[str]:
        """Return the B ids."""
        pieces, flat, _ = self._reader.texts["id"]
        try:
            return [str(text, "utf-8") for text in flat.pieces(*pieces.many(self.rows))]
        except UnicodeDecodeError:
            return [self._reader.text("id", row) for row in self.rows.tolist()]  # which says where


class ShardedReader:
    """Reads many stores as one; the reader of a shard is made when one of its rows is read first.

    Args:
        bounds: the rows before each shard, and of all at the end.
        open_shard: returns the reader of shard k.
        splits: the numbers of rows of each split by shard.
    """

    def __init__(self, bounds: list[int], open_shard: Callable[[int], StoreReader],
                 splits: dict[str, list[int]]) -> None:
        self._bounds, self._open_shard, self._splits = bounds, open_shard, splits
        self._readers: dict[int, StoreReader] = {}

    def shard(self, k: int) -> StoreReader:
        """Return the reader of shard ``k``."""
        if k not in self._readers:
            self._readers[k] = self._open_shard(k)
        return self._readers[k]

    def sample(self, row: int) -> Sample:
        """As ``StoreReader.sample``."""
        k, local = locate_part(self._bounds, row)
        sequence, metadata = self.shard(k).sample(local)
        metadata["index"] = row
        return sequence, metadata

    def plan(self, rows: np.ndarray) -> ShardedPlan:
        """As ``StoreReader.plan``."""
        return ShardedPlan(rows, [(which, self.shard(k).plan(rows[which] - self._bounds[k]))
                                  for k, which in parts_of(self._bounds, rows)])

    def lengths(self, rows: slice | np.ndarray) -> np.ndarray:
        """As ``StoreReader.lengths``."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self._bounds[-1]))
        lengths = np.empty(len(rows), np.int64)
        for k, which in parts_of(self._bounds, rows):
            lengths[which] = self.shard(k).lengths(rows[which] - self._bounds[k])
        return lengths

    def split(self, name: str) -> SplitRows:
        """As ``StoreReader.split``."""
        return SplitRows(Joined(lambda k: self.shard(k).split(name)[:], self._splits[name], "<i8",
                                shifts=self._bounds), None)


class ShardedPlan:
    """The reading of B rows that lie in several stores; attributes and methods as those of ``Plan``."""

    def __init__(self, rows: np.ndarray, parts: list[tuple[np.ndarray, Plan]]) -> None:
        self.rows, self._parts = rows, parts
        self.lengths = np.empty(len(rows), np.int64)
        for which, plan in parts:
            self.lengths[which] = plan.lengths
        self.longest = max(plan.longest for _, plan in parts)

    @property
    def flats(self) -> dict[str | None, Flat | Inflated]:
        return self._parts[0][1].flats

    def pieces(self, name: str | None) -> Sequence[Buffer]:
        found: list[Buffer] = [b""] * len(self.rows)
        for which, plan in self._parts:
            for i, piece in zip(which.tolist(), plan.pieces(name), strict=True):
                found[i] = piece
        return found

    def labels(self) -> np.ndarray | list[np.ndarray] | None:
        found = [(which, plan.labels()) for which, plan in self._parts]
        if found[0][1] is None:
            return None
        first = found[0][1]
        labels = np.empty(len(self.rows), first.dtype if isinstance(first, np.ndarray) else object)
        for which, part in found:
            labels[which] = part
        return labels if isinstance(first, np.ndarray) else list(labels)

    @property
    def has_ids(self) -> bool:
        return self._parts[0][1].has_ids

    def ids(self) -> list[str]:
        ids = dict.fromkeys(range(len(self.rows)), "")
        for which, plan in self._parts:
            ids |= zip(which.tolist(), plan.ids(), strict=True)
        return list(ids.values())


Reader = StoreReader | ShardedReader
