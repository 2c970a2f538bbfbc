"""Decide, with all records of an import seen, what the store holds.

Place in the flow: parts -> [assembly] -> contents and header -> writer.

Nothing here grows with the length of the sequences; a record costs about 24 bytes of memory (and
its row of a joined table), the rest stays in the mapped spools of the parts.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe import labels
from seqpipe.errors import OptionError, RawFormatError
from seqpipe.hashing import find_repeats
from seqpipe.intake import find_label_column
from seqpipe.layout import dataset_name
from seqpipe.options import PreprocessOptions
from seqpipe.parts import Part, Ragged, find_part, offsets_of
from seqpipe.readers import record_stem
from seqpipe.records import Record, split_names
from seqpipe.spool import RaggedSpool, Spools
from seqpipe.splits import SPLIT_NAMES, SplitRule, draw_by_class, draw_by_hash, split_name, split_of_file
from seqpipe.summary import MOMENT_ROWS, moments_of_groups, summarise_lengths
from seqpipe.values import Values
from seqpipe.writer import Content

LabelTable = dict[str, tuple[dict[str, str], int]]
MAX_SPLITS = 1000


class Assembly:
    """All parts of an import, and what joins them.

    Args:
        parts: in the order of the input; at least one record among them.
        options: as the user gave them.
        rule: the parsed ``--split``.
        table: what is joined to the records by id, as ``read_labels`` returns it; may be empty.
        find: returns the record with a number (from 1) in a part again, to name its place.
        folder: an empty one, for further spools.
    """

    def __init__(self, parts: Sequence[Part], options: PreprocessOptions, rule: SplitRule, table: LabelTable,
                 find: Callable[[Part, int], Record], folder: Path) -> None:
        self._parts, self._options, self._rule, self._table = parts, options, rule, table
        self._find = find
        self._keep: np.ndarray | None = None  # which records stay in the store; None is all
        self._joined = list(next(iter(table.values()), ({}, 0))[0])
        self._columns = [*parts[0].state["columns"], *self._joined]
        self._label_column = find_label_column(options, self._columns)
        self._complete(Spools(folder))

    def assemble(self, formats: list[str]) -> tuple[dict[str, Content], dict[str, Any]]:
        """Return the store's contents, and its header without the provenance.

        Raises:
            RawFormatError: records that do not go together; the message names file, line and id.
        """
        self._check_empty_labels()
        self._check_duplicates()
        values = Values(self._parts, self._options.alphabet, self._options.case, self._keep)
        contents = {"values": values.content(), "offsets": Content.of(offsets_of(values.lengths))}
        contents |= self._text_content("id")
        label_type, classes, label = self._encode_labels()
        if label is not None:
            contents["metadata/label"] = Content.of(label)
        splits = self._split_rows(label if classes else None)
        others = [name for name in self._columns if name != self._label_column]
        writing: dict[str, list[str]] = {}
        for name in others:
            texts = self._column(name)
            if ways := labels.common_ways(texts.texts()):
                writing[name] = ways
            contents |= self._column_content(name, texts, labels.type_of_ways(ways))
        for k, name in enumerate(self._parts[0].state["tracks"]):
            track = Ragged(self._parts, f"track{k}", lengths="lengths", keep=self._keep)
            shape = (int(values.lengths.sum()),)
            contents[f"tracks/{dataset_name(name)}"] = Content(shape, track.dtype, track.blocks())
        for name, rows in splits.items():
            contents[f"splits/{name}"] = Content.of(rows)
        every = {"all": np.arange(len(values.lengths)), **splits}
        classes_of = label if classes else None
        header: dict[str, Any] = {
            "kind": values.kind,
            "encoding": values.header(),
            "label_type": label_type,
            "classes": classes,
            "channels": (list(split_names(self._options.value_columns)) or
                         [f"c{i + 1}" for i in range(values.num_channels)]),
            "columns": ["id", *(["label"] if label is not None else []), *others],
            "splits": {
                name: summarise_lengths(values.lengths[rows], None if classes_of is None else classes_of[rows],
                                        len(classes))
                for name, rows in every.items()
            },
            "writing": writing,
            "input": self._input(formats),
        }
        if values.num_channels:
            if self._options.on_missing == "nan":
                header["encoding"]["missing"] = True
            counted = np.zeros(len(values.lengths), bool)
            counted[splits.get("train", np.arange(len(counted))).astype(np.int64)] = True
            header["moments"] = moments_of_groups(values.groups(MOMENT_ROWS), counted, values.num_channels)
        return contents, header

    def _complete(self, spools: Spools) -> None:
        """Add the spools that the parts could not have: ids by number, and the joined columns."""
        unmatched: list[str] = []
        number, path = 0, ""
        for position, part in enumerate(self._parts):
            if part.state["path"] != path:
                number, path = 0, part.state["path"]
            if not part.state["ids"]:
                stem, spool = record_stem(Path(path)), spools.new_ragged(f"id{position}")
                for n in (part.numbers() + number).tolist():
                    spool.append(f"{stem}:{n}".encode())
                self._adopt(part, "id", spool)
            number += part.state["read"]
            if self._table:
                self._join(part, spools, position, unmatched)
        if self._table:
            self._check_matched(unmatched)

    def _join(self, part: Part, spools: Spools, position: int, unmatched: list[str]) -> None:
        """Add the columns of the joined table to a part."""
        joined = [spools.new_ragged(f"joined{position}.{k}") for k in range(len(self._joined))]
        for name in Ragged([part], "id").texts():
            row, _ = self._table.get(name, (None, 0))
            if row is None:
                unmatched.append(name)
                continue
            for spool, text in zip(joined, row.values(), strict=True):
                spool.append(text.encode())
        for k, spool in enumerate(joined, start=len(part.state["columns"])):
            self._adopt(part, f"column{k}", spool)

    @staticmethod
    def _adopt(part: Part, name: str, spool: RaggedSpool) -> None:
        part.adopt(name, spool.values)
        part.adopt(f"{name}.lengths", spool.lengths)

    def _column(self, name: str) -> Ragged:
        """Return the texts of a column of the records kept."""
        return Ragged(self._parts, f"column{self._columns.index(name)}", keep=self._keep)

    def _ids(self) -> Ragged:
        return Ragged(self._parts, "id", keep=self._keep)

    def _rows(self) -> np.ndarray:
        """Return the number, among all records, of each record kept."""
        if self._keep is None:
            return np.arange(sum(part.rows for part in self._parts))
        return np.flatnonzero(self._keep)

    def _error(self, i: int, column: str, finding: str) -> RawFormatError:
        """Return the error about a ``column`` of record ``i`` of all: at the record, or at its row of the table."""
        record_id = Ragged(self._parts, "id").text(i)
        where = f"column {column!r}: " if column else ""
        if column in self._joined and self._options.labels is not None:
            path, line = self._options.labels, self._table[record_id][1]
            return RawFormatError(f"{path}:{line}: record {record_id!r}: {where}{finding}", path=path, line=line)
        return replace(self._record(i), id=record_id).error(where + finding)

    def _record(self, i: int) -> Record:
        """Return record ``i`` of all again, to name its place."""
        part, row = find_part(self._parts, i)
        return self._find(part, int(part.numbers()[row]))

    def _check_matched(self, unmatched: list[str]) -> None:
        """Refuse an import whose records and joined table do not match, naming the first of each side."""
        known = set(Ragged(self._parts, "id").texts())
        spare = [f"{name!r} (line {line})" for name, (_, line) in self._table.items() if name not in known]
        findings = [f"{what} ({len(found)}): {', '.join(found[:5])}{', …' * (len(found) > 5)}"
                    for what, found in (("records without a row here", list(map(repr, unmatched))),
                                        ("rows without a record", spare)) if found]
        if findings:
            raise RawFormatError(f"{self._options.labels}: {'; '.join(findings)}; expected one row for each "
                                 "record; correct the ids", path=self._options.labels)

    def _check_empty_labels(self) -> None:
        if self._label_column is None:
            return
        empty = np.flatnonzero(self._column(self._label_column).lengths() == 0)
        if len(empty):
            raise self._error(int(self._rows()[empty[0]]), self._label_column,
                              "the label is empty; fill it in, or use --label-type none")

    def _check_duplicates(self) -> None:
        """Refuse the first record whose id was given before."""
        rows, ids = self._rows(), Ragged(self._parts, "id")
        again, first = find_repeats(self._ids().hashes(), lambda i: ids.text(int(rows[i])))
        if len(again):
            raise self._error(int(rows[again[0]]), "", f"the id was given before, at "
                              f"{self._record(int(rows[first[0]])).where()}; ids must be unique: rename or remove one "
                              "of the two")

    def _encode_labels(self) -> tuple[str, list[str], np.ndarray | None]:
        if self._label_column is None:
            return "none", [], None
        column, kind = self._label_column, str(self._options.label_type)
        texts = self._column(column)
        rows = self._rows()

        def error(i: int, finding: str) -> RawFormatError:
            return self._error(int(rows[i]), column, finding)

        if kind == "auto":
            kind = labels.choose_label_type(texts.texts())
        if kind == "number":
            return kind, [], labels.encode_numbers(texts.texts(), error)
        numbers, names = labels.encode_classes(texts.texts(), None, error)
        return kind, names, numbers

    def _split_rows(self, classes: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return the rows of each split, in the order in which splits are named."""
        rule = self._rule
        if rule.kind == "none":
            return {}
        if rule.kind != "random":
            number, names = self._told_splits()
        else:
            hashes = (self._column(rule.group) if rule.group else self._ids()).hashes(rule.seed)
            if rule.by == "stratified":
                if classes is None:
                    raise OptionError("--split-by stratified needs class labels; name their column with --label-column")
                number = draw_by_class(rule, classes, hashes)
            else:
                number = draw_by_hash(rule, hashes)
            names = list(rule.names)
        rows = {name: np.flatnonzero(number == k).astype("<u8") for k, name in enumerate(names)}
        rows = {name: found for name, found in rows.items() if len(found)}
        order = [*(name for name in SPLIT_NAMES if name in rows), *sorted(set(rows) - set(SPLIT_NAMES))]
        return {name: rows[name] for name in order}

    def _told_splits(self) -> tuple[np.ndarray, list[str]]:
        """Return the number of each record's split, and the splits' names, where the input tells them."""
        rule, numbers = self._rule, array("H")
        names: dict[str, int] = {}
        texts = (self._column(rule.column).texts() if rule.column else
                 (os.path.basename(part.state["path"]) for part in self._parts for _ in range(part.rows)))
        for i, text in enumerate(texts):
            try:
                split = split_name(text) if rule.column else split_of_file(text)
            except ValueError as error:
                raise self._error(int(self._rows()[i]), rule.column, str(error)) from None
            number = names.setdefault(split, len(names))
            if number == MAX_SPLITS:
                raise self._error(int(self._rows()[i]), rule.column,
                                  f"found more than {MAX_SPLITS} different splits; choose another column for --split")
            numbers.append(number)
        return np.frombuffer(numbers, np.uint16), list(names)

    def _input(self, formats: list[str]) -> dict[str, Any]:
        """Return what ``predict`` needs to read new input the same way."""
        return {
            "format": formats[0] if len(set(formats)) == 1 else "auto",
            "id_column": self._options.id_column,
            "sequence_column": self._options.sequence_column,
            "label_column": self._label_column,
            "encoding": self._options.encoding,
            "time_column": self._options.time_column,
            "value_columns": self._options.value_columns,
            "on_missing": self._options.on_missing,
            "on_undecodable": self._options.on_undecodable,
        }

    def _text_content(self, column: str, texts: Ragged | None = None) -> dict[str, Content]:
        texts = texts or self._ids()
        name, offsets = f"metadata/{dataset_name(column)}", offsets_of(texts.lengths())
        return {f"{name}/values": Content((int(offsets[-1]),), np.dtype("u1"), texts.blocks()),
                f"{name}/offsets": Content.of(offsets)}

    def _column_content(self, column: str, texts: Ragged, kind: str) -> dict[str, Content]:
        """Return a metadata column: of numbers of type ``kind``, or of text."""
        if kind == "text":
            return self._text_content(column, texts)
        parse = int if kind == "<i8" else float
        return {f"metadata/{dataset_name(column)}": Content.of(np.fromiter(map(parse, texts.texts()), kind))}
