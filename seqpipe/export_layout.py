"""Decide how the parts of a store are called in a raw file, and which import makes the store of it again.

Place in the flow: seqs.h5 -> store, sharded -> [export_layout] -> exporting.

What a format cannot hold is found before anything is written. JSON Lines hold everything.
"""

from __future__ import annotations

import heapq
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seqpipe.alphabet import NAMED_SYMBOLS, Alphabet
from seqpipe.chunks import Chunks
from seqpipe.columns import TextColumn
from seqpipe.errors import OptionError
from seqpipe.joined import JoinedTexts
from seqpipe.labels import order_classes
from seqpipe.sharded import ShardedStore
from seqpipe.splits import WHOLE, split_name
from seqpipe.store import Store

BLOCK = 1 << 22  # elements, or bytes of text, looked at together
ROWS = 1024  # rows of a split read together


@dataclass(frozen=True)
class Layout:
    """How the parts of a store are called in the file.

    Attributes:
        sequence: key of the sequence.
        columns: keys of the columns besides ``id``, each that of a metadata column.
        tracks: key of each track by its name.
        split: key of the split, None where it is not written.
        header: of the store.
        alphabet: of its tokens.
    """

    sequence: str
    columns: list[str]
    tracks: dict[str, str]
    split: str | None
    header: dict[str, Any]
    alphabet: Alphabet | None
    classes: list[str] = field(default_factory=list)


def choose_layout(store: Store | ShardedStore, chosen: str | None) -> Layout:
    """Return what is written of a store, and how it is called.

    Args:
        store: to take apart.
        chosen: names of columns, tracks and ``split``, separated by commas; None is everything.

    Raises:
        OptionError: a name is neither.
    """
    columns = [name for name in store.metadata if name != "id"]
    tracks, split = list(store.tracks), _split_key(store)
    if chosen is not None:
        names = [name for name in chosen.split(",") if name and name != "id"]
        if unknown := [name for name in names if name not in {*columns, *tracks, split or "split"}]:
            known = ", ".join(map(repr, [*columns, *tracks, *([split] if split else [])]))
            raise OptionError(f"--columns {chosen}: {store.path} has no {unknown[0]!r}; it has {known or 'only ids'}")
        columns, tracks = ([name for name in there if name in names] for there in (columns, tracks))
        split = split if split in names else None
    taken = {"id", *columns, *([split] if split else [])}
    keys = {name: f"tracks/{name}" for name in tracks}
    if both := [name for name, key in keys.items() if key in taken]:
        raise OptionError(f"{store.path}: the column {keys[both[0]]!r} has the name that is given to the track "
                          f"{both[0]!r}; leave one of the two out with --columns")
    if "target" in keys and store.header.get("target_classes"):
        keys["target"] = next(name for name in _numbered("target") if name not in taken)
    taken |= {*keys.values()}
    sequence = next(name for name in _numbered("sequence") if name not in taken)
    return Layout(sequence, columns, keys, split, store.header, store.alphabet, store.classes)


def _split_key(store: Store | ShardedStore) -> str | None:
    """Return the column that says each record's split: one the store has, or a new one; None without splits."""
    if not store.splits:
        return None
    new = next(name for name in _numbered("split") if name not in store.metadata)
    return next((name for name, column in store.metadata.items() if _says_splits(store, column)), new)


def _says_splits(store: Store | ShardedStore, column: Any) -> bool:
    try:
        return all(split_name(str(column[row])) == name for row, name in enumerate(split_of_rows(store)))
    except ValueError:
        return False


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{n}" for n in range(2, 10**6))


def split_of_rows(store: Store | ShardedStore) -> Iterator[str]:
    """Yield the split of each row, in order.

    Raises:
        OptionError: a row is in no split, or in two.
    """
    def rows_of(name: str) -> Iterator[tuple[int, str]]:
        rows = store.split_rows(name)
        for first in range(0, len(rows), ROWS):
            yield from ((row, name) for row in rows[first : first + ROWS].tolist())

    expected = 0
    for row, name in heapq.merge(*map(rows_of, store.splits)):
        if row != expected:
            expected = min(row, expected)
            break
        yield name
        expected += 1
    if expected < len(store):
        raise OptionError(f"{store.path}: row {expected} is in no split, or in two, which no column can say; leave "
                          "the splits out with --columns")


