"""Read CSV and TSV tables with a header row, and tables of labels.

Place in the flow: RawFile -> [tables] -> Record; labels file -> [tables] -> ingest.

Cells are quoted with double quotes where needed, in TSV too; a quoted cell may hold line
ends, delimiters and doubled quotes. Every cell is text, byte for byte: nothing is stripped,
and "NA", "null" or "" are ordinary text. Wholly blank lines are skipped
and counted.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from seqpipe.errors import RawFormatError, count_of
from seqpipe.readers.compressed import SUFFIXES
from seqpipe.readers.raw import BLANK, RawFile, brief
from seqpipe.records import ColumnChoice, Record

# The longest cell, in characters. The csv module gathers a cell at 4 bytes a character, so
# this also bounds, at 1 GiB, what one unbalanced quote can take.
MAX_CELL = 1 << 28


def read_table(raw: RawFile, columns: ColumnChoice, delimiter: str) -> Iterator[Record]:
    """Yield one record per row below the header row.

    Args:
        raw: the open file.
        columns: which columns are the id and the sequence; all others go to ``columns``.
        delimiter: "," or a tab.

    Raises:
        RawFormatError: a bad header, a named column that is not there, a row with another
            number of cells than the header, an empty id, broken quotes.
    """
    rows = read_rows(raw, delimiter)
    header_line, names = next(rows, (0, []))
    if not names:
        return
    id_name, sequence_name = columns.find(names, lambda message: raw.error(message, header_line))
    sequence_at, id_at = names.index(sequence_name), -1 if id_name is None else names.index(id_name)
    others = [(name, i) for i, name in enumerate(names) if i not in (sequence_at, id_at)]
    for line, row in rows:
        record_id = None if id_name is None else row[id_at]
        if record_id == "":
            raise empty_id(raw, line, id_name)
        yield Record(record_id, row[sequence_at], {name: row[i] for name, i in others}, raw.path, line, line)


def read_labels(path: Path, encoding: str = "utf-8") -> dict[str, tuple[dict[str, str], int]]:
    """Read a table that is joined to the records by its column "id".

    The name tells the delimiter (.csv, .tsv or .tab, compressed or not); under other names
    it is a tab if the header line has one, else a comma.

    Returns:
        id -> (its other columns, the 1-based line of its row), in the order of the file.

    Raises:
        RawFormatError: as ``read_table``; no column "id", no other column, an id that comes
            twice, no row.
    """
    labels: dict[str, tuple[dict[str, str], int]] = {}
    with RawFile(path, encoding) as raw:
        rows = read_rows(raw, _tell_delimiter(raw))
        header_line, names = next(rows, (0, []))
        if "id" not in names or len(names) < 2:
            raise raw.error(
                f"expected a header row with 'id' and at least one other column, found "
                f"{', '.join(map(repr, names)) or 'none'}; name the column of ids 'id'",
                header_line or None,
            )
        for line, row in rows:
            cells = dict(zip(names, row))
            record_id = cells.pop("id")
            if not record_id:
                raise empty_id(raw, line, "id")
            if record_id in labels:
                raise raw.error(
                    f"id {record_id!r} stands in line {labels[record_id][1]} already; every id must "
                    "have one row: take one of the two out",
                    line,
                )
            labels[record_id] = cells, line
        if not labels:
            raise raw.error("no row below the header; the table of --labels needs one per record")
    return labels


def read_rows(raw: RawFile, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line where the row starts, cells): the checked header row first, then all others."""
    if csv.field_size_limit() < MAX_CELL:
        csv.field_size_limit(MAX_CELL)  # there is one limit for the process
    reader = csv.reader(raw.lines(keep_ends=True), delimiter=delimiter, strict=True)
    names: list[str] = []
    line = 1
    width = 0
    try:
        for row in reader:
            if names:
                if len(row) != width and row:
                    raise raw.error(
                        f"found {count_of(len(row), 'cell')}, {brief(row)}, expected {count_of(len(names), 'column')} "
                        f"as in the header; add or take out cells, or put quotes around a cell that holds "
                        f"{delimiter!r}",
                        line,
                    )
            elif row:
                _check_header(raw, row, line)
                names, width = row, len(row)
            if row:
                yield line, row
            else:
                raw.counts[BLANK] += 1
            line = raw.line + 1
    except csv.Error as error:
        upto = "" if raw.line <= line else f" (read up to line {raw.line})"
        raise raw.error(
            f"the row that starts here{upto} is broken: {error}; check its quotes: a cell "
            "with a quote in front needs one at its end, and quotes inside it doubled",
            line,
        ) from error


def _check_header(raw: RawFile, names: list[str], line: int) -> None:
    found = f"the header is {', '.join(map(repr, names))}"
    if "" in names:
        raise raw.error(
            f"column {names.index('') + 1} (1-based) has an empty name; {found}; name it", line
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise raw.error(
            f"duplicate column {', '.join(map(repr, twice))}; {found}; rename all but one", line
        )


def empty_id(raw: RawFile, line: int, name: str | None) -> RawFormatError:
    """Return the error of a row without an id."""
    return raw.error(
        f"column {name!r} is '', expected an id; fill it in, or take another column with --id-column",
        line,
    )


def _tell_delimiter(raw: RawFile) -> str:
    suffixes = [suffix.lower() for suffix in raw.path.suffixes]
    if suffixes and suffixes[-1] in SUFFIXES:
        suffixes.pop()
    by_name = {".csv": ",", ".tsv": "\t", ".tab": "\t"}.get(suffixes[-1] if suffixes else "")
    if by_name:
        return by_name
    lines = raw.head().decode(raw.encoding, "replace").splitlines()
    return "\t" if lines and "\t" in lines[0] else ","
