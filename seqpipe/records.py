"""One raw entry of any format, and the choices that every reader takes.

Place in the flow: raw file -> readers -> [records] -> encoding -> writer.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from seqpipe.errors import OptionError, RawFormatError

SEQUENCE_NAMES = ("sequence", "seq", "text", "tokens", "values")


@dataclass(slots=True)
class Record:
    """One parsed raw entry.

    Attributes:
        id: the record's own id, never empty; or None where the input has none.
        sequence: text; or (T,) int64 token values as the file has them (not yet shifted past
            the pad id); or (T, C) float64 features, NaN only with ``missing``. May be empty: whether
            that is allowed is not the reader's question.
        columns: every further column as text, byte for byte, the label among them.
        path: the file it was read from.
        line: 1-based line of the decompressed text where the record starts.
        sequence_line: line where the sequence starts.
        tracks: (T,) numbers by name, one per element: ``quality`` uint8, ``time`` float64.
        place: where it stands in a file without lines, such as "/reads[3]"; "" in text.
    """

    id: str | None
    sequence: str | np.ndarray
    columns: dict[str, str]
    path: Path
    line: int
    sequence_line: int = 0
    tracks: dict[str, np.ndarray] = field(default_factory=dict)
    place: str = ""

    def where(self, line: int | None = None) -> str:
        """Return path and line (of this record, or another one of its lines), or place."""
        return f"{self.path}: {self.place}" if self.place else f"{self.path}:{line or self.line}"

    def error(self, message: str, *, line: int | None = None) -> RawFormatError:
        """Return the error that names this record's place and id in front of ``message``."""
        name = "" if self.id is None else f"record {self.id!r}: "
        return RawFormatError(f"{self.where(line)}: {name}{message}", path=self.path, line=line or self.line or None)


def split_names(text: str | None) -> tuple[str, ...]:
    """Return the column names of a list with "," between them; a name that holds one stands in double quotes.

    Raises:
        OptionError: a name with a line end has none.
    """
    try:
        return tuple(next(csv.reader([text]), ())) if text else ()
    except csv.Error as error:
        raise OptionError(f"--value-columns {text!r}: {error}; put double quotes around such a name") from None


@dataclass(frozen=True)
class ColumnChoice:
    """Which column of a table, key of an object or dataset of a file holds what, and what is kept.

    Attributes:
        id: column with the ids; None takes "id" where there is one, else records have no id.
        sequence: column with the sequence; None takes the first of ``SEQUENCE_NAMES`` there is.
        encoding: how text files are decoded.
        time: column of a long table that orders the rows of an id; kept as the track ``time``.
        values: columns of a long table with the features; none for other tables.
        quality: keep the qualities of FASTQ as the track ``quality``.
        missing: take missing and non-finite numbers of features as NaN.
    """

    id: str | None = None
    sequence: str | None = None
    encoding: str = "utf-8"
    time: str | None = None
    values: tuple[str, ...] = ()
    quality: bool = False
    missing: bool = False

    def find(
        self, names: Collection[str], error: Callable[[str], RawFormatError]
    ) -> tuple[str | None, str]:
        """Return the names of the id column (or None) and of the sequence column.

        Args:
            names: the columns there are, in order.
            error: makes the error from a message; it adds the place.

        Raises:
            RawFormatError: a named column is not there, none can be the sequence, or one
                column is named for both.
        """
        there = f"the columns are {', '.join(map(repr, names)) or 'none'}"
        for option, name in (("--id-column", self.id), ("--sequence-column", self.sequence)):
            if name is not None and name not in names:
                raise error(f"there is no column {name!r}; {there}; name one of them with {option}")
        id_name = self.id or ("id" if "id" in names and self.sequence != "id" else None)
        free = (name for name in SEQUENCE_NAMES if name in names and name != id_name)
        sequence_name = self.sequence or next(free, None)
        if sequence_name is None:
            raise error(
                f"no column can be told to be the sequence (one of {', '.join(SEQUENCE_NAMES)}); "
                f"{there}; name the right one with --sequence-column"
            )
        if sequence_name == id_name:
            raise error(
                f"column {id_name!r} is named as id and as sequence; {there}; name two of them "
                "with --id-column and --sequence-column"
            )
        return id_name, sequence_name

    def find_long(self, names: Collection[str], error: Callable[[str], RawFormatError]) -> str | None:
        """Return the name of the id column of a long table, None where the table is one record.

        Args:
            names: the columns there are, in order.
            error: makes the error from a message; it adds the place.

        Raises:
            RawFormatError: a named column is not there, or is named for two things.
        """
        there = f"the columns are {', '.join(map(repr, names)) or 'none'}"
        id_name = self.id or ("id" if "id" in names and "id" not in (self.time, *self.values) else None)
        wanted = [("--id-column", id_name), ("--time-column", self.time),
                  *(("--value-columns", name) for name in self.values)]
        seen: dict[str, str] = {}
        for option, name in wanted:
            if name is None:
                continue
            if name not in names:
                raise error(f"there is no column {name!r}; {there}; name one of them with {option}")
            if name in seen:
                raise error(f"column {name!r} is named twice, with {seen[name]} and with {option}; {there}")
            seen[name] = option
        return id_name
