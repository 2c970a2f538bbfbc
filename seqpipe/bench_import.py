"""Measure the import beside what reads raw files alone: everything included against parsing only.

Place in the flow: BenchOptions -> [bench_import] -> a table.

Our figure is the whole of ``seqpipe preprocess``: reading, checking, ids, splits, digest, checksums, the
store on the disk. The others only parse (and throw away what they parse). All take turns, round by
round; the median counts, and what the machine does meanwhile hits all alike. On a busy machine the
speed by the processor's time, of all processes, says more than that by the clock.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe import slices
from seqpipe.ingest import ImportSummary, preprocess
from seqpipe.options import BenchOptions, PreprocessOptions

RECORDS = 60_000  # of about 300 letters, at size 1: 19 MB of FASTA
WIDTH = 80  # letters a line
PEERS = {"dnaio": "dnaio", "Biopython": "Bio", "pyfastx": "pyfastx"}


@dataclass(frozen=True)
class ImportTable:
    """MB/s of the uncompressed text by (file, reader); ours first, with its ratio to each other reader.

    Attributes:
        speeds: by the clock.
        by_processor: by the processor time, of all processes together.
        missing: the readers that are not installed.
    """

    speeds: dict[str, dict[str, float]]
    by_processor: dict[str, dict[str, float]]
    missing: list[str]

    def __str__(self) -> str:
        lines = ["MB/s of uncompressed text (medians), by the clock and by the processor time of all processes",
                 "x: how many times as fast seqpipe in one process, everything included, is", ""]
        for file, speeds in self.speeds.items():
            lines.append(f"{file}")
            for reader in speeds:
                pairs = [(table[file]["seqpipe"], table[file][reader]) for table in (self.speeds, self.by_processor)]
                lines.append(f"  {reader:24}" + "".join(
                    f" {speed:8.1f}" + (f" {ours / speed:5.2f} x" if reader != "seqpipe" else " " * 8)
                    for ours, speed in pairs).rstrip())
        lines += [f"not installed (extra bench): {name}" for name in self.missing]
        return "\n".join(lines)


def run(options: BenchOptions) -> ImportTable:
    """Make the files, import and parse each one round by round, and return the medians."""
    place = tempfile.TemporaryDirectory() if options.folder is None else nullcontext(options.folder)
    with place as name:
        folder = Path(name)
        folder.mkdir(exist_ok=True)
        files = make_files(folder, max(1000, int(RECORDS * options.size)), options.seed)
        readers = {file: _readers(path, folder) for file, (path, _) in files.items()}
        times: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for turn in range(options.rounds + 1):  # the first one, which imports modules and fills caches, is not counted
            for file, named in readers.items():
                for reader, read in named.items():
                    start = time.perf_counter(), time.process_time()
                    found = read()
                    taken = time.perf_counter() - start[0], time.process_time() - start[1]
                    if isinstance(found, ImportSummary):
                        taken = taken[0], found.processor_seconds
                    if turn:
                        times.setdefault((file, reader), []).append(taken)
        speeds, by_processor = (
            {file: {reader: size / 1e6 / max(1e-9, statistics.median(pair[k] for pair in times[file, reader]))
                    for reader in readers[file]} for file, (_, size) in files.items()} for k in (0, 1))
    return ImportTable(speeds, by_processor, [name for name, module in PEERS.items() if find_spec(module) is None])


def make_files(folder: Path, num_records: int, seed: int) -> dict[str, tuple[Path, int]]:
    """Write random DNA in each format, integers and rows of numbers; return path and size of the uncompressed text."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(rng.normal(300, 60, num_records).astype(int), 1).tolist()
    letters = np.frombuffer(b"ACGT", np.uint8)[rng.integers(0, 4, sum(lengths))].tobytes().decode()
    paths = {name: folder / f"bench.{name}" for name in (
        "fa", "fa.gz", "csv", "quoted.csv", "long.csv", "jsonl", "integers.jsonl", "rows.jsonl")}
    with ExitStack() as stack:
        fasta, table, quoted, objects = (stack.enter_context(open(paths[name], "w", encoding="ascii"))
                                         for name in ("fa", "csv", "quoted.csv", "jsonl"))
        table.write("id,sequence,label\n")
        quoted.write('"id","sequence","label"\n')
        start = 0
        for number, length in enumerate(lengths):
            text = letters[start : start + length]
            start += length
            lines = "\n".join(text[i : i + WIDTH] for i in range(0, length, WIDTH))
            fasta.write(f">read{number}\n{lines}\n")
            table.write(f"read{number},{text},class{number % 3}\n")
            quoted.write(f'"read{number}","{text}","class{number % 3}"\n')
            record = {"id": f"read{number}", "sequence": text, "label": f"class{number % 3}"}
            objects.write(json.dumps(record) + "\n")
    with ExitStack() as stack:
        steps, integers, rows = (stack.enter_context(open(paths[name], "w", encoding="ascii"))
                                 for name in ("long.csv", "integers.jsonl", "rows.jsonl"))
        steps.write("id,time,x,y,z,label\n")
        for number, length in enumerate(lengths[: len(lengths) // 10]):
            name, label = f"sensor{number}", f"class{number % 3}"
            numbers = rng.normal(size=(length, 3)).round(4).tolist()
            steps.writelines(f"{name},{time},{x},{y},{z},{label}\n" for time, (x, y, z) in enumerate(numbers))
            tokens = rng.integers(0, 1000, length).tolist()
            for file, sequence in ((integers, tokens), (rows, numbers)):
                file.write(json.dumps({"id": name, "sequence": sequence, "label": label}) + "\n")
    with open(paths["fa"], "rb") as plain, gzip.open(paths["fa.gz"], "wb", 6) as packed:
        packed.write(plain.read())
    sizes = {name: paths[name.removesuffix(".gz")].stat().st_size for name in paths}
    return {name: (path, sizes[name]) for name, path in paths.items()}


def _readers(path: Path, folder: Path) -> dict[str, Callable[[], object]]:
    """Return what reads a file: seqpipe, with two workers too where it has more than one slice, and the others."""
    def ours(workers: int) -> Callable[[], object]:
        options = PreprocessOptions(raw=(path,), out=folder / "bench.h5", workers=workers, overwrite=True)
        if path.name == "bench.long.csv":
            options = replace(options, time_column="time", value_columns="x,y,z")
        return lambda: preprocess(options)

    readers: dict[str, Callable[[], object]] = {"seqpipe": ours(1)}
    if path.suffix == ".fa" and (os.cpu_count() or 1) > 1 and path.stat().st_size > slices.SLICE_BYTES:
        readers["seqpipe --workers 2"] = ours(2)
    if path.suffix == ".csv":
        return readers | {"csv.reader": lambda: _count_rows(path)}
    if path.suffix == ".jsonl":
        return readers | {"json.loads": lambda: _count_objects(path)}
    readers |= {name: {"dnaio": _dnaio, "Biopython": _biopython, "pyfastx": _pyfastx}[name](path)
                for name, module in PEERS.items() if find_spec(module)}
    return readers | {"bare NumPy look-up": lambda: _look_up(path), "bare bytes.translate": lambda: _translate(path)}


def _dnaio(path: Path) -> Callable[[], object]:
    import dnaio

    def read() -> int:
        with dnaio.open(path) as records:
            return sum(len(record.sequence) for record in records)
    return read


def _biopython(path: Path) -> Callable[[], object]:
    from Bio.SeqIO.FastaIO import SimpleFastaParser

    def read() -> int:
        with _open(path, "rt") as file:
            return sum(len(sequence) for _, sequence in SimpleFastaParser(file))
    return read


def _pyfastx(path: Path) -> Callable[[], object]:
    import pyfastx

    return lambda: sum(len(sequence) for _, sequence in pyfastx.Fasta(str(path), build_index=False))


def _open(path: Path, mode: str) -> Any:
    return gzip.open(path, mode) if path.suffix == ".gz" else open(path, mode)


def _look_up(path: Path) -> int:
    table, count = np.arange(256, dtype=np.uint8), 0
    with _open(path, "rb") as file:
        while data := file.read(1 << 20):
            letters = np.frombuffer(data, np.uint8)
            count += len(table[letters[letters != 10]])
    return count


def _translate(path: Path) -> int:
    table, count = bytes(range(256)), 0
    with _open(path, "rb") as file:
        while data := file.read(1 << 20):
            count += len(data.translate(table, b"\n"))
    return count


def _count_rows(path: Path) -> int:
    with open(path, newline="", encoding="ascii") as file:
        return sum(len(row[1]) for row in csv.reader(file))


def _count_objects(path: Path) -> int:
    with open(path, encoding="ascii") as file:
        return sum(len(json.loads(line)["sequence"]) for line in file)
