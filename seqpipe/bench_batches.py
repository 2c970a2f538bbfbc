"""Measure batch plans beside the samplers people have today.

Place in the flow: made lengths -> batching, other samplers -> [bench_batches] -> a table.

Columns: padding; batches; processor time to plan an epoch, and its share of that of an epoch of our
loader (``fill``, batches of 64, its own planning included); real tokens a second through an LSTM, forward and
backward; and of all pairs of sequences that share a batch, the share that meet again in the next epoch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from seqpipe.batching import padding_share, plan_batches
from seqpipe.bench_store import make_store
from seqpipe.collate import fill
from seqpipe.dataloader import get_dataloader
from seqpipe.options import BenchOptions
from seqpipe.samplers import LengthBatchSampler
from seqpipe.sequences import SequenceDataset

BATCH_SIZE = 64
OURS: dict[str, dict[str, Any]] = {  # with max_tokens where there is no batch_size
    "random, batch 64": {"batch_size": BATCH_SIZE, "bucket": False},
    "seqpipe, batch 64": {"batch_size": BATCH_SIZE},
    "seqpipe, batch 64, tight (mixing=0)": {"batch_size": BATCH_SIZE, "mixing": 0},
    "seqpipe, max_tokens": {},
    "seqpipe, max_tokens, tight (mixing=0)": {"mixing": 0},
}
Plan = Callable[[int], Iterable[Any]]  # epoch -> batches, each a list of indices


@dataclass(frozen=True)
class Row:
    """One line of the table; figures are None where the peer is not installed."""

    plan: str
    padding_percent: float | None = None
    num_batches: int | None = None
    plan_ms: float | None = None
    share_of_epoch: float | None = None
    tokens_per_s: float | None = None
    meet_percent: float | None = None

    def __str__(self) -> str:
        if self.padding_percent is None:
            return f"{self.plan:40} not installed (extra bench)"
        return (f"{self.plan:40} {self.padding_percent:9.2f} {self.num_batches:8,} {self.plan_ms:9.1f} "
                f"{self.share_of_epoch:9.1f} {self.tokens_per_s:10,.0f} {self.meet_percent:11.2f}")


@dataclass(frozen=True)
class Table:
    """All figures of a run."""

    rows: list[Row]
    notes: list[str]

    def __str__(self) -> str:
        head = (f"{'plan':40} {'padding %':>9} {'batches':>8} {'plan ms':>9} {'of fill %':>9} {'tokens/s':>10} "
                f"{'meet again %':>11}")
        return "\n".join([head, *map(str, self.rows), *self.notes])


def run(options: BenchOptions) -> Table:
    """Make the data, measure, and return the table."""
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seqpipe-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        store = make_store(folder / "uint8.h5", "uint8", max(1000, int(200_000 * options.size)), options.seed)
        dataset = SequenceDataset(store)
        lengths = dataset.lengths[:]
        max_tokens = max(int(BATCH_SIZE * lengths.mean()), int(lengths.max()))
        plans = _plans(lengths, max_tokens, options.seed)
        epochs = {name: [[list(batch) for batch in plan(epoch)] for epoch in (0, 1)]
                  for name, plan in plans.items() if plan}
        loader = get_dataloader(dataset, BATCH_SIZE, shuffle=True, seed=options.seed, num_workers=0, pin_memory=False)
        _seconds(lambda _: loader, 0)  # checks what it touches
        # In turns, so that a machine that slows down favours none; each round another epoch, which no plan is kept of.
        turns = [
            ({name: _seconds(plan, epoch) for name, plan in plans.items() if plan and (epoch == 2 or name in OURS)},
             _seconds(lambda _: loader, epoch)) for epoch in range(2, 2 + options.rounds)
        ]
        planning = {name: median(plans_s[name] for plans_s, _ in turns if name in plans_s) for name in epochs}
        fill_epoch = median(seconds for _, seconds in turns)
        speeds = _lstm_speeds(dataset, {name: found[0] for name, found in epochs.items()}, options)
    rows = [Row(name) if plan is None else Row(
        name, 100 * padding_share(lengths, [np.array(batch) for batch in epochs[name][0]]), len(epochs[name][0]),
        1e3 * planning[name], 100 * planning[name] / fill_epoch, speeds[name],
        100 * meeting_share(*epochs[name], num_sequences=len(lengths)),
    ) for name, plan in plans.items()]
    return Table(rows, [
        f"{len(lengths):,} sequences, lengths {lengths.min()} to {lengths.max()}, median {np.median(lengths):.0f}; "
        f"batches of {BATCH_SIZE}, or max_tokens={max_tokens:,}; a fill epoch takes {1e3 * fill_epoch:,.0f} ms",
        *_large(options.seed),
    ])


def meeting_share(first: list[Any], second: list[Any], *, num_sequences: int) -> float:
    """Return the share of pairs in a batch of ``first`` that are in one batch of ``second`` too."""
    places = []
    for batches in (first, second):
        place = np.full(num_sequences, -1)
        place[np.concatenate(batches)] = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
        places.append(place)
    both = (places[0] >= 0) & (places[1] >= 0)
    together = np.unique(places[0][both] * len(second) + places[1][both], return_counts=True)[1]
    sizes = np.array([len(batch) for batch in first])
    return int((together * (together - 1)).sum()) / max(1, int((sizes * (sizes - 1)).sum()))


def _plans(lengths: np.ndarray, max_tokens: int, seed: int) -> dict[str, Plan | None]:
    """Return every plan by name; None where its library is not installed."""
    def ours(**settings: Any) -> Plan:
        sampler = LengthBatchSampler(lengths, **{"shuffle": True, "bucket": True, "seed": seed, **settings})

        def plan(epoch: int) -> Iterable[np.ndarray]:
            sampler.set_epoch(epoch)
            return (indices for indices, _, _ in sampler.steps())
        return plan

    return {
        **{name: ours(**settings, **({} if "batch_size" in settings else {"max_tokens": max_tokens}))
           for name, settings in OURS.items()},
        "Hugging Face LengthGroupedSampler": _length_grouped(lengths, seed),
        "lhotse DynamicBucketingSampler, 30": _dynamic_bucketing(lengths, max_tokens, seed),
    }


def _length_grouped(lengths: np.ndarray, seed: int) -> Plan | None:
    try:
        from transformers.trainer_pt_utils import LengthGroupedSampler
    except ImportError:
        return None
    sizes = lengths.tolist()

    def plan(epoch: int) -> Iterable[list[int]]:
        generator = torch.Generator().manual_seed(seed + epoch)
        order = list(LengthGroupedSampler(BATCH_SIZE, lengths=sizes, generator=generator))
        return (order[first : first + BATCH_SIZE] for first in range(0, len(order), BATCH_SIZE))
    return plan


@dataclass
class _Cut:
    """As much of a cut as lhotse's sampler asks for."""

    id: int
    num_tokens: int


