"""A permutation of range(n) that needs no memory: any part of it, forwards and backwards.

Place in the flow: (seed, epoch) -> [permutation] -> batching.

A Feistel network over the smallest even number of bits that holds n, with cycle walking: what
lands at n or beyond goes through the network again, fewer than 4 times on average. Of few items all
are drawn at once: a network of a few bits favours some orders.
"""

from __future__ import annotations

import numpy as np

ROUNDS = 6
MOST = 2**62  # two halves of 31 bits
FEW = 1_000


class Permutation:
    """A permutation of range(n), drawn from (seed, epoch); equal on every machine and NumPy version.

    Args:
        num_items: n, 0 <= n <= 2**62.
        seed: 0 or more, of any size.
        epoch: 0 or more.
    """

    def __init__(self, num_items: int, *, seed: int, epoch: int) -> None:
        if not 0 <= num_items <= MOST:
            raise ValueError(f"num_items={num_items}; expected 0 <= num_items <= {MOST}")
        self._num_items = num_items
        # A list would let seed 2**32 meet seed 0 of the next epoch; a spawn key keeps them apart.
        seeds = np.random.SeedSequence(seed, spawn_key=(epoch,))
        self._keys = [np.uint64(key) for key in seeds.generate_state(ROUNDS, np.uint64)]
        self._drawn = np.argsort(np.random.PCG64(seeds).random_raw(num_items)) if num_items <= FEW else None
        half = max(1, -(-max(0, num_items - 1).bit_length() // 2))
        self._half, self._mask = np.uint64(half), np.uint64(2**half - 1)

    def __len__(self) -> int:
        return self._num_items

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Return the items at some positions, (k,) int64; ``positions`` are integers 0 <= p < n."""
        return self._walk(positions, backwards=False)

    def inverse(self, items: np.ndarray) -> np.ndarray:
        """Return the positions of some items, (k,) int64: ``inverse(self(positions))`` is ``positions``."""
        return self._walk(items, backwards=True)

    def _walk(self, numbers: np.ndarray, *, backwards: bool) -> np.ndarray:
        numbers = np.asarray(numbers)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < self._num_items:
            outside = numbers.min() if numbers.min() < 0 else numbers.max()
            raise IndexError(f"{outside} is out of range; expected 0 <= number < {self._num_items}")
        if self._drawn is not None:
            return (np.argsort(self._drawn) if backwards else self._drawn)[numbers.astype(np.int64)]
        found = self._network(numbers.astype(np.uint64), backwards)
        while len(outside := np.flatnonzero(found >= np.uint64(self._num_items))):
            found[outside] = self._network(found[outside], backwards)
        return found.astype(np.int64)

    def _network(self, numbers: np.ndarray, backwards: bool) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        if backwards:
            for key in reversed(self._keys):
                left, right = right ^ self._scrambled(left, key), left
        else:
            for key in self._keys:
                left, right = right, left ^ self._scrambled(right, key)
        return (left << self._half) | right

    def _scrambled(self, half: np.ndarray, key: np.uint64) -> np.ndarray:
        """Return as many pseudo-random bits as a half has (the finalizer of splitmix64)."""
        bits = half + key
        bits ^= bits >> np.uint64(30)
        bits *= np.uint64(0xBF58476D1CE4E5B9)
        bits ^= bits >> np.uint64(27)
        bits *= np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
        return bits & self._mask
