"""Many stores read as one: every row, length, column and split is where the merged store has it."""

from __future__ import annotations

import json
import pickle
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from seqpipe.cli import main
from seqpipe.errors import StoreError
from seqpipe.joined import Joined
from seqpipe.locate import locate
from seqpipe.merging import merge
from seqpipe.options import MergeOptions, VerifyOptions
from seqpipe.sharded import ShardedStore, open_store
from seqpipe.store import Store
from seqpipe.verification import verify

Make = Callable[..., Path]


def table(seed: int, rows: int, *, symbols: str = "ACGTN") -> str:
    """Return a CSV table of random records, every class and split among the first ones."""
    rng = random.Random(seed)
    lines = ["id,sequence,label,age,note,split"]
    for i in range(rows):
        sequence = "".join(rng.choices(symbols, k=rng.randint(1, 60)))
        label, split = ("x", "y", "z")[i % 3], ("train", "train", "valid", "test")[i % 4]
        note = rng.choice(["", "é", "a b", "\U0001f9ec"])
        lines.append(f"s{seed}-{i},{sequence},{label},{rng.randint(0, 99)},{note},{split}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path, Path]:
    """Five stores, their manifest, and the store they are merged into."""
    from seqpipe.ingest import preprocess
    from seqpipe.options import PreprocessOptions

    folder = tmp_path_factory.mktemp("shards")
    paths = []
    for k, rows in enumerate([40, 12, 1, 70, 25]):
        raw = folder / f"p{k}.csv"
        raw.write_text(table(k, max(rows, 12)))
        paths.append(folder / f"p{k}.h5")
        preprocess(PreprocessOptions(raw=(raw,), out=paths[-1], alphabet="dna", split="column:split"))
    manifest, merged = folder / "all.seqpipe.json", folder / "all.h5"
    merge(MergeOptions(stores=tuple(paths), out=manifest))
    merge(MergeOptions(stores=(manifest,), out=merged))
    return paths, manifest, merged


def test_opening_a_manifest_maps_no_shard(shards: tuple[list[Path], Path, Path]) -> None:
    """Lengths of one row map one shard; the header, the classes and the number of rows none."""
    store = open_store(shards[1])
    assert isinstance(store, ShardedStore)
    assert (len(store), store.classes, store.header["splits"]["all"]["sequences"]) == (159, ["x", "y", "z"], 159)
    assert [store._stores[k] is None for k in range(5)] == [True] * 5
    store.sequence(53)
    assert [store._stores[k] is None for k in range(5)] == [True, True, False, True, True]


def test_many_stores_as_one_are_the_merged_store(shards: tuple[list[Path], Path, Path]) -> None:
    """The manifest and the list of stores give what the one file gives: rows, lengths, columns, splits, header."""
    paths, manifest, merged = shards
    one = Store(merged)
    for many in (open_store(manifest), open_store(paths), open_store([manifest])):
        assert isinstance(many, ShardedStore)
        assert len(many) == len(one)
        assert all(np.array_equal(many.sequence(row), one.sequence(row)) for row in range(len(one)))
        assert np.array_equal(many.values, one.values) and np.array_equal(many.offsets, one.offsets)
        assert np.array_equal(many.lengths(slice(None)), one.lengths(slice(None)))
        rows = np.random.default_rng(0).permutation(len(one))
        assert np.array_equal(many.lengths(rows), one.lengths(rows))
        assert list(many.metadata) == list(one.metadata) and list(many.splits) == list(one.splits)
        for name, column in one.metadata.items():
            assert [many.metadata[name][i] for i in range(len(one))] == [column[i] for i in range(len(one))], name
        for name in one.splits:
            assert np.array_equal(many.split_rows(name), one.split_rows(name)), name
        assert many.header == {key: value for key, value in one.header.items() if key != "leakage"}


def test_merging_is_associative(shards: tuple[list[Path], Path, Path], tmp_path: Path) -> None:
    """Merged in two steps, or through a manifest, the bytes are those of one step."""
    paths, manifest, merged = shards
    merge(MergeOptions(stores=tuple(paths[:2]), out=tmp_path / "left.h5"))
    merge(MergeOptions(stores=(tmp_path / "left.h5", *paths[2:]), out=tmp_path / "all.h5"))
    merge(MergeOptions(stores=tuple(paths), out=tmp_path / "once.h5"))
    assert (tmp_path / "all.h5").read_bytes() == (tmp_path / "once.h5").read_bytes() == merged.read_bytes()


def test_a_sharded_store_pickles_to_its_path(shards: tuple[list[Path], Path, Path]) -> None:
    """A few hundred bytes, whatever the number of rows; the copy reads the same."""
    store = open_store(shards[1])
    store.sequence(0)
    data = pickle.dumps(store)
    assert len(data) < 500
    assert np.array_equal(pickle.loads(data).sequence(120), store.sequence(120))


def test_shards_replaced_under_a_reader_are_refused(make_store: Make, tmp_path: Path) -> None:
    """A pickled store does not open another manifest that took its name, nor another list."""
    paths = [make_store(f"r{k}.csv", table(k, 12), alphabet="dna", split="column:split") for k in range(3)]
    manifest = tmp_path / "m.seqpipe.json"
    merge(MergeOptions(stores=tuple(paths[:2]), out=manifest))
    pickled = [pickle.dumps(open_store(manifest)), pickle.dumps(open_store(paths))]
    merge(MergeOptions(stores=tuple(paths[1:]), out=manifest, overwrite=True))
    for change, data in enumerate(pickled):
        if change:
            make_store("r2.csv", table(7, 12), alphabet="dna", split="column:split")
        with pytest.raises(StoreError, match="other shards have taken this name"):
            pickle.loads(data)


@pytest.mark.parametrize(("content", "options", "what"), [
    ("id,sequence,label\nq,ACGU,x\n", {"alphabet": "rna"}, "encoding"),
    ("id,sequence,label\nq,ACGT,w\n", {"alphabet": "dna"}, "classes"),
    ("id,sequence,label\nq,ACGT,1.5\n", {"alphabet": "dna"}, "label_type"),
    ("id,sequence,label,age\nq,ACGT,x,1\n", {"alphabet": "dna"}, "columns"),
    ("id,sequence,label\nq,ACGT,x\n", {"alphabet": "dna", "split": "1,0"}, "splits"),
])
def test_stores_that_differ_are_refused_naming_both(
    make_store: Make, tmp_path: Path, content: str, options: dict[str, str], what: str
) -> None:
    """One encoding, one class list, one set of columns: else both stores and both values are named."""
    first = make_store("a.csv", "id,sequence,label\np,ACGT,x\n", alphabet="dna")
    second = make_store("b.csv", content, **options)
    with pytest.raises(StoreError, match=rf"a.h5 and .*b.h5 cannot be one store: they differ in {what}: .* and .*"):
        open_store([first, second])


def test_a_store_given_twice_is_refused(make_store: Make) -> None:
    """Under two names too: it would count twice."""
    first = make_store("a.csv", table(0, 12))
    copy = first.with_name("copy.h5")
    copy.write_bytes(first.read_bytes())
    with pytest.raises(StoreError, match=r"copy.h5: holds the same as .*a.h5"):
        open_store([first, copy])


def test_a_row_that_is_not_there_is_an_error(shards: tuple[list[Path], Path, Path]) -> None:
    """Not an IndexError, which would end a loop without a word; nor does a negative row read from the end."""
    store = open_store(shards[1])
    for row in (-1, 159):
        with pytest.raises(StoreError, match=rf"no row {row}; expected 0 <= row < 159"):
            store.sequence(row)
        with pytest.raises(StoreError, match="expected 0 <= row < 159"):
            store.lengths(np.array([0, row]))
    with pytest.raises(StoreError, match=r"no split 'dev'; this store has 'train', 'valid', 'test'"):
        store.split_rows("dev")


@pytest.mark.parametrize("seed", range(20))
def test_joined_arrays_index_like_one(seed: int) -> None:
    """Integers, slices, index arrays and masks give what the concatenation gives, empty parts among them."""
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 100, size=(n, 2)) for n in rng.integers(0, 5, size=6)]
    whole = np.concatenate(parts)
    joined = Joined(lambda k: parts[k], [len(part) for part in parts], whole.dtype, (2,))

    assert (joined.shape, joined.nbytes, joined.ndim) == (whole.shape, whole.nbytes, whole.ndim)
    assert np.array_equal(joined, whole) and np.array_equal(list(joined), whole.reshape(-1, 2))
    for _ in range(20):
        a, b = rng.integers(-20, 20, size=2)
        step = int(rng.choice([-2, -1, 1, 1, 3]))
        assert np.array_equal(joined[a:b:step], whole[a:b:step])
        mask = rng.random(len(whole)) < 0.5
        assert np.array_equal(joined[mask], whole[mask])
        if len(whole):
            rows = rng.integers(-len(whole), len(whole), size=7)
            assert np.array_equal(joined[rows], whole[rows]) and np.array_equal(joined[int(rows[0])], whole[rows[0]])
    for outside in (len(whole), -len(whole) - 1):
        with pytest.raises(IndexError):
            joined[outside]
        with pytest.raises(IndexError):
            joined[np.array([outside])]


