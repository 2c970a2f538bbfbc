"""Shards of one import, merged, are the store of an import in one go."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import h5py
import pytest

from seqpipe import slices
from seqpipe.errors import OptionError
from seqpipe.ingest import preprocess
from seqpipe.merging import merge
from seqpipe.options import MergeOptions, PreprocessOptions
from seqpipe.sequences import SequenceDataset
from tests.test_collection import write_fasta


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut files into slices of 900 bytes."""
    monkeypatch.setattr(slices, "SLICE_BYTES", 900)


def arrays(path: Path) -> dict[str, bytes]:
    """Return the bytes of each array of a store, the header's checksums left out."""
    found: dict[str, bytes] = {}

    def take(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and name != "checksums/header":
            found[name] = item[()].tobytes()

    with h5py.File(path) as file:
        file.visititems(take)
    return found


@pytest.mark.parametrize("split", ["none", "0.8,0.1,0.1"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("format", ["fa", "txt"])
def test_shards_merge_into_the_bytes_of_one_import(tmp_path: Path, count: int, format: str, split: str) -> None:
    """3 shards, made one by one, and merge: byte for byte the unsharded store, ids by number too."""
    raw = write_fasta(tmp_path / "a.fa", 100)
    if format == "txt":
        raw = tmp_path / "a.txt"
        raw.write_text("".join(f"{'ACGT' * (1 + n % 9)}\n" for n in range(300)), "ascii")
    more = write_fasta(tmp_path / "b.fa", 1) if format == "txt" else raw.with_name("c.fa")
    if format == "fa":
        more.write_text(">x about\nACGTN\n", "ascii")
    files = (raw,) if format == "txt" else (raw, more)
    options = PreprocessOptions(raw=files, out=tmp_path / "whole.h5", alphabet="dna", min_length=2, split=split)
    preprocess(options)
    shards = []
    for number in range(1, count + 1):
        shards.append(tmp_path / f"shard{number}.h5")
        preprocess(replace(options, out=shards[-1], shard=f"{number}/{count}"))
        assert SequenceDataset(shards[-1]).store.header["provenance"]["shard"] == f"{number}/{count}"
    merge(MergeOptions(stores=tuple(shards), out=tmp_path / "merged.h5"))
    if split == "none":
        assert (tmp_path / "merged.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    else:  # sequences that stand in two splits are counted in each shard, not across them
        merged, whole = arrays(tmp_path / "merged.h5"), arrays(tmp_path / "whole.h5")
        headers = [json.loads(content.pop("header")) for content in (merged, whole)]
        assert [header.pop("leakage", None) is None for header in headers] == [True, False]
        assert headers[0] == headers[1] and merged == whole


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
