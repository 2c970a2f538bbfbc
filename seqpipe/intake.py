"""Collect the records of one import and decide, with all of them seen, what the store holds.

Place in the flow: Record -> [intake] -> contents and header -> writer.

Nothing here grows with the length of the sequences; a record costs about 20 bytes of memory (and
its row of a joined table), the rest of it lies in spools in the output's folder.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe import labels
from seqpipe.encoding import Encoded, Features, collect_sequences
from seqpipe.errors import OptionError, RawFormatError
from seqpipe.hashing import hash_texts
from seqpipe.layout import MAX_COLUMN_NAME, dataset_name
from seqpipe.options import PreprocessOptions
from seqpipe.readers import name_record
from seqpipe.records import Record
from seqpipe.splits import SPLIT_NAMES, SplitRule, draw_by_class
from seqpipe.spool import RaggedSpool
from seqpipe.summary import channel_moments, summarise_lengths
from seqpipe.writer import Content

LabelTable = dict[str, tuple[dict[str, str], int]]
MAX_SPLITS = 1000


class Intake:
    """Everything the records of one import have said so far.

    Args:
        folder: for the spools.
        options: as the user gave them.
        rule: the parsed ``--split``.
        table: what is joined to the records by id, as ``read_labels`` returns it; may be empty.
    """

    def __init__(self, folder: Path, options: PreprocessOptions, rule: SplitRule, table: LabelTable) -> None:
        self._folder, self._options, self._rule, self._table = folder, options, rule, table
        self._joined = next(iter(table.values()), ({}, 0))[0].keys()
        self._sequences: Encoded | None = None
        self._ids = RaggedSpool(folder / "id")
        self._columns: dict[str, RaggedSpool] = {}  # those of the records, then those of the table
        self._label_column: str | None = None
        self._hashes, self._lines, self._split_numbers = array("q"), array("Q"), array("H")
        self._splits: dict[str | None, int] = {}
        self._files: list[tuple[int, Path]] = []  # first record of each file
        self._file_name = ""
        self._unlabelled: list[str] = []

    def check_columns(self, names: Collection[str]) -> str | None:
        """Return what is wrong with the columns of a file besides id and sequence, None if nothing is."""
        if both := [name for name in names if name in self._joined]:
            return (f"column {both[0]!r} stands both here and in {self._options.labels}; rename it or take it out "
                    "in one of the two")
        every = [*names, *self._joined]
        for option, wanted in (("--label-column ", self._options.label_column), ("--split column:", self._rule.column),
                               ("--split-by group:", self._rule.group)):
            if wanted and wanted not in every:
                return (f"there is no column {wanted!r} for {option}{wanted}; besides id and sequence the columns "
                        f"are {', '.join(map(repr, every)) or 'none'}; name one of them, or join a table with --labels")
        label = find_label_column(self._options, every)
        if label is None and self._options.label_type in ("class", "number"):
            return (f"there is no label for --label-type {self._options.label_type}; besides id and sequence the "
                    f"columns are {', '.join(map(repr, every)) or 'none'}; name one with --label-column")
        for name in every:
            if name in ("id", "index") or (name == "label" and label not in (None, name)):
                return (f"column {name!r} has a name that seqpipe gives to another thing (the record's id, its row "
                        "number, its label); rename it")
            if len(name.encode("utf-8", "surrogatepass")) > MAX_COLUMN_NAME:
                return f"column {name[:40]!r}... has a name of more than {MAX_COLUMN_NAME} bytes; shorten it"
        return None

    def start_file(self, path: Path) -> None:
        """Say that the records to come are those of ``path``."""
        self._files.append((len(self._lines), path))
        self._file_name = path.name

    def add(self, record: Record, number: int) -> None:
        """Take one record, the ``number``-th of its file (from 1).

        Raises:
            RawFormatError: it is not allowed; the message names file, line and id.
        """
        record_id, columns = name_record(record, number), record.columns
        if self._table:
            if record_id not in self._table:
                self._unlabelled.append(record_id)
                return  # ``finish`` refuses the import, naming all records without a row
            columns = {**columns, **self._table[record_id][0]}
        if self._sequences is None:
            self._start(record, columns)
        if columns.keys() != self._columns.keys() or len(columns) != len(record.columns) + len(self._joined):
            raise record.error(
                f"has the columns {sorted(record.columns)}, but the first record has "
                f"{sorted(self._columns.keys() - self._joined)}; expected the same in all records"
            )
        self._add_sequence(record)
        if self._label_column is not None and not columns[self._label_column]:
            raise self._error(record_id, record.path, record.line, self._label_column,
                              "the label is empty; fill it in, or use --label-type none")
        try:
            split = self._rule.split_of(record_id, self._file_name, columns)
        except ValueError as error:
            raise self._error(record_id, record.path, record.line, self._rule.column, str(error)) from None
        split_number = self._splits.setdefault(split, len(self._splits))
        if split_number == MAX_SPLITS:
            raise self._error(record_id, record.path, record.line, self._rule.column,
                              f"found more than {MAX_SPLITS} different splits; choose another column for --split")
        try:
            self._ids.append(record_id.encode())
            for name, text in columns.items():
                self._columns[name].append(text.encode())
        except UnicodeEncodeError as error:
            raise record.error(f"text that UTF-8 cannot hold ({error}); correct it") from None
        self._split_numbers.append(split_number)
        self._hashes.append(hash(record_id))
        self._lines.append(record.line)

    def finish(self, formats: list[str]) -> tuple[dict[str, Content], dict[str, Any]]:
        """Return the store's contents, and its header without the provenance."""
        self._check_unlabelled()
        assert self._sequences is not None, "readers refuse a file without records"
        self._check_duplicates()
        offsets = self._sequences.offsets()
        lengths = np.diff(offsets).astype(np.int64)
        contents = {"values": self._sequences.content(), "offsets": Content.of(offsets)}
        contents |= _text_content("id", self._ids)
        label_type, classes, label = self._encode_labels()
        if label is not None:
            contents["metadata/label"] = Content.of(label)
        for name, spool in self._columns.items():
            if name != self._label_column:
                contents |= _column_content(name, spool)
        splits = self._split_rows(label if classes else None)
        for name, rows in splits.items():
            contents[f"splits/{name}"] = Content.of(rows)
        columns = ["id", *(["label"] if label is not None else []),
                   *(name for name in self._columns if name != self._label_column)]
        header = {
            "kind": self._sequences.kind,
            "encoding": self._sequences.header(),
            "label_type": label_type,
            "classes": classes,
            "channels": [f"c{i + 1}" for i in range(getattr(self._sequences, "num_channels", 0))],
            "columns": columns,
            "splits": {
                name: summarise_lengths(lengths[rows], label[rows] if classes and label is not None else None,
                                        len(classes))
                for name, rows in {"all": np.arange(len(lengths)), **splits}.items()
            },
            "input": self._input(formats),
        }
        if isinstance(self._sequences, Features):
            train = splits.get("train", np.arange(len(lengths), dtype="<u8"))
            header["moments"] = channel_moments(self._sequences.array(), offsets, train)
        return contents, header

    def _start(self, record: Record, columns: dict[str, str]) -> None:
        """Decide with the first record what is read, and how."""
        if finding := self.check_columns(record.columns):
            raise record.error(finding)
        self._label_column = find_label_column(self._options, columns)
        for position, name in enumerate(columns):
            self._columns[name] = RaggedSpool(self._folder / f"column{position}")
        try:
            self._sequences = collect_sequences(self._folder, self._options.alphabet, record.sequence)
        except ValueError as error:
            raise record.error(str(error), line=record.sequence_line) from None

    def _add_sequence(self, record: Record) -> None:
        assert self._sequences is not None
        if not len(record.sequence):
            raise record.error("the sequence is empty; expected at least one element; correct or remove "
                               "the record", line=record.sequence_line)
        try:
            self._sequences.append(record.sequence)
        except ValueError as error:
            raise record.error(f"{error}; {self._sequences.remedy}", line=record.sequence_line) from None

    def _error(self, record_id: str, path: Path, line: int, column: str, finding: str) -> RawFormatError:
        """Return the error about a record's ``column``: at the record, or at its row of the joined table."""
        if column in self._joined and self._options.labels is not None:
            path, line = self._options.labels, self._table[record_id][1]
        where = f"column {column!r}: " if column else ""
        return RawFormatError(f"{path}:{line}: record {record_id!r}: {where}{finding}", path=path, line=line)

    def _place(self, i: int) -> tuple[str, Path, int]:
        """Return id, path and line of record ``i``, after the pass over the input."""
        path = next(path for first, path in reversed(self._files) if first <= i)
        return self._ids.text(i), path, self._lines[i]

    def _check_duplicates(self) -> None:
        """Refuse the first record whose id was given before."""
        hashes = np.frombuffer(self._hashes, np.int64)
        order = np.argsort(hashes, kind="stable")
        again = np.flatnonzero(np.diff(hashes[order]) == 0)
        for k in again[np.argsort(order[again + 1])]:
            record_id, path, line = self._place(int(order[k]))
            second = self._place(int(order[k + 1]))
            if second[0] == record_id:
                raise self._error(*second, "", f"the id was given before, at {path}:{line}; ids must be unique: "
                                               "rename or remove one of the two")

    def _check_unlabelled(self) -> None:
        """Refuse an import whose records and joined table do not match, naming the first of each side."""
        if not self._table:
            return
        known = set(self._ids.texts())
        spare = [f"{name!r} (line {line})" for name, (_, line) in self._table.items() if name not in known]
        findings = [f"{what} ({len(found)}): {', '.join(found[:5])}{', …' * (len(found) > 5)}"
                    for what, found in (("records without a row here", list(map(repr, self._unlabelled))),
                                        ("rows without a record", spare)) if found]
        if findings:
            raise RawFormatError(f"{self._options.labels}: {'; '.join(findings)}; expected one row for each "
                                 "record; correct the ids", path=self._options.labels)

    def _encode_labels(self) -> tuple[str, list[str], np.ndarray | None]:
        if self._label_column is None:
            return "none", [], None
        column, kind = self._label_column, str(self._options.label_type)
        texts = self._columns[column]
        if kind == "auto":
            kind = labels.choose_label_type(texts.texts())
        if kind == "number":
            return kind, [], labels.encode_numbers(
                texts.texts(), lambda i, finding: self._error(*self._place(i), column, finding))
        numbers, names = labels.encode_classes(texts.texts())
        return kind, names, numbers

    def _split_rows(self, classes: np.ndarray | None) -> dict[str, np.ndarray]:
        if self._rule.kind == "none":
            return {}
        number, names = np.frombuffer(self._split_numbers, np.uint16), list(map(str, self._splits))
        if self._rule.by == "stratified":
            if classes is None:
                raise OptionError("--split-by stratified needs class labels; name their column with --label-column")
            hashes = hash_texts(self._ids.values(), self._ids.offsets(), seed=self._rule.seed)
            number, names = draw_by_class(self._rule, classes, hashes), list(self._rule.names)
        rows = {name: np.flatnonzero(number == k).astype("<u8") for k, name in enumerate(names)}
        rows = {name: found for name, found in rows.items() if len(found)}
        order = [*(name for name in SPLIT_NAMES if name in rows), *sorted(set(rows) - set(SPLIT_NAMES))]
        return {name: rows[name] for name in order}

    def _input(self, formats: list[str]) -> dict[str, Any]:
        """Return what ``predict`` needs to read new input the same way."""
        return {
            "format": formats[0] if len(set(formats)) == 1 else "auto",
            "id_column": self._options.id_column,
            "sequence_column": self._options.sequence_column,
            "label_column": self._label_column,
            "encoding": self._options.encoding,
        }


def _text_content(column: str, spool: RaggedSpool) -> dict[str, Content]:
    name = f"metadata/{dataset_name(column)}"
    return {f"{name}/values": Content.of(spool.values()), f"{name}/offsets": Content.of(spool.offsets())}


def _column_content(column: str, spool: RaggedSpool) -> dict[str, Content]:
    """Return a metadata column: numbers where every text is one, else text."""
    kind = labels.column_type(spool.texts())
    if kind == "text":
        return _text_content(column, spool)
    parse = int if kind == "<i8" else float
    return {f"metadata/{dataset_name(column)}": Content.of(np.fromiter(map(parse, spool.texts()), kind))}


def find_label_column(options: PreprocessOptions, names: Collection[str]) -> str | None:
    """Return the column with the labels, None without labels."""
    if options.label_type == "none":
        return None
    return options.label_column or ("label" if "label" in names else None)
