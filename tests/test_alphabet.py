"""Alphabets give every symbol one token from 1 on, back and forth, and refuse all others by name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from seqpipe.alphabet import NAMED_SYMBOLS, PAD_ID, Alphabet, choose_alphabet, fixed_alphabet, parse_ints
from seqpipe.errors import OptionError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
VALUES = st.lists(st.integers(0, 2**63 - 3), min_size=1, max_size=20)
FIXTURE_OK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def check_law(alphabet: Alphabet, text: str) -> np.ndarray:
    """Check what holds for every alphabet and text; return the tokens."""
    tokens = alphabet.encode(text)
    assert alphabet.decode(tokens) == text
    assert tokens.dtype == alphabet.dtype and tokens.ndim == 1
    assert tokens.min() > PAD_ID == 0 and tokens.max() < alphabet.num_tokens
    assert alphabet.encode_bytes(text) == tokens.tobytes()
    assert Alphabet.from_dict(alphabet.to_dict()) == alphabet
    return tokens


# ---- laws -----------------------------------------------------------------------------------


@given(st.data(), st.sampled_from(sorted(NAMED_SYMBOLS)))
def test_named_alphabets_give_back_their_text(data, name):
    """Symbol k of a named alphabet is token k + 1, and every text of its symbols comes back."""
    alphabet = fixed_alphabet(name)
    text = data.draw(st.text(alphabet.symbols, min_size=1))
    tokens = check_law(alphabet, text)
    assert [alphabet.symbols.index(symbol) + 1 for symbol in text] == tokens.tolist()


@given(TEXT)
@example("\U0001f9ec\U0010ffff\ud7ff\ue000")
@example("\0\x7f\x80\u2028")
def test_found_symbols_give_back_any_text(text):
    """The alphabet of a text's own symbols holds any code point, those beyond 16 bits too."""
    alphabet = choose_alphabet("chars", frozenset(text))
    assert alphabet.symbols == "".join(sorted(set(text)))
    assert len(check_law(alphabet, text)) == len(text)


@given(TEXT)
def test_bytes_give_back_any_text(text):
    """Byte b of the UTF-8 text is token b + 1, NUL included."""
    tokens = check_law(Alphabet.of_bytes(), text)
    assert bytes((tokens - 1).astype(np.uint8)) == text.encode()


@given(VALUES)
def test_ints_give_back_their_values(values):
    """Value v is token v + 1, as text and as an array, up to the largest value there may be."""
    alphabet = Alphabet.of_ints(max(values))
    tokens = check_law(alphabet, " ".join(map(str, values)))
    assert tokens.tolist() == [value + 1 for value in values]
    assert np.array_equal(alphabet.encode(np.array(values, np.int64)), tokens)
    assert alphabet.dtype == np.min_scalar_type(max(values) + 1)


@FIXTURE_OK
@given(symbols=st.sets(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\ufeff"), min_size=1,
                       max_size=300), order=st.randoms(use_true_random=False), data=st.data())
@pytest.mark.parametrize("name", ["mine.txt", "ints", "bytes", "dna"])
def test_alphabet_files_give_back_their_text(tmp_path, name, symbols, order, data):
    """A file's symbols keep their order, whatever the file is called."""
    listed = list(symbols)
    order.shuffle(listed)
    (tmp_path / name).write_text("\n".join(listed), encoding="utf-8", newline="")

    alphabet = fixed_alphabet(str(tmp_path / name))

    assert alphabet.name == name and list(alphabet.symbols) == listed
    check_law(alphabet, data.draw(st.text(listed, min_size=1)))


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_alphabet_file_may_have_other_line_ends_and_a_mark(tmp_path, ends, mark):
    """Line ends, blank lines and a byte-order mark are no symbols; a blank is one."""
    path = tmp_path / "symbols"
    path.write_bytes(mark + ends.join(["A", " ", "ß", ""]).encode())
    assert fixed_alphabet(str(path)).symbols == "A ß"


