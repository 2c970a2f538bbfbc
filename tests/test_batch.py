"""A Batch keeps sequences, lengths and masks together on their way to the network."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from seqpipe.batch import Batch
from seqpipe.collate import fill


def make_batch(lengths=(3, 1, 5), dtype="u1", channels=(), side="right", multiple=1):
    rng = np.random.default_rng(0)
    samples = [
        (rng.integers(1, 100, (n, *channels)).astype(dtype),
         {"index": 7 * i, "id": f"s{i}", "label": np.int64(i), "quality": rng.random(n).astype("f4")})
        for i, n in enumerate(lengths)
    ]
    return samples, fill(samples, padding_side=side, pad_to_multiple=multiple)


def parts(batch):
    return {"sequences": batch.sequences, "lengths": batch.lengths, "index": batch.index, "labels": batch.labels,
            **batch.tracks}


def test_length_of_a_batch_is_its_number_of_sequences():
    """And num_elements leaves padding out."""
    _, batch = make_batch(multiple=4)

    assert (len(batch), batch.num_elements, batch.sequences.shape) == (3, 9, (3, 8))


def test_mask_and_tokens_are_made_once_when_asked_for():
    """Not in the loader, whose speed they would halve."""
    _, batch = make_batch()

    assert not {"mask", "tokens"} & set(vars(batch))
    assert batch.mask is batch.mask and batch.tokens is batch.tokens
    assert batch.mask.dtype == torch.bool and batch.tokens.dtype == torch.int64
    assert torch.equal(batch.tokens, batch.sequences.long())


@pytest.mark.parametrize("side, wanted", [("right", [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]),
                                          ("left", [[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1]])])
def test_mask_is_true_where_data(side, wanted):
    """On either side; a row of length 0 is False throughout."""
    _, batch = make_batch((2, 0, 3), side=side, multiple=4)

    assert batch.mask.int().tolist() == wanted


def test_features_are_no_tokens():
    """The message says which attribute to use."""
    _, batch = make_batch(channels=(2,))
    with pytest.raises(TypeError, match=r"features of shape \(3, 5, 2\) are no tokens; use batch.sequences"):
        batch.tokens


@pytest.mark.parametrize("channels", [(), (2,)])
def test_packed_equals_torchs_own(channels):
    """The same as packing the sequences one by one."""
    samples, batch = make_batch(dtype="f4" if channels else "u2", channels=channels)
    sequences = [torch.from_numpy(sequence if channels else sequence.astype(np.int64)) for sequence, _ in samples]

    packed, wanted = batch.packed(), pack_sequence(sequences, enforce_sorted=False)

    assert all(torch.equal(a, b) for a, b in zip(packed, wanted, strict=True))
    padded, lengths = pad_packed_sequence(packed, batch_first=True)
    assert torch.equal(padded, batch.sequences if channels else batch.tokens)
    assert torch.equal(lengths, batch.lengths)


def test_what_torch_cannot_pack_is_refused():
    """Padding on the left, and the empty sequence by its place."""
    with pytest.raises(ValueError, match="expects padding on the right, found left"):
        make_batch(side="left")[1].packed()
    with pytest.raises(ValueError, match="sequence 1 of the batch is empty"):
        make_batch((3, 0))[1].packed()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("channels", [(), (2,)])
def test_jagged_holds_the_sequences_end_to_end(side, channels):
    """cu_seqlens are the starts, with the total at the end."""
    samples, batch = make_batch((3, 0, 5, 1), channels=channels, side=side)

    values, cu_seqlens = batch.jagged()

    assert cu_seqlens.dtype == torch.int32 and cu_seqlens.tolist() == [0, 3, 3, 8, 9]
    assert values.tolist() == np.concatenate([sequence for sequence, _ in samples]).tolist()


def test_unpadded_rows_are_copies():
    """Writing into them does not change the batch."""
    _, batch = make_batch()
    before = batch.sequences.clone()
    for row in batch.unpad():
        row[:] = 0

    assert torch.equal(batch.sequences, before)


def test_to_leaves_lengths_and_index_on_the_cpu():
    """Packing needs them there, and moving them back would make the device wait."""
    _, batch = make_batch()
    moved = batch.to("meta", non_blocking=True)

    assert {name: part.device.type for name, part in parts(moved).items()} == {
        "sequences": "meta", "labels": "meta", "quality": "meta", "lengths": "cpu", "index": "cpu"}
    assert moved.ids == batch.ids and moved.lengths is batch.lengths
    assert batch.sequences.device.type == "cpu"


def test_to_makes_the_mask_anew_on_its_device():
    """A mask made before the move does not stay behind."""
    _, batch = make_batch(side="left")
    assert batch.mask.device.type == "cpu"

    assert batch.to("meta").mask.device.type == "meta"
    assert batch.to("meta").padding_side == "left"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_packing_works_after_a_move_to_cuda():
    """Lengths are still on the CPU."""
    _, batch = make_batch()
    moved = batch.pin_memory().to("cuda", non_blocking=True)

    assert torch.equal(moved.packed().data.cpu(), batch.packed().data)
    assert torch.equal(moved.mask.cpu(), batch.mask)
    assert [part.tolist() for part in moved.jagged()] == [part.tolist() for part in batch.jagged()]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_every_tensor_of_a_pinned_batch_is_pinned():
    """Type and fields survive."""
    pinned = make_batch()[1].pin_memory()

    assert all(part.is_pinned() for part in parts(pinned).values())


def test_torchs_pinning_calls_ours(monkeypatch):
    """torch's pin thread takes an object with pin_memory; each tensor goes through its own, once."""
    _, batch = make_batch()
    seen = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: seen.append(self) or self.clone())

    pinned = pin_memory(batch)

    assert isinstance(pinned, Batch)
    assert {id(tensor) for tensor in seen} == {id(part) for part in parts(batch).values()}
    assert all(torch.equal(part, parts(pinned)[name]) for name, part in parts(batch).items())
    assert (pinned.ids, pinned.padding_side) == (batch.ids, batch.padding_side)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_survives_pickling(side):
    """With and without the mask made."""
    _, batch = make_batch(side=side)
    for _ in range(2):
        twin = pickle.loads(pickle.dumps(batch))
        assert all(torch.equal(part, parts(twin)[name]) for name, part in parts(batch).items())
        assert torch.equal(twin.mask, batch.mask)
        assert (twin.ids, twin.padding_side) == (batch.ids, side)


def test_a_batch_survives_a_worker_process():
    """Made in a worker, it arrives whole."""
    samples, batch = make_batch()

    arrived = next(iter(DataLoader(samples, batch_size=3, collate_fn=fill, num_workers=1)))

    assert all(torch.equal(part, parts(arrived)[name]) for name, part in parts(batch).items())
    assert arrived.ids == batch.ids


def test_batches_compare_and_hash_by_identity():
    """Comparing tensors element by element gives no yes or no."""
    _, batch = make_batch()

    assert batch == batch and batch != make_batch()[1]
    assert len({batch, batch}) == 1
