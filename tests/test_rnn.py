"""A recurrent network's result for a sequence depends on that sequence alone."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqpipe.reading_order import choose_rnn_path
from seqpipe.rnn import CHOICES, ModelConfig, SequenceRNN

NUM_TOKENS = 7
NUM_CHANNELS = 3
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
VARIANTS = list(
    itertools.product(CHOICES["model"], CHOICES["pooling"], [False, True], [1, 2], ["tokens", "features"])
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Run on one thread: with tensors this small, threads only wait for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def make_config(kind="tokens", **changes):
    sizes = {"num_tokens": NUM_TOKENS} if kind == "tokens" else {"num_channels": NUM_CHANNELS}
    defaults = dict(
        task="classify", num_outputs=4, model="lstm", embedding_dim=5, hidden_dim=6, layers=1,
        bidirectional=True, dropout=0.2, pooling="last", rnn_path="masked",
    )
    return ModelConfig(**{**defaults, **sizes, **changes})


def make_model(dtype=torch.float64, **changes):
    """Return a seeded model in eval mode; features get statistics that are not 0 and 1."""
    torch.manual_seed(0)
    model = SequenceRNN(make_config(**changes)).eval()
    if dtype == torch.float64:
        model.double()
    if model.config.num_channels:
        model.set_statistics([1.0, -2.0, 0.5], [2.0, 0.5, 0.0])
    return model


def with_path(model, rnn_path):
    """Return a model with the same parameters that runs another path."""
    twin = copy.deepcopy(model)
    twin.config = dataclasses.replace(model.config, rnn_path=rnn_path)
    return twin


def make_batch(lengths, kind="tokens", seed=0, extra_steps=0):
    """Return padded sequences, zeros in the padding, and their lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(lengths)
    shape = (len(lengths), max(1, int(lengths.max())) + extra_steps)
    if kind == "tokens":
        sequences = torch.randint(1, NUM_TOKENS, shape, generator=generator)
    else:
        sequences = torch.randn(*shape, NUM_CHANNELS, generator=generator, dtype=torch.float64)
    sequences[padding_of(sequences, lengths)] = 0
    return sequences, lengths


def padding_of(sequences, lengths):
    return torch.arange(sequences.shape[1]) >= lengths[:, None]


def real_part(model, outputs, lengths):
    """Return what an output means: all of it, or for lm the logits of real positions."""
    return outputs[~padding_of(outputs, lengths)] if model.config.task == "lm" else outputs


def gradients(model, sequences, lengths):
    """Return every parameter's gradient of a loss that tells sequences and outputs apart."""
    model.zero_grad()
    outputs = real_part(model, model(sequences, lengths), lengths)
    generator = torch.Generator().manual_seed(1)
    (outputs * torch.randn(outputs.shape, generator=generator, dtype=torch.float64)).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# ---- alone and in a batch -----------------------------------------------------------------


@pytest.mark.parametrize("rnn_path", ["masked", "packed"])
@pytest.mark.parametrize("model,pooling,bidirectional,layers,kind", VARIANTS)
def test_a_sequence_alone_gives_what_it_gives_in_a_batch(model, pooling, bidirectional, layers, kind, rnn_path):
    """Neither the other sequences, nor the padded length, nor the path changes an output."""
    network = make_model(
        kind=kind, model=model, pooling=pooling, bidirectional=bidirectional, layers=layers, rnn_path=rnn_path
    )
    sequences, lengths = make_batch([4, 9, 1, 6], kind, extra_steps=2)
    with torch.no_grad():
        together = network(sequences, lengths)
        alone = [network(s[None, :n], n[None]) for s, n in zip(sequences, lengths)]
    assert_close(together, torch.cat(alone))
    assert len(torch.unique(together, dim=0)) == 4


