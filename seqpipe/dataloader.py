"""One call from a store to a DataLoader of padded batches.

Place in the flow: sequences + samplers + collate + iteration -> [dataloader] -> training.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Subset

from seqpipe.batch import Batch
from seqpipe.batch_settings import MIXING, WINDOW
from seqpipe.collate import PADDINGS
from seqpipe.device import count_cores
from seqpipe.errors import LongSequenceError, OptionError
from seqpipe.iteration import SequenceLoader, base_dataset, check_count
from seqpipe.manifest import data_digest
from seqpipe.samplers import LengthBatchSampler
from seqpipe.sequences import SequenceDataset
from seqpipe.sharded import Data, ShardedStore
from seqpipe.store import Store
from seqpipe.transforms import Sample, Transform, is_track
from seqpipe.weights import balanced_weights
from seqpipe.world import rank_and_size

DEFAULT_BATCH_SIZE = 32


def get_dataloader(
    data: Data | SequenceDataset | Subset,
    batch_size: int | None = None,
    shuffle: bool = False,
    transform: Transform | None = None,
    subset: int | None = None,
    num_workers: int | Literal["auto"] = "auto",
    split: str | None = None,
    max_tokens: int | None = None,
    bucket: bool | None = None,
    padding: str = "fill",
    padding_side: str = "right",
    pad_to_multiple: int = 1,
    drop_last: bool = False,
    pin_memory: bool | Literal["auto"] = "auto",
    seed: int = 0,
    *,
    sampling: str = "uniform",
    mixing: float = MIXING,
    window: int = WINDOW,
    on_long: str = "error",
    longest_first: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    verify: bool = True,
    **options: Any,
) -> SequenceLoader:
    """Return a DataLoader of padded ``Batch``es that resumes at any batch.

    Args:
        data: path of a store or of a manifest, a list of such paths, a SequenceDataset, or a Subset of one
            (``random_split`` makes them).
        batch_size: sequences a batch at most; None is 32, or without limit where there is ``max_tokens``.
        shuffle: a new order each epoch, drawn from (seed, epoch).
        transform: see SequenceDataset; only with a path.
        subset: only the first ``subset`` sequences in the store's order, after the split.
        num_workers: loader processes; ``auto`` is 0 unless there is a transform.
        split: only this split; only with a path.
        max_tokens: rows x padded length of a batch at most, padding included.
        bucket: sequences of like length into one batch; None follows ``shuffle``.
        padding: ``fill``, ``pad_sequence`` or ``manual``: the collate function.
        padding_side: ``right`` or ``left``.
        pad_to_multiple: the padded length is rounded up to a multiple of this.
        drop_last: leave out a batch that is not full.
        pin_memory: page-locked batches; ``auto`` where there is CUDA.
        seed: of the order and, with a path, of the transform; 0 or more.
        sampling: ``uniform``: each sequence once an epoch; ``balanced``: as many draws as there are sequences,
            each class as often as any other; ``weighted:COLUMN``: draws by a metadata column of numbers.
        mixing, window, longest_first: as ``batch_settings.PlanSettings``: more mixing is more padding.
        on_long: what becomes of a sequence over ``max_tokens``: ``error``, ``truncate``, ``skip`` or ``alone``;
            how many there are is said in one line.
        rank, world_size: this process takes every ``world_size``-th batch from ``rank`` on; None is what torchrun
            set (RANK, WORLD_SIZE), or all batches.
        verify: check each block of the store on its first touch; see SequenceDataset, which has it for datasets.
        options: further arguments of torch's DataLoader, such as ``multiprocessing_context``.

    Raises:
        StoreError: the path is no store, or has no such split.
        OptionError: the data do not fit a setting: a sequence over the budget, a class without members.
        ValueError: an argument is out of range or does not go with another.
    """
    if batch_size is None and max_tokens is None:
        batch_size = DEFAULT_BATCH_SIZE
    for name, value, least in (
        ("batch_size", 1 if batch_size is None else batch_size, 1), ("pad_to_multiple", pad_to_multiple, 1),
        ("max_tokens", 1 if max_tokens is None else max_tokens, 1), ("seed", seed, 0), ("window", window, 1),
        ("subset", 1 if subset is None else subset, 1), ("num_workers", 0 if num_workers == "auto" else num_workers, 0),
    ):
        check_count(name, value, least)
    for name, choice, choices in (
        ("padding", padding, tuple(PADDINGS)), ("padding_side", padding_side, ("right", "left")),
        ("pin_memory", pin_memory, (True, False, "auto")),
    ):
        if choice not in choices:
            raise ValueError(f"{name}={choice!r}; expected one of {', '.join(map(repr, choices))}")
    if taken := sorted({"sampler", "batch_sampler", "collate_fn", "generator"} & set(options)):
        raise ValueError(f"{taken[0]}: get_dataloader makes its own; for another one use torch's "
                         "DataLoader(SequenceDataset(...), ...)")
    if not options.get("in_order", True):
        raise ValueError("in_order=False: batches come in the order of the plan, so that positions can be resumed; for "
                         "any order use torch's DataLoader(SequenceDataset(...), ...)")
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank} and world_size={world_size}; expected both or neither")
    if rank is None or world_size is None:
        rank, world_size = rank_and_size()
    dataset = _as_dataset(data, split, transform, seed, verify)
    if subset is not None:
        print(f"subset: the first {min(subset, len(dataset)):,} of {len(dataset):,} sequences", file=sys.stderr)
        dataset = Subset(dataset, range(min(subset, len(dataset))))
    if num_workers == "auto":
        num_workers = _auto_workers(base_dataset(dataset).transform is not None)
    try:
        sampler = LengthBatchSampler(
            sequence_lengths(dataset), batch_size=batch_size, max_tokens=max_tokens, shuffle=shuffle,
            bucket=shuffle if bucket is None else bucket, drop_last=drop_last, seed=seed, window=window,
            pad_to_multiple=pad_to_multiple, on_long=on_long, longest_first=longest_first, mixing=mixing,
            weights=sampling_weights(dataset, sampling), rank=rank, world_size=world_size,
            source=_source(base_dataset(dataset).store),
        )
    except LongSequenceError as error:
        raise _located(error, dataset) from None
    longest = sampler.settings.longest_allowed
    if longest is not None and on_long != "error":
        _announce_long(dataset, longest, on_long)
    collate: Callable[..., Batch] = functools.partial(
        PADDINGS[padding], padding_side=padding_side, pad_to_multiple=pad_to_multiple,
        num_classes=len(base_dataset(dataset).store.classes))
    return SequenceLoader(
        dataset,
        sampler,
        seed=seed,
        collate_fn=functools.partial(_collate_cut, collate, longest) if longest and on_long == "truncate" else collate,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available() if pin_memory == "auto" else pin_memory,
        **options,
    )


def restore_order(dataset: SequenceDataset | Subset, index: Any, results: Any) -> np.ndarray:
    """Return results, one a sequence in whatever order they were made, in the order of ``dataset``.

    Args:
        dataset: what the loader read.
        index: (n,) rows of the store, those of all batches one after another; -1 (a filler) is left out.
        results: (n, ...) a tensor or array, in the order of ``index``; those of several ranks may follow each other.

    Raises:
        ValueError: a sequence of the dataset has no result, or two.
    """
    found, values, wanted = np.asarray(index), np.asarray(results), store_rows(dataset)
    if found.shape != values.shape[:1]:
        raise ValueError(f"index of shape {found.shape} and results of shape {values.shape}; expected one result a row")
    values, found = values[found >= 0], found[found >= 0]
    order, places = np.argsort(found, kind="stable"), np.argsort(wanted, kind="stable")
    if not np.array_equal(found[order], wanted[places]):
        missing = np.setdiff1d(wanted, found)[:1].tolist()
        raise ValueError(f"{len(found)} results for {len(wanted)} sequences"
                         + (f"; none for row {missing[0]}" if missing else "; a row has more than one")
                         + ": expected one for each, as an epoch of uniform sampling without drop_last gives")
    restored = np.empty_like(values)
    restored[places] = values[order]
    return restored


def sampling_weights(dataset: SequenceDataset | Subset, sampling: str) -> np.ndarray | None:
    """Return the (n,) weights with which sequences are drawn; None where each comes once.

    Args:
        dataset: its labels or column are read.
        sampling: ``uniform``, ``balanced`` or ``weighted:COLUMN``.

    Raises:
        OptionError: there are no classes, one has no members, or there is no such column of numbers.
    """
    kind, _, column = str(sampling).partition(":")
    store = base_dataset(dataset).store
    if sampling == "uniform":
        return None
    if sampling == "balanced":
        if not store.classes:
            raise OptionError(f"{store.path}: sampling 'balanced' draws classes alike, and this store has none; use "
                              "uniform or weighted:COLUMN")
        return balanced_weights(np.asarray(store.column("label"))[store_rows(dataset)], store.classes)
    if kind != "weighted" or not column:
        raise OptionError(f"sampling {sampling!r}; expected uniform, balanced or weighted:COLUMN")
    numbers = [name for name, values in store.metadata.items() if getattr(values, "dtype", np.dtype("O")).kind in "iuf"]
    if column not in numbers:
        raise OptionError(f"{store.path}: sampling 'weighted:{column}': expected one of the columns of numbers, "
                          f"{', '.join(map(repr, numbers)) or 'and this store has none'}")
    return np.asarray(store.column(column))[store_rows(dataset)]


def sequence_lengths(dataset: SequenceDataset | Subset) -> Any:
    """Return the lengths of a dataset in its own order: lazy, or an (n,) int64 array for a Subset."""
    if isinstance(dataset, Subset):
        indices = np.asarray(dataset.indices, np.int64)
        return sequence_lengths(dataset.dataset)[indices]  # type: ignore[arg-type]
    return dataset.lengths


def store_rows(dataset: SequenceDataset | Subset) -> np.ndarray:
    """Return the (n,) int64 rows of the whole store that a dataset holds, in its order."""
    if isinstance(dataset, Subset):
        return store_rows(dataset.dataset)[np.asarray(dataset.indices, np.int64)]  # type: ignore[arg-type]
    if dataset.split is None:
        return np.arange(len(dataset.store))
    return dataset.store.split_rows(dataset.split).astype(np.int64)


def _as_dataset(
    data: Data | SequenceDataset | Subset, split: str | None, transform: Transform | None, seed: int, verify: bool
) -> SequenceDataset | Subset:
    if isinstance(data, Path | str) or isinstance(data, list) and all(isinstance(path, Path | str) for path in data):
        return SequenceDataset(data, split, transform, seed=seed, verify=verify)
    if split is not None or transform is not None or not verify:
        raise ValueError("split, transform and verify go with a path; for a dataset give them to SequenceDataset")
    base_dataset(data)  # type: ignore[arg-type]
    return data  # type: ignore[return-value]


def _source(store: Store | ShardedStore) -> str:
    """Return a digest of the numbers and texts of all data: where a state resumes, the data are those of then.

    Headers are left out: where the data came from, such as the name of a raw file, changes no batch.
    """
    return store.manifest.data if isinstance(store, ShardedStore) else data_digest(store.checksums)


def _located(error: LongSequenceError, dataset: SequenceDataset | Subset) -> OptionError:
    """Return the error with the row and the id of the sequence that is too long."""
    store = base_dataset(dataset).store
    if error.index is None:
        return error
    row = int(store_rows(dataset)[error.index])
    name = f" (id {str(store.metadata['id'][row])!r})" if "id" in store.metadata else ""
    return OptionError(f"{store.path}: row {row}{name}: {error}")


def _announce_long(dataset: SequenceDataset | Subset, longest: int, on_long: str) -> None:
    """Say how many sequences are over the budget, and what becomes of them."""
    lengths, chunk = sequence_lengths(dataset), 2**18
    count = sum(int((np.asarray(lengths[i : i + chunk]) > longest).sum()) for i in range(0, len(lengths), chunk))
    if count:
        fate = {"truncate": f"cut to {longest:,}", "skip": "left out", "alone": "each a batch of its own"}[on_long]
        print(f"on_long: {count:,} of {len(lengths):,} sequences are longer than {longest:,} elements: {fate}",
              file=sys.stderr)


def _collate_cut(collate: Callable[..., Batch], longest: int, samples: Sequence[Sample]) -> Batch:
    """Collate samples whose sequences and tracks are cut to ``longest`` elements."""
    return collate([
        (sequence[:longest], {name: value[:longest] if is_track(name, value) else value
                              for name, value in metadata.items()})
        for sequence, metadata in samples
    ])


def _auto_workers(has_transform: bool) -> int:
    """Return how many loader processes pay: none on a mapped store, unless a transform does work."""
    if not has_transform:
        return 0
    cores = count_cores()
    return max(0, min(4, cores - 1))
