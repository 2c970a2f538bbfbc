"""Change samples as they are read: augmentation whose draws depend on (seed, epoch, row) alone.

Place in the flow: SequenceDataset -> [transforms] -> collate.

A transform is any callable ``(encoded_sequence, metadata, rng) -> (encoded_sequence, metadata)``; those of
this module pickle, show their settings and leave what they are given untouched. The generator they get
belongs to one row in one epoch, so that workers, ranks and a resume change no draw. A track is a metadata
array beside the sequence, one number per element: what moves elements moves tracks with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seqpipe.alphabet import Alphabet

Sample = tuple[np.ndarray, dict[str, Any]]
Transform = Callable[[np.ndarray, dict[str, Any], np.random.Generator], Sample]

_BASES = "ACGTURYSWKMBDHVN-."
_COMPLEMENTS = "TGCAAYRSWMKVHDBN-."
_COMPLEMENT = dict(zip(_BASES + _BASES.lower(), _COMPLEMENTS + _COMPLEMENTS.lower(), strict=True))


@dataclass(frozen=True, init=False)
class Compose:
    """Apply transforms one after another; they share the generator, so their order is part of the draws."""

    transforms: tuple[Transform, ...]

    def __init__(self, transforms: Iterable[Transform]) -> None:
        object.__setattr__(self, "transforms", tuple(transforms))
        for transform in self.transforms:
            if not callable(transform):
                raise ValueError(f"transforms: {transform!r}; expected functions of (encoded_sequence, metadata, rng)")

    def __call__(self, sequence: np.ndarray, metadata: dict[str, Any], rng: np.random.Generator) -> Sample:
        for transform in self.transforms:
            sequence, metadata = transform(sequence, metadata, rng)
        return sequence, metadata


@dataclass(frozen=True)
class ReverseComplement:
    """Read the other strand: reverse the sequence and its tracks, and complement its bases.

    Args:
        alphabet: of the store; each of its symbols must be a nucleotide code (IUPAC) or a gap.
        probability: of doing it, 0 <= probability <= 1.
        rna: the complement of A is U; by itself so where the alphabet has U and no T.

    Raises:
        ValueError: a symbol has no complement in the alphabet; or the probability is out of range.
    """

    alphabet: Alphabet
    probability: float = 0.5
    rna: bool = False
    _table: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_share("probability", self.probability)
        object.__setattr__(self, "_table", _complement_table(self.alphabet, self.rna))

    def __call__(self, sequence: np.ndarray, metadata: dict[str, Any], rng: np.random.Generator) -> Sample:
        _check_tokens(self, sequence)
        if rng.random() >= self.probability:
            return sequence, metadata
        return self._table[sequence[::-1]].astype(sequence.dtype), _with_tracks(metadata, slice(None, None, -1))


@dataclass(frozen=True)
class RandomCrop:
    """Keep ``length`` consecutive elements, and those of the tracks; what is shorter stays whole."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length={self.length}; expected 1 or more")

    def __call__(self, sequence: np.ndarray, metadata: dict[str, Any], rng: np.random.Generator) -> Sample:
        if len(sequence) <= self.length:
            return sequence, metadata
        start = int(rng.integers(len(sequence) - self.length + 1))
        kept = slice(start, start + self.length)
        return sequence[kept], _with_tracks(metadata, kept)


@dataclass(frozen=True)
class MaskTokens:
    """Hide tokens behind one symbol of the alphabet.

    Args:
        alphabet: of the store.
        share: each token is hidden with this probability, 0 <= share <= 1.
        symbol: what stands in its place, such as ``N``.
        target: where given, a track of this name gets the hidden tokens, and 0 (padding) everywhere else:
            what a network is to find.
    """

    alphabet: Alphabet
    share: float = 0.15
    symbol: str = "N"
    target: str | None = None

    def __post_init__(self) -> None:
        _check_share("share", self.share)
        _tokens_of(self.alphabet, self.symbol, "symbol")
        if len(self.symbol) != 1:
            raise ValueError(f"symbol={self.symbol!r}; expected one symbol")

    def __call__(self, sequence: np.ndarray, metadata: dict[str, Any], rng: np.random.Generator) -> Sample:
        _check_tokens(self, sequence)
        hidden = rng.random(len(sequence)) < self.share
        token = _tokens_of(self.alphabet, self.symbol, "symbol")[0]
        if self.target is not None:
            metadata = {**metadata, self.target: np.where(hidden, sequence, 0).astype(sequence.dtype)}
        return np.where(hidden, token, sequence).astype(sequence.dtype), metadata


