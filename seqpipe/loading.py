"""One call from a store to a DataLoader of padded batches.

Place in the flow: sequences + samplers + collate -> [loading] -> training.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, get_worker_info

from seqpipe.batch import Batch
from seqpipe.collate import PADDINGS
from seqpipe.device import count_cores
from seqpipe.errors import SeqpipeError, StoreError
from seqpipe.samplers import LengthBatchSampler
from seqpipe.sequences import SequenceDataset, Transform
from seqpipe.store import Store

DEFAULT_BATCH_SIZE = 32
MAIN_GUARD = """\
A loader process ended before its first batch. Under the start method {method!r} each such process runs your
script again from its top, so the code that uses the loader must stand below these two lines:

if __name__ == "__main__":
    main()

(put it into a function main; or use num_workers=0, or multiprocessing_context="fork" on Linux)"""


class SequenceLoader(DataLoader[Any]):
    """A DataLoader whose order depends on (seed, epoch) alone.

    Each new iteration is the next epoch, from 0 on, unless ``set_epoch`` said another.
    Made by ``get_dataloader``.
    """

    def __init__(
        self, dataset: SequenceDataset | Subset, batch_sampler: LengthBatchSampler, *, seed: int, **options: Any
    ) -> None:
        # Without a generator of its own, each iteration would draw from torch's global one.
        generator = torch.Generator().manual_seed(seed)
        super().__init__(dataset, batch_sampler=batch_sampler, generator=generator, **options)
        self._plan = batch_sampler
        self._sequences = base_dataset(dataset)
        self._next_epoch = 0
        self._start_worker = self.worker_init_fn
        self._workers_epoch: Tensor | None = None

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch ``epoch`` (0-based)."""
        _check_count("epoch", epoch, 0)
        self._next_epoch = epoch

    def __iter__(self) -> Any:
        epoch = self._next_epoch
        self._next_epoch += 1
        self._plan.set_epoch(epoch)
        self._sequences.epoch = epoch
        if self.num_workers and self._sequences.transform is not None:
            self._share_epoch(epoch)
        # A default device of the user's would take the seed that torch draws here away from our generator.
        with self._explained_start(), torch.device("cpu"):
            batches = super().__iter__()
        return self._batches(batches, epoch)

    def _share_epoch(self, epoch: int) -> None:
        """Let the workers of this iteration see ``epoch``, whatever other loaders over the dataset set.

        Workers that persist keep the number they were started with, and read the new epoch from it.
        """
        if self._workers_epoch is None or not self.persistent_workers:
            self._workers_epoch = torch.zeros((), dtype=torch.int64, device="cpu").share_memory_()
            self.worker_init_fn = functools.partial(_start_worker, self._workers_epoch, self._start_worker)
        self._workers_epoch.fill_(epoch)

    def _batches(self, batches: Iterator[Batch], epoch: int) -> Iterator[Batch]:
        with self._explained_start():
            batch = next(batches, None)
        while batch is not None:
            check_tokens(batch, self._sequences.store)
            yield batch
            # Without workers the samples are read here, and another loader over the same dataset may
            # have set its own epoch since.
            self._sequences.epoch = epoch
            batch = next(batches, None)

    @contextmanager
    def _explained_start(self) -> Iterator[None]:
        """Say the two lines to add where a worker could not start for want of a ``__main__`` guard."""
        try:
            yield
        except (RuntimeError, ConnectionError, EOFError) as error:
            method = self.multiprocessing_context and self.multiprocessing_context.get_start_method()
            method = method or torch.multiprocessing.get_start_method()
            # Python's words for a start within a start, and torch's for a worker that ended; those for
            # an error that the dataset raised in a worker begin with "Caught".
            text = str(error)
            ended = not isinstance(error, RuntimeError) or "exited unexpectedly" in text or "bootstrapping" in text
            if self.num_workers and method != "fork" and ended and not text.startswith("Caught "):
                raise SeqpipeError(MAIN_GUARD.format(method=method)) from error
            raise