@pytest.mark.parametrize("rnn_path", ["masked", "packed"])
@pytest.mark.parametrize("model", CHOICES["model"])
@pytest.mark.parametrize("pooling", CHOICES["pooling"])
def test_float32_keeps_five_digits_alone_and_in_a_batch(model, pooling, rnn_path):
    """In float32 on a CPU the same holds to 1e-5, also at sizes people train."""
    network = make_model(
        torch.float32, model=model, pooling=pooling, rnn_path=rnn_path, embedding_dim=32, hidden_dim=64
    )
    sequences, lengths = make_batch([50, 7, 31, 50, 2])
    with torch.no_grad():
        together = network(sequences, lengths)
        alone = torch.cat([network(s[None, :n], n[None]) for s, n in zip(sequences, lengths)])
    assert together.dtype == torch.float32
    assert_close(together, alone, TOLERANCE[torch.float32])


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    seed=st.integers(0, 2**16),
    extra_steps=st.integers(0, 3),
    pooling=st.sampled_from(CHOICES["pooling"]),
    rnn_path=st.sampled_from(["masked", "packed"]),
    data=st.data(),
)
def test_any_batch_gives_each_sequence_its_own_result(lengths, seed, extra_steps, pooling, rnn_path, data):
    """For any lengths, zeros among them, and any order of rows the outputs follow the sequences."""
    network = make_model(pooling=pooling, rnn_path=rnn_path)
    sequences, lengths = make_batch(lengths, seed=seed, extra_steps=extra_steps)
    order = torch.tensor(data.draw(st.permutations(range(len(lengths)))))
    with torch.no_grad():
        together = network(sequences, lengths)
        alone = [network(s[None, : max(1, int(n))], n[None]) for s, n in zip(sequences, lengths)]
        shuffled = network(sequences[order], lengths[order])
    assert_close(together, torch.cat(alone))
    assert_close(shuffled, together[order])


# ---- two paths, one result ----------------------------------------------------------------


@pytest.mark.parametrize("model,pooling,bidirectional,layers,kind", VARIANTS)
def test_masked_and_packed_agree_in_outputs_and_gradients(model, pooling, bidirectional, layers, kind):
    """Both paths give the same outputs and the same gradient for every parameter."""
    masked = make_model(kind=kind, model=model, pooling=pooling, bidirectional=bidirectional, layers=layers)
    packed = with_path(masked, "packed")
    sequences, lengths = make_batch([4, 0, 9, 1, 6], kind, extra_steps=1)
    assert_close(packed(sequences, lengths), masked(sequences, lengths))
    expected = gradients(masked, sequences, lengths)
    assert_close(gradients(packed, sequences, lengths), expected)
    assert all(gradient.abs().sum() > 0 for gradient in expected.values())


@pytest.mark.parametrize("rnn_path", ["masked", "packed"])
@pytest.mark.parametrize("model", CHOICES["model"])
@pytest.mark.parametrize("layers", [1, 2])
def test_bidirectional_equals_torch_on_a_packed_sequence(model, layers, rnn_path):
    """torch's own bidirectional module, with our weights, ends in the same states and outputs."""
    network = make_model(model=model, layers=layers, rnn_path=rnn_path, num_outputs=12)
    nn.init.eye_(network.head.weight)
    nn.init.zeros_(network.head.bias)
    oracle_type = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[model]
    oracle = oracle_type(5, 6, num_layers=layers, bidirectional=True, batch_first=True).double()
    oracle.load_state_dict({
        name.replace("_l0", f"_l{layer}") + ("_reverse" if direction else ""): value
        for layer, directions in enumerate(network.layers)
        for direction, module in enumerate(directions)
        for name, value in module.state_dict().items()
    })
    sequences, lengths = make_batch([4, 9, 1, 6])
    packed = pack_padded_sequence(
        network.embedding(sequences), lengths, batch_first=True, enforce_sorted=False
    )
    outputs, states = oracle(packed)
    final = (states[0] if model == "lstm" else states)[-2:]
    assert_close(network(sequences, lengths), torch.cat([final[0], final[1]], dim=1))

    mean = copy.deepcopy(network)
    mean.config = dataclasses.replace(network.config, pooling="mean")
    padded, _ = pad_packed_sequence(outputs, batch_first=True)
    assert_close(mean(sequences, lengths), padded.sum(dim=1) / lengths[:, None])


