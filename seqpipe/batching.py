"""Plan batches from sequence lengths alone.

Place in the flow: lengths -> [batching] -> samplers -> DataLoader.

Pure: NumPy arrays in, index arrays out. Nothing here reads a sequence, imports torch or knows a
rank. The same lengths, settings, seed and epoch give the same plan on every machine.

An epoch is visited window by window, so that memory follows the window and any place of the epoch
is planned at once. With ``shuffle`` a window is made of blocks of neighbours in the store, taken in
the order of a permutation; all of its sequences are then sorted by length (or drawn), cut into
batches, and the batches shuffled.

Terms:
    lengths     (N,) elements per sequence, indexed by slices and by index arrays: an array, or what
                computes them where asked
    batch       1-D int64 array of indices 0 <= i < N into ``lengths``, never empty
    padded      the length of a sequence rounded up to ``pad_to_multiple``, at least 1
    max_tokens  upper bound of rows x padded length of the longest in any batch
    window      consecutive run of the visiting order that is planned as a whole
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqpipe.errors import LongSequenceError, OptionError
from seqpipe.permutation import Permutation
from seqpipe.sampling import draw

WINDOW = 2**18  # sequences planned together: a few ms of planning, some 10 MB
MIXING = 0.018
BLOCK = 256  # neighbours that share a window: a window then touches few pages of a mapped file
ON_LONG = ("error", "truncate", "skip", "alone")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What, beside lengths and epoch, a plan depends on.

    Attributes:
        batch_size: sequences a batch at most; None is without limit.
        max_tokens: rows x padded length at most; None is without limit. Given both, both hold.
        shuffle: another order each epoch; otherwise the store's.
        bucket: sequences of like length into one batch. Without ``shuffle`` rows and batches keep the
            store's order as far as that allows: ascending rows in a batch, batches by their first row.
        drop_last: leave out the batch that is not full. With ``max_tokens`` that is, in each window,
            the last one if it could hold one sequence more (of the shortest, with ``bucket``).
        seed: of the order; 0 or more.
        window: sequences planned together, at most.
        pad_to_multiple: padded lengths are multiples of this.
        on_long: what becomes of a sequence over ``max_tokens``: ``error``, ``truncate`` (to what fits),
            ``skip``, or ``alone`` (a batch of its own, over the budget).
        longest_first: the batch with the most padded elements comes first, so that memory runs out at
            step 1 or never.
        mixing: with ``shuffle`` and ``bucket``, the share of padding (about) that may be spent on letting
            sequences of nearby lengths meet: lengths as far apart as this share of the length itself
            and of the mean length count as equal. 0 is tight: equal lengths alone count as equal.
    """

    batch_size: int | None = None
    max_tokens: int | None = None
    shuffle: bool
    bucket: bool
    drop_last: bool = False
    seed: int = 0
    window: int = WINDOW
    pad_to_multiple: int = 1
    on_long: str = "error"
    longest_first: bool = False
    mixing: float = MIXING

    def __post_init__(self) -> None:
        if self.batch_size is None and self.max_tokens is None:
            raise ValueError("neither batch_size nor max_tokens; expected one of them, or both")
        for name, least in (("batch_size", 1), ("max_tokens", 1), ("seed", 0), ("window", 1), ("pad_to_multiple", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)
                                      or value < least):
                raise ValueError(f"{name}={value!r}; expected a whole number, {least} or more")
        if self.max_tokens is not None and self.max_tokens < self.pad_to_multiple:
            raise ValueError(f"max_tokens={self.max_tokens} is less than pad_to_multiple={self.pad_to_multiple}: no "
                             "batch fits; raise the one or lower the other")
        if self.on_long not in ON_LONG:
            raise ValueError(f"on_long={self.on_long!r}; expected one of {', '.join(map(repr, ON_LONG))}")
        if not (isinstance(self.mixing, int | float) and 0 <= self.mixing < math.inf):
            raise ValueError(f"mixing={self.mixing!r}; expected a number, 0 or more")

    @property
    def longest_allowed(self) -> int | None:
        """The longest sequence that fits ``max_tokens``, and the length to which ``truncate`` cuts."""
        return None if self.max_tokens is None else self.max_tokens // self.pad_to_multiple * self.pad_to_multiple


