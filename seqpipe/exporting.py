"""Take a store apart: its records as FASTA, CSV or JSON Lines that an import turns into the same store again.

Place in the flow: seqs.h5 -> store, sequences -> [exporting] -> raw file.

What a format cannot hold is found and named before anything is written. JSON Lines hold everything.
"""

from __future__ import annotations

import gzip
import heapq
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from seqpipe.alphabet import NAMED_SYMBOLS, Alphabet
from seqpipe.chunks import Chunks
from seqpipe.columns import TextColumn
from seqpipe.errors import OptionError, count_of
from seqpipe.joined import JoinedTexts
from seqpipe.labels import order_classes, write_number
from seqpipe.options import ExportOptions
from seqpipe.publish import check_output, published
from seqpipe.sequences import SequenceDataset
from seqpipe.sharded import ShardedStore, open_store, shard_paths
from seqpipe.splits import WHOLE, split_name
from seqpipe.store import Store
from seqpipe.verification import verify_store

BLOCK = 1024  # records read together
STDOUT = Path("-")
Write = Callable[[dict[str, Any]], str]  # one record's values by key, in the order of the columns, to text


@dataclass(frozen=True)
class ExportSummary:
    """What was written, and the command that makes the same store of it."""

    out: Path
    records: int
    command: str

    def __str__(self) -> str:
        return f"{count_of(self.records, 'record')} in {self.out}\nback into a store with: {self.command}"


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


def export(options: ExportOptions) -> ExportSummary | None:
    """Write the records of a store, or of one split of it, to a raw file.

    Returns:
        What was done; None where the records themselves went to standard output.

    Raises:
        StoreError: the store cannot be read, or has no such split.
        OptionError: the format cannot hold something of the store, or the output exists.
    """
    store = open_store(options.stores)
    to_stdout = options.out == STDOUT
    if not to_stdout:
        check_output(options.out, options.overwrite, [*shard_paths(options.stores), *options.stores])
    for path in shard_paths(options.stores):  # all at once: many times as fast as block by block at the first touch
        verify_store(Store(path))
    layout = choose_layout(store, options.columns)
    if found := _misfit(store, layout, options.format):
        raise OptionError(f"{store.path}: --format {options.format} cannot hold {found}")
    dataset = SequenceDataset(store, options.split, columns=["id", *layout.columns, *layout.tracks],
                              verify=False)
    command = import_command(store, layout, options)
    with (_standard_output() if to_stdout else _opened(options.out, options.overwrite)) as file:
        count = _write(file, dataset, layout, options.format)
    if to_stdout:
        print(f"back into a store with: {command}", file=sys.stderr)
        return None
    return ExportSummary(options.out, count, command)


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
        for first in range(0, len(rows), BLOCK):
            yield from ((row, name) for row in rows[first : first + BLOCK].tolist())

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


def _misfit(store: Store | ShardedStore, layout: Layout, format: str) -> str | None:
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
        places = [first + match.start() for first in range(0, len(part.values), 1 << 22)
                  if (match := pattern.search(part.values[first : first + (1 << 22)]))][:1]
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
    for first in range(0, len(store.values), 1 << 22):
        used[store.values[first : first + (1 << 22)]] = True
    return used


def import_command(store: Store | ShardedStore, layout: Layout, options: ExportOptions) -> str:
    """Return the command that makes the store again of what is written."""
    raw = "RAW" if options.out == STDOUT else str(options.out)
    words = ["seqpipe", "preprocess", raw, "--out", "NEW.h5", "--format", options.format]
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
        words += ["--value-columns", ",".join(name if name.isalnum() else _quoted(name) for name in store.channels)]
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
    blocks = (store.values[i : i + (1 << 22)] for i in range(0, len(store.values), 1 << 22))
    return alphabet.num_tokens == max((int(block.max()) for block in blocks), default=0) + 1


