"""A SequenceDataset gives each sequence as it was written, as any torch dataset would."""

from __future__ import annotations

import copy
import functools
import pickle
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

from seqpipe.dataloader import get_dataloader
from seqpipe.errors import SeqpipeError, StoreError
from seqpipe.sequences import SequenceDataset
from seqpipe.store import Store
from tests.attacks.files import rebuild

FASTA = ">a first\nACGT\n>b\nGG\n>c third\nTTTTTTT\n>d\nA\n>e\nCCGG\n"
SEQUENCES = ["ACGT", "GG", "TTTTTTT", "A", "CCGG"]


@pytest.fixture
def path(make_store):
    """Five sequences of DNA, two of them equally long."""
    return make_store("five.fasta", FASTA)


@pytest.fixture
def tracked(path):
    """An open store with a track, a number per element."""
    def add(arrays, header):
        arrays["tracks/quality"] = np.arange(len(arrays["values"]), dtype="f4")

    return Store(rebuild(path, path.with_name("tracked.h5"), add))


def same(left, right):
    """Compare two samples, bit for bit."""
    return left[0].dtype == right[0].dtype and left[0].tobytes() == right[0].tobytes() and left[1] == right[1]


# ---- the contract of a torch dataset ------------------------------------------------------


def test_each_sample_is_its_sequence_and_metadata(path):
    """In the order of the input; text columns as str."""
    dataset = SequenceDataset(path)

    assert len(dataset) == 5
    assert [dataset.decode(sequence) for sequence, _ in dataset] == SEQUENCES
    assert dataset[2][1] == {"index": 2, "id": "c", "description": "third"}


def test_negative_and_numpy_indices_work(path):
    """As for a list; a 0-d tensor is an integer too."""
    dataset = SequenceDataset(path)

    assert same(dataset[-1], dataset[4]) and same(dataset[-5], dataset[0])
    for index in (np.int64(3), np.uint8(3), torch.tensor(3)):
        assert same(dataset[index], dataset[3])
        assert type(dataset[index][1]["index"]) is int


@pytest.mark.parametrize("index", [5, -6, 10**30, np.int64(5)])
def test_an_index_out_of_range_is_an_index_error(path, index):
    """The message states both bounds."""
    with pytest.raises(IndexError, match="is out of range; expected -5 <= index < 5"):
        SequenceDataset(path)[index]


@pytest.mark.parametrize("index", [slice(0, 2), [0, 1], np.array([0, 1]), 1.0, "0", None])
def test_what_is_no_integer_is_refused_with_the_way_out(path, index):
    """Slices and lists belong to Subset."""
    with pytest.raises(TypeError, match=r"takes one integer; for a part of it use torch\.utils\.data\.Subset"):
        SequenceDataset(path)[index]


def test_an_empty_split_is_an_empty_dataset(path):
    """It iterates to nothing and has no item 0."""
    def add(arrays, header):
        arrays["splits/none"] = np.empty(0, "<u8")
        header["splits"]["none"] = {"sequences": 0, "values": 0}

    dataset = SequenceDataset(rebuild(path, path.with_name("empty.h5"), add), "none")

    assert (len(dataset), list(dataset), np.asarray(dataset.lengths).tolist()) == (0, [], [])
    with pytest.raises(IndexError):
        dataset[0]


def test_returned_arrays_are_writable_copies(tracked):
    """Writing into a sample changes neither the store nor the next read."""
    dataset = SequenceDataset(tracked)
    for index in (0, 3):
        sequence, metadata = dataset[index]
        before = sequence.copy(), metadata["quality"].copy()
        sequence[:] = 99
        metadata["quality"][:] = 99
        assert dataset[index][0].tolist() == before[0].tolist()
        assert dataset[index][1]["quality"].tolist() == before[1].tolist()


def test_getitems_equals_getitem(vowels_store):
    """In the order asked for, repeats included."""
    dataset = SequenceDataset(vowels_store, "test")
    indices = [5, 0, 5, -1]

    for sample, index in zip(dataset.__getitems__(indices), indices, strict=True):
        assert same(sample, dataset[index])


def test_features_keep_dtype_shape_and_class(vowels_store):
    """(T, 12) float32 and an int64 class number."""
    dataset = SequenceDataset(vowels_store)
    sequence, metadata = dataset[0]

    assert (sequence.dtype, sequence.shape) == (np.float32, (dataset.lengths[0], 12))
    assert isinstance(metadata["label"], np.int64)
    assert len(dataset.classes) == 9 and len(dataset.channels) == 12
    with pytest.raises(TypeError, match="features, which have no text"):
        dataset.decode(sequence)