@dataclass(frozen=True)
class WindowPlan:
    """The batches of one window.

    Attributes:
        indices: (m,) int64, the batches end to end, as cut.
        bounds: (b+1,) int64: batch k as cut is ``indices[bounds[k]:bounds[k + 1]]``.
        order: (b,) int64, in which the batches are visited.
        shortest: index of a shortest sequence of the window; -1 in an empty one.
        num_long: sequences over the budget that the window met.
    """

    indices: np.ndarray
    bounds: np.ndarray
    order: np.ndarray
    shortest: int
    num_long: int

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.order)

    def __getitem__(self, i: int) -> np.ndarray:
        """Return batch i in visiting order, 0 <= i < len(self)."""
        k = self.order[i]
        return self.indices[self.bounds[k] : self.bounds[k + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))


def count_windows(num_sequences: int, settings: PlanSettings) -> int:
    """Return how many windows an epoch has: as few as allowed, of nearly one size."""
    unit = settings.batch_size or 1
    return min(-(-num_sequences // settings.window), -(-num_sequences // unit))


def plan_window(
    lengths: Any, settings: PlanSettings, *, epoch: int, window: int, sums: np.ndarray | None = None,
    longest: int | None = None,
) -> WindowPlan:
    """Plan the batches of one window.

    Args:
        lengths: (N,), N >= 1.
        settings: see PlanSettings.
        epoch: 0-based.
        window: 0 <= window < count_windows.
        sums: (N,) running sum of weights (``sampling.cumulative_weights``): the window's sequences are
            drawn with replacement; None takes each once.
        longest: index of the longest of all sequences; with ``longest_first`` its window changes
            places with the first.

    Raises:
        LongSequenceError: a sequence is over ``max_tokens``, and ``on_long`` is ``error``.
    """
    num_sequences = len(lengths)
    if longest is not None and settings.longest_first and sums is None:
        home = _window_of(longest, num_sequences, settings, epoch)
        window = {0: home, home: 0}.get(window, window)
    start, stop = _window_bounds(num_sequences, settings, window)
    bits = _RandomBits(settings.seed, epoch, window)
    if sums is not None:
        indices = draw(sums, bits.uniform(stop - start))
    elif settings.shuffle and stop - start < num_sequences:
        indices = _shuffled_blocks(num_sequences, start, stop, settings.seed, epoch)
    else:
        indices = np.arange(start, stop)
    found = lengths[start:stop] if len(indices) and sums is None and indices[-1] - indices[0] == stop - start - 1 \
        and indices[0] == start else lengths[indices]
    sizes = np.asarray(found).astype(np.int64, copy=False)
    noise = bits.raw(len(indices)) if settings.shuffle else None
    if settings.drop_last and settings.max_tokens is None and stop == num_sequences and (
            extra := num_sequences % (settings.batch_size or 1)):
        kept = np.arange(len(indices) - extra) if noise is None else np.sort(_order(noise)[: len(indices) - extra])
        indices, sizes, noise = indices[kept], sizes[kept], None if noise is None else noise[kept]
    num_long = 0
    if settings.longest_allowed is not None and len(sizes) and sizes.max() > settings.longest_allowed:
        kept, sizes, num_long = _apply_on_long(indices, sizes, settings)
        indices, noise = indices[kept], None if noise is None else noise[kept]
    if not len(indices):
        return WindowPlan(indices, np.zeros(1, np.int64), np.empty(0, np.int64), -1, num_long)
    shortest = int(indices[sizes.argmin()])
    if settings.bucket:
        order = _order(_noisy(sizes, noise, settings.mixing))[::-1]
    else:
        order = np.arange(len(indices)) if noise is None else _order(noise)
    indices, sizes = indices[order], sizes[order]
    bounds = _cut(sizes, settings)
    if settings.bucket and noise is None:
        for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            indices[a:b].sort()
        visits = np.argsort(indices[bounds[:-1]])
    elif settings.bucket:
        visits = np.argsort(bits.raw(len(bounds) - 1))
    else:
        visits = np.arange(len(bounds) - 1)
    if settings.longest_first and len(visits):
        visits = _with_largest_first(visits, sizes, bounds, settings)
    return WindowPlan(indices, bounds, visits, shortest, num_long)


def plan_batches(lengths: Any, *, epoch: int = 0, **options: Any) -> list[np.ndarray]:
    """Return all batches of one epoch; ``options`` are those of PlanSettings.

    Raises:
        LongSequenceError: a sequence is over ``max_tokens``, and ``on_long`` is ``error``.
    """
    settings = PlanSettings(**options)
    longest = int(np.argmax(lengths)) if settings.longest_first and len(lengths) else None
    return [
        batch for window in range(count_windows(len(lengths), settings))
        for batch in plan_window(lengths, settings, epoch=epoch, window=window, longest=longest)
    ]


def count_batches(num_sequences: int, *, batch_size: int, drop_last: bool) -> int:
    """Return how many batches of a fixed size an epoch has."""
    return num_sequences // batch_size if drop_last else -(-num_sequences // batch_size)


def padding_share(lengths: np.ndarray, batches: list[np.ndarray], *, pad_to_multiple: int = 1) -> float:
    """Return the share of padding among all elements of padded batches, 0 <= share < 1."""
    if not batches:
        return 0.0
    sizes = np.array([len(batch) for batch in batches])
    flat = lengths[np.concatenate(batches)]
    longest = _padded(np.maximum.reduceat(flat, np.cumsum(sizes) - sizes), pad_to_multiple)
    return 1 - int(flat.sum()) / int((sizes * longest).sum())


class _RandomBits:
    """A stream of 64-bit numbers that belongs to one window.

    Bits of a bit generator are promised to stay the same in every NumPy version; numbers that a
    ``Generator`` makes of them are not.
    """

    def __init__(self, seed: int, epoch: int, window: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch, window)))

    def raw(self, count: int) -> np.ndarray:
        """Return (count,) uint64."""
        return self._bits.random_raw(count)

    def uniform(self, count: int) -> np.ndarray:
        """Return (count,) float64, 0 <= number < 1."""
        return _uniform(self.raw(count))


