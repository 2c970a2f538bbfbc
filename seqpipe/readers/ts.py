"""Read the .ts format of the UEA and UCR time series archives.

Place in the flow: RawFile -> [ts] -> Record.

    @problemName Toy
    @timeStamps false
    @univariate false
    @dimensions 2
    @equalLength false
    @classLabel true up down
    @data
    1,2,3:4,5,6:up

One line is one record: its channels with ":" between them, in each the values of its time
steps with "," between them, and last its label. What the header declares is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seqpipe.errors import count_of
from seqpipe.readers.numbers import BadNumber, parse_numbers
from seqpipe.readers.raw import BLANK, RawFile, brief
from seqpipe.records import Record

HEADER_TAGS = (
    "@problemname", "@timestamps", "@missing", "@univariate", "@dimension", "@dimensions",
    "@equallength", "@serieslength", "@classlabel", "@targetlabel",
)
_NUMBERS = re.compile(r"[-+0-9.eE, \t]*")


@dataclass
class _Header:
    """What the header declares; None where it says nothing."""

    num_channels: int | None = None
    equal_length: bool = False
    length: int | None = None
    label: str | None = None  # "", "class" or "target"; None: not said
    classes: frozenset[str] = frozenset()


def read_ts(raw: RawFile, *, missing: bool = False) -> Iterator[Record]:
    """Yield one record per data line: (T, C) float64, no id, the label in column "label".

    Args:
        raw: the open file.
        missing: take "?" and other values that are missing or not finite as NaN.

    Raises:
        RawFormatError: a header that is incomplete or declares time stamps, a value that is
            missing or no finite number, channels of unequal length in a line, another number
            of channels or another label than declared.
    """
    lines = raw.lines()
    header = _read_header(raw, lines)
    for line in lines:
        line = line.strip()
        if not line or line[0] == "#":
            raw.counts[BLANK] += not line
            continue
        parts = line.split(":")
        columns = {"label": _label(raw, header, parts.pop().strip())} if header.label else {}
        if header.num_channels is None:
            header.num_channels = len(parts)
        if len(parts) != header.num_channels or not parts:
            raise raw.error(
                f"found {count_of(len(parts), 'channel')}{' and a label' if header.label else ''}, expected "
                f"{header.num_channels or 'at least 1'}; correct the line or the header"
            )
        channels = [_numbers(raw, number, part, missing) for number, part in enumerate(parts)]
        lengths = {len(channel) for channel in channels}
        if len(lengths) > 1:
            raise raw.error(
                f"the channels of this line have unequal lengths, {sorted(lengths)}; all channels "
                "of a record need the same time steps"
            )
        if header.equal_length:
            header.length = header.length or len(channels[0])
            if len(channels[0]) != header.length:
                raise raw.error(
                    f"found {count_of(len(channels[0]), 'time step')}, expected {header.length} as '@equalLength "
                    "true' says; correct the line or the header"
                )
        yield Record(None, np.stack(channels, axis=1), columns, raw.path, raw.line, raw.line)


def _read_header(raw: RawFile, lines: Iterator[str]) -> _Header:
    """Read up to and with the line "@data"."""
    header = _Header()
    for line in lines:
        words = line.split()
        if not words or words[0][0] == "#":
            continue
        tag, values = words[0].lower(), words[1:]
        if tag == "@data":
            if header.label is None:
                raise raw.error(
                    "no @classLabel line in front of @data; add '@classLabel true' and the classes, "
                    "'@targetLabel true' if the label is a number, or '@classLabel false'"
                )
            return header
        if tag not in HEADER_TAGS:
            raise raw.error(
                f"found {brief(line)} in the header, expected @data or one of {', '.join(HEADER_TAGS)}"
            )
        _take_tag(raw, header, tag, values)
    raise raw.error("the file has no @data line; it is cut, empty, or not in the .ts format")


def _take_tag(raw: RawFile, header: _Header, tag: str, values: list[str]) -> None:
    """Put one header line into ``header``."""
    if tag in ("@problemname", "@missing"):  # values that are missing are told where they are
        return
    if tag in ("@dimension", "@dimensions", "@serieslength"):
        if len(values) != 1 or not values[0].isdecimal() or int(values[0]) < 1:
            raise raw.error(f"{tag} is {brief(' '.join(values))}, expected a count of at least 1")
        if tag == "@serieslength":
            header.length = int(values[0])
        else:
            header.num_channels = int(values[0])
        return
    if not values or values[0].lower() not in ("true", "false"):
        raise raw.error(f"{tag} is {brief(' '.join(values))}, expected true or false")
    true = values[0].lower() == "true"
    if tag == "@timestamps" and true:
        raise raw.error(
            "@timeStamps true: series with time stamps are not read; write the values alone, one "
            "per time step, and '@timeStamps false'"
        )
    if tag == "@univariate" and true:
        header.num_channels = 1
    if tag == "@equallength":
        header.equal_length = true
    if tag in ("@classlabel", "@targetlabel"):
        if tag == "@classlabel" and true and not values[1:]:
            raise raw.error("@classLabel true names no class; list the classes behind it")
        kind = "class" if tag == "@classlabel" else "target"
        header.label = kind if true else header.label or ""
        header.classes = frozenset(values[1:]) or header.classes


def _label(raw: RawFile, header: _Header, label: str) -> str:
    if header.label == "class" and label not in header.classes:
        raise raw.error(
            f"label {brief(label)} is not one of the declared classes, "
            f"{', '.join(sorted(header.classes))}; correct the line or the @classLabel line"
        )
    if header.label == "target" and not (_is_number(label) and np.isfinite(float(label))):
        raise raw.error(f"target label {brief(label)}, expected a finite number; correct it")
    return label


def _numbers(raw: RawFile, channel: int, text: str, missing: bool) -> np.ndarray:
    """Return the numbers of one channel."""
    try:
        return parse_numbers(text.split(","), missing=missing, counts=raw.counts)
    except BadNumber as error:
        raise raw.error(f"channel {channel}, time step {error.position} (both 0-based): {error}") from None


def _is_number(text: str) -> bool:
    """Return whether text is a plain decimal number: float() alone takes "nan" and "1_0" too."""
    try:
        float(text)
    except ValueError:
        return False
    return _NUMBERS.fullmatch(text) is not None
