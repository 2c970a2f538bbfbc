"""Measure padding strategies on the user's own data, and prove that they agree.

Place in the flow: store -> sequences -> collate -> [padding_comparison] -> table, comparison.csv.

Strategies take turns, round by round, on the same batches in one process; medians are reported.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm

from seqpipe.batching import padding_share, plan_batches
from seqpipe.collate import PADDINGS, Collate
from seqpipe.errors import OptionError, SeqpipeError
from seqpipe.options import ComparePaddingOptions
from seqpipe.publish import published
from seqpipe.sequences import Sample, SequenceDataset

PLANS = {"random": False, "sorted": True}  # name -> sort pools by length


@dataclass(frozen=True)
class Measurement:
    """One strategy on one kind of batches.

    Attributes:
        batches: ``random``, or ``sorted`` by length within pools.
        padding: the collate function.
        pad_us: median over rounds of the time to pad one batch, in microseconds.
        batch_us: the same with reading the sequences from the store.
        sequences_per_s: sequences a second at ``batch_us``.
        padding_percent: share of padding in the batches.
    """

    batches: str
    padding: str
    pad_us: float
    batch_us: float
    sequences_per_s: float
    padding_percent: float


@dataclass(frozen=True)
class Comparison:
    """All measurements, and how many batches were proved to unpad to the store's sequences."""

    measurements: list[Measurement]
    proved: int
    csv_path: Path | None

    def __str__(self) -> str:
        lines = [f"{'batches':8} {'padding':13} {'pad us':>9} {'batch us':>9} {'sequences/s':>12} {'padding %':>10}"]
        lines += [f"{m.batches:8} {m.padding:13} {m.pad_us:9.1f} {m.batch_us:9.1f} {m.sequences_per_s:12,.0f} "
                  f"{m.padding_percent:10.1f}" for m in self.measurements]
        lines.append(f"proof: in {self.proved} batches every strategy gave the same tensor, and each row unpadded "
                     "to the store's sequence")
        if self.csv_path:
            lines.append(f"table: {self.csv_path}")
        return "\n".join(lines)


def compare_padding(options: ComparePaddingOptions) -> Comparison:
    """Measure every collate function on random and on length-sorted batches of a store.

    Raises:
        StoreError: the store cannot be read.
        OptionError: there is nothing to measure, or the folder cannot be used.
        SeqpipeError: two strategies disagree.
    """
    dataset = SequenceDataset(options.data, options.split)
    if not len(dataset):
        raise OptionError(f"{options.data}: no sequences to measure on")
    lengths = np.asarray(dataset.lengths)
    measurements, proved = [], 0
    for plan, bucket in PLANS.items():
        batches = plan_batches(lengths, batch_size=options.batch_size, shuffle=True, bucket=bucket, seed=options.seed)
        batches = batches[: options.max_batches]
        _prove(dataset, batches)
        proved += len(batches)
        measurements += _measure(dataset, plan, batches, options.rounds, 100 * padding_share(lengths, batches))
    return Comparison(measurements, proved, _write_csv(options.out, measurements))


def _prove(dataset: SequenceDataset, batches: list[np.ndarray]) -> None:
    """Check that all strategies give one tensor, and that it unpads to the samples."""
    for indices in batches:
        samples = dataset.__getitems__(indices.tolist())
        padded = {name: collate(samples) for name, collate in PADDINGS.items()}
        tensors = [batch.sequences.numpy() for batch in padded.values()]
        for name, batch in padded.items():
            same = tensors[0].dtype == batch.sequences.numpy().dtype and np.array_equal(
                tensors[0].view(np.uint8), batch.sequences.numpy().view(np.uint8))
            unpadded = all(np.array_equal(row.view(np.uint8), sample.view(np.uint8))
                           for row, (sample, _) in zip(batch.unpad(), samples, strict=True))
            if not (same and unpadded):
                raise SeqpipeError(f"{dataset.store.path}: padding {name!r} changed the sequences of the rows "
                                   f"{batch.index.tolist()}; this is a fault of seqpipe: please report it")


def _measure(
    dataset: SequenceDataset, plan: str, batches: list[np.ndarray], rounds: int, padding_percent: float
) -> list[Measurement]:
    """Time each strategy, in turns, over the same batches."""
    read_us: list[float] = []
    pad_us: dict[str, list[float]] = {name: [] for name in PADDINGS}
    indices = [batch.tolist() for batch in batches]
    for _ in tqdm(range(rounds), desc=f"{plan} batches", unit="round", disable=None):
        samples, seconds = _timed(lambda: [dataset.__getitems__(batch) for batch in indices])
        read_us.append(1e6 * seconds / len(batches))
        for name, collate in PADDINGS.items():
            _, seconds = _timed(lambda: _pad_all(collate, samples))
            pad_us[name].append(1e6 * seconds / len(batches))
    mean_size = sum(map(len, batches)) / len(batches)
    return [
        Measurement(plan, name, round(median(times), 2), round(total := median(times) + median(read_us), 2),
                    round(1e6 * mean_size / total, 1), round(padding_percent, 2))
        for name, times in pad_us.items()
    ]


def _pad_all(collate: Collate, samples: list[list[Sample]]) -> None:
    for batch in samples:
        collate(batch)


def _timed(action: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = action()
    return result, time.perf_counter() - started


def _write_csv(folder: Path | None, measurements: list[Measurement]) -> Path | None:
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OptionError(f"--out {folder}: expected a folder, found a file") from None
    path = folder / "comparison.csv"
    with published(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([field.name for field in fields(Measurement)])
        table.writerows(map(astuple, measurements))
    return path