def _uniform(raw: np.ndarray) -> np.ndarray:
    return (raw >> np.uint64(11)) * 2.0**-53


def _window_bounds(num_sequences: int, settings: PlanSettings, window: int) -> tuple[int, int]:
    """Return where a window starts and stops in the visiting order: at a multiple of the batch size."""
    unit = settings.batch_size or 1
    units, count = -(-num_sequences // unit), count_windows(num_sequences, settings)
    return window * units // count * unit, min(num_sequences, (window + 1) * units // count * unit)


def _window_of(index: int, num_sequences: int, settings: PlanSettings, epoch: int) -> int:
    """Return the window in which a sequence is visited."""
    unit, count = settings.batch_size or 1, count_windows(num_sequences, settings)
    if count == 1:
        return 0
    position = index
    if settings.shuffle:
        blocks = Permutation(-(-num_sequences // BLOCK), seed=settings.seed, epoch=epoch)
        slot, last = blocks.inverse(np.array([index // BLOCK, len(blocks) - 1])).tolist()
        position = slot * BLOCK + index % BLOCK - (-num_sequences % BLOCK if slot > last else 0)
    # The inverse of window * units // count, in whole numbers.
    return ((position // unit + 1) * count - 1) // -(-num_sequences // unit)


def _shuffled_blocks(num_sequences: int, start: int, stop: int, seed: int, epoch: int) -> np.ndarray:
    """Return the sequences at positions start..stop when blocks of neighbours are visited in random order."""
    blocks = Permutation(-(-num_sequences // BLOCK), seed=seed, epoch=epoch)
    missing = -num_sequences % BLOCK  # in the last block of the store, wherever it is visited
    last = int(blocks.inverse(np.array([len(blocks) - 1]))[0])
    first = start // BLOCK
    if start >= (last + 1) * BLOCK - missing:
        first = (start + missing) // BLOCK
    slots = np.arange(first, min(len(blocks), (stop + missing) // BLOCK + 1))
    indices = (blocks(slots)[:, None] * BLOCK + np.arange(BLOCK)).ravel()
    indices = indices[indices < num_sequences]
    skipped = start - first * BLOCK + (missing if first > last else 0)
    return indices[skipped : skipped + stop - start]


def _order(keys: np.ndarray) -> np.ndarray:
    """Return (m,) int64, the argsort of uint64 keys; their lowest bits are given up.

    The place of each key replaces its lowest bits, and the keys themselves are sorted: an order of
    magnitude faster than argsort, and every sort gives the same result.
    """
    mask = np.uint64(2 ** max(1, (len(keys) - 1).bit_length()) - 1)
    packed = keys & ~mask
    packed |= np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    packed &= mask
    return packed.astype(np.int64)


def _noisy(sizes: np.ndarray, noise: np.ndarray | None, mixing: float) -> np.ndarray:
    """Return keys that sort by length: uint64 that order like the float64 numbers with their bits."""
    if noise is None:
        return sizes.astype(np.float64).view(np.uint64)
    uniform = _uniform(noise)
    # The part of the mean lets the short ones mix, whose padding is cheap; alone it would favour them too much.
    return (sizes + uniform * (1 + mixing * (sizes + sizes.mean()))).view(np.uint64)


def _padded(sizes: np.ndarray, multiple: int) -> np.ndarray:
    sizes = np.maximum(sizes, 1)
    return sizes if multiple == 1 else -(-sizes // multiple) * multiple


def _apply_on_long(
    indices: np.ndarray, sizes: np.ndarray, settings: PlanSettings
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return which sequences of a window stay, their lengths, and how many were over the budget."""
    assert settings.longest_allowed is not None
    long = sizes > settings.longest_allowed
    num_long = int(long.sum())
    if settings.on_long == "error":
        i = int(long.argmax())
        raise long_error(int(indices[i]), int(sizes[i]), settings)
    kept = np.flatnonzero(~long) if settings.on_long == "skip" else np.arange(len(sizes))
    sizes = np.minimum(sizes, settings.longest_allowed) if settings.on_long == "truncate" else sizes[kept]
    return kept, sizes, num_long


def long_error(index: int, length: int, settings: PlanSettings) -> LongSequenceError:
    """Return the error that names a sequence over the budget."""
    rounded = f", {_padded(np.array(length), settings.pad_to_multiple)} when padded to a multiple of " \
        f"{settings.pad_to_multiple}" if settings.pad_to_multiple > 1 else ""
    error = LongSequenceError(
        f"sequence {index} has length {length}{rounded}, over max_tokens={settings.max_tokens}; raise max_tokens, or "
        "choose on_long='truncate', 'skip' or 'alone'"
    )
    error.index = index
    return error


def check_budget(shortest: int, longest: int, longest_index: int, settings: PlanSettings) -> None:
    """Refuse a budget that the data set cannot keep, before any batch is planned.

    Raises:
        LongSequenceError: the longest sequence is over the budget, and ``on_long`` is ``error``.
        OptionError: not one sequence fits, and ``on_long`` would skip them all.
    """
    if settings.longest_allowed is None or longest <= settings.longest_allowed:
        return
    if shortest > settings.longest_allowed and settings.on_long in ("error", "skip"):
        raise OptionError(f"max_tokens={settings.max_tokens} is below the shortest of all sequences, of length "
                          f"{shortest}: no batch fits; raise max_tokens, or choose on_long='truncate' or 'alone'")
    if settings.on_long == "error":
        raise long_error(longest_index, longest, settings)


def _cut(sizes: np.ndarray, settings: PlanSettings) -> np.ndarray:
    """Return the bounds of batches, (b+1,) int64, of sequences in visiting order (longest first with ``bucket``)."""
    num_sequences, most = len(sizes), settings.batch_size or len(sizes)
    if settings.max_tokens is None:
        bounds = list(range(0, num_sequences, most))
        full = num_sequences % most == 0
    elif settings.bucket:
        bounds, full = _cut_sorted(_padded(sizes, settings.pad_to_multiple), settings.max_tokens, most)
    else:
        bounds, full = _cut_in_order(_padded(sizes, settings.pad_to_multiple), settings.max_tokens, most)
    if full or not settings.drop_last:
        bounds.append(num_sequences)
    return np.array(bounds, np.int64)


def _cut_sorted(padded: np.ndarray, max_tokens: int, most: int) -> tuple[list[int], bool]:
    """Return the starts of batches, and whether the last is full, where lengths fall (but for noise).

    No sequence from s on is longer than ``longest[s]``: a batch that starts there is sized at once.
    """
    longest = np.maximum.accumulate(padded[::-1])[::-1]
    rows = np.clip(max_tokens // longest, 1, most).data
    starts, start, num_sequences = [], 0, len(padded)
    while start < num_sequences:
        starts.append(start)
        start += rows[start]
    return starts, start == num_sequences


def _cut_in_order(padded: np.ndarray, max_tokens: int, most: int) -> tuple[list[int], bool]:
    """Return the starts of batches, and whether the last is full, where lengths come in any order."""
    starts, start, longest = [0], 0, 0
    for i, size in enumerate(padded.tolist()):
        longest = max(longest, size)
        if i > start and ((i + 1 - start) * longest > max_tokens or i - start == most):
            starts.append(i)
            start, longest = i, size
    rows = len(padded) - start
    return starts, rows == most or (rows + 1) * longest > max_tokens


def _with_largest_first(
    visits: np.ndarray, sizes: np.ndarray, bounds: np.ndarray, settings: PlanSettings
) -> np.ndarray:
    """Move the batch with the most padded elements (of those the longest) to the front."""
    longest = _padded(np.maximum.reduceat(sizes[: bounds[-1]], bounds[:-1]), settings.pad_to_multiple)
    largest = np.lexsort((longest, np.diff(bounds) * longest))[-1]
    return np.concatenate([[largest], visits[visits != largest]])
