"""Read samples and whole batches of rows, of one store or of many.

Place in the flow: store -> pieces -> [reading] -> sequences, collate.

A reader has two doors: ``sample(row)`` and ``plan(rows)``. A plan knows the lengths of its B
sequences; labels and ids are gathered when they are asked for, and the bytes of sequences and
tracks are named where they lie in the map: no array is made per sequence, none is copied twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from seqpipe.checking import Checked
from seqpipe.chunks import Chunks
from seqpipe.columns import ListColumn, TextColumn
from seqpipe.joined import Joined, locate_part, parts_of
from seqpipe.layout import dataset_name
from seqpipe.pieces import Buffer, Flat, Inflated, Pieces, Residency, SplitRows
from seqpipe.store import Store
from seqpipe.transforms import Sample


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
            return store.checked(name) if verify else Checked(store.arrays[name], None, will_need=partial(
                store.mapping.fetch, name))

        def flat_of(name: str) -> Flat | Inflated:
            return Inflated(store, name, verify=verify) if isinstance(store.arrays[name], Chunks) else \
                Flat(store, name, checked(name) if verify else Checked(store.arrays[name], None))

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
        texts = flat.pieces(*pieces.many(self.rows))
        try:
            joined = str(b"\0".join(texts), "utf-8").split("\0")
            return joined if len(joined) == len(texts) else [str(text, "utf-8") for text in texts]
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
