"""Stores merged into one file are what one import of everything gives; a manifest grows without a shard changing."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqpipe import writer
from seqpipe.cli import main
from seqpipe.errors import OptionError, StoreError
from seqpipe.ingest import preprocess
from seqpipe.layout import CHECKSUM_BLOCK, num_blocks
from seqpipe.manifest import read_manifest
from seqpipe.merging import append, joined_contents, merge
from seqpipe.options import AppendOptions, MergeOptions, PreprocessOptions, VerifyOptions
from seqpipe.sharded import ShardedStore, open_store
from seqpipe.store import Store
from seqpipe.verification import verify
from seqpipe.writer import Content

Make = Callable[..., Path]
COLUMNS = "id,sequence,label,age,note,split\n"


def rows(count: int, seed: int) -> list[str]:
    """Return lines of a CSV table."""
    rng = random.Random(seed)
    return [f"s{seed}-{i},{''.join(rng.choices('ACGTN', k=rng.randint(1, 40)))},{'xyz'[i % 3]},{rng.randint(0, 9)},"
            f"{rng.choice(['', 'é', 'a b'])}-,{('train', 'valid', 'train', 'test')[i % 4]}\n" for i in range(count)]


def features(count: int, seed: int) -> list[str]:
    """Return lines of a JSON Lines file of features with an offset that costs digits."""
    rng = random.Random(seed)
    return [json.dumps({"id": f"f{seed}-{i}", "label": "xyz"[i % 3], "split": ("train", "test")[i % 2], "sequence": [
        [1e4 + rng.gauss(0, 1), rng.gauss(0, 1e-3)] for _ in range(rng.randint(1, 9))]}) + "\n" for i in range(count)]


def forget_sources(store: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the header without the raw files' names, and the bytes of every array."""
    opened = Store(store)
    header = json.loads(json.dumps(opened.header))
    header["provenance"]["sources"] = []
    return header, {name: array.tobytes() for name, array in opened.arrays.items() if not name.endswith("header")}


@pytest.mark.parametrize("kind", ["tokens", "features"])
def test_merged_parts_are_the_import_of_everything(make_store: Make, tmp_path: Path, kind: str) -> None:
    """Arrays, checksums, splits, summaries, moments: bit for bit those of one import, in the same order."""
    if kind == "tokens":
        lines, start, suffix = rows(3000, 0), COLUMNS, "csv"
    else:
        lines, start, suffix = features(3000, 0), "", "jsonl"
    options = {"split": "column:split", "label_type": "class"} | ({"alphabet": "dna"} if kind == "tokens" else {})
    cuts = [0, 1100, 1112, 2500, 3000]
    parts = [make_store(f"p{k}.{suffix}", start + "".join(lines[a:b]), **options)
             for k, (a, b) in enumerate(zip(cuts[:-1], cuts[1:], strict=True))]
    whole = make_store(f"whole.{suffix}", start + "".join(lines), **options)

    summary = merge(MergeOptions(stores=tuple(parts), out=tmp_path / "merged.h5"))

    assert (summary.shards, summary.rows) == (4, 3000)
    assert forget_sources(tmp_path / "merged.h5") == forget_sources(whole)
    assert list(Store(tmp_path / "merged.h5").arrays) == list(Store(whole).arrays)
    assert len(Store(tmp_path / "merged.h5").header["provenance"]["sources"]) == 4
    verify(VerifyOptions(store=tmp_path / "merged.h5"))


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_columns_merge_as_an_import_of_everything_has_them(
    make_store: Make, tmp_path: Path, data: st.DataObject
) -> None:
    """Integers here, decimals or text there: the type and every text are those of one import of all records."""
    number = st.sampled_from(["1", "-20", "0.5", "2.0", "0.50", "1.25", "1e-07", "12345678901234567", "-0", "x"])
    texts = data.draw(st.lists(st.lists(number, min_size=1, max_size=3), min_size=2, max_size=3))
    lines = [[f"r{k}-{i},ACGT,{text}\n" for i, text in enumerate(part)] for k, part in enumerate(texts)]
    parts = [make_store(f"p{k}.csv", "id,sequence,n\n" + "".join(part), alphabet="dna") for k, part in enumerate(lines)]
    whole = make_store("whole.csv", "id,sequence,n\n" + "".join(sum(lines, [])), alphabet="dna")
    merge(MergeOptions(stores=tuple(parts), out=tmp_path / "merged.h5", overwrite=True))
    assert forget_sources(tmp_path / "merged.h5") == forget_sources(whole)


