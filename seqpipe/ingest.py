"""Turn raw files into one store: read, check, encode, split, write.

Place in the flow: raw files -> [ingest: slices, collection, assembly, writer] -> seqs.h5.

One pass over the input puts every slice of it into a part, in the output's folder; what only the
whole input can tell (alphabet, classes, duplicates, unmatched labels) is decided then, and the
store written.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

import seqpipe
from seqpipe.alphabet import fixed_alphabet
from seqpipe.assembly import assemble
from seqpipe.collection import collect_all
from seqpipe.errors import OptionError, RawFormatError, SeqpipeError, count_of
from seqpipe.executors import open_crew
from seqpipe.inputs import STDIN, raw_files
from seqpipe.likeness import Given, read_given
from seqpipe.options import PreprocessOptions
from seqpipe.plan import Plan, count_records, find_label_column, find_record, lay_out, look_ahead
from seqpipe.publish import check_output, parts_folder, writing
from seqpipe.readers import detect_format, file_text
from seqpipe.readers.raw import RawFile
from seqpipe.readers.tables import read_labels
from seqpipe.selection import Selection
from seqpipe.slices import SLICE_BYTES, TOGETHER_BYTES, Slice, cut, share_of
from seqpipe.splits import SplitRule, parse_split, split_of_file
from seqpipe.summary import describe_labels, notes_on
from seqpipe.writer import write_store

DIGEST_BYTES = 1 << 20  # read at a time
Stamp = tuple[int, ...]


@dataclass(frozen=True)
class ImportSummary:
    """What an import did: the header of the new store, the bytes read and the time they took.

    Attributes:
        seconds: by the clock.
        processor_seconds: of all its processes, the start of workers left out.
    """

    path: Path
    header: dict[str, Any]
    num_bytes: int
    seconds: float
    processor_seconds: float
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        every = self.header["splits"]["all"]
        lengths = every.get("lengths", {"min": 0, "median": 0, "max": 0})  # a shard may have left all out
        encoding = self.header["encoding"]
        what = (f"alphabet {encoding['alphabet']}, {count_of(encoding['num_tokens'] - 1, 'symbol')}"
                if self.header["kind"] == "tokens" else count_of(encoding["num_channels"], "channel"))
        named = {name: part["sequences"] for name, part in self.header["splits"].items() if name != "all"}
        lines = [
            f"records  {every['sequences']:,} ({self.header['kind']}, {what})",
            f"values   {every['values']:,}",
            f"lengths  min {lengths['min']:,}, median {lengths['median']:,g}, max {lengths['max']:,}",
            "labels   " + describe_labels(self.header),
            "splits   " + (", ".join(f"{name} {count:,}" for name, count in named.items()) or "none"),
            f"speed    {self.num_bytes / 1e6 / max(self.seconds, 1e-9):.1f} MB/s "
            f"({self.num_bytes / 1e6:.1f} MB in {self.seconds:.1f} s)",
            *(f"counted  {name}: {count:,}" for name, count in self.header["provenance"]["counts"].items()),
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
    if STDIN in options.raw and options.resume:
        raise OptionError("--resume: standard input cannot be read again; leave --resume out, or give a file")
    check_output(options.out, options.overwrite, [])
    with raw_files(options.raw, options.out) as raw:
        options = replace(options, raw=raw)
        sources = [*options.raw, *filter(None, (options.labels, options.classes, options.like))]
        stamps = {path: _stamp(path) for path in sources}
        try:
            return _preprocess(options, sources, stamps, started)
        except (SeqpipeError, OSError):
            _check_unchanged(stamps)  # which may be why
            raise


def _preprocess(options: PreprocessOptions, sources: list[Path], stamps: dict[Path, Stamp], started: float
                ) -> ImportSummary:
    processor = time.process_time()
    rule = parse_split(options.split, options.seed, by=options.split_by, folds=options.folds)
    fixed_alphabet(options.alphabet)
    given = read_given(options)
    check_output(options.out, options.overwrite, [*sources, Path(options.alphabet)])
    slices = _look_at(options, rule)
    formats = [slice.format for slice in slices if not slice.start]
    table = read_labels(options.labels, options.encoding) if options.labels else {}
    plan = Plan(replace(options, raw=()), tuple(next(iter(table.values()), ({}, 0))[0]), alphabet=given.alphabet,
                num_channels=given.num_channels)
    if options.shard is not None:
        plan = _check_shard(plan, slices, given)
        slices = share_of(slices, options.shard)
        others = {*options.raw} - {slice.path for slice in slices}
        sources = [path for path in sources if path not in others]
    stamps = {path: stamps[path] for path in sources}
    total = sum(slice.num_bytes for slice in slices)
    with (writing(options.out, resume=options.resume), _parts(options, stamps) as folder,
          _digests(sources, aside=options.workers > 1 or options.executor is not None) as digests,
          tqdm(total=total, unit="B", unit_scale=True, desc="preprocess", disable=None) as bar):
        with open_crew(options.workers, options.executor) as crew:
            plan, parts = collect_all(slices, plan, folder, bar.update, crew)
        if slices[0].start and not all(part.state["ids"] for part in parts):
            parts[0].state["before"] = count_records(replace(slices[0], start=0, end=slices[0].start), plan)
        further = folder / "assembly"
        further.mkdir()
        selection = Selection(parts, options, table, lambda part, number: find_record(part, plan, number), further)
        contents, header = assemble(selection, options, rule, given, formats)
        counts = sum((Counter(part.state["counts"]) for part in parts), selection.counts)
        header["provenance"] = _provenance(options, sources, digests()) | {"counts": dict(sorted(counts.items()))}
        if options.shard is not None:
            header["provenance"]["shard"] = options.shard
            if table:  # which rows have no record at all, only all shards together tell
                header["provenance"]["table"] = {"rows": len(table), "used": selection.used}
        _check_unchanged(stamps)
        write_store(options.out, contents, header, folder=further, overwrite=options.overwrite,
                    compression=options.compression)
    notes = notes_on(header, options.label_type, rule)
    if options.shard is not None and table:
        notes.append(f"{selection.used:,} of {len(table):,} rows of --labels have a record in this shard; those "
                     "without one in any are told by seqpipe merge")
    return ImportSummary(options.out, header, total, time.perf_counter() - started,
                         time.process_time() - processor + crew.seconds, notes)


def _check_shard(plan: Plan, slices: list[Slice], given: Given) -> Plan:
    """Return the plan with the layout that the first record of the whole input makes.

    Raises:
        OptionError: the shards' stores could differ in what one store has once.
    """
    options = plan.options
    layout = lay_out(look_ahead(slices[0], plan)[0], plan)
    if not layout.num_channels and given.alphabet is None and fixed_alphabet(options.alphabet) is None:
        raise OptionError(f"--shard {options.shard}: --alphabet {options.alphabet} depends on all records, and a shard "
                          "sees its own; name a fixed one (dna, rna, iupac, protein, bytes or a file), or a "
                          "store with --like")
    label = find_label_column(options, [*layout.columns, *plan.joined])
    if label is not None and options.label_type not in ("number", "none") and given.label_type is None:
        raise OptionError(f"--shard {options.shard}: the classes in {label!r} are numbered by all records, and a shard "
                          "sees its own; name them with --classes or --like, or use --label-type none or number")
    if options.split_by == "stratified":
        raise OptionError(f"--shard {options.shard}: --split-by stratified needs all records; use random or "
                          "group:COLUMN")
    return replace(plan, layout=layout)


@contextmanager
def _parts(options: PreprocessOptions, stamps: dict[Path, Stamp]) -> Iterator[Path]:
    """Make the folder of the parts; with ``--resume`` go on with the one that is there.

    It is gone at the end, unless an import that may be resumed was stopped by anything but its input.

    Raises:
        OptionError: the parts that are there are those of another import.
    """
    folder = parts_folder(options.out)
    names = {name: str(getattr(options, name)) for name in options.__dataclass_fields__
             if name not in ("out", "overwrite", "workers", "executor", "resume")}
    fingerprint = {"version": seqpipe.__version__, "slices": f"{SLICE_BYTES}, {TOGETHER_BYTES}", **names,
                   **{f"size and time of {path}": str(stamp[1:]) for path, stamp in stamps.items()}}
    mark = folder / "import.json"
    before = _read_mark(mark) if options.resume else {}
    if before:
        for name in fingerprint | before:
            if before.get(name) != fingerprint.get(name):
                raise OptionError(f"--resume: the parts beside {options.out} are of another import: {name} was "
                                  f"{before.get(name)!r} and is {fingerprint.get(name)!r} now; start anew without "
                                  "--resume, or give the same files and options")
        shutil.rmtree(folder / "assembly", ignore_errors=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        mark.write_text(json.dumps(fingerprint), "utf-8")
    keep = False
    try:
        yield folder
    except (RawFormatError, OptionError):
        raise
    except BaseException:
        keep = options.resume
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _read_mark(mark: Path) -> dict[str, str]:
    """Return what an import noted of itself beside its parts; nothing where it was killed before it had."""
    try:
        return dict(json.loads(mark.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _look_at(options: PreprocessOptions, rule: SplitRule) -> list[Slice]:
    """Return the slices of the raw files; all are opened once before the first is read to its end.

    Raises:
        RawFormatError: a file cannot be opened, or its format cannot be told.
        OptionError: a file is given twice, or an option does not fit it.
    """
    slices: list[Slice] = []
    seen: dict[tuple[int, int], Path] = {}
    for path in options.raw:
        with RawFile(path, options.encoding, replace=options.on_undecodable == "replace") as raw:
            format = detect_format(raw) if options.format == "auto" else options.format
            slices += cut(raw, format)
        status = path.stat()
        if (first := seen.setdefault((status.st_dev, status.st_ino), path)) is not path:
            raise OptionError(f"{path}: given twice, first as {first}; name every raw file once")
        for option, column in (("--id-column", options.id_column), ("--sequence-column", options.sequence_column)):
            if column is not None and format not in ("csv", "tsv", "jsonl", "h5"):
                raise OptionError(f"{path}: {option} {column} is for csv, tsv, jsonl and h5, and this file is "
                                  f"{format}; leave the option out, or name another --format")
        if options.value_columns and format not in ("csv", "tsv", "jsonl"):
            raise OptionError(f"{path}: --value-columns {options.value_columns} is for csv, tsv and jsonl, and this is "
                              f"{format}; leave the option out, or name another --format")
        if options.quality == "keep" and format != "fastq":
            raise OptionError(f"{path}: --quality keep is for fastq, and this file is {format}; leave the option out")
        if rule.kind == "file":
            try:
                split_of_file(path.name)
            except ValueError as error:
                raise OptionError(f"{path}: {error}") from None
    return slices


def _stamp(path: Path) -> Stamp:
    """Return what changes with a file's content, its inode, size and time of change; nothing where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _check_unchanged(stamps: dict[Path, Stamp]) -> None:
    """Refuse files that are not those they were when the import began.

    Raises:
        RawFormatError: there is one.
    """
    for path, stamp in stamps.items():
        if (found := _stamp(path)) != stamp:
            what = "changed while it was read; import it again when nothing writes to it" if found else (
                "was there when the import began, and cannot be found now; put it back, and import it again")
            raise RawFormatError(f"{path}: {what}", path=path)


