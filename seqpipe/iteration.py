"""A DataLoader that knows where in its epoch each batch stands.

Place in the flow: SequenceDataset + LengthBatchSampler + collate -> [iteration] -> Batch.

The position is counted where batches are handed out. The sampler is ahead of that by as many batches
as the workers prefetch: its own position is not that of the training.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, get_worker_info

from seqpipe.batch import Batch
from seqpipe.errors import SeqpipeError
from seqpipe.samplers import LengthBatchSampler, Step
from seqpipe.sequences import SequenceDataset
from seqpipe.states import Position

MAIN_GUARD = """\
A loader process ended before its first batch. Under the start method {method!r} each such process runs your
script again from its top, so the code that uses the loader must stand below these two lines:

if __name__ == "__main__":
    main()

(put it into a function main; or use num_workers=0, or multiprocessing_context="fork" on Linux)"""

KILLED = """\
a loader process was killed or ended by itself ({found}), often for want of memory: fewer workers, smaller batches or a
lower prefetch_factor need less. The batches handed out count, those read ahead do not: make a new loader and give it
this one's state, new.load_state_dict(loader.state_dict()), to go on after the last batch used."""


class SequenceLoader(DataLoader[Any]):
    """A DataLoader whose batches depend on data, settings, seed and epoch alone, and that resumes anywhere.

    Each new iteration is the next epoch, from 0 on, unless ``set_epoch`` or ``load_state_dict`` said
    another. Each batch has its ``position`` (what comes after it) and its ``weight``: 0.0, with
    ``index`` -1, for a batch that only fills a step of a rank for which no other was left.
    Made by ``get_dataloader``.
    """

    def __init__(
        self, dataset: SequenceDataset | Subset, batch_sampler: LengthBatchSampler, *, seed: int, **options: Any
    ) -> None:
        # Without a generator of its own, each iteration would draw from torch's global one.
        generator = torch.Generator().manual_seed(int(seed) % 2**63)
        super().__init__(dataset, batch_sampler=batch_sampler, generator=generator, **options)
        self._plan = batch_sampler
        self._sequences = base_dataset(dataset)
        self._position: Position | None = None
        self._running: int | None = None
        self._told: int | None = None
        self._noting = _Noting(plain=type(dataset) is not SequenceDataset or dataset.transform is not None)
        self._start_worker = self.worker_init_fn
        self._workers_epoch: Tensor | None = None

    def __len__(self) -> int:
        """Return the steps of the whole epoch that is running, else of that to come, the same on all ranks."""
        self._told = self._plan.num_steps(self._plan.next_position[0] if self._running is None else self._running)
        return self._told

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be all of epoch ``epoch`` (0-based).

        After ``load_state_dict`` the epoch of the state goes on where it stopped, and has no more batches
        where that was its end: a loop that sets each epoch it begins may do so when it resumes.
        """
        check_count("epoch", epoch, 0)
        self._plan.set_epoch(int(epoch))
        self._position = self._running = None

    def state_dict(self) -> dict[str, Any]:
        """Return where the last batch handed out stands: plain numbers and texts, for any checkpoint.

        The same on all ranks. It does not depend on ranks and workers, which may be others on resume.
        """
        return self._plan.state_dict(self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on after the batch at which a state was taken. Reads no sequence.

        Raises:
            CheckpointError: the state is of other data or settings; the message names both values.
        """
        self._plan.load_state_dict(state)
        self._position = self._running = None

    def __iter__(self) -> Any:
        # A generator: the epoch is the one that is set when the first batch is asked for. Frameworks make
        # the iterator before they set the epoch.
        dead = [worker.pid for worker in getattr(self._iterator, "_workers", ()) if not worker.is_alive()]
        if dead:  # workers that persist; before anything changes, so that the state stays that of the last batch
            raise SeqpipeError(KILLED.format(found=f"pid {dead[0]}"))
        steps, self._position = self._plan.steps(), self._plan.next_position
        epoch = self._running = self._position[0]
        # The first step begins the epoch for the plan, so that an iteration begun next is of the epoch after.
        first = list(itertools.islice(steps, 1))
        ahead = self._noting.begin(itertools.chain(first, steps))
        self._sequences.epoch = epoch
        if self.num_workers and self._sequences.transform is not None:
            self._share_epoch(epoch)
        # A default device of the user's would take the seed that torch draws here away from our generator.
        try:
            with torch.device("cpu"):
                batches = super().__iter__()
        except (RuntimeError, ConnectionError, EOFError) as error:
            self._explain(error, at_start=True)
            raise
        yield from self._batches(batches, epoch, ahead)
        if ahead is self._noting.ahead:
            self._running = None

    def _warn_if_cut(self, epoch: int, handed: int) -> None:
        """Say so where an epoch was left after as many batches as another has: a framework asked for len only once."""
        if handed == self._told and handed < self._plan.num_steps(epoch):
            warnings.warn(f"epoch {epoch} was left after {handed} of its {self._plan.num_steps(epoch)} batches, the "
                          "len() of another epoch: with max_tokens they differ. Ask for len(loader) in each epoch; in "
                          "Lightning let train_dataloader call loader.set_epoch(self.current_epoch), and set "
                          "reload_dataloaders_every_n_epochs=1", stacklevel=3)

    @property
    def _index_sampler(self) -> Any:
        """What torch takes the indices of a batch from: the plan, each step of which is noted on the way."""
        return self._noting

    def _batches(self, batches: Iterator[Batch], epoch: int, ahead: deque[tuple[Position, float]]) -> Iterator[Batch]:
        try:
            batch = next(batches, None)
        except (RuntimeError, ConnectionError, EOFError) as error:
            self._explain(error, at_start=True)
            raise
        handed = 0
        while batch is not None:
            position, weight = ahead.popleft()
            index = batch.index if weight else torch.full_like(batch.index, -1)
            if ahead is self._noting.ahead:  # of two iterations at once, the later one counts
                self._position = position
            handed += 1
            try:
                yield replace(batch, position=position, weight=weight, index=index)
            except GeneratorExit:
                self._warn_if_cut(epoch, handed)
                raise
            if self.persistent_workers and ahead is not self._noting.ahead:
                raise SeqpipeError("another iteration over this loader has begun since, and workers that persist serve "
                                   "one at a time; end the one first, or use persistent_workers=False")
            # Without workers the samples are read here, and another loader over the same dataset may
            # have set its own epoch since.
            self._sequences.epoch = epoch
            try:
                batch = next(batches, None)
            except RuntimeError as error:
                self._explain(error, at_start=False)
                raise

    def _share_epoch(self, epoch: int) -> None:
        """Let the workers of this iteration see ``epoch``, whatever other loaders over the dataset set.

        Workers that persist keep the number they were started with, and read the new epoch from it.
        """
        if self._workers_epoch is None or not self.persistent_workers:
            self._workers_epoch = torch.zeros((), dtype=torch.int64, device="cpu").share_memory_()
            self.worker_init_fn = functools.partial(_start_worker, self._workers_epoch, self._start_worker)
        self._workers_epoch.fill_(epoch)

    def _explain(self, error: Exception, *, at_start: bool) -> None:
        """Raise the error that says what to do where a worker could not start or was killed; of others say nothing."""
        method = self.multiprocessing_context and self.multiprocessing_context.get_start_method()
        method = method or torch.multiprocessing.get_start_method()
        # Python's words for a start within a start, and torch's for a worker that ended; those for
        # an error that the dataset raised in a worker begin with "Caught".
        text = str(error)
        ended = not isinstance(error, RuntimeError) or "exited unexpectedly" in text or "bootstrapping" in text
        if at_start and self.num_workers and method != "fork" and ended and not text.startswith("Caught "):
            raise SeqpipeError(MAIN_GUARD.format(method=method)) from error
        if text.startswith("DataLoader worker"):
            raise SeqpipeError(KILLED.format(found=text.rstrip("."))) from error


