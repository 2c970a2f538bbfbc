"""Windows part an epoch: every sequence is visited once, wherever one starts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.windows import BLOCK, RandomBits, Windows, uniform


@given(
    num_sequences=st.integers(1, 5_000), size=st.integers(1, 2_000), unit=st.sampled_from([1, 2, 7, 64, 3_000]),
    shuffle=st.booleans(), seed=st.integers(0, 2**40), epoch=st.integers(0, 9),
)
@settings(deadline=None, max_examples=200)
def test_windows_part_the_sequences(
    num_sequences: int, size: int, unit: int, shuffle: bool, seed: int, epoch: int
) -> None:
    """Each is in one window, and ``window_of`` knows which; all windows but the last hold whole units."""
    windows = Windows(num_sequences, size, unit, shuffle, seed, epoch)
    parts = [windows.indices(window) for window in range(len(windows))]

    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(num_sequences))
    assert all(len(part) for part in parts)
    assert all(len(part) % unit == 0 for part in parts[:-1])
    assert max(map(len, parts)) < max(size + 2 * unit, 2 * unit)
    for window, part in enumerate(parts):
        assert {windows.window_of(int(index)) for index in part[:: max(1, len(part) // 5)]} == {window}


def test_windows_are_of_nearly_one_size() -> None:
    """One sequence too many for a window does not make a window of one."""
    windows = Windows(100_001, 50_000, 1, True, 0, 0)

    assert [len(windows.indices(window)) for window in range(len(windows))] == [33_333, 33_334, 33_334]
    assert len(Windows(50_000, 50_000, 1, True, 0, 0)) == 1


def test_without_shuffle_windows_are_runs_of_the_store() -> None:
    """Each epoch the same."""
    windows = Windows(1_000, 300, 64, False, 5, 9)

    assert np.concatenate([windows.indices(window) for window in range(len(windows))]).tolist() == list(range(1_000))


def test_a_window_takes_blocks_from_all_over_the_store() -> None:
    """Blocks of neighbours in random order, another in each epoch."""
    first, other = (Windows(10**7, 500_000, 1, True, 0, epoch).indices(3) for epoch in (0, 1))

    assert len(np.unique(first // BLOCK)) <= 500_000 // BLOCK + 2
    assert np.std(first) == pytest.approx(10**7 / np.sqrt(12), rel=0.1)
    assert abs(np.corrcoef(np.arange(500_000), first)[0, 1]) < 0.2
    assert len(np.intersect1d(first, other)) < 500_000 * 0.15


def test_any_window_of_a_huge_store_is_had_at_once() -> None:
    """The first, a middle and the last one of 10^15 sequences."""
    windows = Windows(10**15 + 77, 2**18, 1, True, 1, 2)
    for window in (0, len(windows) // 2, len(windows) - 1):
        part = windows.indices(window)
        assert len(part) == np.diff(windows.bounds(window))[0] == len(np.unique(part))
        assert windows.window_of(int(part[0])) == windows.window_of(int(part[-1])) == window


def test_random_bits_belong_to_seed_epoch_and_window() -> None:
    """No two streams are alike, and a stream is that of its bit generator on every machine."""
    streams = [RandomBits(*key)(4).tolist() for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (2**32, 0, 0)]]

    assert len({tuple(stream) for stream in streams}) == 5
    assert streams[0] == RandomBits(0, 0, 0)(4).tolist()
    assert uniform(np.array([0, 2**64 - 1], np.uint64)).tolist() == [0.0, 1 - 2.0**-53]
