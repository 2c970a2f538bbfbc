"""Arrays and headers that do not fit each other, under checksums that are right."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from seqpipe.description import describe
from seqpipe.errors import StoreError
from seqpipe.layout import block_checksums
from seqpipe.merging import merge
from seqpipe.options import DescribeOptions, MergeOptions
from seqpipe.store import Store
from tests.attacks.files import arrays_edit, rebuild, refused, reseal


@pytest.mark.parametrize(("name", "array", "finding"), [
    ("values", np.ones((10, 1), "u1"), r"/values is uint8 of shape \(10, 1\), expected uint8"),
    ("values", np.ones(10, "<u2"), "/values is uint16 of shape"),
    ("values", np.ones(10, "i1"), "/values is int8 of shape"),
    ("values", np.ones(9, "u1"), "/offsets runs from 0 to 10, expected 0 to 9"),
    ("values", None, "/values or /offsets is missing"),
    ("offsets", None, "/values or /offsets is missing"),
    ("offsets", np.array([1, 4, 6, 9, 10], "<u8"), "/offsets runs from 1 to 10, expected 0 to 10"),
    ("offsets", np.array([0, 4, 6, 9, 11], "<u8"), "/offsets runs from 0 to 11, expected 0 to 10"),
    ("offsets", np.array([0, 4, 6, 9, 10], "<i8"), "/offsets is int64 of shape"),
    ("offsets", np.zeros((5, 1), "<u8"), r"/offsets is uint64 of shape \(5, 1\)"),
    ("offsets", np.zeros(0, "<u8"), r"/offsets is uint64 of shape \(0,\)"),
    ("metadata/label", np.zeros(3, "<i8"), r"/metadata/label has shape \(3,\), expected \(4,\)"),
    ("metadata/label", np.zeros((4, 1), "<i8"), r"/metadata/label has shape"),
    ("metadata/label", np.zeros(4, "<f8"), "/metadata/label does not hold labels of the type 'class'"),
    ("metadata/label", None, "/header names the columns"),
    ("metadata/spare", np.zeros(4, "<i8"), "/header names the columns"),
    ("metadata/a%2Eb", np.zeros(4, "<i8"), "is not how the name 'a.b' is written"),
    ("metadata/id/values", np.zeros((4, 1), "u1"), "/metadata/id is no text column of 4 rows"),
    ("metadata/id/values", np.zeros(4, "<u2"), "/metadata/id is no text column of 4 rows"),
    ("metadata/id/values", np.zeros(4, "<i4"), "/metadata/id is no column of text"),
    ("metadata/id/offsets", np.zeros(4, "<u8"), "/metadata/id is no text column of 4 rows"),
    ("metadata/id/offsets", np.array([0, 1, 2, 3, 5], "<u8"), "/metadata/id/offsets runs from 0 to 5, expected 0 to 4"),
    ("tracks/x", np.zeros(4, "<i8"), r"/tracks/x has shape \(4,\), expected \(10,\)"),
    ("splits/train", np.zeros(2, "<i8"), "/splits/train is int64"),
    ("splits/train", np.arange(5, dtype="<u8"), "/splits/train is uint64 of shape"),
    ("splits/train", np.array([0, 4], "<u8"), "/splits/train holds row 4; expected rows < 4"),
    ("splits/train", np.array([0], "<u8"), "/header tells splits of"),
    ("splits/train", None, "/header tells splits of"),
])
def test_arrays_that_do_not_fit_each_other_are_refused(
    small: Path, tmp_path: Path, name: str, array: np.ndarray | None, finding: str
) -> None:
    """Shapes, types, ends of offsets and splits, all with the right checksums."""
    with pytest.raises(StoreError, match=finding):
        Store(rebuild(small, tmp_path / "x.h5", arrays_edit(name, array)))


@pytest.mark.parametrize("dtype", ["bogus", "float64", "<u2"])
def test_features_of_another_type_than_the_header_says_are_refused(
    vowels_store: Path, tmp_path: Path, dtype: str
) -> None:
    """A sharded store has it from there alone."""
    path = rebuild(vowels_store, tmp_path / "x.h5", lambda arrays, header: header["encoding"].update(dtype=dtype))
    assert f"damaged: /values is float32, /header says '{dtype}'" in refused(path)


def test_a_store_without_ids_is_not_merged(small: Path, tmp_path: Path) -> None:
    """By no way that needs them: two stores cannot be told to share none."""
    def change(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        del arrays["metadata/id/values"], arrays["metadata/id/offsets"]
        header["columns"].remove("id")

    path = rebuild(small, tmp_path / "x.h5", change)
    for out in ("all.h5", "all.seqpipe.json"):
        with pytest.raises(StoreError, match="/metadata/id is missing|no column 'id'; it has 'label'"):
            merge(MergeOptions(stores=(path,), out=tmp_path / out))


# Headers


def every_place(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside JSON data."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, part in inner for found in every_place(part, (*place, key)))]


JUNK = [None, True, -1, 0, 1, 10**30, 1.5, "", "x", [], ["x"], [1], [[]], {}, {"x": 1}]


@pytest.mark.parametrize("store", ["small", "vowels_store"])
def test_a_header_wrong_anywhere_is_refused_or_harmless(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    """Any value of the header replaced or taken out: StoreError, or the store opens and can be described."""
    source = request.getfixturevalue(store)
    header = Store(source).header
    places = [place for place in every_place(header)[1:]
              if not (len(place) > 4 and place[-1] in range(1, 100))]  # of a histogram, the first number only
    draws, refusals, count = random.Random(0), 0, 60
    for _ in range(count):
        place, junk = draws.choice(places), draws.choice([*JUNK, ...])

        def change(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
            for key in place[:-1]:
                header = header[key]
            if junk is ...:
                del header[place[-1]]
            else:
                header[place[-1]] = junk

        path = rebuild(source, tmp_path / "x.h5", change)
        try:
            describe(DescribeOptions(store=path, head=2))
            describe(DescribeOptions(store=path, json=True))
        except StoreError as error:
            refusals += 1
            assert str(path) in str(error)
    assert refusals > count / 3


@pytest.mark.parametrize(("place", "value", "finding"), [
    (("kind",), "sequences", "header.kind"),
    (("encoding", "num_tokens"), 1, "header.encoding"),
    (("encoding", "num_tokens"), 300, "header.encoding"),
    (("encoding", "num_tokens"), "6", "header.encoding.num_tokens"),
    (("encoding", "num_tokens"), 6.0, "header.encoding.num_tokens"),
    (("encoding", "num_tokens"), 10**400, "header.encoding.num_tokens"),
    (("encoding", "symbols"), "ACGTA", "header.encoding"),
    (("encoding", "pad_id"), 1, "header.encoding"),
    (("classes",), ["x", 7], r"header.classes\[1\]"),
    (("classes",), [], "header.label_type"),
    (("label_type",), "none", "header.label_type"),
    (("label_type",), "other", "header.label_type"),
    (("columns",), ["id", "id"], "/header names the columns"),
    (("splits", "all"), {}, "header.splits.all.sequences"),
    (("splits", "all", "sequences"), 5, "/header tells splits"),
    (("splits", "all", "values"), 11, "/header tells splits"),
    (("splits", "all", "classes"), [1], "header.splits.all.classes"),
    (("splits", "all", "lengths", "mean"), "x", "header.splits.all.lengths.mean"),
    (("splits", "all", "lengths", "mean"), True, "header.splits.all.lengths.mean"),
    (("splits", "all", "lengths", "histogram", "edges"), [3, 2], "header.splits.all.lengths.histogram"),
    (("splits", "more"), {"sequences": 0, "values": 0, "classes": [0, 0]}, "/header tells splits"),
    (("provenance", "sources"), [{"name": "x"}], r"header.provenance.sources\[0\].size"),
])
def test_a_wrong_header_is_named_by_its_place(
    small: Path, tmp_path: Path, place: tuple[str, ...], value: Any, finding: str
) -> None:
    """The message says which key of the header is wrong."""
    def change(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        for key in place[:-1]:
            header = header[key]
        header[place[-1]] = value

    assert finding.replace("\\", "") in refused(rebuild(small, tmp_path / "x.h5", change))


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"7", b"null", b"\xff", b'{"kind": NaN}', b"[" * 100_000,
                                  b'{"kind": "tokens"}', b"9" * 5000])
def test_a_header_that_is_no_header_is_refused(small: Path, tmp_path: Path, text: bytes) -> None:
    """Text that is no JSON, or no object; depth and digits without end."""
    path = Path(shutil.copy(small, tmp_path / "x.h5"))
    with h5py.File(path, "r+", alignment_threshold=1, alignment_interval=64) as file:
        for name, data in (("header", np.frombuffer(text, "u1")),
                           ("checksums/header", block_checksums(memoryview(text)))):
            del file[name]
            file.create_dataset(name, data=data)
    assert "/header" in refused(path)


def test_a_header_with_half_a_character_is_refused(small: Path, tmp_path: Path) -> None:
    """It could be read, but not printed."""
    def change(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        header["classes"][0] = "@@@@@@"

    path = rebuild(small, tmp_path / "x.h5", change)
    path.write_bytes(path.read_bytes().replace(b"@@@@@@", rb"\ud800"))
    reseal(path)
    assert "/header is no JSON" in refused(path)


def test_a_flip_in_the_header_is_found_when_the_store_is_opened(copy: Path) -> None:
    """Its checksum is looked at before it is parsed."""
    data = copy.read_bytes()
    copy.write_bytes(data.replace(b'"sequence_column":null', b'"sequence_column":nulL'))
    assert copy.read_bytes() != data and "/header fails its CRC-32" in refused(copy)


def test_a_header_too_large_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is parsed."""
    monkeypatch.setattr("seqpipe.soundness.MAX_HEADER", 100)
    assert "no text of up to 100 bytes" in refused(copy)
