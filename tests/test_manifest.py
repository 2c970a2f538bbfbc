"""A manifest says what its shards hold, and nothing it says is believed unseen."""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqpipe import manifest as module
from seqpipe.errors import SeqpipeError, StoreError
from seqpipe.manifest import read_manifest
from seqpipe.merging import merge
from seqpipe.options import MergeOptions
from seqpipe.sharded import open_store

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def made(make_store: Callable[..., Path], tmp_path: Path) -> Path:
    """A manifest of two stores of DNA."""
    first = make_store("a.csv", "id,sequence,split\na1,ACGT,train\na2,AC,test\n", split="column:split", alphabet="dna")
    second = make_store("b.csv", "id,sequence,split\nb1,GGGTT,train\n", split="column:split", alphabet="dna")
    out = tmp_path / "all.seqpipe.json"
    merge(MergeOptions(stores=(first, second), out=out))
    return out


def rewrite(path: Path, edit: Edit) -> None:
    """Change a manifest's content, and make its CRC-32 right again."""
    outer = json.loads(path.read_text())
    edit(outer["content"])
    outer["crc32"] = zlib.crc32(module._text(outer["content"]).encode())
    path.write_text(json.dumps(outer))


def test_a_manifest_says_what_its_shards_hold(made: Path) -> None:
    """Rows, values, lengths and splits of each shard, and the summary of all of them together."""
    found = read_manifest(made)

    assert [(s.file, s.rows, s.values, s.min_length, s.max_length, s.splits) for s in found.shards] == [
        ("a.h5", 2, 6, 2, 4, {"train": 1, "test": 1}), ("b.h5", 1, 5, 5, 5, {"train": 1})]
    assert [s.size for s in found.shards] == [(made.parent / s.file).stat().st_size for s in found.shards]
    counts = {name: part["sequences"] for name, part in found.header["splits"].items()}
    assert counts == {"all": 3, "train": 2, "test": 1}
    assert found.header["splits"]["all"]["lengths"]["median"] == 4


@pytest.mark.parametrize(("edit", "message"), [
    (lambda c: c["shards"][0].update(file="../a.h5"), r"a plain file name"),
    (lambda c: c["shards"][0].update(file="/etc/passwd"), r"a plain file name"),
    (lambda c: c["shards"][0].update(file="x\\a.h5"), r"a plain file name"),
    (lambda c: c["shards"][0].update(file=".."), r"a plain file name"),
    (lambda c: c["shards"][0].update(file=""), r"a plain file name"),
    (lambda c: c["shards"][0].update(file="a\0.h5"), r"a plain file name"),
    (lambda c: c["shards"][1].update(file="a.h5"), r"each shard once, 'a.h5'"),
    (lambda c: c["shards"].append(c["shards"][0]), r"each shard once, 'a.h5'"),
    (lambda c: c["shards"].clear(), r"content.shards"),
    (lambda c: c["shards"][0].update(rows=3), r"header.splits.all \(3, 11\), the sum of the shards \(4, 11\)"),
    (lambda c: c["shards"][0].update(rows=-1), r"shards\[0\]: a count"),
    (lambda c: c["shards"][0].update(rows=2**63), r"shards\[0\].rows"),
    (lambda c: c["shards"][0].update(rows=2**62), r"shards\[0\]: a count"),
    (lambda c: c["shards"][0].update(rows=2.0), r"shards\[0\].rows"),
    (lambda c: c["shards"][0].update(rows=True), r"shards\[0\].rows"),
    (lambda c: c["shards"][0].update(values=7), r"the sum of the shards"),
    (lambda c: c["shards"][0].update(max_length=2), r"shards\[0\]: a count"),
    (lambda c: c["shards"][0].update(min_length=5), r"shards\[0\]: a count"),
    (lambda c: c["shards"][0]["splits"].update(train=2), r"header.splits.train 2, the sum of the shards 3"),
    (lambda c: c["shards"][0]["splits"].update(other=1), r"the split 'other'"),
    (lambda c: c["shards"][0].pop("digest"), r"shards\[0\].digest"),
    (lambda c: c["shards"][0].update(digest="0" * 63), r"shards\[0\].digest"),
    (lambda c: c["shards"][0].update(data="x" * 64), r"shards\[0\].data"),
    (lambda c: c["types"].pop("metadata/id"), r"content.types"),
    (lambda c: c["types"].update({"metadata/id": "|O"}), r"content.types"),
    (lambda c: c["types"].update({"elsewhere": "|u1"}), r"content.types"),
    (lambda c: c["header"].pop("classes"), r"header.classes"),
    (lambda c: c["header"]["splits"].pop("all"), r"content.types"),
    (lambda c: c["shards"][0].update(file="c.h5"), r"its shard .*c.h5 cannot be opened"),
    (lambda c: c["shards"][0].update(size=1), r"has \d+ bytes, the manifest says 1"),
])
def test_a_hostile_manifest_is_refused_with_one_sentence(made: Path, edit: Edit, message: str) -> None:
    """Wrong counts, names that leave the folder, shards that are not there: each is named; no shard is opened."""
    rewrite(made, edit)
    with pytest.raises(StoreError, match=message) as caught:
        open_store(made)
    assert str(made) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "message"), [
    (b"", "it is no JSON"),
    (b"\x89HDF\r\n\x1a\n", "it is no JSON"),
    (b'{"format": ', "it is no JSON"),
    (b"[" * 100_000, "it is no JSON"),
    (b"[]", "not a manifest"),
    (b'{"format": "other"}', "not a manifest"),
    (b'{"format": "seqpipe.manifest"}', "damaged: it has the keys"),
    (b'{"format": "seqpipe.manifest", "format_version": 2}', "install a newer seqpipe"),
    (b'{"format": "seqpipe.manifest", "format_version": 1, "crc32": 0, "content": {}}', "fails its CRC-32"),
    (b'{"format": "seqpipe.manifest", "format_version": 1, "crc32": 2745614147, "content": {}}', "content.header"),
])
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """Another file under a manifest's name says what is wrong with it."""
    path = tmp_path / "x.seqpipe.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=message):
        open_store(path)


