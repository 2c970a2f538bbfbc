"""Turn label and column texts into numbers, without changing what they say.

Place in the flow: spooled column texts -> [labels] -> /metadata of the store.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

import numpy as np

from seqpipe.errors import SeqpipeError

MAX_DIGITS = 15  # a float64 keeps every decimal number of up to 15 digits
# Only spellings that come back the same from the number: "007" or "+1" stay text.
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def parse_number(text: str) -> float | None:
    """Return the number a label text says, NaN and infinities included; None where it is no number."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def choose_label_type(texts: Iterable[str]) -> str:
    """Return ``number`` where all texts are numbers and any is no integer, else ``class``."""
    fractional = False
    for text in texts:
        number = parse_number(text)
        if number is None:
            return "class"
        fractional = fractional or not number.is_integer()
    return "number" if fractional else "class"


def encode_classes(texts: Iterable[str]) -> tuple[np.ndarray, list[str]]:
    """Return (N,) int64 class numbers and the class names.

    Classes are numbered in the order of their names (of their values, where all are integers),
    so that the order of the records does not matter.
    """
    seen: dict[str, int] = {}
    found = np.fromiter((seen.setdefault(text, len(seen)) for text in texts), np.int64)
    integers = all(INTEGER.fullmatch(name) for name in seen)
    names = sorted(seen, key=int) if integers else sorted(seen)
    number = np.empty(len(names), np.int64)
    number[[seen[name] for name in names]] = np.arange(len(names))
    return number[found], names


def encode_numbers(texts: Iterable[str], error: Callable[[int, str], SeqpipeError]) -> np.ndarray:
    """Return (N,) float64 numbers.

    Args:
        texts: one label per record.
        error: makes the error of record i from a finding.

    Raises:
        SeqpipeError: a text is no finite number.
    """
    def numbers() -> Iterable[float]:
        for i, text in enumerate(texts):
            number = parse_number(text)
            if number is None or not math.isfinite(number):
                raise error(i, f"label {text!r} is no finite number; correct it, or use --label-type class")
            yield number

    return np.fromiter(numbers(), np.float64)


def column_type(texts: Iterable[str]) -> str:
    """Return ``<i8`` or ``<f8`` where such numbers hold exactly what every text says, else ``text``."""
    integers = True
    for text in texts:
        if integers and INTEGER.fullmatch(text):
            continue
        integers = False
        if not NUMBER.fullmatch(text) or not math.isfinite(float(text)) or len(text) > MAX_DIGITS:
            return "text"
    return "<i8" if integers else "<f8"
