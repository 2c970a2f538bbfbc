"""Damage: a store cut or changed anywhere is refused, or reads as before."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.description import describe
from seqpipe.errors import StoreError
from seqpipe.exporting import export
from seqpipe.locate import locate
from seqpipe.merging import merge
from seqpipe.options import DescribeOptions, ExportOptions, MergeOptions, VerifyOptions
from seqpipe.sequences import SequenceDataset
from seqpipe.store import Store
from seqpipe.verification import verify
from tests.attacks.files import content_of, rebuild, refused, reseal


@pytest.fixture(scope="module")
def pair(small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The small store, plain and compressed."""
    packed = tmp_path_factory.mktemp("packed") / "a.h5"
    return {"none": small, "gzip": rebuild(small, packed, lambda arrays, header: None, compression="gzip")}


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_store_cut_anywhere_is_refused(pair: dict[str, Path], tmp_path: Path, step: int, compression: str) -> None:
    """At every length below its own; nothing is read of a store cut short."""
    data, path = pair[compression].read_bytes(), tmp_path / "cut.h5"
    path.write_bytes(data)
    for length in reversed(range(0, len(data), step)):
        os.truncate(path, length)
        with pytest.raises(StoreError, match="cut short|cut to almost nothing|damaged"):
            Store(path) if length % 16 else verify(VerifyOptions(store=path))


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(("unit", "count"), [
    ("bit", 60), ("byte", 30), pytest.param("bit", 3000, marks=pytest.mark.slow),
    pytest.param("byte", 3000, marks=pytest.mark.slow)])
