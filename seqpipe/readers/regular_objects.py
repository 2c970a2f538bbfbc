"""Read JSON Lines in blocks of many objects that have the same keys in the same order.

Place in the flow: RawFile -> alike -> [regular_objects] -> intake.

Of lines that differ in their values alone, ``alike`` cuts the values out: those of a key are read all at once. Other
lines are parsed one by one, as by the strict reader in ``jsonl``, and what follows is done for many of them, key by
key. Where anything is not plain, an error included, the slice is for that reader, from the first line on.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from json.scanner import make_scanner
from typing import Any

import numpy as np

from seqpipe.readers.alike import LIST, ROWS, TEXT, WORD, Values, like_line
from seqpipe.readers.blocks import Columns, Texts, pack
from seqpipe.readers.jsonl import TRACKS, compact, features_of, refuse_constant, unique
from seqpipe.readers.numbers import parse_json_numbers
from seqpipe.readers.raw import RawFile
from seqpipe.readers.regular import whole_lines
from seqpipe.records import ColumnChoice

PIECE = 1 << 17  # bytes of lines that are parsed together: what they hold stays in the processor's cache
# An object comes as a tuple of its pairs: so none is lost where a key comes twice. Nothing else is a tuple.
_STRICT = make_scanner(json.JSONDecoder(  # type: ignore[arg-type]
    object_pairs_hook=tuple, parse_constant=refuse_constant))
_LENIENT = make_scanner(json.JSONDecoder(object_pairs_hook=tuple))  # type: ignore[arg-type]


def read_regular_objects(raw: RawFile, format: str, columns: ColumnChoice) -> Iterator[Columns | None]:
    """Yield the objects of a slice, many at a time; None, as the last, where they are not regular.

    Args:
        raw: the open file, of which nothing was read yet, in an encoding that has ASCII in it.
        format: jsonl.
        columns: which keys hold what.

    Raises:
        RawFormatError: the keys are not those wanted; its line is not told.
    """
    names: list[str] = []
    for data in whole_lines(raw):
        if data and not names:
            head = data[: data.index(b"\n") + 1]
            names, alike = names_of(head), like_line(head)
            found = columns.find(names, raw.error) if names else (None, "")
        if data is None or not names:
            yield None
            return
        if alike is not None and (taken := take_alike(alike.cut(data), found, columns)) is not None:
            yield taken
            continue
        lines = data.decode().split("\n")[:-1]
        step = max(1, len(lines) * PIECE // len(data))
        for first in range(0, len(lines), step):
            try:
                yield take_objects(lines[first : first + step], names, found, columns, raw.counts)
            except (ValueError, TypeError, RecursionError):
                yield None
                return


def names_of(line: bytes) -> list[str]:
    """Return the keys of a line, in order; none where it is no plain object."""
    try:
        pairs = json.loads(line, object_pairs_hook=tuple)
        names = [name for name, _ in pairs]
        "".join(names).encode()
    except (ValueError, TypeError, RecursionError):
        return []
    return names if isinstance(pairs, tuple) and len(set(names)) == len(names) else []


def take_alike(values: Values | None, found: tuple[str | None, str], columns: ColumnChoice) -> Columns | None:
    """Return values that were cut out of lines as columns; None where they are not plain."""
    if values is None:
        return None
    id_name, sequence_name = found
    try:
        elements, lengths = _read_elements(*values.pop(sequence_name), columns)
        ids = None if id_name is None else _read_texts(*values.pop(id_name), is_id=True)
        tracks = {name.removeprefix(TRACKS): _read_track(name, *values.pop(name)[1:], lengths)
                  for name in list(values) if name.startswith(TRACKS) and values[name][0] == LIST}
        return Columns(ids, {name: _read_texts(*cells) for name, cells in values.items()}, elements, lengths, tracks)
    except ValueError:
        return None


def _read_texts(kind: str, values: list[bytes], lengths: np.ndarray, is_id: bool = False) -> Texts:
    if kind == TEXT:
        if is_id and not lengths.all():
            raise ValueError("an id is empty")
        return b"".join(values), lengths
    joined = b",".join(values)
    if kind != WORD or b"" in values or joined.count(b",") >= len(values) or b"[" in joined or b"{" in joined:
        raise ValueError("not one word each")
    words = tuple(json.loads(b"[%b]" % joined, parse_constant=refuse_constant))
    if len(words) != len(values):  # of blanks
        raise ValueError("not one word each")
    return pack(_ids(words) if is_id else _texts(words))


def _read_elements(kind: str, values: list[bytes], lengths: np.ndarray,
                   columns: ColumnChoice) -> tuple[bytes | np.ndarray, np.ndarray]:
    """Return all sequences end to end, and their lengths."""
    width = 0
    if kind == TEXT:
        letters = b"".join(values)
        if columns.values or not letters.isascii() or not lengths.all():
            raise ValueError("a sequence is empty or not plain text")
        return letters, lengths
    if kind == LIST:
        elements, lengths = _read_lists(values, lengths)
        if elements.dtype == np.float64:
            width, elements = 1, elements.reshape(-1, 1)
            if not all(b"." in value or b"e" in value or b"E" in value for value in values):
                raise ValueError("a sequence is of tokens")
    elif kind == ROWS:
        joined = b"[%b]," % b"],[".join(values)
        lengths = _count(joined, b"]", lengths + np.uint64(3))
        dense = _dense(joined)
        array = np.frombuffer(dense, np.uint8)
        commas = np.flatnonzero(array == ord(","))
        is_end = array[commas - 1] == ord("]")  # of a time step
        width = int(np.argmax(is_end)) + 1
        if (len(commas) % width or not (is_end.reshape(-1, width) == (np.arange(width) == width - 1)).all()
                or not (array[commas[width - 1 : -1 : width] + 1] == ord("[")).all()
                or not all(np.count_nonzero(array == ord(bracket)) == len(commas) // width for bracket in "[]")):
            raise ValueError("time steps differ")
        elements = parse_json_numbers(dense[:-1].translate(None, b"[]")).astype(np.float64).reshape(-1, width)
    else:
        raise ValueError("no sequences")
    if columns.values and len(columns.values) != width:
        raise ValueError("other channels than --value-columns names")
    return elements, lengths


def _read_lists(values: list[bytes], lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of lists end to end, and how many each holds."""
    joined = b",".join(values) + b","
    return parse_json_numbers(_dense(joined)[:-1]), _count(joined, b",", lengths + np.uint64(1))


