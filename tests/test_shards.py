"""Shards of one import, merged, are the store of an import in one go."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqpipe import slices
from seqpipe.agreement import SPARE
from seqpipe.errors import OptionError, RawFormatError, StoreError
from seqpipe.ingest import preprocess
from seqpipe.merging import merge
from seqpipe.options import MergeOptions, PreprocessOptions, VerifyOptions
from seqpipe.sequences import SequenceDataset
from seqpipe.store import Store
from seqpipe.verification import verify
from tests.test_collection import write_fasta


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut files into slices of 1,500 bytes."""
    monkeypatch.setattr(slices, "SLICE_BYTES", 1500)


def write_jsonl(path: Path) -> Path:
    """Write 100 records with what a header sums up: labels of each type, targets, groups, splits, columns."""
    rng = random.Random(0)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(100):
            text = "".join(rng.choices("ACGT", k=rng.randint(1, 8))) if number % 7 else "ACGTACGT"
            record = {"id": f"r{number}", "seq": text, "class": rng.choice("bac"), "n": number,
                      "mass": rng.choice(["1.5", "2.0", "3"]), "some": rng.choice(["a;b", "c", "", "b"]),
                      "tags": [rng.choice("xyz") for _ in text], "signal": [rng.random() for _ in text],
                      "part": rng.choice(["train", "val", "odd"]), "group": f"g{number % 13}",
                      "note": "é\n" * (number % 3), "cents": f"{number / 4:.2f}",
                      "mixed": number if number < 60 else number / 8, "late": 1 if number < 80 else "x"}
            file.write(json.dumps(record) + "\n")
    return path


def write_rows(path: Path) -> Path:
    """Write 100 records of rows of two numbers, some of which are missing."""
    rng = random.Random(0)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(100):
            rows = [[rng.random(), None if number % 50 == 3 else rng.gauss(3, 2)] for _ in range(rng.randint(1, 6))]
            file.write(json.dumps({"id": f"r{number}", "values": rows, "label": number % 3}) + "\n")
    return path


def write_fastq(path: Path) -> Path:
    """Write 100 records, some of them with unknown symbols."""
    path.write_text("".join(f"@q{i} about {i}\nAcGT{'!' * (i % 5 == 0)}{'N' * (i % 7)}\n+\n"
                            f"IIII{'#' * (i % 5 == 0)}{'+' * (i % 7)}\n" for i in range(100)), "ascii")
    return path


def write_text(path: Path) -> Path:
    """Write 300 lines: records without ids."""
    path.write_text("".join(f"{'ACGT' * (1 + n % 9)}\n" for n in range(300)), "ascii")
    return path


LIKE = Path("like.h5")
CASES: dict[str, tuple[Callable[[Path], Path], str, dict[str, Any]]] = {
    "classes, groups": (write_jsonl, "a.jsonl", {"alphabet": "dna", "label_column": "class", "split_by": "group:group",
                                                 "classes": Path("classes.txt")}),
    "several classes, targets, told splits": (write_jsonl, "a.jsonl", {
        "like": LIKE, "label_column": "some", "label_type": "multilabel", "target_column": "tags",
        "split": "column:part"}),
    "numbers, folds": (write_jsonl, "a.jsonl", {"alphabet": "dna", "label_column": "mass", "label_type": "number",
                                                "target_column": "signal", "folds": 3, "compression": "gzip"}),
    "features": (write_rows, "a.jsonl", {"like": LIKE, "on_missing": "nan"}),
    "features without splits": (write_rows, "a.jsonl", {"label_type": "none", "on_missing": "nan", "split": "none"}),
    "policies": (write_fastq, "a.fastq", {"alphabet": "dna", "quality": "keep", "case": "upper", "on_unknown": "skip",
                                          "min_length": 5, "max_length": 8, "on_long": "truncate"}),
    "unk": (write_fastq, "a.fastq", {"alphabet": "dna", "on_unknown": "unk", "max_length": 8, "on_long": "skip"}),
    "by number": (write_text, "a.txt", {"alphabet": "bytes", "min_length": 5, "split": "none"}),
}


