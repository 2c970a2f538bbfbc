"""Splits follow from the record, the option and the seed alone."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.errors import OptionError
from seqpipe.hashing import hash_strings
from seqpipe.splits import SPLIT_NAMES, draw_by_class, draw_by_hash, parse_split, split_name, split_of_file

IDS = [f"id{i}" for i in range(6000)]
SHARES = st.lists(st.integers(0, 10), min_size=2, max_size=3).filter(any).map(
    lambda weights: [weight / sum(weights) for weight in weights])


def draw(option, seed=0, ids=IDS, **options):
    """Return {id: split} of a random split."""
    rule = parse_split(option, seed, **options)
    numbers = draw_by_hash(rule, hash_strings(ids, seed=seed))
    return {name: rule.names[number] for name, number in zip(ids, numbers.tolist(), strict=True)}


@pytest.mark.parametrize("option", ["0.8,0.1,0.1", "0.5,0.25,0.25", "0.9,0.1", "0.7,0,0.3", "0,0,1", "1,0,0"])
def test_shares_are_about_what_was_asked(option):
    """Each split has its share to within four standard deviations, and an empty share is empty."""
    shares = [float(share) for share in option.split(",")]
    counts = Counter(draw(option).values())
    for name, share in zip(SPLIT_NAMES, shares, strict=False):
        spread = math.sqrt(len(IDS) * share * (1 - share))
        assert abs(counts[name] - share * len(IDS)) <= 4 * spread
    assert sum(counts.values()) == len(IDS)


@pytest.mark.parametrize("options", [{}, {"folds": 7}])
def test_splits_stay_when_records_are_added(options):
    """A record keeps its split or fold whatever else is imported, and wherever it stands."""
    few, many = draw("0.8,0.1,0.1", ids=IDS[:100][::-1], **options), draw("0.8,0.1,0.1", **options)
    assert few == {i: many[i] for i in few}


def test_seeds_give_other_splits():
    """Another seed draws anew: two seeds agree about as often as chance has it."""
    one, two = draw("0.5,0.5", 1), draw("0.5,0.5", 2)
    assert 0.45 < sum(one[i] == two[i] for i in IDS) / len(IDS) < 0.55
    assert one == draw("0.5,0.5", 1)


def test_folds_are_about_equal():
    """K folds by hash have about N / K records each."""
    counts = Counter(draw("0.8,0.1,0.1", folds=6).values())
    assert sorted(counts) == [f"fold{k}" for k in range(6)]
    assert all(abs(count - 1000) <= 4 * math.sqrt(1000) for count in counts.values())


@settings(deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=9), st.integers(0, 2**63 - 1), SHARES)
def test_every_record_lands_in_a_split_with_a_share(texts, seed, shares):
    """Any id and seed, and shares whose sum is rounded, still give a split that is not empty."""
    rule = parse_split(",".join(map(repr, shares)), seed)
    extremes = np.array([0, 2**64 - 1], np.uint64)
    numbers = draw_by_hash(rule, np.concatenate([hash_strings(texts, seed=seed), extremes]))
    assert all(shares[number] > 0 for number in numbers)


# ---- by class -------------------------------------------------------------------------------


@st.composite
def labelled(draw_from):
    """Return class numbers without gaps, and distinct hashes."""
    counts = draw_from(st.lists(st.integers(1, 40), min_size=1, max_size=12))
    classes = np.repeat(np.arange(len(counts)), counts)
    order = np.random.default_rng(draw_from(st.integers(0, 99))).permutation(len(classes))
    return classes[order], hash_strings(IDS[: len(classes)], seed=draw_from(st.integers(0, 99)))


@settings(deadline=None)
@given(labelled(), SHARES)
def test_stratified_splits_are_exact_to_one_record_a_class(data, shares):
    """Each class, and about the whole, has its shares; no class is missing from the first split."""
    classes, hashes = data
    rule = parse_split(",".join(map(repr, shares)), 0, by="stratified")
    numbers = draw_by_class(rule, classes, hashes)
    for name in range(classes.max() + 1):
        found = np.bincount(numbers[classes == name], minlength=len(shares))
        assert (abs(found - sum(found) * np.array(shares)) < 1).all()
        assert found[int(np.argmax(np.array(shares) > 0))] > 0
    singles = sum(1 for count in np.bincount(classes).tolist() if count * max(shares) < 2)
    assert (abs(np.bincount(numbers, minlength=len(shares)) - len(classes) * np.array(shares)) <= 2 + singles).all()


@settings(deadline=None)
@given(labelled(), st.integers(2, 9))
def test_stratified_folds_are_exact_to_one_record_a_class(data, folds):
    """Each class, and the whole, is dealt evenly over the folds."""
    classes, hashes = data
    numbers = draw_by_class(parse_split("0.8,0.1,0.1", 0, by="stratified", folds=folds), classes, hashes)
    for part in (numbers, *(numbers[classes == name] for name in range(classes.max() + 1))):
        counts = np.bincount(part, minlength=folds)
        assert len(counts) == folds and counts.max() - counts.min() <= 1


def test_the_order_of_the_records_does_not_matter():
    """Stratified, a record's split follows from its id and the classes of all."""
    rule = parse_split("0.6,0.2,0.2", 3, by="stratified")
    classes, hashes = np.arange(300) % 7, hash_strings(IDS[:300], seed=3)
    order = np.random.default_rng(0).permutation(300)
    assert (draw_by_class(rule, classes, hashes)[order] == draw_by_class(rule, classes[order], hashes[order])).all()


