"""Turn label and column texts into numbers, without changing what they say.

Place in the flow: spooled column texts -> [labels] -> /metadata of the store.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from seqpipe.errors import OptionError, SeqpipeError

CHUNK = 4096  # texts read together
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


def encode_classes(
    found: np.ndarray, texts: Sequence[str], names: Sequence[str] | None, error: Callable[[int, str], SeqpipeError]
) -> tuple[np.ndarray, list[str]]:
    """Return (N,) int64 class numbers and the class names.

    Args:
        found: (N,) int64 which of ``texts`` is the label of each record.
        texts: the labels that there are, each once, in the order in which they come first.
        names: the classes in their order; None takes those found, see ``order_classes``.
        error: makes the error of record i from a finding.

    Raises:
        SeqpipeError: a label is not among ``names``.
    """
    seen = _Numbers(names)
    numbers = [seen.number(text, partial(_first, found, k), error) for k, text in enumerate(texts)]
    return seen.ordered(np.array(numbers, np.int64)[found])


def encode_label_sets(
    texts: Iterable[str], separator: str, names: Sequence[str] | None, error: Callable[[int, str], SeqpipeError]
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return what is stored of labels of several classes each: values, offsets and class names.

    Args:
        texts: one label per record, as ``split_label`` reads them.
        separator: between the classes of a label.
        names: as for ``encode_classes``.
        error: makes the error of record i from a finding.

    Returns:
        (L,) int32 class numbers of all records end to end, ascending within each; (N+1,) uint64
        offsets; the names.

    Raises:
        SeqpipeError: a label is no list of classes, or a class is not among ``names``.
    """
    seen, found, ends = _Numbers(names), array("q"), array("Q", [0])
    for i, text in enumerate(texts):
        try:
            classes = split_label(text, separator)
        except ValueError as problem:
            raise error(i, str(problem)) from None
        found.extend(seen.number(name, partial(int, i), error) for name in classes)
        ends.append(len(found))
    numbers, ordered = seen.ordered(np.frombuffer(found, np.int64))
    offsets = np.frombuffer(ends, np.uint64).astype("<u8")
    record = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets).astype(np.int64))
    return numbers[np.lexsort((numbers, record))].astype("<i4"), offsets, ordered


def split_label(text: str, separator: str) -> list[str]:
    """Return the classes of a label: separated, or a JSON list of texts; empty text means no class.

    Raises:
        ValueError: a class is empty, or stands twice.
    """
    names = text.split(separator) if text else []
    if text.startswith("[") and text.endswith("]"):
        try:
            names = [name if isinstance(name, str) else json.dumps(name, ensure_ascii=False)
                     for name in json.loads(text)]
        except ValueError:
            pass  # a class with brackets in its name
    if "" in names:
        raise ValueError(f"label {text!r} has an empty class between separators {separator!r}; take it out, or choose "
                         "another --label-separator")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"label {text!r} names class {twice!r} twice; name every class once")
    return names


def order_classes(names: Iterable[str]) -> list[str]:
    """Return class names in their order: by value where all are integers, else by their symbols.

    So the order of the records does not matter.
    """
    found = list(names)
    return sorted(found, key=int) if all(map(INTEGER.fullmatch, found)) else sorted(found)


def read_classes(path: Path) -> list[str]:
    """Read a file of class names, one a line, byte for byte (UTF-8), in the order of their numbers.

    Raises:
        OptionError: it cannot be read, holds no name, or an empty one, or one twice.
    """
    expected = "expected a text file (UTF-8) with one class name a line, each once"
    try:
        if not path.is_file():  # reading a pipe or a device might not end
            raise OptionError(f"--classes {path}: no such file; {expected}")
        lines = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n").split("\n")
    except (UnicodeDecodeError, OSError) as error:
        raise OptionError(f"--classes {path}: cannot be read ({error}); {expected}") from None
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if not line or line in seen:
            raise OptionError(f"--classes {path}:{number}: found {line!r}; {expected}")
        seen.add(line)
    return lines


def _first(numbers: np.ndarray, number: int) -> int:
    return int(np.argmax(numbers == number))


class _Numbers:
    """Number class names as they come, and in their order in the end."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._fixed = names is not None
        self.seen = {name: number for number, name in enumerate(names or ())}

    def number(self, name: str, where: Callable[[], int], error: Callable[[int, str], SeqpipeError]) -> int:
        """Return the number of a name, found in the record that ``where`` tells."""
        number = self.seen.get(name, -1)
        if number < 0:
            if self._fixed:
                raise error(where(), f"label {name!r} is none of the {len(self.seen):,} classes given; correct it, or "
                                     "add it to --classes")
            number = self.seen[name] = len(self.seen)
        return number

    def ordered(self, found: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return the numbers that names have in their order, for those given so far, and the names."""
        if self._fixed:
            return found, list(self.seen)
        names = order_classes(self.seen)
        number = np.empty(len(names), np.int64)
        number[[self.seen[name] for name in names]] = np.arange(len(names))
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
    rest = iter(texts)
    while chunk := list(islice(rest, CHUNK)):
        found = _ways_of_fractions(chunk)
        for here in map(_ways_of_writing, chunk) if found is None else [found]:
            ways = here if ways is None else ways & here
            if not ways:
                return []
    return sorted(ways or ())


def _ways_of_fractions(texts: Sequence[str]) -> set[str] | None:
    """Return the ways that all texts have in common; None where they are not all as ``repr`` writes a fraction."""
    joined = "".join(texts)
    try:
        if "n" in joined or list(map(repr, map(float, texts))) != texts:  # nan, inf
            return None
    except ValueError:
        return None
    ways = {"with .0"} if any(text.endswith(".0") for text in texts) else {"with .0", "short"}
    if "e" not in joined and max(map(len, texts)) <= MAX_DIGITS:
        counts = {len(text) - text.index(".") - 1 for text in texts}
        ways |= {f"{count} decimals" for count in counts if len(counts) == 1}
    return ways


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