def test_pooling_is_what_its_name_says():
    """Max and attention over one sequence equal the same written out by hand."""
    for pooling in ("max", "attention"):
        network = make_model(pooling=pooling)
        sequences, lengths = make_batch([5, 8])
        outputs = []
        for direction, rnn in enumerate(network.layers[0]):
            vectors = network.embedding(sequences[:1, :5])
            found = rnn(vectors.flip(1) if direction else vectors)[0]
            outputs.append(found.flip(1) if direction else found)
        states = torch.cat(outputs, dim=2)[0]
        if pooling == "max":
            pooled = states.max(dim=0).values
        else:
            pooled = (states @ network.query).softmax(dim=0) @ states
        assert_close(network(sequences, lengths)[0], network.head(pooled))


# ---- padding and empty sequences ----------------------------------------------------------


@pytest.mark.parametrize("rnn_path", ["masked", "packed"])
@pytest.mark.parametrize("pooling", CHOICES["pooling"])
@pytest.mark.parametrize("kind,garbage", [("tokens", 3), ("features", 1e6), ("features", float("nan"))])
def test_the_content_of_padding_never_matters(kind, garbage, pooling, rnn_path):
    """Outputs and gradients are bit-equal whatever stands past the end of a sequence."""
    network = make_model(kind=kind, pooling=pooling, rnn_path=rnn_path, layers=2)
    sequences, lengths = make_batch([4, 0, 9, 1], kind, extra_steps=2)
    filled = sequences.clone()
    filled[padding_of(sequences, lengths)] = garbage
    assert torch.equal(network(filled, lengths), network(sequences, lengths))
    expected = gradients(network, sequences, lengths)
    for name, gradient in gradients(network, filled, lengths).items():
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.parametrize("lengths", [[0, 3, 5], [3, 0, 5], [3, 5, 0], [0, 0], [0]])
@pytest.mark.parametrize("rnn_path", ["masked", "packed"])
@pytest.mark.parametrize("pooling", CHOICES["pooling"])
@pytest.mark.parametrize("kind", ["tokens", "features"])
def test_empty_sequences_are_finite_and_pool_to_zeros(lengths, rnn_path, pooling, kind):
    """A sequence of length 0 gives the head's bias, and no gradient is lost or infinite."""
    network = make_model(kind=kind, pooling=pooling, rnn_path=rnn_path)
    sequences, lengths = make_batch(lengths, kind)
    outputs = network(sequences, lengths)
    assert outputs.isfinite().all()
    empty = outputs[lengths == 0]
    assert torch.equal(empty, network.head.bias.expand_as(empty))
    assert all(gradient.isfinite().all() for gradient in gradients(network, sequences, lengths).values())


# ---- lm -----------------------------------------------------------------------------------


def make_lm(**changes):
    return make_model(task="lm", num_outputs=NUM_TOKENS, bidirectional=False, **changes)


@pytest.mark.parametrize("rnn_path", ["masked", "packed"])
@pytest.mark.parametrize("model", CHOICES["model"])
@pytest.mark.parametrize("layers", [1, 2])
def test_lm_alone_equals_lm_in_a_batch(model, layers, rnn_path):
    """Logits of real positions do not depend on the batch, the padding or the path."""
    network = make_lm(model=model, layers=layers, rnn_path=rnn_path)
    sequences, lengths = make_batch([4, 0, 9, 1], extra_steps=1)
    filled = sequences.clone()
    filled[padding_of(sequences, lengths)] = 2
    outputs = network(sequences, lengths)
    assert outputs.shape == (4, 10, NUM_TOKENS) and outputs.isfinite().all()
    together = real_part(network, outputs, lengths)
    alone = [network(s[None, :n], n[None])[0] for s, n in zip(sequences, lengths) if n]
    assert_close(together, torch.cat(alone))
    assert torch.equal(real_part(network, network(filled, lengths), lengths), together)
    other = with_path(network, "packed" if rnn_path == "masked" else "masked")
    assert_close(real_part(other, other(sequences, lengths), lengths), together)
    assert_close(gradients(other, sequences, lengths), gradients(network, sequences, lengths))


