"""The store as a torch dataset of ``(encoded_sequence, metadata)`` tuples.

Place in the flow: store -> [sequences] -> DataLoader -> collate.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from seqpipe.errors import SeqpipeError
from seqpipe.store import Store, TextColumn

Sample = tuple[np.ndarray, dict[str, Any]]
Transform = Callable[[np.ndarray, dict[str, Any], np.random.Generator], Sample]


class Lengths:
    """(N,) lengths that are computed only where they are asked for; slice it, or ``np.asarray`` it."""

    def __init__(self, store: Store, rows: np.ndarray | None) -> None:
        self._store, self._rows = store, rows

    def __len__(self) -> int:
        return len(self._store) if self._rows is None else len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """Return an int for an integer, (n,) int64 for a slice or an index array."""
        if isinstance(key, slice):
            return self._store.lengths(key if self._rows is None else self._rows[key].astype(np.int64))
        scalar = np.ndim(key) == 0
        if scalar:
            key = operator.index(key)
            key += len(self) if key < 0 else 0
            if not 0 <= key < len(self):
                raise IndexError(f"index {key} is out of range; expected 0 <= index < {len(self)}")
        wanted = np.atleast_1d(np.asarray(key))
        rows = np.arange(len(self))[wanted] if wanted.dtype == bool else wanted.astype(np.int64)
        if self._rows is not None:
            rows = self._rows[rows].astype(np.int64)
        lengths = self._store.lengths(rows)
        return int(lengths[0]) if scalar else lengths

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
        columns: the metadata columns wanted; None is all. ``index`` is always there.
        seed: keys the transform's generator.

    Raises:
        StoreError: the file is no store, or has no such split.
        ValueError: a column does not exist.
    """

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
        self.epoch = 0
        self.columns = list(self.store.metadata if columns is None else columns)
        if unknown := [name for name in self.columns if name not in {*self.store.metadata, "index"}]:
            raise ValueError(f"no metadata column {unknown[0]!r}; {self.store.path} has {list(self.store.metadata)}")
        self._prepare()

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
        """
        i = operator.index(index)
        if i < 0:
            i += len(self)
        if not 0 <= i < len(self):
            raise IndexError(f"index {index} is out of range; expected {-len(self)} <= index < {len(self)}")
        row = i if self._rows is None else int(self._rows[i])
        view = self.store.sequence(row)
        metadata: dict[str, Any] = {"index": row}
        for name, column in self._read:
            metadata[name] = column[row]
        if self._tracks:
            start = int(self.store.offsets[row])
            for name, track in self._tracks:
                metadata[name] = track[start : start + len(view)].copy()
        if self.transform is None:
            return view.copy(), metadata
        return self._transformed(view.copy(), metadata, row)

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return the samples of one batch, in the order of ``indices``."""
        return [self[index] for index in indices]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

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

    def _prepare(self) -> None:
        """Derive from the store what ``__getitem__`` reads; none of it travels in a pickle."""
        self._rows = None if self.split is None else self.store.split_rows(self.split)
        columns = [(name, self.store.metadata[name]) for name in self.columns if name != "index"]
        self._read = [(name, _label_reader(self.store, column) if name == "label" else column)
                      for name, column in columns]
        self._tracks = list(self.store.tracks.items())

    def _transformed(self, sequence: np.ndarray, metadata: dict[str, Any], row: int) -> Sample:
        assert self.transform is not None
        rng = np.random.default_rng([self.seed, self.epoch, row])
        num_elements = len(sequence)
        result = self.transform(sequence, metadata, rng)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise SeqpipeError(
                f"{self.store.path}: row {row}: the transform returned {type(result).__name__}; "
                "expected the pair (encoded_sequence, metadata)"
            )
        if len(result[0]) > num_elements:
            raise SeqpipeError(
                f"{self.store.path}: row {row}: the transform made {len(result[0])} elements of {num_elements}; "
                "it may shorten a sequence, never lengthen it"
            )
        return result


def _label_reader(store: Store, column: np.ndarray | TextColumn) -> Any:
    """Return the label column in the type samples have: int64 classes, float32 numbers."""
    return _Float32(column) if store.header["label_type"] == "number" else column


class _Float32:
    """Float64 numbers read as float32."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __getitem__(self, row: int) -> np.float32:
        return np.float32(self._column[row])
