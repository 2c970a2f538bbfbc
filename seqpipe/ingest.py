"""Turn raw files into one store: read, check, encode, split, write.

Place in the flow: raw files -> readers -> [ingest] -> writer -> seqs.h5.

One pass over the input spools everything to the output's folder; what only the whole input can
tell (alphabet, classes, duplicates, unmatched labels) is decided then, and the store written.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from seqpipe.alphabet import fixed_alphabet
from seqpipe.errors import OptionError, RawFormatError
from seqpipe.intake import Intake
from seqpipe.options import PreprocessOptions
from seqpipe.publish import check_output, working_folder
from seqpipe.readers import detect_format, file_text, read_records
from seqpipe.readers.raw import RawFile
from seqpipe.readers.tables import read_labels
from seqpipe.records import ColumnChoice
from seqpipe.splits import SplitRule, parse_split, split_of_file
from seqpipe.summary import describe_labels, notes_on
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
        what = (f"alphabet {encoding['alphabet']}, {encoding['num_tokens'] - 1:,} symbols"
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
    sources = [*options.raw, *([options.labels] if options.labels else [])]
    rule = parse_split(options.split, options.seed, by=options.split_by, folds=options.folds)
    fixed_alphabet(options.alphabet)
    check_output(options.out, options.overwrite, [*sources, Path(options.alphabet)])
    formats = _look_at(options, rule)
    table = read_labels(options.labels, options.encoding) if options.labels else {}
    stamps = [_stamp(path) for path in sources]
    total = sum(path.stat().st_size for path in options.raw)
    with (working_folder(options.out) as folder,
          tqdm(total=total, unit="B", unit_scale=True, desc="preprocess", disable=None) as bar):
        intake = Intake(folder, options, rule, table)
        columns = _Columns(options.id_column, options.sequence_column, options.encoding, check=intake.check_columns)
        before = 0
        for path, format in zip(options.raw, formats, strict=True):
            intake.start_file(path)
            with RawFile(path, options.encoding) as raw:
                for number, record in enumerate(read_records(raw, format, columns), start=1):
                    intake.add(record, number)
                    if number % 1024 == 0:
                        bar.update(before + raw.bytes_read() - bar.n)
                before += raw.size
            bar.update(before - bar.n)
        contents, header = intake.finish(formats)
        header["provenance"] = _provenance(options, sources)
        for path, stamp in zip(sources, stamps, strict=True):
            if _stamp(path) != stamp:
                raise RawFormatError(f"{path}: changed while it was read; import it again when nothing writes to it",
                                     path=path)
        write_store(options.out, contents, header, folder=folder, overwrite=options.overwrite)
    notes = notes_on(header, options.label_type, rule.shares)
    return ImportSummary(options.out, header, total, time.perf_counter() - started, notes)


@dataclass(frozen=True)
class _Columns(ColumnChoice):
    """The choice of id and sequence column, which also has all other columns of a header checked.

    So a column that is not there is found at the header's line, before any record is read.
    """

    check: Callable[[Collection[str]], str | None] = field(kw_only=True)

    def find(self, names: Collection[str], error: Callable[[str], RawFormatError]) -> tuple[str | None, str]:
        found = super().find(names, error)
        if finding := self.check([name for name in names if name not in found]):
            raise error(finding)
        return found


def _look_at(options: PreprocessOptions, rule: SplitRule) -> list[str]:
    """Return the format of each raw file; all are opened once before the first is read to its end.

    Raises:
        RawFormatError: a file cannot be opened, or its format cannot be told.
        OptionError: a file is given twice, or an option does not fit it.
    """
    formats: list[str] = []
    seen: dict[tuple[int, int], Path] = {}
    for path in options.raw:
        with RawFile(path, options.encoding) as raw:
            formats.append(detect_format(raw) if options.format == "auto" else options.format)
        status = path.stat()
        if (first := seen.setdefault((status.st_dev, status.st_ino), path)) is not path:
            raise OptionError(f"{path}: given twice, first as {first}; name every raw file once")
        for option, column in (("--id-column", options.id_column), ("--sequence-column", options.sequence_column)):
            if column is not None and formats[-1] not in ("csv", "tsv", "jsonl"):
                raise OptionError(f"{path}: {option} {column} is for csv, tsv and jsonl, and this file is "
                                  f"{formats[-1]}; leave the option out, or name another --format")
        if rule.kind == "file":
            try:
                split_of_file(path.name)
            except ValueError as error:
                raise OptionError(f"{path}: {error}") from None
    return formats


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return what changes with a file's content: its inode, size and time of change."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _provenance(options: PreprocessOptions, sources: list[Path]) -> dict[str, Any]:
    """Return sources and options: what decides the content, and nothing that does not."""
    digests = []
    for path in sources:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        digests.append({"name": file_text(path.name), "size": path.stat().st_size, "sha256": digest})
    names = ("format", "id_column", "sequence_column", "label_column", "label_type", "split", "split_by",
             "folds", "encoding", "seed")
    chosen = {name: getattr(options, name) for name in names}
    return {"sources": digests, "options": chosen | {"alphabet": file_text(Path(options.alphabet).name)}}
