"""Read JSON Lines: one JSON object a line.

Place in the flow: RawFile -> [jsonl] -> Record.

The sequence is a string (text), a list of integers (tokens), a list of numbers with a
non-integer among them (features of one channel), or a list of equally long lists of numbers
(features, one inner list a time step). All sequences of a file are of one of these kinds.

A list under a key such as "tracks/time" is a track, one number per element: kept as float64, or as
uint8 under "tracks/quality".

The other values become text: strings as they are, null as the empty text (so that a null label
is a missing one), everything else as compact JSON: 3 is "3", 1.50 is "1.5", [1, "a"] is '[1,"a"]'.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from math import nan
from types import NoneType
from typing import Any, NoReturn

import numpy as np

from seqpipe.errors import count_of
from seqpipe.readers.numbers import COUNTED
from seqpipe.readers.raw import BLANK, RawFile, brief
from seqpipe.records import ColumnChoice, Record

TRACKS = "tracks/"  # what the key of a track starts with


def read_jsonl(raw: RawFile, columns: ColumnChoice) -> Iterator[Record]:
    """Yield one record per line; blank lines are skipped.

    Raises:
        RawFormatError: a line that is no JSON object, a key that comes twice, other keys
            than in the first object, a named key that is not there, an id that is not text
            or an integer, a sequence of another kind than the first one or of none.
    """
    first: dict[str, Any] = {}
    kind, kind_line = "", 0
    id_name, sequence_name = None, ""
    decoder = _LENIENT if columns.missing else _STRICT
    for line in raw.lines():
        if not line or line.isspace():
            raw.counts[BLANK] += 1
            continue
        values = _parse(raw, line, decoder)
        if not first:
            first = dict.fromkeys(values)
            id_name, sequence_name = columns.find(values, raw.error)
        elif values.keys() != first.keys():
            raise _other_keys(raw, first, values)
        sequence = values.pop(sequence_name)
        record_id = None if id_name is None else _id_text(raw, id_name, values.pop(id_name))
        record = Record(record_id, "", {}, raw.path, raw.line, raw.line)
        try:
            name = sequence_name
            record.sequence = _sequence(sequence, columns.missing, raw.counts)
            _check_channels(record.sequence, columns.values)
            for name, value in values.items():
                if name.startswith(TRACKS) and isinstance(value, list):
                    record.tracks[name.removeprefix(TRACKS)] = _track(name, value)
                else:
                    record.columns[name] = value if isinstance(value, str) else compact(value)
        except ValueError as error:
            raise record.error(f"key {name!r}: {error}; correct the value") from error
        if found := _kind(record.sequence):
            if kind and found != kind:
                raise record.error(
                    f"key {sequence_name!r} holds {found}, and line {kind_line} holds {kind}; all "
                    "sequences must be of one kind: write numbers of features with a decimal point"
                )
            kind, kind_line = found, kind_line or raw.line
        yield record


def _parse(raw: RawFile, line: str, decoder: json.JSONDecoder) -> dict[str, Any]:
    """Return the object that a line holds; every way in which it may be none is an error."""
    try:
        values = decoder.decode(line)
    except json.JSONDecodeError as error:
        raise raw.error(
            f"not valid JSON at column {error.colno}: {error.msg}, near "
            f"{brief(line[max(0, error.pos - 10):])}; expected one whole object a line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise raw.error(f"not JSON that can be kept: {error}; correct the line") from error
    if not isinstance(values, dict):
        raise raw.error(
            f"found a JSON {type(values).__name__}, {brief(line)}, expected an object, "
            '{"id": ..., "sequence": ...}; write one object a line'
        )
    if "\\u" in line:
        try:
            json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise raw.error(
                f"the escape \\u{ord(error.object[error.start]):04x} is half a character (a lone "
                "surrogate); correct the line"
            ) from error
    return values


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} comes twice in one object")
    return values


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; numbers must be finite{_NAN_HINT}")


_NAN_HINT = " (keep missing numbers of features as NaN with --on-missing nan)"
_STRICT = json.JSONDecoder(object_pairs_hook=unique, parse_constant=refuse_constant)
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_LENIENT = json.JSONDecoder(object_pairs_hook=unique)  # takes NaN and Infinity too, which Python writes


def _sequence(value: Any, missing: bool, counts: Counter[str]) -> str | np.ndarray:
    """Return a JSON value as a sequence; ValueError says why it is none."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"found {brief(value)}, expected a string or a list of numbers")
    if not value:
        return np.empty(0, np.int64)
    if not isinstance(value[0], list):
        if set(map(type, value)) != {int}:
            return features_of(value, missing, counts).reshape(-1, 1)
        try:
            return np.frombuffer(array("q", value), np.int64)
        except OverflowError:
            at = next(i for i, item in enumerate(value) if not -(2**63) <= item < 2**63)
            raise ValueError(
                f"integer {brief(value[at])} at position {at} (0-based) is out of the range of "
                "int64, -2**63 <= i < 2**63"
            ) from None
    num_channels = len(value[0])
    if set(map(type, value)) != {list} or set(map(len, value)) != {num_channels} or not num_channels:
        step, row = next((step, row) for step, row in enumerate(value)
                         if not isinstance(row, list) or len(row) != num_channels or not row)
        raise ValueError(f"time step {step} (0-based) is {brief(row)}, expected a list of "
                         f"{count_of(num_channels, 'channel')} as in step 0, at least 1")
    return features_of(list(chain.from_iterable(value)), missing, counts).reshape(-1, num_channels)