def misfit(store: Store | ShardedStore, layout: Layout, format: str) -> str | None:
    """Return what of a store a format cannot hold, and what can; None where it holds everything."""
    if format == "jsonl":
        return None
    if store.kind == "features":
        return "rows of numbers; use --format jsonl"
    if layout.tracks:
        return f"the track {next(iter(layout.tracks))!r}; use --format jsonl, or choose what is written with --columns"
    texts = [name for name in ("id", *layout.columns) if isinstance(store.metadata[name], TextColumn | JoinedTexts)]
    symbols = _symbols(store)
    if format == "csv":
        bad, what = rb"\0", "NUL"
        if "\0" in symbols or any("\0" in name or not name for name in layout.columns):
            return "NUL, or a column without a name; use --format jsonl"
    else:
        if others := [name for name in layout.columns if name != "description"]:
            return (f"the column {others[0]!r}; use --format csv or jsonl, or choose what is written with --columns: "
                    "FASTA has id and description")
        if layout.split:
            return "the splits; use --format csv or jsonl, or choose what is written with --columns"
        if store.alphabet is not None and store.alphabet.name == "ints" and not store.alphabet.symbols:
            return "integers; use --format csv or jsonl"
        if wrong := next((symbol for symbol in symbols if symbol.isspace() or symbol in "\0>;"), None):
            return f"the symbol {wrong!r} in a sequence; use --format {'jsonl' if wrong == chr(0) else 'csv or jsonl'}"
        bad, what = rb"[ \t\r\n\0]", "white space"
    for name in texts:
        pattern = re.compile(bad if name == "id" or format == "csv" else rb"[\r\n\0]")
        column = store.metadata[name]
        row = _first_match(column, pattern, leading_blank=format == "fasta" and name != "id")
        if row is not None:
            text, where = str(column[row]), "id" if name == "id" else f"column {name!r}"
            return (f"{what} in the {where} of row {row}, {text[:60]!r}; use "
                    f"--format {'jsonl' if format == 'csv' or chr(0) in text else 'csv or jsonl'}")
    return None


def _first_match(column: Any, pattern: re.Pattern[bytes], *, leading_blank: bool) -> int | None:
    """Return the first row of a column of text that matches, or starts with a blank; None where none does."""
    before = 0
    for part in column.parts() if isinstance(column, JoinedTexts) else [column]:
        places = [first + match.start() for first in range(0, len(part.values), BLOCK)
                  if (match := pattern.search(part.values[first : first + BLOCK]))][:1]
        if leading_blank:
            starts = part.offsets[:-1][part.offsets[1:] > part.offsets[:-1]]
            places += starts[np.isin(part.values[starts], [ord(" "), ord("\t")])][:1].tolist()
        if places:
            return before + int(np.searchsorted(part.offsets, np.uint64(min(places)), "right")) - 1
        before += len(part)
    return None


def _symbols(store: Store | ShardedStore) -> str:
    """Return the symbols that sequences may hold: of the alphabet of bytes, those they do hold."""
    alphabet = store.alphabet
    if alphabet is None or alphabet.name == "ints" and not alphabet.symbols:
        return ""
    if alphabet.symbols:
        return alphabet.symbols
    return "".join(map(chr, np.flatnonzero(_used(store)[1:])))


def _used(store: Store | ShardedStore) -> np.ndarray:
    """Return (num_tokens,) whether each token stands in a sequence."""
    assert store.alphabet is not None
    used = np.zeros(store.alphabet.num_tokens, bool)
    for first in range(0, len(store.values), BLOCK):
        used[store.values[first : first + BLOCK]] = True
    return used


def import_command(store: Store | ShardedStore, layout: Layout, raw: str, format: str) -> str:
    """Return the command that makes the store again of the raw file ``raw`` of a format."""
    words = ["seqpipe", "preprocess", raw, "--out", "NEW.h5", "--format", format]
    header, every = store.header, store.header["splits"][WHOLE]
    like = not _is_found(store) or "label" in layout.columns and (
        store.classes != order_classes(store.classes) or 0 in every.get("classes", []))
    targets = header.get("target_classes", []) if "target" in layout.tracks else []
    if targets:
        like |= targets != order_classes(targets) or len(np.unique(store.tracks["target"][:])) < len(targets)
        words += ["--target-column", layout.tracks["target"]]
    if like:
        words += ["--like", str(store.path)]
    elif store.alphabet is not None:
        words += ["--alphabet", store.alphabet.name]
    if store.alphabet is not None:
        words += ["--on-unknown", "unk"] if store.alphabet.unk else []
        words += ["--case", store.alphabet.case] if store.alphabet.case != "keep" else []
    if "label" in layout.columns:
        words += ["--label-type", header["label_type"]]
    words += ["--sequence-column", layout.sequence] if layout.sequence != "sequence" else []
    words += ["--split", f"column:{layout.split}" if layout.split else "none"]
    if store.channels != [f"c{i + 1}" for i in range(len(store.channels))]:
        words += ["--value-columns", ",".join(name if name.isalnum() else csv_quoted(name) for name in store.channels)]
    words += ["--on-missing", "nan"] if header["encoding"].get("missing") else []
    words += ["--compression", "gzip"] if isinstance(store.values, Chunks) else []
    words += ["--on-empty", "keep"] if every.get("lengths", {"min": 1})["min"] == 0 else []
    return shlex.join(words)


def _is_found(store: Store | ShardedStore) -> bool:
    """Say whether an import finds the alphabet again by its name, given these sequences."""
    alphabet = store.alphabet
    if alphabet is None or alphabet.name in NAMED_SYMBOLS:
        return alphabet is None or NAMED_SYMBOLS[alphabet.name] == alphabet.symbols
    if alphabet.symbols:
        in_order = list(alphabet.symbols) == sorted(alphabet.symbols)
        return alphabet.name == "chars" and in_order and bool(_used(store)[1:].all())
    if alphabet.name == "bytes":
        return True
    blocks = (store.values[i : i + BLOCK] for i in range(0, len(store.values), BLOCK))
    return alphabet.num_tokens == max((int(block.max()) for block in blocks), default=0) + 1


def csv_quoted(text: str) -> str:
    """Return a text as a quoted cell of a CSV file."""
    return '"' + text.replace('"', '""') + '"'
