"""Hand the planned batches of an epoch to a DataLoader, from any place of it, to any rank.

Place in the flow: batching -> [samplers] -> DataLoader -> SequenceDataset.

    position   (epoch, window, batch in window) of the next batch of the global plan: what is to come
               after a step, the same on all ranks. A checkpoint keeps the position of the last batch
               that was *used*: a sampler runs ahead of training by workers x prefetch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Sampler

from seqpipe.batch_settings import MIXING, WINDOW, PlanSettings, check_budget
from seqpipe.batching import WindowPlan, count_batches, lengths_between, plan_window
from seqpipe.errors import OptionError
from seqpipe.states import CHUNK, MOST_AT_ONCE, MOST_EPOCHS, Position, fingerprint, position_of, state_of
from seqpipe.weights import cumulative_weights

Step = tuple[np.ndarray, Position, float]


class LengthBatchSampler(Sampler[list[int]]):
    """A batch sampler whose batches depend on lengths, settings, seed and epoch alone.

    One global list of batches is planned, window by window; rank r of W takes batches r, r + W, ….
    All ranks take the same number of steps: where the last step has no batch for a rank, it gets a
    filler of weight 0, one shortest sequence. Each iteration is the next epoch, from 0 on, unless
    ``set_epoch`` or ``load_state_dict`` said another.

    Args:
        lengths: (N,) elements per sequence, N >= 1; an array, ``SequenceDataset.lengths``, or anything
            with a length that is indexed by slices and index arrays.
        batch_size, max_tokens, shuffle, bucket, drop_last, seed, window, pad_to_multiple, on_long,
            longest_first, mixing: as ``batch_settings.PlanSettings``.
        weights: (N,) numbers; with them an epoch is N draws with replacement.
        rank, world_size: 0 <= rank < world_size.
        source: names the data in a state, such as a digest of their file; another one is refused.

    Attributes:
        epoch: 0-based; of the running iteration, else of the next.

    Raises:
        OptionError: a sequence does not fit the budget, or the weights are none.
        ValueError: an argument is out of range, or there are no sequences.
    """

    def __init__(
        self,
        lengths: Any,
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        shuffle: bool,
        bucket: bool,
        drop_last: bool = False,
        seed: int = 0,
        window: int = WINDOW,
        pad_to_multiple: int = 1,
        on_long: str = "error",
        longest_first: bool = False,
        mixing: float = MIXING,
        weights: np.ndarray | None = None,
        rank: int = 0,
        world_size: int = 1,
        source: str = "",
    ) -> None:
        self.settings = PlanSettings(
            batch_size=batch_size, max_tokens=max_tokens, shuffle=shuffle, bucket=bucket, drop_last=drop_last,
            seed=seed, window=window, pad_to_multiple=pad_to_multiple, on_long=on_long, longest_first=longest_first,
            mixing=mixing,
        )
        if not (isinstance(rank, int) and isinstance(world_size, int) and 0 <= rank < world_size):
            raise ValueError(f"rank={rank!r} of world_size={world_size!r}; expected whole numbers, 0 <= rank < "
                             "world_size")
        if weights is not None and not shuffle:
            raise ValueError("weights draw at random, and shuffle=False keeps an order; expected shuffle=True")
        self._lengths = np.asarray(lengths) if isinstance(lengths, list | tuple | Tensor) else lengths
        self._sums = None if weights is None else cumulative_weights(weights, len(self._lengths))
        self.batch_size, self.drop_last = batch_size, drop_last  # where torch's tools look for them
        self.rank, self.world_size, self.source = rank, world_size, source
        self.epoch = 0
        self._next: Position = (0, 0, 0)
        self._resumed: Position | None = None
        self._plans: dict[tuple[int, int], WindowPlan] = {}
        self._known: dict[int, tuple[int, int, int]] = {}
        if not len(self._lengths):
            raise OptionError("no sequences to batch: the data set is empty; choose another split or subset")
        if self._num_windows == 1:  # looked up once, not in each epoch
            self._lengths = lengths_between(self._lengths, 0, len(self._lengths))
            if self._lengths.min() >= 0 and self._lengths.max() < 2**31:
                self._lengths = self._lengths.astype(np.int32)
        if max_tokens is not None and len(self._lengths) <= MOST_AT_ONCE:
            check_budget(self._extremes[1], self._extremes[3], self._extremes[2], self.settings)

    def __len__(self) -> int:
        """Return the steps of the whole epoch that is set, equal on all ranks; a token budget has them counted."""
        return self.num_steps(self.epoch)

    def num_steps(self, epoch: int) -> int:
        """Return the steps of epoch ``epoch``, equal on all ranks."""
        return -(-self._counts(epoch)[0] // self.world_size)

    @property
    def num_batches(self) -> int:
        """Batches of the whole epoch that is set, of all ranks together."""
        return self._counts(self.epoch)[0]

    @property
    def num_long(self) -> int:
        """Sequences of the epoch that is set that are over ``max_tokens``: truncated, skipped or alone."""
        return self._counts(self.epoch)[1]

    def _counts(self, epoch: int) -> tuple[int, int]:
        """Return the batches and long sequences of an epoch."""
        if self.settings.max_tokens is None:
            assert self.batch_size is not None
            return count_batches(len(self._lengths), batch_size=self.batch_size, drop_last=self.drop_last), 0
        return self._looked_at(epoch)[:2]

    def _looked_at(self, epoch: int) -> tuple[int, int, int]:
        """Plan an epoch's windows, once; return its batches, long sequences, and the window of its largest batch."""
        epoch = epoch if self.settings.shuffle else 0
        if epoch not in self._known:
            found = [(len(plan), plan.num_long, plan.most_padded)
                     for plan in (self._planned(epoch, window) for window in range(self._num_windows))]
            num_batches, num_long, most = zip(*found, strict=True)
            self._known = {epoch: (sum(num_batches), sum(num_long), most.index(max(most)))}
        return self._known[epoch]

    @property
    def next_position(self) -> Position:
        """Where the next iteration starts."""
        epoch, window, _ = self._next
        return self._next if window < self._num_windows else (epoch + 1, 0, 0)

    @property
    def sampler(self) -> LengthBatchSampler:
        """This sampler itself: frameworks call ``set_epoch`` of what they find under this name."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be all of epoch ``epoch`` (0-based).

        After ``load_state_dict`` the epoch of the state goes on where it stopped, and has no more batches
        where that was its end: a loop that sets each epoch it begins may do so when it resumes.
        """
        if not 0 <= epoch < MOST_EPOCHS:
            raise ValueError(f"epoch={epoch!r}; expected 0 <= epoch < 2**62")
        epoch = int(epoch)
        if self._resumed == (epoch + 1, 0, 0):
            self.epoch, self._next = epoch, (epoch, self._num_windows, 0)
        elif self._resumed is None or self._resumed[0] != epoch:
            self.epoch, self._next, self._resumed = epoch, (epoch, 0, 0), None
        else:
            self.epoch, self._next = epoch, self._resumed

    def __iter__(self) -> Iterator[list[int]]:
        return _Iteration(self)

    def steps(self) -> Iterator[Step]:
        """Yield, for each step of this rank, the (b,) int64 indices, the position after the step, and the weight:
        1.0, or 0.0 for a filler."""
        # Not a generator itself: the epoch is that at this call, whatever is set later.
        return self._steps(self._next)

    def state_dict(self, position: Position | None = None) -> dict[str, Any]:
        """Return the state from which ``load_state_dict`` goes on, plain numbers and texts.

        Args:
            position: after the last batch used, as ``steps`` gives it; None is where the next
                iteration starts.
        """
        position = position or self.next_position
        return state_of(position, self._fingerprint)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on where a state was taken; the number of ranks may differ.

        Raises:
            CheckpointError: the state is of other data or settings; the message names both values.
        """
        position = position_of(state, self._fingerprint, self._num_windows)
        self.epoch, self._next, self._resumed = position[0], position, position

    def _steps(self, start: Position) -> Iterator[Step]:
        epoch, *place = start
        # Only now: torch's loader calls iter() twice for one iteration. And not where another epoch was set since.
        if self._next == start:
            self.epoch, self._next = epoch, (epoch + 1, 0, 0)
            if self._resumed is not None and epoch > self._resumed[0]:
                self._resumed = None
        window, first = self._located(epoch, *place)
        while window < self._num_windows:
            plan = self._plan(epoch, window)
            # All steps but those that reach into the next window.
            mine = slice(first + self.rank, None, self.world_size)
            after = range(first + self.world_size, len(plan), self.world_size)
            for a, b, first in zip(plan.starts[mine], plan.stops[mine], after, strict=False):
                yield plan.indices[a:b], (epoch, window, first), 1.0
            own_window, own = self._located(epoch, window, first + self.rank)
            if own_window < self._num_windows:
                batch, weight = self._plan(epoch, own_window)[own], 1.0
            else:
                batch, weight = np.array([plan.shortest]), 0.0
            window, first = self._located(epoch, window, first + self.world_size)
            yield batch, (epoch, window, first) if window < self._num_windows else (epoch + 1, 0, 0), weight
        if self._next == (epoch + 1, 0, 0):
            self.epoch = epoch + 1

    def _located(self, epoch: int, window: int, batch: int) -> tuple[int, int]:
        """Return window and place of the batch that comes ``batch`` batches after the start of a window."""
        while window < self._num_windows and batch >= (count := len(self._plan(epoch, window))):
            window, batch = window + 1, batch - count
        return window, batch

    def _plan(self, epoch: int, window: int) -> WindowPlan:
        first = self._first_window(epoch)
        return self._planned(epoch, {0: first, first: 0}.get(window, window))

    def _first_window(self, epoch: int) -> int:
        """Return the window that changes places with window 0, for ``longest_first``."""
        if not self.settings.longest_first or self._num_windows == 1:
            return 0
        if len(self._lengths) <= MOST_AT_ONCE:
            return self._looked_at(epoch)[2]
        windows = self.settings.windows(len(self._lengths), epoch)
        return windows.window_of(self._extremes[2]) if self._sums is None else 0

    def _planned(self, epoch: int, window: int) -> WindowPlan:
        key = epoch if self.settings.shuffle else 0, window
        if key not in self._plans:
            plan = plan_window(self._lengths, self.settings, epoch=key[0], window=window, sums=self._sums)
            while len(self._plans) > 1:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan
        return self._plans[key]

    @cached_property
    def _num_windows(self) -> int:
        return len(self.settings.windows(len(self._lengths), 0))

    @cached_property
    def _extremes(self) -> tuple[int, int, int, int]:
        """Index and length of the first shortest sequence, index and length of the first longest one."""
        found = []
        for start in range(0, len(self._lengths), CHUNK):
            sizes = lengths_between(self._lengths, start, min(start + CHUNK, len(self._lengths)))
            low, high = int(sizes.argmin()), int(sizes.argmax())
            found.append((int(sizes[low]), start + low, int(sizes[high]), start + high))
        shortest, low = min((size, i) for size, i, _, _ in found)
        longest, high = max((size, -i) for _, _, size, i in found)
        return low, shortest, -high, longest

    @cached_property
    def _fingerprint(self) -> dict[str, Any]:
        """What a state must agree in, by name: all that changes the plan."""
        return fingerprint(self._lengths, self._sums, self.settings, self.source)


class _Iteration:
    """The batches of one iteration, with the state after the last one: torchdata's loader asks for it."""

    def __init__(self, sampler: LengthBatchSampler) -> None:
        self._sampler, self._position, self._epoch = sampler, sampler.next_position, sampler._next[0]
        # None until the first batch is asked for: frameworks make the iterator, and set the epoch then.
        self._steps: Iterator[Step] | None = None

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> list[int]:
        if self._steps is None:
            self._epoch, self._steps = self._sampler._next[0], self._sampler.steps()
        batch, self._position, _ = next(self._steps)
        return batch.tolist()

    def state_dict(self) -> dict[str, Any]:
        return {**self._sampler.state_dict(self._position), "epoch": self._epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sampler.load_state_dict(state)
        self._position, self._epoch = self._sampler._next, state["epoch"]
        # An iteration that was at its end has no batch left; the next one is the next epoch.
        self._steps = self._sampler.steps() if self._epoch == self._position[0] else iter(())
