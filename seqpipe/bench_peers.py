"""The loaders people have today, each as short as its users write it.

Place in the flow: arrays -> [bench_peers] -> torch batches, to be measured by ``bench_store``.

Every loader gives shuffled batches of (padded, lengths, labels) tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

Item = tuple[np.ndarray, int]


def pad_items(items: list[Item]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Collate as everybody does: a tensor an item, then ``pad_sequence``."""
    sequences = [torch.from_numpy(sequence) for sequence, _ in items]
    padded = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return padded, lengths, torch.tensor([label for _, label in items])


class InMemory(Dataset[Item]):
    """A list of arrays."""

    def __init__(self, values: np.ndarray, offsets: np.ndarray, labels: np.ndarray) -> None:
        self.sequences = np.split(np.array(values), offsets[1:-1].astype(np.int64))
        self.labels = labels.tolist()

    def __getitem__(self, index: int) -> Item:
        return self.sequences[index], self.labels[index]


class BinIdx(Dataset[Item]):
    """A file of tokens and an index of pointers and lengths, both mapped: as Megatron's IndexedDataset."""

    def __init__(self, stem: Path, dtype: np.dtype, channels: tuple[int, ...], labels: np.ndarray) -> None:
        self.stem, self.dtype, self.channels, self.labels = stem, dtype, channels, labels
        self.width = int(np.prod(channels, dtype=np.int64))
        index = np.memmap(stem.with_suffix(".idx"), mode="r", order="C").data
        count = len(index) // 12
        self.lengths = np.frombuffer(index, np.int32, count)
        self.pointers = np.frombuffer(index, np.int64, count, offset=4 * count)
        self.buffer = np.memmap(stem.with_suffix(".bin"), mode="r", order="C").data

    @classmethod
    def write(cls, stem: Path, values: np.ndarray, offsets: np.ndarray) -> None:
        """Write both files."""
        values.tofile(stem.with_suffix(".bin"))
        row = values.nbytes // max(1, len(values))
        with open(stem.with_suffix(".idx"), "wb") as file:
            np.diff(offsets).astype(np.int32).tofile(file)
            (offsets[:-1] * row).astype(np.int64).tofile(file)

    def __getitem__(self, index: int) -> Item:
        pointer, length = self.pointers[index], self.lengths[index]
        flat = np.frombuffer(self.buffer, self.dtype, length * self.width, pointer)
        return flat.reshape(-1, *self.channels).copy(), int(self.labels[index])


class Hdf5Slices(Dataset[Item]):
    """One slice of one flat h5py dataset an item, as a careful user writes it."""

    def __init__(self, path: Path, labels: np.ndarray) -> None:
        self.path, self.labels = path, labels
        self.values: Any = None
        with h5py.File(path) as file:
            self.offsets = file["offsets"][:].tolist()

    def __getitem__(self, index: int) -> Item:
        if self.values is None:  # opened in the process that reads
            self.values = h5py.File(self.path)["values"]
        return self.values[self.offsets[index] : self.offsets[index + 1]], int(self.labels[index])


class Hdf5Vlen(Dataset[Item]):
    """One item of a variable-length h5py dataset, as most users write it."""

    def __init__(self, path: Path, channels: tuple[int, ...], labels: np.ndarray) -> None:
        self.path, self.channels, self.labels = path, channels, labels
        self.sequences: Any = None

    @classmethod
    def write(cls, path: Path, values: np.ndarray, offsets: np.ndarray) -> None:
        """Write the dataset in steps of 10,000 sequences."""
        ends = offsets.astype(np.int64)
        with h5py.File(path, "w") as file:
            dataset = file.create_dataset("sequences", len(ends) - 1, h5py.vlen_dtype(values.dtype))
            for first in range(0, len(dataset), 10_000):
                part = ends[first : first + 10_001]
                rows = np.empty(len(part) - 1, object)
                rows[:] = [values[a:b].reshape(-1) for a, b in zip(part[:-1], part[1:], strict=True)]
                dataset[first : first + len(rows)] = rows

    def __getitem__(self, index: int) -> Item:
        if self.sequences is None:
            self.sequences = h5py.File(self.path)["sequences"]
        return self.sequences[index].reshape(-1, *self.channels), int(self.labels[index])


def torch_loader(dataset: Dataset[Any], collate: Callable[..., Any] = pad_items) -> Callable[..., Any]:
    """Return a function of (batches, num_workers) that loads them through a torch DataLoader."""
    def load(batches: Sequence[list[int]], num_workers: int) -> Any:
        return DataLoader(dataset, batch_sampler=batches, collate_fn=collate, num_workers=num_workers)
    return load


def by_hand(values: np.ndarray, offsets: np.ndarray, labels: np.ndarray) -> Callable[..., Any]:
    """Return the loop written by hand over mapped arrays: no DataLoader, no check; the upper bound."""
    row = values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    source = values.reshape(-1).view(np.uint8).data
    ends = offsets.view(np.int64)

    def load(batches: Sequence[list[int]], num_workers: int) -> Iterator[tuple[torch.Tensor, ...]]:
        for batch in batches:
            index = np.array(batch)
            starts = ends[index]
            lengths = ends[index + 1] - starts
            longest = int(lengths.max())
            padded = np.zeros(len(batch) * longest * row, np.uint8)
            target, at = padded.data, 0
            for start, size in zip((starts * row).tolist(), (lengths * row).tolist(), strict=True):
                target[at : at + size] = source[start : start + size]
                at += longest * row
            sequences = padded.view(values.dtype).reshape(len(batch), longest, *values.shape[1:])
            yield torch.from_numpy(sequences), torch.from_numpy(lengths), torch.from_numpy(labels[index])
    return load
