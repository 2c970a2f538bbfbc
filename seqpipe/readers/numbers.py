"""Texts of raw files to numbers, and what may be missing among them.

Place in the flow: RawFile -> long_tables, regular_objects, ts -> [numbers] -> Record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from seqpipe.readers.raw import brief

# What stands for a number that is not there, in lower case; "inf" and numbers beyond float64 are not finite.
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
COUNTED = "missing or non-finite numbers kept as NaN"

# The characters of JSON numbers, by kind, and which kinds may follow each other; 7 is every other character.
_KINDS = bytes(b",-+.e0".find(code | 32 if code == ord("E") else code) if code in b",-+.eE0"
               else 6 if code in b"123456789" else 7 for code in range(256))


def _pair(characters: str) -> int:
    first, second = characters.encode().translate(_KINDS)
    return first << 3 | second


_PAIRS = bytes({_pair(first + second) for first, behind in
                ((",", "-01"), ("-", "01"), ("+", "01"), (".", "01"), ("e", "-+01"), ("0", ",.e01"), ("1", ",.e01"))
                for second in behind})


class BadNumber(ValueError):
    """The ``position``-th text is no number that may be kept."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


def parse_json_numbers(text: bytes) -> np.ndarray:
    """Return JSON numbers with a "," between them as (n,) int64, or float64 where one is not written as an integer.

    Raises:
        ValueError: one is no JSON number; or so large that an integer may not be exact, which is to be told elsewhere.
    """
    closed = b",%b," % text
    has_exponents = b"e" in text or b"E" in text
    checked = closed.replace(b"e-", b"e+").replace(b"E-", b"E+") if has_exponents else closed
    kinds = np.frombuffer(checked.translate(_KINDS), np.uint8)
    pairs = kinds[:-1] << np.uint8(3) | kinds[1:]
    starts_with_0 = (pairs[:-1] == _pair(",0")) | (pairs[:-1] == _pair("-0"))
    if pairs.tobytes().translate(None, _PAIRS) or (starts_with_0 & (kinds[2:] >= _KINDS[ord("0")])).any():
        raise ValueError("not plain numbers")
    is_float = has_exponents or b"." in text
    if is_float and b"-0," in closed:
        raise ValueError("an integer is 0, and not -0.0")
    numbers = np.fromstring(closed[1:] + b"0", np.float64 if is_float else np.int64, sep=",")[:-1]
    # It stops at what it cannot take: then numbers are missing, the one added among them.
    if len(numbers) != np.count_nonzero(kinds == 0) - 1 or numbers.min() <= -(2**53) or numbers.max() >= 2**53:
        raise ValueError("not plain numbers")
    return numbers


def parse_numbers(
    texts: Sequence[str] | Sequence[bytes], *, missing: bool, counts: Counter[str], is_plain: bool = False
) -> np.ndarray:
    """Return plain decimal numbers as (n,) float64.

    Args:
        texts: one number each, as text or in UTF-8; white space may stand around it.
        missing: take texts that say a number is missing, and what is not finite, as NaN.
        counts: where those are counted.
        is_plain: whether it is known that all is ASCII without "_".

    Raises:
        BadNumber: a text is no number, or it is missing or not finite and ``missing`` is False.
    """
    if is_plain or _is_plain(texts):
        try:
            numbers = np.fromiter(map(float, texts), np.float64, len(texts))
        except ValueError:
            pass
        else:
            if np.isfinite(numbers).all():
                return numbers
    return _one_by_one([text if isinstance(text, str) else text.decode() for text in texts], missing, counts)


def _is_plain(texts: Sequence[str] | Sequence[bytes]) -> bool:
    """Say whether float() takes no more than plain numbers: it reads "1_0", and digits of every script."""
    if texts and isinstance(texts[0], bytes):
        joined = b"".join(texts)  # type: ignore[arg-type]
        return joined.isascii() and b"_" not in joined
    text = "".join(texts)  # type: ignore[arg-type]
    return text.isascii() and "_" not in text


def _one_by_one(texts: Sequence[str], missing: bool, counts: Counter[str]) -> np.ndarray:
    numbers = np.empty(len(texts))
    for position, text in enumerate(texts):
        plain = text.strip().lower()
        try:
            if plain in MISSING:
                number = math.nan
            elif plain.isascii() and "_" not in plain:
                number = float(plain)
            else:
                raise ValueError(text)
        except ValueError:
            raise BadNumber(f"bad number {brief(text)}, expected a decimal number; correct it", position) from None
        if not math.isfinite(number):
            if not missing:
                what = "missing number" if plain in MISSING else "a number that is not finite,"
                raise BadNumber(f"{what} {brief(text)}, expected a finite number; fill it in, or keep what is missing "
                                "as NaN with --on-missing nan", position)
            counts[COUNTED] += 1
            number = math.nan
        numbers[position] = number
    return numbers
