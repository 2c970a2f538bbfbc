"""A dataset over shards is the dataset over the merged store: item by item, batch by batch, in every process."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from seqpipe import SequenceDataset, get_dataloader
from seqpipe.batch import Batch
from seqpipe.cli import main
from seqpipe.description import describe
from seqpipe.errors import StoreError
from seqpipe.ingest import preprocess
from seqpipe.merging import merge
from seqpipe.options import DescribeOptions, MergeOptions, PreprocessOptions, VerifyOptions
from seqpipe.sharded import ShardedStore
from seqpipe.store import Store
from seqpipe.verification import verify
from seqpipe.writer import Content, write_store
from tests.test_writer import in_child, minimal_header, needs_fork

Shards = tuple[list[Path], Path, Path]


def make_shards(folder: Path, *, features: bool) -> Shards:
    """Write five stores, their manifest, and the store they are merged into."""
    rng = random.Random(7)
    paths = []
    for k, count in enumerate([31, 12, 77, 12, 40]):
        lines = []
        for i in range(count):
            length = rng.randint(1, 50)
            sequence: Any = [[rng.gauss(0, 1), float(i)] for _ in range(length)] if features else \
                "".join(rng.choices("ACGTN", k=length))
            lines.append(json.dumps({"id": f"s{k}-{i}", "sequence": sequence, "label": "xyz"[i % 3], "age": i,
                                     "note": rng.choice(["", "é", "a b"]), "split": "train" if i % 4 else "test"}))
        raw = folder / f"p{k}.jsonl"
        raw.write_text("\n".join(lines))
        paths.append(folder / f"p{k}.h5")
        preprocess(PreprocessOptions(raw=(raw,), out=paths[-1], alphabet="auto" if features else "dna",
                                     split="column:split"))
    manifest, merged = folder / "all.seqpipe.json", folder / "all.h5"
    merge(MergeOptions(stores=tuple(paths), out=manifest))
    merge(MergeOptions(stores=tuple(paths), out=merged))
    return paths, manifest, merged


@pytest.fixture(scope="module", params=["tokens", "features"])
def shards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return make_shards(tmp_path_factory.mktemp(request.param), features=request.param == "features")


def plain(sample: Any) -> Any:
    """Return a sample as values that can be compared."""
    sequence, metadata = sample
    return sequence.dtype, sequence.tolist(), {name: (type(value), getattr(value, "tolist", lambda: value)())
                                               for name, value in metadata.items()}


def batch_bytes(batch: Batch) -> Any:
    return (batch.sequences.numpy().tobytes(), batch.lengths.tolist(), batch.labels.tolist(), batch.index.tolist(),
            list(batch.ids))


@pytest.mark.parametrize("split", [None, "train", "test"])
def test_items_are_those_of_the_merged_store(shards: Shards, split: str | None) -> None:
    """Sequences, every type of every column, and the row in the whole; one by one and as a batch."""
    paths, manifest, merged = shards
    one = SequenceDataset(merged, split)
    for data in (manifest, paths, [str(path) for path in paths]):
        many = SequenceDataset(data, split)
        assert len(many) == len(one)
        assert [plain(many[i]) for i in range(len(one))] == [plain(one[i]) for i in range(len(one))]
        assert np.array_equal(many.lengths, one.lengths) and many.lengths[3] == one.lengths[3]
        order = np.random.default_rng(0).permutation(len(one)).tolist()
        assert [plain(sample) for sample in many.__getitems__(order)] == [plain(one[i]) for i in order]
        assert plain(many[-1]) == plain(one[-1])
        with pytest.raises(IndexError):
            many[len(one)]


@pytest.mark.parametrize("options", [
    {"batch_size": 16, "shuffle": True}, {"batch_size": 7}, {"max_tokens": 300, "shuffle": True}, {"padding": "manual"},
    {"padding": "pad_sequence", "subset": 50, "shuffle": True},
])
def test_batches_are_those_of_the_merged_store(shards: Shards, options: dict[str, Any]) -> None:
    """Two epochs of each plan, byte for byte, labels and ids with them."""
    _, manifest, merged = shards
    many, one = (get_dataloader(data, split="train", seed=3, **options) for data in (manifest, merged))
    for _ in range(2):
        assert list(map(batch_bytes, many)) == list(map(batch_bytes, one))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_in_workers_are_those_of_the_merged_store(shards: Shards, method: str) -> None:
    """Each worker maps the shards it reads; the parent reads an item first, as user code does."""
    _, manifest, merged = shards
    dataset = SequenceDataset(manifest)
    plain(dataset[0])
    many = get_dataloader(dataset, batch_size=16, shuffle=True, num_workers=2, multiprocessing_context=method)
    one = get_dataloader(merged, batch_size=16, shuffle=True)
    assert list(map(batch_bytes, many)) == list(map(batch_bytes, one))


def test_a_transform_draws_alike(shards: Shards) -> None:
    """Its generator depends on the row in the whole, not on the shard."""
    _, manifest, merged = shards
    many, one = (SequenceDataset(data, "train", transform=first_of, seed=5) for data in (manifest, merged))
    assert [plain(many[i]) for i in range(20)] == [plain(one[i]) for i in range(20)]


def first_of(sequence: np.ndarray, metadata: dict[str, Any], rng: np.random.Generator) -> Any:
    return sequence[: rng.integers(1, len(sequence) + 1)], metadata


def test_a_dataset_over_a_manifest_pickles_small(shards: Shards) -> None:
    """A few hundred bytes, whatever the number of shards; a Subset of it is read the same."""
    dataset = SequenceDataset(shards[1], "train")
    assert len(pickle.dumps(dataset)) < 1000
    subset = Subset(dataset, [5, 60, 0])
    again = pickle.loads(pickle.dumps(subset))
    assert [plain(again[i]) for i in range(3)] == [plain(subset[i]) for i in range(3)]


def test_a_shard_replaced_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """A worker that starts later finds another file under the shard's name, and names both."""
    paths, manifest, _ = make_shards(tmp_path, features=False)
    pickled = pickle.dumps(SequenceDataset(manifest))
    raw = tmp_path / "p2.jsonl"
    lines = raw.read_text().split("\n")
    raw.write_text("\n".join([*lines[:-1], lines[-1].replace('"y"', '"x"').replace('"z"', '"x"').replace("A", "C")]))
    preprocess(PreprocessOptions(raw=(raw,), out=paths[2], alphabet="dna", split="column:split", overwrite=True))
    with pytest.raises(StoreError, match=r"p2.h5.*all.seqpipe.json|all.seqpipe.json.*p2.h5"):
        dataset = pickle.loads(pickled)
        dataset[50]


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    """The block and the record of the shard, on the first touch."""
    from seqpipe.locate import locate

    paths, manifest, _ = make_shards(tmp_path, features=False)
    with open(paths[2], "r+b") as file:
        file.seek(locate(paths[2])[1]["values"].offset)
        file.write(b"\x07")
    dataset = SequenceDataset(manifest)
    assert len(dataset[0][0])
    with pytest.raises(StoreError, match=r"p2.h5: damaged: /values"):
        dataset[43]


