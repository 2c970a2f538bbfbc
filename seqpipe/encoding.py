"""Collect the sequences of all records and encode them as one flat array.

Place in the flow: Record.sequence -> [encoding] -> /values, /offsets and the header's encoding.

One class for each way an input can be encoded, all with the same members: ``append``, whose
ValueErrors lack the ``remedy``, ``offsets``, ``content`` and ``header``.

Where the input itself decides (the symbols it holds, its largest integer), sequences are kept as
they came and encoded when the store is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.alphabet import (
    Alphabet,
    choose_alphabet,
    fixed_alphabet,
    kind_of,
    parse_ints,
    smallest_unsigned,
)
from seqpipe.spool import RaggedSpool, Spool
from seqpipe.writer import Content

BLOCK = 1 << 20  # items encoded at a time


class FixedTokens:
    """Sequences whose alphabet is known beforehand: encoded at once, so that errors show at once."""

    kind = "tokens"
    remedy = "correct the record, or choose another --alphabet"

    def __init__(self, folder: Path, alphabet: Alphabet) -> None:
        self._alphabet = alphabet
        self._spool = RaggedSpool(folder / "values", alphabet.dtype)

    def append(self, sequence: str | np.ndarray) -> None:
        """Raise ValueError where a symbol is not in the alphabet."""
        self._spool.append(self._alphabet.encode_bytes(sequence))

    def offsets(self) -> np.ndarray:
        return self._spool.offsets()

    def content(self) -> Content:
        return Content.of(self._spool.values())

    def header(self) -> dict[str, Any]:
        return self._alphabet.to_dict()


class FoundSymbols:
    """Text whose alphabet is the symbols it holds; kept as UTF-8 until all of them are known."""

    kind = "tokens"
    remedy = "all sequences must be of one kind"

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._texts = RaggedSpool(folder / "values")
        self._ends = Spool(folder / "ends", "<u8")
        self._ends.append(bytes(8))
        self._num_values = 0
        self._ascii = b""  # ASCII symbols seen, as bytes.translate takes them
        self._symbols: set[str] = set()

    def append(self, sequence: str | np.ndarray) -> None:
        """Raise ValueError where the sequence is no text, or no text that UTF-8 can hold."""
        if not isinstance(sequence, str):
            raise ValueError(f"found {kind_of(sequence)}, expected text, as in the first record")
        data = sequence.encode()
        if sequence.isascii():
            if new := data.translate(None, self._ascii):
                self._symbols.update(new.decode())
                self._ascii = "".join(symbol for symbol in self._symbols if symbol.isascii()).encode()
        else:
            self._symbols.update(sequence)
        self._texts.append(data)
        self._num_values += len(sequence)
        self._ends.append(self._num_values.to_bytes(8, "little"))

    def offsets(self) -> np.ndarray:
        return self._ends.array()

    def content(self) -> Content:
        alphabet = self._alphabet()
        return Content((self._num_values,), alphabet.dtype, self._encoded(alphabet))

    def header(self) -> dict[str, Any]:
        return self._alphabet().to_dict()

    def _alphabet(self) -> Alphabet:
        return choose_alphabet(self._name, frozenset(self._symbols))

    def _encoded(self, alphabet: Alphabet) -> Iterator[np.ndarray]:
        values, offsets = self._texts.values(), self._texts.offsets()
        first, start = 0, 0
        while start < len(values):
            # Whole records, so that no symbol of several bytes is cut. (uint64: a Python integer
            # would make NumPy convert all offsets first.)
            last = max(first + 1, int(np.searchsorted(offsets, np.uint64(start + BLOCK), "right")) - 1)
            end = int(offsets[last])
            yield alphabet.encode(values[start:end].tobytes().decode())
            first, start = last, end


class FoundInts:
    """Integer sequences; their number of tokens follows from the largest value.

    Args:
        folder: for the spool.
        read_text: also read text of integers with white space between them.
    """

    kind = "tokens"
    remedy = "correct the record"

    def __init__(self, folder: Path, *, read_text: bool) -> None:
        self._read_text = read_text
        self._spool = RaggedSpool(folder / "values", "<u8")
        self._largest = 0

    def append(self, sequence: str | np.ndarray) -> None:
        """Raise ValueError where an element is no integer, or is negative."""
        if isinstance(sequence, str) and not self._read_text:
            raise ValueError("found text, expected integers, as in the first record (--alphabet ints reads text too)")
        values = parse_ints(sequence)
        self._largest = max(self._largest, int(values.max(initial=0)))
        self._spool.append((values + 1).astype("<u8").tobytes())

    def offsets(self) -> np.ndarray:
        return self._spool.offsets()

    def content(self) -> Content:
        values = self._spool.values()
        dtype = smallest_unsigned(self._largest + 1)
        blocks = (values[i : i + BLOCK].astype(dtype) for i in range(0, len(values), BLOCK))
        return Content(values.shape, dtype, blocks)

    def header(self) -> dict[str, Any]:
        return Alphabet.of_ints(self._largest).to_dict()


class Features:
    """Rows of C numbers per time step, kept as float32."""

    kind = "features"
    remedy = "correct the record"

    def __init__(self, folder: Path, num_channels: int) -> None:
        self.num_channels = num_channels
        self._spool = RaggedSpool(folder / "values", "<f4")

    def append(self, sequence: str | np.ndarray) -> None:
        """Raise ValueError where the channels differ, or a number is not finite in float32."""
        self._spool.append(encode_features(sequence, self.num_channels).tobytes())

    def offsets(self) -> np.ndarray:
        return self._spool.offsets() // np.uint64(self.num_channels)

    def array(self) -> np.ndarray:
        """Return all rows as (M, C) float32."""
        return self._spool.values().reshape(-1, self.num_channels)

    def content(self) -> Content:
        return Content.of(self.array())

    def header(self) -> dict[str, Any]:
        return {"dtype": "float32", "num_channels": self.num_channels}


Encoded = FixedTokens | FoundSymbols | FoundInts | Features


def encode_features(sequence: str | np.ndarray, num_channels: int) -> np.ndarray:
    """Return one sequence as (T, C) float32.

    Raises:
        ValueError: it is no (T, C) array, or holds a number that is not finite in float32.
    """
    if isinstance(sequence, str) or sequence.ndim != 2:
        raise ValueError(f"found {kind_of(sequence)}, expected rows of {num_channels} numbers")
    if sequence.shape[1] != num_channels:
        raise ValueError(f"found {sequence.shape[1]} channels, expected {num_channels}")
    with np.errstate(over="ignore"):
        rows = sequence.astype("<f4")
    if not np.isfinite(rows).all():
        step, channel = np.argwhere(~np.isfinite(rows))[0].tolist()
        raise ValueError(
            f"number {sequence[step, channel]} at step {step}, channel {channel} (0-based) is not finite in float32"
        )
    return rows


def collect_sequences(folder: Path, alphabet: str, first: str | np.ndarray) -> Encoded:
    """Return what collects an input, given ``--alphabet`` and its first sequence.

    Raises:
        ValueError: the option does not fit the kind of sequence.
    """
    if not isinstance(first, str) and first.ndim == 2:
        if alphabet != "auto":
            raise ValueError(f"found {kind_of(first)}, which are no symbols; leave --alphabet {alphabet} out")
        return Features(folder, first.shape[1])
    if alphabet == "ints" or (alphabet == "auto" and not isinstance(first, str)):
        return FoundInts(folder, read_text=alphabet == "ints")
    fixed = fixed_alphabet(alphabet)
    if not isinstance(first, str):
        raise ValueError(f"found {kind_of(first)}, but --alphabet {alphabet} expects text; use --alphabet ints")
    return FoundSymbols(folder, alphabet) if fixed is None else FixedTokens(folder, fixed)
