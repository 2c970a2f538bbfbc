"""The order in which an epoch visits the sequences, window by window.

Place in the flow: (number of sequences, seed, epoch) -> [windows] -> batching.

Any part of the order is computed at once, without the parts before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqpipe.permutation import Permutation

BLOCK = 1_024  # neighbours that are visited together: a window then touches few pages of a mapped file


@dataclass(frozen=True)
class Windows:
    """The windows of one epoch: as few as allowed, and of nearly one size, so that none is small.

    Attributes:
        num_sequences: N >= 1.
        size: sequences a window at most (but at least one unit).
        unit: all windows but the last hold a multiple of this many sequences.
        shuffle: visit blocks of neighbours in an order drawn from (seed, epoch); else the store's order.
        seed, epoch: of the order.
    """

    num_sequences: int
    size: int
    unit: int
    shuffle: bool
    seed: int
    epoch: int

    def __len__(self) -> int:
        return min(-(-self.num_sequences // self.size), self._num_units)

    def bounds(self, window: int) -> tuple[int, int]:
        """Return where a window starts and stops in the visiting order."""
        start, stop = (number * self._num_units // len(self) * self.unit for number in (window, window + 1))
        return start, min(stop, self.num_sequences)

    def indices(self, window: int) -> np.ndarray:
        """Return the sequences of a window, (m,) int64. A window of all has them in the store's order."""
        start, stop = self.bounds(window)
        if not self.shuffle or len(self) == 1:
            return np.arange(start, stop)
        # Positions count the sequences there are; slots x BLOCK counts the last block as whole, wherever it is visited.
        first = start // BLOCK if start < self._last_slot * BLOCK else (start + self._missing) // BLOCK
        slots = np.arange(first, min(len(self._blocks), (stop + self._missing) // BLOCK + 1))
        indices = (self._blocks(slots)[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        indices = indices[indices < self.num_sequences]
        skipped = start - first * BLOCK + (self._missing if first > self._last_slot else 0)
        return indices[skipped : skipped + stop - start]

    def window_of(self, index: int) -> int:
        """Return the window in which a sequence is visited."""
        position = index
        if self.shuffle and len(self) > 1:
            slot = int(self._blocks.inverse(np.array([index // BLOCK]))[0])
            position = slot * BLOCK + index % BLOCK - (self._missing if slot > self._last_slot else 0)
        # The inverse of window * units // count, in whole numbers.
        return ((position // self.unit + 1) * len(self) - 1) // self._num_units

    @property
    def _num_units(self) -> int:
        return -(-self.num_sequences // self.unit)

    @property
    def _missing(self) -> int:
        """How many sequences the last block of the store lacks."""
        return -self.num_sequences % BLOCK

    @cached_property
    def _blocks(self) -> Permutation:
        return Permutation(-(-self.num_sequences // BLOCK), seed=self.seed, epoch=self.epoch)

    @cached_property
    def _last_slot(self) -> int:
        """When the last block of the store is visited."""
        return int(self._blocks.inverse(np.array([len(self._blocks) - 1]))[0])


class RandomBits:
    """A stream of 64-bit numbers that belongs to one window.

    Bits of a bit generator are promised to stay the same in every NumPy version; numbers that a
    ``Generator`` makes of them are not.
    """

    def __init__(self, seed: int, epoch: int, window: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch, window)))

    def __call__(self, count: int, dtype: type[np.unsignedinteger] = np.uint64) -> np.ndarray:
        """Return the next numbers, (count,) of an unsigned dtype."""
        raw = self._bits.random_raw(-(-count * np.dtype(dtype).itemsize // 8))
        return raw.astype("<u8", copy=False).view(np.dtype(dtype).newbyteorder("<"))[:count]


def uniform(raw: np.ndarray) -> np.ndarray:
    """Return numbers 0 <= number < 1, float64, made of random uint64."""
    numbers = (raw >> np.uint64(11)).astype(np.float64)
    numbers *= 2.0**-53
    return numbers