def test_no_change_of_a_bit_or_byte_is_read_in_silence(
    pair: dict[str, Path], tmp_path: Path, unit: str, count: int, compression: str
) -> None:
    """Anywhere in the file: reading reports it, with the place, or everything reads as before; so does verify."""
    draws = random.Random(count)
    source, path = pair[compression], tmp_path / "flipped.h5"
    expected, data = content_of(source), source.read_bytes()
    reported = 0
    for _ in range(count):
        flipped = bytearray(data)
        flipped[draws.randrange(len(data))] ^= 1 << draws.randrange(8) if unit == "bit" else draws.randrange(1, 256)
        path.write_bytes(flipped)
        for look in (content_of, lambda path: verify(VerifyOptions(store=path))):
            try:
                found = look(path)
            except StoreError as error:
                reported += look is content_of
                assert str(path) in str(error)
            else:
                assert found == expected if look is content_of else content_of(path) == expected
    assert reported > count / 5


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_flipped_bit_is_reported_with_its_place(amp_store: Path, tmp_path: Path, compression: str) -> None:
    """Dataset, block or chunk, rows and ids, by the first batch that touches it; rows elsewhere can be read."""
    path = rebuild(amp_store, tmp_path / "a.h5", lambda arrays, header: None, compression=compression)
    store = Store(path)
    row = 3000
    first = int(store.offsets[row])
    with h5py.File(path) as file:
        at = file["values"].id.get_offset() + first if compression == "none" else \
            int(sum(file["chunks/values"][first // file["values"].chunks[0]])) - 9
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)
    dataset = SequenceDataset(path)
    assert len(dataset[0][0])
    part = r"bytes \d+ to \d+ \(block \d+\)" if compression == "none" else r"chunk \d+ \(bytes \d+ to \d+ of the f.*"
    place = r"rows \d+ to \d+ \(0-based\) \('.*' to '.*'\)"
    with pytest.raises(StoreError, match=rf"/values: {part} .*: {place}") as caught:
        dataset.__getitems__([1, row])[1]
    low, high = map(int, re.findall(r"rows (\d+) to (\d+)", str(caught.value))[0])
    assert low <= row <= high


def merged(path: Path, out: Path) -> Any:
    return merge(MergeOptions(stores=(path,), out=out, overwrite=True)) and out.read_bytes()


def exported(path: Path, out: Path, split: str | None = None) -> Any:
    return export(ExportOptions(stores=(path,), out=out, format="jsonl", split=split, overwrite=True)) \
        and out.read_bytes()


def told_whole(path: Path, out: Path) -> Any:
    """Everything that is read of a store past its datasets: weights, held-out rows, leakage, moments of labels."""
    store = Store(path)
    columns = [list(store.column(name)) for name in store.metadata]
    splits = {name: store.split_rows(name).tolist() for name in store.splits}
    return columns, splits, store.lengths(slice(None)).tolist(), [store.sequence(i).tolist() for i in range(len(store))]


WAYS = {"one file": merged, "manifest": lambda path, out: merged(path, out.with_suffix(".seqpipe.json")),
        "export": exported, "export of a split": lambda path, out: exported(path, out, "train"), "store": told_whole,
        "leakage": lambda path, out: describe(DescribeOptions(store=path, leakage=True))}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_made_of_a_changed_byte(small: Path, tmp_path: Path, way: str) -> None:
    """In each array: a command reports it, or what it makes is the same; a copy with new checksums would hide it."""
    path, out, data = tmp_path / "a.h5", tmp_path / "out", small.read_bytes()
    path.write_bytes(data)
    expected = WAYS[way](path, out)
    places = {name: extent for name, extent in locate(path)[1].items() if not name.startswith("checksums/")}
    reported = 0
    for extent in places.values():
        for at in (extent.offset, extent.offset + extent.num_bytes - 8):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            try:
                assert WAYS[way](path, out) == expected
            except StoreError as error:
                reported += 1
                assert "a.h5: damaged" in str(error)
    assert reported > len(places)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_file_cut_short_under_its_map_is_refused(pair: dict[str, Path], tmp_path: Path, compression: str) -> None:
    """By the next sample and the next batch: touching what is gone would kill the process."""
    path = Path(shutil.copy(pair[compression], tmp_path / "a.h5"))
    dataset = SequenceDataset(path)
    batch = dataset.__getitems__([0, 1])
    assert len(batch[1][0]) == 2
    os.truncate(path, 100)
    for read in (lambda: dataset[0], lambda: dataset.__getitems__([0, 1])):
        with pytest.raises(StoreError, match=r"a\.h5: cut short while it was read: 100 bytes, \d+ when it was opened"):
            read()


MUTATE = """
import random, sys
from pathlib import Path
from seqpipe.errors import StoreError
from seqpipe.options import VerifyOptions
from seqpipe.verification import verify
from tests.attacks.files import content_of

source, path, first, last = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
words = [0, 1, 2, 7, 255, 2**16 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
for seed in range(first, last):
    draws = random.Random(seed)
    data = bytearray(source)
    for _ in range(draws.randint(1, 6)):
        at, kind = draws.randrange(len(data)), draws.randrange(5)
        if kind == 0:
            data[at] = draws.randrange(256)
        elif kind == 1:
            data[at : at + 8] = draws.choice(words).to_bytes(8, "little")[: len(data) - at]
        elif kind == 2:
            size = draws.randint(1, 64)
            data[at : at + size] = data[draws.randrange(len(data)) :][:size]
        elif kind == 3:
            del data[at : at + draws.randint(1, 64)]
        else:
            data[at:at] = bytes(draws.randint(1, 64))
    path.write_bytes(data)
    print(seed, flush=True)
    for look in (content_of, lambda path: verify(VerifyOptions(store=path))):
        try:
            look(path)
        except StoreError:
            pass
print("done", flush=True)
"""


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("count", [25, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_mutation_crashes_or_hangs_a_reader(
    pair: dict[str, Path], tmp_path: Path, count: int, compression: str
) -> None:
    """Bytes, words and pieces changed, moved, taken out and put in: a StoreError, or it reads; in a process that is
    watched, 500 to each."""
    for first in range(0, count, 500):
        last = min(first + 500, count)
        command = [sys.executable, "-c", MUTATE, str(pair[compression]), str(tmp_path / "x.h5"), str(first), str(last)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600,
                              cwd=Path(__file__).parents[2])
        assert done.returncode == 0 and done.stdout.endswith("done\n"), \
            f"seed {done.stdout.split()[-1:]}: {done.returncode}: {done.stderr}"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, signed: bool) -> None:
    """Noise, with the signature of HDF5 and without."""
    path = tmp_path_factory.mktemp("n") / "noise.h5"
    path.write_bytes((b"\x89HDF\r\n\x1a\n\x03" if signed else b"") + data)
    refused(path)


def test_offsets_that_decrease_are_refused_where_they_are_read(copy: Path) -> None:
    """By sequence, lengths and a dataset, by verify for the whole."""
    with h5py.File(copy, "r+") as file:
        file["offsets"][1:3] = [6, 4]
    reseal(copy)
    store = Store(copy)
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
    reseal(copy)
    for read in (lambda: Store(copy).sequence(1), lambda: Store(copy).lengths(slice(None))):
        with pytest.raises(StoreError, match=r"/offsets\[2:4\] is 9223372036854775808, 9; expected start <= end <= 10"):
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
    reseal(copy)
    for read in (lambda: Store(copy).split_rows("train"), lambda: SequenceDataset(copy, "train")[0]):
        with pytest.raises(StoreError, match=r"/splits/train\[0:2\] is 99, 1; expected rows that ascend, each < 4"):
            read()
    for read in (lambda: Store(copy).sequence(99), lambda: SequenceDataset(copy, "train", verify=False)[0]):
        with pytest.raises(StoreError, match=r"no row 99; expected 0 <= row < 4"):
            read()
    with pytest.raises(StoreError, match=r"rows 1 to 99"):
        Store(copy).lengths(np.array([99, 1]))
