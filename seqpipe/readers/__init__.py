"""Raw file -> records: one iterator for every format.

    compressed       tell gzip, bzip2, xz and zstd by content, and decompress them
    raw              RawFile: open, decode, count lines, name the place of an error
    fastx            FASTA, FASTQ
    blocks           the same, many records at a time
    tables           CSV, TSV; the table of --labels
    regular          CSV, TSV, many rows at a time
    long_tables      CSV, TSV with one row a time step
    regular_long     the same, many rows at a time
    numbers          texts to numbers, and what may be missing among them
    jsonl            JSON Lines
    alike            cut lines of JSON that differ in their values alone
    regular_objects  JSON Lines, many objects at a time
    text             one sequence a line
    hdf5             HDF5 files of other makers
    ts               the .ts format of the UEA and UCR time series archives

Every reader is strict and streams: it yields a record as soon as it is read, keeps nothing
behind it, and raises RawFormatError where a line breaks the format.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from seqpipe.errors import OptionError, RawFormatError
from seqpipe.layout import SIGNATURE
from seqpipe.readers.compressed import SUFFIXES
from seqpipe.readers.fastx import read_fasta, read_fastq
from seqpipe.readers.jsonl import read_jsonl
from seqpipe.readers.long_tables import read_long_table
from seqpipe.readers.raw import RawFile
from seqpipe.readers.tables import read_table
from seqpipe.readers.text import read_text
from seqpipe.readers.ts import HEADER_TAGS, read_ts
from seqpipe.records import ColumnChoice, Record

FORMATS = ("fasta", "fastq", "csv", "tsv", "jsonl", "text", "ts", "h5")

_BY_SUFFIX = {
    ".fa": "fasta", ".fasta": "fasta", ".fna": "fasta", ".ffn": "fasta", ".faa": "fasta",
    ".fq": "fastq", ".fastq": "fastq", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text", ".ts": "ts",
}
# What the first lines of a format look like; line ends are LF by then.
_BY_CONTENT = {
    "fasta": re.compile(r"(;[^\n]*\n|[ \t]*\n)*>"),
    "fastq": re.compile(r"([ \t]*\n)*@[^\n]+\n([^+@\n][^\n]*\n|\n)*\+"),
    "jsonl": re.compile(r'\s*\{\s*"'),
    "ts": re.compile(rf"(#[^\n]*\n|[ \t]*\n)*({'|'.join(HEADER_TAGS)})\b", re.IGNORECASE),
}


def detect_format(raw: RawFile) -> str:
    """Return one of ``FORMATS``: what the first 64 KiB show, else what the name says.

    Raises:
        RawFormatError: neither tells.
    """
    if raw.head().startswith(SIGNATURE):
        return "h5"
    text = raw.head().decode(raw.encoding, "replace").removeprefix("\ufeff")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for name, pattern in _BY_CONTENT.items():
        if pattern.match(text):
            return name
    suffixes = [suffix.lower() for suffix in raw.path.suffixes[-2:]]
    if suffixes and suffixes[-1] in SUFFIXES:
        suffixes.pop()
    if suffixes and suffixes[-1] in _BY_SUFFIX:
        return _BY_SUFFIX[suffixes[-1]]
    if not text:
        raise raw.error("no record: the file is empty")
    raise raw.error(
        f"neither the first lines nor the name tell the format, one of {', '.join(FORMATS)}; name "
        "it with --format"
    )


def read_records(raw: RawFile, format: str, columns: ColumnChoice, *, may_be_empty: bool = False) -> Iterator[Record]:
    """Yield the records of a file in its order.

    Args:
        raw: the open file, of which no line was read yet.
        format: one of ``FORMATS``.
        columns: which columns or keys hold the id and the sequence; tables and JSON Lines
            only, the other formats have their own places for both.
        may_be_empty: no record at all is no error, as in a slice of a file.

    Raises:
        RawFormatError: a line breaks the format, or there is no record at all.
        OptionError: ``format`` is unknown.
    """
    delimiter = {"csv": ",", "tsv": "\t"}.get(format)
    if format == "fasta":
        records = read_fasta(raw)
    elif format == "fastq":
        records = read_fastq(raw, keep_quality=columns.quality)
    elif delimiter and columns.values:
        records = read_long_table(raw, columns, delimiter)
    elif delimiter:
        records = read_table(raw, columns, delimiter)
    elif format == "jsonl":
        records = read_jsonl(raw, columns)
    elif format == "text":
        records = read_text(raw)
    elif format == "ts":
        records = read_ts(raw, missing=columns.missing)
    elif format == "h5":
        from seqpipe.readers.hdf5 import read_hdf5  # every worker of an import would load h5py

        records = read_hdf5(raw, columns)
    else:
        raise OptionError(f"--format {format!r} is unknown; take one of {', '.join(FORMATS)}")
    first = next(records, None)
    if first is None:
        if may_be_empty:
            return
        raise no_record(raw, format)
    yield first
    yield from records


def no_record(raw: RawFile, format: str) -> RawFormatError:
    """Return the error of a file that was read to its end without a record."""
    found = f"its {raw.line} lines hold none" if raw.line else "the file is empty"
    return raw.error(f"no record: {found}; expected at least one record in format {format}")


def name_record(record: Record, number: int) -> str:
    """Return the record's id, or STEM:n for the ``number``-th record (from 1) of a file without ids.

    Raises:
        RawFormatError: the id is empty or holds NUL.
    """
    if record.id is None:
        return f"{record_stem(record.path)}:{number}"
    if not record.id or "\0" in record.id:
        raise record.error(f"the id is {record.id!r}; expected text without NUL; correct it")
    return record.id


def record_stem(path: Path) -> str:
    """Return the STEM of the ids STEM:n of a file without ids."""
    return file_text((path.with_suffix("") if path.suffix.lower() in SUFFIXES else path).stem)


def file_text(name: str) -> str:
    """Return a file name as text that UTF-8 can hold: file systems allow other bytes too."""
    return os.fsencode(name).decode("utf-8", "replace")
