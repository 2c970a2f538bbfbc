"""get_dataloader gives the same batches whatever the workers, and says what is wrong."""

from __future__ import annotations

import os
import pickle

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

from seqpipe import dataloader
from seqpipe.batch import Batch
from seqpipe.collate import PADDINGS, fill
from seqpipe.dataloader import get_dataloader, sequence_lengths, store_rows
from seqpipe.errors import SeqpipeError, StoreError
from seqpipe.sequences import SequenceDataset
from seqpipe.store import Store


def content(loader):
    """Return everything of every batch of one iteration, in a form that can be compared."""
    return [
        (batch.index.tolist(), batch.lengths.tolist(), batch.ids, batch.sequences.dtype, batch.sequences.shape,
         batch.sequences.numpy().tobytes(), None if batch.labels is None else batch.labels.tolist())
        for batch in loader
    ]


def rows(loader):
    return [batch.index.tolist() for batch in loader]


def jitter(sequence, metadata, rng):
    """Drop a random start, and replace the label by a draw."""
    return sequence[rng.integers(0, len(sequence)) :], {**metadata, "label": np.float32(rng.random())}


def fail_on_row_40(sequence, metadata, rng):
    if metadata["index"] == 40:
        raise KeyError("forty")
    return sequence, metadata


def lengthen_row_40(sequence, metadata, rng):
    return np.append(sequence, sequence) if metadata["index"] == 40 else sequence, metadata


# ---- order and epochs ---------------------------------------------------------------------


def test_without_shuffle_the_store_is_read_in_order(amp_store):
    """32 a batch, the last one less, each row once; lengths and sequences are the dataset's."""
    dataset = SequenceDataset(amp_store)
    loader = get_dataloader(amp_store)
    batches = list(loader)

    assert len(loader) == len(batches) == 145
    assert [len(batch) for batch in batches] == [32] * 144 + [12]
    assert sum((batch.index.tolist() for batch in batches), []) == list(range(4620))
    for batch in batches[::20]:
        assert isinstance(batch, Batch)
        for row, sequence in zip(batch.index.tolist(), batch.unpad(), strict=True):
            assert sequence.tolist() == dataset[row][0].tolist()


@pytest.mark.parametrize("bucket", [None, True, False])
def test_each_iteration_is_the_next_epoch(amp_store, bucket):
    """Another order with the same rows; set_epoch goes back to one."""
    loader = get_dataloader(amp_store, 64, shuffle=True, bucket=bucket)
    first, second = rows(loader), rows(loader)
    loader.set_epoch(0)

    assert first != second and sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(4620))
    assert rows(loader) == first and rows(loader) == second
    assert rows(get_dataloader(amp_store, 64, shuffle=True, bucket=bucket)) == first
    assert rows(get_dataloader(amp_store, 64, shuffle=True, bucket=bucket, seed=1)) != first


def test_next_of_iter_twice_gives_two_epochs(amp_store):
    """A batch looked at is an epoch begun, as len and set_epoch know."""
    loader = get_dataloader(amp_store, 64, shuffle=True)
    first = next(iter(loader)).index.tolist()
    second = next(iter(loader)).index.tolist()
    loader.set_epoch(0)

    assert first != second
    assert next(iter(loader)).index.tolist() == first


def test_drop_last_leaves_out_the_batch_that_is_not_full(amp_store):
    """len knows."""
    loader = get_dataloader(amp_store, 1000, drop_last=True, shuffle=True)

    assert [len(batch) for batch in loader] == [1000] * 4
    assert len(loader) == 4
    assert list(get_dataloader(amp_store, 5000, drop_last=True)) == []


def test_bucketing_follows_shuffle(amp_store):
    """Shuffled batches hold like lengths unless told otherwise; in store order they do not."""
    def share(**options):
        batches = list(get_dataloader(amp_store, **options))
        return 1 - sum(b.num_elements for b in batches) / sum(b.sequences.numel() for b in batches)

    assert share(shuffle=True) < 0.2 < 0.4 < share(shuffle=True, bucket=False)
    assert share() > 0.4 and share(bucket=True) < 0.05


