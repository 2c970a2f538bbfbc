"""Measure reading a store beside the loaders people have today.

Place in the flow: made data -> dataloader, bench_peers -> [bench_store] -> a table of figures and ratios.

All loaders read the same batches from the page cache and take turns, round by round; medians are
printed, and the ratio of seqpipe to each other loader.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from seqpipe.bench_costs import cold_reads, cost_of_checking, cost_of_opening, memory_of_a_worker, speed_of_verify
from seqpipe.bench_peers import BinIdx, Hdf5Slices, Hdf5Vlen, InMemory, by_hand, torch_loader
from seqpipe.collate import fill
from seqpipe.options import BenchOptions
from seqpipe.sequences import SequenceDataset
from seqpipe.store import Store
from seqpipe.summary import channel_moments, summarise_lengths
from seqpipe.writer import Content, write_store

COLD = {"uint8": 1_200_000, "float32x12": 50_000}  # sequences in 370 MB
OURS, HAND = "seqpipe", "loop by hand"
AHEAD = 4  # batches: torch has two processes make two each before the first is asked for


@dataclass(frozen=True)
class Row:
    """One line of the table: a loader in one setting, and seqpipe's speed over its own."""

    setting: str
    loader: str
    figure: str
    ratio: str


@dataclass(frozen=True)
class Table:
    """All figures of a run."""

    rows: list[Row]

    def __str__(self) -> str:
        lines = [f"{'setting':34} {'loader':24} {'figure':>22} {'seqpipe is':>12}"]
        lines += [f"{row.setting:34} {row.loader:24} {row.figure:>22} {row.ratio:>12}" for row in self.rows]
        return "\n".join(lines)


def run(options: BenchOptions) -> Table:
    """Make the data, measure, and return the table."""
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seqpipe-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        for kind, count in (("uint8", 200_000), ("float32x12", 50_000)):
            store = make_store(folder / f"{kind}.h5", kind, max(1000, int(count * options.size)), options.seed)
            if kind == "uint8":  # before there are lists in memory, which a worker would inherit
                rows += [Row(*line) for line in memory_of_a_worker(store.path)]
            loaders = _loaders(folder, kind, store)
            for batch_size, num_workers in ((64, 0), (256, 0), (64, 2)):
                setting = f"{kind}, batch {batch_size}, {num_workers} workers"
                rows += _compare(setting, loaders, len(store), batch_size, num_workers, options)
            rows += _compressed(folder, kind, store, options)
            rows += [Row(*line) for cost in (cost_of_checking, speed_of_verify) for line in cost(store.path, options)]
            cold = folder / f"{kind}.cold.h5"  # mapped by nothing else, or its pages would stay
            make_store(cold, kind, max(1000, int(COLD[kind] * options.size)), options.seed)
            rows += [Row(*line) for line in cold_reads(cold, options)]
        rows += [Row(*line) for line in cost_of_opening(folder)]
    return Table(rows)


def _compressed(folder: Path, kind: str, plain: Store, options: BenchOptions) -> list[Row]:
    """Return the rows of a gzip store: ours and h5py's own reads of the same file, shuffled."""
    path = folder / f"{kind}.gzip.h5"
    arrays = {name: array for name, array in plain.arrays.items()
              if name != "header" and not name.startswith("checksums/")}
    write_store(path, {name: Content.of(array) for name, array in arrays.items()}, plain.header, folder=folder,
                compression="gzip")
    store = Store(path)
    labels = np.array(store.metadata["label"])
    loaders = {OURS: torch_loader(SequenceDataset(store), fill), "h5py slice an item": torch_loader(
        Hdf5Slices(path, labels))}
    found: dict[int, list[Row]] = {}
    for num_workers in (0, 2):
        found[num_workers] = _compare(f"{kind} gzip, batch 64, {num_workers} workers", loaders, len(store), 64,
                                      num_workers, options, most_share=0.2)
    share = path.stat().st_size / plain.path.stat().st_size
    alone, both = (float(found[n][0].figure.split()[0].replace(",", "")) for n in (0, 2))
    return [*found[0], *found[2], Row(f"{kind} gzip, 2 workers over 0", OURS, f"{both / alone:.2f} x", ""),
            Row(f"{kind} gzip, size of the file", OURS, f"{share:.0%} of plain", "")]


