"""Turn the texts of a target column into one number per element of each sequence, for tagging.

Place in the flow: spooled column texts and lengths -> [targets] -> /tracks/target of the store.

A target is a JSON list, a text with one symbol per element, or words between spaces or commas:
all targets of an import are written the same way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from seqpipe.errors import SeqpipeError, count_of
from seqpipe.labels import choose_label_type, order_classes, parse_number

BLOCK = 1 << 18  # elements encoded at a time
WAYS = {"list": "list item", "symbols": "symbol", "words": "word"}

Texts = Callable[[], Iterable[str]]  # the texts of all records, anew with each call
Error = Callable[[int, str], SeqpipeError]  # makes the error of record i from a finding


class Targets:
    """The targets of all sequences of an import, checked, and encoded when they are written.

    Args:
        texts: one target per record.
        lengths: (N,) elements of each sequence.
        names: the classes in their order; None takes those found, and numbers where one has a fraction.
        error: makes the error of record i from a finding.
        cut: the length at which longer sequences were cut off, their targets to be cut with them.

    Attributes:
        classes: names of the classes; empty for numbers.
        dtype: of the track: uint8 or int32 class numbers, or float64.

    Raises:
        SeqpipeError: a target has not one part per element, is outside the classes, or is no number.
    """

    def __init__(self, texts: Texts, lengths: np.ndarray, names: Sequence[str] | None, error: Error,
                 cut: int | None = None) -> None:
        self._texts, self._lengths, self._error, self._cut = texts, lengths, error, cut
        self._way = self._find_way()
        kind = "class" if names is not None else choose_label_type(self._elements())
        found = dict.fromkeys(self._elements()) if kind == "class" and names is None else names or ()
        self.classes = list(found) if names is not None else order_classes(found)
        self._numbers = {name: number for number, name in enumerate(self.classes)}
        self.dtype = np.dtype("<f8" if not self.classes else "u1" if len(self.classes) <= 256 else "<i4")
        for _ in self.blocks():  # finds what cannot be encoded before anything is written
            pass

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the track, (M,) numbers aligned with the values of all sequences, in pieces."""
        part: list[float] = []
        for i, elements in enumerate(self._parts()):
            part += self._encode(i, elements)
            if len(part) >= BLOCK:
                yield np.array(part, self.dtype)
                part = []
        yield np.array(part, self.dtype)

    def _encode(self, i: int, elements: Sequence[str]) -> list[float]:
        if self.classes:
            try:
                return [self._numbers[name] for name in elements]
            except KeyError as error:
                raise self._error(i, f"target {error.args[0]!r} is none of the {len(self.classes):,} target classes; "
                                     "correct it") from None
        numbers = [math.nan if (number := parse_number(text)) is None else number for text in elements]
        for k, number in enumerate(numbers):
            if not math.isfinite(number):
                raise self._error(i, f"target {elements[k]!r} at position {k} (0-based) is no finite number, as "
                                     "targets with a fraction have to be; correct it")
        return numbers

    def _find_way(self) -> str:
        """Return how all targets are written: as the first that has more than one symbol."""
        for text, length in zip(self._texts(), self._lengths.tolist(), strict=True):
            if len(text) > 1 and not (length == self._cut and len(text) > length):
                return "symbols" if len(text) == length else "words" if _parse_list(text) is None else "list"
        text = next(iter(self._texts()), "")
        return "list" if _parse_list(text) is not None else "words" if set(text) & set(" ,") else "symbols"

    def _elements(self) -> Iterator[str]:
        for elements in self._parts():
            yield from elements

    def _parts(self) -> Iterator[Sequence[str]]:
        """Yield the parts of each target, as many as the sequence has elements."""
        for i, (text, length) in enumerate(zip(self._texts(), self._lengths.tolist(), strict=True)):
            parts: Sequence[str] = text if self._way == "symbols" else text.replace(",", " ").split()
            if self._way == "list":
                items = _parse_list(text)
                if items is None:
                    raise self._error(i, f"target {text[:60]!r} is no JSON list, as others are; correct it")
                parts = items
            if length == self._cut:
                parts = parts[:length]
            if len(parts) != length:
                raise self._error(i, f"the target has {count_of(len(parts), WAYS[self._way])} for the "
                                     f"{count_of(length, 'element')} of the sequence; expected one for each: "
                                     "correct it")
            yield parts


def _parse_list(text: str) -> list[str] | None:
    """Return the items of a JSON list as text; None where the text is none."""
    try:
        items = json.loads(text)
    except ValueError:
        return None
    if not isinstance(items, list):
        return None
    return [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in items]
