"""Transforms: what each does to a sequence and its tracks, and that its draws are those of its row and epoch."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqpipe.alphabet import NAMED_SYMBOLS, Alphabet
from seqpipe.sequences import SequenceDataset
from seqpipe.transforms import Compose, Jitter, MaskTokens, MutateTokens, RandomCrop, ReverseComplement, Scale

DNA = Alphabet.from_symbols("dna", "ACGTN")
dna_texts = st.text("ACGTN", max_size=40)


def rng(seed=0):
    return np.random.default_rng(seed)


def encode(text):
    return np.array(DNA.encode(text)) if text else np.zeros(0, np.uint8)


def sample_of(text):
    sequence = encode(text)
    return sequence, {"index": 3, "id": "x", "label": np.array([1, 2], np.int32), "quality": np.arange(len(sequence))}


def features(num_steps=30, channels=2, dtype=np.float32):
    return rng(5).normal(size=(num_steps, channels)).astype(dtype)


EACH = [
    ReverseComplement(DNA), RandomCrop(5), MaskTokens(DNA, target="hidden"), MutateTokens(DNA, 0.5),
    Compose([ReverseComplement(DNA), RandomCrop(5), MutateTokens(DNA)]),
]


@given(dna_texts)
def test_reverse_complement_reads_the_other_strand(text):
    """Last base first, each by its complement, tracks reversed, everything else as it was; twice is nothing."""
    sequence, metadata = sample_of(text)
    turn = ReverseComplement(DNA, probability=1)
    other, changed = turn(sequence, metadata, rng())

    assert DNA.decode(other) == text[::-1].translate(str.maketrans("ACGT", "TGCA"))
    assert changed["quality"].tolist() == metadata["quality"][::-1].tolist()
    assert changed["label"].tolist() == [1, 2] and (changed["index"], changed["id"]) == (3, "x")
    back, twice = turn(other, changed, rng())
    assert back.tolist() == sequence.tolist() and back.dtype == sequence.dtype
    assert twice["quality"].tolist() == metadata["quality"].tolist()


@pytest.mark.parametrize("symbols, rna, text, wanted", [
    ("ACGUN", False, "AACGU", "ACGUU"),
    (NAMED_SYMBOLS["iupac"], False, "ATRYKMBVDHN", "NDHBVKMRYAT"),
    (NAMED_SYMBOLS["iupac"], True, "AUR", "YAU"),
    ("ACGTacgtN-", False, "AAcg-N", "N-cgTT"),
])
def test_every_nucleotide_code_has_its_complement(symbols, rna, text, wanted):
    """Ambiguity codes, uracil, lower case and gaps."""
    alphabet = Alphabet.from_symbols("mine", symbols)
    turned, _ = ReverseComplement(alphabet, probability=1, rna=rna)(np.array(alphabet.encode(text)), {}, rng())
    assert alphabet.decode(turned) == wanted


@pytest.mark.parametrize("alphabet, message", [
    (Alphabet.from_symbols("protein", NAMED_SYMBOLS["protein"]), "the complement of 'E' is none"),
    (Alphabet.from_symbols("half", "ACG"), "the complement of 'A' is 'T', which it does not have"),
    (Alphabet.of_bytes(), "alphabet 'bytes' has no symbols to complement"),
])
def test_an_alphabet_without_complements_is_refused(alphabet, message):
    """When the transform is made, not at the first sample."""
    with pytest.raises(ValueError, match=message):
        ReverseComplement(alphabet)


@given(dna_texts, st.integers(1, 50), st.integers(0, 9))
def test_a_crop_is_a_window_of_the_sequence_and_of_its_tracks(text, length, seed):
    """As long as asked for, or the whole of a shorter one."""
    sequence, metadata = sample_of(text)
    cropped, changed = RandomCrop(length)(sequence, metadata, rng(seed))

    assert len(cropped) == min(len(text), length) == len(changed["quality"])
    assert DNA.decode(cropped) in text
    assert sequence[changed["quality"]].tolist() == cropped.tolist()


def test_every_start_of_a_crop_comes_up():
    """The first and the last one too."""
    starts = {RandomCrop(3)(np.arange(6), {}, rng(seed))[0][0] for seed in range(100)}
    assert starts == {0, 1, 2, 3}


@given(dna_texts, st.floats(0, 1), st.integers(0, 9))
def test_masking_hides_tokens_and_keeps_them_in_the_target(text, share, seed):
    """Where the target is 0 nothing was changed; elsewhere it holds what the mask hides."""
    sequence, metadata = sample_of(text)
    masked, changed = MaskTokens(DNA, share, target="hidden")(sequence, metadata, rng(seed))
    hidden = changed["hidden"]

    assert (masked[hidden > 0] == 5).all() and masked[hidden == 0].tolist() == sequence[hidden == 0].tolist()
    assert np.where(hidden > 0, hidden, masked).tolist() == sequence.tolist()
    assert "hidden" not in metadata and masked.dtype == sequence.dtype == hidden.dtype


@given(dna_texts, st.floats(0, 1), st.integers(0, 9))
def test_a_mutation_is_another_base_and_leaves_n_alone(text, share, seed):
    """Only symbols of the set are replaced, and only by others of the set."""
    sequence, metadata = sample_of(text)
    mutated, _ = MutateTokens(DNA, share)(sequence, metadata, rng(seed))
    every, _ = MutateTokens(DNA, 1)(sequence, metadata, rng(seed))

    for before, after in zip(text, DNA.decode(mutated), strict=True):
        assert after == "N" if before == "N" else after in "ACGT"
    assert all((before != after) == (before != "N") for before, after in zip(text, DNA.decode(every), strict=True))
    assert mutated.dtype == sequence.dtype


def test_shares_come_out_as_asked():
    """Of 40,000 tokens, to a hundredth; each of the other symbols equally often."""
    sequence = encode("ACGT" * 10_000)
    mutated = MutateTokens(DNA, 0.3)(sequence, {}, rng())[0]
    masked = MaskTokens(DNA, 0.15)(sequence, {}, rng())[0]

    assert abs((mutated != sequence).mean() - 0.3) < 0.01 and abs((masked == 5).mean() - 0.15) < 0.01
    of_a = mutated[(sequence == 1) & (mutated != 1)]
    assert np.allclose(np.bincount(of_a, minlength=6)[2:5] / len(of_a), 1 / 3, atol=0.03)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_jitter_and_scaling_keep_shape_and_type(dtype):
    """One factor a channel; no deviation is no change; what is missing stays missing."""
    sequence = features(dtype=dtype)
    sequence[3, 0] = np.nan
    scaled, _ = Scale(0.5, 2)(sequence, {}, rng())
    noisy, _ = Jitter(0.1)(sequence, {}, rng())

    for changed in (scaled, noisy):
        assert changed.shape == sequence.shape and changed.dtype == dtype
        assert np.isnan(changed).tolist() == np.isnan(sequence).tolist()
    factors = scaled[4:] / sequence[4:]
    assert np.allclose(factors, factors[0], rtol=0.01) and 0.5 <= factors.min() <= factors.max() <= 2
    assert 0.05 < np.nanstd(noisy - sequence) < 0.2
    assert np.array_equal(Jitter(0)(sequence, {}, rng())[0], sequence, equal_nan=True)


@pytest.mark.parametrize("transform", EACH, ids=lambda transform: type(transform).__name__)
def test_a_transform_leaves_its_input_alone_and_repeats_itself(transform):
    """Same generator, same result; also after a pickle; sequence and metadata given are as they were."""
    sequence, metadata = sample_of("ACGTTGCANNACGTACGT")
    kept = sequence.copy(), {name: np.copy(value) for name, value in metadata.items()}
    sequence.flags.writeable = False
    results = [t(sequence, metadata, rng(1)) for t in (transform, pickle.loads(pickle.dumps(transform)))]

    assert results[0][0].tolist() == results[1][0].tolist()
    assert pickle.dumps(results[0][1]) == pickle.dumps(results[1][1])
    assert sequence.tolist() == kept[0].tolist() and metadata.keys() == kept[1].keys()
    assert all(np.array_equal(metadata[name], kept[1][name]) for name in metadata)
    assert type(transform).__name__ in repr(transform)


@pytest.mark.parametrize("make, message", [
    (lambda: ReverseComplement(DNA, 1.5), "probability=1.5; expected 0 <= probability <= 1"),
    (lambda: RandomCrop(0), "length=0; expected 1 or more"),
    (lambda: MaskTokens(DNA, float("nan")), "share=nan"),
    (lambda: MaskTokens(DNA, symbol="X"), "'X' is not in alphabet 'dna'"),
    (lambda: MaskTokens(DNA, symbol="AC"), "symbol='AC'; expected one symbol"),
    (lambda: MutateTokens(DNA, symbols="A"), "symbols='A'; expected two or more, each once"),
    (lambda: MutateTokens(DNA, symbols="AAC"), "each once"),
    (lambda: Jitter(-1), "deviation=-1"),
    (lambda: Scale(2, 1), "low=2, high=1"),
    (lambda: Compose([RandomCrop(1), 3]), "transforms: 3; expected functions"),
])
def test_a_setting_out_of_range_is_refused(make, message):
    """When the transform is made; the message names setting and value."""
    with pytest.raises(ValueError, match=message):
        make()


def test_the_wrong_kind_of_sequence_is_refused():
    """Features for a transform of tokens, tokens for one of features, tokens of another alphabet."""
    with pytest.raises(TypeError, match=r"MaskTokens takes token ids of shape \(T,\); found float32"):
        MaskTokens(DNA)(features(), {}, rng())
    with pytest.raises(TypeError, match="Jitter takes features of floating-point numbers; found uint8"):
        Jitter(1)(encode("ACGT"), {}, rng())
    with pytest.raises(ValueError, match="found token 9; alphabet 'dna' has tokens < 6"):
        ReverseComplement(DNA)(np.array([9]), {}, rng())


def test_draws_belong_to_row_and_epoch(make_store):
    """The same row in the same epoch draws alike whatever was read before; another epoch or row otherwise."""
    path = make_store("d.csv", "id,sequence\n" + "".join(f"r{i},{'ACGT' * 10}\n" for i in range(4)), alphabet="dna")
    dataset = SequenceDataset(path, transform=Compose([MutateTokens(DNA, 0.5), RandomCrop(20)]))
    first = [dataset[i][0].tolist() for i in range(4)]

    assert [dataset[i][0].tolist() for i in (3, 2, 1, 0)] == first[::-1]
    assert len({tuple(row) for row in first}) == 4
    dataset.epoch = 1
    assert all(dataset[i][0].tolist() != first[i] for i in range(4))
