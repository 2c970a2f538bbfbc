"""Cut lines of JSON that differ in their values alone, without parsing them.

Place in the flow: RawFile -> [alike] -> regular_objects.

What stands between the values is in every line what it is in the first one, to the byte: so the keys of the first
line, checked, are those of all. Values are strings without an escape, words (numbers, true, null), lists of numbers,
and lists of such lists.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqpipe.readers.blocks import cut_ranges

TEXT, WORD, LIST, ROWS = "text", "word", "list", "rows"
# By key: the kind, the values without outer quotes or brackets, and their lengths.
Values = dict[str, tuple[str, list[bytes], np.ndarray]]
_NEWLINE, _QUOTE = b'\n"'
_BEFORE = {WORD: re.compile(rb"\s*:\s*"), LIST: re.compile(rb"\s*:\s*\["), ROWS: re.compile(rb"\s*:\s*\[\[")}
_BEHIND = {WORD: re.compile(rb"\s*[,}]\s*\Z"),
           LIST: re.compile(rb"\]\s*[,}]\s*\Z"), ROWS: re.compile(rb"\]\]\s*[,}]\s*\Z")}


@dataclass(frozen=True)
class Alike:
    """What cuts lines that are like the first one.

    Attributes:
        kinds: of the values, by key.
        between: what stands before, between and behind the values of a line.
        bounds: where each of these starts and ends: a mark of the line, and how many bytes from there. The marks
            are the start of the line, its quotes and its end.
    """

    kinds: dict[str, str]
    between: list[bytes]
    bounds: list[tuple[int, int]]

    def cut(self, data: bytes) -> Values | None:
        """Return the values of whole lines; None where they are not all alike."""
        array = np.frombuffer(data, np.uint8)
        places = np.flatnonzero((array == _QUOTE) | (array == _NEWLINE))
        width = self.bounds[-1][0]
        if len(places) % width or b"\\" in data:
            return None
        marks = places.reshape(-1, width).T
        if not (array[marks[-1]] == _NEWLINE).all() or np.count_nonzero(array < 32) != marks.shape[1]:
            return None  # but for one line end a row
        marks = np.concatenate([[[0, *(marks[-1, :-1] + 1)]], marks])
        places_of = [marks[mark] + offset for mark, offset in self.bounds]
        for text, first, end in zip(self.between, places_of[::2], places_of[1::2], strict=True):
            if (end - first != len(text)).any() or first.min() < 0 or end.max() > len(data):
                return None
            pieces = np.ndarray((len(data) - len(text) + 1,), f"V{len(text)}", data, strides=(1,))  # at every byte
            if pieces[first].tobytes() != text * len(first):
                return None
        values = {}
        for (name, kind), first, end in zip(self.kinds.items(), places_of[1:-1:2], places_of[2:-1:2], strict=True):
            if (end < first).any():
                return None
            values[name] = kind, cut_ranges(data, first, end), (end - first).astype("<u8")
        return values


def like_line(line: bytes) -> Alike | None:
    """Return what cuts lines that are like this one; None where it is no object of values that can be told."""
    try:
        pairs = json.loads(line, object_pairs_hook=tuple)
        kinds = {name: _kind(value) for name, value in pairs}
    except (ValueError, TypeError, RecursionError):
        return None
    array = np.frombuffer(line, np.uint8)
    marks = [0, *np.flatnonzero((array == _QUOTE) | (array == _NEWLINE)).tolist()]
    num_quotes = sum(4 if kind == TEXT else 2 for kind in kinds.values())
    if not kinds or len(kinds) < len(pairs) or "" in kinds.values() or len(marks) != num_quotes + 2 or b"\\" in line:
        return None
    bounds, key = [(0, 0)], 1  # the first quote of the key
    for kind in kinds.values():
        if kind == TEXT:
            bounds += [(key + 2, 1), (key + 3, 0)]
            key += 4
            continue
        gap = line[marks[key + 1] + 1 : marks[key + 2]]
        before, behind = _BEFORE[kind].match(gap), _BEHIND[kind].search(gap)
        if before is None or behind is None:
            return None
        bounds += [(key + 1, 1 + before.end()), (key + 2, behind.start() - len(gap))]
        key += 2
    bounds.append((key, 1))
    places = [marks[mark] + offset for mark, offset in bounds]
    return Alike(kinds, [line[a:b] for a, b in zip(places[::2], places[1::2], strict=True)], bounds)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return TEXT
    if isinstance(value, list):
        return ROWS if value and all(isinstance(item, list) for item in value) else LIST
    return "" if isinstance(value, tuple) else WORD
