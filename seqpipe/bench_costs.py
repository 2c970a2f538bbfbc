"""What a store costs besides reading at full speed: opening, checking, a cold disk, memory.

Place in the flow: a made store -> [bench_costs] -> lines of the table of ``bench_store``.

A line is (setting, what is measured, figure, ratio).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np
from torch.utils.data import DataLoader

from seqpipe.collate import fill
from seqpipe.layout import ALIGNMENT, FORMAT, FORMAT_VERSION, block_checksums, num_blocks
from seqpipe.options import BenchOptions
from seqpipe.sequences import SequenceDataset
from seqpipe.store import Store
from seqpipe.verification import verify_store

Line = tuple[str, str, str, str]
MANY = 100_000_000  # sequences
BATCH = 64


def cost_of_checking(path: Path, options: BenchOptions) -> list[Line]:
    """Return what checking on first touch costs, in the first epoch and later; shuffled, no DataLoader."""
    epochs: dict[str, list[float]] = {}
    for number in range(options.rounds):
        batches = _shuffled(len(Store(path)), [options.seed, number])
        datasets = {"off": SequenceDataset(path, verify=False), "on": SequenceDataset(path)}
        for epoch in ("first", "later"):  # the first has to map the pages, checked or not
            for checks, dataset in datasets.items():
                epochs.setdefault(f"{checks}, {epoch} epoch", []).append(_epoch(dataset, batches))
    times = {name: median(found) for name, found in epochs.items()}
    return [(f"{path.stem}, checks on first touch", name, f"{found:.3f} s an epoch",
             f"{found / times[name.replace('on', 'off', 1)] - 1:+.0%}" if name.startswith("on") else "")
            for name, found in times.items()]


def cold_reads(path: Path, options: BenchOptions) -> list[Line]:
    """Return sequences a second of shuffled batches from a file that is not in the page cache; the file is removed.

    Opening the file is counted, as is what each reader learns of the offsets. h5py fetches 64 KiB
    for each sequence (its sieve buffer), and so do checks on their first touch: the file must hold
    a few times of that, else later batches come from memory and the figure is none of a cold disk.
    """
    num_sequences = len(Store(path))
    most = min(max(BATCH, int(1280 * min(1.0, options.size * 4))), num_sequences) // BATCH
    readers: dict[str, Callable[[list[list[int]]], Any]] = {
        "checks off": lambda batches: _epoch(SequenceDataset(path, columns=[], verify=False), batches),
        "checks on": lambda batches: _epoch(SequenceDataset(path, columns=[]), batches),
        "h5py slices of a batch": lambda batches: _hdf5_epoch(path, batches),
    }
    speeds: dict[str, list[float]] = {}
    for number in range(options.rounds if hasattr(os, "posix_fadvise") else 0):
        batches = _shuffled(num_sequences, [options.seed, 7, number])[:most]
        for name, read in readers.items():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            started = time.perf_counter()
            read(batches)
            speeds.setdefault(name, []).append(len(batches) * BATCH / (time.perf_counter() - started))
    path.unlink()
    return [(f"{path.stem}, batch {BATCH}", name, f"{median(found) / 1e3:,.1f} k sequences/s",
             f"{median(speeds['checks off']) / median(found):.2f} x") for name, found in speeds.items()]


def cost_of_opening(folder: Path) -> list[Line]:
    """Return time and memory to open a store of 10^8 sequences (a sparse file)."""
    path = _make_many(folder / "many.h5", MANY)
    Store(path)
    before, times = _anonymous("self"), []
    for _ in range(5):
        started = time.perf_counter()
        store = Store(path)
        times.append(time.perf_counter() - started)
    grown = _anonymous("self") - before
    path.unlink()
    return [(f"open {len(store):.0e} sequences", "seqpipe", f"{1e3 * median(times):.1f} ms, {grown / 1e6:.1f} MB", "")]


def memory_of_a_worker(path: Path) -> list[Line]:
    """Return the memory of a loader process that is its own, after each of three epochs."""
    dataset = SequenceDataset(path)
    loader = DataLoader(dataset, batch_sampler=_shuffled(len(dataset), [1])[:300], collate_fn=fill, num_workers=1,
                        persistent_workers=True)
    sizes = []
    for _ in range(3):
        iterator = iter(loader)
        for _ in iterator:
            pass
        sizes.append(_anonymous(iterator._workers[0].pid))  # type: ignore[attr-defined]
    return [(f"{path.stem}, memory of a worker", "epochs 1, 2, 3",
             ", ".join(f"{size / 1e6:.1f}" for size in sizes) + " MB", "")]


def speed_of_verify(path: Path, options: BenchOptions) -> list[Line]:
    """Return how fast ``verify`` checks all of a store."""
    rates = []
    for _ in range(options.rounds):
        started = time.perf_counter()
        rates.append(verify_store(Store(path)).num_bytes / (time.perf_counter() - started))
    return [(f"{path.stem}, seqpipe verify", "seqpipe", f"{median(rates) / 1e9:.2f} GB/s", "")]


def _shuffled(count: int, seed: list[int]) -> list[list[int]]:
    order = np.random.default_rng(seed).permutation(count)
    return [order[first : first + BATCH].tolist() for first in range(0, count - BATCH + 1, BATCH)]


def _epoch(dataset: SequenceDataset, batches: list[list[int]]) -> float:
    started = time.perf_counter()
    for batch in batches:
        fill(dataset.__getitems__(batch))
    return time.perf_counter() - started


def _hdf5_epoch(path: Path, batches: list[list[int]]) -> None:
    """Read as a careful user does: one slice a sequence, in ascending order within the batch."""
    with h5py.File(path) as file:
        ends, values = file["offsets"][:].tolist(), file["values"]
        for batch in batches:
            fill([(values[ends[i] : ends[i + 1]], {"index": i}) for i in sorted(batch)])


def _anonymous(process: int | str) -> int:
    """Return the memory of a process that no file backs, in bytes; 0 where the system does not tell."""
    status = Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def _make_many(path: Path, count: int) -> Path:
    """Make a store of ``count`` sequences of one element that takes no room: zeros that were never written."""
    header = {
        "kind": "tokens", "encoding": {"alphabet": "dna", "symbols": "ACGTN", "num_tokens": 6, "pad_id": 0},
        "label_type": "none", "classes": [], "channels": [], "columns": ["id"],
        "splits": {"all": {"sequences": count, "values": count, "lengths": {
            "min": 1, "median": 1, "mean": 1, "max": 1, "histogram": {"edges": [1, 2], "counts": [count]}}}},
        "input": {"format": "text", "encoding": "utf-8", "id_column": None, "sequence_column": None,
                  "label_column": None},
        "provenance": {"sources": [], "options": {}},
    }
    text = np.frombuffer(json.dumps(header).encode(), "u1")
    arrays = {"values": (count, "u1"), "offsets": (count + 1, "<u8"), "metadata/id/values": (count, "u1"),
              "metadata/id/offsets": (count + 1, "<u8"), "header": (len(text), "u1")}
    tables = {f"checksums/{name}": (num_blocks(length * np.dtype(dtype).itemsize), "<u4")
              for name, (length, dtype) in arrays.items()}
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w", libver=("v110", "v110"), alignment_threshold=1, alignment_interval=ALIGNMENT) as file:
        for name, (length, dtype) in {**arrays, **tables}.items():
            group, _, leaf = name.rpartition("/")
            h5py.h5d.create(file.require_group(f"/{group}").id, leaf.encode(), h5py.h5t.py_create(np.dtype(dtype)),
                            h5py.h5s.create_simple((length,)), dcpl=properties)
        file["offsets"][-1] = file["metadata/id/offsets"][-1] = count
        file["header"][:] = text
        file["checksums/header"][:] = block_checksums(text.data)
        file.attrs["format"], file.attrs["format_version"] = np.bytes_(FORMAT), np.uint32(FORMAT_VERSION)
        file.attrs["complete"] = np.uint8(1)
    return path