def test_a_manifest_of_columns_that_differ_is_refused(make_store: Make, tmp_path: Path) -> None:
    """A shard is read as it is: numbers in one and text in the other cannot be one column, but in one file."""
    first = make_store("a.csv", "id,sequence,n\nx,ACGT,1\n", alphabet="dna")
    second = make_store("b.csv", "id,sequence,n\ny,ACGT,none\n", alphabet="dna")
    with pytest.raises(StoreError, match=r"a.h5 and .*b.h5 cannot be one store: they differ in types of metadata/n: "
                                         "<i8 and text; merge them into one .h5 file"):
        merge(MergeOptions(stores=(first, second), out=tmp_path / "m.seqpipe.json"))
    merge(MergeOptions(stores=(first, second), out=tmp_path / "m.h5"))
    column = Store(tmp_path / "m.h5").metadata["n"]
    assert [column[0], column[1]] == ["1", "none"]


def test_an_id_in_two_stores_is_refused_naming_both(make_store: Make, tmp_path: Path) -> None:
    """As in one import, ids are unique; nothing is written."""
    first = make_store("a.fasta", ">x\nACGT\n>y\nAC\n", alphabet="dna")
    second = make_store("b.fasta", ">z\nACG\n>y\nAG\n", alphabet="dna")
    before = sorted(tmp_path.iterdir())
    for out in ("all.h5", "all.seqpipe.json"):
        with pytest.raises(StoreError, match=r"a.h5 and .*b.h5: the id 'y' stands in row 1 of the first and in row 1"):
            merge(MergeOptions(stores=(first, second), out=tmp_path / out))
    assert sorted(tmp_path.iterdir()) == before


def test_a_manifest_grows_by_a_shard(make_store: Make, tmp_path: Path) -> None:
    """append writes a new manifest at once and changes no store; --out leaves the old one as it is."""
    a, b, c = (make_store(f"{name}.csv", COLUMNS + "".join(rows(12, seed)), alphabet="dna", split="column:split")
               for seed, name in enumerate("abc"))
    manifest, bigger = tmp_path / "m.seqpipe.json", tmp_path / "bigger.seqpipe.json"
    merge(MergeOptions(stores=(a,), out=manifest))
    before = manifest.read_bytes()

    append(AppendOptions(manifest=manifest, stores=(b, c), out=bigger))
    assert manifest.read_bytes() == before
    append(AppendOptions(manifest=manifest, stores=(b,)))
    append(AppendOptions(manifest=manifest, stores=(c,)))

    assert manifest.read_bytes() == bigger.read_bytes()
    assert [shard.file for shard in read_manifest(manifest).shards] == ["a.h5", "b.h5", "c.h5"]
    merge(MergeOptions(stores=(a, b, c), out=tmp_path / "once.seqpipe.json"))
    assert (tmp_path / "once.seqpipe.json").read_bytes() == manifest.read_bytes()
    with pytest.raises(StoreError, match=r"c.h5: holds the same as .*c.h5"):
        append(AppendOptions(manifest=manifest, stores=(c,)))


def test_outputs_that_cannot_be_are_refused(make_store: Make, tmp_path: Path) -> None:
    """A manifest lies beside its shards; what exists is kept; an input is never the output."""
    a = make_store("a.fasta", ">x\nACGT\n", alphabet="dna")
    (tmp_path / "other").mkdir()
    with pytest.raises(OptionError, match="a manifest lies beside its shards, and .*a.h5 is in another folder"):
        merge(MergeOptions(stores=(a,), out=tmp_path / "other" / "m.seqpipe.json"))
    with pytest.raises(OptionError, match="this is one of the inputs"):
        merge(MergeOptions(stores=(a,), out=a, overwrite=True))
    manifest = tmp_path / "m.seqpipe.json"
    merge(MergeOptions(stores=(a,), out=manifest))
    with pytest.raises(OptionError, match="--overwrite"):
        merge(MergeOptions(stores=(a,), out=manifest))
    with pytest.raises(OptionError, match="expected a manifest, NAME.seqpipe.json"):
        append(AppendOptions(manifest=a, stores=(a,)))
    with pytest.raises(OptionError, match="expected the name of a manifest"):
        append(AppendOptions(manifest=manifest, stores=(a,), out=tmp_path / "x.h5"))