# ---- types ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "dtype"), [(1, "u1"), (255, "u1"), (256, "<u2"), (65535, "<u2"), (65536, "<u4")])
def test_tokens_take_the_smallest_type_that_holds_them(count, dtype):
    """255 symbols and padding fit one byte, one symbol more needs two, and so on."""
    symbols = [chr(0x10000 + i) for i in range(count)]
    alphabet = Alphabet.from_symbols("many", symbols)
    assert alphabet.num_tokens == count + 1
    assert alphabet.encode(symbols[-1]).dtype == np.dtype(dtype) and alphabet.encode(symbols[-1])[0] == count


def test_bytes_need_two_bytes_a_token():
    """256 byte values and padding are 257 tokens."""
    assert Alphabet.of_bytes().dtype == np.dtype("<u2")
    assert Alphabet.of_bytes().encode("A").tolist() == [66]


def test_ascii_tokens_are_read_only_and_others_are_new():
    """Tokens that share the text's bytes refuse writes; all others belong to the caller."""
    assert not fixed_alphabet("dna").encode("ACGT").flags.writeable
    for alphabet, text in ((Alphabet.of_bytes(), "ab"), (Alphabet.of_ints(3), "1 2"),
                           (Alphabet.from_symbols("chars", "aß"), "aß")):
        assert alphabet.encode(text).flags.writeable


def test_decode_leaves_padding_out():
    """Padding on any side has no text."""
    assert fixed_alphabet("dna").decode(np.array([0, 1, 2, 0, 0], np.uint8)) == "AC"
    assert Alphabet.of_ints(9).decode(np.array([1, 10, 0])) == "0 9"


# ---- errors ---------------------------------------------------------------------------------


@given(st.data(), st.sampled_from([*NAMED_SYMBOLS, "aß中"]))
def test_unknown_symbol_is_named_with_its_place(data, name):
    """The message has the first symbol that is not there, its position from 0, and the alphabet."""
    alphabet = fixed_alphabet(name) if name in NAMED_SYMBOLS else Alphabet.from_symbols("mine", name)
    before = data.draw(st.text(alphabet.symbols))
    bad = data.draw(st.characters(exclude_categories=["Cs"], exclude_characters=alphabet.symbols))
    after = data.draw(st.text(alphabet.symbols + bad))

    with pytest.raises(ValueError) as caught:
        alphabet.encode(before + bad + after)

    assert str(caught.value) == (f"symbol {bad!r} at position {len(before)} (0-based) is not in alphabet "
                                 f"{alphabet.name!r} ({alphabet.symbols})")


def test_long_alphabets_are_counted_in_messages():
    """A thousand symbols are not listed."""
    alphabet = Alphabet.from_symbols("chars", map(chr, range(0x4E00, 0x4E00 + 1000)))
    with pytest.raises(ValueError, match=r"'a' at position 0 .* \(1000 symbols\)"):
        alphabet.encode("a")


@pytest.mark.parametrize(("sequence", "finding"), [
    ("1 x", "'x', expected integers"), ("1.5", "'1.5', expected integers"), ("1_0", "'1_0', expected integers"),
    ("\u0663", "expected integers"), ("1-2", "'1-2', expected integers"), ("9" * 5000, "expected integers"),
    ("3 -1", "value -1 at position 1"), (str(2**63 - 2), "value 9223372036854775806 at position 0"),
    (str(2**70), "value 1180591620717411303424 at position 0"),
    (np.array([0, -5]), "value -5 at position 1"), (np.array([2**64 - 1], np.uint64), "value 18446744073709551615"),
    (np.array([1.0]), "expected integers"), (np.zeros((2, 3)), "rows of 3 numbers"),
])
def test_integers_out_of_range_or_shape_are_refused(sequence, finding):
    """Words that are no plain integers, and values that would wrap, are errors."""
    with pytest.raises(ValueError, match=re.escape(finding)):
        parse_ints(sequence)


def test_value_beyond_the_alphabet_of_ints_is_refused():
    """An alphabet that was made for smaller values says up to where it goes."""
    with pytest.raises(ValueError, match=r"value 5 at position 1 .* 0 <= value < 5$"):
        Alphabet.of_ints(4).encode("4 5")


