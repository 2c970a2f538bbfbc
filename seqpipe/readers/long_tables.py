"""Read long tables: one row a time step, the rows of one id one below the other.

    id,t,v1,v2,label
    a,0,1.5,2,up
    a,1,1.75,2,up
    b,0,3,4,down

Place in the flow: RawFile -> tables -> [long_tables] -> Record. Memory holds ``ROWS`` rows as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice

import numpy as np

from seqpipe.errors import RawFormatError
from seqpipe.readers.numbers import BadNumber, parse_numbers
from seqpipe.readers.raw import RawFile, brief
from seqpipe.readers.tables import empty_id, read_rows
from seqpipe.records import ColumnChoice, Record

ROWS = 4096  # parsed at a time


def read_long_table(raw: RawFile, columns: ColumnChoice, delimiter: str) -> Iterator[Record]:
    """Yield one record per id: (T, C) features, the track ``time`` where there is a column of it.

    The columns that are neither id, time nor value hold one text per id. A table without an id
    column is one record.

    Raises:
        RawFormatError: as ``read_table``; a number that is missing or none, a time that
            decreases, another column that changes within an id.
    """
    rows = read_rows(raw, delimiter)
    header_line, names = next(rows, (0, []))
    if not names:
        return
    id_name = columns.find_long(names, lambda message: raw.error(message, header_line))
    at = None if id_name is None else names.index(id_name)
    used = {id_name, columns.time, *columns.values}
    others = [(i, name) for i, name in enumerate(names) if name not in used]
    for record_id, group in groupby(rows, key=lambda row: None if at is None else row[1][at]):
        record: Record | None = None
        values: list[np.ndarray] = []
        times: list[np.ndarray] = []
        while chunk := list(islice(group, ROWS)):
            lines, cells = zip(*chunk, strict=True)
            if record is None:
                if record_id == "":
                    raise empty_id(raw, lines[0], id_name)
                record = Record(record_id, "", {name: cells[0][i] for i, name in others}, raw.path, lines[0], lines[0])
            by_column = list(zip(*cells, strict=True))
            for i, name in others:
                if by_column[i].count(record.columns[name]) != len(lines):
                    raise _changed(record, name, lines, by_column[i])
            values.append(np.stack([
                _numbers(raw, record, name, lines, by_column[names.index(name)], columns.missing)
                for name in columns.values], axis=1))
            if columns.time is not None:
                time = _numbers(raw, record, columns.time, lines, by_column[names.index(columns.time)], False)
                _check_order(record, columns.time, lines, time, times[-1][-1] if times else time[0])
                times.append(time)
        assert record is not None, "groupby yields no empty group"
        record.sequence = np.concatenate(values)
        if times:
            record.tracks["time"] = np.concatenate(times)
        yield record


def _numbers(
    raw: RawFile, record: Record, name: str, lines: tuple[int, ...], texts: tuple[str, ...], missing: bool
) -> np.ndarray:
    try:
        return parse_numbers(texts, missing=missing, counts=raw.counts)
    except BadNumber as error:
        raise record.error(f"column {name!r}: {error}", line=lines[error.position]) from None


def _check_order(record: Record, name: str, lines: tuple[int, ...], time: np.ndarray, before: float) -> None:
    previous = np.concatenate([[before], time[:-1]])
    back = np.flatnonzero(time < previous)
    if len(back):
        k = int(back[0])
        raise record.error(f"column {name!r}: the time {time[k]} comes after {previous[k]}; expected times that do "
                           "not decrease within an id: sort the rows", line=lines[k])


def _changed(record: Record, name: str, lines: tuple[int, ...], texts: tuple[str, ...]) -> RawFormatError:
    first = record.columns[name]
    k = next(k for k, text in enumerate(texts) if text != first)
    whose = "one record (the table has no id column)" if record.id is None else "one id"
    return record.error(
        f"column {name!r} is {brief(texts[k])}, and {brief(first)} in line {record.line}; expected one text for all "
        f"rows of {whose}: correct it, take the column out, or name it with --value-columns if it is a feature, with "
        "--id-column if it is the id", line=lines[k])
