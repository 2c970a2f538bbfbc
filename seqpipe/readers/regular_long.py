"""Read long tables in blocks of many rows, where all rows of a slice are plainly alike.

Place in the flow: RawFile -> regular -> [regular_long] -> intake.

Anything else, an error included, is for the strict reader in ``long_tables``, from the first row on.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from seqpipe.readers.blocks import Columns, pack
from seqpipe.readers.numbers import BadNumber, parse_numbers
from seqpipe.readers.raw import RawFile
from seqpipe.readers.regular import DELIMITERS, Cells, cells_of, header_of, whole_lines
from seqpipe.records import ColumnChoice


@dataclass(frozen=True)
class _Records:
    """The rows of n ids, one id below the other.

    Attributes:
        texts: n texts of each column that holds one an id, the id's own among them.
        lengths: (n,) int64 rows of each id.
        values: (M, C) float64.
        times: (M,) float64; None without a time column.
    """

    texts: dict[str, list[bytes]]
    lengths: np.ndarray
    values: np.ndarray
    times: np.ndarray | None

    def __len__(self) -> int:
        return len(self.lengths)

    def part(self, first: int, last: int) -> _Records:
        """Return the ids ``first`` to ``last``."""
        start, stop = int(self.lengths[:first].sum()), int(self.lengths[:last].sum())
        return _Records({name: texts[first:last] for name, texts in self.texts.items()}, self.lengths[first:last],
                        self.values[start:stop], None if self.times is None else self.times[start:stop])


def read_regular_long(raw: RawFile, format: str, columns: ColumnChoice) -> Iterator[Columns | None]:
    """Yield the records of a slice, many at a time; None, as the last, where it is not regular.

    Args:
        raw: the open file, of which nothing was read yet, in an encoding that has ASCII in it.
        format: csv or tsv.
        columns: which columns hold what.

    Raises:
        RawFormatError: the columns are not those wanted; its line is not told.
    """
    names: list[str] = []
    id_name: str | None = None
    begun: list[_Records] = []  # the last id, whose rows may go on in the next block, in pieces
    for data in whole_lines(raw):
        if data is None:
            yield None
            return
        if not names:
            head, data = data[: data.index(b"\n")], data[data.index(b"\n") + 1 :]
            names = header_of(head, DELIMITERS[format])
            id_name = columns.find_long(names, raw.error) if names else None
        cells = cells_of(data, DELIMITERS[format], len(names)) if data and names else None
        found = None if cells is None else _group(dict(zip(names, cells, strict=True)), id_name, columns, raw,
                                                  is_plain=data.isascii() and b"_" not in data)
        if found is not None and begun and (id_name is None or begun[0].texts[id_name] == found.texts[id_name][:1]):
            begun.append(found.part(0, 1))
            found = found.part(1, len(found)) if _go_on(*begun[-2:]) else None
        if found is None and (data or not names):
            yield None
            return
        if found:
            for whole in (begun, [found.part(0, len(found) - 1)]):
                if whole and whole[0]:
                    yield _columns(whole, id_name)
            begun = [found.part(len(found) - 1, len(found))]
    if begun:
        yield _columns(begun, id_name)


def _group(cells: dict[str, Cells], id_name: str | None, columns: ColumnChoice, raw: RawFile, *,
           is_plain: bool) -> _Records | None:
    """Return the rows of a block by id; None where they break a rule of long tables."""
    def numbers(name: str, missing: bool) -> np.ndarray:
        return parse_numbers(cells.pop(name), missing=missing, counts=raw.counts, is_plain=is_plain)

    try:
        values = np.stack([numbers(name, columns.missing) for name in columns.values], axis=1)
        times = None if columns.time is None else numbers(columns.time, False)
    except BadNumber:
        return None
    is_first = np.ones(len(values), bool)
    is_first[1:] = False if id_name is None else _changes(cells[id_name])
    if any((_changes(column) & ~is_first[1:]).any() for column in cells.values()):
        return None
    if times is not None and ((times[1:] < times[:-1]) & ~is_first[1:]).any():
        return None
    firsts = np.flatnonzero(is_first)
    texts = {name: [_as_bytes(column[i]) for i in firsts.tolist()] for name, column in cells.items()}
    if id_name is not None and b"" in texts[id_name]:
        return None
    return _Records(texts, np.diff(firsts, append=len(values)), values, times)


def _go_on(before: _Records, after: _Records) -> bool:
    """Say whether the rows of one id go on as they must: in time, and with the same texts."""
    in_time = before.times is None or after.times is None or before.times[-1] <= after.times[0]
    return in_time and before.texts == after.texts


def _changes(column: Cells) -> np.ndarray:
    """Return (n - 1,) bool: whether a cell differs from the one above it."""
    return np.fromiter(map(operator.ne, islice(column, 1, None), column), bool, len(column) - 1)


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _columns(records: Sequence[_Records], id_name: str | None) -> Columns:
    """Return records as columns; those of several pieces are one record."""
    first = records[0]
    texts = {name: pack(column) for name, column in first.texts.items()}
    ids = None if id_name is None else texts.pop(id_name)
    lengths = first.lengths if len(records) == 1 else np.array([sum(len(piece.values) for piece in records)])
    times = [piece.times for piece in records if piece.times is not None]
    return Columns(ids, texts, np.concatenate([piece.values for piece in records]), lengths.astype("<u8"),
                   {"time": np.concatenate(times)} if times else {})
