"""verify: the exact place of anything that is off, in bytes or in content."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from seqpipe.errors import StoreError
from seqpipe.store import Store
from seqpipe.options import VerifyOptions
from seqpipe.verification import verify
from tests.attacks.files import rebuild
from tests.test_writer import write_plain

Change = Callable[[dict[str, np.ndarray], dict[str, Any]], None]


def findings(path: Path) -> str:
    """Return the message of a store that is off."""
    with pytest.raises(StoreError) as caught:
        verify(VerifyOptions(store=path))
    assert str(caught.value).startswith(f"{path}: damaged:") and "make it again with preprocess" in str(caught.value)
    return str(caught.value)


def flip(path: Path, name: str, position: int) -> None:
    """Change one byte of an array, counted from its start."""
    with h5py.File(path) as file:
        start = file[name].id.get_offset()
    with open(path, "r+b") as raw:
        raw.seek(start + position)
        byte = raw.read(1)[0]
        raw.seek(start + position)
        raw.write(bytes([byte ^ 1]))


@pytest.fixture
def amp(amp_store: Path, tmp_path: Path) -> Path:
    """A copy of the peptides, to be spoiled."""
    return Path(shutil.copy(amp_store, tmp_path / "amp.h5"))


def test_good_stores_are_good(amp_store: Path, vowels_store: Path) -> None:
    """With the number of sequences, arrays and bytes."""
    for path in (amp_store, vowels_store):
        result = verify(VerifyOptions(store=path))
        store = Store(path)
        assert result.sequences == len(store) and result.num_bytes > store.values.nbytes
        assert result.arrays == sum(not name.startswith("checksums/") for name in store.arrays)
        assert str(result).startswith(f"{path}: good: {len(store):,} sequences")


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_byte_in_values_is_named_by_block_and_rows(amp: Path, seed: int) -> None:
    """Array, bytes, block, the rows that lie in it, and their ids."""
    store = Store(amp)
    ids = store.metadata["id"]
    position = int(np.random.default_rng(seed).integers(len(store.values)))
    block = position // 65536
    low, high = block * 65536, min((block + 1) * 65536, len(store.values))
    first = max(i for i in range(len(store)) if store.offsets[i] <= low)
    last = max(i for i in range(len(store)) if store.offsets[i] < high)
    flip(amp, "values", position)
    message = findings(amp)
    assert f"/values: bytes {low} to {high} (block {block}) fail their CRC-32: " \
           f"rows {first} to {last} (0-based) ({ids[first]!r} to {ids[last]!r})" in message
    assert message.count("CRC-32") == 1


@pytest.mark.parametrize("name", ["offsets", "metadata/id/values", "metadata/label", "splits/train"])
def test_a_flipped_byte_in_any_array_is_named(amp: Path, name: str) -> None:
    """By array and block."""
    flip(amp, name, 8)
    assert f"/{name}: bytes 0 to " in findings(amp)


def test_a_flipped_checksum_is_found(amp: Path) -> None:
    """The table itself may be the damaged part."""
    flip(amp, "checksums/values", 4)
    assert "/values: bytes 65536 to " in findings(amp)


def test_damage_everywhere_is_told_in_part(tmp_path: Path) -> None:
    """Twenty places, and how many more there are."""
    path = write_plain(tmp_path / "x.h5", np.ones(30 * 65536, "u1"), np.array([0, 30 * 65536], "<u8"))
    for block in range(30):
        flip(path, "values", block * 65536 + 7)
    message = findings(path)
    assert message.count("CRC-32") == 20 and "and 10 more" in message


def set_item(name: str, index: Any, value: Any) -> Change:
    """Return a change of some items of an array."""
    def change(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        arrays[name][index] = value
    return change


def same_id(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Give row 7 the id of row 3, whatever their lengths."""
    values, offsets = arrays["metadata/id/values"], arrays["metadata/id/offsets"]
    texts = [values[a:b].tobytes() for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    texts[7] = texts[3]
    arrays["metadata/id/values"] = np.frombuffer(b"".join(texts), "u1")
    arrays["metadata/id/offsets"] = np.cumsum([0, *map(len, texts)]).astype("<u8")


def empty_id(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    arrays["metadata/id/offsets"][5] = arrays["metadata/id/offsets"][6]


def number_ids(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    del arrays["metadata/id/values"], arrays["metadata/id/offsets"]
    arrays["metadata/id"] = np.arange(len(arrays["offsets"]) - 1)


def shorter(key: str) -> Change:
    """Return a change of one number in the header's summary."""
    def change(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        header["splits"]["train"]["lengths"][key] -= 1
    return change


def other_classes(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    header["splits"]["all"]["classes"].reverse()


def other_histogram(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    header["splits"]["test"]["lengths"]["histogram"]["counts"][0] += 1


@pytest.mark.parametrize(("change", "finding"), [
    (set_item("values", 100_000, 0), r"/values[100000] is 0 (row "),
    (set_item("values", 0, 255), r"/values[0] is 255 (row 0, element 0); expected 1 <= token < "),
    (set_item("offsets", 2, 0), "/offsets[1:3] is "),
    (set_item("metadata/id/offsets", 2, 0), "/metadata/id/offsets[1:3] is "),
    (set_item("metadata/id/values", 0, 255), "/metadata/id[0] is no UTF-8 text"),
    (set_item("splits/train", slice(4, 6), 100), "/splits/train[4:6] is 100, 100; expected rows that ascend"),
    (set_item("splits/test", 0, 10_000), "/splits/test[0:2] is 10000, "),
    (set_item("metadata/label", 9, 2), "/metadata/label[9] is 2; expected 0 <= label < 2"),
    (set_item("metadata/label", 8, -1), "/metadata/label[8] is -1; expected 0 <= label < 2"),
    (same_id, "/metadata/id[7] is "),
    (empty_id, "/metadata/id[5] is empty"),
    (number_ids, "/metadata/id is no column of text"),
    (shorter("min"), "of the split 'train'"),
    (shorter("median"), "of the split 'train'"),
    (other_classes, "of the split 'all'"),
    (other_histogram, "of the split 'test'"),
])
def test_wrong_content_under_right_checksums_is_found(
    amp_store: Path, tmp_path: Path, change: Change, finding: str
) -> None:
    """Tokens, offsets, texts, splits, labels, ids and the header's summary, each by its place."""
    assert finding in findings(rebuild(amp_store, tmp_path / "x.h5", change))


def test_a_feature_that_is_not_finite_is_found(vowels_store: Path, tmp_path: Path) -> None:
    """With its row and element."""
    start = int(Store(vowels_store).offsets[2])
    path = rebuild(vowels_store, tmp_path / "x.h5", set_item("values", (start + 3, 5), np.nan))
    assert f"/values[{start + 3}] is " in findings(path) and "(row 2, element 3); expected finite" in findings(path)


@pytest.mark.parametrize("step", [65536, 2 * 65536])
def test_places_do_not_depend_on_the_step(amp_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          step: int) -> None:
    """A large store is looked at in steps: nothing is missed at their edges."""
    monkeypatch.setattr("seqpipe.verification.STEP", step)
    monkeypatch.setattr("seqpipe.verification.TEXTS", 1)
    edge = step // 8
    for change, finding in ((set_item("values", 65536, 0), "/values[65536] is 0"),
                            (set_item("metadata/id/values", 10_000, 255), "is no UTF-8 text")):
        assert finding in findings(rebuild(amp_store, tmp_path / "x.h5", change))
    count = 3 * edge
    offsets = np.arange(count + 1, dtype="<u8")
    for i in (edge - 1, edge, edge + 1, 2 * edge):
        wrong = offsets.copy()
        wrong[i] = wrong[i + 1] + 1
        path = write_plain(tmp_path / "y.h5", np.ones(count, "u1"), offsets)
        path = rebuild(path, tmp_path / "z.h5", lambda arrays, header: arrays.update(offsets=wrong))
        assert f"/offsets[{i}:{i + 2}] is " in findings(path)
