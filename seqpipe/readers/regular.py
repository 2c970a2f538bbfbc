"""Read CSV and TSV in blocks of many rows, where all rows of a slice are plainly alike.

Place in the flow: RawFile -> [regular] -> intake.

A table is regular where every line is a row of as many cells as the first one. Anything else, an error
included, is for the strict reader in ``tables``, from the first row on.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence

import numpy as np

from seqpipe.readers.blocks import BLOCK_BYTES, LONGEST, Columns, Texts, pack
from seqpipe.readers.compressed import DAMAGE
from seqpipe.readers.raw import RawFile
from seqpipe.records import ColumnChoice

Cells = Sequence[bytes] | Sequence[str]  # those of a column
DELIMITERS = {"csv": ",", "tsv": "\t"}
_NEWLINE = ord("\n")


def read_regular(raw: RawFile, format: str, columns: ColumnChoice) -> Iterator[Columns | None]:
    """Yield the rows of a slice, many at a time; None, as the last, where they are not regular.

    Args:
        raw: the open file, of which nothing was read yet, in an encoding that has ASCII in it.
        format: csv or tsv.
        columns: which columns hold what.

    Raises:
        RawFormatError: the columns are not those wanted; its line is not told.
    """
    names: list[str] = []
    for data in whole_lines(raw):
        if data and not names:
            head, data = data[: data.index(b"\n")], data[data.index(b"\n") + 1 :]
            names = header_of(head, DELIMITERS[format])
            found = columns.find(names, raw.error) if names else (None, "")
        cells = cells_of(data, DELIMITERS[format], len(names)) if data and names else None
        taken = None if cells is None else _take(list(map(pack, cells)), names, found)
        if not names or (data != b"" and taken is None):
            yield None
            return
        if taken is not None:
            yield taken


def whole_lines(raw: RawFile) -> Iterator[bytes | None]:
    """Yield UTF-8 text in blocks of whole lines, LF at the end of each; None where that is not at hand."""
    pending, data = b"", b" "
    while data:
        try:
            data = raw.read(BLOCK_BYTES)
            block = pending + data
            end = block.rfind(b"\n") + 1 if data else len(block)
            block, pending = block[:end], block[end:]
            if b"\r" in block:
                block = block.replace(b"\r\n", b"\n")
            if not block.isascii():
                block = block.decode(raw.encoding).encode()
        except (*DAMAGE, UnicodeError):
            yield None
            return
        if len(pending) > LONGEST or b"\r" in block or b"\0" in block or block.startswith(codecs.BOM_UTF8) or (
                not block.isascii() and b"\n" + codecs.BOM_UTF8 in block):
            yield None
            return
        if block:
            yield block if block.endswith(b"\n") else block + b"\n"


def _take(cells: list[Texts], names: list[str], found: tuple[str | None, str]) -> Columns | None:
    texts = dict(zip(names, cells, strict=True))
    id_name, sequence_name = found
    ids, (letters, lengths) = None if id_name is None else texts.pop(id_name), texts.pop(sequence_name)
    if not lengths.all() or not letters.isascii() or (ids is not None and not ids[1].all()):
        return None
    return Columns(ids, texts, letters, lengths)


def header_of(head: bytes, delimiter: str) -> list[str]:
    """Return the names of the columns of a table; none where they are not plain and all different."""
    try:
        names = next(csv.reader([head.decode()], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []
    return [] if "" in names or len(set(names)) < len(names) else names


def cells_of(data: bytes, delimiter: str, width: int) -> list[Cells] | None:
    """Return the cells of whole rows, column by column; None where a line is no row of ``width`` cells."""
    data = _unquoted(data, delimiter) if b'"' in data else data
    if b'"' in data:
        lines = data.decode().split("\n")[:-1]
        try:
            rows = list(csv.reader(lines, delimiter=delimiter, strict=True))
        except csv.Error:
            return None
        if len(rows) != len(lines) or set(map(len, rows)) != {width}:
            return None  # a cell goes over lines, or a line is blank
        return list(zip(*rows, strict=True))
    mark, array = delimiter.encode(), np.frombuffer(data, np.uint8)
    places = np.flatnonzero((array == ord(delimiter)) | (array == _NEWLINE))
    if len(places) % width or (width == 1 and b"\n\n" in b"\n" + data):
        return None
    is_end = (array[places] == _NEWLINE).reshape(-1, width)
    if not is_end[:, -1].all() or is_end[:, :-1].any():
        return None
    cells = data[:-1].replace(b"\n", mark).split(mark)
    return [cells[k::width] for k in range(width)]


def _unquoted(data: bytes, delimiter: str) -> bytes:
    """Return whole rows without the quotes around cells, or as they are where quotes do anything else."""
    array = np.frombuffer(data, np.uint8)
    is_quote, is_end = array == ord('"'), (array == ord(delimiter)) | (array == _NEWLINE)
    marks = np.flatnonzero(is_quote | is_end)
    quotes = np.flatnonzero(is_quote[marks])
    opening, closing = quotes[:-1:2], quotes[1::2]
    if len(quotes) % 2 or (closing != opening + 1).any():
        return data  # a quote is not closed in its cell
    if not is_end[marks[opening] - 1].all() or not is_end[marks[closing] + 1].all():  # the last byte ends a row
        return data
    return data.translate(None, b'"')
