"""Plan batches from sequence lengths alone.

Place in the flow: lengths -> [batching] -> samplers -> DataLoader.

Pure: NumPy arrays in, a list of index arrays out. Nothing here reads a sequence or imports
torch. The same lengths, settings, seed and epoch give the same plan on every machine.

Terms:
    lengths   (N,) int64, elements per sequence; an array, or what is indexed like one
    batch     1-D int64 array of indices 0 <= i < N into ``lengths``, never empty
    pool      consecutive run of the visiting order that is sorted by length and cut into batches
"""

from __future__ import annotations

import numpy as np

POOL_BATCHES = 100  # batches sorted together: more means less padding, fewer means more mixing


def plan_batches(
    lengths: np.ndarray,
    *,
    batch_size: int,
    shuffle: bool,
    bucket: bool,
    drop_last: bool = False,
    seed: int = 0,
    epoch: int = 0,
) -> list[np.ndarray]:
    """Return the batches of one epoch; every index is in exactly one of them.

    Args:
        lengths: (N,) elements per sequence; read only with ``bucket``.
        batch_size: sequences a batch; the last one may have fewer.
        shuffle: visit the sequences, and the batches, in an order drawn from (seed, epoch).
        bucket: sort pools of ``POOL_BATCHES`` batches by length, so that a batch holds sequences
            of like length. Without ``shuffle`` all of them are one pool.
        drop_last: leave out the batch that is not full, if there is one.
        seed: of the run.
        epoch: 0-based.
    """
    num_sequences = len(lengths)
    # A list, not a sum: (0, 1) and (1, 0) must not draw the same.
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(num_sequences) if shuffle else np.arange(num_sequences)
    if drop_last:
        order = order[: num_sequences - num_sequences % batch_size]
    if bucket:
        pool = batch_size * POOL_BATCHES if shuffle else max(1, len(order))
        order = np.concatenate(
            [_sorted_by_length(order[i : i + pool], lengths) for i in range(0, len(order), pool)] or [order]
        )
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    if bucket and shuffle:
        batches = [batches[i] for i in rng.permutation(len(batches))]
    return batches


def count_batches(num_sequences: int, *, batch_size: int, drop_last: bool) -> int:
    """Return how many batches ``plan_batches`` makes."""
    return num_sequences // batch_size if drop_last else -(-num_sequences // batch_size)


def padding_share(lengths: np.ndarray, batches: list[np.ndarray]) -> float:
    """Return the share of padding among all elements of padded batches, 0 <= share < 1."""
    if not batches:
        return 0.0
    sizes = np.array([len(batch) for batch in batches])
    flat = lengths[np.concatenate(batches)]
    padded = int((sizes * np.maximum.reduceat(flat, np.cumsum(sizes) - sizes)).sum())
    return 1 - int(flat.sum()) / padded if padded else 0.0


def _sorted_by_length(pool: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return pool[np.argsort(lengths[pool], kind="stable")]
