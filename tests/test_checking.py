"""Bytes are checked where they are touched first: nothing damaged is read in silence, nothing else is looked at."""

from __future__ import annotations

import math
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from seqpipe.checking import Checked, Rule, ascending, finite, within
from seqpipe.collate import fill
from seqpipe.dataloader import get_dataloader
from seqpipe.errors import StoreError
from seqpipe.layout import CHECKSUM_BLOCK, block_checksums
from seqpipe.sequences import SequenceDataset
from tests.attacks.files import content_of, rebuild

BLOCK = CHECKSUM_BLOCK


def flip(path: Path, name: str, position: int, bit: int = 0) -> None:
    """Change one bit of an array, at a byte counted from its start."""
    with h5py.File(path) as file:
        start = file[name].id.get_offset()
    with open(path, "r+b") as raw:
        raw.seek(start + position)
        byte = raw.read(1)[0]
        raw.seek(start + position)
        raw.write(bytes([byte ^ 1 << bit]))


def checked(array: np.ndarray, rule: Rule | None = None) -> Checked:
    """Return an array under its checksums, with errors that are ValueErrors."""
    return Checked(array, block_checksums(array.reshape(-1).view("u1").data), rule,
                   lambda finding, low, high: ValueError(f"{finding} [{low}, {high})"))


# One array


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 49_999), st.integers(0, 30_000)), min_size=1, max_size=6),
       st.sampled_from([(), (3,)]), st.booleans())
