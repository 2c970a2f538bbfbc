"""Measure padding strategies on the user's own data, and prove that they agree.

Place in the flow: store -> sequences -> collate -> [padding_comparison] -> table, comparison.csv.

Each strategy makes each batch twice: whole, as a loader without workers does (``fill`` then copies straight
from the store, without an array a sequence), and by padding alone, from samples that were read before. The
strategy that goes first changes from batch to batch, and the kinds of batches take turns from round to
round. Medians over rounds are reported. Of the sequences, memory holds one batch.
"""

from __future__ import annotations

import csv
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm

from seqpipe.batching import padding_share, plan_batches
from seqpipe.collate import PADDINGS
from seqpipe.errors import OptionError, SeqpipeError
from seqpipe.options import ComparePaddingOptions
from seqpipe.publish import published
from seqpipe.sequences import SequenceDataset


@dataclass(frozen=True)
class Measurement:
    """One strategy on one kind of batches.

    Attributes:
        batches: ``random``, ``sorted`` by length, or ``budget``: sorted, and as many sequences as fill
            ``max_tokens``, which is the batch size x the mean length.
        padding: the collate function.
        pad_us: median over rounds of the time to pad the samples of one batch, in microseconds.
        batch_us: of the time to make one batch from the store, as a loader does.
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
    """Measure every collate function on random, length-sorted and budgeted batches of a store.

    Raises:
        StoreError: the store cannot be read.
        OptionError: there is nothing to measure, or the folder cannot be used.
        SeqpipeError: two strategies disagree.
    """
    dataset = SequenceDataset(options.data, options.split)
    if not len(dataset):
        raise OptionError(f"{options.data}: no sequences to measure on")
    if options.out is not None:
        _make_folder(options.out)
    lengths = np.asarray(dataset.lengths)
    max_tokens = max(1, options.batch_size * int(lengths.sum()) // len(lengths))
    kinds: dict[str, dict[str, Any]] = {
        "random": {"batch_size": options.batch_size, "bucket": False},
        "sorted": {"batch_size": options.batch_size, "bucket": True},
        "budget": {"max_tokens": max_tokens, "bucket": True, "on_long": "alone"},
    }
    plans = {
        name: plan_batches(lengths, shuffle=True, seed=options.seed, **kind)[: options.max_batches]
        for name, kind in kinds.items()
    }
    for batches in plans.values():
        _prove(dataset, batches)
    rounds = [
        {name: _time_round(dataset, batches) for name, batches in plans.items()}
        for _ in tqdm(range(options.rounds), desc="compare-padding", unit="round", disable=None)
    ]
    measurements = [
        _summarize(name, [times[name] for times in rounds], lengths, batches, padding)
        for name, batches in plans.items() for padding in PADDINGS
    ]
    return Comparison(measurements, sum(map(len, plans.values())), _write_csv(options.out, measurements))


def _prove(dataset: SequenceDataset, batches: list[np.ndarray]) -> None:
    """Check that all strategies give one tensor, and that it unpads to the samples."""
    for indices in batches:
        samples = dataset.__getitems__(indices.tolist())
        sequences = [sequence for sequence, _ in samples]
        padded = {name: collate(samples) for name, collate in PADDINGS.items()}
        first = next(iter(padded.values())).sequences.numpy()
        for name, batch in padded.items():
            if not (_identical([first], [batch.sequences.numpy()]) and _identical(sequences, batch.unpad())):
                raise SeqpipeError(f"{dataset.store.path}: padding {name!r} changed the sequences of the rows "
                                   f"{[entry['index'] for _, entry in samples]}; this is a fault of seqpipe: please "
                                   "report it")


def _identical(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    """Return whether two lists of arrays are the same, bit for bit."""
    return len(left) == len(right) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(left, right, strict=True)
    )


def _time_round(dataset: SequenceDataset, batches: list[np.ndarray]) -> dict[str, tuple[float, float]]:
    """Return, by strategy, the microseconds it takes to pad the samples of a batch, and to make a batch."""
    padding, making = dict.fromkeys(PADDINGS, 0.0), dict.fromkeys(PADDINGS, 0.0)
    strategies = list(PADDINGS.items())
    for batch in batches:
        indices = batch.tolist()
        samples = list(dataset.__getitems__(indices))
        for name, collate in strategies:
            started = time.perf_counter()
            collate(samples)
            between = time.perf_counter()
            collate(dataset.__getitems__(indices))
            making[name] += time.perf_counter() - between
            padding[name] += between - started
        strategies.append(strategies.pop(0))
    return {name: (1e6 * padding[name] / len(batches), 1e6 * making[name] / len(batches)) for name in PADDINGS}


def _summarize(
    plan: str, rounds: list[dict[str, tuple[float, float]]], lengths: np.ndarray, batches: list[np.ndarray],
    padding: str,
) -> Measurement:
    pad_us, batch_us = (median(times) for times in zip(*(times[padding] for times in rounds), strict=True))
    mean_size = sum(map(len, batches)) / len(batches)
    return Measurement(plan, padding, round(pad_us, 2), round(batch_us, 2), round(1e6 * mean_size / batch_us, 1),
                       round(100 * padding_share(lengths, batches), 2))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OptionError(f"--out {folder}: expected a folder, found a file") from None


def _write_csv(folder: Path | None, measurements: list[Measurement]) -> Path | None:
    if folder is None:
        return None
    path = folder / "comparison.csv"
    with published(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([field.name for field in fields(Measurement)])
        table.writerows(map(astuple, measurements))
    return path
