"""Read FASTA and FASTQ in blocks of many records, where their lines are regular.

Place in the flow: RawFile -> [blocks] -> intake.

A block of about 1 MB is cut at the start of a record and taken apart with a few calls for all of
it. It is regular where every line is what it looks like: then its columns are those of the strict
readers in ``fastx``. Any other block has no columns; it is read by those readers, so that the outcome
and the messages are theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from seqpipe.readers.compressed import DAMAGE
from seqpipe.readers.raw import RawFile
from seqpipe.records import Record

BLOCK_BYTES = 1 << 20  # fits into a processor's cache
LONGEST = 1 << 26  # bytes of a block; where no record ends in as many, the rest is read line by line
LETTERS = bytes(sorted(set(range(33, 127)) - set(b"@+>;")))  # what a line of a regular sequence may hold
_HEADER = bytes([9, *range(32, 127)])
_NEWLINE, _FASTA, _FASTQ, _PLUS = b"\n>@+"


Texts = tuple[bytes, np.ndarray]  # UTF-8 end to end, and the (n,) lengths in bytes


@dataclass(frozen=True)
class Columns:
    """Many records, column by column.

    Attributes:
        ids: None where the file has none.
        texts: of every further column, by name.
        elements: all sequences end to end. Of text its bytes, with any number of line feeds, which count for
            nothing, and symbols that no sequence may hold; else (M,) integers or (M, C) numbers.
        lengths: (n,) of each sequence.
        tracks: (M,) numbers by name; those that nobody asked for too.
    """

    ids: Texts | None
    texts: dict[str, Texts]
    elements: bytes | bytearray | np.ndarray
    lengths: np.ndarray
    tracks: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Some whole records.

    Attributes:
        columns: of a regular block, else None.
        lines: how many lines it has, where it is regular.
        again: the file with the bytes of the block alone, for the strict reader.
    """

    columns: Columns | None
    lines: int
    again: RawFile


def read_blocks(raw: RawFile, format: str) -> Iterator[Block]:
    """Yield the records of a FASTA or FASTQ file; ``raw.line`` must be set to the last line before the next one.

    Args:
        raw: the open file, of which nothing was read yet, in an encoding that has ASCII in it.
        format: fasta or fastq.
    """
    take_apart = _take_fasta if format == "fasta" else _take_fastq
    pending, start, damage, data = b"", True, None, b" "
    while data or pending:
        pieces = [pending]
        while data and sum(map(len, pieces)) < len(pending) + BLOCK_BYTES:
            try:
                data = raw.read(BLOCK_BYTES)
            except DAMAGE as error:
                damage, data = error, b""
            pieces.append(data)
        pending = b"".join(pieces)
        end = len(pending) if not data else _end_of_records(pending, format)
        if not end and len(pending) < LONGEST:
            continue
        block = pending[:end]
        found = None if damage is not None or not end else take_apart(block)
        if found is None and (format == "fastq" or not end):
            # Where the next record starts, only the strict reader can tell.
            yield Block(None, 0, raw.over(pending, at_start=start, rest=True, damage=damage))
            return
        if found or end:
            columns, lines = found or (None, 0)
            yield Block(columns, lines, raw.over(block, at_start=start, damage=damage))
        pending, start = pending[end:], False
    if damage is not None:
        yield Block(None, 0, raw.over(b"", at_start=start, damage=damage))


