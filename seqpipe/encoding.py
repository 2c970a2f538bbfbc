"""Encode the sequences of one part of an import, as far as the part alone can.

Place in the flow: Record.sequence -> [encoding] -> spools of a part -> values.

One class for each way an input can be encoded, all with the same members: ``measure`` returns the
length a sequence will have, ``truncate`` its start, ``append`` takes it and returns its length (its
ValueErrors lack the ``remedy``), ``extend`` takes the plain letters of many sequences, ``empty`` is the
empty sequence, ``counts`` what was changed, and ``state`` what the part found. Where only the whole
input can decide (the symbols it holds, its largest integer), sequences are kept as they came and
encoded when the store is written.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from seqpipe.alphabet import Alphabet, choose_alphabet, fixed_alphabet, fold_case, kind_of, parse_ints
from seqpipe.errors import count_of
from seqpipe.options import PreprocessOptions
from seqpipe.readers.blocks import LETTERS
from seqpipe.spool import Spools

SAMPLE = 1 << 14  # letters


class FixedTokens:
    """Sequences whose alphabet is known beforehand: encoded at once, so that errors show at once."""

    remedy = "correct the record, or choose another --alphabet, --on-unknown skip or unk, or --case"

    def __init__(self, spools: Spools, alphabet: Alphabet) -> None:
        self.empty = ""
        self.counts: Counter[str] = Counter()
        self._alphabet = alphabet
        self._is_ints = alphabet.name == "ints" and not alphabet.symbols
        self._spool = spools.new("values", alphabet.dtype)

    def measure(self, sequence: str | np.ndarray) -> int:
        if isinstance(sequence, str) and self._is_ints:
            return len(sequence.split())
        is_bytes = isinstance(sequence, str) and not self._alphabet.symbols
        return len(sequence.encode()) if is_bytes else len(sequence)  # type: ignore[union-attr]

    def truncate(self, sequence: str | np.ndarray, length: int) -> str | np.ndarray:
        if isinstance(sequence, str) and self._is_ints:
            return " ".join(sequence.split()[:length])
        if isinstance(sequence, str) and not self._alphabet.symbols:
            return sequence.encode()[:length].decode("utf-8", "ignore")  # whole characters
        return sequence[:length]

    def append(self, sequence: str | np.ndarray) -> int:
        """Raise ValueError where a symbol is not in the alphabet."""
        data = self._alphabet.encode_bytes(sequence)
        if self._alphabet.unk:
            self._count_unknown(data)
        if isinstance(sequence, str):
            _count_case(self.counts, sequence, fold_case(sequence, self._alphabet.case))
        self._spool.append(data)
        return len(data) // self._spool.dtype.itemsize

    def _count_unknown(self, data: bytes | bytearray) -> None:
        tokens = np.frombuffer(data, self._spool.dtype)
        self.counts[f"unknown symbols, read as token {self._alphabet.num_tokens - 1}"] += int(
            np.count_nonzero(tokens == self._alphabet.num_tokens - 1))

    def extend(self, elements: bytes | bytearray | np.ndarray, lengths: np.ndarray) -> bool:
        """Take many sequences, as ``Columns`` has them; return False where they need ``append``."""
        if self._table is None or isinstance(elements, np.ndarray):
            return False
        folded = _fold(elements, self._alphabet.case)
        tokens = folded.translate(self._table, b"\n")
        if b"\0" in tokens or len(tokens) != lengths.sum():
            return False
        if self._alphabet.unk:
            self._count_unknown(tokens)
        _count_case(self.counts, elements, folded)
        self._spool.append(tokens)
        return True

    @cached_property
    def _table(self) -> bytes | None:
        """The table of ``bytes.translate`` for plain letters, 0 for all else; None where that is not enough."""
        table = self._alphabet.byte_table
        return table and bytes(table[code] if code in LETTERS else 0 for code in range(256))

    def state(self) -> dict[str, Any]:
        return {"kind": "fixed", **self._alphabet.to_dict()}


class FoundSymbols:
    """Text whose alphabet is the symbols it holds; kept as UTF-8, in ``code_bytes``, until all of them are known.

    Args:
        spools: of the part.
        case: ``--case``.
        codes: the symbols that the codes of all parts start with.
    """

    remedy = "all sequences must be of one kind"

    def __init__(self, spools: Spools, case: str, codes: str) -> None:
        self.empty = ""
        self.counts: Counter[str] = Counter()
        self._case, self._codes = case, codes
        self._texts = spools.new_ragged("values")
        self._bytes = code_bytes(codes)
        self._table = bytes.maketrans(self._bytes, bytes(range(256)))
        self._seen = b""  # codes of the ASCII symbols seen, as bytes.translate takes them
        self._first = 0  # all codes from 1 to this were seen
        self._symbols: set[str] = set()

    def measure(self, sequence: str | np.ndarray) -> int:
        return len(sequence)

    def truncate(self, sequence: str | np.ndarray, length: int) -> str | np.ndarray:
        return sequence[:length]

    def append(self, sequence: str | np.ndarray) -> int:
        """Raise ValueError where the sequence is no text, or no text that UTF-8 can hold."""
        if not isinstance(sequence, str):
            raise ValueError(f"found {kind_of(sequence)}, expected text, as in the first record")
        _count_case(self.counts, sequence, folded := fold_case(sequence, self._case))
        sequence = folded
        data = sequence.encode().translate(self._table)
        if not sequence.isascii():
            self._symbols.update(sequence)
        elif new := data.translate(None, self._seen):
            self._add(set(new))
        self._texts.append(data)
        return len(sequence)

    def extend(self, elements: bytes | bytearray | np.ndarray, lengths: np.ndarray) -> bool:
        """Take many sequences, as ``Columns`` has them; return False where they need ``append``."""
        if isinstance(elements, np.ndarray):
            return False
        folded = _fold(elements, self._case)
        data = folded.translate(self._table, b"\n")
        if len(data) != lengths.sum():
            return False
        if np.frombuffer(data, np.uint8).max() > self._first or b"\0" in data:
            for sample in (data[:SAMPLE], data):  # most symbols are found in a few letters
                if new := set(sample.translate(None, self._seen)):
                    if not {self._bytes[code] for code in new} <= set(LETTERS):
                        return False
                    self._add(new)
        _count_case(self.counts, elements, folded)
        self._texts.extend(data, lengths)
        return True

    def _add(self, new: set[int]) -> None:
        """Note that ASCII symbols were seen, by their codes."""
        self._seen += bytes(new)
        self._symbols.update(chr(self._bytes[code]) for code in new)
        while self._first + 1 in self._seen:
            self._first += 1

    def state(self) -> dict[str, Any]:
        return {"kind": "symbols", "symbols": "".join(sorted(self._symbols)), "codes": self._codes}


def code_bytes(codes: str) -> bytes:
    """Return the byte that each code of 256 stands for: ``codes`` come first, from 1.

    Where the alphabet turns out to be what was expected, codes are token ids. Byte 0 keeps its own.
    """
    first = b"\0" + codes.encode()
    return first + bytes(sorted(set(range(256)) - set(first)))


class FoundInts:
    """Integer sequences; their number of tokens follows from the largest value.

    Args:
        spools: of the part.
        read_text: also read text of integers with white space between them.
    """

    remedy = "correct the record"

    def __init__(self, spools: Spools, *, read_text: bool) -> None:
        self.empty = np.empty(0, np.int64)
        self.counts: Counter[str] = Counter()
        self._read_text = read_text
        self._spool = spools.new("values", "<u8")
        self._largest = 0

    def measure(self, sequence: str | np.ndarray) -> int:
        return len(sequence.split() if isinstance(sequence, str) else sequence)

    def truncate(self, sequence: str | np.ndarray, length: int) -> str | np.ndarray:
        return " ".join(sequence.split()[:length]) if isinstance(sequence, str) else sequence[:length]

    def append(self, sequence: str | np.ndarray) -> int:
        """Raise ValueError where an element is no integer, or is negative."""
        if isinstance(sequence, str) and not self._read_text:
            raise ValueError("found text, expected integers, as in the first record (--alphabet ints reads text too)")
        values = parse_ints(sequence)
        self._largest = max(self._largest, int(values.max(initial=0)))
        self._spool.extend((values + 1).astype("<u8"))
        return len(values)

    def extend(self, elements: bytes | bytearray | np.ndarray, lengths: np.ndarray) -> bool:
        """Take many sequences, as ``Columns`` has them; return False where they need ``append``."""
        if not isinstance(elements, np.ndarray):
            return False
        try:
            self.append(elements)  # end to end they are one
        except ValueError:
            return False
        return True

    def state(self) -> dict[str, Any]:
        return {"kind": "ints", "largest": self._largest}


class Features:
    """Rows of C numbers per time step, kept as float32."""

    remedy = "correct the record"

    def __init__(self, spools: Spools, num_channels: int) -> None:
        self.empty = np.empty((0, num_channels))
        self.counts: Counter[str] = Counter()
        self._num_channels = num_channels
        self._spool = spools.new("values", "<f4")

    def measure(self, sequence: str | np.ndarray) -> int:
        return len(sequence)

    def truncate(self, sequence: str | np.ndarray, length: int) -> str | np.ndarray:
        return sequence[:length]

    def append(self, sequence: str | np.ndarray) -> int:
        """Raise ValueError where the channels differ, or a number is not finite in float32."""
        self._spool.extend(encode_features(sequence, self._num_channels).reshape(-1))
        return len(sequence)

    def extend(self, elements: bytes | bytearray | np.ndarray, lengths: np.ndarray) -> bool:
        """Take many sequences, as ``Columns`` has them; return False where they need ``append``."""
        if not isinstance(elements, np.ndarray):
            return False
        try:
            self.append(elements)  # end to end they are one
        except ValueError:
            return False
        return True

    def state(self) -> dict[str, Any]:
        return {"kind": "features", "num_channels": self._num_channels}


def _fold(letters: bytes | bytearray, case: str) -> bytes | bytearray:
    return letters if case == "keep" else letters.upper() if case == "upper" else letters.lower()


def _count_case(counts: Counter[str], before: str | bytes | bytearray, after: str | bytes | bytearray) -> None:
    if before is after or before == after:
        return
    if isinstance(before, str) or isinstance(after, str):
        changed = sum(map(operator.ne, before, after))
    else:
        changed = int(np.count_nonzero(np.frombuffer(before, np.uint8) != np.frombuffer(after, np.uint8)))
    counts["letters whose case was changed"] += changed


Encoder = FixedTokens | FoundSymbols | FoundInts | Features


def encode_features(sequence: str | np.ndarray, num_channels: int) -> np.ndarray:
    """Return one sequence as (T, C) float32.

    Raises:
        ValueError: it is no (T, C) array, or holds a number that is not finite in float32.
    """
    if isinstance(sequence, str) or sequence.ndim != 2:
        raise ValueError(f"found {kind_of(sequence)}, expected rows of {count_of(num_channels, 'number')}")
    if sequence.shape[1] != num_channels:
        raise ValueError(f"found {count_of(sequence.shape[1], 'channel')}, expected {num_channels}")
    with np.errstate(over="ignore"):
        rows = sequence.astype("<f4")
    if np.isinf(rows).any():  # NaN comes only from readers that were told to keep it
        step, channel = np.argwhere(np.isinf(rows))[0].tolist()
        raise ValueError(
            f"number {sequence[step, channel]} at step {step}, channel {channel} (0-based) is not finite in float32"
        )
    return rows


def check_alphabet(alphabet: str, first: str | np.ndarray) -> None:
    """Raise ValueError where ``--alphabet`` does not fit the kind of the first sequence of an import."""
    if not isinstance(first, str) and first.ndim == 2:
        if alphabet != "auto":
            raise ValueError(f"found {kind_of(first)}, which are no symbols; leave --alphabet {alphabet} out")
    elif not isinstance(first, str) and alphabet not in ("auto", "ints"):
        raise ValueError(f"found {kind_of(first)}, but --alphabet {alphabet} expects text; use --alphabet ints")


def expected_codes(alphabet: str, first: str | np.ndarray) -> str:
    """Return the ASCII symbols that ``--alphabet auto`` or ``chars`` will have, as far as the first sequence tells."""
    found = frozenset(first[:SAMPLE]) if isinstance(first, str) else frozenset()
    return choose_alphabet(alphabet, found).symbols if found and found <= set(map(chr, LETTERS)) else ""


def new_encoder(spools: Spools, options: PreprocessOptions, *, is_text: bool, num_channels: int, codes: str = "",
                given: Alphabet | None = None) -> Encoder:
    """Return what encodes the sequences of a part.

    Args:
        spools: of the part.
        options: whose ``--alphabet`` fits the kind of the sequences.
        is_text: whether the first sequence of the import is text.
        num_channels: of the first sequence, where it is rows of numbers; else 0.
        codes: what ``expected_codes`` said of the first sequence.
        given: the alphabet that ``--like`` fixes; None where the options or the input decide.
    """
    if num_channels:
        return Features(spools, num_channels)
    if given is not None:
        return FixedTokens(spools, replace(given, case=options.case))
    if options.alphabet == "ints" or not is_text:
        return FoundInts(spools, read_text=options.alphabet == "ints")
    fixed = fixed_alphabet(options.alphabet)
    if fixed is None:
        return FoundSymbols(spools, options.case, codes)
    fixed = replace(fixed, case=options.case)
    return FixedTokens(spools, fixed.with_unk() if options.on_unknown == "unk" else fixed)
