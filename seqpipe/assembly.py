"""Decide, with all records of an import seen, what the store holds.

Place in the flow: parts -> selection -> [assembly] -> contents and header -> writer.

Nothing here grows with the length of the sequences; a record costs about 24 bytes of memory (and
its row of a joined table), the rest stays in the mapped spools of the parts.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from seqpipe import labels
from seqpipe.columns import ListColumn
from seqpipe.errors import OptionError, RawFormatError
from seqpipe.layout import dataset_name
from seqpipe.leakage import parted
from seqpipe.likeness import Given
from seqpipe.options import PreprocessOptions
from seqpipe.parts import Ragged, offsets_of
from seqpipe.plan import find_label_column
from seqpipe.records import split_names
from seqpipe.selection import Selection
from seqpipe.splits import SPLIT_NAMES, SplitRule, draw_by_class, draw_by_hash, split_name, split_of_file
from seqpipe.summary import moments_of, summarise_lengths
from seqpipe.targets import Targets
from seqpipe.values import Values
from seqpipe.writer import Content

MAX_SPLITS = 1000
FEW = 1000  # labels that mostly tell of which type all are


@dataclass(frozen=True)
class Labels:
    """The labels of all records.

    Attributes:
        type: class, number, multilabel or none.
        classes: their names; empty for numbers and none.
        numbers: (N,) class numbers or numbers; (L,) class numbers of all records for multilabel.
        offsets: (N+1,) for multilabel: where the classes of a record end; else None.
    """

    type: str
    classes: list[str]
    numbers: np.ndarray | None = None
    offsets: np.ndarray | None = None

    def contents(self) -> dict[str, Content]:
        """Return what the store holds of them."""
        if self.numbers is None:
            return {}
        if self.offsets is None:
            return {"metadata/label": Content.of(self.numbers)}
        return {"metadata/label/values": Content.of(self.numbers), "metadata/label/offsets": Content.of(self.offsets)}

    def classes_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the class numbers of some records, end to end; None without classes."""
        if not self.classes or self.numbers is None:
            return None
        if self.offsets is None:
            return self.numbers[rows]
        return ListColumn(self.numbers, self.offsets).numbers(rows)


def assemble(
    selection: Selection, options: PreprocessOptions, rule: SplitRule, given: Given, formats: list[str]
) -> tuple[dict[str, Content], dict[str, Any]]:
    """Return the store's contents, and its header without the provenance.

    Args:
        selection: the records that stay.
        options: as the user gave them.
        rule: the parsed ``--split``.
        given: what ``--classes`` and ``--like`` fix beforehand.
        formats: of the raw files.

    Raises:
        RawFormatError: records that do not go together; the message names file, line and id.
        OptionError: the options do not fit the input.
    """
    label_column = find_label_column(options, selection.columns)
    others = [name for name in selection.columns if name not in (label_column, options.target_column)]
    if given.columns and rule.column not in given.columns:  # all that it says goes into the splits
        others = [name for name in others if name != rule.column]
    _check_columns(["id", *(["label"] if label_column is not None else []), *others], given)
    values = Values(selection.parts, options.alphabet, options.case, selection.keep)
    found = _encode_labels(selection, label_column, options, given)
    contents = {"values": values.content(), "offsets": Content.of(offsets_of(values.lengths))}
    contents |= _text_content("id", selection.ids())
    contents |= found.contents()
    writing: dict[str, list[str]] = {}
    for name in others:
        texts = selection.column(name)
        ways = labels.common_ways(texts.distinct())
        found_type = labels.type_of_ways(ways) if len(values.lengths) else given.columns.get(name, "text")
        if (kind := _column_type(name, found_type, given)) != "text":
            writing[name] = ways
        contents |= _column_content(name, texts, kind)
    tracks, target_classes = _tracks(selection, values.lengths, options, given)
    contents |= tracks
    numbers, names = _split_numbers(selection, rule, found)
    splits = _split_rows(numbers, names)
    contents |= {f"splits/{name}": Content.of(rows) for name, rows in splits.items()}
    every = {"all": np.arange(len(values.lengths)), **splits}
    header: dict[str, Any] = {
        "kind": values.kind,
        "encoding": values.header(),
        "label_type": found.type,
        "classes": found.classes,
        "channels": list(split_names(options.value_columns)) or [f"c{i + 1}" for i in range(values.num_channels)],
        "columns": ["id", *(["label"] if label_column is not None else []), *others],
        "splits": {name: summarise_lengths(values.lengths[rows], found.classes_of(rows), len(found.classes))
                   for name, rows in every.items()},
        "writing": writing,
        "input": _input(options, formats, label_column, rule),
    }
    if target_classes:
        header["target_classes"] = target_classes
    if len(splits) > 1:
        header["leakage"] = _count_leakage(selection, values, rule, numbers)
    if values.num_channels:
        if options.on_missing == "nan":
            header["encoding"]["missing"] = True
        counted = np.zeros(len(values.lengths), bool)
        counted[splits.get("train", np.arange(len(counted))).astype(np.int64)] = True
        header["moments"] = moments_of(values.features(counted), values.num_channels)
    return contents, header


