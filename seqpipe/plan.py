"""What the collection of every slice depends on: the options, and what the first record of the import fixes.

Place in the flow: options, first record -> [plan] -> intake, collection, ingest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from seqpipe.alphabet import Alphabet, fold_case, kind_of
from seqpipe.encoding import check_alphabet, expected_codes
from seqpipe.errors import RawFormatError, count_of
from seqpipe.layout import MAX_COLUMN_NAME
from seqpipe.options import PreprocessOptions
from seqpipe.parts import Part
from seqpipe.readers import read_records
from seqpipe.readers.raw import RawFile
from seqpipe.records import ColumnChoice, Record, split_names
from seqpipe.slices import Slice
from seqpipe.splits import parse_split


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
                          + (f"rows of {count_of(plan.num_channels, 'number')}" if plan.num_channels else "tokens"),
                          line=first.sequence_line)
    return Layout(isinstance(sequence, str), num_channels, tuple(first.columns),
                  tuple((name, track.dtype.newbyteorder("<").str) for name, track in first.tracks.items()),
                  expected_codes(plan.options.alphabet, fold_case(sequence, plan.options.case)
                                 if isinstance(sequence, str) else sequence))


def count_records(slice: Slice, plan: Plan) -> int:
    """Return the number of records of a slice."""
    with plan.open(slice) as raw:
        return sum(1 for _ in read_records(raw, slice.format, plan.choice(), may_be_empty=True))


def find_record(part: Part, plan: Plan, number: int) -> Record:
    """Return the ``number``-th record (from 1) read for a part again, to name its place."""
    for piece in part.pieces:
        if number <= piece["read"]:
            break
        number -= piece["read"]
    slice = Slice(Path(piece["path"]), piece["format"], piece["start"], piece["end"])
    with plan.open(slice, slice.lines_before()) as raw:
        for position, record in enumerate(read_records(raw, slice.format, plan.choice(), may_be_empty=True), start=1):
            if position == number:
                return record
    raise RawFormatError(f"{slice.path}: changed while it was read; import it again when nothing writes to it",
                         path=slice.path)