def test_exactly_the_blocks_touched_are_checked(ranges: list[tuple[int, int]], tail: tuple[int, ...],
                                                together: bool) -> None:
    """Of ranges of items, one by one or together; empty ranges touch nothing; each block is checked once."""
    array = np.random.default_rng(0).integers(0, 9, (50_000, *tail)).astype("<i4")
    seen: list[int] = []
    subject = checked(array)
    subject._will_need = lambda starts: seen.extend(start >> 16 for start in starts)
    starts = np.array([start for start, _ in ranges])
    stops = np.minimum(starts + [length for _, length in ranges], 50_000)
    for _ in range(2):
        if together:
            subject.touch_ranges(starts, stops, int((stops - starts).max()))
        else:
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                if start < stop:
                    subject.touch(start, stop)

    width = 4 * int(np.prod(tail))
    wanted = {byte >> 16 for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
              for byte in range(start * width, stop * width, width)}
    wanted |= {stop * width - 1 >> 16 for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
               if stop > start}
    assert sorted(seen) == sorted(wanted)
    assert subject.left == -(-array.nbytes // BLOCK) - len(wanted)


def test_without_checksums_blocks_are_fetched_and_nothing_is_checked() -> None:
    """Each block once, the first time one of its items is touched."""
    seen: list[int] = []
    subject = Checked(np.zeros(3 * BLOCK, "u1"), None, within("number", 5, 9), will_need=seen.extend)
    for index in ([5, 2 * BLOCK + 1], [BLOCK - 1, 7], [2 * BLOCK, BLOCK]):
        subject.touch_items(np.array(index))

    assert seen == [0, 2 * BLOCK, BLOCK] and not subject.left
    assert subject.is_done(np.array([0, BLOCK])).all()


def test_a_block_is_checked_once_and_all_of_it_then() -> None:
    """What changes later is not looked at again, what was not touched is."""
    array = np.zeros(3 * BLOCK, "u1")
    subject = checked(array)
    array[5] = array[2 * BLOCK] = 1
    subject.touch(BLOCK, BLOCK + 1)
    with pytest.raises(ValueError, match=r"bytes 0 to 65536 \(block 0\) fail their CRC-32 \[0, 65536\)"):
        subject.touch(9, 10)
    with pytest.raises(ValueError, match="block 2"):
        subject.touch_items(np.array([BLOCK, 3 * BLOCK - 1]))
    array[BLOCK] = 1
    subject.touch(BLOCK, 2 * BLOCK)
    assert subject.left == 2


@pytest.mark.parametrize(("rule", "numbers", "finding"), [
    (within("token", 1, 6), np.array([1, 5, 6, 0], "u1"), r"\[2\] is 6; expected 1 <= token < 6"),
    (within("token", 1, 6), np.array([1, 0], "u1"), r"\[1\] is 0"),
    (finite(False), np.array([1, np.nan], "f4"), r"\[1\] is nan; expected finite numbers"),
    (finite(True), np.array([np.nan, -np.inf], "f4"), r"\[1\] is -inf; expected numbers that are not infinite"),
    (ascending("start <= end <= 9", 9, strict=False), np.array([0, 4, 3, 9], "u8"), r"\[1:3\] is 4, 3; expected start"),
    (ascending("start <= end <= 9", 9, strict=False), np.array([0, 4, 10], "u8"), r"\[2\] is 10"),
    (ascending("rows", 9, strict=True), np.array([0, 4, 4], "u8"), r"\[1:3\] is 4, 4"),
])
def test_content_is_checked_with_the_block(rule: Rule, numbers: np.ndarray, finding: str) -> None:
    """With the right checksum; the first number that is wrong is named."""
    with pytest.raises(ValueError, match=finding):
        checked(numbers, rule).touch(0, 1)


def test_content_that_fits_passes() -> None:
    """At the bounds too, and of no numbers at all."""
    for rule, numbers in (
        (within("token", 1, 6), np.array([1, 5], "u1")), (finite(True), np.array([np.nan, 1])),
        (ascending("", 9, strict=False), np.array([0, 0, 9], "u8")), (within("x", 0, 1), np.empty(0, "u1")),
        (ascending("", 9, strict=True), np.array([0, 9], "u8")),
    ):
        subject = checked(numbers, rule)
        if len(numbers):
            subject.touch(0, len(numbers))
        assert subject.left == 0


@pytest.mark.filterwarnings("error")
@settings(deadline=None, max_examples=200)
@given(st.sampled_from(["f2", "f4", "f8"]), st.integers(1, 2000), st.booleans(), st.data())
def test_no_number_hides_one_that_is_not_finite(dtype: str, count: int, allow_nan: bool, data: st.DataObject) -> None:
    """Zeros, numbers whose product is beyond all, or the opposite infinity beside it: the first misfit is named."""
    part = np.full(count, data.draw(st.sampled_from([0.0, -0.0, 1e-8, -3.0, np.finfo(dtype).max])), dtype)
    for value in data.draw(st.lists(st.sampled_from([np.inf, -np.inf, np.nan]), max_size=3)):
        part[data.draw(st.integers(0, count - 1))] = value
    wrong = [i for i, number in enumerate(part.tolist()) if math.isinf(number) or math.isnan(number) and not allow_nan]
    assert finite(allow_nan).first_misfit(part) == (wrong[0] if wrong else -1)


# A store


@pytest.fixture
def amp(amp_store: Path, tmp_path: Path) -> Path:
    """A copy of the peptides, to be spoiled."""
    return Path(shutil.copy(amp_store, tmp_path / "amp.h5"))


@pytest.mark.parametrize("name", ["values", "offsets", "metadata/label", "metadata/id/values", "metadata/id/offsets",
                                  "splits/train"])
@pytest.mark.parametrize("batched", [False, True], ids=["items", "batches"])
def test_a_flipped_bit_is_reported_with_array_block_and_rows(amp: Path, name: str, batched: bool) -> None:
    """By items and by batches; without verification the lowest bit of a value passes."""
    flip(amp, name, 9)
    dataset = SequenceDataset(amp, "train")

    def read(dataset: SequenceDataset) -> Any:
        if batched:
            return fill(dataset.__getitems__(list(range(64)))).ids[:]
        return [dataset[i] for i in range(64)]

    with pytest.raises(StoreError, match=rf"amp\.h5: damaged: /{name}: bytes 0 to \d+ \(block 0\) fail their CRC-32"
                       + ("" if name == "splits/train" else r": rows 0 to \d+ \(0-based\) \('\S+' to '\S+'\)")):
        read(dataset)
    if name in ("values", "metadata/label"):
        read(SequenceDataset(amp, "train", verify=False))


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_no_flipped_bit_is_read_in_silence(small: Path, tmp_path: Path, count: int) -> None:
    """Anywhere in the file: an error that names the file, or all reads as before."""
    draws = random.Random(count)
    wanted, data, path = content_of(small), small.read_bytes(), tmp_path / "flipped.h5"
    found = 0
    for _ in range(count):
        flipped = bytearray(data)
        flipped[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
        path.write_bytes(flipped)
        try:
            dataset = SequenceDataset(path)
            batch = fill(dataset.__getitems__(range(4)))
            ids = list(batch.ids)
            splits = [fill(SequenceDataset(path, split).__getitems__([0, 1])).index.tolist()
                      for split in dataset.store.splits]
            samples = content_of(path)[0]
        except StoreError as error:
            found += 1
            assert str(path) in str(error)
        else:
            assert samples == wanted[0]
            assert (ids, splits) == (["a", "b", "c", "d"], [[0, 1], [2, 3]])
    assert found > count / 20


def test_a_damaged_block_is_met_only_by_its_rows(tmp_path: Path) -> None:
    """Rows of other blocks read as ever, before and after."""
    from tests.test_writer import write_plain

    lengths = np.full(3000, 100)
    path = write_plain(tmp_path / "a.h5", np.ones(300_000, "u1"), np.cumsum([0, *lengths]).astype("<u8"))
    flip(path, "values", 3 * BLOCK + 7)
    dataset = SequenceDataset(path)
    rows = [row for row in range(3000) if row * 100 // BLOCK != 3 and (row * 100 + 99) // BLOCK != 3]

    for _ in range(2):
        assert fill(dataset.__getitems__(rows)).lengths.sum() == 100 * len(rows)
        with pytest.raises(StoreError, match=r"block 3\) fail their CRC-32: rows 1966 to 2621 \(0-based\)"):
            dataset[2000]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_reports_damage_as_its_parent_would(amp: Path, method: str) -> None:
    """The same type and text, under each start method."""
    flip(amp, "values", 100)
    loader = DataLoader(SequenceDataset(amp), batch_size=64, collate_fn=fill, num_workers=1,
                        multiprocessing_context=method)
    with pytest.raises(StoreError, match=r"/values: bytes 0 to 65536 \(block 0\) fail their CRC-32"):
        next(iter(loader))


def test_get_dataloader_verifies_unless_told_otherwise(amp: Path) -> None:
    """``verify`` goes with a path."""
    flip(amp, "values", 100)
    with pytest.raises(StoreError, match="CRC-32"):
        next(iter(get_dataloader(amp)))
    next(iter(get_dataloader(amp, verify=False)))


def test_tokens_and_offsets_are_checked_though_their_checksums_hold(amp_store: Path, tmp_path: Path) -> None:
    """A store made by another program, say."""
    def wild(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        arrays["values"][7] = 200

    with pytest.raises(StoreError, match=r"/values\[7\] is 200; expected 1 <= token < \d+: rows 0 to 0 "):
        SequenceDataset(rebuild(amp_store, tmp_path / "w.h5", wild))[0]


def test_checksums_are_those_of_zlib() -> None:
    """So that any program can check them."""
    data = bytes(range(256)) * 300
    assert block_checksums(memoryview(data)).tolist() == [zlib.crc32(data[:BLOCK]), zlib.crc32(data[BLOCK:])]
