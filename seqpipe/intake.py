"""Collect the records of one slice of the input, or of some small files, in one part: a folder of spools.

Place in the flow: Slice -> readers -> Record -> [intake] -> part -> assembly.

A part depends on nothing but its slices and the plan, so that parts can be made anywhere, in any
order, and kept when an import is interrupted. Memory holds one record and small buffers.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from seqpipe.alphabet import UnknownSymbol
from seqpipe.encoding import new_encoder
from seqpipe.errors import RawFormatError, count_of
from seqpipe.parts import STATE, Part
from seqpipe.plan import Plan
from seqpipe.readers import name_record, no_record, read_records, record_stem
from seqpipe.readers.blocks import Columns, gather, pack, read_blocks
from seqpipe.readers.fastx import line_of_symbol
from seqpipe.readers.raw import RawFile
from seqpipe.readers.regular import read_regular
from seqpipe.readers.regular_long import read_regular_long
from seqpipe.readers.regular_objects import read_regular_objects
from seqpipe.records import ColumnChoice, Record
from seqpipe.slices import Slice
from seqpipe.spool import Spools

TICK = 1024  # records between two looks at the progress
GROUP = 1 << 20  # elements of records that are held together, about


class Intake:
    """Everything the records of one part have said so far.

    Args:
        folder: an empty one, for the spools.
        plan: with a layout.
        format: of the file.
    """

    def __init__(self, folder: Path, plan: Plan, format: str) -> None:
        assert plan.layout is not None
        self._format = format
        self._plan, self._layout = plan, plan.layout
        self._spools = Spools(folder)
        self._encoder = new_encoder(self._spools, plan.options, is_text=self._layout.is_text,
                                    num_channels=self._layout.num_channels,
                                    codes=self._layout.codes, given=plan.alphabet)
        self.counts: Counter[str] = Counter()
        self._lengths = self._spools.new("lengths", "<u8")
        self._skipped = self._spools.new("skipped", "<u8")
        self._ids = self._spools.new_ragged("id")
        self._columns = {name: self._spools.new_ragged(f"column{position}")
                         for position, name in enumerate(self._layout.columns)}
        self._tracks = {name: self._spools.new(f"track{position}", dtype)
                        for position, (name, dtype) in enumerate(self._layout.tracks)}
        self.read = 0
        self._was_cut = False
        self._pieces: list[dict[str, Any]] = []
        self._num_before = (0, 0)  # records read, and kept, of the slices before

    def begin(self, slice: Slice) -> None:
        """Say of which slice the next records are; one after the other, each to its end."""
        self._slice, self._num_before = slice, (self.read, len(self._lengths))
        self._have_ids: bool | None = None

    def end(self, counts: Counter[str]) -> None:
        """Close the slice; ``counts`` is what its reader changed by choice."""
        read, kept = self._num_before
        self._pieces.append({"path": os.fsdecode(self._slice.path), "format": self._slice.format,
                             "start": self._slice.start, "end": self._slice.end,
                             "read": self.read - read, "rows": len(self._lengths) - kept})
        self.counts += counts

    @property
    def _names(self) -> bool:
        """Whether the records without ids get theirs here: their numbers are known from the start of a file on."""
        return not self._have_ids and not self._slice.start

    def add(self, record: Record) -> None:
        """Take the next record.

        Raises:
            RawFormatError: it is not allowed; the message names file, line and id.
        """
        self.read += 1
        if self._have_ids is None:
            self._have_ids = record.id is not None
        assert self._have_ids == (record.id is not None), "a reader gives all records of a file ids, or none"
        record_id, columns = name_record(record, self.read - self._num_before[0]), record.columns
        if columns.keys() != self._columns.keys():
            raise record.error(
                f"has the columns {sorted(columns)}, but the first record has {sorted(self._columns)}; expected "
                "the same in all records"
            )
        if record.tracks.keys() != self._tracks.keys():
            raise record.error(f"has the tracks {sorted(record.tracks)}, but the first record has "
                               f"{sorted(self._tracks)}; expected the same in all records")
        if (length := self._add_sequence(record)) is None:
            self._skipped.append(self.read.to_bytes(8, "little"))
            return
        for name, track in record.tracks.items():
            if len(track) != length and not self._was_cut:
                raise record.error(f"the track {name!r} has {count_of(len(track), 'number')} for "
                                   f"{count_of(length, 'element')}; expected one per element; correct the record")
            self._tracks[name].extend(track[:length])
        try:
            if self._have_ids or self._names:
                self._ids.append(record_id.encode())
            for name, text in columns.items():
                self._columns[name].append(text.encode())
        except UnicodeEncodeError as error:
            raise record.error(f"text that UTF-8 cannot hold ({error}); correct it") from None
        self._lengths.append(length.to_bytes(8, "little"))

    def add_block(self, columns: Columns) -> bool:
        """Take many records at once; return False where they are to be read one by one."""
        tracks = columns.tracks if self._tracks or self._format != "fastq" else {}  # qualities that nobody asked for
        if self._columns.keys() != columns.texts.keys() or tracks.keys() != self._tracks.keys():
            return False
        options, lengths = self._plan.options, columns.lengths
        if lengths.min() < options.min_length or lengths.max() > (options.max_length or lengths.max()):
            return False
        if not self._encoder.extend(columns.elements, columns.lengths):
            return False
        self._have_ids, first = columns.ids is not None, self.read - self._num_before[0] + 1
        self.read += len(columns.lengths)
        ids = columns.ids
        if self._names:
            stem = record_stem(self._slice.path)
            ids = pack([f"{stem}:{number}" for number in range(first, first + len(columns.lengths))])
        if ids is not None:
            self._ids.extend(*ids)
        for name, texts in columns.texts.items():
            self._columns[name].extend(*texts)
        self._lengths.extend(columns.lengths)
        for name, track in tracks.items():
            self._tracks[name].extend(track)
        return True

    def add_all(self, records: Sequence[Record]) -> None:
        """Take the next records: with few calls for all of them where they are plain, else one by one.

        Raises:
            RawFormatError: as ``add``, for the first that is not allowed.
        """
        columns = gather(records)
        if columns is None or not self.add_block(columns):
            for record in records:
                self.add(record)

    def close(self) -> dict[str, Any]:
        """Write what is left; return what ``part.json`` holds."""
        arrays = self._spools.close()
        return {"rows": arrays["lengths"]["items"], "read": self.read, "pieces": self._pieces,
                "ids": self._have_ids is not False or self._names, "columns": list(self._columns),
                "tracks": list(self._tracks), "encoding": self._encoder.state(), "arrays": arrays,
                "counts": +(self.counts + self._encoder.counts)}

    def _add_sequence(self, record: Record) -> int | None:
        """Return the length of the record's sequence; None where the record is left out."""
        options, encoder, sequence = self._plan.options, self._encoder, record.sequence
        self._was_cut = False
        line = record.sequence_line
        if not len(sequence):
            if options.on_empty == "error":
                raise record.error("the sequence is empty; expected at least one element; correct or remove the "
                                   "record, or use --on-empty skip or keep", line=line)
            if options.on_empty == "skip":
                self._skip("the sequence is empty")
                return None
            sequence = encoder.empty
        try:
            length = encoder.measure(sequence)
            if length < options.min_length:
                self._skip(f"shorter than {options.min_length}")
                return None
            if options.max_length is not None and length > options.max_length:
                if options.on_long == "error":
                    raise record.error(f"the sequence has {length} elements, more than --max-length "
                                       f"{options.max_length}; use --on-long skip or truncate", line=line)
                if options.on_long == "skip":
                    self._skip(f"longer than {options.max_length}")
                    return None
                sequence, self._was_cut = encoder.truncate(sequence, options.max_length), True
                self.counts[f"sequences cut to {options.max_length}"] += 1
            return encoder.append(sequence)
        except ValueError as error:
            if options.on_unknown == "skip" and isinstance(error, UnknownSymbol):
                self._skip("a symbol is not in the alphabet")
                return None
            if isinstance(error, UnknownSymbol) and self._format in ("fasta", "fastq"):
                with self._plan.open(Slice(record.path, self._format)) as raw:
                    line = line_of_symbol(raw, record, error.position, comments=self._format == "fasta")
            raise record.error(f"{error}; {encoder.remedy}", line=line) from None

    def _skip(self, reason: str) -> None:
        self.counts[f"records left out: {reason}"] += 1


