"""Loader processes change nothing but the time: batches, states and resumes are those without them."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal

import pytest

from seqpipe.dataloader import get_dataloader
from seqpipe.errors import SeqpipeError


def cut_a_little(sequence, metadata, rng):
    return sequence[rng.integers(0, 3) if len(sequence) > 3 else 0 :], metadata


def content(batches):
    """Return what a training sees of its batches, in a form that can be compared."""
    return [(b.index.tolist(), b.weight, b.position, b.sequences.numpy().tobytes(), b.labels.tolist()) for b in batches]


def used(batches):
    """Return the rows that count."""
    return [row for batch in batches if batch.weight for row in batch.index.tolist()]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_with_workers_the_state_is_that_of_the_batch_used_last(odd_store, workers, persistent):
    """Prefetched batches are not counted as used; second and third resumes too, with other numbers of workers."""
    def make(count):
        return get_dataloader(odd_store, 4, shuffle=True, transform=cut_a_little, num_workers=count,
                              **({"persistent_workers": persistent, "prefetch_factor": 3} if count else {}))

    wanted = content(make(0))
    state, found = None, []
    for count in (workers, 0, workers, 2):
        loader = make(count)
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            found += content([batch])
            if len(found) % 7 == 0:
                break
        state = loader.state_dict()
    assert found == wanted[: len(found)] and len(found) == 26


def test_persistent_workers_have_whole_epochs_after_a_resume(odd_store):
    """A resumed epoch is a part, those after it are complete."""
    loader = get_dataloader(odd_store, 8, shuffle=True, num_workers=2, persistent_workers=True)
    batches = iter(loader)
    first = [next(batches) for _ in range(5)]
    state = loader.state_dict()
    loader.load_state_dict(state)
    epochs = [list(loader) for _ in range(3)]

    assert [len(epoch) for epoch in epochs] == [8, 13, 13]
    assert sorted(used(first + epochs[0])) == sorted(used(epochs[1])) == sorted(used(epochs[2])) == list(range(101))


def test_workers_that_persist_end_with_their_loader(odd_store):
    """At once: not when the garbage collector comes, in whatever process."""
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        for _ in range(3):
            loader = get_dataloader(odd_store, 8, shuffle=True, num_workers=1, persistent_workers=True)
            assert len(list(loader)) == 13 and len(set(multiprocessing.active_children()) - before) == 1
            del loader
            assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()


def test_two_iterations_at_once_over_workers_that_persist_are_refused(odd_store):
    """torch would hand the batches of the later one to the earlier; the later one is whole."""
    loader = get_dataloader(odd_store, 8, shuffle=True, num_workers=1, persistent_workers=True)
    first = iter(loader)
    next(first)
    second = iter(loader)
    taken = [next(second)]
    with pytest.raises(SeqpipeError, match="another iteration over this loader has begun since"):
        next(first)
    assert sorted(used([*taken, *second])) == list(range(101))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_an_error_after_which_a_state_resumes(odd_store, persistent):
    """The batches used before it count, those it had prefetched do not; of workers that persist none is left to use."""
    def make(count):
        return get_dataloader(odd_store, 2, shuffle=True, transform=cut_a_little, num_workers=count,
                              persistent_workers=persistent and count > 0)

    loader, found = make(1), []
    before = set(multiprocessing.active_children())
    with pytest.raises(SeqpipeError, match=r"a loader process was killed or ended by itself \(DataLoader worker"):
        for batch in loader:
            found += content([batch])
            if len(found) == 5:
                for process in set(multiprocessing.active_children()) - before:
                    os.kill(process.pid, signal.SIGKILL)
    state = loader.state_dict()
    if persistent:
        with pytest.raises(SeqpipeError, match=r"killed or ended by itself \(pid [0-9]+\)(.|\n)*make a new loader"):
            next(iter(loader))
        assert loader.state_dict() == state
    resumed = make(0)
    resumed.load_state_dict(state)
    assert found + content(resumed) == content(make(0))


def test_a_loader_copies_and_pickles_in_the_middle_of_an_iteration(odd_store):
    """Frameworks copy what they are given: the copy stands where the loader stands, in no iteration."""
    loader = get_dataloader(odd_store, 8, shuffle=True)
    next(iter(loader))
    following = content(loader)
    loader.set_epoch(0)
    next(iter(loader))
    for twin in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert twin.state_dict() == loader.state_dict()
        assert content(twin) == following
