"""Turn raw files into one store: read, check, encode, split, write.

Place in the flow: raw files -> readers -> [ingest] -> writer -> seqs.h5.

One pass over the input spools everything to the output's folder; what only the whole input can
tell (alphabet, classes, duplicates, unmatched labels) is decided then, and the store written.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from seqpipe.errors import OptionError
from seqpipe.intake import Intake
from seqpipe.options import PreprocessOptions
from seqpipe.readers import detect_format, read_records
from seqpipe.readers.raw import RawFile
from seqpipe.readers.tables import read_labels
from seqpipe.records import ColumnChoice
from seqpipe.splits import parse_split
from seqpipe.summary import describe_labels
from seqpipe.writer import write_store


@dataclass(frozen=True)
class ImportSummary:
    """What an import did: the header of the new store, its size and the time it took."""

    path: Path
    header: dict[str, Any]
    num_bytes: int
    seconds: float
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        every = self.header["splits"]["all"]
        lengths = every["lengths"]
        encoding = self.header["encoding"]
        what = (f"alphabet {encoding['alphabet']}, {encoding['num_tokens'] - 1} symbols"
                if self.header["kind"] == "tokens" else f"{encoding['num_channels']} channels")
        named = {name: part["sequences"] for name, part in self.header["splits"].items() if name != "all"}
        lines = [
            f"records  {every['sequences']:,} ({self.header['kind']}, {what})",
            f"values   {every['values']:,}",
            f"lengths  min {lengths['min']:,}, median {lengths['median']:,g}, max {lengths['max']:,}",
            "labels   " + describe_labels(self.header),
            "splits   " + (", ".join(f"{name} {count:,}" for name, count in named.items()) or "none"),
            f"speed    {self.num_bytes / 1e6 / max(self.seconds, 1e-9):.1f} MB/s "
            f"({self.num_bytes / 1e6:.1f} MB in {self.seconds:.1f} s)",
            *(f"note     {note}" for note in self.notes),
            f"store    {self.path}",
        ]
        return "\n".join(lines)


def preprocess(options: PreprocessOptions) -> ImportSummary:
    """Write the store ``options.out`` from ``options.raw``.

    Raises:
        RawFormatError: a raw file breaks its format or holds what the options do not allow; the
            message names file and line, and no output is left behind.
        OptionError: the options do not fit each other.
    """
    started = time.perf_counter()
    if not options.raw:
        raise OptionError("no raw file given; expected: seqpipe preprocess RAW... --out STORE")
    check_output(options.out, options.overwrite, [*options.raw, *([options.labels] if options.labels else [])])
    rule = parse_split(options.split, options.seed)
    table = read_labels(options.labels, options.encoding) if options.labels else None
    with tempfile.TemporaryDirectory(prefix=f".{options.out.name}.", suffix=".tmp", dir=options.out.parent) as name:
        intake = Intake(Path(name), options, rule, table)
        formats, total = [], sum(path.stat().st_size for path in options.raw if path.is_file())
        with tqdm(total=total, unit="B", unit_scale=True, desc="preprocess", disable=None) as bar:
            before = 0
            for path in options.raw:
                with RawFile(path, options.encoding) as raw:
                    formats.append(detect_format(raw) if options.format == "auto" else options.format)
                    columns = ColumnChoice(options.id_column, options.sequence_column, options.encoding)
                    for number, record in enumerate(read_records(raw, formats[-1], columns), start=1):
                        intake.add(record, number)
                        if number % 1024 == 0:
                            bar.update(before + raw.bytes_read() - bar.n)
                before += path.stat().st_size
                bar.update(before - bar.n)
        contents, header, notes = intake.finish(formats)
        write_store(options.out, contents, header, folder=Path(name))
        intake.close()
    return ImportSummary(options.out, header, total, time.perf_counter() - started, notes)


def check_output(out: Path, overwrite: bool, inputs: list[Path]) -> None:
    """Refuse an output that exists (unless told to replace it), is an input, or has no folder."""
    if not out.parent.is_dir():
        raise OptionError(f"--out {out}: the folder {out.parent} does not exist; make it first")
    if out.exists() and any(path.exists() and path.samefile(out) for path in inputs):
        raise OptionError(f"--out {out}: this is one of the inputs; choose another name")
    if out.is_dir():
        raise OptionError(f"--out {out}: this is a folder; expected a file name")
    if out.exists() and not overwrite:
        raise OptionError(f"--out {out}: the file exists; choose another name, or replace it with --overwrite")
    if not os.access(out.parent, os.W_OK):
        raise OptionError(f"--out {out}: the folder {out.parent} cannot be written")
