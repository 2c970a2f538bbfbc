"""Hand the planned batches of an epoch to a DataLoader.

Place in the flow: batching -> [samplers] -> DataLoader -> SequenceDataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from seqpipe.batching import count_batches, plan_batches


class LengthBatchSampler(Sampler[list[int]]):
    """A batch sampler whose batches depend on lengths, settings, seed and epoch alone.

    Args:
        lengths: (N,) elements per sequence; an array, or ``SequenceDataset.lengths``.
        batch_size: sequences a batch.
        shuffle, bucket, drop_last, seed: as ``batching.plan_batches``.

    Attributes:
        epoch: 0-based; set it with ``set_epoch``.
    """

    def __init__(
        self, lengths: Any, *, batch_size: int, shuffle: bool, bucket: bool, drop_last: bool = False, seed: int = 0
    ) -> None:
        self._lengths = lengths
        self.batch_size, self.drop_last = batch_size, drop_last
        self._shuffle, self._bucket, self._seed = shuffle, bucket, seed
        self.epoch = 0

    def __len__(self) -> int:
        return count_batches(len(self._lengths), batch_size=self.batch_size, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        # Not a generator: the plan is that of the epoch at this call, whatever is set later.
        return map(np.ndarray.tolist, self.plan())

    def plan(self) -> list[np.ndarray]:
        """Return the batches of the current epoch, index arrays into the dataset."""
        return plan_batches(
            self._lengths, batch_size=self.batch_size, shuffle=self._shuffle, bucket=self._bucket,
            drop_last=self.drop_last, seed=self._seed, epoch=self.epoch,
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch (0-based) of the next iteration."""
        self.epoch = epoch
