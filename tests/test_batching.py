"""A plan of batches holds every sequence once, and depends on lengths, settings, seed and epoch alone."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.batching import count_batches, padding_share, plan_batches
from seqpipe.samplers import LengthBatchSampler

MODES = [(shuffle, bucket) for shuffle in (False, True) for bucket in (False, True)]
SKEWED = np.random.default_rng(0).lognormal(5, 1, 20_000).astype(np.int64) + 1


def plan(lengths, batch_size=32, shuffle=True, bucket=True, **changes):
    return plan_batches(np.asarray(lengths), batch_size=batch_size, shuffle=shuffle, bucket=bucket, **changes)


def flat(batches):
    return np.concatenate(batches).tolist() if batches else []


@given(
    lengths=st.lists(st.integers(0, 10**6), max_size=300),
    batch_size=st.integers(1, 400),
    mode=st.sampled_from(MODES),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=150)
def test_each_index_is_in_exactly_one_batch(lengths, batch_size, mode, drop_last, seed, epoch):
    """Any lengths, batch size, seed and epoch; with drop_last only full batches are left."""
    batches = plan(lengths, batch_size, *mode, drop_last=drop_last, seed=seed, epoch=epoch)

    found = flat(batches)
    sizes = [len(batch) for batch in batches]
    assert len(found) == len(set(found)) and set(found) <= set(range(len(lengths)))
    assert len(batches) == count_batches(len(lengths), batch_size=batch_size, drop_last=drop_last)
    if drop_last:
        assert set(sizes) <= {batch_size} and len(lengths) - len(found) < batch_size
    else:
        assert len(found) == len(lengths)
        assert sorted(sizes, reverse=True)[:-1] == [batch_size] * (len(batches) - 1)


def test_without_shuffle_and_bucket_the_order_is_that_of_the_store():
    """Prediction relies on it."""
    assert flat(plan(SKEWED[:100], 7, shuffle=False, bucket=False)) == list(range(100))


@pytest.mark.parametrize("bucket", [False, True])
def test_drop_last_without_shuffle_leaves_out_the_last_of_the_store(bucket):
    """As torch's drop_last does, whatever their lengths."""
    assert sorted(flat(plan(SKEWED[:100], 32, shuffle=False, bucket=bucket, drop_last=True))) == list(range(96))


def test_bucketing_without_shuffle_keeps_the_order_of_the_store_as_far_as_it_can():
    """Rows ascend in a batch of like lengths, and batches come by their first row."""
    lengths = np.array([3, 1, 3, 2, 1])

    assert [batch.tolist() for batch in plan(lengths, 2, shuffle=False)] == [[0, 2], [1], [3, 4]]


@pytest.mark.parametrize("bucket", [False, True])
def test_same_seed_and_epoch_give_the_same_plan(bucket):
    """And another epoch or seed another; (0, 1) and (1, 0) differ, which seed + epoch would not."""
    plans = {
        (seed, epoch): flat(plan(SKEWED[:500], bucket=bucket, seed=seed, epoch=epoch))
        for seed, epoch in [(0, 0), (0, 1), (1, 0)]
    }

    assert flat(plan(SKEWED[:500], bucket=bucket, seed=0, epoch=1)) == plans[0, 1]
    assert len({tuple(order) for order in plans.values()}) == 3


def test_without_shuffle_every_epoch_is_the_same():
    """Neither seed nor epoch matters."""
    assert flat(plan(SKEWED[:500], shuffle=False, seed=1, epoch=2)) == flat(plan(SKEWED[:500], shuffle=False))


@pytest.mark.parametrize("seed", range(3))
def test_bucketing_pads_far_less_than_random_batches(seed):
    """On log-normal lengths (sigma 1) four fifths of random batches are padding, a fifth of bucketed ones."""
    random = padding_share(SKEWED, plan(SKEWED, bucket=False, seed=seed))
    bucketed = padding_share(SKEWED, plan(SKEWED, seed=seed))

    assert random > 0.75
    assert bucketed < 0.25


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("window", [2**18, 3_200], ids=["one window", "many windows"])
def test_batch_length_has_no_trend_with_the_step(seed, window):
    """The rank correlation of a batch's length with its place, and with the next one's, is near 0."""
    longest = np.array([SKEWED[batch].max() for batch in plan(SKEWED, seed=seed, window=window)])
    ranks = np.argsort(np.argsort(longest))

    few = 4 / np.sqrt(len(ranks))
    assert abs(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) < few
    assert abs(np.corrcoef(ranks[1:], ranks[:-1])[0, 1]) < few


def test_bucketing_mixes_sequences_over_more_than_a_window():
    """Shuffled before sorted: neighbours in the store seldom meet in a batch."""
    spans = [np.ptp(batch) for batch in plan(np.sort(SKEWED), 8, window=3_200)]

    assert np.median(spans) > 10 * 8


def test_padding_share_counts_padding_only():
    """4 + 4 real elements of 4 x 3 are two thirds; nothing at all is no padding."""
    assert padding_share(np.array([4, 2, 2]), [np.array([0, 1, 2])]) == pytest.approx(1 - 8 / 12)
    assert padding_share(np.array([0, 2]), [np.array([0]), np.array([1])]) == pytest.approx(1 / 3)
    assert padding_share(np.array([5]), []) == 0.0


def test_an_empty_dataset_has_no_batches():
    """An empty list, for every mode, with and without drop_last."""
    for shuffle, bucket in MODES:
        assert plan([], shuffle=shuffle, bucket=bucket) == []
        assert plan([], shuffle=shuffle, bucket=bucket, drop_last=True) == []


def test_a_plan_of_a_million_takes_part_of_a_second():
    """A tenth of a second on a free core; ten seconds are allowed for a busy one."""
    lengths = np.random.default_rng(0).integers(1, 1000, 10**6)
    started = time.process_time()

    batches = plan(lengths)

    assert len(batches) == 31_250
    assert time.process_time() - started < 10


def test_sampler_yields_lists_of_int_of_the_epoch_at_the_call():
    """set_epoch during an iteration is for the next one."""
    sampler = LengthBatchSampler(SKEWED[:100], batch_size=8, shuffle=True, bucket=True, seed=3)
    batches = iter(sampler)
    sampler.set_epoch(1)

    first = list(batches)

    assert all(isinstance(i, int) for batch in first for i in batch)
    assert first == [batch.tolist() for batch in plan(SKEWED[:100], 8, seed=3)]
    assert list(sampler) == [batch.tolist() for batch in plan(SKEWED[:100], 8, seed=3, epoch=1)]
    assert len(sampler) == 13
