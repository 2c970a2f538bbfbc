"""A permutation computed piece by piece is one, mixes well, and runs backwards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.permutation import MOST, Permutation

SEEDS = st.integers(0, 2**70)


@pytest.mark.parametrize("epoch", [0, 7])
def test_every_small_size_is_permuted(epoch: int) -> None:
    """Each number once, for each n up to 1,500."""
    for num_items in range(1, 1_500):
        items = Permutation(num_items, seed=3, epoch=epoch)(np.arange(num_items))
        assert np.array_equal(np.sort(items), np.arange(num_items)), num_items


@pytest.mark.slow
def test_every_size_up_to_five_thousand_is_permuted() -> None:
    """As above, and around powers of two and four up to a million."""
    sizes = [*range(1, 5_001), *(2**k + d for k in range(13, 21) for d in (-1, 0, 1))]
    for num_items in sizes:
        items = Permutation(num_items, seed=num_items, epoch=1)(np.arange(num_items))
        assert np.array_equal(np.sort(items), np.arange(num_items)), num_items


@given(num_items=st.integers(1, MOST), seed=SEEDS, epoch=st.integers(0, 2**40), sample=st.integers(0, 2**32))
@settings(deadline=None, max_examples=100)
def test_any_size_runs_backwards_and_stays_in_range(num_items: int, seed: int, epoch: int, sample: int) -> None:
    """``inverse`` undoes it at random places and at both ends; what has an inverse meets no item twice."""
    places = np.random.default_rng(sample).integers(0, num_items, 500)
    places[:2] = 0, num_items - 1
    permutation = Permutation(num_items, seed=seed, epoch=epoch)

    items = permutation(places)

    assert 0 <= items.min() and items.max() < num_items
    assert np.array_equal(permutation.inverse(items), places)
    assert np.array_equal(permutation(permutation.inverse(places)), places)


@pytest.mark.parametrize("num_items", [1_000, 1_001, 5_000, 2**16, 1_000_003])
def test_neighbours_are_torn_apart(num_items: int) -> None:
    """Neither an item's value nor the step to its neighbour can be told from its place."""
    places = np.arange(num_items)
    items = Permutation(num_items, seed=0, epoch=0)(places)
    few = 4 / np.sqrt(num_items)

    assert abs(np.corrcoef(items, places)[0, 1]) < few
    assert abs(np.corrcoef(items[1:], items[:-1])[0, 1]) < few
    assert np.mean(np.abs(np.diff(items)) <= 10) < 20 / num_items + few


def chi_square(counts: np.ndarray) -> float:
    """Return the deviations from a mean of (counts - 1) degrees of freedom, in standard deviations."""
    expected, freedom = counts.sum() / counts.size, counts.size - 1
    return float((((counts - expected) ** 2).sum() / expected - freedom) / np.sqrt(2 * freedom))


def test_large_sizes_fill_their_range_evenly() -> None:
    """A run of neighbours of 10^9 falls into 100 x 100 cells of (place in the run, item) as chance would have it."""
    items = Permutation(10**9, seed=5, epoch=2)(np.arange(10**6) + 123_456_789)
    cells = np.arange(10**6) // 10**4 * 100 + items // 10**7

    assert abs(chi_square(np.bincount(cells, minlength=10**4))) < 4


@pytest.mark.parametrize("num_items", [2, 3, 4, 5])
def test_all_orders_of_a_few_items_are_equally_likely(num_items: int) -> None:
    """Over 6,000 epochs; a network of two-bit halves favours some."""
    orders = [tuple(Permutation(num_items, seed=1, epoch=epoch)(np.arange(num_items)).tolist())
              for epoch in range(6_000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]

    assert len(counts) == {2: 2, 3: 6, 4: 24, 5: 120}[num_items]
    assert chi_square(counts) < 4


def test_each_item_comes_at_each_place_equally_often() -> None:
    """Over 500 seeds of 1,100 items, in 22 x 22 cells."""
    counts = np.zeros((22, 22))
    places = np.arange(1_100)
    for seed in range(500):
        np.add.at(counts, (places // 50, Permutation(1_100, seed=seed, epoch=0)(places) // 50), 1)

    assert chi_square(counts) < 4


def test_seeds_and_epochs_do_not_share_orders() -> None:
    """Also where seed + epoch, or the 32-bit words of seed and epoch end to end, are the same."""
    orders = {tuple(Permutation(100, seed=seed, epoch=epoch)(np.arange(100)).tolist())
              for seed, epoch in [(0, 0), (0, 1), (1, 0), (2**32, 0), (0, 2**32), (2**64, 0)]}

    assert len(orders) == 6


def test_the_order_is_written_down() -> None:
    """A change of it would break the resume of every run that is under way."""
    assert Permutation(10, seed=1, epoch=2)(np.arange(10)).tolist() == [1, 6, 0, 2, 5, 8, 7, 3, 4, 9]
    assert Permutation(10**6, seed=1, epoch=2)(np.arange(4)).tolist() == [675111, 432450, 655078, 720703]


def test_numbers_out_of_range_are_refused() -> None:
    """They would come out as items of nobody."""
    permutation = Permutation(10, seed=0, epoch=0)

    assert permutation(np.empty(0, np.int64)).tolist() == []
    for number in (-1, 10):
        with pytest.raises(IndexError, match=rf"{number} is out of range; expected 0 <= number < 10"):
            permutation(np.array([0, number]))
        with pytest.raises(IndexError):
            permutation.inverse(np.array([number]))
    for size in (-1, MOST + 1):
        with pytest.raises(ValueError, match=f"num_items={size}"):
            Permutation(size, seed=0, epoch=0)