def features_of(values: list[Any], missing: bool, counts: Counter[str]) -> np.ndarray:
    """Return numbers as (n,) float64, if all are numbers that it holds unchanged."""
    types = set(map(type, values))
    if not types <= ({int, float, NoneType} if missing else {int, float}):
        at = next(i for i, item in enumerate(values) if type(item) not in (int, float))
        hint = _NAN_HINT if values[at] is None else ""
        raise ValueError(f"found {brief(values[at])} at position {at} (0-based), expected a number{hint}")
    if NoneType in types:
        values = [nan if value is None else value for value in values]
    if int in types and (large := [v for v in values if type(v) is int and not -(2**53) <= v <= 2**53]):
        raise ValueError(f"integer {brief(large[0])} among features is beyond 2**53, so not exact")
    numbers = np.frombuffer(array("d", values), np.float64)
    finite = np.isfinite(numbers)
    if not finite.all():
        at = int(np.argmin(finite))
        if not missing:
            raise ValueError(f"number at position {at} (0-based) is out of the range of float64{_NAN_HINT}")
        counts[COUNTED] += int((~finite).sum())
        return np.where(finite, numbers, nan)
    return numbers


def _check_channels(sequence: str | np.ndarray, names: tuple[str, ...]) -> None:
    """Raise ValueError where ``--value-columns`` names other channels than there are."""
    if names and (isinstance(sequence, str) or len(sequence)) and (
            isinstance(sequence, str) or sequence.ndim != 2 or sequence.shape[1] != len(names)):
        raise ValueError(f"found {_kind(sequence)}, and --value-columns names {count_of(len(names), 'channel')}")


def _track(name: str, values: list[Any]) -> np.ndarray:
    """Return the numbers of a track."""
    if name != TRACKS + "quality":
        return features_of(values, False, Counter())
    if not all(type(value) is int and 0 <= value < 256 for value in values):
        raise ValueError(f"found {brief(values)}, expected whole numbers, 0 <= quality < 256")
    return np.array(values, np.uint8)


def _kind(sequence: str | np.ndarray) -> str:
    """Return the kind of a sequence in words, "" for an empty list, which fits every kind."""
    if isinstance(sequence, str):
        return "text"
    if not len(sequence):
        return ""
    return "integer tokens" if sequence.ndim == 1 else f"features of {count_of(sequence.shape[1], 'channel')}"


def _id_text(raw: RawFile, name: str, value: Any) -> str:
    if (type(value) is not int and not isinstance(value, str)) or value == "":
        raise raw.error(
            f"key {name!r} is {brief(value)}, expected text or an integer as the id; correct it, or "
            "take another key with --id-column"
        )
    return str(value)


def compact(value: Any) -> str:
    """Return a value as compact JSON; a number beyond float64 is a ValueError."""
    return "" if value is None else _COMPACT.encode(value)


def _other_keys(raw: RawFile, first: dict[str, Any], values: dict[str, Any]) -> Exception:
    missing = [name for name in first if name not in values]
    new = [name for name in values if name not in first]
    what = f"key {missing[0]!r} is missing" if missing else f"key {new[0]!r} is new"
    return raw.error(
        f"{what}; every object must have the keys of the first one: {', '.join(map(repr, first))}"
    )