def _write(file: IO[bytes], dataset: SequenceDataset, layout: Layout, format: str) -> int:
    """Write all samples of a dataset; return their number."""
    store = dataset.store
    write: Write = {"fasta": _fasta, "csv": _csv, "jsonl": _jsonl}[format]
    number = _json_number if format == "jsonl" else write_number
    writing = layout.header.get("writing", {})
    decode = _decoder(layout.alphabet, as_text=format != "jsonl")
    labels: Any = store.metadata["label"] if "label" in layout.columns else None
    targets = layout.header.get("target_classes", [])
    splits = _splits(dataset) if layout.split and layout.split not in layout.columns else None
    if format == "csv":
        keys = ["id", layout.sequence, *layout.columns, *([layout.split] if splits and layout.split else [])]
        file.write(_csv(dict.fromkeys(keys) | {key: key for key in keys}).encode())
    with tqdm(total=len(dataset), unit=" records", desc="export", disable=None) as bar:
        for first in range(0, len(dataset), BLOCK):
            texts = []
            samples = dataset.__getitems__(range(first, min(first + BLOCK, len(dataset))))
            for sequence, metadata in samples:
                record = {"id": metadata["id"], layout.sequence: decode(sequence)}
                for name in layout.columns:
                    value = metadata[name]
                    record[name] = number(value.item(), writing[name]) if name in writing else value
                if labels is not None:  # as the store has it: samples hold numbers in single precision
                    record["label"] = _label(labels[metadata["index"]], layout.classes)
                if splits is not None and layout.split:
                    record[layout.split] = next(splits)
                for name, key in layout.tracks.items():
                    track = metadata[name].tolist()
                    record[key] = [targets[k] for k in track] if name == "target" and targets else track
                texts.append(write(record))
            file.write("".join(texts).encode())
            bar.update(len(texts))
    return len(dataset)


def _unknown(alphabet: Alphabet) -> str:
    """Return what is written for a symbol that the import did not know; "" where it knew all."""
    return ("?" if "?" not in alphabet.symbols else "\ufffd") * alphabet.unk


def _label(label: Any, classes: list[str]) -> Any:
    """Return the name of a class, the names of several, or the number."""
    if isinstance(label, np.ndarray):
        return [classes[k] for k in label.tolist()]
    return classes[label] if classes else label


def _splits(dataset: SequenceDataset) -> Iterator[str]:
    if dataset.split is None:
        return split_of_rows(dataset.store)
    return iter([dataset.split] * len(dataset))


def _decoder(alphabet: Alphabet | None, *, as_text: bool) -> Callable[[np.ndarray], Any]:
    """Return what makes text, or a list of numbers, of one sequence.

    Args:
        alphabet: of the tokens; None for features.
        as_text: write integers as text too.
    """
    if alphabet is None:
        return lambda rows: [[None if number != number else number for number in row] for row in rows.tolist()]
    if alphabet.name == "ints" and not alphabet.symbols:
        return alphabet.decode if as_text else lambda tokens: [token - 1 for token in tokens.tolist()]
    if not alphabet.symbols:
        return lambda tokens: (tokens - tokens.dtype.type(1)).astype(np.uint8).tobytes().decode()
    codes = np.array([0, *map(ord, alphabet.symbols), *map(ord, _unknown(alphabet))], "<u4")
    return lambda tokens: codes[tokens].tobytes().decode("utf-32-le")


def _json_number(number: int | float, ways: list[str]) -> int | float | str:
    """Return a number as JSON keeps its text, or that text: 0.50 is not what JSON makes of 0.5."""
    text = write_number(number, ways)
    value = json.loads(text)
    return value if json.dumps(value) == text else text


def _fasta(record: dict[str, Any]) -> str:
    record_id, sequence, *rest = record.values()
    description = f" {rest[0]}" if rest and rest[0] else ""
    return f">{record_id}{description}\n{sequence}\n"


def _csv(record: dict[str, Any]) -> str:
    return ",".join(map(_cell, record.values())) + "\n"


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else \
        json.dumps(value, ensure_ascii=False) if isinstance(value, list) else repr(value.item())
    # The csv module leaves a bare CR unquoted where lines end with LF.
    return _quoted(text) if re.search('[",\r\n]', text) else text


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _jsonl(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(", ", ": "), default=_plain) + "\n"


def _plain(value: Any) -> Any:
    return value.tolist()  # of a NumPy number, or of an array


@contextmanager
def _opened(out: Path, overwrite: bool) -> Iterator[IO[bytes]]:
    """Open the output, compressed where its name says so; it takes its name when it is whole."""
    with published(out, overwrite=overwrite) as file:
        if out.suffix.lower() == ".gz":
            with gzip.GzipFile(out.stem, "wb", 6, file, mtime=0) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield file


@contextmanager
def _standard_output() -> Iterator[IO[bytes]]:
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except OSError:  # Python must not try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