def make_store(path: Path, kind: str, count: int, seed: int) -> Store:
    """Write a store of log-normal lengths (uint8 tokens of mean 275) or uniform ones (7 to 300 x 12 float32)."""
    rng = np.random.default_rng(seed)
    if kind == "uint8":
        lengths = np.clip(rng.lognormal(np.log(200), 0.8, count), 1, 5000).astype(np.int64)
        values = rng.integers(1, 26, lengths.sum(), np.uint8)
    else:
        lengths = rng.integers(7, 301, count)
        values = rng.standard_normal((lengths.sum(), 12), np.float32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("<u8")
    labels = rng.integers(0, 2, count)
    letters = "".join(map(chr, range(ord("A"), ord("A") + 25)))
    header: dict[str, Any] = {
        "kind": "tokens" if kind == "uint8" else "features", "label_type": "class", "classes": ["a", "b"],
        "encoding": {"alphabet": "chars", "symbols": letters, "num_tokens": 26, "pad_id": 0} if kind == "uint8" else
        {"dtype": "float32", "num_channels": 12},
        "channels": [] if kind == "uint8" else [f"c{i + 1}" for i in range(12)], "columns": ["id", "label"],
        "splits": {"all": summarise_lengths(lengths, labels, 2)},
        "input": {"format": "text", "encoding": "utf-8", "id_column": None, "sequence_column": None,
                  "label_column": "label"},
        "provenance": {"sources": [], "options": {}},
    }
    if kind != "uint8":
        header["moments"] = channel_moments(values, offsets, np.arange(0))
    ids = [f"seq{i}".encode() for i in range(count)]
    arrays = {"values": values, "offsets": offsets, "metadata/label": labels,
              "metadata/id/values": np.frombuffer(b"".join(ids), "u1"),
              "metadata/id/offsets": np.cumsum([0, *map(len, ids)]).astype("<u8")}
    write_store(path, {name: Content.of(array) for name, array in arrays.items()}, header, folder=path.parent)
    return Store(path)


def _loaders(folder: Path, kind: str, store: Store) -> dict[str, Callable[..., Any]]:
    """Return every loader by name, ours first; writes the files of the others."""
    values, offsets, labels = store.values, store.offsets, np.array(store.metadata["label"])
    channels = values.shape[1:]
    BinIdx.write(folder / kind, values, offsets)
    Hdf5Vlen.write(folder / f"{kind}.vlen.h5", values, offsets)
    return {
        OURS: torch_loader(SequenceDataset(store), fill),
        HAND: by_hand(values, offsets, labels),
        "list in memory": torch_loader(InMemory(values, offsets, labels)),
        "bin/idx (Megatron-style)": torch_loader(BinIdx(folder / kind, values.dtype, channels, labels)),
        "h5py slice an item": torch_loader(Hdf5Slices(store.path, labels)),
        "h5py vlen": torch_loader(Hdf5Vlen(folder / f"{kind}.vlen.h5", channels, labels)),
    }


def _compare(
    setting: str, loaders: dict[str, Callable[..., Any]], count: int, batch_size: int, num_workers: int,
    options: BenchOptions, most_share: float = 1.0,
) -> list[Row]:
    """Return the rows of one setting: sequences a second of each loader."""
    rng = np.random.default_rng([options.seed, batch_size, num_workers])
    speeds: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, load in loaders.items():
            if num_workers and name == HAND:
                continue
            share = {"h5py vlen": 0.05, "h5py slice an item": 0.2}.get(name, 0.5 if num_workers else 1.0)
            most = int(40_000 * options.size * min(share, most_share)) // batch_size + 8
            order = rng.permutation(count)[: most * batch_size].tolist()
            batches = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
            ahead = AHEAD if num_workers else 1
            speeds.setdefault(name, []).append(_speed(load(batches, num_workers), batch_size, ahead))
    best = median(speeds[OURS])
    return [Row(setting, name, f"{median(found) / 1e3:,.1f} k sequences/s", f"{best / median(found):.2f} x")
            for name, found in speeds.items()]


def _speed(batches: Any, batch_size: int, ahead: int) -> float:
    """Return sequences a second after the batches ``ahead``: starting processes is not counted."""
    iterator = iter(batches)
    deque(itertools.islice(iterator, ahead), maxlen=0)
    started, count = time.perf_counter(), 0
    for count, _ in enumerate(iterator, start=1):  # noqa: B007
        pass
    return count * batch_size / (time.perf_counter() - started)