def _dynamic_bucketing(lengths: np.ndarray, max_tokens: int, seed: int) -> Plan | None:
    try:
        from lhotse.dataset import DynamicBucketingSampler
        from lhotse.dataset.sampling.base import TokenConstraint
    except ImportError:
        return None
    cuts = [_Cut(i, size) for i, size in enumerate(lengths.tolist())]

    def plan(epoch: int) -> Iterable[list[int]]:
        order = np.random.default_rng([seed, epoch]).permutation(len(cuts))  # a sampler of lazy cuts: shuffled before
        sampler = DynamicBucketingSampler([cuts[i] for i in order], constraint=TokenConstraint(max_tokens=max_tokens),
                                          num_buckets=30, shuffle=True, seed=seed, world_size=1, rank=0)
        sampler.set_epoch(epoch)
        return ([cut.id for cut in batch] for batch in sampler)
    return plan


def _seconds(plan: Plan, epoch: int) -> float:
    """Return the processor time to take all batches of an epoch."""
    started = time.process_time()
    for _ in plan(epoch):
        pass
    return time.process_time() - started


def _lstm_speeds(dataset: SequenceDataset, plans: dict[str, list[Any]], options: BenchOptions) -> dict[str, float]:
    """Return real tokens a second of each plan, over batches drawn from it; plans take turns."""
    torch.manual_seed(options.seed)
    embedding, lstm = torch.nn.Embedding(26, 64), torch.nn.LSTM(64, 128, batch_first=True)
    rng = np.random.default_rng(options.seed)
    tokens, seconds = dict.fromkeys(plans, 0), dict.fromkeys(plans, 0.0)
    for _ in range(options.rounds * max(1, round(8 * options.size))):
        for name, batches in plans.items():
            batch = fill(dataset.__getitems__(batches[rng.integers(len(batches))]))
            started = time.perf_counter()
            lstm(embedding(batch.tokens))[0].mean().backward()
            seconds[name] += time.perf_counter() - started
            tokens[name] += batch.num_elements
    return {name: tokens[name] / seconds[name] for name in plans}


class _Billion:
    """10^9 lengths that are computed where asked for."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return 10 + rows * 2_654_435_761 % 491


def _large(seed: int) -> list[str]:
    """Return what planning costs where there are many sequences."""
    lengths = np.clip(np.random.default_rng(seed).lognormal(np.log(200), 0.8, 10**6), 10, 5000).astype(np.int64)
    started = time.perf_counter()
    num_batches = len(plan_batches(lengths, max_tokens=17_600, shuffle=True, bucket=True))
    million = time.perf_counter() - started
    times = []
    for window in (0, 1_900, 3_800):
        sampler = LengthBatchSampler(_Billion(), max_tokens=17_600, shuffle=True, bucket=True)
        started = time.perf_counter()
        sampler.load_state_dict(sampler.state_dict((0, window, 100)))
        next(iter(sampler))
        times.append(f"{1e3 * (time.perf_counter() - started):.0f}")
    return [f"10^6 sequences: {num_batches:,} batches planned in {million:.2f} s",
            f"10^9 computed lengths: resumed in {', '.join(times)} ms at the start, in the middle, near the end"]