def test_iterating_leaves_torchs_global_generator_alone(amp_store):
    """Resuming a training run relies on it; with workers too."""
    before = torch.random.get_rng_state()
    for workers in (0, 1):
        list(get_dataloader(amp_store, 1000, shuffle=True, num_workers=workers))

    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_default_device_does_not_matter(amp_store):
    """Batches are made on the CPU."""
    wanted = content(get_dataloader(amp_store, 1000, shuffle=True))
    torch.set_default_device("meta")
    try:
        assert content(get_dataloader(amp_store, 1000, shuffle=True)) == wanted
        assert content(get_dataloader(amp_store, 1000, shuffle=True, num_workers=1)) == wanted
    finally:
        torch.set_default_device("cpu")


# ---- what is loaded -----------------------------------------------------------------------


def test_subset_is_the_first_n_after_the_split(amp_store, capsys):
    """In store order, said in one line; more than there are is all."""
    test_rows = Store(amp_store).split_rows("test").tolist()

    assert sum(rows(get_dataloader(amp_store, subset=50, split="test", shuffle=True)), []) != test_rows[:50]
    assert capsys.readouterr().err == f"subset: the first 50 of {len(test_rows)} sequences\n"
    assert sorted(sum(rows(get_dataloader(amp_store, subset=50, split="test", shuffle=True)), [])) == test_rows[:50]
    assert len(sum(rows(get_dataloader(amp_store, subset=10**9)), [])) == 4620


def test_subsets_of_subsets_and_random_splits_load(amp_store):
    """Their order is kept, their lengths are found, negative indices count from the end."""
    dataset = SequenceDataset(amp_store, "train")
    part, _ = random_split(dataset, [500, len(dataset) - 500], generator=torch.Generator().manual_seed(0))
    inner = Subset(part, [7, -1, 0])
    wanted = [dataset[part.indices[i]][1]["index"] for i in (7, -1, 0)]

    assert rows(get_dataloader(inner)) == [wanted]
    assert store_rows(inner).tolist() == wanted
    assert sequence_lengths(inner).tolist() == [len(inner[i][0]) for i in range(3)]
    assert sum(rows(get_dataloader(part)), []) == store_rows(part).tolist()
    whole = SequenceDataset(amp_store)
    assert rows(get_dataloader(Subset(whole, [-1, 0]))) == [[4619, 0]]
    assert sequence_lengths(Subset(whole, [-1])).tolist() == [len(whole[-1][0])]


def test_an_empty_subset_is_refused(amp_store):
    """A loop over nothing would go unnoticed."""
    with pytest.raises(SeqpipeError, match="no sequences to batch: the data set is empty"):
        get_dataloader(Subset(SequenceDataset(amp_store), []), shuffle=True)


@pytest.mark.parametrize("padding", PADDINGS)
def test_padding_options_reach_the_collate_function(vowels_store, padding):
    """All three give the same batches."""
    options = {"padding_side": "left", "pad_to_multiple": 16, "subset": 40}
    batches = content(get_dataloader(vowels_store, padding=padding, **options))

    assert batches == content(get_dataloader(vowels_store, **options))
    assert batches[0][4][1] % 16 == 0
    assert next(iter(get_dataloader(vowels_store, padding=padding, **options))).mask[:, -1].all()


# ---- workers ------------------------------------------------------------------------------


def test_workers_give_the_same_batches(amp_store):
    """Also after item 0 was read in the parent, and with a transform's draws, over two epochs."""
    dataset = SequenceDataset(amp_store, "test", jitter)
    dataset[0]
    with_workers = get_dataloader(dataset, 64, shuffle=True, num_workers=2)
    without = get_dataloader(dataset, 64, shuffle=True, num_workers=0)

    epochs = [content(with_workers), content(with_workers)]

    assert epochs == [content(without), content(without)]
    assert epochs[0] != epochs[1]


