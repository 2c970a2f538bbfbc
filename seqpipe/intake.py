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
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqpipe.alphabet import Alphabet, UnknownSymbol, fold_case, kind_of
from seqpipe.encoding import check_alphabet, expected_codes, new_encoder
from seqpipe.errors import RawFormatError
from seqpipe.layout import MAX_COLUMN_NAME
from seqpipe.options import PreprocessOptions
from seqpipe.parts import STATE, Part
from seqpipe.readers import name_record, no_record, read_records
from seqpipe.readers.blocks import Columns, gather, read_blocks
from seqpipe.readers.fastx import line_of_symbol
from seqpipe.readers.raw import RawFile
from seqpipe.readers.regular import read_regular
from seqpipe.records import ColumnChoice, Record, split_names
from seqpipe.slices import Slice
from seqpipe.spool import Spools
from seqpipe.splits import parse_split

TICK = 1024  # records between two looks at the progress
GROUP = 1 << 20  # elements of records that are held together, about


@dataclass(frozen=True)
class Layout:
    """What the first record of an import fixes for all others.

    Attributes:
        is_text: whether its sequence is text.
        num_channels: of its sequence, where it is rows of numbers; else 0.
        columns: the names of its columns.
        tracks: names and dtypes of its tracks.
        codes: the symbols that sequences of an alphabet not known yet are spooled with.
    """

    is_text: bool
    num_channels: int
    columns: tuple[str, ...]
    tracks: tuple[tuple[str, str], ...]
    codes: str


@dataclass(frozen=True)
class Plan:
    """All that the collection of a slice depends on, besides the slice.

    Attributes:
        options: as the user gave them, without the raw files: every job carries its plan.
        joined: the columns of the table of ``--labels``.
        layout: what the first record fixed; None before it was read.
        alphabet: what ``--like`` fixes; None where the options or the input decide.
        num_channels: of features, 0 for tokens, as ``--like`` fixes them; None where the input decides.
    """

    options: PreprocessOptions
    joined: tuple[str, ...]
    layout: Layout | None = None
    alphabet: Alphabet | None = None
    num_channels: int | None = None

    def check_columns(self, names: Collection[str]) -> str | None:
        """Return what is wrong with the columns of a file besides id and sequence, None if nothing is."""
        options = self.options
        if both := [name for name in names if name in self.joined]:
            return (f"column {both[0]!r} stands both here and in {options.labels}; rename it or take it out "
                    "in one of the two")
        every = [*names, *self.joined]
        rule = parse_split(options.split, options.seed, by=options.split_by, folds=options.folds)
        for option, wanted in (("--label-column ", options.label_column), ("--split column:", rule.column),
                               ("--split-by group:", rule.group), ("--target-column ", options.target_column)):
            if wanted and wanted not in every:
                return (f"there is no column {wanted!r} for {option}{wanted}; besides id and sequence the columns "
                        f"are {', '.join(map(repr, every)) or 'none'}; name one of them, or join a table with --labels")
        label = find_label_column(options, every)
        if options.target_column and options.target_column in (label, rule.column, rule.group):
            return (f"column {options.target_column!r} is named by --target-column and for another thing; name one "
                    "column for each")
        if label is None and options.label_type in ("class", "number", "multilabel"):
            return (f"there is no label for --label-type {options.label_type}; besides id and sequence the "
                    f"columns are {', '.join(map(repr, every)) or 'none'}; name one with --label-column")
        for name in every:
            if name in ("id", "index") or (name == "label" and label not in (None, name)):
                return (f"column {name!r} has a name that seqpipe gives to another thing (the record's id, its row "
                        "number, its label); rename it")
            if len(name.encode("utf-8", "surrogatepass")) > MAX_COLUMN_NAME:
                return f"column {name[:40]!r}... has a name of more than {MAX_COLUMN_NAME} bytes; shorten it"
        return None

    def choice(self, pinned: tuple[str | None, str] | None = None) -> CheckedColumns:
        """Return how the columns of a file are chosen and checked."""
        options = self.options
        return CheckedColumns(options.id_column, options.sequence_column, options.encoding, options.time_column,
                              split_names(options.value_columns), options.quality == "keep",
                              options.on_missing == "nan", check=self.check_columns, pinned=pinned)

    def open(self, slice: Slice, line: int = 0) -> RawFile:
        """Open a slice; ``line`` lines stand before it."""
        return slice.open(self.options.encoding, line, replace_bytes=self.options.on_undecodable == "replace")


@dataclass(frozen=True)
class CheckedColumns(ColumnChoice):
    """The choice of id and sequence column, which also has all other columns of a header checked.

    So a column that is not there is found at the header's line, before any record is read.

    Attributes:
        check: takes the other columns; returns what is wrong with them, None if nothing is.
        pinned: the choice in the first slice of the file, which binds the others.
        found: where the choice is put.
    """

    check: Callable[[Collection[str]], str | None] = field(kw_only=True)
    pinned: tuple[str | None, str] | None = field(kw_only=True)
    found: list[tuple[str | None, str]] = field(default_factory=list, kw_only=True)

    def find(self, names: Collection[str], error: Callable[[str], RawFormatError]) -> tuple[str | None, str]:
        found = super().find(names, error)
        if finding := self.check([name for name in names if name not in found]):
            raise error(finding)
        if self.pinned is not None and self.pinned != found:
            raise error(f"the id is {found[0]!r} and the sequence {found[1]!r}, and in the first record they are "
                        f"{self.pinned[0]!r} and {self.pinned[1]!r}; expected the same in all records")
        self.found.append(found)
        return found

    def find_long(self, names: Collection[str], error: Callable[[str], RawFormatError]) -> str | None:
        found = super().find_long(names, error)
        if finding := self.check([name for name in names if name not in (found, self.time, *self.values)]):
            raise error(finding)
        return found