def test_describe_and_verify_take_a_manifest(
    shards: tuple[list[Path], Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The header is that of the merged store, without a shard being read; verify reads every byte of every shard."""
    assert main(["describe", str(shards[1])]) == main(["describe", str(shards[2])]) == 0
    many, one = capsys.readouterr().out.split(str(shards[2]))
    assert many.splitlines()[0].endswith("in 5 shards")
    # What stands in two splits is counted where all sequences are read, which a manifest does not do.
    assert many.splitlines()[1:] == [line for line in one.splitlines()[1:] if not line.startswith("leakage")]
    assert main(["verify", str(shards[1])]) == 0
    assert "good: 5 shards, 159 sequences" in capsys.readouterr().out


def test_verify_names_the_shard_that_is_damaged(make_store: Make, tmp_path: Path) -> None:
    """A flipped bit in a shard, or a manifest that says other things than its shards hold."""
    paths = [make_store(f"v{k}.csv", table(k, 12), alphabet="dna", split="column:split") for k in range(3)]
    manifest = tmp_path / "v.seqpipe.json"
    merge(MergeOptions(stores=tuple(paths), out=manifest))
    outer, whole = json.loads(manifest.read_text()), manifest.read_bytes()
    outer["content"]["header"]["splits"]["train"]["classes"][0] += 1
    outer["crc32"] = zlib.crc32(json.dumps(outer["content"], separators=(",", ":")).encode())
    manifest.write_text(json.dumps(outer))
    with pytest.raises(StoreError, match="it says other things of its shards than they hold"):
        verify(VerifyOptions(store=manifest))
    manifest.write_bytes(whole)
    with open(paths[1], "r+b") as file:
        file.seek(locate(paths[1])[1]["values"].offset + 3)
        file.write(b"\x05" if Store(paths[1]).values[3] != 5 else b"\x04")
    with pytest.raises(StoreError, match=r"v1.h5: damaged:\n  /values: bytes 0 to"):
        verify(VerifyOptions(store=manifest))
