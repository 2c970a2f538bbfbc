"""Hashes depend on seed and bytes alone, and what stands twice is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe import hashing
from seqpipe.hashing import find_repeats, fractions, hash_strings, hash_texts, sample_hashes

# Short ones, ones around a word's and the longest's length, and many that are alike.
BYTES = st.one_of(st.binary(max_size=20), st.binary(min_size=240, max_size=270), st.sampled_from([b"", b"\0", b"\0\0"]),
                  st.builds(lambda n, tail: b"a" * n + tail, st.integers(0, 40), st.sampled_from([b"", b"b", b"\0"])))


def ragged(strings):
    """Return strings end to end, and where they end."""
    return np.frombuffer(b"".join(strings), "u1"), np.cumsum([0, *map(len, strings)]).astype("<u8")


@settings(deadline=None)
@given(st.lists(BYTES, max_size=12), st.integers(0, 2**64 - 1))
def test_a_hash_depends_on_seed_and_bytes_alone(strings, seed):
    """A string has one hash, alone, among others and wherever it stands; other strings have others."""
    hashes = hash_texts(*ragged(strings), seed=seed)
    assert hashes.tolist() == [int(hash_texts(*ragged([string]), seed=seed)[0]) for string in strings]
    assert len(set(hashes.tolist())) == len(set(strings))
    assert not set(hashes.tolist()) & set(hash_texts(*ragged(strings), seed=seed ^ 1).tolist())


def test_hashes_are_the_same_on_every_machine():
    """Published splits rely on these values."""
    found = hash_strings(["a", "größer", "x" * 300, ""], seed=5)
    assert found.tolist() == [
        3856159669196050412, 193140950558224437, 17648906735147186527, 2061789178148409614]


@settings(deadline=None)
@given(st.lists(BYTES, max_size=12))
def test_repeats_are_those_that_stand_before(strings):
    """Each later one is found with the first that it equals, and none besides."""
    values, offsets = ragged(strings)
    for keys in (sample_hashes(values, offsets), np.zeros(len(strings), np.uint64)):
        again, first = find_repeats(keys, strings.__getitem__)
        expected = [(i, strings.index(s)) for i, s in enumerate(strings) if strings.index(s) < i]
        assert list(zip(again.tolist(), first.tolist(), strict=True)) == expected


def test_repeats_are_found_in_parts(monkeypatch):
    """Sorting the keys part by part, as is done where they are many, finds the same."""
    numbers = np.random.default_rng(0).integers(0, 400, 1000)
    keys = hash_strings([str(number) for number in numbers])
    whole = find_repeats(keys, lambda i: int(numbers[i]))
    monkeypatch.setattr(hashing, "SORTED", 64)
    parts = find_repeats(keys, lambda i: int(numbers[i]))
    assert len(whole[0]) > 500 and all((a == b).all() for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<f4"])
def test_sequences_of_any_dtype_have_keys(dtype):
    """Equal sequences have equal keys; among random ones no two keys are equal."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(8, 60, 500)
    values = rng.integers(0, 9, (2 * sizes.sum(), 3)).astype(dtype)
    values[len(values) // 2:] = values[: len(values) // 2]
    offsets = np.concatenate([[0], np.cumsum(np.tile(sizes, 2))]).astype("<u8")
    keys = sample_hashes(values, offsets)
    assert (keys[:500] == keys[500:]).all() and len(np.unique(keys)) == 500


def test_fractions_are_spread_evenly():
    """Ids that count up fill [0, 1) as chance would have it."""
    spread = fractions(hash_strings([f"read{i}" for i in range(20000)]))
    counts = np.histogram(spread, 20, (0, 1))[0]
    assert 0 <= spread.min() and spread.max() < 1 and ((counts - 1000) ** 2).sum() / 1000 < 50
