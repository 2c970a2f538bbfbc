"""Labels and columns become numbers only where nothing of what they say is lost."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqpipe import labels
from seqpipe.errors import OptionError, SeqpipeError
from seqpipe.labels import (
    choose_label_type,
    common_ways,
    encode_classes,
    encode_label_sets,
    encode_numbers,
    read_classes,
    split_label,
    type_of_ways,
    write_number,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def fail(i, finding):
    return SeqpipeError(f"record {i}: {finding}")


def encode(texts, names=None):
    """Encode labels, told by the distinct ones as a column of an import tells them."""
    distinct = list(dict.fromkeys(texts))
    return encode_classes(np.array([distinct.index(text) for text in texts], np.int64), distinct, names, fail)


# ---- classes --------------------------------------------------------------------------------


@given(st.lists(TEXT, min_size=1), st.randoms(use_true_random=False))
def test_classes_are_any_text_and_independent_of_the_order(texts, order):
    """Every record gets back its own text, and the classes do not depend on the order of records."""
    numbers, names = encode(texts)
    assert [names[number] for number in numbers] == texts
    assert numbers.dtype == np.int64 and names == sorted(set(texts), key=names.index) and len(names) == len(set(texts))
    shuffled = list(texts)
    order.shuffle(shuffled)
    assert encode(shuffled)[1] == names


@given(st.lists(st.integers(-10**17, 10**17), min_size=1))
def test_integer_classes_are_in_numeric_order(values):
    """9 comes before 10, and -1 before 0."""
    assert encode(list(map(str, values)))[1] == [str(value) for value in sorted(set(values))]


def test_text_classes_are_in_the_order_of_their_symbols():
    """Names that only look like integers are told apart."""
    assert encode(["10", "9", "x"])[1] == ["10", "9", "x"]
    assert encode(["1", "01", "1 ", "+1"])[1] == ["+1", "01", "1", "1 "]


def test_classes_given_keep_their_order_and_refuse_others():
    """The numbers are those of the list, used or not; a label outside it is an error of its record."""
    numbers, names = encode(["b", "a"], ["c", "b", "a"])
    assert (numbers.tolist(), names) == ([1, 2], ["c", "b", "a"])
    with pytest.raises(SeqpipeError, match="record 1: label 'A' is none of the 2 classes given; .* --classes"):
        encode(["a", "A"], ["a", "b"])


def test_thousands_of_classes_are_no_matter():
    """5,000 classes of odd names: each record has its own."""
    texts = [f"{i % 5000} ß\t{i % 7 if i < 0 else ''}" for i in range(20000)]
    numbers, names = encode(texts)
    assert len(names) == 5000 and [names[number] for number in numbers] == texts


def test_a_file_of_classes_is_read_byte_for_byte(tmp_path):
    """Blanks, a BOM in front, CRLF, other scripts; the order is the file's."""
    path = tmp_path / "classes.txt"
    path.write_bytes("\ufeffb \r\na\u2028x\n#größe\r\n".encode())
    assert read_classes(path) == ["b ", "a\u2028x", "#größe"]


@pytest.mark.parametrize(("content", "finding"), [
    (b"a\n\nb\n", ":2: found ''"), (b"a\nb\na", ":3: found 'a'"), (b"", ":1: found ''"), (b"\xff\n", "cannot be read"),
    (None, "no such file"),
])
def test_a_wrong_file_of_classes_is_refused(tmp_path, content, finding):
    """Its line is named, and what is expected."""
    path = tmp_path / "classes.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError, match=f"--classes .*{finding}.*expected a text file .* one class name a line"):
        read_classes(path)


# ---- several classes a record ---------------------------------------------------------------


SETS = st.lists(st.sets(TEXT.filter(lambda text: ";" not in text and text[0] != "["), max_size=4), min_size=1)


@given(SETS)
def test_label_sets_come_back_whole(sets):
    """Each record gets back its own classes, ascending; none is a set too."""
    values, offsets, names = encode_label_sets([";".join(s) for s in sets], ";", None, fail)
    assert (values.dtype, offsets.dtype, len(offsets)) == ("<i4", "<u8", len(sets) + 1)
    parts = [values[a:b].tolist() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    assert [{names[number] for number in part} for part in parts] == sets
    assert all(part == sorted(part) for part in parts) and set(names) == set().union(*sets)


@pytest.mark.parametrize(("text", "separator", "names"), [
    ("", ";", []), ("a", ";", ["a"]), ("a; b", ";", ["a", " b"]), ("a, b", ", ", ["a", "b"]), ("a|b", "|", ["a", "b"]),
    ('["a;b","ß"]', ";", ["a;b", "ß"]), ("[]", ";", []), ("[1, 2.5]", ";", ["1", "2.5"]), ("[x]", ";", ["[x]"]),
])
def test_labels_are_split_as_told(text, separator, names):
    """Byte for byte between separators; JSON lists are what they say."""
    assert split_label(text, separator) == names


@pytest.mark.parametrize(("text", "finding"), [
    ("a;;b", "has an empty class"), ("a;", "has an empty class"), (";", "has an empty class"), ('[""]', "empty class"),
    ("a;b;a", "names class 'a' twice"),
])
def test_labels_that_are_no_set_are_refused(text, finding):
    """Empty and repeated classes are errors of their record."""
    with pytest.raises(SeqpipeError, match=f"record 1: label .*{finding}"):
        encode_label_sets(["x", text], ";", None, fail)
    with pytest.raises(SeqpipeError, match="record 0: label 'z' is none of the 1 classes given"):
        encode_label_sets(["x;z"], ";", ["x"], fail)


# ---- the type of labels ---------------------------------------------------------------------


@pytest.mark.parametrize(("texts", "kind"), [
    (["a", "b"], "class"), (["0", "1"], "class"), (["-1", "1"], "class"), (["1.0", "2.0"], "class"), (["1e3"], "class"),
    (["1.5"], "number"), (["1", "2.5"], "number"), (["1e-3", "2"], "number"), (["-.5"], "number"),
    (["1.5", "x"], "number"), (["x", "1.5"], "number"),
    (["NA", "None", "nan"], "class"), (["nan", "x"], "class"), (["nan", "1"], "number"), (["inf"], "number"),
    (["1_0.5"], "class"), (["1,5"], "class"), (["v1.5"], "class"),
])
def test_a_fraction_makes_labels_numbers(texts, kind):
    """Integers and text are classes, any number with a fraction makes them numbers."""
    assert choose_label_type(texts) == kind


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1))
def test_number_labels_keep_their_value(values):
    """What Python prints of a number is the number."""
    assert encode_numbers(map(repr, values), fail).tolist() == values