@pytest.mark.parametrize("rnn_path", ["masked", "packed"])
def test_lm_predicts_a_token_from_those_before_it_only(rnn_path):
    """Changing token t changes no logits up to t, and all after it; the first needs no token."""
    network = make_lm(rnn_path=rnn_path)
    sequences, lengths = make_batch([6])
    before = network(sequences, lengths)[0]
    for position in range(6):
        changed = sequences.clone()
        changed[0, position] = sequences[0, position] % (NUM_TOKENS - 1) + 1
        differs = (network(changed, lengths)[0] != before).any(dim=1)
        assert differs.tolist() == [step > position for step in range(6)]
    other, other_lengths = make_batch([3], seed=5)
    assert_close(network(other, other_lengths)[0, 0], before[0])


# ---- inputs -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32, torch.int16])
@pytest.mark.parametrize("task", ["classify", "lm"])
def test_every_integer_dtype_gives_what_int64_gives(dtype, task):
    """Token ids come in the store's dtype, and are left as they are."""
    network = make_lm() if task == "lm" else make_model()
    sequences, lengths = make_batch([4, 2])
    narrow = sequences.to(dtype)
    before = narrow.clone(), lengths.clone()
    assert torch.equal(network(narrow, lengths), network(sequences, lengths))
    assert torch.equal(narrow, before[0]) and torch.equal(lengths, before[1])


def test_features_are_standardised_and_the_statistics_travel_in_the_state_dict():
    """Raw numbers with statistics give what standardised numbers give without."""
    network = make_model(torch.float32, kind="features")
    plain = SequenceRNN(network.config).eval()
    plain.load_state_dict(network.state_dict())
    sequences, lengths = make_batch([4, 2], "features")
    standardised = (sequences - torch.tensor([1.0, -2.0, 0.5])) / torch.tensor([2.0, 0.5, 1.0])
    raw = plain(sequences, lengths)
    assert_close(raw, network(sequences, lengths), 0.0)
    plain.set_statistics(np.zeros(3), np.ones(3))
    assert_close(plain(standardised, lengths), raw, 1e-6)


def test_large_offsets_of_features_keep_their_digits():
    """A float32 model reads float64 and integer times as well as their differences."""
    network = make_model(torch.float32, kind="features")
    sequences = torch.arange(24).reshape(2, 4, 3)
    lengths = torch.tensor([4, 3])
    network.set_statistics([0.0] * 3, [5.0] * 3)
    expected = network(sequences, lengths)
    network.set_statistics([1.7e9] * 3, [5.0] * 3)
    assert_close(network(sequences + 1_700_000_000, lengths), expected, 0.0)
    assert_close(network(sequences.double() + 1.7e9, lengths), expected, 0.0)


@pytest.mark.parametrize("task,num_outputs", [("classify", 4), ("regress", 1)])
def test_output_shapes(task, num_outputs):
    """One row of outputs a sequence."""
    network = make_model(task=task, num_outputs=num_outputs)
    assert network(*make_batch([3, 1, 2])).shape == (3, num_outputs)


@pytest.mark.parametrize("make", [make_model, make_lm])
@pytest.mark.parametrize("layers", [1, 3])
def test_dropout_is_between_layers_and_before_the_head_while_training_only(make, layers):
    """Two passes differ in training mode, and agree in eval mode; it acts once a layer."""
    network = make(layers=layers)
    batch = make_batch([6, 3])
    calls = []
    network.dropout.register_forward_hook(lambda *call: calls.append(call))
    assert torch.equal(network(*batch), network(*batch))
    assert len(calls) == 2 * layers
    network.train()
    assert not torch.equal(network(*batch), network(*batch))


