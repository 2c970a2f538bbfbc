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

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqpipe.batch_settings import PlanSettings, long_error
from seqpipe.cutting import cut, falling_order, largest, padded, sort_order
from seqpipe.weights import draw
from seqpipe.windows import RandomBits, uniform


@dataclass(frozen=True)
class WindowPlan:
    """The batches of one window.

    Attributes:
        indices: (m,) int64, the batches end to end, as cut.
        starts, stops: batch i, as they are visited, is ``indices[starts[i]:stops[i]]``.
        shortest: index of a shortest sequence of the window; -1 in an empty one.
        num_long: sequences over the budget that the window met.
        most_padded: with ``longest_first`` the elements of its first batch, padding included; else 0.
    """

    indices: np.ndarray
    starts: list[int]
    stops: list[int]
    shortest: int
    num_long: int
    most_padded: int

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.starts)

    def __getitem__(self, i: int) -> np.ndarray:
        """Return batch i in visiting order, 0 <= i < len(self)."""
        return self.indices[self.starts[i] : self.stops[i]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))


def plan_window(lengths: Any, settings: PlanSettings, *, epoch: int, window: int, sums: np.ndarray | None = None
                ) -> WindowPlan:
    """Plan the batches of one window.

    Args:
        lengths: (N,), N >= 1.
        settings: see PlanSettings.
        epoch: 0-based.
        window: 0 <= window < len(settings.windows(N, epoch)).
        sums: (N,) running sum of weights (``weights.cumulative_weights``): the window's sequences are
            drawn with replacement; None takes each once.

    Raises:
        LongSequenceError: a sequence is over ``max_tokens``, and ``on_long`` is ``error``.
    """
    windows = settings.windows(len(lengths), epoch)
    bits = RandomBits(settings.seed, epoch, window)
    start, stop = windows.bounds(window)
    indices = None  # those of a run of the store
    if sums is not None:
        indices = draw(sums, uniform(bits(stop - start)))
    elif settings.shuffle and len(windows) > 1:
        indices = windows.indices(window)
    sizes = lengths_between(lengths, start, stop) if indices is None else _whole(lengths[indices])
    kept, sizes, num_long = _kept(indices, start, sizes, bits, settings, is_last=stop == len(lengths))
    if kept is not None:
        indices = kept + start if indices is None else indices[kept]
    if not len(sizes):
        return WindowPlan(sizes, [], [], -1, num_long, 0)
    shortest = int(sizes.argmin())
    if sizes[shortest] < 0:
        raise ValueError(f"lengths: sequence {_index(indices, start, shortest)} has length {sizes[shortest]}; "
                         "expected 0 or more")
    if not settings.shuffle:
        order = sort_order(sizes.astype(np.float64).view(np.uint64))[::-1] if settings.bucket else np.arange(len(sizes))
    else:
        order = falling_order(sizes, bits, settings.mixing) if settings.bucket else sort_order(bits(len(sizes)))
    if settings.max_tokens is not None or settings.longest_first:
        sizes = padded(sizes[order], settings.pad_to_multiple)
    bounds = cut(sizes, batch_size=settings.batch_size, max_tokens=settings.max_tokens, falling=settings.bucket,
                 drop_last=settings.drop_last)
    if indices is None and start:
        order += start
    as_cut = order if indices is None else indices[order]
    visits = np.arange(len(bounds) - 1)
    if settings.bucket and settings.shuffle:
        visits = sort_order(bits(len(visits)))
        while _has_trend(visits):  # the batches as cut are ordered by length
            visits = sort_order(bits(len(visits)))
    elif settings.bucket:
        for a, b in itertools.pairwise(bounds.tolist()):
            as_cut[a:b].sort()
        visits = np.argsort(as_cut[bounds[:-1]])
    most = 0
    if settings.longest_first and len(visits):
        first, most = largest(sizes, bounds)
        visits = np.concatenate([[first], visits[visits != first]])
    return WindowPlan(as_cut, bounds[visits].tolist(), bounds[visits + 1].tolist(), _index(indices, start, shortest),
                      num_long, most)


