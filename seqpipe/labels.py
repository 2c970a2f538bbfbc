"""Turn label and column texts into numbers, without changing what they say.

Place in the flow: spooled column texts -> [labels] -> /metadata of the store.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable

import numpy as np

from seqpipe.errors import SeqpipeError

MAX_DIGITS = 15  # a float64 keeps every decimal number of up to 15 digits
LARGEST = float(np.finfo(np.float32).max)  # what a label may be: batches hold float32
# Only what a number gives back the same: "007" or "+1" stay text.
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.([0-9]+))?([eE][+-]?[0-9]+)?")


def parse_number(text: str) -> float | None:
    """Return the number a label text says, NaN and infinities included; None where it is no number."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def choose_label_type(texts: Iterable[str]) -> str:
    """Return ``number`` where a fraction is among the texts, else ``class``.

    NaN and infinities are taken for numbers where nothing else than numbers is there, so that
    they are refused; among texts they are texts.
    """
    text_seen, special_seen = False, False
    for text in texts:
        number = parse_number(text)
        if number is None:
            text_seen = True
        elif not math.isfinite(number):
            special_seen = True
        elif not number.is_integer():
            return "number"
    return "number" if special_seen and not text_seen else "class"


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
            if abs(number) > LARGEST:
                raise error(i, f"label {text!r} is out of the range of float32, in which batches hold labels; "
                               "scale the labels, or use --label-type class")
            yield number

    return np.fromiter(numbers(), np.float64)


def common_ways(texts: Iterable[str]) -> list[str]:
    """Return the ways of writing numbers, sorted, each of which gives every one of the texts; none where one is none.

    As integers (``integer``), with a fixed count of decimals (``2 decimals``: "0.50"), or as short as
    can be, with or without the ".0" of whole numbers (``with .0``, ``short``).
    """
    ways: set[str] | None = None
    for text in texts:
        here = _ways_of_writing(text)
        ways = here if ways is None else ways & here
        if not ways:
            return []
    return sorted(ways or ())


def type_of_ways(ways: Collection[str]) -> str:
    """Return ``<i8`` or ``<f8`` where such numbers hold exactly what every text says, else ``text``."""
    if not ways:
        return "text"
    return "<i8" if "integer" in ways else "<f8"


def write_number(number: int | float, ways: Collection[str]) -> str:
    """Return the text that a number of a column was read from, given the ways that gave all texts of the column."""
    if isinstance(number, int):
        return str(number)
    for way in ways:
        if way.endswith(" decimals"):
            return f"{number:.{way.removesuffix(' decimals')}f}"
    return repr(number).removesuffix(".0") if "short" in ways and "with .0" not in ways else repr(number)


def _ways_of_writing(text: str) -> set[str]:
    """Return the ways of writing numbers by which a number could have become this text."""
    if INTEGER.fullmatch(text):
        return {"integer", "short"} if len(text) <= MAX_DIGITS else {"integer"}
    match = NUMBER.fullmatch(text)
    if match is None:
        return set()
    ways = set()
    if match[1] and not match[2] and len(text) <= MAX_DIGITS:
        ways.add(f"{len(match[1])} decimals")
    number = repr(float(text))
    if text == number:
        ways.add("with .0")
    if text == number.removesuffix(".0"):
        ways.add("short")
    return ways