def _end_of_records(data: bytes, format: str) -> int:
    """Return how many bytes of ``data`` are whole records, as far as can be told; 0 where none is."""
    if format == "fasta":
        return data.rfind(b"\n>") + 1
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
    return int(ends[len(ends) // 4 * 4 - 1]) + 1 if len(ends) >= 4 else 0


def _lines(data: bytes) -> tuple[bytes, np.ndarray, np.ndarray, np.ndarray]:
    """Return the text with LF alone as line ends, as an array too, and where lines start and end."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    array = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(array == _NEWLINE)
    starts = np.empty_like(ends)
    starts[0] = 0
    np.add(ends[:-1], 1, out=starts[1:])
    return data, array, starts, ends


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the places of many short ranges, end to end."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - ends + lengths, lengths)


def _take_headers(
    array: np.ndarray, starts: np.ndarray, ends: np.ndarray, places: np.ndarray
) -> tuple[Texts, dict[str, Texts]] | None:
    """Return ids and descriptions of the headers, all of whose ``places`` are told; None where one is not plain."""
    text = array[places]
    if (whole := text.tobytes()).translate(None, _HEADER) or (starts == ends).any():
        return None
    lengths = (ends - starts).astype("<u8")
    if b" " not in whole and b"\t" not in whole:
        return (whole, lengths), {"description": (b"", np.zeros_like(lengths))}
    blanks = places[(text == 32) | (text == 9)]
    found = np.searchsorted(blanks, starts)
    behind = np.minimum(ends, np.append(blanks, len(array))[found])  # the end of the id
    if (behind == starts).any():
        return None
    first = np.minimum(behind + 1, ends)  # of the description, behind any number of blanks
    while len(more := np.flatnonzero((first < ends) & ((array[first] == 32) | (array[first] == 9)))):
        first[more] += 1
    return ((array[_ranges(starts, behind - starts)].tobytes(), (behind - starts).astype("<u8")),
            {"description": (array[_ranges(first, ends - first)].tobytes(), (ends - first).astype("<u8"))})


def _take_fasta(data: bytes) -> tuple[Columns, int] | None:
    """Return the columns of FASTA records and the number of their lines; None where they are not regular."""
    data, array, starts, ends = _lines(data)
    heads = np.flatnonzero(array[starts] == _FASTA)
    if not len(heads) or heads[0]:
        return None
    bodies, next_heads = ends[heads] + 1, np.append(starts[heads[1:]], len(data))
    lengths = next_heads - bodies - np.diff(heads, append=len(ends)) + 1
    firsts = starts[heads] + 1
    places = _ranges(firsts, ends[heads] - firsts)
    if not lengths.all() or (found := _take_headers(array, firsts, ends[heads], places)) is None:
        return None
    letters = bytearray(data)
    rest = np.frombuffer(letters, np.uint8)
    rest[places] = rest[firsts - 1] = _NEWLINE
    return Columns(*found, letters, lengths.astype("<u8")), len(ends)


def _take_fastq(data: bytes) -> tuple[Columns, int] | None:
    """Return the columns of FASTQ records and the number of their lines; None where they are not regular."""
    data, array, starts, ends = _lines(data)
    if len(ends) % 4:
        return None
    (heads, bases, pluses, marks), sizes = starts.reshape(-1, 4).T, (ends - starts).reshape(-1, 4).T
    lengths = sizes[1]
    if not ((array[heads] == _FASTQ).all() and (array[pluses] == _PLUS).all() and (sizes[2] == 1).all()
            and lengths.all() and (lengths == sizes[3]).all()):
        return None
    if (found := _take_headers(array, heads + 1, heads + sizes[0], _ranges(heads + 1, sizes[0] - 1))) is None:
        return None
    quality = np.frombuffer(join_ranges(data, marks, marks + lengths), np.uint8)
    if not 33 <= quality.min() <= quality.max() <= 126:
        return None
    letters = join_ranges(data, bases, bases + lengths)
    return Columns(*found, letters, lengths.astype("<u8"), {"quality": quality - np.uint8(33)}), len(ends)


def join_ranges(data: bytes, starts: np.ndarray, ends: np.ndarray) -> bytes:
    """Return the bytes of many ranges, end to end."""
    return b"".join(cut_ranges(data, starts, ends))


def cut_ranges(data: bytes, starts: np.ndarray, ends: np.ndarray) -> list[bytes]:
    """Return the bytes of many ranges."""
    return [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def gather(records: Sequence[Record]) -> Columns | None:
    """Return records that were read one by one as columns; None where they are not plain and alike."""
    if not records:
        return None
    columns, tracks = records[0].columns.keys(), records[0].tracks.keys()
    sequences = [record.sequence for record in records]
    lengths = np.fromiter(map(len, sequences), "<u8", len(records))
    elements = _join(sequences)
    if elements is None or not lengths.all() or any(
            record.columns.keys() != columns or record.tracks.keys() != tracks
            or any(len(track) != len(record.sequence) for track in record.tracks.values()) for record in records):
        return None
    ids = [record.id for record in records]
    try:
        texts = {name: pack([record.columns[name] for record in records]) for name in columns}
        packed = None if ids[0] is None else pack(ids)  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return None
    if packed is not None and (not packed[1].all() or b"\0" in packed[0]):
        return None
    return Columns(packed, texts, elements, lengths, {
        name: np.concatenate([record.tracks[name] for record in records]) for name in tracks})


def _join(sequences: list[str | np.ndarray]) -> bytes | np.ndarray | None:
    """Return sequences end to end; None where they are not all ASCII text, or arrays alike."""
    if set(map(type, sequences)) == {str}:
        letters = "".join(sequences)  # type: ignore[arg-type]
        return letters.encode() if letters.isascii() else None
    if len({(getattr(sequence, "dtype", None), np.shape(sequence)[1:]) for sequence in sequences}) > 1:
        return None
    return np.concatenate(sequences)


def pack(texts: Sequence[str] | Sequence[bytes]) -> Texts:
    """Return texts end to end as UTF-8, and their lengths; TypeError where one is no text."""
    if texts and isinstance(texts[0], bytes):
        return b"".join(texts), np.fromiter(map(len, texts), "<u8", len(texts))  # type: ignore[arg-type]
    joined = "".join(texts)  # type: ignore[arg-type]
    if joined.isascii():
        return joined.encode(), np.fromiter(map(len, texts), "<u8", len(texts))
    return pack([text.encode() for text in texts])  # type: ignore[union-attr]