def test_two_loaders_over_one_dataset_do_not_share_an_epoch(amp_store):
    """Validating in the middle of an epoch changes none of its draws."""
    dataset = SequenceDataset(amp_store, transform=jitter)
    train, valid = Subset(dataset, range(200)), Subset(dataset, range(200, 300))
    loader = get_dataloader(train, shuffle=True, num_workers=0)
    loader.set_epoch(3)
    wanted = content(loader)

    loader.set_epoch(3)
    batches = []
    for batch in loader:
        batches.append(batch)
        list(get_dataloader(valid, num_workers=0))

    assert content(batches) == wanted


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_epoch_reaches_workers_that_persist(amp_store, method):
    """Their transforms draw as without workers in each epoch, also when another loader starts in between."""
    dataset = SequenceDataset(amp_store, "test", jitter)
    train, valid = Subset(dataset, range(100)), Subset(dataset, range(100, 150))
    wanted = get_dataloader(train, shuffle=True, num_workers=0)
    loader = get_dataloader(train, shuffle=True, num_workers=2 if method == "fork" else 1, persistent_workers=True,
                            multiprocessing_context=method, worker_init_fn=seed_nothing)
    for epoch in (0, 1, 5):
        wanted.set_epoch(epoch)
        loader.set_epoch(epoch)
        batches = []
        for batch in loader:
            batches.append(batch)
            list(get_dataloader(valid, num_workers=0))
        assert content(batches) == content(wanted)


def seed_nothing(number):
    """Stand for a user's own worker_init_fn."""
    assert number in (0, 1)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_the_epoch_of_a_dataset_reaches_the_workers_of_any_loader(amp_store, method):
    """It is one shared integer: through Subset and random_split, in a DataLoader of torch's own."""
    dataset = pickle.loads(pickle.dumps(SequenceDataset(amp_store, "test", jitter)))
    part, _ = random_split(dataset, [20, len(dataset) - 20], generator=torch.Generator().manual_seed(0))
    loader = DataLoader(part, 5, collate_fn=fill, num_workers=1, persistent_workers=True,
                        multiprocessing_context=method)
    seen = []
    for epoch in (0, 1, 0):
        dataset.epoch = epoch
        seen.append(content(loader))
        assert content(DataLoader(part, 5, collate_fn=fill)) == seen[-1]
    assert seen[0] == seen[2] != seen[1]


