"""The store as a torch dataset of ``(encoded_sequence, metadata)`` tuples.

Place in the flow: store -> [sequences] -> DataLoader -> collate.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from seqpipe.errors import SeqpipeError
from seqpipe.reading import Plan, Reader, ShardedPlan, ShardedReader, SplitRows, StoreReader
from seqpipe.sharded import Data, ShardedStore, open_store
from seqpipe.store import Store
from seqpipe.transforms import Sample, Transform


class Lengths:
    """(N,) lengths that are computed only where they are asked for; slice it, or ``np.asarray`` it."""

    def __init__(self, reader: Reader, rows: SplitRows | None, count: int) -> None:
        self._reader, self._rows, self._count = reader, rows, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: Any) -> Any:
        """Return an int for an integer, int64 for a slice, an index array or a mask.

        Raises:
            IndexError: an index is out of range, or a mask has another length.
            TypeError: the key is none of these.
        """
        if isinstance(key, slice):
            return self._reader.lengths(key if self._rows is None else self._rows[key])
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
        return self._reader.lengths(rows if self._rows is None else self._rows[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)


class _Stackable(tuple):
    """A sample that torch's ``default_collate`` can stack, or else learns from us why not."""


def _stack(samples: Sequence[Sample], *, collate_fn_map: Any = None) -> list[Any]:
    lengths = sorted({len(sequence) for sequence, _ in samples})
    if len(lengths) > 1:
        raise SeqpipeError(f"torch's default_collate stacks sequences of one length only; found {lengths[0]} to "
                           f"{lengths[-1]} elements in a batch of {len(samples)}: use seqpipe.get_dataloader, or give "
                           "the DataLoader collate_fn=seqpipe.collate.fill")
    return [collate(list(part), collate_fn_map=collate_fn_map) for part in zip(*samples, strict=True)]


default_collate_fn_map[_Stackable] = _stack


class RaggedBatch(Sequence[Sample]):
    """The samples of one batch; read on demand where they are planned.

    Attributes:
        num_classes: of the store, which (B, K) labels need.
        plan: reads all of them at once; None where there are only samples.
    """

    def __init__(
        self, samples: Iterable[Sample] | None, num_classes: int | None = None, plan: Plan | ShardedPlan | None = None,
        read: Callable[[int], Sample] | None = None,
    ) -> None:
        self._samples: list[Any] | None = None if samples is None else list(map(_Stackable, samples))
        self.num_classes, self.plan, self._read = num_classes, plan, read

    def __len__(self) -> int:
        return len(self.samples) if self.plan is None else len(self.plan.rows)

    def __getitem__(self, key: Any) -> Any:
        return self.samples[key]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __reduce__(self) -> Any:
        return RaggedBatch, (self.samples, self.num_classes)

    @property
    def samples(self) -> list[Sample]:
        """The samples as a list, read once."""
        if self._samples is None:
            assert self.plan is not None and self._read is not None
            self._samples, self.plan = [_Stackable(self._read(row)) for row in self.plan.rows.tolist()], None
        return self._samples


class SequenceDataset(Dataset[Sample]):
    """A map-style dataset over a store, or over one split of it.

    Holds no file handle: it pickles to its path and options, works under fork, spawn and
    forkserver, and maps the file again where it arrives.

    Args:
        data: path of a store or of a manifest, a list of such paths, or an open store.
        split: only this split; None is the whole store.
        transform: called as ``transform(encoded_sequence, metadata, rng)`` with a generator that
            depends on (seed, epoch, row) alone, so that its draws do not depend on workers;
            returns the new pair. It may shorten a sequence, never lengthen it.
        columns: the metadata columns and tracks wanted; None is all. ``index`` is always there.
        seed: keys the transform's generator; 0 or more.
        verify: check the CRC-32 and the content of each 64 KiB block the first time this process reads from it.

    Raises:
        StoreError: the file is no store, or has no such split.
        ValueError: a column does not exist, or an argument has the wrong type.
    """

    # Made from the store; none of it travels in a pickle.
    _DERIVED = frozenset({"_rows", "_reader", "_size", "_num_classes"})

    def __init__(
        self,
        data: Data | Store | ShardedStore,
        split: str | None = None,
        transform: Transform | None = None,
        columns: Iterable[str] | None = None,
        seed: int = 0,
        verify: bool = True,
    ) -> None:
        self.store = open_store(data)
        self.verify = verify
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
        return self._size

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
        i = index if type(index) is int else self._as_int(index)
        if not 0 <= i < self._size:
            if not -self._size <= i < 0:
                raise IndexError(f"index {index} is out of range; expected {-self._size} <= index < {self._size}")
            i += self._size
        row = i if self._rows is None else self._rows[i]
        sample = self._reader.sample(row)
        return sample if self.transform is None else self._transformed(*sample, row)

    def __getitems__(self, indices: Sequence[int]) -> RaggedBatch:
        """Return the samples of one batch, in the order of ``indices``; raises as ``__getitem__``.

        Without a transform they are read when the batch is looked at, or collated in one go.
        """
        if self.transform is None and type(self).__getitem__ is SequenceDataset.__getitem__:
            index = np.array(indices)
            if index.ndim == 1 and index.dtype.kind in "iu" and index.size:
                index = index.astype(np.int64, copy=False)
                # Whatever is not plain integers in range goes one by one, which says what is wrong.
                if np.maximum.reduce(index.view(np.uint64)) < self._size:  # seen so, a negative number is very large
                    rows = index if self._rows is None else self._rows[index]
                    return RaggedBatch(None, self._num_classes, self._reader.plan(rows), self._reader.sample)
        return RaggedBatch([self[index] for index in indices], self._num_classes)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._DERIVED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    @property
    def lengths(self) -> Lengths:
        """Elements per sequence, in the order of this dataset; sliceable, computed where asked for."""
        return Lengths(self._reader, self._rows, self._size)

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
        if self.transform is not None:
            self._epoch.share_memory_()
        self._reader = _open_reader(self.store, self.columns, self.verify)
        self._rows = None if self.split is None else self._reader.split(self.split)
        self._num_classes = len(self.store.classes)
        self._size = len(self.store) if self._rows is None else len(self._rows)

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
        alphabet, tokens = self.store.alphabet, result[0]
        if alphabet is not None and tokens.dtype.kind in "iu" and tokens.size:
            # A network would crash on it, far from here.
            if tokens.min() < 0 or tokens.max() >= alphabet.num_tokens:
                raise SeqpipeError(f"{where} made tokens {tokens.min()} to {tokens.max()}; expected 0 <= token < "
                                   f"{alphabet.num_tokens}")
        return result


def _open_reader(store: Store | ShardedStore, columns: list[str], verify: bool) -> Reader:
    if isinstance(store, Store):
        return StoreReader(store, columns, verify=verify)
    return ShardedReader(store.bounds, lambda k: StoreReader(store.shard(k), columns, verify=verify),
                         {name: rows.counts for name, rows in store.splits.items()})
