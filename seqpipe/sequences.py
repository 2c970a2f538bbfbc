"""The store as a torch dataset of ``(encoded_sequence, metadata)`` tuples.

Place in the flow: store -> [sequences] -> DataLoader -> collate.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from seqpipe.errors import SeqpipeError
from seqpipe.store import Store, TextColumn
from seqpipe.transforms import Sample, Transform


class Lengths:
    """(N,) lengths that are computed only where they are asked for; slice it, or ``np.asarray`` it."""

    def __init__(self, store: Store, rows: np.ndarray | None) -> None:
        self._store, self._rows = store, rows

    def __len__(self) -> int:
        return len(self._store) if self._rows is None else len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """Return an int for an integer, int64 for a slice, an index array or a mask.

        Raises:
            IndexError: an index is out of range, or a mask has another length.
            TypeError: the key is none of these.
        """
        if isinstance(key, slice):
            return self._store.lengths(key if self._rows is None else self._rows[key])
        if np.ndim(key) == 0:
            return int(self[np.array([operator.index(key)])][0])
        wanted = np.asarray(key)
        if wanted.dtype == bool:
            if wanted.shape != (len(self),):
                raise IndexError(f"a mask of shape {wanted.shape} for {len(self)} lengths")
            wanted = np.flatnonzero(wanted)
        elif wanted.size and wanted.dtype.kind not in "iu":
            raise TypeError(f"lengths take integers, slices, index arrays and masks; found {wanted.dtype}")
        rows = wanted.astype(np.int64)
        rows[rows < 0] += len(self)
        if outside := rows[(rows < 0) | (rows >= len(self))].tolist():
            raise IndexError(f"index {outside[0]} is out of range; expected 0 <= index < {len(self)}")
        return self._store.lengths(rows if self._rows is None else self._rows[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)


class SequenceDataset(Dataset[Sample]):
    """A map-style dataset over a store, or over one split of it.

    Holds no file handle: it pickles to its path and options, works under fork, spawn and
    forkserver, and maps the file again where it arrives.

    Args:
        data: path of a store, or an open Store.
        split: only this split; None is the whole store.
        transform: called as ``transform(encoded_sequence, metadata, rng)`` with a generator that
            depends on (seed, epoch, row) alone, so that its draws do not depend on workers;
            returns the new pair. It may shorten a sequence, never lengthen it.
        columns: the metadata columns and tracks wanted; None is all. ``index`` is always there.
        seed: keys the transform's generator; 0 or more.

    Raises:
        StoreError: the file is no store, or has no such split.
        ValueError: a column does not exist, or an argument has the wrong type.
    """

    _DERIVED = frozenset({"_rows", "_reading"})  # made from the store; none of it travels in a pickle

    def __init__(
        self,
        data: Path | str | Store,
        split: str | None = None,
        transform: Transform | None = None,
        columns: Iterable[str] | None = None,
        seed: int = 0,
    ) -> None:
        self.store = data if isinstance(data, Store) else Store(data)
        self.split = split
        self.transform = transform
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64, device="cpu")
        if transform is not None and not callable(transform):
            raise ValueError(f"transform={transform!r}; expected a function of (encoded_sequence, metadata, rng)")
        if seed < 0:
            raise ValueError(f"seed={seed}; expected 0 or more")
        known = [*self.store.metadata, *self.store.tracks]
        if isinstance(columns, str):
            raise ValueError(f"columns={columns!r}; expected a list of names, such as [{columns!r}]")
        self.columns = known if columns is None else list(columns)
        if unknown := [name for name in self.columns if name not in {*known, "index"}]:
            raise ValueError(f"no metadata column {unknown[0]!r}; {self.store.path} has {known}")
        self._prepare()

    @property
    def epoch(self) -> int:
        """The epoch that keys a transform's draws, 0-based; loader processes see it at once."""
        return int(self._epoch)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def follow_epoch(self, epoch: torch.Tensor) -> None:
        """Read the epoch from this shared int64 scalar from now on."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self.store) if self._rows is None else len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample.

        Args:
            index: 0 <= index < len(self), or negative from the end.

        Returns:
            The sequence, a writable copy: (T,) tokens or (T, C) features in the store's dtype; and a
            dict of ``index`` (the row in the whole store), numbers, texts, ``label`` and tracks.

        Raises:
            IndexError: the index is out of range.
            TypeError: the index is no integer.
        """
        num_sequences, rows, last, ends, values, num_values, numbers, texts, tracks = self._reading
        i = index if type(index) is int else self._as_int(index)
        if not 0 <= i < num_sequences:
            if not -num_sequences <= i < 0:
                raise IndexError(
                    f"index {index} is out of range; expected {-num_sequences} <= index < {num_sequences}"
                )
            i += num_sequences
        row = i if rows is None else rows[i]
        if row > last:
            self.store.sequence(row)  # says what is damaged; an IndexError would end a loop without a word
        after = row + 1
        start, end = ends[row], ends[after]
        if not start <= end <= num_values:
            self.store.sequence(row)
        sequence = values[start:end].copy()
        metadata: dict[str, Any] = {"index": row}
        for name, column in numbers:
            metadata[name] = column[row]
        try:
            for name, column, text, text_ends, num_bytes in texts:
                first, stop = text_ends[row], text_ends[after]
                if not first <= stop <= num_bytes:
                    column[row]  # says what is damaged
                metadata[name] = text[first:stop].tobytes().decode()
        except UnicodeDecodeError:
            column[row]
            raise
        for name, track in tracks:
            metadata[name] = track[start:end].copy()
        if self.transform is None:
            return sequence, metadata
        return self._transformed(sequence, metadata, row)

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return the samples of one batch, in the order of ``indices``."""
        return [self[index] for index in indices]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._DERIVED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    @property
    def lengths(self) -> Lengths:
        """Elements per sequence, in the order of this dataset; sliceable, computed where asked for."""
        return Lengths(self.store, self._rows)

    @property
    def classes(self) -> list[str]:
        """Class names by class number; empty without classes."""
        return self.store.classes

    @property
    def channels(self) -> list[str]:
        """Channel names; empty for tokens."""
        return self.store.channels

    def decode(self, encoded_sequence: np.ndarray) -> str:
        """Return the text of token ids, padding left out.

        Raises:
            TypeError: the store holds features, which have no text.
        """
        if self.store.alphabet is None:
            raise TypeError(f"{self.store.path} holds features, which have no text")
        return self.store.alphabet.decode(encoded_sequence)

    @staticmethod
    def _as_int(index: Any) -> int:
        try:
            return operator.index(index)
        except TypeError:
            raise TypeError(
                f"index {index!r}: a dataset takes one integer; for a part of it use torch.utils.data.Subset"
            ) from None

    def _prepare(self) -> None:
        """Gather what ``__getitem__`` reads: a call of a method or an attribute per column would double its time."""
        store = self.store
        if self.transform is not None:
            self._epoch.share_memory_()
        self._rows = None if self.split is None else store.split_rows(self.split)
        columns = [(name, store.metadata[name]) for name in self.columns if name in store.metadata]
        # Memoryviews give Python ints, in half the time of NumPy's.
        self._reading = (
            len(self),
            None if self._rows is None else self._rows.data,
            len(store) - 1,
            store.offsets.data,
            store.values,
            len(store.values),
            [(name, _label_reader(store, column) if name == "label" else column)
             for name, column in columns if not isinstance(column, TextColumn)],
            [(name, column, column.values.data, column.offsets.data, len(column.values))
             for name, column in columns if isinstance(column, TextColumn)],
            [(name, store.tracks[name]) for name in self.columns if name in store.tracks],
        )

    def _transformed(self, sequence: np.ndarray, metadata: dict[str, Any], row: int) -> Sample:
        assert self.transform is not None
        rng = np.random.default_rng([self.seed, self.epoch, row])
        num_elements = len(sequence)
        where = f"{self.store.path}: row {row}: the transform"
        try:
            result = self.transform(sequence, metadata, rng)
        except Exception as error:
            error.add_note(f"{where} raised this")
            raise
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], np.ndarray)
                and isinstance(result[1], dict)):
            found = f"({', '.join(type(part).__name__ for part in result)})" if isinstance(result, tuple) else \
                type(result).__name__
            raise SeqpipeError(f"{where} returned {found}; expected the pair (encoded_sequence, metadata) of a NumPy "
                               "array and a dict")
        if result[0].ndim == 0 or len(result[0]) > num_elements:
            raise SeqpipeError(f"{where} made shape {result[0].shape} of {num_elements} elements; it may shorten a "
                               "sequence, never lengthen it")
        return result


def _label_reader(store: Store, column: np.ndarray) -> Any:
    """Return the label column in the type samples have: int64 classes, float32 numbers."""
    return _Float32(column) if store.header["label_type"] == "number" else column


class _Float32:
    """Float64 numbers read as float32."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __getitem__(self, row: int) -> np.float32:
        return np.float32(self._column[row])