class _Noting:
    """The indices of the running iteration; position and weight of each step are kept for the parent.

    Plain integers where anything but our own dataset takes them; it takes arrays, at a third of the time.

    Not the loader's own: torch's iterator would hold the loader that holds it, and the workers of a loader
    nobody has any more would wait for the garbage collector.
    """

    def __init__(self, plain: bool) -> None:
        self._plain = plain
        self.begin(iter(()))

    def begin(self, steps: Iterator[Step]) -> deque[tuple[Position, float]]:
        """Take the steps of another iteration; return where theirs will be kept."""
        ahead: deque[tuple[Position, float]] = deque()
        self._steps, self.ahead = steps, ahead
        return ahead

    def __iter__(self) -> Iterator[Any]:
        # torch calls this twice at a start with workers, and takes batches of the second only.
        return self._noted(self._steps, self.ahead)

    def __reduce__(self) -> Any:
        return _Noting, (self._plain,)  # a copied loader is in no iteration

    def _noted(self, steps: Iterator[Step], ahead: deque[tuple[Position, float]]) -> Iterator[Any]:
        for indices, position, weight in steps:
            ahead.append((position, weight))
            yield indices.tolist() if self._plain else indices


def base_dataset(dataset: SequenceDataset | Subset) -> SequenceDataset:
    """Return the SequenceDataset below any number of Subsets."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset  # type: ignore[assignment]
    if not isinstance(dataset, SequenceDataset):
        raise ValueError(f"found a {type(dataset).__name__}; expected a path, a SequenceDataset or a Subset of one")
    return dataset


def check_count(name: str, value: object, least: int) -> None:
    """Refuse an argument that is no whole number, or is less than ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}={value!r}; expected a whole number, {least} or more")


def _start_worker(epoch: Tensor, start: Callable[[int], None] | None, number: int) -> None:
    """Begin a loader process: its dataset reads the loader's epoch; then what the user wants done."""
    info = get_worker_info()
    assert info is not None
    base_dataset(info.dataset).follow_epoch(epoch)  # type: ignore[arg-type]
    if start is not None:
        start(number)
