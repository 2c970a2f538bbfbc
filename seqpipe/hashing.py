"""Hash many byte strings at once, and find those that stand twice.

Place in the flow: spooled ids, groups, sequences -> [hashing] -> splits, duplicates, leakage.

Strings lie end to end in one array, as everywhere in seqpipe: string i is
``values[offsets[i]:offsets[i + 1]]``. A hash costs 8 bytes of memory a string, whatever its length.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b

import numpy as np

ROWS = 1 << 15  # hashed at a time
LONGEST = 256  # bytes; longer strings are hashed one by one
SAMPLED_ROWS = 1 << 12  # sampled at a time: short ones stay in the processor's cache
SAMPLED_WORDS = 4  # of 8 bytes each, that stand for a sequence
SORTED = 1 << 22  # keys sorted at a time
_WORD = np.uint64(8)
_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)


def hash_texts(values: np.ndarray, offsets: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Return (n,) uint64 hashes that depend on (seed, bytes) alone, the same on every machine.

    Args:
        values: (M,) uint8, all strings end to end.
        offsets: (n+1,) where they end.
        seed: keys the hash, 0 <= seed < 2**64.
    """
    words = _words(values)
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for first in range(0, len(hashes), ROWS):
        ends = np.asarray(offsets[first : first + ROWS + 1], np.uint64)
        starts, sizes = ends[:-1], np.diff(ends)
        state = _mix(_mix(np.full(len(starts), np.uint64(seed)), _FACTOR), sizes)
        rows = np.flatnonzero(sizes)
        at = np.uint64(0)
        while len(rows := rows[(sizes[rows] > at) & (sizes[rows] <= LONGEST)]):
            state[rows] = _mix(state[rows], _read(words, starts[rows] + at, np.minimum(sizes[rows] - at, _WORD)))
            at += _WORD
        for row in np.flatnonzero(sizes > LONGEST).tolist():
            digest = blake2b(values[int(starts[row]) : int(ends[row + 1])].tobytes(), digest_size=8)
            word = np.uint64(int.from_bytes(digest.digest(), "little"))
            state[row : row + 1] = _mix(state[row : row + 1], word)
        hashes[first : first + len(state)] = _mix(state, _FACTOR)
    return hashes


def hash_strings(texts: Sequence[str], *, seed: int = 0) -> np.ndarray:
    """Return (n,) uint64 hashes of texts: those of their UTF-8 bytes, as ``hash_texts`` has them."""
    data = [text.encode("utf-8", "surrogatepass") for text in texts]
    offsets = np.zeros(len(data) + 1, np.uint64)
    np.cumsum([len(part) for part in data], out=offsets[1:])
    return hash_texts(np.frombuffer(b"".join(data), np.uint8), offsets, seed=seed)


def sample_hashes(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return (n,) uint64 keys of sequences, equal where the sequences are, from a few words of each.

    Sequences of up to 32 bytes are read whole, longer ones at 4 places: different sequences of
    equal key are possible, and to be told apart by whoever finds them.

    Args:
        values: (M, ...) of any dtype, all sequences end to end.
        offsets: (n+1,) where they end, in rows of ``values``.
    """
    width = np.uint64(values.dtype.itemsize * int(np.prod(values.shape[1:])))
    words = _words(values.reshape(-1).view(np.uint8))
    keys = np.empty(len(offsets) - 1, np.uint64)
    for first in range(0, len(keys), SAMPLED_ROWS):
        ends = np.asarray(offsets[first : first + SAMPLED_ROWS + 1], np.uint64) * width
        starts, sizes = ends[:-1], np.diff(ends)
        read = np.minimum(sizes, _WORD)
        rest, all_whole = sizes - read, bool((read == _WORD).all())
        state = sizes * _FACTOR
        for k in range(SAMPLED_WORDS):
            places = starts + (rest // np.uint64(SAMPLED_WORDS - 1) * np.uint64(k) if k < SAMPLED_WORDS - 1 else rest)
            state ^= words[places] if all_whole else _read(words, places, read)
            state *= _FACTOR
            state ^= state >> _SHIFT
        keys[first : first + len(state)] = state
    return keys


def identity_of(sequence: bytes | np.ndarray) -> bytes:
    """Return 16 bytes that tell a sequence for certain: a cryptographic hash of its bytes."""
    return blake2b(sequence if isinstance(sequence, bytes) else sequence.tobytes(), digest_size=16).digest()


def find_repeats(keys: np.ndarray, identity: Callable[[int], Hashable]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that equal an earlier row, ascending, and for each the first row it equals.

    Args:
        keys: (n,) uint64, equal where rows are equal, and rarely elsewhere.
        identity: returns what tells a row for certain; asked for rows of equal key only.
    """
    again, before = array("q"), array("q")
    parts = 1 << max(0, (len(keys) - 1).bit_length() - SORTED.bit_length() + 1)
    shift = np.uint64(64 - parts.bit_length() + 1)
    for part in range(parts):
        rows = np.arange(len(keys)) if parts == 1 else np.flatnonzero(keys >> shift == np.uint64(part))
        if _all_differ(keys[rows]):
            continue
        rows = rows[np.argsort(keys[rows], kind="stable")]
        ordered = keys[rows]
        edges = np.flatnonzero(np.diff(ordered[1:] == ordered[:-1], prepend=False, append=False))
        for start, end in edges.reshape(-1, 2).tolist():
            seen: dict[Hashable, int] = {}
            for row in rows[start : end + 1].tolist():
                if (first := seen.setdefault(identity(row), row)) != row:
                    again.append(row)
                    before.append(first)
    found = np.frombuffer(again, np.int64)
    order = np.argsort(found)
    return found[order], np.frombuffer(before, np.int64)[order]


def _all_differ(keys: np.ndarray) -> bool:
    """Say whether no two keys are equal; a sort without the rows takes a fraction of the time of one with them."""
    ordered = np.sort(keys)
    return bool((ordered[1:] != ordered[:-1]).all())


def fractions(hashes: np.ndarray) -> np.ndarray:
    """Return (n,) float64 numbers 0 <= x < 1, one for each hash."""
    return (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53


def _words(values: np.ndarray) -> np.ndarray:
    """Return a view of bytes in which item i is the little-endian word of bytes i to i + 7."""
    if len(values) < 8:
        values = np.concatenate([values, np.zeros(8, np.uint8)])  # nothing counts of what is added
    return np.ndarray((len(values) - 7,), "<u8", np.ascontiguousarray(values).data, strides=(1,))


def _read(words: np.ndarray, at: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the words of ``sizes`` bytes, 0 to 8, at the bytes ``at``; what lies behind counts as 0."""
    last = np.uint64(len(words) - 1)
    behind = np.maximum(at, last) - last  # near the end: read an earlier word, and shift
    unused = (_WORD - sizes) * _WORD
    return words[np.minimum(at, last)] >> (behind * _WORD) << unused >> unused  # a shift by 64 bits gives 0


def _mix(state: np.ndarray, word: np.ndarray | np.uint64) -> np.ndarray:
    """Return the state after one more word: every bit of both has its part in every bit."""
    with np.errstate(over="ignore"):
        state = (state ^ word) * _FACTOR
        state ^= state >> _SHIFT
        state *= np.uint64(0xD6E8FEB86659FD93)
        return state ^ (state >> _SHIFT)