def collect(slices: Sequence[Slice], plan: Plan, folder: Path, *, pinned: tuple[str | None, str] | None = None,
            line: int = 0, progress: Callable[[int], None] = lambda count: None) -> None:
    """Read slices into the part at ``folder``, which appears when it is complete.

    Args:
        slices: what is read: one, or whole files of one format.
        plan: with a layout.
        folder: of the part; its parent is there.
        pinned: the id and sequence column of the file's first record, where they are chosen.
        line: how many lines stand before the first slice.
        progress: called now and then with the number of bytes read.

    Raises:
        RawFormatError: a record is not allowed, or breaks the format.
    """
    temporary = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:12]}.tmp")
    temporary.mkdir()
    try:
        intake = _read_all(slices, plan, temporary, pinned, line, progress,
                           by_columns=slices[0].in_columns(plan.options.encoding))
        if intake is None:
            shutil.rmtree(temporary)
            temporary.mkdir()
            intake = _read_all(slices, plan, temporary, pinned, line, progress, by_columns=False)
        assert intake is not None
        part = Part(temporary, intake.close())
        part.add_hashes(plan.options.seed, sequences=plan.options.split != "none")
        (temporary / STATE).write_text(json.dumps(part.state), "utf-8")
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.is_dir():  # a worker that outlived its import made the same part
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _read_all(slices: Sequence[Slice], plan: Plan, folder: Path, pinned: tuple[str | None, str] | None, line: int,
              progress: Callable[[int], None], *, by_columns: bool) -> Intake | None:
    """Return the intake of slices; None where they were to be read ``by_columns``, and one of them cannot be."""
    intake, options, done = Intake(folder, plan, slices[0].format), plan.options, 0
    for slice in slices:
        num_bytes, before = slice.num_bytes, intake.read
        with plan.open(slice, line) as raw:
            intake.begin(slice)
            tell = _teller(progress, done, raw)
            if slice.in_blocks(options.encoding):
                _collect_blocks(raw, slice.format, plan.choice(), intake, tell)
            elif by_columns:
                if not _collect_columns(raw, slice, plan, pinned, intake, tell):
                    return None
            else:
                for group in _groups(read_records(raw, slice.format, plan.choice(pinned), may_be_empty=True)):
                    intake.add_all(group)
                    tell()
            if slice.is_whole and intake.read == before:
                raise no_record(raw, slice.format)
            intake.end(raw.counts)
        done += num_bytes
        progress(done)
    return intake


