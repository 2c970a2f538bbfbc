"""Texts of raw files to numbers, and what may be missing among them.

Place in the flow: RawFile -> long_tables, ts -> [numbers] -> Record.
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


class BadNumber(ValueError):
    """The ``position``-th text is no number that may be kept."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


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