def _check_columns(columns: list[str], given: Given) -> None:
    if given.columns and given.columns.keys() != set(columns):
        raise OptionError(f"--like {given.path}: the columns of that store are {sorted(given.columns)}, those here "
                          f"{sorted(columns)}; expected the same")


def _encode_labels(selection: Selection, column: str | None, options: PreprocessOptions, given: Given) -> Labels:
    if column is None:
        return Labels("none", [])
    texts = selection.column(column)

    def error(i: int, finding: str) -> RawFormatError:
        return selection.error(i, column, finding)

    kind = given.label_type if options.label_type == "auto" and given.label_type else str(options.label_type)
    if kind != "multilabel" and len(empty := np.flatnonzero(texts.lengths() == 0)):
        raise error(int(empty[0]), "the label is empty; fill it in, or use --label-type none")
    if kind == "auto" and labels.choose_label_type(islice(texts.texts(), FEW)) == "number":
        kind = labels.choose_label_type(texts.distinct())  # most are different: not to be held all at once
    if kind in ("auto", "class"):
        found, distinct = texts.numbered()
        kind = labels.choose_label_type(distinct) if kind == "auto" else kind
    if kind == "number":
        return Labels(kind, [], labels.encode_numbers(texts.texts(), error))
    if kind == "class":
        numbers, names = labels.encode_classes(found, distinct, given.classes, error)
        return Labels(kind, names, numbers)
    numbers, offsets, names = labels.encode_label_sets(texts.texts(), options.label_separator, given.classes, error)
    if not names:
        raise OptionError(f"--label-type multilabel: column {column!r} names no class in any record; name the column "
                          "of labels with --label-column")
    return Labels(kind, names, numbers, offsets)


def _tracks(
    selection: Selection, lengths: np.ndarray, options: PreprocessOptions, given: Given
) -> tuple[dict[str, Content], list[str]]:
    """Return the tracks of the records and of ``--target-column``, and the classes of the latter."""
    contents = {}
    shape = (int(lengths.sum()),)
    for k, name in enumerate(selection.parts[0].state["tracks"]):
        track = Ragged(selection.parts, f"track{k}", lengths="lengths", keep=selection.keep)
        contents[f"tracks/{dataset_name(name)}"] = Content(shape, track.dtype, track.blocks())
    column = options.target_column
    if column is None:
        return contents, []
    if "tracks/target" in contents:
        raise OptionError(f"--target-column {column}: the input has a track 'target' already; leave the option out")
    targets = Targets(selection.column(column).texts, lengths, given.target_classes,
                      lambda i, finding: selection.error(i, column, finding),
                      options.max_length if options.on_long == "truncate" else None)
    contents["tracks/target"] = Content(shape, targets.dtype, targets.blocks())
    return contents, targets.classes