@pytest.mark.parametrize(("text", "finding"), [
    ("nan", "no finite number"), ("-inf", "no finite number"), ("1e999", "no finite number"), ("x", "no finite number"),
    ("", "no finite number"), ("1_0", "no finite number"), ("1e39", "range of float32"), ("-1e300", "range of float32"),
])
def test_labels_that_are_no_usable_number_are_refused(text, finding):
    """NaN, infinities, text, and what a batch of float32 would turn into infinity."""
    with pytest.raises(SeqpipeError, match=f"record 2: label '{text}' is .*{finding}.*--label-type class"):
        encode_numbers(["1.5", "2", text, "nan"], fail)


# ---- further columns ------------------------------------------------------------------------


@pytest.mark.parametrize(("texts", "kind"), [
    (["0", "-1", "999999999999999999"], "<i8"), (["1.5", "2.5"], "<f8"), (["1.0", "2.5"], "<f8"), (["1", "2.5"], "<f8"),
    (["0.50", "0.25", "1.00"], "<f8"), (["1e-07", "0.5"], "<f8"), (["-0.0"], "<f8"), (["-0", "0"], "<f8"),
    (["007", "1"], "text"), (["NA", "1"], "text"), (["nan"], "text"), (["inf", "1.5"], "text"), (["", "1"], "text"),
    ([str(2**63)], "text"), ([str(10**18)], "text"), (["+1"], "text"), (["1_0"], "text"),
    ([" 1"], "text"), (["1.5", "2.50"], "text"), (["1.1", "1.10"], "text"), (["1", "1.0"], "text"), (["1."], "text"),
    ([".5"], "text"), (["1e400"], "text"), (["1e-400"], "text"), (["1E5"], "text"), (["\u0663"], "text"),
    (["12345678901234567", "1.5"], "text"), (["1.5", "12345678901234567"], "text"),
    (["0.1234567890123456789", "1.5"], "text"), (["true"], "text"),
])
def test_columns_are_numbers_only_where_nothing_is_lost(texts, kind):
    """Spellings that a number does not give back stay text, in any order of the records."""
    assert common_ways(texts) == common_ways(texts[::-1])
    assert type_of_ways(common_ways(texts)) == kind


def test_ways_of_many_texts_are_those_of_each(monkeypatch):
    """Texts are looked at many at a time: the ways they have in common are those that each has."""
    rng = random.Random(0)
    kinds = [["1.5", "0.25", "-0.0", "1e-05"], ["1.0", "2.0", "-3.0"], ["0.50", "1.25"], ["1.25", "-3.75"], ["3", "-4"],
             ["nan", "inf", "1.5"], ["1e+16", "1E5", "007.5"], ["1234567890123.123", "0.125"], ["", " 1.5", "1_0.5"]]
    monkeypatch.setattr(labels, "CHUNK", 3)
    for _ in range(2000):
        texts = rng.choices(sum(rng.choices(kinds, k=rng.randint(1, 2)), []), k=rng.randint(1, 8))
        assert set(common_ways(texts)) == set.intersection(*map(labels._ways_of_writing, texts))


NUMERIC = st.one_of(st.integers(-10**19, 10**19).map(str), st.floats().map(repr), st.text("0123456789.-+e", max_size=6),
                    st.decimals(-1000, 1000, places=2).map(str))


@given(st.lists(NUMERIC, min_size=1, max_size=5))
@example(["0.10", "0.1"])
def test_texts_that_differ_stay_different_numbers(texts):
    """A column of numbers holds the exact value of every text, and tells all of them apart."""
    ways = common_ways(texts)
    kind = type_of_ways(ways)
    if kind == "text":
        return
    numbers = [int(text) if kind == "<i8" else float(text) for text in texts]
    assert np.array(numbers, kind).tolist() == numbers
    assert len(set(map(repr, numbers))) == len(set(texts))
    assert all([write_number(number, [way]) for number in numbers] == texts for way in ways)
    assert [write_number(number, ways) for number in numbers] == texts
