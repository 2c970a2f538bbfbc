"""Damage: a store cut or changed anywhere is refused, or reads as before."""

from __future__ import annotations

import os
import random
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.errors import StoreError
from seqpipe.options import VerifyOptions
from seqpipe.sequences import SequenceDataset
from seqpipe.store import Store
from seqpipe.verification import verify
from tests.attacks.files import content_of, refused, reseal


def test_a_store_cut_anywhere_is_refused(small: Path, tmp_path: Path) -> None:
    """At every length below its own; nothing is read of a store cut short."""
    data, path = small.read_bytes(), tmp_path / "cut.h5"
    path.write_bytes(data)
    for length in reversed(range(len(data))):
        os.truncate(path, length)
        with pytest.raises(StoreError, match="cut short|cut to almost nothing|damaged"):
            Store(path) if length % 16 else verify(VerifyOptions(store=path))


@pytest.mark.parametrize(("unit", "count"), [("bit", 1000), ("byte", 500),
                                             pytest.param("bit", 60_000, marks=pytest.mark.slow)])
def test_no_flip_passes_verify_and_changes_the_content(small: Path, tmp_path: Path, unit: str, count: int) -> None:
    """Random flips of one bit, or changes of one byte: StoreError, or everything reads as before."""
    draws = random.Random(count)
    expected, data, path = content_of(small), small.read_bytes(), tmp_path / "flipped.h5"
    found = 0
    for _ in range(count):
        flipped = bytearray(data)
        flipped[draws.randrange(len(data))] ^= 1 << draws.randrange(8) if unit == "bit" else draws.randrange(1, 256)
        path.write_bytes(flipped)
        try:
            verify(VerifyOptions(store=path))
        except StoreError as error:
            found += 1
            assert str(path) in str(error)
        else:
            assert content_of(path) == expected
    assert found > count / 4


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, signed: bool) -> None:
    """Noise, with the signature of HDF5 and without."""
    path = tmp_path_factory.mktemp("n") / "noise.h5"
    path.write_bytes((b"\x89HDF\r\n\x1a\n\x03" if signed else b"") + data)
    refused(path)


def test_offsets_that_decrease_are_refused_where_they_are_read(copy: Path) -> None:
    """By sequence and lengths for the rows concerned, by verify for the whole."""
    with h5py.File(copy, "r+") as file:
        file["offsets"][1:3] = [6, 4]
    reseal(copy)
    store = Store(copy)
    assert len(store.sequence(0)) == 6 and len(store.sequence(2)) == 5
    for read in (lambda: store.sequence(1), lambda: store.lengths(slice(None)), lambda: store.lengths(np.array([1])),
                 lambda: store.lengths(slice(None, None, -1)), lambda: SequenceDataset(copy)[1]):
        with pytest.raises(StoreError, match=r"/offsets\[1:3\] is 6, 4; expected start <= end <= 10"):
            read()
    with pytest.raises(StoreError, match=r"/offsets\[1:3\] is 6, 4"):
        verify(VerifyOptions(store=copy))


def test_offsets_past_the_end_are_refused_where_they_are_read(copy: Path) -> None:
    """A sequence that would end outside of the values."""
    with h5py.File(copy, "r+") as file:
        file["offsets"][2] = 2**63
    for read in (lambda: Store(copy).sequence(1), lambda: Store(copy).lengths(slice(None))):
        with pytest.raises(StoreError, match=r"/offsets\[1:3\] is 4, 9223372036854775808"):
            read()


def test_damaged_texts_are_refused_where_they_are_read(copy: Path) -> None:
    """Offsets that decrease, and bytes that are no UTF-8."""
    with h5py.File(copy, "r+") as file:
        file["metadata/note/values"][0] = 0xFF
        file["metadata/id/offsets"][1:3] = [3, 2]
    metadata = Store(copy).metadata
    with pytest.raises(StoreError, match=r"copy\.h5: /metadata/note: text 0 is no UTF-8"):
        metadata["note"][0]
    with pytest.raises(StoreError, match=r"copy\.h5: /metadata/id: the offsets of text 1 are 3, 2"):
        metadata["id"][1]


def test_a_split_with_rows_that_do_not_exist_is_refused(copy: Path) -> None:
    """At its end when the store is opened, elsewhere when the row is read: never an IndexError, which
    would end a loop over a dataset without a word."""
    with h5py.File(copy, "r+") as file:
        file["splits/train"][1] = 4
    assert "/splits/train holds row 4; expected rows < 4" in refused(copy)
    with h5py.File(copy, "r+") as file:
        file["splits/train"][()] = [99, 1]
    with pytest.raises(StoreError, match=r"no row 99; expected 0 <= row < 4"):
        Store(copy).sequence(int(Store(copy).split_rows("train")[0]))
    with pytest.raises(StoreError, match=r"rows 1 to 99"):
        Store(copy).lengths(Store(copy).split_rows("train"))