def resident(path: str, queue: Any) -> None:
    """Open a manifest and read one row; tell which shards were mapped."""
    dataset = SequenceDataset(path)
    dataset[0]
    store = dataset.store
    assert isinstance(store, ShardedStore)
    queue.put([part is not None for part in store._stores])


def test_a_worker_maps_only_what_it_reads(shards: Shards) -> None:
    """A process of its own that reads one row maps one shard."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=resident, args=(str(shards[1]), queue))
    process.start()
    assert queue.get(timeout=60) == [True, False, False, False, False]
    process.join()


def test_more_shards_than_open_files_say_so(tmp_path: Path) -> None:
    """The soft limit is raised as far as it may be, for many stores too; the message names both numbers."""
    paths, manifest, _ = make_shards(tmp_path, features=False)
    code = ("import resource, sys; from seqpipe import open_store; limit = int(sys.argv[2]);"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (6, limit));"
            "stores = [open_store(sys.argv[1]) for _ in range(16)];"
            "print(sum(len(store.sequence(row)) for store in stores for row in range(len(store))))")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    runs = [subprocess.run([sys.executable, "-c", code, str(manifest), limit], capture_output=True, text=True,
                           env=environment) for limit in ("200", "20")]
    assert runs[0].returncode == 0 and int(runs[0].stdout) > 100
    assert runs[1].returncode == 1
    assert "5 shards need 69 open files, and this process may have 20" in runs[1].stderr


@pytest.mark.slow
@needs_fork
def test_a_thousand_small_shards_are_one_store(tmp_path: Path) -> None:
    """Of three sequences each, with 256 open files at first: merged, read shuffled, verified and described."""
    count, sequences, paths = 1000, [], []
    for k in range(count):
        rng = np.random.default_rng(k)
        ends = np.cumsum([0, *rng.integers(1, 50, 3)]).astype("<u8")
        values = rng.integers(1, 6, ends[-1], np.uint8)
        sequences += [values[ends[i] : ends[i + 1]].tolist() for i in range(3)]
        ids = "".join(f"s{k:03}-{i}" for i in range(3)).encode()
        contents = {"values": values, "offsets": ends, "metadata/id/values": np.frombuffer(ids, "u1"),
                    "metadata/id/offsets": np.arange(0, len(ids) + 1, 6, dtype="<u8")}
        paths.append(tmp_path / f"{k}.h5")
        write_store(paths[-1], {name: Content.of(array) for name, array in contents.items()},
                    minimal_header(np.diff(ends).astype(np.int64)) | {"columns": ["id"]}, folder=tmp_path)

    def work() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        manifest, merged = tmp_path / "all.seqpipe.json", tmp_path / "all.h5"
        merge(MergeOptions(stores=tuple(paths), out=manifest))
        found = {}
        for batch in get_dataloader(manifest, batch_size=64, shuffle=True):
            found |= {row: (sequence[:length].tolist(), name) for row, sequence, length, name in zip(
                batch.index.tolist(), batch.sequences, batch.lengths, batch.ids, strict=True)}
        assert found == {row: (sequence, f"s{row // 3:03}-{row % 3}") for row, sequence in enumerate(sequences)}
        assert verify(VerifyOptions(store=manifest)).shards == count
        assert "3,000" in describe(DescribeOptions(store=manifest, head=0))
        merge(MergeOptions(stores=(manifest,), out=merged))
        assert np.array_equal(Store(merged).values, np.concatenate(sequences))

    assert in_child(work) == 0


@pytest.mark.parametrize("command", ["train", "compare-padding"])
def test_commands_take_a_manifest(shards: Shards, tmp_path: Path, command: str) -> None:
    """What runs on a store runs on its shards; a network predicts on them the same."""
    torch.manual_seed(0)
    arguments = {
        "train": ["--out", str(tmp_path / "run"), "--epochs", "1", "--max-steps", "3", "--device", "cpu",
                  "--hidden-dim", "8", "--embedding-dim", "4"],
        "compare-padding": ["--max-batches", "3", "--rounds", "1"],
    }[command]
    assert main([command, "--data", str(shards[1]), *arguments]) == 0
    if command == "train":
        for name, data in (("many", shards[1]), ("one", shards[2])):
            assert main(["predict", "--checkpoint", str(tmp_path / "run" / "last.pt"), "--data", str(data), "--split",
                         "test", "--out", str(tmp_path / f"{name}.tsv"), "--device", "cpu"]) == 0
        assert (tmp_path / "many.tsv").read_bytes() == (tmp_path / "one.tsv").read_bytes()