def test_workers_by_themselves_are_few():
    """None without a transform, else one core is left for training; at most 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

    assert dataloader._auto_workers(False) == 0
    assert dataloader._auto_workers(True) == max(0, min(4, cores - 1))


def test_auto_uses_no_worker_without_a_transform(amp_store):
    """As a store is mapped; with one it does what _auto_workers says."""
    assert get_dataloader(amp_store).num_workers == 0
    assert get_dataloader(amp_store, transform=jitter).num_workers == dataloader._auto_workers(True)


def test_an_error_in_a_transform_keeps_type_and_text(amp_store):
    """Out of a worker too; the row is in its text."""
    with pytest.raises(KeyError, match="forty"):
        list(get_dataloader(amp_store, transform=fail_on_row_40, num_workers=0))
    with pytest.raises(SeqpipeError, match="(?s)amp.h5: row 40: the transform made shape .* never lengthen"):
        list(get_dataloader(amp_store, transform=lengthen_row_40, num_workers=1))


# ---- arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize("options, message", [
    ({"batch_size": 0}, "batch_size=0; expected a whole number, 1 or more"),
    ({"batch_size": 2.5}, "batch_size=2.5; expected a whole number"),
    ({"batch_size": "32"}, "batch_size='32'; expected a whole number"),
    ({"batch_size": True}, "batch_size=True; expected a whole number"),
    ({"subset": 0}, "subset=0; expected a whole number, 1 or more"),
    ({"subset": -3}, "subset=-3"),
    ({"num_workers": -1}, "num_workers=-1; expected a whole number, 0 or more"),
    ({"num_workers": "many"}, "num_workers='many'"),
    ({"seed": -1}, "seed=-1; expected a whole number, 0 or more"),
    ({"pad_to_multiple": 0}, "pad_to_multiple=0"),
    ({"padding": "best"}, "padding='best'; expected one of 'fill', 'pad_sequence', 'manual'"),
    ({"padding_side": "top"}, "padding_side='top'; expected one of 'right', 'left'"),
    ({"pin_memory": "yes"}, "pin_memory='yes'; expected one of True, False, 'auto'"),
    ({"transform": 3}, "transform=3; expected a function"),
    ({"collate_fn": list}, "collate_fn: get_dataloader makes its own; for another one use torch's"),
    ({"generator": None}, "generator: get_dataloader makes its own"),
    ({"multiprocessing_context": "spawn"}, "num_workers"),
])
def test_each_wrong_argument_is_a_value_error(amp_store, options, message):
    """Which names it, what was found and what was expected."""
    with pytest.raises(ValueError, match=message):
        get_dataloader(amp_store, **options)


def test_what_belongs_to_a_path_is_refused_with_a_dataset(amp_store):
    """Rather than left out."""
    dataset = SequenceDataset(amp_store)
    for options in ({"split": "train"}, {"transform": jitter}):
        with pytest.raises(ValueError, match="split, transform and verify go with a path"):
            get_dataloader(dataset, **options)


@pytest.mark.parametrize("make", [lambda d: ConcatDataset([d, d]), lambda d: [1, 2], lambda d: Subset([1, 2], [0])])
def test_other_datasets_are_refused(amp_store, make):
    """By type."""
    with pytest.raises(ValueError, match=r"found a \w+; expected a path, a SequenceDataset or a Subset of one"):
        get_dataloader(make(SequenceDataset(amp_store)))


def test_a_missing_split_or_store_is_a_store_error(amp_store, tmp_path):
    """At once, not at the first batch."""
    with pytest.raises(StoreError, match="no split 'dev'"):
        get_dataloader(amp_store, split="dev")
    with pytest.raises(StoreError, match="none.h5"):
        get_dataloader(tmp_path / "none.h5")


def test_a_wrong_epoch_is_refused(amp_store):
    """Epochs count from 0."""
    with pytest.raises(ValueError, match="epoch=-1; expected a whole number, 0 or more"):
        get_dataloader(amp_store).set_epoch(-1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_batches_are_pinned_where_there_is_cuda(amp_store):
    """By default, in torch's own thread; and iterate with CUDA as the default device."""
    torch.set_default_device("cuda")
    try:
        batch = next(iter(get_dataloader(amp_store, shuffle=True, num_workers=1)))
    finally:
        torch.set_default_device("cpu")
    assert batch.sequences.is_pinned() and batch.lengths.is_pinned() and batch.labels.is_pinned()
    assert batch.to("cuda", non_blocking=True).lengths.device.type == "cpu"


def test_a_token_outside_the_alphabet_is_an_error_that_names_the_row(make_store, tmp_path, capsys):
    """A damaged token is found before a network meets it, by train and by predict."""
    from seqpipe.cli import main

    path = make_store("d.csv", "id,sequence,label\n" + "".join(f"r{i},ACGT,{'xy'[i % 2]}\n" for i in range(20)))
    run = ["train", "--data", str(path), "--hidden-dim", "4", "--device", "cpu", "--epochs", "1", "--out"]
    assert main([*run, str(tmp_path / "good")]) == 0
    with h5py.File(path) as file:
        offset = file["values"].id.get_offset()
    with open(path, "r+b") as file:
        file.seek(offset + 4 * 7 + 1)  # in row 7
        file.write(b"\xc8")
    capsys.readouterr()
    checkpoint = str(tmp_path / "good" / "best.pt")
    for command in ([*run, str(tmp_path / "bad")],
                    ["predict", "--checkpoint", checkpoint, "--data", str(path), "--out", str(tmp_path / "p.tsv")]):
        assert main(command) == 1
        message = capsys.readouterr().err
        assert "/values: bytes 0 to 80 (block 0) fail their CRC-32: rows 0 to 19 (0-based) ('r0' to 'r19')" in message
        assert f"run: seqpipe verify {path}" in message