def test_number_labels_are_float32(make_store):
    """And class labels int64; without labels there is no such key."""
    numbers = SequenceDataset(make_store("n.csv", "sequence,label\nAC,0.5\nGG,2\n"))
    classes = SequenceDataset(make_store("c.csv", "sequence,label\nAC,x\nGG,w\n"))
    neither = SequenceDataset(make_store("t.csv", "sequence,label\nAC,x\nGG,w\n", label_type="none"))

    assert isinstance(numbers[0][1]["label"], np.float32) and numbers[0][1]["label"] == 0.5
    assert isinstance(classes[0][1]["label"], np.int64) and classes.classes == ["w", "x"]
    assert neither.classes == [] and not isinstance(neither[0][1].get("label"), np.number)
    assert next(iter(DataLoader(neither, 2, collate_fn=lambda samples: samples)))[0][1]["index"] == 0
    assert next(iter(get_dataloader(neither))).labels is None


def test_a_split_holds_its_rows_only(amp_store):
    """``index`` is the row in the whole store, and the splits together are the whole."""
    store = Store(amp_store)
    found = []
    for split in store.splits:
        dataset = SequenceDataset(amp_store, split)
        assert {dataset[i][1]["split"] for i in range(0, len(dataset), 50)} == {split}
        assert dataset[-1][1]["index"] == store.split_rows(split)[-1]
        found += store.split_rows(split).tolist()
    assert sorted(found) == list(range(4620))
    with pytest.raises(StoreError, match="no split 'dev'; this store has 'train', 'valid', 'test'"):
        SequenceDataset(amp_store, "dev")


@pytest.mark.parametrize("verify", [True, False])
def test_a_damaged_offset_is_a_store_error(path, verify):
    """Never another sequence's values, whether blocks are verified or not."""
    def spoil(arrays, header):
        arrays["offsets"][2] = 10**6

    dataset = SequenceDataset(rebuild(path, path.with_name("spoiled.h5"), spoil), verify=verify)
    for read in (lambda: dataset[1], lambda: dataset.__getitems__([0, 1]), lambda: dataset.lengths[1]):
        with pytest.raises(StoreError, match=r"offsets\[1:3\]|offsets\[2:4\]"):
            read()


# ---- columns, tracks ----------------------------------------------------------------------


def test_columns_chooses_metadata_and_tracks(tracked):
    """Only those; index is always there."""
    def keys(columns):
        return set(SequenceDataset(tracked, columns=columns)[1][1])

    assert keys(None) == {"index", "id", "description", "quality"}
    assert keys(["id"]) == {"index", "id"}
    assert keys(["quality", "index"]) == {"index", "quality"}
    assert keys([]) == {"index"}
    assert keys(iter(("id", "description"))) == {"index", "id", "description"}


def test_tracks_are_cut_like_their_sequence(tracked):
    """Aligned element by element."""
    assert SequenceDataset(tracked)[1][1]["quality"].tolist() == [4, 5]
    assert SequenceDataset(tracked, columns=["quality"])[-1][1]["quality"].tolist() == [14, 15, 16, 17]


def test_wrong_columns_are_refused(path):
    """The message lists what there is; one name alone is no list of columns."""
    with pytest.raises(ValueError, match=r"no metadata column 'age'; .*\['id', 'description'\]"):
        SequenceDataset(path, columns=["id", "age"])
    with pytest.raises(ValueError, match=r"columns='id'; expected a list of names, such as \['id'\]"):
        SequenceDataset(path, columns="id")


# ---- pickles ------------------------------------------------------------------------------


def test_pickle_is_small_after_reading_and_reads_the_same(amp_store):
    """No handle, no map, no row numbers travel: the path and the options."""
    dataset = SequenceDataset(amp_store, "train", columns=["id", "label"], seed=3)
    dataset.epoch = 5
    dataset[0], dataset.lengths[:]

    data = pickle.dumps(dataset)
    twin = pickle.loads(data)

    assert len(data) < 1000
    assert all(same(twin[i], dataset[i]) for i in range(0, len(dataset), 500))
    assert (twin.seed, twin.epoch, twin.columns, twin.split) == (3, 5, ["id", "label"], "train")


def test_a_subclass_keeps_its_private_attributes(path):
    """Only what is derived from the store is left out of a pickle."""
    twin = pickle.loads(pickle.dumps(Scaled(path)))

    assert twin[0][1]["scale"] == 2.5
    assert copy.copy(twin)[0][1]["scale"] == 2.5