def test_the_commands_say_what_they_did(make_store: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on success, one sentence on stderr and exit code 1 else."""
    a = make_store("a.fasta", ">x\nACGT\n", alphabet="dna")
    b = make_store("b.fasta", ">y\nAC\n", alphabet="dna")
    manifest = tmp_path / "m.seqpipe.json"
    assert main(["merge", str(a), "--out", str(manifest)]) == 0
    assert main(["append", str(manifest), str(b)]) == 0
    assert capsys.readouterr().out.endswith(f"2 sequences, 6 values of 2 stores in {manifest}\n")
    assert main(["append", str(manifest), str(a)]) == 1
    assert capsys.readouterr().err.startswith("seqpipe append: ")


TAIL = np.arange(1, 6, dtype="u1")[:, None]


def sparse_store(path: Path, total: int) -> Path:
    """Write a store of two sequences: a long one, a hole on the disk, and ``TAIL``; ``total`` values in all."""
    name = path.stem
    lengths = {"min": 5, "median": total / 2, "mean": total / 2, "max": total - 5,
               "histogram": {"edges": [5, total], "counts": [2]}}
    header = {
        "kind": "features", "encoding": {"dtype": "uint8", "num_channels": 1},
        "moments": {"mean": [0], "deviation": [1]},
        "label_type": "none", "classes": [], "channels": ["c1"], "columns": ["id"],
        "splits": {"all": {"sequences": 2, "values": total, "lengths": lengths}},
        "input": {"format": "text", "encoding": "utf-8", "id_column": None, "sequence_column": None,
                  "label_column": None},
        "provenance": {"sources": [], "options": {}},
    }
    arrays = {
        "offsets": np.array([0, total - 5, total], "<u8"),
        "metadata/id/values": np.frombuffer(f"{name}1{name}2".encode(), "u1"),
        "metadata/id/offsets": np.array([0, len(name) + 1, 2 * len(name) + 2], "<u8"),
        "header": np.frombuffer(json.dumps(header).encode(), "u1"),
    }
    contents = {"values": Content((total, 1), np.dtype("u1"), ())}
    laid_out = contents | {key: Content.of(array) for key, array in arrays.items()}
    offsets = writer._lay_out(path, laid_out, {})
    table = np.full(num_blocks(total), zlib.crc32(bytes(CHECKSUM_BLOCK)), "<u4")
    table[-1] = zlib.crc32(bytes(total - (len(table) - 1) * CHECKSUM_BLOCK - 5) + TAIL.tobytes())
    with open(path, "r+b") as file:
        for place, data in [(offsets["values"] + total - 5, TAIL), (offsets["checksums/values"], table)]:
            file.seek(place)
            file.write(data.tobytes())
        for key, array in arrays.items():
            file.seek(offsets[key])
            file.write(array.tobytes())
            file.seek(offsets[f"checksums/{key}"])
            file.write(zlib.crc32(array.tobytes()).to_bytes(4, "little"))
    with h5py.File(path, "r+", libver=("v110", "v110")) as store:
        store.attrs.modify("complete", np.uint8(1))
    return path


def test_totals_beyond_32_bits_are_right(tmp_path: Path) -> None:
    """Offsets past 2**31 and 2**32 values: rows, lengths, what a merged file holds (NVIDIA/Megatron-LM#1672)."""
    total = 2**31 + 7
    parts = [sparse_store(tmp_path / f"{name}.h5", total) for name in "abc"]
    manifest = tmp_path / "m.seqpipe.json"
    summary = merge(MergeOptions(stores=tuple(parts), out=manifest))

    assert summary.values == 3 * total > 2**32
    store = open_store(manifest)
    assert isinstance(store, ShardedStore)
    assert store.lengths(slice(None)).tolist() == [total - 5, 5] * 3
    assert store.offsets[:].tolist() == [0, total - 5, total, 2 * total - 5, 2 * total, 3 * total - 5, 3 * total]
    assert store.sequence(5).tolist() == TAIL.tolist() and store.values[3 * total - 5 :].tolist() == TAIL.tolist()
    contents = joined_contents(store)
    assert contents["values"].shape == (3 * total, 1) and contents["values"].num_bytes == 3 * total
    assert np.concatenate(list(contents["offsets"].blocks)).tolist() == store.offsets[:].tolist()
    assert read_manifest(manifest).header["splits"]["all"]["lengths"]["max"] == total - 5


@pytest.mark.slow
def test_a_merged_file_beyond_32_bits_reads_right(tmp_path: Path) -> None:
    """The same, written: 4.3 GB of one file."""
    if shutil.disk_usage(tmp_path).free < 10 << 30:
        pytest.skip("needs 10 GiB of disk")
    total = 2**31 + 7
    parts = [sparse_store(tmp_path / f"{name}.h5", total) for name in "ab"]
    merge(MergeOptions(stores=tuple(parts), out=tmp_path / "all.h5"))
    store = Store(tmp_path / "all.h5")
    assert store.offsets.tolist() == [0, total - 5, total, 2 * total - 5, 2 * total]
    assert store.sequence(1).tolist() == store.sequence(3).tolist() == TAIL.tolist()
    (tmp_path / "all.h5").unlink()


def killed(arguments: list[str], seconds: float) -> int:
    """Run a command in a process of its own, and kill it after some time; return its exit code."""
    process = subprocess.Popen([sys.executable, "-m", "seqpipe.cli", *arguments], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        return process.wait()


def test_a_killed_append_leaves_the_old_manifest_or_the_new_one(make_store: Make, tmp_path: Path) -> None:
    """Killed at any moment, also between a shard and its manifest: what is there can be read, and the next run ends."""
    parts = [make_store(f"p{k}.csv", COLUMNS + "".join(rows(200, k)), alphabet="dna", split="column:split")
             for k in range(3)]
    manifest = tmp_path / "m.seqpipe.json"
    merge(MergeOptions(stores=(parts[0],), out=manifest))
    first = manifest.read_bytes()
    append(AppendOptions(manifest=manifest, stores=tuple(parts[1:])))
    second = manifest.read_bytes()
    started = time.perf_counter()
    manifest.write_bytes(first)
    assert killed(["append", str(manifest), *map(str, parts[1:])], 60) == 0
    needed = time.perf_counter() - started
    for share in np.linspace(0.3, 1.05, 8):
        manifest.write_bytes(first)
        killed(["append", str(manifest), *map(str, parts[1:])], share * needed)
        assert manifest.read_bytes() in (first, second)
        assert len(open_store(manifest)) in (200, 600)
    manifest.write_bytes(first)
    append(AppendOptions(manifest=manifest, stores=tuple(parts[1:])))
    assert manifest.read_bytes() == second
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_killed_merge_leaves_no_half_store(make_store: Make, tmp_path: Path) -> None:
    """The old file or the new one, and nothing else after the next run."""
    parts = [make_store(f"p{k}.csv", COLUMNS + "".join(rows(200, k)), alphabet="dna", split="column:split")
             for k in range(2)]
    out = tmp_path / "all.h5"
    merge(MergeOptions(stores=tuple(parts), out=out))
    whole = out.read_bytes()
    started = time.perf_counter()
    out.unlink()
    assert killed(["merge", *map(str, parts), "--out", str(out)], 60) == 0
    needed = time.perf_counter() - started
    for share in np.linspace(0.5, 1.05, 6):
        out.unlink(missing_ok=True)
        killed(["merge", *map(str, parts), "--out", str(out)], share * needed)
        assert not out.exists() or out.read_bytes() == whole
    out.unlink(missing_ok=True)
    merge(MergeOptions(stores=tuple(parts), out=out))
    assert out.read_bytes() == whole and not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_shards_of_an_import_merge_to_its_bytes(make_store: Make, tmp_path: Path) -> None:
    """In any order on the command line; a shard that is missing, or there twice, is named."""
    raw = [tmp_path / f"p{k}.csv" for k in range(3)]
    for k, path in enumerate(raw):
        path.write_text(COLUMNS + "".join(rows(40, k)))
    (tmp_path / "classes").write_text("x\ny\nz\n")

    def load(out: str, **options: str) -> Path:
        preprocess(PreprocessOptions(raw=tuple(raw), out=tmp_path / out, alphabet="dna", classes=tmp_path / "classes",
                                     split="column:split", **options))  # type: ignore[arg-type]
        return tmp_path / out

    whole = load("whole.h5").read_bytes()
    shards = [load(f"s{k}.h5", shard=f"{k}/3") for k in (1, 2, 3)]
    for order in ((0, 1, 2), (2, 0, 1)):
        out = tmp_path / "merged.h5"
        merge(MergeOptions(stores=tuple(shards[k] for k in order), out=out, overwrite=True))
        assert out.read_bytes() == whole
    with pytest.raises(StoreError, match=r"one of 3 shards of an import, and shard 2/3 is not among the stores given"):
        merge(MergeOptions(stores=(shards[2], shards[0]), out=tmp_path / "m.seqpipe.json"))
    with pytest.raises(StoreError, match=r"s1.h5: shard 1, as is .*s1.h5; give every shard once"):
        merge(MergeOptions(stores=(shards[0], shards[0], shards[1]), out=tmp_path / "m.h5"))
