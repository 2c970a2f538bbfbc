"""Collect the records of one import and decide, with all of them seen, what the store holds.

Place in the flow: Record -> [intake] -> contents and header -> writer.

Nothing here grows with the length of the sequences; a record costs about 20 bytes of memory, and
the rest of it lies in spools in the output's folder.
"""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe import labels
from seqpipe.encoding import Encoded, Features, FoundInts, collect_sequences
from seqpipe.errors import RawFormatError
from seqpipe.layout import dataset_name
from seqpipe.options import PreprocessOptions
from seqpipe.records import Record
from seqpipe.splits import SPLIT_NAMES, SplitRule
from seqpipe.spool import RaggedSpool
from seqpipe.summary import channel_moments, summarise_lengths
from seqpipe.writer import Content

RESERVED = ("id", "index")


class Intake:
    """Everything the records of one import have said so far."""

    def __init__(
        self,
        folder: Path,
        options: PreprocessOptions,
        rule: SplitRule,
        table: dict[str, tuple[dict[str, str], int]] | None,
    ) -> None:
        self._folder, self._options, self._rule, self._table = folder, options, rule, table
        self._sequences: Encoded | None = None
        self._ids = RaggedSpool(folder / "id")
        self._columns: dict[str, RaggedSpool] = {}
        self._label_column: str | None = None
        self._hashes, self._lines, self._split_numbers = array("q"), array("Q"), array("H")
        self._splits: dict[str | None, int] = {}
        self._files: list[tuple[int, Path]] = []  # first record of each file
        self._unlabelled: list[str] = []

    def add(self, record: Record, number: int) -> None:
        """Take one record, the ``number``-th of its file (from 1).

        Raises:
            RawFormatError: it is not allowed; the message names file, line and id.
        """
        record_id = name_record(record, number)
        if not self._files or self._files[-1][1] is not record.path:
            self._files.append((len(self._lines), record.path))
        columns = self._joined(record, record_id)
        if columns is None:
            return  # ``finish`` refuses the import, naming all records without a row
        if self._sequences is None:
            self._start(record, columns)
        elif columns.keys() != self._columns.keys():
            raise record.error(
                f"has the columns {sorted(columns)}, but the first record has {sorted(self._columns)}; "
                "expected the same in all records"
            )
        self._add_sequence(record)
        if self._label_column is not None and not columns[self._label_column]:
            raise record.error(f"the label (column {self._label_column!r}) is empty; expected one, "
                               "or use --label-type none")
        split = self._rule.split_of(record, record_id, columns)
        try:
            self._ids.append(record_id.encode())
            for name, text in columns.items():
                self._columns[name].append(text.encode())
        except UnicodeEncodeError as error:
            raise record.error(f"text that UTF-8 cannot hold ({error})") from None
        self._split_numbers.append(self._splits.setdefault(split, len(self._splits)))
        self._hashes.append(hash(record_id))
        self._lines.append(record.line)

    def finish(self, formats: list[str]) -> tuple[dict[str, Content], dict[str, Any], list[str]]:
        """Return the store's contents, its header, and notes for the user."""
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
        splits = self._split_rows()
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
            "provenance": self._provenance(),
        }
        if isinstance(self._sequences, Features):
            train = splits.get("train", np.arange(len(lengths), dtype="<u8"))
            header["moments"] = channel_moments(self._sequences.array(), offsets, train)
        return contents, header, self._notes(header)

    def close(self) -> None:
        for spool in (self._ids, *self._columns.values()):
            spool.close()

    def _joined(self, record: Record, record_id: str) -> dict[str, str] | None:
        """Return the record's columns with those of the joined table, None where it has no row."""
        if self._table is None:
            return record.columns
        row = self._table.get(record_id)
        if row is None:
            self._unlabelled.append(record_id)
            return None
        if both := record.columns.keys() & row[0].keys():
            raise record.error(f"the columns {sorted(both)} stand both here and in {self._options.labels}; "
                               "rename or drop them in one")
        return {**record.columns, **row[0]}

    def _start(self, record: Record, columns: dict[str, str]) -> None:
        """Decide with the first record what is read, and how."""
        wanted = self._options.label_column
        if wanted is not None and wanted not in columns:
            raise record.error(f"no column {wanted!r} for --label-column; the columns are {sorted(columns)}")
        if self._options.label_type != "none":
            self._label_column = wanted or ("label" if "label" in columns else None)
        taken = [*RESERVED, *(["label"] if self._label_column not in (None, "label") else [])]
        if clash := [name for name in taken if name in columns]:
            raise record.error(f"the column {clash[0]!r} has a name that seqpipe gives to another thing "
                               "(id of the record, its row number, its label); rename it")
        for position, name in enumerate(columns):
            self._columns[name] = RaggedSpool(self._folder / f"column{position}")
        try:
            self._sequences = collect_sequences(self._folder, self._options.alphabet, record.sequence)
        except ValueError as error:
            raise record.error(str(error)) from None

    def _add_sequence(self, record: Record) -> None:
        assert self._sequences is not None
        if not len(record.sequence):
            raise record.error("the sequence is empty; expected at least one element; correct or remove "
                               "the record", line=record.sequence_line)
        try:
            self._sequences.append(record.sequence)
        except ValueError as error:
            remedy = ("" if isinstance(self._sequences, Features | FoundInts)
                      else "; correct the record, or choose another --alphabet")
            raise record.error(f"{error}{remedy}", line=record.sequence_line) from None

    def _error(self, i: int, finding: str) -> RawFormatError:
        """Return the error about record ``i``, after the pass over the input."""
        path = next(path for first, path in reversed(self._files) if first <= i)
        line = self._lines[i]
        return RawFormatError(f"{path}:{line}: record {self._ids.text(i)!r}: {finding}", path=path, line=line)

    def _check_duplicates(self) -> None:
        hashes = np.frombuffer(self._hashes, np.int64)
        order = np.argsort(hashes, kind="stable")
        for k in np.flatnonzero(np.diff(hashes[order]) == 0):
            first, second = int(order[k]), int(order[k + 1])
            if self._ids.text(first) == self._ids.text(second):
                path = next(path for start, path in reversed(self._files) if start <= first)
                raise self._error(second, f"the id was given before, at {path}:{self._lines[first]}; "
                                          "ids must be unique: rename or remove one of the two")

    def _check_unlabelled(self) -> None:
        if self._table is None:
            return
        known = set(self._ids.texts())
        spare = [f"{name!r} (line {line})" for name, (_, line) in self._table.items() if name not in known]
        findings = []
        if self._unlabelled:
            findings.append(f"{len(self._unlabelled)} records have no row here: "
                            f"{', '.join(map(repr, self._unlabelled[:5]))}{', …' * (len(self._unlabelled) > 5)}")
        if spare:
            findings.append(f"{len(spare)} rows have no record: {', '.join(spare[:5])}{', …' * (len(spare) > 5)}")
        if findings:
            raise RawFormatError(f"{self._options.labels}: {'; '.join(findings)}; expected one row for each "
                                 "record; correct the ids", path=self._options.labels)

    def _encode_labels(self) -> tuple[str, list[str], np.ndarray | None]:
        if self._label_column is None:
            return "none", [], None
        texts = self._columns[self._label_column]
        kind = self._options.label_type
        if kind == "auto":
            kind = labels.choose_label_type(texts.texts())  # type: ignore[assignment]
        if kind == "number":
            return kind, [], labels.encode_numbers(texts.texts(), self._error)
        numbers, names = labels.encode_classes(texts.texts())
        return kind, names, numbers

    def _split_rows(self) -> dict[str, np.ndarray]:
        if self._rule.kind == "none":
            return {}
        number = np.frombuffer(self._split_numbers, np.uint16)
        rows = {str(name): np.flatnonzero(number == k).astype("<u8") for name, k in self._splits.items()}
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

    def _provenance(self) -> dict[str, Any]:
        """Return sources and options: what decides the content, and nothing that does not."""
        sources = [*self._options.raw, *([self._options.labels] if self._options.labels else [])]
        digests = []
        for path in sources:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            digests.append({"name": path.name, "size": path.stat().st_size, "sha256": digest})
        names = ("format", "id_column", "sequence_column", "label_column", "label_type", "split", "encoding", "seed")
        options = {name: getattr(self._options, name) for name in names}
        return {"sources": digests, "options": options | {"alphabet": Path(self._options.alphabet).name}}

    def _notes(self, header: dict[str, Any]) -> list[str]:
        count, classes = len(self._lines), header["classes"]
        notes = []
        if header["label_type"] == "class" and self._options.label_type == "auto":
            notes.append("labels are taken as classes; --label-type number reads them as numbers")
        if len(classes) == 1:
            notes.append(f"all records have the same label, {classes[0]!r}: there is nothing to classify")
        elif len(classes) > max(100, count // 2):
            notes.append(f"{len(classes):,} classes for {count:,} records: are these labels?")
        notes += [f"the split {name!r} is empty" for name in SPLIT_NAMES
                  if self._rule.kind == "random" and name not in header["splits"]
                  and dict(zip(SPLIT_NAMES, self._rule.shares, strict=False)).get(name, 0) > 0]
        return notes


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


def name_record(record: Record, number: int) -> str:
    """Return the record's id, or STEM:n for the ``number``-th record (from 1) of a file without ids.

    Raises:
        RawFormatError: the id is empty or holds NUL.
    """
    if record.id is None:
        path = record.path.with_suffix("") if record.path.suffix in (".gz", ".bz2", ".xz") else record.path
        return f"{path.stem}:{number}"
    if not record.id or "\0" in record.id:
        raise record.error(f"the id is {record.id!r}; expected text without NUL")
    return record.id
