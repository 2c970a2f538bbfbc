"""A batch reads as its items do, from every kind of store; the map is never handed out."""

from __future__ import annotations

import functools
import os
import pickle
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

from seqpipe.batch import Batch
from seqpipe.collate import PADDINGS, fill
from seqpipe.sequences import RaggedBatch, SequenceDataset
from seqpipe.store import Store
from tests.attacks.files import rebuild
from tests.test_writer import write_plain


def with_tracks(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    count = len(arrays["values"])
    arrays["tracks/quality"] = (np.arange(count) % 251).astype("u1")
    arrays["tracks/time"] = np.arange(count) / 7


def with_lists(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    rows = len(arrays["offsets"]) - 1
    counts = np.arange(rows) % 3
    del arrays["metadata/label"]
    arrays["metadata/label/offsets"] = np.cumsum([0, *counts]).astype("<u8")
    arrays["metadata/label/values"] = (np.arange(counts.sum()) % 2).astype("<i4")
    header["label_type"] = "multilabel"


def with_first_token(token: int, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    arrays["values"][0] = token


@pytest.fixture(scope="module")
def stores(amp_store: Path, vowels_store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Stores of every kind, by name: what ``SequenceDataset`` takes."""
    folder = tmp_path_factory.mktemp("kinds")
    return {
        "tokens": amp_store,
        "features": vowels_store,
        "tracks": rebuild(amp_store, folder / "tracks.h5", with_tracks),
        "shards": [rebuild(amp_store, folder / f"{k}.h5", functools.partial(with_first_token, k)) for k in (1, 2, 3)],
    }


def equal(one: Batch, other: Batch) -> bool:
    """Compare two batches, bit for bit."""
    tensors = [(a.sequences, a.lengths, a.index, a.labels, *a.tracks.values()) for a in (one, other)]
    return one.ids == tuple(other.ids) and one.tracks.keys() == other.tracks.keys() and all(
        a is b if a is None or b is None else a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(*tensors, strict=True))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_batch_read_in_one_go_is_that_of_its_items(stores: dict[str, Any], data: st.DataObject) -> None:
    """For every kind of store, split, columns, side and multiple; rows in any order, also twice; by each padding."""
    kind = data.draw(st.sampled_from(sorted(stores)))
    split = data.draw(st.sampled_from([None, "train", "test"]))
    columns = data.draw(st.sampled_from([None, ["label"], ["id"], []]))
    dataset = SequenceDataset(stores[kind], split, columns=columns, verify=data.draw(st.booleans()))
    indices = data.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=12))
    side, multiple = data.draw(st.sampled_from(["right", "left"])), data.draw(st.integers(1, 5))

    items = [dataset[i] for i in indices]
    wanted = fill(items, padding_side=side, pad_to_multiple=multiple)

    for collate in PADDINGS.values():
        batch = collate(dataset.__getitems__(indices), padding_side=side, pad_to_multiple=multiple)
        assert equal(batch, wanted)


def test_labels_of_several_classes_are_read_with_the_batch(vowels_store: Path, tmp_path: Path) -> None:
    """As (B, K), with K from the store; a sample has the int32 numbers."""
    path = rebuild(vowels_store, tmp_path / "lists.h5", with_lists)
    with mock.patch("seqpipe.soundness.header_problem", return_value=None):
        dataset = SequenceDataset(path)

    assert dataset[2][1]["label"].dtype == np.int32 and dataset[2][1]["label"].tolist() == [1, 0]
    batch = fill(dataset.__getitems__([0, 1, 2]))
    assert batch.labels is not None and batch.labels.shape == (3, 9)
    assert batch.labels[:, :2].tolist() == [[0, 0], [1, 0], [1, 1]]
    assert equal(batch, fill(dataset.__getitems__([0, 1, 2])[:], num_classes=9))


def test_rows_too_long_for_an_item_are_laid_down_alike(amp_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy 1 makes no item of 2 GiB; what does not fit into one has the same bytes."""
    dataset = SequenceDataset(amp_store)
    whole = fill(dataset.__getitems__(range(17)))
    monkeypatch.setattr("seqpipe.collate.ITEM", whole.sequences.shape[1])
    assert equal(fill(dataset.__getitems__(range(17))), whole)


def test_empty_sequences_read_as_padding(tmp_path: Path) -> None:
    """Wherever they stand: first, last, where nothing follows, or alone in their batch."""
    offsets = np.array([0, 0, 3, 3, 5, 5], "<u8")
    dataset = SequenceDataset(write_plain(tmp_path / "empty.h5", np.arange(1, 6, dtype="u1"), offsets))
    assert fill(dataset.__getitems__([4, 3, 0, 1])).sequences.tolist() == [[0, 0, 0], [4, 5, 0], [0, 0, 0], [1, 2, 3]]
    assert fill(dataset.__getitems__([4, 0])).sequences.tolist() == [[0], [0]]


def test_a_ragged_batch_is_a_sequence_of_samples(amp_store: Path) -> None:
    """It has a length, items, slices and an end; its samples are made once, so that they can be written to."""
    dataset = SequenceDataset(amp_store)
    batch = dataset.__getitems__([5, 3, 5])

    assert isinstance(batch, RaggedBatch) and len(batch) == 3
    assert [metadata["index"] for _, metadata in batch] == [5, 3, 5]
    assert batch[-1][0].tolist() == dataset[5][0].tolist() and len(batch[:2]) == 2
    batch[0][0][:] = 1
    assert set(batch[0][0].tolist()) == {1} and fill(batch).sequences[0].max() == 1
    assert dataset[5][0].max() > 1
    with pytest.raises(IndexError):
        batch[3]


def test_a_ragged_batch_crosses_processes(amp_store: Path) -> None:
    """A loader without a collate function of ours gets the samples."""
    dataset = SequenceDataset(amp_store)
    loader = DataLoader(Subset(dataset, [3, 5]), batch_size=2, collate_fn=identity, num_workers=1)

    batch = next(iter(loader))

    assert [metadata["index"] for _, metadata in batch] == [3, 5]
    assert batch[1][0].tolist() == dataset[5][0].tolist()


def identity(samples: Any) -> Any:
    return samples


def test_batches_share_nothing_with_the_store(amp_store: Path) -> None:
    """Every tensor can be written, and the next read is as before."""
    dataset = SequenceDataset(amp_store)
    before = fill(dataset.__getitems__([0, 1]))
    batch = fill(dataset.__getitems__([0, 1]))
    for tensor in (batch.sequences, batch.lengths, batch.index, batch.labels):
        assert tensor is not None
        tensor.fill_(7)

    assert equal(fill(dataset.__getitems__([0, 1])), before)


def test_ids_are_read_when_they_are_looked_at(amp_store: Path) -> None:
    """Not before; then they are as a tuple."""
    dataset = SequenceDataset(amp_store)
    batch = fill(dataset.__getitems__([7, 2]))
    with mock.patch.object(type(dataset._reader), "text", side_effect=AssertionError):
        fill(dataset.__getitems__([7, 2]))

    assert batch.ids == (dataset[7][1]["id"], dataset[2][1]["id"]) and batch.ids[1] == dataset[2][1]["id"]
    assert len(batch.ids) == 2 and list(batch.to("cpu").ids) == list(batch.ids)
    assert pickle.loads(pickle.dumps(batch.ids)) == tuple(batch.ids)


@pytest.mark.parametrize("indices", [[0, 10**6], [-1], [np.int64(3)], [True]])
def test_indices_of_a_batch_are_those_of_items(amp_store: Path, indices: list[Any]) -> None:
    """Negative ones, NumPy's, and the same errors."""
    dataset = SequenceDataset(amp_store)
    try:
        wanted = [dataset[i][1]["index"] for i in indices]
    except IndexError:
        with pytest.raises(IndexError, match="index 1000000 is out of range"):
            dataset.__getitems__(indices)
    else:
        assert [metadata["index"] for _, metadata in dataset.__getitems__(indices)] == wanted


def test_a_dataset_of_many_rows_pickles_small_and_reads_without_a_list(tmp_path: Path) -> None:
    """A few hundred bytes, and memory for the batch alone, after reading as before."""
    import tracemalloc

    count = 2_000_000
    path = write_plain(tmp_path / "many.h5", np.ones(count, "u1"), np.arange(count + 1, dtype="<u8"))
    tracemalloc.start()
    dataset = SequenceDataset(path)
    fill(dataset.__getitems__([5, count - 1, 77_777]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 1 << 20
    assert len(pickle.dumps(dataset)) < 900
    assert len(pickle.dumps(Store(path))) < len(str(path)) + 200


def opened_cold(path: Path, **options: Any) -> SequenceDataset:
    """Open a store of which nothing is in the page cache; skip where the system does not tell."""
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("the page cache is not asked here")
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
        for _ in range(100):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            dataset = SequenceDataset(path, **options)
            if not dataset.store.mapping.in_memory("values", [len(dataset.store.values) // 2]):
                return dataset
            del dataset
            time.sleep(0.02)
    pytest.skip("this file system does not tell, or keeps its files in memory")


def test_a_cold_file_is_told_from_one_in_memory(tmp_path: Path) -> None:
    """By the system's page cache, where it tells; a batch reads the same from both."""
    values = (np.arange(4_000_000) % 5 + 1).astype("u1")
    path = write_plain(tmp_path / "cold.h5", values, np.arange(0, 4_000_001, 1000, dtype="<u8"))
    dataset = opened_cold(path)
    rows = list(range(0, len(dataset), 40))

    batch = fill(dataset.__getitems__(rows))

    assert dataset.store.mapping.in_memory("values", [2_000_000])
    assert np.array_equal(batch.sequences.numpy(), values.reshape(-1, 1000)[rows])


@pytest.mark.parametrize("verify", [True, False])
def test_a_cold_file_is_read_where_it_is_asked_for(tmp_path: Path, verify: bool) -> None:
    """Neither opening it nor a shuffled batch fetches what lies between, however far the system reads ahead."""
    values = np.full(40_000_000, 3, "u1")
    path = write_plain(tmp_path / "cold.h5", values, np.arange(0, 40_000_001, 1000, dtype="<u8"))
    dataset = opened_cold(path, columns=[], verify=verify)
    rows = [30_500, 20_500, 500, 10_500]

    batch = fill(dataset.__getitems__(rows))

    assert (batch.sequences == 3).all() and batch.lengths.tolist() == [1000] * 4
    assert all(dataset.store.mapping.in_memory("values", [row * 1000], 1000) for row in rows)
    between = [place for place in range(100_000, 40_000_000, 100_000)
               if all(abs(place - row * 1000) > 2 * 65536 for row in rows)]
    assert [place for place in between if dataset.store.mapping.in_memory("values", [place])] == []