def _split_numbers(selection: Selection, rule: SplitRule, found: Labels) -> tuple[np.ndarray, list[str]]:
    """Return (N,) the number of each record's split, and the names of the splits."""
    if rule.kind == "none":
        return np.empty(0, np.uint16), []
    if rule.group and len(empty := np.flatnonzero(selection.column(rule.group).lengths() == 0)):
        raise selection.error(int(empty[0]), rule.group, "the group is empty; fill it in: records without one would "
                              "all be one group")
    if rule.kind != "random":
        return _told_splits(selection, rule)
    hashes = (selection.column(rule.group) if rule.group else selection.ids()).hashes(rule.seed)
    if rule.by != "stratified":
        return draw_by_hash(rule, hashes), list(rule.names)
    if found.type != "class" or found.numbers is None:
        raise OptionError(f"--split-by stratified needs class labels, and the labels are {found.type!r}; name their "
                          "column with --label-column, or take another --split-by")
    return draw_by_class(rule, found.numbers, hashes), list(rule.names)


def _told_splits(selection: Selection, rule: SplitRule) -> tuple[np.ndarray, list[str]]:
    """Return the splits that a column or the files' names tell, as ``_split_numbers``."""
    numbers = array("H")
    names: dict[str, int] = {}
    texts = (selection.column(rule.column).texts() if rule.column else
             (os.path.basename(path) for path, count in selection.file_counts() for _ in range(count)))
    for i, text in enumerate(texts):
        try:
            split = split_name(text) if rule.column else split_of_file(text)
        except ValueError as error:
            raise selection.error(i, rule.column, str(error)) from None
        number = names.setdefault(split, len(names))
        if number == MAX_SPLITS:
            raise selection.error(i, rule.column, f"found more than {MAX_SPLITS} different splits; choose another "
                                                  "column for --split")
        numbers.append(number)
    return np.frombuffer(numbers, np.uint16), list(names)


def _split_rows(numbers: np.ndarray, names: list[str]) -> dict[str, np.ndarray]:
    """Return the rows of each split that is not empty, in the order in which splits are named."""
    rows = {name: np.flatnonzero(numbers == k).astype("<u8") for k, name in enumerate(names)}
    rows = {name: found for name, found in rows.items() if len(found)}
    order = [*(name for name in SPLIT_NAMES if name in rows), *sorted(set(rows) - set(SPLIT_NAMES))]
    return {name: rows[name] for name in order}


def _count_leakage(selection: Selection, values: Values, rule: SplitRule, numbers: np.ndarray) -> dict[str, int]:
    """Return how many sequences, and where groups are known how many groups, stand in more than one split."""
    counts = {"sequences": len(parted(*values.repeats(), numbers))}
    if rule.group:
        counts["groups"] = len(parted(*selection.column(rule.group).repeats(), numbers))
    return counts


def _input(
    options: PreprocessOptions, formats: list[str], label_column: str | None, rule: SplitRule
) -> Mapping[str, Any]:
    """Return what ``predict`` needs to read new input the same way, and which columns mean what."""
    return {
        "format": formats[0] if len(set(formats)) == 1 else "auto",
        "id_column": options.id_column,
        "sequence_column": options.sequence_column,
        "label_column": label_column,
        "target_column": options.target_column,
        "group_column": rule.group or None,
        "encoding": options.encoding,
        "time_column": options.time_column,
        "value_columns": options.value_columns,
        "on_missing": options.on_missing,
        "on_undecodable": options.on_undecodable,
    }


def _text_content(column: str, texts: Ragged) -> dict[str, Content]:
    name, offsets = f"metadata/{dataset_name(column)}", offsets_of(texts.lengths())
    return {f"{name}/values": Content((int(offsets[-1]),), np.dtype("u1"), texts.blocks()),
            f"{name}/offsets": Content.of(offsets)}


def _column_type(column: str, found: str, given: Given) -> str:
    """Return the type of a metadata column: as ``--like`` has it, else what its texts are."""
    wanted = given.columns.get(column, found)
    if wanted not in (found, "text") and (wanted, found) != ("<f8", "<i8"):
        raise OptionError(f"--like {given.path}: column {column!r} holds numbers there ({wanted}), and here {found}; "
                          "correct the input, or leave --like out")
    return wanted


def _column_content(column: str, texts: Ragged, kind: str) -> dict[str, Content]:
    """Return a metadata column: of numbers of type ``kind``, or of text."""
    if kind == "text":
        return _text_content(column, texts)
    parse = int if kind == "<i8" else float
    return {f"metadata/{dataset_name(column)}": Content.of(np.fromiter(map(parse, texts.texts()), kind))}