def test_a_class_with_one_member_goes_to_train():
    """No class is lost from training, whatever the shares of the others; thousands of them are no matter."""
    rule = parse_split("0.2,0.4,0.4", 0, by="stratified")
    assert draw_by_class(rule, np.arange(5000), hash_strings(IDS[:5000])).tolist() == [0] * 5000


# ---- by column and by file ------------------------------------------------------------------


@pytest.mark.parametrize(("text", "name"), [
    ("train", "train"), ("TRAIN", "train"), ("Training", "train"), ("val", "valid"), ("dev", "valid"),
    ("Validation", "valid"), (" test ", "test"), ("testing", "test"),
    ("fold_1", "fold_1"), ("Fold-2", "Fold-2"), ("3", "3"),
])
def test_columns_spell_splits_in_many_ways(text, name):
    """Usual spellings of the three splits are understood, other names are kept."""
    assert split_name(text) == name


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


@pytest.mark.parametrize("name", ["x.fasta", "trained.fasta", "train_test.fasta", "contest.ts"])
def test_file_names_without_one_split_are_refused(name):
    """No word, a part of a word, or two of them."""
    with pytest.raises(ValueError, match="expects one of _TRAIN, _VALID or _TEST"):
        split_of_file(name)


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


@pytest.mark.parametrize(("options", "finding"), [
    ({"by": "groups:x"}, "--split-by groups:x: expected random, stratified or group:COLUMN"),
    ({"by": "group:"}, "expected random, stratified or group:COLUMN"), ({"by": ""}, "--split-by : expected"),
    ({"folds": 1}, "--folds 1: expected 2 or more"), ({"folds": 1001}, "up to 1000"), ({"folds": -2}, "--folds -2"),
    ({"option": "column:x", "folds": 5}, "--folds: --split column:x leaves nothing to draw"),
    ({"option": "none", "by": "stratified"}, "--split-by stratified: --split none leaves nothing to draw"),
])
def test_options_that_do_not_fit_are_refused(options, finding):
    """``--split-by`` and ``--folds`` are for splits that are drawn."""
    with pytest.raises(OptionError, match=finding):
        parse_split(options.pop("option", "0.8,0.2"), 0, **options)


def test_a_group_may_stand_beside_a_split_that_is_given():
    """The groups of a split by column are not drawn, but known, so that they can be checked."""
    rule = parse_split("column:part", 0, by="group:patient:id")
    assert (rule.kind, rule.column, rule.group) == ("column", "part", "patient:id")