def get_dataloader(
    data: Path | str | SequenceDataset | Subset,
    batch_size: int | None = None,
    shuffle: bool = False,
    transform: Transform | None = None,
    subset: int | None = None,
    num_workers: int | Literal["auto"] = "auto",
    split: str | None = None,
    bucket: bool | None = None,
    padding: str = "fill",
    padding_side: str = "right",
    pad_to_multiple: int = 1,
    drop_last: bool = False,
    pin_memory: bool | Literal["auto"] = "auto",
    seed: int = 0,
    **options: Any,
) -> SequenceLoader:
    """Return a DataLoader of padded ``Batch``es.

    Args:
        data: path of a store, a SequenceDataset, or a Subset of one (``random_split`` makes them).
        batch_size: sequences a batch; None is 32.
        shuffle: a new order each epoch, drawn from (seed, epoch).
        transform: see SequenceDataset; only with a path.
        subset: only the first ``subset`` sequences in the store's order, after the split.
        num_workers: loader processes; ``auto`` is 0 unless there is a transform.
        split: only this split; only with a path.
        bucket: sequences of like length into one batch; None follows ``shuffle``.
        padding: ``fill``, ``pad_sequence`` or ``manual``: the collate function.
        padding_side: ``right`` or ``left``.
        pad_to_multiple: the padded length is rounded up to a multiple of this.
        drop_last: leave out a batch that is not full.
        pin_memory: page-locked batches; ``auto`` where there is CUDA.
        seed: of the order and, with a path, of the transform; 0 or more.
        options: further arguments of torch's DataLoader, such as ``multiprocessing_context``.

    Raises:
        StoreError: the path is no store, or has no such split.
        ValueError: an argument is out of range or does not go with another.
    """
    batch_size = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
    for name, value, least in (
        ("batch_size", batch_size, 1), ("pad_to_multiple", pad_to_multiple, 1), ("seed", seed, 0),
        ("subset", 1 if subset is None else subset, 1), ("num_workers", 0 if num_workers == "auto" else num_workers, 0),
    ):
        _check_count(name, value, least)
    for name, choice, choices in (
        ("padding", padding, tuple(PADDINGS)), ("padding_side", padding_side, ("right", "left")),
        ("pin_memory", pin_memory, (True, False, "auto")),
    ):
        if choice not in choices:
            raise ValueError(f"{name}={choice!r}; expected one of {', '.join(map(repr, choices))}")
    if taken := sorted({"sampler", "batch_sampler", "collate_fn", "generator"} & set(options)):
        raise ValueError(f"{taken[0]}: get_dataloader makes its own; for another one use torch's "
                         "DataLoader(SequenceDataset(...), ...)")
    dataset = _as_dataset(data, split, transform, seed)
    if subset is not None:
        print(f"subset: the first {min(subset, len(dataset)):,} of {len(dataset):,} sequences", file=sys.stderr)
        dataset = Subset(dataset, range(min(subset, len(dataset))))
    has_transform = base_dataset(dataset).transform is not None
    workers = _auto_workers(has_transform) if num_workers == "auto" else num_workers
    sampler = LengthBatchSampler(
        sequence_lengths(dataset), batch_size=batch_size, shuffle=shuffle,
        bucket=shuffle if bucket is None else bucket, drop_last=drop_last, seed=seed,
    )
    return SequenceLoader(
        dataset,
        sampler,
        seed=seed,
        collate_fn=functools.partial(PADDINGS[padding], padding_side=padding_side, pad_to_multiple=pad_to_multiple),
        num_workers=workers,
        pin_memory=torch.cuda.is_available() if pin_memory == "auto" else pin_memory,
        **options,
    )


def check_tokens(batch: Batch, store: Store) -> None:
    """Refuse a batch on the CPU with a token that the alphabet does not have: a network would crash on it.

    Raises:
        StoreError: the store is damaged (or a transform made the token); the message names the row.
    """
    if store.alphabet is None or batch.sequences.ndim != 2 or batch.sequences.dtype.is_floating_point:
        return
    tokens = batch.sequences.numpy()
    if tokens.max() >= store.alphabet.num_tokens:
        i = int((tokens >= store.alphabet.num_tokens).any(axis=1).argmax())
        raise StoreError(
            f"{store.path}: row {int(batch.index[i])} holds token {tokens[i].max()}, expected tokens < "
            f"{store.alphabet.num_tokens}; run: seqpipe verify {store.path}", path=store.path,
        )


def base_dataset(dataset: SequenceDataset | Subset) -> SequenceDataset:
    """Return the SequenceDataset below any number of Subsets."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset  # type: ignore[assignment]
    if not isinstance(dataset, SequenceDataset):
        raise ValueError(f"found a {type(dataset).__name__}; expected a path, a SequenceDataset or a Subset of one")
    return dataset


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
    data: Path | str | SequenceDataset | Subset, split: str | None, transform: Transform | None, seed: int
) -> SequenceDataset | Subset:
    if isinstance(data, Path | str):
        return SequenceDataset(data, split, transform, seed=seed)
    if split is not None or transform is not None:
        raise ValueError("split and transform go with a path; for a dataset give them to SequenceDataset")
    base_dataset(data)
    return data


def _start_worker(epoch: Tensor, start: Callable[[int], None] | None, number: int) -> None:
    """Begin a loader process: its dataset reads the loader's epoch; then what the user wants done."""
    info = get_worker_info()
    assert info is not None
    base_dataset(info.dataset).follow_epoch(epoch)  # type: ignore[arg-type]
    if start is not None:
        start(number)


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}={value!r}; expected a whole number, {least} or more")


def _auto_workers(has_transform: bool) -> int:
    """Return how many loader processes pay: none on a mapped store, unless a transform does work."""
    if not has_transform:
        return 0
    cores = count_cores()
    return max(0, min(4, cores - 1))