@contextmanager
def _digests(sources: list[Path], *, aside: bool) -> Iterator[Callable[[], list[str]]]:
    """Yield what returns the SHA-256 of each file; ``aside`` a thread takes them meanwhile."""
    stop = threading.Event()

    def take() -> list[str]:
        return [_digest(path, stop) for path in sources]

    if not aside:
        yield take
        return
    with ThreadPoolExecutor(1) as executor:
        taken = executor.submit(take)
        try:
            yield taken.result
        finally:
            stop.set()


def _digest(path: Path, stop: threading.Event) -> str:
    digest, buffer = hashlib.sha256(), bytearray(DIGEST_BYTES)
    with open(path, "rb", buffering=0) as file:
        while not stop.is_set() and (count := file.readinto(buffer)):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def _provenance(options: PreprocessOptions, sources: list[Path], digests: list[str]) -> dict[str, Any]:
    """Return sources and options: what decides the content, and nothing that does not."""
    files = [{"name": file_text(path.name), "size": path.stat().st_size, "sha256": digest}
             for path, digest in zip(sources, digests, strict=True)]
    names = ("format", "id_column", "sequence_column", "label_column", "label_type", "label_separator",
             "target_column", "on_unmatched", "on_duplicate", "split", "split_by", "folds", "encoding", "seed",
             "time_column", "value_columns", "on_missing", "on_undecodable", "quality",
             "case", "on_unknown", "on_empty", "min_length", "max_length", "on_long")
    chosen = {name: getattr(options, name) for name in names}
    for name, given in (("classes", options.classes), ("like", options.like)):
        chosen[name] = None if given is None else file_text(given.name)
    return {"sources": files, "options": chosen | {"alphabet": file_text(Path(options.alphabet).name)}}