@pytest.mark.parametrize(
    "kind,shape,lengths,message",
    [
        ("tokens", (2, 4, 3), torch.tensor([4, 4]), r"sequences has shape \(2, 4, 3\), expected \('B', 'T'\)"),
        ("features", (2, 4), torch.tensor([4, 4]), r"expected \('B', 'T', 3\)"),
        ("features", (2, 4, 2), torch.tensor([4, 4]), r"expected \('B', 'T', 3\)"),
        ("tokens", (2, 0), torch.tensor([0, 0]), "B and T >= 1"),
        ("tokens", (2, 4), torch.tensor([4, 5]), "lengths reach from 4 to 5, expected 0 <= length <= T=4"),
        ("tokens", (2, 4), torch.tensor([-1, 4]), "lengths reach from -1 to 4"),
        ("tokens", (2, 4), torch.tensor([4.0, 4.0]), "torch.float32 on cpu, expected .* torch.int64 on cpu"),
        ("tokens", (2, 4), torch.tensor([4]), r"lengths is \(1,\) .*, expected \(2,\)"),
    ],
)
def test_a_batch_that_does_not_fit_is_named(kind, shape, lengths, message):
    """Wrong shapes and lengths are errors, never a silent cut."""
    with pytest.raises(ValueError, match=message):
        make_model(kind=kind)(torch.ones(shape, dtype=torch.int64), lengths)


@pytest.mark.parametrize(
    "kind,mean,deviation",
    [
        ("features", [0.0, 0.0], [1.0, 1.0]),
        ("features", [0.0] * 3, [1.0]),
        ("features", [0.0, float("nan"), 0.0], [1.0] * 3),
        ("features", [0.0] * 3, [1.0, 1.0, -1.0]),
        ("tokens", [], []),
    ],
)
def test_statistics_that_do_not_fit_are_refused(kind, mean, deviation):
    """Both need one finite number a channel, deviations none below 0."""
    with pytest.raises(ValueError, match="finite numbers"):
        make_model(kind=kind).set_statistics(mean, deviation)


# ---- config -------------------------------------------------------------------------------


def test_a_config_survives_json():
    """What a checkpoint keeps builds the same config again."""
    config = make_config()
    assert ModelConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"task": "tag"}, "task is 'tag', expected one of classify, regress, lm"),
        ({"model": "cnn"}, "model is 'cnn', expected one of rnn, gru, lstm"),
        ({"pooling": "sum"}, "pooling is 'sum'"),
        ({"rnn_path": "fast"}, "rnn_path is 'fast'"),
        ({"layers": 0}, "layers is 0, expected an integer >= 1"),
        ({"hidden_dim": 1.5}, "hidden_dim is 1.5"),
        ({"embedding_dim": True}, "embedding_dim is True"),
        ({"num_outputs": 0}, "num_outputs is 0"),
        ({"bidirectional": 1}, "bidirectional is 1, expected True or False"),
        ({"dropout": 1.0}, "dropout is 1.0, expected a number, 0 <= dropout < 1"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"num_tokens": 0}, "num_tokens is 0, expected >= 2"),
        ({"num_tokens": -1}, "num_tokens is -1, expected an integer >= 0"),
        ({"num_channels": 3}, "num_tokens is 7, expected 0 with num_channels=3"),
        ({"task": "regress"}, "num_outputs is 4, expected 1 with task='regress'"),
        ({"task": "lm"}, "num_outputs is 4, expected num_tokens=7 with task='lm'"),
        ({"task": "lm", "num_outputs": 7}, "bidirectional is True, expected False with task='lm'"),
        ({"task": "lm", "kind": "features"}, "num_channels is 3, expected 0 with task='lm'"),
    ],
)
def test_a_config_that_cannot_work_is_refused(changes, message):
    """The message has the field, what was found and what was expected."""
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


def test_auto_packs_on_cuda_only():
    """An explicit path is kept on every device."""
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [choose_rnn_path("auto", device) for device in (cpu, cuda)] == ["masked", "packed"]
    assert [choose_rnn_path("packed", cpu), choose_rnn_path("masked", cuda)] == ["packed", "masked"]
    network = make_model(rnn_path="auto")
    batch = make_batch([3, 5])
    assert torch.equal(network(*batch), with_path(network, "masked")(*batch))