def find_label_column(options: PreprocessOptions, names: Collection[str]) -> str | None:
    """Return the column with the labels, None without labels."""
    if options.label_type == "none":
        return None
    return options.label_column or ("label" if "label" in names else None)


def look_ahead(slice: Slice, plan: Plan) -> tuple[Record, tuple[str | None, str] | None]:
    """Return the first record of a slice, and which columns hold its id and sequence, where that is chosen.

    Raises:
        RawFormatError: there is none, or it breaks the format.
    """
    columns = plan.choice()
    with plan.open(slice) as raw:
        records = read_records(raw, slice.format, columns)
        record = next(records)
        if not len(record.sequence) and plan.options.on_empty != "error":  # [] does not tell of what
            record = next((later for later in records if len(later.sequence)), record)
    return record, columns.found[0] if columns.found else None


def lay_out(first: Record, plan: Plan) -> Layout:
    """Return what the first record of an import fixes.

    Raises:
        RawFormatError: it does not fit the options.
    """
    if finding := plan.check_columns(first.columns):
        raise first.error(finding)
    try:
        check_alphabet(plan.options.alphabet, first.sequence)
    except ValueError as error:
        raise first.error(str(error), line=first.sequence_line) from None
    if both := first.columns.keys() & first.tracks.keys():
        raise first.error(f"column {min(both)!r} has the name of a track, one number per element; rename it")
    sequence = first.sequence
    num_channels = sequence.shape[1] if not isinstance(sequence, str) and sequence.ndim == 2 else 0
    if plan.num_channels not in (None, num_channels):
        raise first.error(f"found {kind_of(sequence)}; the store of --like holds "
                          f"{f'rows of {plan.num_channels} numbers' if plan.num_channels else 'tokens'}",
                          line=first.sequence_line)
    return Layout(isinstance(sequence, str), num_channels, tuple(first.columns),
                  tuple((name, track.dtype.newbyteorder("<").str) for name, track in first.tracks.items()),
                  expected_codes(plan.options.alphabet, fold_case(sequence, plan.options.case)
                                 if isinstance(sequence, str) else sequence))


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
        self._counts: Counter[str] = Counter()
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
        tracks = {} if columns.quality is None or not self._tracks else {"quality": columns.quality}
        if self._columns.keys() != columns.texts.keys() or tracks.keys() != self._tracks.keys():
            return False
        options, lengths = self._plan.options, columns.lengths
        if lengths.min() < options.min_length or lengths.max() > (options.max_length or lengths.max()):
            return False
        if not self._encoder.extend(columns.letters, columns.lengths):
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
        """Take the next records: with few calls for all of them where they are plain text, else one by one.

        Raises:
            RawFormatError: as ``add``, for the first that is not allowed.
        """
        columns = gather(records) if self._layout.is_text else None
        if columns is None or not self.add_block(columns):
            for record in records:
                self.add(record)

    def close(self) -> dict[str, Any]:
        """Write what is left; return what ``part.json`` holds."""
        arrays = self._spools.close()
        return {"rows": arrays["lengths"]["items"], "read": self.read, "ids": self._have_ids is not False,
                "columns": list(self._columns), "tracks": list(self._tracks), "encoding": self._encoder.state(),
                "arrays": arrays,
                "counts": +(self._counts + self._encoder.counts)}

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
                self._counts[f"sequences cut to {options.max_length}"] += 1
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
        self._counts[f"records left out: {reason}"] += 1


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
        (temporary / STATE).write_text(json.dumps(state), "utf-8")
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.is_dir():  # a worker that outlived its import made the same part
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _collect_columns(slice: Slice, plan: Plan, folder: Path, pinned: tuple[str | None, str] | None,
                     progress: Callable[[int], None]) -> Intake | None:
    """Return the intake of a slice of regular rows of text; None where it is to be read row by row."""
    assert plan.layout is not None
    options = plan.options
    if not plan.layout.is_text or options.value_columns or not slice.in_columns(options.encoding):
        return None
    intake = Intake(folder, plan, slice.format)
    with plan.open(slice) as raw:
        try:
            for columns in read_regular(raw, slice.format, plan.choice(pinned)):
                if columns is None or not intake.add_block(columns):
                    return None
                progress(raw.bytes_read())
        except RawFormatError:
            return None  # the strict reader comes to it too, and can name its line
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


def slice_of(part: Part) -> Slice:
    """Return the slice that a part was made of."""
    state = part.state
    return Slice(Path(state["path"]), state["format"], state["start"], state["end"])


def count_records(slice: Slice, plan: Plan) -> int:
    """Return the number of records of a slice."""
    with plan.open(slice) as raw:
        return sum(1 for _ in read_records(raw, slice.format, plan.choice(), may_be_empty=True))


def find_record(slice: Slice, plan: Plan, number: int) -> Record:
    """Return the ``number``-th record (from 1) of a slice again, to name its place."""
    with plan.open(slice, slice.lines_before()) as raw:
        for position, record in enumerate(read_records(raw, slice.format, plan.choice(), may_be_empty=True), start=1):
            if position == number:
                return record
    raise RawFormatError(f"{slice.path}: changed while it was read; import it again when nothing writes to it",
                         path=slice.path)
