"""Sequences are ordered by falling length, with as much mixing as asked for, and cut within their bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.cutting import STEPS, cut, falling_order
from seqpipe.windows import RandomBits


def order_of(sizes: np.ndarray, mixing: float, seed: int = 0) -> np.ndarray:
    return falling_order(sizes, RandomBits(seed, 0, 0), mixing)


@given(sizes=st.lists(st.integers(0, 10**4) | st.integers(0, 2**40), min_size=1, max_size=300),
       mixing=st.sampled_from([0.0, 1e-12, 0.001, 0.018, 0.5, 10.0, 1e300]), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=300)
def test_lengths_fall_but_for_the_mixing(sizes: list[int], mixing: float, seed: int) -> None:
    """Each place comes once; what comes later is longer by no more than counts as equal."""
    lengths = np.array(sizes)
    order = order_of(lengths, mixing, seed)

    assert order.dtype == np.int64 and sorted(order.tolist()) == list(range(len(sizes)))
    found = lengths[order].astype(float)
    later = np.maximum.accumulate(found[::-1])[::-1]
    with np.errstate(over="ignore"):
        width = 1 + mixing * (found + lengths.mean())
    assert (later - found <= 1.02 * width + 1e-5 * later).all()
    if mixing == 0 and max(sizes) < 2**31:
        assert (np.diff(found) <= 0).all()


@pytest.mark.parametrize("longest", [100, 10**6], ids=["32 bits", "64 bits"])
@pytest.mark.parametrize("mixing", [0, 0.018])
def test_equal_lengths_come_in_random_order(mixing: float, longest: int) -> None:
    """Neighbours in the store part, all places of it meet, and another seed orders them anew."""
    sizes = np.full(100_000, 100)
    sizes[0] = longest
    first, other = (order_of(sizes, mixing, seed) for seed in (0, 1))

    assert abs(np.corrcoef(first, np.arange(100_000))[0, 1]) < 0.02
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.02
    spans = np.ptp(first[: 64 * 1_562].reshape(-1, 64), axis=1)
    assert spans.min() > 50_000
    together = [set(map(tuple, np.sort(np.stack([order[:-1], order[1:]], axis=1)))) for order in (first, other)]
    assert len(together[0] & together[1]) < 50


@pytest.mark.parametrize("count", [1, 3, STEPS, STEPS + 1, 3 * STEPS + 5, 50 * STEPS + 7])
@pytest.mark.parametrize("most", [None, 64])
def test_a_cut_of_many_keeps_the_budget_and_fills_it(count: int, most: int | None) -> None:
    """Also where lengths are looked at many together; one over the budget is alone, and no other."""
    sizes = np.clip(np.random.default_rng(0).lognormal(np.log(200), 0.8, count), 10, 5_000).astype(np.int64)
    sizes[-1] = 10**6
    sizes = sizes[order_of(sizes, 0.018)]
    bounds = cut(sizes, batch_size=most, max_tokens=17_600, falling=True, drop_last=False)

    rows, longest = np.diff(bounds), np.maximum.reduceat(sizes, bounds[:-1])
    assert bounds[0] == 0 and bounds[-1] == count and rows.min() >= 1 and rows.max() <= (most or count)
    assert rows[0] == 1 and (rows * longest)[1:].max(initial=0) <= 17_600
    full = np.maximum((rows + 1) * longest / 17_600, rows == most)[:-1]
    assert full.min(initial=1) > 0.9 and np.count_nonzero(full < 1) <= 0.05 * len(full)