@dataclass(frozen=True)
class MutateTokens:
    """Replace tokens by another symbol, each other one equally often.

    Args:
        alphabet: of the store.
        share: each token is replaced with this probability, 0 <= share <= 1.
        symbols: the symbols drawn from, at least two, such as ``ACGT``; only tokens of these are replaced.
    """

    alphabet: Alphabet
    share: float = 0.05
    symbols: str = "ACGT"

    def __post_init__(self) -> None:
        _check_share("share", self.share)
        _tokens_of(self.alphabet, self.symbols, "symbols")
        if len(set(self.symbols)) != len(self.symbols) or len(self.symbols) < 2:
            raise ValueError(f"symbols={self.symbols!r}; expected two or more, each once")

    def __call__(self, sequence: np.ndarray, metadata: dict[str, Any], rng: np.random.Generator) -> Sample:
        _check_tokens(self, sequence)
        tokens = _tokens_of(self.alphabet, self.symbols, "symbols")
        place = np.full(self.alphabet.num_tokens, -1)
        place[tokens] = np.arange(len(tokens))
        replaced = (rng.random(len(sequence)) < self.share) & (place[sequence] >= 0)
        shift = rng.integers(1, len(tokens), len(sequence))  # never 0: always another symbol
        changed = tokens[(place[sequence] + shift) % len(tokens)]
        return np.where(replaced, changed, sequence).astype(sequence.dtype), metadata


@dataclass(frozen=True)
class Jitter:
    """Add normal noise of this standard deviation to each number of a sequence of features; NaN stays NaN."""

    deviation: float

    def __post_init__(self) -> None:
        if not 0 <= self.deviation < math.inf:
            raise ValueError(f"deviation={self.deviation}; expected a finite number, 0 or more")

    def __call__(self, sequence: np.ndarray, metadata: dict[str, Any], rng: np.random.Generator) -> Sample:
        _check_features(self, sequence)
        noise = rng.standard_normal(sequence.shape) * self.deviation
        return (sequence + noise).astype(sequence.dtype), metadata


@dataclass(frozen=True)
class Scale:
    """Multiply a sequence of features by one factor per channel, drawn from ``low`` to ``high``."""

    low: float = 0.9
    high: float = 1.1

    def __post_init__(self) -> None:
        if not -math.inf < self.low <= self.high < math.inf:
            raise ValueError(f"low={self.low}, high={self.high}; expected finite numbers, low <= high")

    def __call__(self, sequence: np.ndarray, metadata: dict[str, Any], rng: np.random.Generator) -> Sample:
        _check_features(self, sequence)
        return (sequence * rng.uniform(self.low, self.high, sequence.shape[1:])).astype(sequence.dtype), metadata


def is_track(name: str, value: Any) -> bool:
    """Return whether a metadata entry is a track: an array that goes element by element with the sequence."""
    return isinstance(value, np.ndarray) and name != "label"


def _with_tracks(metadata: dict[str, Any], kept: slice) -> dict[str, Any]:
    return {name: value[kept] if is_track(name, value) else value for name, value in metadata.items()}


def _complement_table(alphabet: Alphabet, rna: bool) -> np.ndarray:
    """Return (num_tokens,) the token of each token's complement; padding is its own."""
    uracil = rna or ("U" in alphabet.symbols.upper() and "T" not in alphabet.symbols.upper())
    if not alphabet.symbols:
        raise ValueError(f"alphabet {alphabet.name!r} has no symbols to complement; expected one of nucleotides")
    table = np.zeros(alphabet.num_tokens, np.int64)
    for token, symbol in enumerate(alphabet.symbols, start=1):
        other = _COMPLEMENT.get(symbol, "")
        if uracil:
            other = {"T": "U", "t": "u"}.get(other, other)
        if not other or other not in alphabet.symbols:
            found = f"{other!r}, which it does not have" if other else "none"
            raise ValueError(f"alphabet {alphabet.name!r}: the complement of {symbol!r} is {found}; expected one "
                             "of nucleotides, such as dna")
        table[token] = alphabet.symbols.index(other) + 1
    return table


def _tokens_of(alphabet: Alphabet, symbols: str, name: str) -> np.ndarray:
    if unknown := [symbol for symbol in symbols if symbol not in alphabet.symbols]:
        raise ValueError(f"{name}={symbols!r}: {unknown[0]!r} is not in alphabet {alphabet.name!r} "
                         f"({alphabet.symbols})")
    return np.array([alphabet.symbols.index(symbol) + 1 for symbol in symbols], np.int64)


def _check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"{name}={share}; expected 0 <= {name} <= 1")


def _check_tokens(transform: ReverseComplement | MaskTokens | MutateTokens, sequence: np.ndarray) -> None:
    name, alphabet = type(transform).__name__, transform.alphabet
    if sequence.ndim != 1 or sequence.dtype.kind not in "iu":
        raise TypeError(f"{name} takes token ids of shape (T,); found {sequence.dtype} of shape {sequence.shape}")
    if len(sequence) and sequence.max() >= alphabet.num_tokens:
        raise ValueError(f"{name}: found token {sequence.max()}; alphabet {alphabet.name!r} has tokens < "
                         f"{alphabet.num_tokens}: give it the alphabet of the store")


def _check_features(transform: object, sequence: np.ndarray) -> None:
    if sequence.dtype.kind != "f":
        raise TypeError(f"{type(transform).__name__} takes features of floating-point numbers; found {sequence.dtype} "
                        f"of shape {sequence.shape}")