class Scaled(SequenceDataset):
    def __init__(self, path):
        super().__init__(path)
        self._scale = 2.5

    def __getitem__(self, index):
        sequence, metadata = super().__getitem__(index)
        return sequence, {**metadata, "scale": self._scale}


# ---- lengths ------------------------------------------------------------------------------


@given(data=st.data())
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("split", [None, "test"])
def test_lengths_index_like_an_array(amp_store, split, data):
    """Integers, slices, index arrays, masks, lists: the same as the array of all lengths, errors too."""
    lengths = dataset_lengths(amp_store, split)
    n = len(lengths)
    array = np.asarray(lengths)
    integers = st.integers(-n - 2, n + 1)
    key = data.draw(st.one_of(
        integers, st.slices(n), st.lists(integers, max_size=8),
        st.lists(st.integers(-n, n - 1), max_size=8).map(lambda chosen: np.array(chosen, np.int32)),
        st.integers(0, 99).map(lambda seed: np.random.default_rng(seed).random(n) < 0.1),
    ))
    try:
        wanted = array[np.array(key, int) if isinstance(key, list) else key]
    except IndexError:
        with pytest.raises(IndexError):
            lengths[key]
    else:
        found = lengths[key]
        assert np.array_equal(found, wanted)
        assert type(found) is int if isinstance(key, int) else found.dtype == np.int64


@functools.cache
def dataset_lengths(path, split):
    return SequenceDataset(path, split).lengths


def test_lengths_are_those_of_the_samples(amp_store):
    """As int64, for a split too; np.asarray takes a dtype."""
    dataset = SequenceDataset(amp_store, "valid")

    assert [len(sequence) for sequence, _ in dataset] == list(dataset.lengths) == dataset.lengths[:].tolist()
    assert np.asarray(dataset.lengths, np.float32).dtype == np.float32
    assert max(dataset.lengths) == np.asarray(dataset.lengths).max()


def test_lengths_refuse_what_is_no_index(path):
    """A mask of another length, fractions, texts."""
    lengths = SequenceDataset(path).lengths
    with pytest.raises(IndexError, match=r"a mask of shape \(3,\) for 5 lengths"):
        lengths[np.ones(3, bool)]
    with pytest.raises(TypeError, match="found float64"):
        lengths[np.array([0.5])]
    with pytest.raises(TypeError):
        lengths[0.5]
    with pytest.raises(IndexError, match="index 7 is out of range; expected 0 <= index < 5"):
        lengths[[0, 7]]


# ---- with torch's own tools ---------------------------------------------------------------


def test_subset_random_split_and_concat_work(amp_store):
    """Without anything of ours; random_split follows its generator."""
    dataset = SequenceDataset(amp_store)

    def split(seed):
        return random_split(dataset, [0.7, 0.3], generator=torch.Generator().manual_seed(seed))

    first, second = split(1)
    assert first.indices == split(1)[0].indices != split(2)[0].indices
    assert sorted([*first.indices, *second.indices]) == list(range(4620))
    assert same(first[3], dataset[first.indices[3]])
    assert same(Subset(first, [7])[0], dataset[first.indices[7]])
    assert same(ConcatDataset([second, dataset])[len(second) + 2], dataset[2])


def test_default_collate_works_on_equal_lengths(path):
    """torch's own collate stacks sequences of one length, with texts and numbers."""
    dataset = SequenceDataset(path)

    sequences, metadata = next(iter(DataLoader(Subset(dataset, [0, 4]), batch_size=2)))

    assert sequences.shape == (2, 4) and sequences.dtype == torch.uint8
    assert metadata["index"].tolist() == [0, 4] and metadata["id"] == ["a", "e"]


def test_default_collate_on_unequal_lengths_is_an_error(path):
    """It says what to use instead; get_dataloader, or one of our collate functions, pads."""
    with pytest.raises(SeqpipeError, match="stacks sequences of one length only; found 1 to 7 elements"):
        next(iter(DataLoader(SequenceDataset(path), batch_size=5)))
    assert next(iter(get_dataloader(path))).sequences.shape == (5, 7)


def test_a_plain_dataloader_without_batching_gives_tensors(path):
    """batch_size=None: torch converts each array."""
    sequence, metadata = next(iter(DataLoader(SequenceDataset(path), batch_size=None)))

    assert torch.is_tensor(sequence) and metadata["id"] == "a"


# ---- transforms ---------------------------------------------------------------------------


