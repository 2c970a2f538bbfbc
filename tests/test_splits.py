"""Splits follow from the record, the option and the seed alone."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqpipe.errors import OptionError
from seqpipe.splits import SPLIT_NAMES, hash_fraction, parse_split, split_name, split_of_file

IDS = [f"id{i}" for i in range(6000)]


def split_all(option, seed=0, ids=IDS):
    rule = parse_split(option, seed)
    return {i: rule.split_of(i, "x.fasta", {}) for i in ids}


@pytest.mark.parametrize("option", ["0.8,0.1,0.1", "0.5,0.25,0.25", "0.9,0.1", "0.7,0,0.3", "0,0,1", "1,0,0"])
def test_shares_are_about_what_was_asked(option):
    """Each split has its share to within four standard deviations, and an empty share is empty."""
    shares = [float(share) for share in option.split(",")]
    counts = Counter(split_all(option).values())
    for name, share in zip(SPLIT_NAMES, shares, strict=False):
        spread = math.sqrt(len(IDS) * share * (1 - share))
        assert abs(counts[name] - share * len(IDS)) <= 4 * spread
    assert sum(counts.values()) == len(IDS)


def test_splits_stay_when_records_are_added():
    """A record keeps its split whatever else is imported, and wherever it stands."""
    few, many = split_all("0.8,0.1,0.1", ids=IDS[:100][::-1]), split_all("0.8,0.1,0.1")
    assert few == {i: many[i] for i in few}


def test_seeds_give_other_splits():
    """Another seed draws anew: two seeds agree about as often as chance has it."""
    one, two = split_all("0.5,0.5", 1), split_all("0.5,0.5", 2)
    assert 0.45 < sum(one[i] == two[i] for i in IDS) / len(IDS) < 0.55
    assert one == split_all("0.5,0.5", 1)


def test_hash_is_the_same_on_every_machine():
    """Published stores rely on these values."""
    assert [hash_fraction(0, "a"), hash_fraction(1, "a"), hash_fraction(0, "größer")] == [
        0.18460693099188663, 0.03721021339573205, 0.6806014953607153]


@pytest.mark.parametrize(("option", "last"), [("0.1,0.2,0.7", 2), ("0.3333333,0.6666666", 1), ("0.6,0.4,0", 1)])
def test_the_last_share_takes_what_rounding_leaves(option, last):
    """No fraction below 1 lies beyond the last share that is not empty."""
    ends = parse_split(option, 0).ends
    assert [math.isinf(end) for end in ends] == [i >= last for i in range(len(ends))]


@given(st.text(), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 10), min_size=2, max_size=3))
def test_every_record_lands_in_a_split_with_a_share(text, seed, weights):
    """Any id and seed, and shares whose sum is rounded, still give a split that is not empty."""
    if sum(weights):
        shares = [weight / sum(weights) for weight in weights]
        split = parse_split(",".join(map(repr, shares)), seed).split_of(text, "x", {})
        assert shares[SPLIT_NAMES.index(split)] > 0


@pytest.mark.parametrize(("text", "name"), [
    ("train", "train"), ("TRAIN", "train"), ("Training", "train"), ("val", "valid"), ("dev", "valid"),
    ("Validation", "valid"), (" test ", "test"), ("testing", "test"),
    ("fold_1", "fold_1"), ("Fold-2", "Fold-2"), ("3", "3"),
])
def test_columns_spell_splits_in_many_ways(text, name):
    """Usual spellings of the three splits are understood, other names are kept."""
    assert split_name(text) == name
    assert parse_split("column:part", 0).split_of("x", "f", {"part": text, "other": "test"}) == name


@pytest.mark.parametrize("text", ["", " ", "a b", "a/b", "..", "größe", "train,test", "x" * 101, "all", "All"])
def test_columns_that_name_no_split_are_refused(text):
    """Empty cells and names that are no plain word are errors; "all" is the whole store."""
    with pytest.raises(ValueError, match="as the split; expected train, valid, test"):
        split_name(text)


@pytest.mark.parametrize(("name", "split"), [
    ("JapaneseVowels_TRAIN.ts", "train"), ("x_TEST.ts.gz", "test"), ("valid.fasta", "valid"), ("a.b-dev.txt", "valid"),
    ("set 1.2 train.fa", "train"), ("Train_training.csv", "train"), ("größe_val.csv", "valid"),
])
def test_file_names_tell_the_split(name, split):
    """One of the words of the name is a split."""
    assert split_of_file(name) == split
    assert parse_split("file", 0).split_of("x", name, {}) == split


@pytest.mark.parametrize("name", ["x.fasta", "trained.fasta", "train_test.fasta", "contest.ts"])
def test_file_names_without_one_split_are_refused(name):
    """No word, a part of a word, or two of them."""
    with pytest.raises(ValueError, match="expects one of _TRAIN, _VALID or _TEST"):
        split_of_file(name)


def test_no_split_is_none():
    """``none`` puts no record anywhere."""
    assert parse_split("none", 0).split_of("x", "train.fa", {}) is None


@pytest.mark.parametrize("option", [
    "", "0.8", "1", "0.5,0.6", "0.5,0.4", "-0.5,1.5", "0.25,0.25,0.25,0.25", "a,b", "nan,nan", "nan,1", "1,nan",
    "1,0,nan", "inf,0", "column:", "columns:x", "files", "0.8;0.2", "0.8,,0.2",
])
def test_bad_options_show_what_is_expected(option):
    """Anything else is refused, NaN among it."""
    with pytest.raises(OptionError, match=r"expected two or three shares .* column:NAME, file or none"):
        parse_split(option, 0)


def test_column_names_may_hold_a_colon_and_commas():
    """What follows ``column:`` is the name."""
    assert parse_split("column:a:b,c", 0).column == "a:b,c"