@pytest.mark.parametrize("name", ["dna", "bytes", "chars"])
def test_integers_do_not_fit_an_alphabet_of_text(name):
    """Integers are not taken for characters."""
    alphabet = fixed_alphabet(name) or Alphabet.from_symbols("chars", "ß")
    with pytest.raises(ValueError, match=r"found integers, but alphabet '\w+' expects text"):
        alphabet.encode(np.array([1, 2]))


@pytest.mark.parametrize(("content", "finding"), [
    (b"A\nCG\n", ":2: found 'CG'"), (b"A\nC\nA\n", ":3: found 'A'"), (b"", "holds no symbol"),
    (b"\n\n", "holds no symbol"), (b"\xff\n", "not UTF-8"),
])
def test_bad_alphabet_files_are_refused(tmp_path, content, finding):
    """A line of two symbols, a symbol twice, no symbol, and other bytes than UTF-8."""
    path = tmp_path / "symbols.txt"
    path.write_bytes(content)
    with pytest.raises(OptionError) as caught:
        fixed_alphabet(str(path))
    assert str(path) in str(caught.value) and finding in str(caught.value)


@pytest.mark.parametrize("name", ["DNA", "no_such_file", "x" * 300])
def test_unknown_alphabet_names_list_the_known(name):
    """A name that is none and no file lists what there is."""
    with pytest.raises(OptionError, match="dna, rna, iupac, protein, chars, bytes, ints"):
        fixed_alphabet(name)


def test_a_folder_is_no_alphabet(tmp_path: Path):
    """A path that cannot be read as a file says why."""
    with pytest.raises(OptionError, match="directory"):
        fixed_alphabet(str(tmp_path))


@pytest.mark.parametrize("state", [
    {"alphabet": "dna", "symbols": "ACGT", "num_tokens": 6}, {"alphabet": "dna", "symbols": "", "num_tokens": 6},
    {"alphabet": "bytes", "symbols": "", "num_tokens": 256}, {"alphabet": "ints", "symbols": "", "num_tokens": 1},
    {"alphabet": "x", "symbols": "AA", "num_tokens": 2 + 1 + 1},
])
def test_headers_whose_counts_do_not_fit_are_refused(state):
    """An alphabet from a damaged header does not decode to something else."""
    with pytest.raises(ValueError, match="cannot have"):
        Alphabet.from_dict(state)


@pytest.mark.parametrize("symbols", ["", "AA"])
def test_alphabets_have_distinct_symbols(symbols):
    """No symbol has two tokens."""
    with pytest.raises(ValueError, match="distinct"):
        Alphabet.from_symbols("x", symbols)


# ---- auto -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "name"), [
    ("ACGT", "dna"), ("NNN", "dna"), ("A", "dna"), ("ACGU", "rna"), ("ACGTU", "iupac"), ("ACGTR", "iupac"),
    ("ACDEFGHIKLMNPQRSTVWY", "protein"), ("MK*", "protein"), ("ACGT-", "protein"), ("acgt", "chars"),
    ("ACGT.", "chars"), ("ACGTé", "chars"),
])
def test_auto_takes_the_first_alphabet_that_holds_all(text, name):
    """dna, rna, iupac, protein, in this order, else the symbols found."""
    assert choose_alphabet("auto", frozenset(text)).name == name


@given(st.text("ACGTURYSWKMBDHVNEFx*-", min_size=1))
def test_auto_holds_every_symbol(text):
    """Whatever is found can be encoded, and no earlier alphabet could have done it."""
    alphabet = choose_alphabet("auto", frozenset(text))
    check_law(alphabet, text)
    names = [*NAMED_SYMBOLS, "chars"]
    assert not any(set(text) <= set(NAMED_SYMBOLS[name]) for name in names[: names.index(alphabet.name)])


def test_chars_is_never_a_named_alphabet():
    """``--alphabet chars`` keeps to what is there."""
    assert choose_alphabet("chars", frozenset("TGA")) == Alphabet("chars", "AGT", 4)