def cut_and_draw(sequence, metadata, rng):
    """Shorten to a random length, and keep a draw."""
    return sequence[: rng.integers(1, len(sequence) + 1)], {**metadata, "draw": rng.random()}


def test_draws_depend_on_seed_epoch_and_row_alone(amp_store):
    """Not on the order of reading, the split or the worker; (0, 1) and (1, 0) differ."""
    def draw(seed, epoch, index, split=None):
        dataset = SequenceDataset(amp_store, split, cut_and_draw, seed=seed)
        dataset.epoch = epoch
        return dataset[index][1]["draw"]

    row = int(Store(amp_store).split_rows("test")[0])
    assert draw(0, 0, row) == draw(0, 0, 0, "test")
    assert len({draw(*key) for key in [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)]}) == 4


def test_the_epoch_of_the_dataset_is_pickled(amp_store):
    """A spawned worker draws for the epoch it was started in."""
    dataset = SequenceDataset(amp_store, transform=cut_and_draw)
    dataset.epoch = 3

    assert pickle.loads(pickle.dumps(dataset))[0][1]["draw"] == dataset[0][1]["draw"]


@pytest.mark.parametrize("result, message", [
    (lambda s, m, r: s, "returned ndarray; expected the pair"),
    (lambda s, m, r: None, "returned NoneType; expected the pair"),
    (lambda s, m, r: [s, m], "returned list; expected the pair"),
    (lambda s, m, r: (s, m, r), r"returned \(ndarray, dict, Generator\); expected the pair"),
    (lambda s, m, r: (s.tolist(), m), r"returned \(list, dict\); expected the pair"),
    (lambda s, m, r: (s, "x"), r"returned \(ndarray, str\); expected the pair"),
    (lambda s, m, r: (np.repeat(s, 2), m), r"made shape \(4,\) of 2 elements; it may shorten"),
    (lambda s, m, r: (np.array(1), m), r"made shape \(\) of 2 elements"),
    (lambda s, m, r: (s + np.uint8(4), m), r"made tokens 7 to 7; expected 0 <= token < 6"),
    (lambda s, m, r: (s - np.int64(4), m), r"made tokens -1 to -1; expected 0 <= token < 6"),
])
def test_a_wrong_result_of_a_transform_is_refused(path, result, message):
    """The message names store, row and what came back."""
    with pytest.raises(SeqpipeError, match=f"five.h5: row 1: the transform {message}"):
        SequenceDataset(path, transform=result)[1]


def test_a_transform_may_shorten_to_nothing_and_change_the_dtype(path):
    """Length 0 is a length."""
    sequence, _ = SequenceDataset(path, transform=lambda s, m, r: (s[:0].astype(np.int64), m))[2]

    assert (sequence.shape, sequence.dtype) == ((0,), np.int64)


def test_an_error_of_a_transform_says_the_row(path):
    """As a note; its type and text stay."""
    with pytest.raises(ZeroDivisionError) as caught:
        SequenceDataset(path, transform=lambda s, m, r: 1 / 0)[2]
    assert "row 2: the transform raised this" in caught.value.__notes__[0]


@pytest.mark.parametrize("options, message", [
    ({"transform": "upper"}, "transform='upper'; expected a function"),
    ({"seed": -1}, "seed=-1; expected 0 or more"),
])
def test_wrong_arguments_are_value_errors(path, options, message):
    """At once, not at the first item."""
    with pytest.raises(ValueError, match=message):
        SequenceDataset(path, **options)


@pytest.mark.parametrize(("name", "item", "dtype", "value"), [
    ("splits/train", 5, "<u8", 10**9),
    ("offsets", 9, "<u8", 10**9),
    ("metadata/id/offsets", 9, "<u8", 10**9),
    ("metadata/id/offsets", 9, "<u8", 0),
    ("metadata/id/values", 20, "u1", 0xFF),
])
def test_a_damaged_number_ends_a_loop_with_an_error_not_without_a_word(
    amp_store: Path, tmp_path: Path, name: str, item: int, dtype: str, value: int
) -> None:
    """Damage that opening does not see never looks like the end of the data, or like other data."""
    path = tmp_path / "damaged.h5"
    shutil.copy(amp_store, path)
    with h5py.File(path) as file:
        offset = file[name].id.get_offset()
    number = np.array([value], dtype)
    with open(path, "r+b") as file:
        file.seek(offset + item * number.itemsize)
        file.write(number.tobytes())

    with pytest.raises(StoreError, match="run: seqpipe verify"):
        list(SequenceDataset(path, "train" if name == "splits/train" else None))
