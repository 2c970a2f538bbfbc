"""Read FASTA and FASTQ.

Place in the flow: RawFile -> [fastx] -> Record.

What both have in common: the id is the first word of the header, the rest of it, as it
stands, is the column ``description`` ("" if there is none). Blanks and tabs at the ends of a
sequence line are dropped; other white space in a sequence is an error. Letters keep their case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from seqpipe.readers.raw import RawFile, brief
from seqpipe.records import Record

_BLANKS = " \t"
_HEADER = re.compile(r".[ \t]*([^ \t]+)[ \t]*(.*)", re.DOTALL)


def read_fasta(raw: RawFile) -> Iterator[Record]:
    """Yield the records of a FASTA file.

    Blank lines are skipped, and so are lines that start with ";", the comments of the
    original format. The lines of a sequence are joined.

    Raises:
        RawFormatError: text before the first ">", a header without an id, white space or
            ">" inside a sequence line.
    """
    record: Record | None = None
    parts: list[str] = []
    for line in raw.lines():
        if parts and line.isalpha():  # nearly every line of a wrapped sequence: nothing to check
            parts.append(line)
            continue
        if line.startswith(">"):
            if record is not None:
                record.sequence, parts = "".join(parts), []  # the lines of a long one take more than it does
                yield record
            record = _start(raw, line)
            continue
        part = line.strip(_BLANKS)
        if not part or line[0] == ";":
            continue
        if record is None:
            raise raw.error(f"found {brief(line)}, expected a FASTA header: '>' and an id")
        if part.split(None, 1) != [part] or ">" in part:
            raise _not_letters(record, raw, part)
        if not parts:
            record.sequence_line = raw.line
        parts.append(part)
    if record is not None:
        record.sequence, parts = "".join(parts), []
        yield record


def read_fastq(raw: RawFile, *, keep_quality: bool = False) -> Iterator[Record]:
    """Yield the records of a FASTQ file.

    A sequence on one line has its quality on one line. A wrapped sequence has a quality of
    as many lines as it takes to reach its length, so a quality line may start with "@" or
    "+". Blank lines may stand between records and inside a sequence. The qualities are
    checked, length and characters; with ``keep_quality`` they are the track ``quality``: Phred
    scores, uint8, the character's number less 33.

    Raises:
        RawFormatError: a record that is cut, has no "+" line, repeats another header behind
            the "+", or whose quality has another length or characters outside "!" to "~".
    """
    lines = raw.lines()
    for line in lines:
        if not line.strip(_BLANKS):
            continue
        if line[0] != "@":
            raise raw.error(
                f"found {brief(line)}, expected a FASTQ header: '@' and an id; if a record above is "
                "wrapped, its quality must be as long as its sequence"
            )
        record = _start(raw, line)
        sequence, num_lines, separator = _read_bases(record, raw, lines)
        record.sequence = sequence
        if separator[1:].strip(_BLANKS) not in ("", line[1:].strip(_BLANKS)):
            raise record.error(
                f"found {brief(separator)}, expected '+' alone or with the same header, "
                f"{brief('+' + line[1:])}; correct one of the two",
                line=raw.line,
            )
        quality = next(lines, "").strip(_BLANKS)
        while num_lines > 1 and len(quality) < len(sequence):
            line = next(lines, "").strip(_BLANKS)
            if not line:
                break
            quality += line
        if len(quality) != len(sequence):
            raise record.error(
                f"the quality has {len(quality)} characters and the sequence {len(sequence)}; they "
                "must be as many: the record is cut or damaged",
                line=raw.line,
            )
        if not (quality.isascii() and quality.isprintable()) or " " in quality:
            at = next(i for i, symbol in enumerate(quality) if not "!" <= symbol <= "~")
            raise record.error(
                f"the quality has {quality[at]!r} at position {at} (0-based), expected characters "
                "from '!' to '~'; correct the record",
                line=raw.line,
            )
        if keep_quality:
            record.tracks["quality"] = np.frombuffer(quality.encode("ascii"), np.uint8) - np.uint8(33)
        yield record


def _read_bases(record: Record, raw: RawFile, lines: Iterator[str]) -> tuple[str, int, str]:
    """Read up to the "+" line; return the sequence, its number of lines, and the "+" line."""
    parts: list[str] = []
    for line in lines:
        if line.startswith("+"):
            return "".join(parts), len(parts), line
        part = line.strip(_BLANKS)
        if not part:
            continue
        if line[0] == "@":
            raise record.error(
                f"found {brief(line)}, expected more of the sequence or the '+' line; the '+' line "
                "of this record is missing",
                line=raw.line,
            )
        if part.split(None, 1) != [part]:
            raise _not_letters(record, raw, part)
        if not parts:
            record.sequence_line = raw.line
        parts.append(part)
    raise record.error(
        "the file ends before the '+' line and the quality of this record; it is cut: get it again",
        line=raw.line,
    )


def _start(raw: RawFile, header: str) -> Record:
    """Return a record with the id and the description of a header line, and no sequence yet."""
    match = _HEADER.match(header)
    if match is None:
        raise raw.error(
            f"found the header {header!r} without an id, expected {header[0]!r} and an id; give "
            "the record one"
        )
    line = raw.line
    return Record(match[1], "", {"description": match[2]}, raw.path, line, line)


def _not_letters(record: Record, raw: RawFile, part: str) -> Exception:
    at, symbol = next((i, s) for i, s in enumerate(part) if s.isspace() or s == ">")
    what = "white space" if symbol.isspace() else "a header mark"
    return record.error(
        f"found {symbol!r}, {what}, inside a line of the sequence, {brief(part[max(0, at - 20):])}; "
        "expected its letters only: take it out, or put what follows on a line of its own",
        line=raw.line,
    )


def line_of_symbol(raw: RawFile, record: Record, position: int, *, comments: bool) -> int:
    """Return the line in which a symbol of a wrapped sequence stands.

    Args:
        raw: the record's file, opened again.
        record: a record of the file.
        position: of the symbol in the sequence, 0-based.
        comments: whether lines that start with ";" are none of the sequence, as in FASTA.
    """
    for line in raw.lines():
        part = line.strip(_BLANKS)
        if raw.line >= record.sequence_line and not (comments and line.startswith(";")):
            if position < len(part):
                break
            position -= len(part)
    return raw.line
