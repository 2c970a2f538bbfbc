"""Weighted draws follow their weights, and weights that are none are named."""

from __future__ import annotations

import numpy as np
import pytest

from seqpipe.errors import OptionError
from seqpipe.samplers import LengthBatchSampler
from seqpipe.weights import balanced_weights, cumulative_weights, draw

LENGTHS = np.random.default_rng(0).integers(1, 400, 20_000)


def drawn(weights: np.ndarray, epoch: int = 0, **options: object) -> list[list[int]]:
    sampler = LengthBatchSampler(LENGTHS, **{"batch_size": 50, "shuffle": True, "bucket": True, "weights": weights,
                                             "window": 6_000, **options})  # type: ignore[arg-type]
    sampler.set_epoch(epoch)
    return list(sampler)


def test_balanced_classes_are_drawn_equally_often() -> None:
    """Classes of 19,000, 900 and 100 members: a third of an epoch of N draws each, in buckets all the same."""
    labels = np.repeat([0, 1, 2], [19_000, 900, 100])
    batches = drawn(balanced_weights(labels, ["a", "b", "c"]))
    counts = np.bincount(labels[np.concatenate(batches)])

    assert counts.sum() == 20_000
    assert np.abs(counts - 20_000 / 3).max() < 4 * np.sqrt(20_000 * 2 / 9)
    assert np.median([np.ptp(LENGTHS[batch]) for batch in batches]) < 40


def test_weighted_draws_follow_their_weights() -> None:
    """Weight 0 never; weight 3 three times as often as weight 1."""
    weights = np.tile([0, 1, 3, 4], 5_000)
    counts = np.bincount(np.concatenate(drawn(weights)) % 4, minlength=4)

    assert counts[0] == 0
    assert np.abs(counts - 20_000 * np.array([0, 1, 3, 4]) / 8).max() < 4 * np.sqrt(20_000 / 4)


def test_draws_belong_to_seed_and_epoch() -> None:
    """The same again for the same; with a budget too, which they keep."""
    weights = LENGTHS.astype(float)

    assert drawn(weights) == drawn(weights)
    assert drawn(weights) != drawn(weights, epoch=1) != drawn(weights, seed=1)
    for batch in drawn(weights, batch_size=None, max_tokens=2_000):
        assert len(batch) * LENGTHS[batch].max() <= 2_000


def test_the_ends_of_the_range_of_random_numbers_draw_what_has_weight() -> None:
    """Rounding may reach the sum itself; zeros at both ends are not drawn for it."""
    sums = cumulative_weights(np.array([0, 0.1, 0.2, 0, 0.7, 0]), 6)

    assert draw(sums, np.array([0, 0.05, 0.1, 0.5, 1 - 2.0**-53, 1.0])).tolist() == [1, 1, 2, 4, 4, 4]


@pytest.mark.parametrize("weights, message", [
    ([1, -1, 2], "sequence 1 has the weight -1; expected a finite number, 0 or more"),
    ([1, 1, float("nan")], "sequence 2 has the weight nan"), ([float("inf"), 1, 1], "sequence 0 has the weight inf"),
    ([-1, float("nan"), 1], "sequence 0 has the weight -1"), ([0, 0, 0], "all 3 are 0; expected at least one above 0"),
    ([1, 2], r"found int64 of shape \(2,\); expected one number for each of the 3 sequences"),
    (["a", "b", "c"], "expected one number for each"), ([[1, 2, 3]], r"shape \(1, 3\)"),
    ([1e308, 1e308, 1e308], "their sum is too large"),
])
def test_weights_that_are_none_are_refused(weights: list[object], message: str) -> None:
    """The first wrong one is named."""
    with pytest.raises(OptionError, match=message):
        cumulative_weights(np.array(weights), 3)


def test_labels_that_cannot_be_balanced_are_refused() -> None:
    """A class nobody belongs to, numbers that are no class, labels that are no numbers."""
    for labels, message in (
        ([0, 0, 2], "class 'b' has no member among the 3 sequences, so it cannot be drawn"),
        ([0, 3, 1], "sequence 1 has class number 3; expected 0 <= number < 3"),
        ([0, -1, 1], "sequence 1 has class number -1"),
        ([0.5, 1.0, 2.0], "the labels are float64 of shape"),
    ):
        with pytest.raises(OptionError, match=message):
            balanced_weights(np.array(labels), ["a", "b", "c"])