def plan_batches(lengths: Any, *, epoch: int = 0, **options: Any) -> list[np.ndarray]:
    """Return all batches of one epoch; ``options`` are those of PlanSettings.

    Raises:
        LongSequenceError: a sequence is over ``max_tokens``, and ``on_long`` is ``error``.
    """
    settings = PlanSettings(**options)
    plans = [plan_window(lengths, settings, epoch=epoch, window=window)
             for window in range(len(settings.windows(len(lengths), epoch)))]
    if settings.longest_first and plans:
        first = max(range(len(plans)), key=lambda window: plans[window].most_padded)
        plans[0], plans[first] = plans[first], plans[0]
    return [batch for plan in plans for batch in plan]


def count_batches(num_sequences: int, *, batch_size: int, drop_last: bool) -> int:
    """Return how many batches of a fixed size an epoch has."""
    return num_sequences // batch_size if drop_last else -(-num_sequences // batch_size)


def padding_share(lengths: np.ndarray, batches: list[np.ndarray], *, pad_to_multiple: int = 1) -> float:
    """Return the share of padding among all elements of padded batches, 0 <= share < 1."""
    if not batches:
        return 0.0
    sizes = np.array([len(batch) for batch in batches])
    flat = lengths[np.concatenate(batches)]
    longest = padded(np.maximum.reduceat(flat, np.cumsum(sizes) - sizes), pad_to_multiple)
    return 1 - int(flat.sum()) / int((sizes * longest).sum())


def lengths_between(lengths: Any, start: int, stop: int) -> np.ndarray:
    """Return ``lengths[start:stop]``, int64 or int32."""
    try:
        return _whole(lengths[start:stop])
    except TypeError:  # computed ones may take nothing but index arrays
        return _whole(lengths[np.arange(start, stop)])


def _whole(sizes: Any) -> np.ndarray:
    """Return lengths as they are where they are int32, of half the time to look at; else as int64."""
    found = np.asarray(sizes)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError(f"lengths: found {found.dtype} of shape {found.shape}; expected one whole number a sequence")
    return found if found.dtype == np.int32 else found.astype(np.int64, copy=False)


def _index(indices: np.ndarray | None, start: int, place: int) -> int:
    """Return the sequence at a place of a window, whose ``indices`` are None for a run of the store from ``start``."""
    return int(start + place if indices is None else indices[place])


def _kept(indices: np.ndarray | None, start: int, sizes: np.ndarray, bits: RandomBits, settings: PlanSettings, *,
          is_last: bool) -> tuple[np.ndarray | None, np.ndarray, int]:
    """Return which places of a window stay (None: all), their lengths, and how many of all were over the budget."""
    if settings.longest_allowed is None:
        extra = len(sizes) % (settings.batch_size or 1) if settings.drop_last and is_last else 0
        if not extra:
            return None, sizes, 0
        # Before they are sorted: else the shortest would be left out in every epoch.
        left = len(sizes) - extra
        kept = np.sort(sort_order(bits(len(sizes)))[:left]) if settings.shuffle else np.arange(left)
        return kept, sizes[kept], 0
    if not len(sizes) or sizes.max() <= settings.longest_allowed:
        return None, sizes, 0
    long = sizes > settings.longest_allowed
    num_long = int(np.count_nonzero(long))
    if settings.on_long == "error":
        i = int(long.argmax())
        raise long_error(_index(indices, start, i), int(sizes[i]), settings)
    if settings.on_long == "skip":
        return np.flatnonzero(~long), sizes[~long], num_long
    if settings.on_long == "truncate":
        sizes = np.minimum(sizes, settings.longest_allowed)
    return None, sizes, num_long


def _has_trend(order: np.ndarray) -> bool:
    """Return whether a permutation of many numbers correlates with their places, by more than 0.04 either way."""
    count = len(order)
    if count < 100:  # so few that chance decides
        return False
    middle = (count - 1) / 2
    return abs(np.dot(order - middle, np.arange(count) - middle)) > 0.04 * count * (count**2 - 1) / 12
