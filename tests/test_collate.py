"""Three ways to pad give one result, which is the samples and zeros."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.collate import PADDINGS, fill

DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
LENGTHS = [[3, 0, 5, 1], [0, 2], [4, 1, 0], [0, 0], [0], [1], [7], [2, 2, 2]]
EVERY = pytest.mark.parametrize("collate", PADDINGS.values(), ids=PADDINGS)


def random_bits(rng, dtype, shape):
    """Return an array of random bytes: zeros, NaNs, infinities and negative zeros among them."""
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape).copy()


def make_samples(lengths, dtype="u1", channels=(), seed=0):
    rng = np.random.default_rng(seed)
    return [(random_bits(rng, dtype, (n, *channels)), {"index": 10 + i}) for i, n in enumerate(lengths)]


def raw(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.numpy().tobytes()


def expected(samples, side, multiple):
    """Pad with NumPy, row by row."""
    first = samples[0][0]
    longest = max(1, *(len(sequence) for sequence, _ in samples), 1)
    padded = np.zeros((len(samples), -(-longest // multiple) * multiple, *first.shape[1:]), first.dtype)
    for row, (sequence, _) in zip(padded, samples, strict=True):
        row[slice(0, len(sequence)) if side == "right" else slice(len(row) - len(sequence), None)] = sequence
    return padded


@EVERY
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [(), (3,)], ids=["1-D", "2-D"])
def test_collate_equals_padding_row_by_row(collate, dtype, channels):
    """Bit for bit, for each numpy number type, on both sides, with rows of length 0 anywhere."""
    for lengths in LENGTHS:
        for side in ("right", "left"):
            for multiple in (1, 4, 7):
                samples = make_samples(lengths, dtype, channels)
                batch = collate(samples, padding_side=side, pad_to_multiple=multiple)
                wanted = expected(samples, side, multiple)
                assert batch.sequences.numpy().dtype == wanted.dtype
                assert raw(batch.sequences)[1:] == (wanted.shape, wanted.tobytes())
                assert batch.lengths.tolist() == lengths
                assert batch.mask.sum(dim=1).tolist() == lengths


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=20),
    dtype=st.sampled_from(DTYPES),
    channels=st.sampled_from([(), (1,), (5,)]),
    side=st.sampled_from(["right", "left"]),
    multiple=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=100)
def test_pad_then_unpad_is_the_identity(lengths, dtype, channels, side, multiple, seed):
    """All three give one tensor, one mask, and the samples back."""
    samples = make_samples(lengths, dtype, channels, seed)

    batches = [collate(samples, padding_side=side, pad_to_multiple=multiple) for collate in PADDINGS.values()]

    assert len({raw(batch.sequences) for batch in batches}) == 1
    assert len({raw(batch.mask) for batch in batches}) == 1
    for batch in batches:
        for row, (sequence, _) in zip(batch.unpad(), samples, strict=True):
            assert (row.dtype, row.shape, row.tobytes()) == (sequence.dtype, sequence.shape, sequence.tobytes())


@pytest.mark.parametrize("dtype", ["i4", "f4", "?"])
def test_left_padding_is_flip_right_padding_flip(dtype):
    """For integers, floats and booleans."""
    samples = [(sequence.astype(dtype), entry) for sequence, entry in make_samples([3, 0, 5])]
    flipped = [(sequence[::-1], entry) for sequence, entry in samples]
    for collate in PADDINGS.values():
        right = collate(flipped).sequences.flip(1)
        assert raw(collate(samples, padding_side="left").sequences) == raw(right.contiguous())


def awkward_arrays():
    """Return arrays that hold 0..11 in ways a plain copy of bytes gets wrong."""
    plain = np.arange(12, dtype="i4")
    read_only = plain.copy()
    read_only.flags.writeable = False
    unaligned = np.frombuffer(b"x" + plain.tobytes(), np.uint8)[1:].view("i4")
    return {
        "reversed": plain[::-1].copy()[::-1], "strided": np.repeat(plain, 2)[::2], "read-only": read_only,
        "big-endian": plain.astype(">i4"), "unaligned": unaligned, "longlong": plain.astype(np.longlong),
    }


@EVERY
@pytest.mark.parametrize("name", awkward_arrays())
@pytest.mark.parametrize("side", ["right", "left"])
def test_arrays_in_any_memory_order_collate_by_value(collate, name, side):
    """Reversed, strided, read-only, unaligned and big-endian 1-D arrays."""
    array = awkward_arrays()[name]

    batch = collate([(array, {}), (array[:5], {})], padding_side=side)

    assert batch.sequences.dtype in (torch.int32, torch.int64)
    assert [row.tolist() for row in batch.unpad()] == [list(range(12)), list(range(5))]


@EVERY
@pytest.mark.parametrize("change", [np.asfortranarray, lambda a: a[::-1].copy()[::-1], lambda a: a.astype(">f8"),
                                    lambda a: np.repeat(a, 2, axis=1)[:, ::2]],
                         ids=["fortran", "reversed", "big-endian", "strided"])
def test_features_in_any_memory_order_collate_by_value(collate, change):
    """The same for (T, C) features."""
    plain = np.arange(12.0).reshape(6, 2)

    batch = collate([(change(plain), {}), (change(plain[:1]), {})])

    assert [row.tolist() for row in batch.unpad()] == [plain.tolist(), plain[:1].tolist()]


@EVERY
@pytest.mark.parametrize("lengths", [[4, 4], [5], [2, 6]])
def test_a_batch_shares_no_memory_with_its_samples(collate, lengths):
    """Writing into the batch changes no sample, and the samples are left as they were."""
    samples = make_samples(lengths, "i2")
    for _, entry in samples:
        entry["track"] = np.ones(lengths[entry["index"] - 10], "f4")
    before = pickle.dumps(samples)

    batch = collate(samples)
    batch.sequences.fill_(7)
    batch.tracks["track"].fill_(7)

    assert pickle.dumps(samples) == before


def test_a_batch_shares_no_memory_with_the_store(amp_store):
    """Views straight from the map are copied too."""
    from seqpipe.store import Store

    store = Store(amp_store)
    samples = [(store.sequence(row), {}) for row in range(4)]
    before = store.values[:200].tobytes()
    for collate in PADDINGS.values():
        collate(samples).sequences.fill_(7)
        collate(samples[:1]).sequences.fill_(7)

    assert store.values[:200].tobytes() == before


@EVERY
def test_masks_come_from_lengths_not_from_values(collate):
    """Token 0 and 0.0, -0.0, NaN in the data are data."""
    tokens = collate([(np.zeros(3, "u1"), {}), (np.zeros(1, "u1"), {})])
    numbers = collate([(np.array([0.0, -0.0, np.nan]), {}), (np.array([0.0]), {})], padding_side="left")

    assert tokens.mask.tolist() == [[True] * 3, [True, False, False]]
    assert numbers.mask.tolist() == [[True] * 3, [False, False, True]]


@EVERY
def test_samples_of_two_types_are_refused_by_name(collate):
    """Another dtype or another number of channels; the message names the sample."""
    plain = np.zeros((3, 2), "f4")
    with pytest.raises(ValueError, match=r"'encoded_sequence' of sample 2 of the batch is float64 .* sample 0 float32"):
        collate([(plain, {}), (plain, {}), (plain.astype("f8"), {})])
    with pytest.raises(ValueError, match=r"sample 1 of the batch is float32 of shape \(3, 1\), .* shape \(3, 2\)"):
        collate([(plain, {}), (plain[:, :1], {})])


@EVERY
def test_wrong_arguments_are_refused(collate):
    """No samples, no such side, no such multiple."""
    with pytest.raises(ValueError, match="no samples"):
        collate([])
    with pytest.raises(ValueError, match="padding_side='up'; expected 'right' or 'left'"):
        collate(make_samples([1]), padding_side="up")
    with pytest.raises(ValueError, match="pad_to_multiple=0; expected 1 or more"):
        collate(make_samples([1]), pad_to_multiple=0)


@EVERY
@pytest.mark.parametrize("side", ["right", "left"])
def test_tracks_are_padded_like_their_sequences(collate, side):
    """One number per element, on the same side, of the same length."""
    samples = make_samples([3, 0, 5])
    for sequence, entry in samples:
        entry["quality"] = np.arange(1.0, len(sequence) + 1, dtype="f4")

    batch = collate(samples, padding_side=side, pad_to_multiple=4)

    quality = batch.tracks["quality"]
    assert (quality.dtype, quality.shape) == (torch.float32, batch.sequences.shape)
    assert torch.equal(quality > 0, batch.mask)
    assert quality[2][batch.mask[2]].tolist() == [1, 2, 3, 4, 5]


@EVERY
def test_a_track_of_another_length_is_refused(collate):
    """Else it would run into the next row."""
    samples = make_samples([3, 2])
    for _, entry in samples:
        entry["quality"] = np.zeros(3)
    with pytest.raises(ValueError, match="'quality' of sample 1 of the batch has 3 elements, its sequence 2"):
        collate(samples)


@pytest.mark.parametrize("labels, dtype, wanted", [
    ([np.int64(3), np.int64(0)], torch.int64, [3, 0]),
    ([1, 2], torch.int64, [1, 2]),
    ([np.uint8(1), np.uint8(2)], torch.int64, [1, 2]),
    ([True, False], torch.int64, [1, 0]),
    ([np.float32(0.5), np.float32(-1)], torch.float32, [0.5, -1]),
    ([1, 2.5], torch.float32, [1, 2.5]),
])
def test_labels_are_int64_classes_or_float32_numbers(labels, dtype, wanted):
    """An integer before a fraction does not make the fraction an integer."""
    samples = [(np.zeros(2, "u1"), {"label": label}) for label in labels]

    batch = fill(samples)

    assert batch.labels.dtype == dtype and batch.labels.tolist() == wanted


def test_text_labels_and_no_labels_give_none():
    """Text stays in the samples."""
    assert fill([(np.zeros(2, "u1"), {"label": "a"})]).labels is None
    assert fill([(np.zeros(2, "u1"), {})]).labels is None


@pytest.mark.parametrize("name, value", [("label", 1), ("id", "a"), ("quality", np.zeros(2))])
def test_metadata_that_only_some_samples_have_is_refused(name, value):
    """Rather than a batch without labels, or with fewer ids than rows."""
    with pytest.raises(ValueError, match=f"sample 1 of the batch has no '{name}', sample 0 has"):
        fill([(np.zeros(2, "u1"), {name: value}), (np.zeros(2, "u1"), {})])


def test_index_and_ids_follow_the_samples():
    """A sample without an index has -1."""
    batch = fill([(np.zeros(1, "u1"), {"index": 5, "id": "é"}), (np.zeros(1, "u1"), {"id": ""})])

    assert batch.index.tolist() == [5, -1]
    assert batch.ids == ("é", "")


@EVERY
def test_a_default_device_does_not_move_the_batch(collate):
    """Collating is the CPU's; lengths must be there for packing."""
    samples = [(np.zeros(n, "u1"), {"index": n, "label": 1, "quality": np.ones(n)}) for n in (2, 3)]
    torch.set_default_device("meta")
    try:
        batch = collate(samples, pad_to_multiple=4)
        parts = [batch.sequences, batch.lengths, batch.index, batch.labels, batch.tracks["quality"], batch.mask,
                 batch.tokens, *batch.jagged(), batch.packed().data]
    finally:
        torch.set_default_device("cpu")
    assert {part.device.type for part in parts} == {"cpu"}


def test_collate_functions_pickle():
    """By name, so that they reach spawned workers."""
    for collate in PADDINGS.values():
        assert pickle.loads(pickle.dumps(collate)) is collate


def test_labels_of_several_classes_are_rows_of_zeros_and_ones():
    """(B, K) float32; how many classes there are must be told, and numbers must be among them."""
    samples = [(np.zeros(2, "u1"), {"label": np.array(numbers, "<i4")}) for numbers in ([2, 0], [], [1])]

    for collate in PADDINGS.values():
        labels = collate(samples, num_classes=4).labels
        assert labels.dtype == torch.float32
        assert labels.tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    with pytest.raises(ValueError, match="of how many classes is not known"):
        fill(samples)
    with pytest.raises(ValueError, match="class numbers 0 to 2; expected 0 <= number < 2"):
        fill(samples, num_classes=2)
