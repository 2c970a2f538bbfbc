"""Collect the records of one slice of the input in one part: a folder of spools.

Place in the flow: Slice -> readers -> Record -> [intake] -> part -> assembly.

A part depends on nothing but its slice and the plan, so that parts can be made anywhere, in any
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
from seqpipe.errors import RawFormatError
from seqpipe.parts import STATE, Part
from seqpipe.plan import Plan
from seqpipe.readers import name_record, no_record, read_records
from seqpipe.readers.blocks import Columns, gather, read_blocks
from seqpipe.readers.fastx import line_of_symbol
from seqpipe.readers.raw import RawFile
from seqpipe.readers.regular import read_regular
from seqpipe.readers.regular_long import read_regular_long
from seqpipe.records import ColumnChoice, Record
from seqpipe.slices import Slice
from seqpipe.spool import Spools

TICK = 1024  # records between two looks at the progress
GROUP = 1 << 20  # elements of records that are held together, about


class Intake:
    """Everything the records of one slice have said so far.

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
        self._have_ids: bool | None = None

    def add(self, record: Record) -> None:
        """Take the next record.

        Raises:
            RawFormatError: it is not allowed; the message names file, line and id.
        """
        self.read += 1
        if self._have_ids is None:
            self._have_ids = record.id is not None
        assert self._have_ids == (record.id is not None), "a reader gives all records of a file ids, or none"
        record_id, columns = name_record(record, self.read), record.columns
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
                raise record.error(f"the track {name!r} has {len(track)} numbers for {length} elements; expected one "
                                   "per element; correct the record")
            self._tracks[name].extend(track[:length])
        try:
            if self._have_ids:
                self._ids.append(record_id.encode())
            for name, text in columns.items():
                self._columns[name].append(text.encode())
        except UnicodeEncodeError as error:
            raise record.error(f"text that UTF-8 cannot hold ({error}); correct it") from None
        self._lengths.append(length.to_bytes(8, "little"))

    def add_block(self, columns: Columns) -> bool:
        """Take many records at once; return False where they are to be read one by one."""
        tracks = columns.tracks if self._tracks else {}
        if self._columns.keys() != columns.texts.keys() or tracks.keys() != self._tracks.keys():
            return False
        options, lengths = self._plan.options, columns.lengths
        if lengths.min() < options.min_length or lengths.max() > (options.max_length or lengths.max()):
            return False
        if not self._encoder.extend(columns.elements, columns.lengths):
            return False
        self._have_ids = columns.ids is not None
        self.read += len(columns.lengths)
        if columns.ids is not None:
            self._ids.extend(*columns.ids)
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
        return {"rows": arrays["lengths"]["items"], "read": self.read, "ids": self._have_ids is not False,
                "columns": list(self._columns), "tracks": list(self._tracks), "encoding": self._encoder.state(),
                "arrays": arrays,
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


def collect(slice: Slice, plan: Plan, folder: Path, *, pinned: tuple[str | None, str] | None = None,
            line: int = 0, progress: Callable[[int], None] = lambda count: None) -> None:
    """Read a slice into the part at ``folder``, which appears when it is complete.

    Args:
        slice: what is read.
        plan: with a layout.
        folder: of the part; its parent is there.
        pinned: the id and sequence column of the file's first record, where they are chosen.
        line: how many lines stand before the slice.
        progress: called now and then with the number of bytes read.

    Raises:
        RawFormatError: a record is not allowed, or breaks the format.
    """
    temporary = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:12]}.tmp")
    temporary.mkdir()
    try:
        alone = slice.start == 0 and slice.end is None
        regular = _collect_columns(slice, plan, temporary, pinned, progress)
        if regular is None:
            shutil.rmtree(temporary)
            temporary.mkdir()
        intake = regular or Intake(temporary, plan, slice.format)
        with plan.open(slice, line) as raw:
            if regular is not None:
                pass  # all is read
            elif slice.in_blocks(plan.options.encoding):
                _collect_blocks(raw, slice.format, plan.choice(), intake, progress)
                if alone and not intake.read:
                    raise no_record(raw, slice.format)
            else:
                records = read_records(raw, slice.format, plan.choice(pinned), may_be_empty=not alone)
                for group in _groups(records):
                    intake.add_all(group)
                    progress(raw.bytes_read())
            progress(raw.size if slice.end is None else slice.end - slice.start)
        state = {"path": os.fsdecode(slice.path), "format": slice.format, "start": slice.start, "end": slice.end,
                 **intake.close()}
        state["counts"] = +(raw.counts + state["counts"])
        part = Part(temporary, state)
        part.add_hashes(plan.options.seed, sequences=plan.options.split != "none")
        (temporary / STATE).write_text(json.dumps(part.state), "utf-8")
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.is_dir():  # a worker that outlived its import made the same part
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _collect_columns(slice: Slice, plan: Plan, folder: Path, pinned: tuple[str | None, str] | None,
                     progress: Callable[[int], None]) -> Intake | None:
    """Return the intake of a slice of regular rows; None where it is to be read row by row."""
    assert plan.layout is not None
    options = plan.options
    is_long = bool(options.value_columns) and slice.format != "jsonl"
    if not (plan.layout.is_text or is_long) or not slice.in_columns(options.encoding):
        return None
    read = read_regular_long if is_long else read_regular
    intake = Intake(folder, plan, slice.format)
    with plan.open(slice) as raw:
        try:
            for columns in read(raw, slice.format, plan.choice(pinned)):
                if columns is None or not intake.add_block(columns):
                    return None
                progress(raw.bytes_read())
        except RawFormatError:
            return None  # the strict reader comes to it too, and can name its line
        intake.counts += raw.counts
    return intake if intake.read else None


def _collect_blocks(raw: RawFile, format: str, columns: ColumnChoice, intake: Intake,
                    progress: Callable[[int], None]) -> None:
    """Take the records of FASTA or FASTQ block by block, those of blocks that are not regular one by one."""
    for block in read_blocks(raw, format):
        if block.columns is not None and intake.add_block(block.columns):
            raw.line += block.lines
        else:
            for record in read_records(block.again, format, columns, may_be_empty=True):
                intake.add(record)
            raw.line = block.again.line
        progress(raw.bytes_read())


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
