"""Decide which records of an import stay, under which ids, and join the table of ``--labels`` to them.

Place in the flow: parts, labels table -> [selection] -> assembly.

Policies that compare records with each other or with the table are applied here, in the order of
the input, so that neither workers nor the cuts between parts matter: ``--on-unmatched`` first, then
``--on-duplicate``. What they changed is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from seqpipe.agreement import SPARE
from seqpipe.errors import RawFormatError
from seqpipe.hashing import find_repeats, hash_strings
from seqpipe.options import PreprocessOptions
from seqpipe.parts import Part, Ragged, find_part
from seqpipe.readers import record_stem
from seqpipe.records import Record
from seqpipe.spool import RaggedSpool, Spools

LabelTable = dict[str, tuple[dict[str, str], int]]


class Selection:
    """The records of all parts that stay in the store.

    Args:
        parts: in the order of the input.
        options: as the user gave them.
        table: what is joined to the records by id, as ``read_labels`` returns it; may be empty.
        find: returns the record with a number (from 1) in a part again, to name its place.
        folder: an empty one, for further spools.

    Attributes:
        columns: names of the columns of the records, then of those joined.
        used: how many rows of the table have a record.
        keep: (all records,) bool, which of them stay; None is all.
        counts: how many records or rows were changed or left out, by what was done to them.

    Raises:
        RawFormatError: records and table do not match, an id stands twice, or nothing is left (but in a shard).
    """

    def __init__(self, parts: Sequence[Part], options: PreprocessOptions, table: LabelTable,
                 find: Callable[[Part, int], Record], folder: Path) -> None:
        self.parts, self._options, self._table, self._find = parts, options, table, find
        self._joined = list(next(iter(table.values()), ({}, 0))[0])
        self.columns = [*parts[0].state["columns"], *self._joined]
        self.keep: np.ndarray | None = None
        self.counts: Counter[str] = Counter()
        self.used = 0
        self._ids_name = "id"
        spools = Spools(folder)
        self._name_by_number(spools)
        if table:
            self._join(spools)
        self._settle_duplicates(spools)
        if not len(self.rows()) and options.shard is None:  # the other shards may hold some
            reasons = sum((Counter(part.state["counts"]) for part in parts), self.counts)
            raise RawFormatError(f"{parts[0].pieces[0]['path']}: no record is left: "
                                 f"{', '.join(f'{name} ({count:,})' for name, count in reasons.items())}; correct the "
                                 "input, or change the options that leave them out")

    def ids(self) -> Ragged:
        """Return the ids of the records that stay."""
        return Ragged(self.parts, self._ids_name, keep=self.keep)

    def column(self, name: str) -> Ragged:
        """Return the texts of a column of the records that stay."""
        return Ragged(self.parts, f"column{self.columns.index(name)}", keep=self.keep)

    def rows(self) -> np.ndarray:
        """Return the number, among all records, of each record that stays."""
        if self.keep is None:
            return np.arange(sum(part.rows for part in self.parts))
        return np.flatnonzero(self.keep)

    def file_counts(self) -> Iterator[tuple[str, int]]:
        """Yield the path of each slice, and how many of its records stay."""
        first = 0
        for piece in (piece for part in self.parts for piece in part.pieces):
            rows = piece["rows"]
            yield piece["path"], rows if self.keep is None else int(self.keep[first : first + rows].sum())
            first += rows

    def error(self, i: int, column: str, finding: str) -> RawFormatError:
        """Return the error about a ``column`` of the ``i``-th record that stays.

        It names the record's place, or that of its row of the joined table.
        """
        return self._error(int(self.rows()[i]), column, finding)

    def _error(self, i: int, column: str, finding: str) -> RawFormatError:
        record_id = Ragged(self.parts, "id").text(i)
        where = f"column {column!r}: " if column else ""
        if column in self._joined and self._options.labels is not None:
            path, line = self._options.labels, self._table[record_id][1]
            return RawFormatError(f"{path}:{line}: record {record_id!r}: {where}{finding}", path=path, line=line)
        return replace(self._record(i), id=record_id).error(where + finding)

    def _record(self, i: int) -> Record:
        """Return record ``i`` of all again, to name its place."""
        part, row = find_part(self.parts, i)
        return self._find(part, int(part.numbers()[row]))

    def _name_by_number(self, spools: Spools) -> None:
        """Give the records of later slices of files without ids theirs: STEM:n, n from 1 in each file."""
        number, path = 0, ""
        for position, part in enumerate(self.parts):
            if part.pieces[0]["path"] != path:
                number, path = part.state.get("before", 0), part.pieces[0]["path"]
            if not part.state["ids"]:
                stem, spool = record_stem(Path(path)), spools.new_ragged(f"id{position}")
                for n in (part.numbers() + number).tolist():
                    spool.append(f"{stem}:{n}".encode())
                _adopt(part, "id", spool)
            number += part.state["read"]

    def _join(self, spools: Spools) -> None:
        """Add the columns of the table to all records; settle what is on one side only."""
        used: set[str] = set()
        unmatched: list[int] = []
        nothing = [""] * len(self._joined)
        row = 0
        for position, part in enumerate(self.parts):
            joined = [spools.new_ragged(f"joined{position}.{k}") for k in range(len(self._joined))]
            for name in Ragged([part], "id").texts():
                if name in self._table:
                    used.add(name)
                    texts = list(self._table[name][0].values())
                else:
                    unmatched.append(row)
                    texts = nothing  # to be left out
                for spool, text in zip(joined, texts, strict=True):
                    spool.append(text.encode())
                row += 1
            for k, spool in enumerate(joined, start=len(part.state["columns"])):
                _adopt(part, f"column{k}", spool)
        self.used = len(used)
        spare = [name for name in self._table if name not in used and self._options.shard is None]
        if self._options.on_unmatched == "error" and (unmatched or spare):
            raise self._unmatched(unmatched, spare)
        self._leave_out(unmatched, "records without a row in the table of --labels left out")
        if spare:
            self.counts[SPARE] = len(spare)

    def _unmatched(self, unmatched: list[int], spare: list[str]) -> RawFormatError:
        """Return the error that names the first of each side."""
        ids = Ragged(self.parts, "id")
        shown = {"records without a row here": [repr(ids.text(row)) for row in unmatched[:5]],
                 "rows without a record": [f"{name!r} (line {self._table[name][1]})" for name in spare[:5]]}
        counts = (len(unmatched), len(spare))
        findings = [f"{what} ({count}): {', '.join(names)}{', …' * (count > 5)}"
                    for (what, names), count in zip(shown.items(), counts, strict=True) if count]
        return RawFormatError(f"{self._options.labels}: {'; '.join(findings)}; expected one row for each record; "
                              "correct the ids, or leave them out with --on-unmatched skip", path=self._options.labels)

    def _settle_duplicates(self, spools: Spools) -> None:
        """Refuse, leave out or rename all records whose id was given before."""
        rows, ids = self.rows(), Ragged(self.parts, "id")
        hashes = self.ids().hashes(self._options.seed)
        again, first = find_repeats(hashes, lambda i: ids.text(int(rows[i])))
        if not len(again):
            return
        if self._options.value_columns:
            self._check_long_tables(rows[again].tolist(), rows[first].tolist())
        if self._options.on_duplicate == "error":
            raise self._error(int(rows[again[0]]), "", f"the id was given before, at "
                              f"{self._record(int(rows[first[0]])).where()}; ids must be unique: rename or remove one "
                              "of the two, or see --on-duplicate")
        if self._options.on_duplicate == "skip":
            return self._leave_out(rows[again].tolist(), "records whose id was given before left out")
        renamed = rename([ids.text(int(rows[i])) for i in again.tolist()], hashes, seed=self._options.seed)
        new = dict(zip(rows[again].tolist(), renamed, strict=True))
        row = 0
        for position, part in enumerate(self.parts):
            spool = spools.new_ragged(f"renamed{position}")
            for name in Ragged([part], "id").rows():
                spool.append(new[row].encode() if row in new else name)
                row += 1
            _adopt(part, "id.renamed", spool)
        self._ids_name = "id.renamed"
        self.counts["records whose id was given before renamed"] = len(new)

    def _check_long_tables(self, again: list[int], first: list[int]) -> None:
        """Refuse an id that comes back in a long table, whatever the policy: its rows are of one record."""
        for row, before in zip(again, first, strict=True):
            piece, first_piece = (part.piece(k) for part, k in (find_part(self.parts, i) for i in (row, before)))
            if piece["format"] in ("csv", "tsv") and piece is first_piece:
                raise self._error(row, "", f"the rows of this id started at {self._record(before).where()} and were "
                                  "broken off by those of another; expected the rows of one id one below the other: "
                                  "sort the table by id")

    def _leave_out(self, rows: list[int], what: str) -> None:
        if rows:
            if self.keep is None:
                self.keep = np.ones(len(self.rows()), bool)
            self.keep[rows] = False
            self.counts[what] = len(rows)


def rename(again: Sequence[str], hashes: np.ndarray, *, seed: int = 0) -> list[str]:
    """Return new ids for ids that were given before: ID.2, ID.3 …, none that is given already.

    Args:
        again: the ids, one for each time that they were given before.
        hashes: (n,) uint64, of all ids given, as ``hash_strings`` has them. (Where only the hash is
            one that is given, the next number does as well.)
        seed: of these hashes.
    """
    counts: Counter[str] = Counter()
    first = []  # what most get: two of these are equal only where id and number are
    for name in again:
        counts[name] += 1
        first.append(f"{name}.{counts[name] + 1}")
    taken = np.isin(hash_strings(first, seed=seed), hashes)
    late = {again[i] for i in np.flatnonzero(taken).tolist()}
    counts.clear()
    for i, name in enumerate(again):
        while name in late:
            counts[name] += 1
            first[i] = f"{name}.{counts[name] + 1}"
            if hash_strings([first[i]], seed=seed)[0] not in hashes:
                break
    return first


def _adopt(part: Part, name: str, spool: RaggedSpool) -> None:
    part.adopt(name, spool.values)
    part.adopt(f"{name}.lengths", spool.lengths)