def test_a_type_that_is_no_number_is_refused(vowels_store: Path) -> None:
    """A manifest is what says of which type the features of its shards are."""
    out = vowels_store.with_name("all.seqpipe.json")
    merge(MergeOptions(stores=(vowels_store,), out=out))
    for dtype in ("bogus", "O", "i4,i4"):
        rewrite(out, lambda content, dtype=dtype: content["header"]["encoding"].update(dtype=dtype))
        with pytest.raises(StoreError, match="damaged: content.header.encoding.dtype is missing, or not what"):
            open_store(out)


def test_a_manifest_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """Its size is looked at first."""
    path = tmp_path / "x.seqpipe.json"
    with open(path, "wb") as file:
        file.truncate(module.MAX_MANIFEST + 1)
    with pytest.raises(StoreError, match="do not trust this file"):
        open_store(path)


def test_a_pipe_under_a_manifests_name_does_not_block(tmp_path: Path) -> None:
    """Only regular files are opened; what is missing is said so."""
    path = tmp_path / "x.seqpipe.json"
    with pytest.raises(StoreError, match="no such file; make a manifest"):
        open_store(path)
    os.mkfifo(path)
    with pytest.raises(StoreError, match="no regular file"):
        open_store(path)


def test_every_flipped_bit_of_a_manifest_is_refused_or_harmless(made: Path) -> None:
    """A damaged manifest never gives other data: it is refused, or what it says is the same."""
    whole, data = read_manifest(made), made.read_bytes()
    for at in range(0, len(data), 3):
        made.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        try:
            assert read_manifest(made) == whole
        except StoreError as error:
            assert str(made) in str(error)


def test_a_manifest_cut_anywhere_is_refused(made: Path) -> None:
    """No beginning of a manifest is one."""
    data = made.read_bytes()
    for at in range(0, len(data), 7):
        made.write_bytes(data[:at])
        with pytest.raises(StoreError):
            read_manifest(made)


def test_a_shard_that_was_replaced_is_refused_when_it_is_read(made: Path, make_store: Callable[..., Path]) -> None:
    """Of the same size and under the same name, it is not the store the manifest was made with."""
    make_store("b.csv", "id,sequence,split\nb1,GGGTA,train\n", split="column:split", alphabet="dna")
    store = open_store(made)

    assert store.sequence(1).tolist() == [1, 2]
    with pytest.raises(StoreError, match=r"b.h5: not the store that .*all.seqpipe.json was made with \(digest"):
        store.sequence(2)


def test_a_shard_whose_header_says_otherwise_is_refused(made: Path) -> None:
    """Counts, digests and sizes right, but other classes or types than the shard's: the manifest lies."""
    rewrite(made, lambda c: c["types"].update({"metadata/split": "<i8"}))
    with pytest.raises(StoreError, match=r"a.h5 cannot be one store: they differ in types of metadata/split"):
        open_store(made).sequence(0)


def test_a_folder_of_shards_can_be_moved(made: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Shards are found beside the manifest, wherever that is."""
    moved = shutil.copytree(made.parent, tmp_path_factory.mktemp("moved") / "there")
    assert open_store(moved / made.name).sequence(2).tolist() == [3, 3, 3, 4, 4]


def test_a_manifest_that_cannot_be_written_leaves_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest larger than a reader takes is refused before it is written."""
    monkeypatch.setattr(module, "MAX_MANIFEST", 100)
    before = sorted(made.parent.iterdir())
    with pytest.raises(SeqpipeError, match=re.escape("merge the shards into one .h5 file")):
        merge(MergeOptions(stores=(made.parent / "a.h5",), out=made.parent / "new.seqpipe.json"))
    assert sorted(made.parent.iterdir()) == before