@pytest.mark.parametrize("name", CASES)
def test_shards_merge_into_the_bytes_of_one_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """3 shards, made one by one, and merge: byte for byte the unsharded store, whatever its header holds."""
    monkeypatch.chdir(tmp_path)
    write, file, chosen = CASES[name]
    Path("classes.txt").write_text("c\nb\na\nunused\n", "ascii")
    if chosen.get("like"):
        drop = {key: value for key, value in chosen.items() if key not in ("like", "split")}
        preprocess(PreprocessOptions(raw=(write(Path(file)),), out=LIKE, **drop))
    preprocess(options := PreprocessOptions(raw=(write(Path(file)),), out=Path("whole.h5"), **chosen))
    shards = []
    for number in range(1, 4):
        shards.append(Path(f"shard{number}.h5"))
        preprocess(replace(options, out=shards[-1], shard=f"{number}/3"))
        assert Store(shards[-1]).header["provenance"]["shard"] == f"{number}/3"
    merge(MergeOptions(stores=tuple(shards[::-1]), out=Path("merged.h5"), compression=options.compression))
    assert Path("merged.h5").read_bytes() == options.out.read_bytes()


def test_shards_of_files_merge_into_the_bytes_of_one_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file a shard, the split of each told by its name."""
    monkeypatch.chdir(tmp_path)
    files = tuple(write_fasta(Path(name), 5, seed) for seed, name in enumerate(("a_TRAIN.fa", "b_TEST.fa")))
    files[1].write_text(files[1].read_text("ascii").replace(">r", ">s"), "ascii")
    preprocess(options := PreprocessOptions(raw=files, out=Path("whole.h5"), alphabet="dna", split="file"))
    shards = tuple(Path(f"shard{number}.h5") for number in (1, 2))
    for number, path in enumerate(shards, start=1):
        preprocess(replace(options, out=path, shard=f"{number}/2"))
    merge(MergeOptions(stores=shards, out=Path("merged.h5")))
    assert Path("merged.h5").read_bytes() == options.out.read_bytes()


def write_short(path: Path, file: str) -> Path:
    """Write 2 records of another id and one element: all of a shard that leaves short ones out."""
    rows: dict[str, Any] = {"values": [[0.5, 1.5]], "label": 1} if file == "rows" else {
        "seq": "A", "class": "b", "n": 1, "mass": "7", "some": "a", "tags": ["x"], "signal": [0.5], "part": "test",
        "group": "g1", "note": "", "cents": "0.25", "mixed": 1, "late": 2}
    texts = {"a.fastq": "@s{} short\nA\n+\nI\n", "a.txt": "A\n"}
    path.write_text("".join(texts[file].format(i) if file in texts else json.dumps({"id": f"s{i}", **rows}) + "\n"
                            for i in range(2)), "ascii")
    return path


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("empty", [1, 2, 3])
def test_a_shard_that_leaves_all_its_records_out_merges_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, empty: int
) -> None:
    """One of 3 files has short records alone: its shard is a store of no row, and the merged bytes are one import's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slices, "SLICE_BYTES", 1 << 20)
    write, file, chosen = CASES[name]
    Path("classes.txt").write_text("c\nb\na\nunused\n", "ascii")
    files = [write(Path(file)), write(Path(f"b_{file}"))]
    files[1].write_text(re.sub(r'"r(\d+)"|@q(\d+) ', lambda match: match[0][:2] + "0" + match[0][2:],
                               files[1].read_text("utf-8")), "utf-8")
    files.insert(empty - 1, write_short(Path(f"c_{file}"), "rows" if write is write_rows else file))
    chosen = {"min_length": 2, **chosen}
    if chosen.get("like"):
        drop = {key: value for key, value in chosen.items() if key not in ("like", "split")}
        preprocess(PreprocessOptions(raw=(files[empty == 1],), out=LIKE, **drop))
    preprocess(options := PreprocessOptions(raw=tuple(files), out=Path("whole.h5"), **chosen))
    shards = tuple(Path(f"shard{number}.h5") for number in (1, 2, 3))
    for number, path in enumerate(shards, start=1):
        summary = preprocess(replace(options, out=path, shard=f"{number}/3"))
        assert ("records  0 (" in str(summary)) == (number == empty)
        verify(VerifyOptions(store=path))
    merge(MergeOptions(stores=shards, out=Path("merged.h5"), compression=options.compression))
    assert Path("merged.h5").read_bytes() == options.out.read_bytes()
    if not name.startswith("several") and "numbers" not in name:  # columns of two types are for one file
        merge(MergeOptions(stores=shards, out=Path("all.seqpipe.json")))
        dataset = SequenceDataset("all.seqpipe.json")
        assert [metadata["id"] for _, metadata in dataset] == [m["id"] for _, m in SequenceDataset("whole.h5")]
        merge(MergeOptions(stores=(Path("all.seqpipe.json"),), out=Path("again.h5"), compression=options.compression))
        assert Path("again.h5").read_bytes() == options.out.read_bytes()