def _dense(text: bytes) -> bytes:
    """Return JSON numbers without the blanks behind each comma; ValueError where there are others."""
    array = np.frombuffer(text, np.uint8)
    if ((array[1:] == ord(" ")) & (array[:-1] != ord(","))).any():
        raise ValueError("blanks at another place")
    return text.translate(None, b" ")


def _count(text: bytes, mark: bytes, lengths: np.ndarray) -> np.ndarray:
    """Return how often a byte stands in each piece of a text."""
    places = np.flatnonzero(np.frombuffer(text, np.uint8) == ord(mark))
    return np.diff(np.searchsorted(places, np.cumsum(lengths)), prepend=0).astype("<u8")


def _read_track(name: str, values: list[bytes], sizes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    numbers, counts = _read_lists(values, sizes)
    is_quality = name == f"{TRACKS}quality"
    if (counts != lengths).any() or is_quality and not (numbers.dtype == np.int64 and 0 <= numbers.min()
                                                        and numbers.max() < 256):
        raise ValueError("not one number per element")
    return numbers.astype(np.uint8 if is_quality else np.float64)


def take_objects(lines: list[str], names: Sequence[str], found: tuple[str | None, str], columns: ColumnChoice,
                 counts: Counter[str]) -> Columns:
    """Return the objects of lines as columns; ValueError or TypeError where they are for the strict reader."""
    values = _parse(lines, names, _LENIENT if columns.missing else _STRICT)
    ids = None if found[0] is None else pack(_ids(values.pop(found[0])))
    sequences = values.pop(found[1])
    lengths = np.fromiter(map(len, sequences), "<u8", len(sequences))
    if not lengths.all():
        raise ValueError("a sequence is empty")
    elements = _elements(sequences, columns, counts)
    tracks = {name.removeprefix(TRACKS): _track(name, values.pop(name), lengths)
              for name in list(values) if name.startswith(TRACKS) and list in set(map(type, values[name]))}
    return Columns(ids, {name: pack(_texts(cells)) for name, cells in values.items()}, elements, lengths, tracks)


def _parse(lines: list[str], names: Sequence[str], scan: Any) -> dict[str, tuple[Any, ...]]:
    """Return the values of all lines by key; ValueError where a line is no object with just these keys."""
    scanned = list(map(scan, lines, repeat(0)))  # it ends early where a line holds no value
    objects, ends = zip(*scanned, strict=True)
    if ends != tuple(map(len, lines)) or set(map(type, objects)) != {tuple}:
        raise ValueError("not one object a line")
    by_key = {}
    for name, pairs in zip(names, zip(*objects, strict=True), strict=True):
        keys, by_key[name] = zip(*pairs, strict=True)
        if keys.count(name) != len(keys):
            raise ValueError("other keys")
    return by_key


def _ids(values: tuple[Any, ...]) -> Sequence[str]:
    types = set(map(type, values))
    if not types <= {str, int} or "" in values:
        raise ValueError("an id is neither text nor an integer")
    if str in types and any("\0" in str(value) for value in values):
        raise ValueError("NUL in an id")
    return values if types == {str} else list(map(str, values))


def _texts(values: tuple[Any, ...]) -> Sequence[str]:
    """Return values as the strict reader has them as text."""
    types = set(map(type, values))
    if types == {str}:
        return values
    if types == {int}:
        return list(map(int.__repr__, values))
    if types == {float} and all(map(math.isfinite, values)):
        return list(map(float.__repr__, values))
    return [value if isinstance(value, str) else compact(_plain(value)) for value in values]


def _plain(value: Any) -> Any:
    """Return a value with its objects as such."""
    if isinstance(value, tuple):
        return unique([(name, _plain(item)) for name, item in value])
    return list(map(_plain, value)) if isinstance(value, list) else value


def _elements(sequences: tuple[Any, ...], columns: ColumnChoice, counts: Counter[str]) -> bytes | np.ndarray:
    """Return all sequences end to end; ValueError where they are of more than one kind, or of none."""
    types = set(map(type, sequences))
    if types == {str} and not columns.values and (letters := "".join(sequences)).isascii():
        return letters.encode()
    if types != {list}:
        raise ValueError("neither text nor lists")
    flat = list(chain.from_iterable(sequences))
    if type(flat[0]) is list:
        width = len(flat[0])
        if set(map(type, flat)) != {list} or set(map(len, flat)) != {width} or not width:
            raise ValueError("time steps differ")
        flat = list(chain.from_iterable(flat))
    else:
        width = 0
        if set(map(type, flat)) == {int} and not columns.values:
            try:
                return np.frombuffer(array("q", flat), np.int64)
            except OverflowError as error:
                raise ValueError("out of range") from error
        if any(set(map(type, sequence)) == {int} for sequence in sequences):
            raise ValueError("a sequence is of tokens")
    if columns.values and len(columns.values) != width:
        raise ValueError("other channels than --value-columns names")
    return features_of(flat, columns.missing, counts).reshape(-1, width or 1)


def _track(name: str, values: tuple[Any, ...], lengths: np.ndarray) -> np.ndarray:
    if set(map(type, values)) != {list} or (np.fromiter(map(len, values), "<u8", len(values)) != lengths).any():
        raise ValueError("not one number per element")
    flat = list(chain.from_iterable(values))
    if name != f"{TRACKS}quality":
        return features_of(flat, False, Counter())
    if set(map(type, flat)) != {int}:
        raise ValueError("no whole numbers")
    return np.frombuffer(bytes(flat), np.uint8)
