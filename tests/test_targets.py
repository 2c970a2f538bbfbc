"""Targets have one part per element of their sequence, however they are written."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqpipe.errors import SeqpipeError
from seqpipe.targets import Targets

NAMES = ["H", "E", "-"]


def fail(i, finding):
    return SeqpipeError(f"record {i}: {finding}")


def encode(texts, lengths, names=None):
    """Return the targets, and their track as a list per record."""
    targets = Targets(lambda: texts, np.array(lengths), names, fail)
    track = np.concatenate(list(targets.blocks()))
    assert track.dtype == targets.dtype
    return targets, [part.tolist() for part in np.split(track, np.cumsum(lengths)[:-1])]


@given(st.lists(st.lists(st.sampled_from(NAMES), min_size=2, max_size=9), min_size=1), st.sampled_from([
    "".join, " ".join, ", ".join, json.dumps]))
def test_targets_come_back_in_any_spelling(parts, spell):
    """One symbol each, words between spaces or commas, and JSON lists say the same."""
    targets, tracks = encode([spell(part) for part in parts], [len(part) for part in parts])
    assert [[targets.classes[number] for number in track] for track in tracks] == parts
    assert targets.classes == sorted({name for part in parts for name in part})


def test_numbers_with_a_fraction_stay_numbers():
    """A fraction makes all targets numbers; integers alone are classes, by value."""
    targets, tracks = encode(["1 2.5", "-33"], [2, 1])
    assert (targets.classes, targets.dtype, tracks) == ([], "<f8", [[1.0, 2.5], [-33.0]])
    targets, tracks = encode(["[10,9]", "[9]"], [2, 1])
    assert (targets.classes, targets.dtype, tracks) == (["9", "10"], "u1", [[1, 0], [0]])


def test_hundreds_of_target_classes_fit():
    """More than 256 classes take a wider type; classes given keep their order, used or not."""
    targets, tracks = encode([" ".join(f"w{i}" for i in range(300))], [300])
    assert targets.dtype == "<i4" and sorted(tracks[0]) == list(range(300))
    assert encode(["ab"], [2], ["c", "b", "a"])[1] == [[2, 1]]


@pytest.mark.parametrize(("texts", "lengths", "names", "finding"), [
    (["ab", "abc"], [2, 2], None, "record 1: the target has 3 symbols for the 2 elements"),
    (["x", "abc"], [1, 2], None, "record 1: the target has 1 word for the 2 elements"),
    (["a b", "a b c"], [2, 5], None, "record 1: the target has 3 words for the 5 elements"),
    (["[1,2]", "[1]"], [2, 3], None, "record 1: the target has 1 list item for the 3 elements"),
    (["[1,2]", "1 2"], [2, 2], None, "record 1: target '1 2' is no JSON list"),
    (["1.5 x"], [2], None, "record 0: target 'x' at position 1 .* is no finite number"),
    (["ab", "az"], [2, 2], ["a", "b"], "record 1: target 'z' is none of the 2 target classes"),
    ([""], [2], None, "record 0: the target has 0 symbols for the 2 elements"),
])
def test_targets_that_do_not_fit_are_refused(texts, lengths, names, finding):
    """Another count, another way of writing, no number, or a class outside those given."""
    with pytest.raises(SeqpipeError, match=finding):
        encode(texts, lengths, names)