def test_shards_that_leave_everything_out_are_refused_together(tmp_path: Path) -> None:
    """As one import is that has no record left."""
    files = tuple(write_short(tmp_path / name, "a.txt") for name in ("a.txt", "b.txt"))
    options = PreprocessOptions(raw=files, out=tmp_path / "x.h5", alphabet="dna", min_length=2)
    with pytest.raises(RawFormatError, match="no record is left: records left out: shorter than 2"):
        preprocess(options)
    shards = tuple(tmp_path / f"shard{number}.h5" for number in (1, 2))
    for number, path in enumerate(shards, start=1):
        preprocess(replace(options, out=path, shard=f"{number}/2"))
    with pytest.raises(StoreError, match="no record is left in any of the stores"):
        merge(MergeOptions(stores=shards, out=tmp_path / "merged.h5"))


@pytest.mark.parametrize("num_spare", [0, 3])
def test_rows_of_labels_without_a_record_are_counted_by_merge(tmp_path: Path, num_spare: int) -> None:
    """Each shard notes how many rows it used: what no shard used is left out, or refused, as by one import."""
    files = tuple(write_fasta(tmp_path / name, 40, seed) for seed, name in enumerate(("a.fa", "b.fa", "c.fa")))
    ids = []
    for path in files:
        path.write_text(path.read_text("ascii").replace(">r", f">{path.stem}"), "ascii")
        ids += [line.split()[0][1:] for line in path.read_text("ascii").splitlines() if line.startswith(">")]
    table = tmp_path / "labels.tsv"
    table.write_text("id\tlabel\n" + "".join(f"{name}\tx\n" for name in [
        *ids[5:] * bool(num_spare), *ids * (not num_spare), *(f"z{k}" for k in range(num_spare))]), "ascii")
    options = PreprocessOptions(raw=files, out=tmp_path / "whole.h5", alphabet="dna", labels=table, label_type="none",
                                on_unmatched="skip", on_duplicate="rename")
    preprocess(options)
    shards = tuple(tmp_path / f"shard{number}.h5" for number in (1, 2, 3))
    for number, path in enumerate(shards, start=1):
        preprocess(replace(options, out=path, shard=f"{number}/3", overwrite=True))
    merge(MergeOptions(stores=shards, out=tmp_path / "merged.h5"))
    assert (tmp_path / "merged.h5").read_bytes() == options.out.read_bytes()
    assert Store(options.out).header["provenance"]["counts"].get(SPARE, 0) == num_spare

    with pytest.raises(RawFormatError, match="records without a row here|rows without a record") if num_spare else (
            nullcontext()):
        preprocess(replace(options, on_unmatched="error", overwrite=True))
    table.write_text(table.read_text("ascii") + "".join(f"{name}\tx\n" for name in ids[:5] * bool(num_spare)), "ascii")
    for number, path in enumerate(shards, start=1):
        preprocess(replace(options, out=path, shard=f"{number}/3", overwrite=True, on_unmatched="error"))
    with pytest.raises(StoreError, match=r"3 of the 123 rows in the table of --labels have no record in any of the 3 "
                       ) if num_spare else nullcontext():
        merge(MergeOptions(stores=shards, out=tmp_path / "strict.h5"))


@pytest.mark.parametrize(("options", "finding"), [
    ({"shard": "0/3", "alphabet": "dna"}, "expected I/N with 1 <= I <= N"),
    ({"shard": "4/3", "alphabet": "dna"}, "expected I/N with 1 <= I <= N"),
    ({"shard": "1/999", "alphabet": "dna"}, r"is read in \d+ pieces"),
    ({"shard": "1/2"}, "--alphabet auto depends on all records, and a shard sees its own; name a fixed one"),
    ({"shard": "1/2", "alphabet": "dna", "label_column": "description"}, "the classes in 'description' are numbered"),
    ({"shard": "1/2", "alphabet": "dna", "split_by": "stratified"}, "--split-by stratified needs all records"),
])
def test_shards_that_could_differ_are_refused(tmp_path: Path, options: dict[str, str], finding: str) -> None:
    """What depends on all records must be fixed beforehand."""
    raw = write_fasta(tmp_path / "a.fa", 100)
    with pytest.raises(OptionError, match=finding):
        preprocess(PreprocessOptions(raw=(raw,), out=tmp_path / "x.h5", **options))  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["a.fa"]