def _teller(progress: Callable[[int], None], done: int, raw: RawFile) -> Callable[[], None]:
    """Return what tells how many bytes were read, of this file and those before."""
    return lambda: progress(done + raw.bytes_read())


def _collect_columns(raw: RawFile, slice: Slice, plan: Plan, pinned: tuple[str | None, str] | None, intake: Intake,
                     tell: Callable[[], None]) -> bool:
    """Take a slice of regular rows column by column; return False where it is to be read row by row."""
    before = intake.read
    read = (read_regular_objects if slice.format == "jsonl" else
            read_regular_long if plan.options.value_columns else read_regular)
    try:
        for columns in read(raw, slice.format, plan.choice(pinned)):
            if columns is None or not intake.add_block(columns):
                return False
            tell()
    except RawFormatError:
        return False  # the strict reader comes to it too, and can name its line
    return intake.read > before


def _collect_blocks(raw: RawFile, format: str, columns: ColumnChoice, intake: Intake,
                    tell: Callable[[], None]) -> None:
    """Take the records of FASTA or FASTQ block by block, those of blocks that are not regular one by one."""
    for block in read_blocks(raw, format):
        if block.columns is not None and intake.add_block(block.columns):
            raw.line += block.lines
        else:
            for record in read_records(block.again, format, columns, may_be_empty=True):
                intake.add(record)
            raw.line = block.again.line
        tell()


def _groups(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Yield the records in groups of limited size; an error of the reader comes after those read before it."""
    group: list[Record] = []
    elements = 0
    try:
        for record in records:
            group.append(record)
            elements += len(record.sequence)
            if len(group) == TICK or elements >= GROUP:
                full, group, elements = group, [], 0
                yield full
    except RawFormatError as error:
        yield group
        raise error
    yield group
