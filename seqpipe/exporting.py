"""Take a store apart: its records as FASTA, CSV or JSON Lines that an import turns into the same store again.

Place in the flow: seqs.h5 -> sequences, export_layout -> [exporting] -> raw file.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from seqpipe.alphabet import Alphabet
from seqpipe.errors import OptionError, count_of
from seqpipe.export_layout import Layout, choose_layout, csv_quoted, import_command, misfit, split_of_rows
from seqpipe.labels import write_number
from seqpipe.options import ExportOptions
from seqpipe.publish import check_output, published
from seqpipe.sequences import SequenceDataset
from seqpipe.sharded import open_store, shard_paths
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
    if found := misfit(store, layout, options.format):
        raise OptionError(f"{store.path}: --format {options.format} cannot hold {found}")
    dataset = SequenceDataset(store, options.split, columns=["id", *layout.columns, *layout.tracks],
                              verify=False)
    command = import_command(store, layout, "RAW" if to_stdout else str(options.out), options.format)
    with (_standard_output() if to_stdout else _opened(options.out, options.overwrite)) as file:
        count = _write(file, dataset, layout, options.format)
    if to_stdout:
        print(f"back into a store with: {command}", file=sys.stderr)
        return None
    return ExportSummary(options.out, count, command)


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
    return csv_quoted(text) if re.search('[",\r\n]', text) else text


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
