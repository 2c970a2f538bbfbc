"""Symbols and their token ids.

Place in the flow: Record.sequence (text or integers) -> [alphabet] -> token ids -> writer.

Token 0 is padding and never a symbol; symbols count from 1. Three families share one class:

    symbols   an ordered string of characters; symbol k has token k + 1
    bytes     the UTF-8 bytes of the text; byte b has token b + 1
    ints      non-negative integers; value v has token v + 1
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.errors import OptionError, count_of

PAD_ID = 0
LARGEST = 2**63 - 2  # integers have to stay below: their number of tokens, pad id included, has to fit int64
_DIGITS = re.compile(r"[-+0-9\s]*")
_INTEGER = re.compile(r"[-+]?[0-9]{1,4000}")  # Python refuses to read longer ones

# Order matters: "auto" takes the first that holds every symbol of the input.
NAMED_SYMBOLS = {
    "dna": "ACGTN",
    "rna": "ACGUN",
    "iupac": "ACGTURYSWKMBDHVN",
    "protein": "ACDEFGHIKLMNPQRSTVWYBJOUXZ*-",
}


class UnknownSymbol(ValueError):
    """A symbol is not in an alphabet.

    Attributes:
        position: of the symbol in its sequence, 0-based.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True)
class Alphabet:
    """A fixed mapping between symbols and token ids.

    Attributes:
        name: dna, rna, iupac, protein, chars, bytes, ints, or the name of an alphabet file.
        symbols: the characters in token order; empty for bytes and ints, and for no other.
        num_tokens: number of token ids, the pad id included; every token is < num_tokens.
        unk: whether the last token stands for every symbol that is not among ``symbols``.
        case: keep, upper or lower: what text is turned into before it is encoded.
    """

    name: str
    symbols: str
    num_tokens: int
    unk: bool = False
    case: str = "keep"

    @classmethod
    def from_symbols(cls, name: str, symbols: Iterable[str]) -> Alphabet:
        text = "".join(symbols)
        if len(set(text)) != len(text) or not text:
            raise ValueError(f"alphabet {name!r}: expected distinct symbols, found {text!r}")
        return cls(name, text, len(text) + 1)

    @classmethod
    def of_bytes(cls) -> Alphabet:
        return cls("bytes", "", 257)

    @classmethod
    def of_ints(cls, largest: int) -> Alphabet:
        """Return the alphabet of the integers 0 <= value <= ``largest``."""
        return cls("ints", "", largest + 2)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Alphabet:
        """Return the alphabet that ``to_dict`` described.

        Raises:
            ValueError: the number of tokens does not fit the symbols.
        """
        alphabet = cls(str(state["alphabet"]), str(state["symbols"]), int(state["num_tokens"]),
                       "unk_id" in state, str(state.get("case", "keep")))
        expected = {"bytes": 257, "ints": max(2, alphabet.num_tokens)}.get(alphabet.name)
        if alphabet.symbols:
            expected = len(set(alphabet.symbols)) + 1 + alphabet.unk
        if alphabet.num_tokens != expected:
            raise ValueError(f"alphabet {alphabet.name!r} of {len(alphabet.symbols)} symbols cannot have "
                             f"{alphabet.num_tokens} tokens")
        return alphabet

    def to_dict(self) -> dict[str, Any]:
        state = {"alphabet": self.name, "symbols": self.symbols, "num_tokens": self.num_tokens, "pad_id": PAD_ID}
        state |= {"unk_id": self.num_tokens - 1} if self.unk else {}
        return state | ({"case": self.case} if self.case != "keep" else {})

    def with_unk(self) -> Alphabet:
        """Return this alphabet with one more token, for symbols it does not hold."""
        if not self.symbols or self.unk:
            return self
        return replace(self, num_tokens=self.num_tokens + 1, unk=True)

    @property
    def dtype(self) -> np.dtype:
        return smallest_unsigned(self.num_tokens - 1)

    def encode(self, sequence: str | np.ndarray) -> np.ndarray:
        """Return the token ids of one sequence.

        Args:
            sequence: text of T symbols (T bytes in UTF-8 for the alphabet of bytes; integers
                separated by white space for ints), or (T,) integers for ints.

        Returns:
            (T,) in ``self.dtype``, read-only where it shares the text's bytes.

        Raises:
            ValueError: a symbol is not in the alphabet; the message names it and its position.
        """
        if self._takes_bytes(sequence):
            return np.frombuffer(self.encode_bytes(sequence), np.uint8)
        if self._is_ints:
            return self._encode_ints(sequence)
        if not isinstance(sequence, str):
            raise ValueError(self._not_text(sequence))
        sequence = fold_case(sequence, self.case)
        if not self.symbols:
            return np.frombuffer(sequence.encode(), np.uint8).astype(self.dtype) + self.dtype.type(1)
        codes = np.frombuffer(sequence.encode("utf-32-le"), "<u4")
        tokens = self._code_table[np.minimum(codes, len(self._code_table) - 1)]
        if not tokens.all():
            self._raise_unknown(sequence)
        return tokens

    def encode_bytes(self, sequence: str | np.ndarray) -> bytes:
        """Return ``encode(sequence).tobytes()``: for one short text, several times as fast.

        Raises:
            ValueError: as ``encode``.
        """
        if not self._takes_bytes(sequence):
            return self.encode(sequence).tobytes()
        if not isinstance(sequence, str):
            raise ValueError(self._not_text(sequence))
        assert self.byte_table is not None
        sequence = fold_case(sequence, self.case)
        encoded = sequence.encode().translate(self.byte_table)
        if b"\0" in encoded:
            self._raise_unknown(sequence)
        return encoded

    def encode_utf8(self, data: bytes) -> np.ndarray:
        """Return ``encode(data.decode())``; without a copy in between where the alphabet is ASCII.

        Raises:
            ValueError: as ``encode``.
        """
        if self.byte_table is None:
            return self.encode(data.decode())
        encoded = data.translate(self.byte_table)
        if b"\0" in encoded:
            self._raise_unknown(data.decode())
        return np.frombuffer(encoded, np.uint8)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text of (T,) token ids; padding (id 0) is left out."""
        real = np.asarray(tokens)[np.asarray(tokens) != PAD_ID].astype(np.int64)
        if self._is_ints:
            return " ".join(map(str, (real - 1).tolist()))
        if not self.symbols:
            return (real - 1).astype(np.uint8).tobytes().decode("utf-8", "replace")
        if len(real) and not 0 < real.min() <= real.max() < self.num_tokens:
            raise ValueError(
                f"token {real.max()} is not in alphabet {self.name!r}; expected tokens < {self.num_tokens}"
            )
        symbols = self.symbols + ("?" if "?" not in self.symbols else "\ufffd") * self.unk
        return "".join([symbols[token - 1] for token in real.tolist()])

    def _takes_bytes(self, sequence: str | np.ndarray) -> bool:
        """Say whether the bytes of the text are its symbols, as far as the alphabet tells them apart."""
        return self.byte_table is not None and not (self.unk and isinstance(sequence, str) and not sequence.isascii())

    @cached_property
    def _is_ints(self) -> bool:
        # A file may be called "ints": only an alphabet without symbols is told by its name.
        return self.name == "ints" and not self.symbols

    def _not_text(self, sequence: np.ndarray) -> str:
        return f"found {kind_of(sequence)}, but alphabet {self.name!r} expects text"

    def _encode_ints(self, sequence: str | np.ndarray) -> np.ndarray:
        values = parse_ints(sequence)
        if len(values) and values.max() > self.num_tokens - 2:
            position = int(np.argmax(values > self.num_tokens - 2))
            raise UnknownSymbol(
                f"value {values[position]} at position {position} (0-based) is not in the alphabet, "
                f"which holds 0 <= value < {self.num_tokens - 1}", position
            )
        return (values + 1).astype(self.dtype)

    @cached_property
    def byte_table(self) -> bytes | None:
        """The 256-entry table of ``bytes.translate``, or None where that is not enough."""
        if not self.symbols or not self.symbols.isascii():
            return None
        table = bytearray([self.num_tokens - 1] * 128 + [0] * 128 if self.unk else 256)
        for token, symbol in enumerate(self.symbols, start=1):
            table[ord(symbol)] = token
        return bytes(table)

    @cached_property
    def _code_table(self) -> np.ndarray:
        """Token by code point; its last entry stands for all code points beyond."""
        codes = np.array([ord(symbol) for symbol in self.symbols])
        table = np.full(codes.max() + 2, self.num_tokens - 1 if self.unk else 0, self.dtype)
        table[codes] = np.arange(1, len(codes) + 1)
        return table

    def _raise_unknown(self, sequence: str) -> None:
        known = frozenset(self.symbols)
        position = next(p for p, symbol in enumerate(sequence) if symbol not in known)
        shown = self.symbols if len(self.symbols) <= 40 else f"{len(self.symbols)} symbols"
        raise UnknownSymbol(
            f"symbol {sequence[position]!r} at position {position} (0-based) is not in "
            f"alphabet {self.name!r} ({shown})", position
        )


def fold_case(text: str, case: str) -> str:
    """Return the text with each symbol in upper or lower case; those that would become several stay (ß)."""
    if case == "keep":
        return text
    folded = text.upper() if case == "upper" else text.lower()
    if text.isascii():
        return folded
    change = str.upper if case == "upper" else str.lower
    return "".join(new if len(new := change(symbol)) == 1 else symbol for symbol in text)


def smallest_unsigned(largest: int) -> np.dtype:
    """Return the smallest little-endian unsigned dtype that holds ``largest``."""
    return np.min_scalar_type(largest).newbyteorder("<")


def kind_of(sequence: str | np.ndarray) -> str:
    """Return in a word or two what a raw sequence is made of."""
    if isinstance(sequence, str):
        return "text"
    return "integers" if sequence.ndim == 1 else f"rows of {count_of(sequence.shape[1], 'number')}"


def parse_ints(sequence: str | np.ndarray) -> np.ndarray:
    """Return (T,) int64 values of an integer sequence, 0 <= value < 2**63 - 2.

    Raises:
        ValueError: a word is no integer in plain digits, or a value is out of range.
    """
    if isinstance(sequence, str):
        found = _parse_words(sequence)
    elif sequence.ndim != 1 or sequence.dtype.kind not in "iu":
        raise ValueError(f"found {kind_of(sequence)}, expected integers")
    elif len(sequence) and not 0 <= int(sequence.min()) <= int(sequence.max()) < LARGEST:
        found = sequence.tolist()
    else:
        return sequence.astype(np.int64)
    for position, value in enumerate(found):
        if not 0 <= value < LARGEST:
            raise ValueError(
                f"value {value} at position {position} (0-based) is out of range; tokens are "
                "0 <= value < 2**63 - 2"
            )
    return np.array(found, np.int64)


def _parse_words(text: str) -> list[int]:
    words = text.split()
    if not words:
        raise ValueError("the sequence is empty; expected at least one integer")
    try:
        # int() alone takes "1_0" and the digits of other scripts too.
        if _DIGITS.fullmatch(text):
            return list(map(int, words))
    except ValueError:
        pass
    word = next(word for word in words if not _INTEGER.fullmatch(word))
    raise ValueError(f"found {word[:40]!r}, expected integers separated by white space")


def choose_alphabet(name: str, found: frozenset[str]) -> Alphabet:
    """Return the alphabet for ``--alphabet auto`` or ``chars``, given every symbol of the input."""
    if name == "auto":
        for candidate, symbols in NAMED_SYMBOLS.items():
            if found <= frozenset(symbols):
                return Alphabet.from_symbols(candidate, symbols)
    return Alphabet.from_symbols("chars", sorted(found))


def fixed_alphabet(name: str) -> Alphabet | None:
    """Return the alphabet that ``--alphabet name`` fixes beforehand, or None where the input decides.

    Args:
        name: auto, chars or ints (None is returned), dna, rna, iupac, protein, bytes, or a file
            with one symbol a line.

    Raises:
        OptionError: it is neither a name nor a readable file of single symbols.
    """
    if name in ("auto", "chars", "ints"):
        return None
    if name == "bytes":
        return Alphabet.of_bytes()
    if name in NAMED_SYMBOLS:
        return Alphabet.from_symbols(name, NAMED_SYMBOLS[name])
    path = Path(name)
    expected = f"expected auto, {', '.join(NAMED_SYMBOLS)}, chars, bytes, ints, or a file with one symbol a line"
    try:
        if stat.S_ISFIFO(mode := path.stat().st_mode) or stat.S_ISCHR(mode):  # reading one would not end
            raise OptionError(f"--alphabet {name}: this is a pipe or a device; {expected}")
        lines = path.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise OptionError(f"--alphabet {name}: not UTF-8 text ({error}); {expected}") from None
    except OSError as error:
        reason = "no such alphabet, and no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise OptionError(f"--alphabet {name}: {reason}; {expected}") from None
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if len(line) > 1 or line in seen:
            raise OptionError(f"--alphabet {path}:{number}: found {line!r}; {expected}, each once")
        seen |= {line} - {""}
    if not seen:
        raise OptionError(f"--alphabet {name}: the file holds no symbol; {expected}")
    return Alphabet.from_symbols(path.name, filter(None, lines))
