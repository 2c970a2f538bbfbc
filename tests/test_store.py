"""Opening a store: what is no store, a damaged one or a hostile one is refused, whatever it holds."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.description import describe
from seqpipe.errors import StoreError
from seqpipe.ingest import preprocess
from seqpipe.layout import block_checksums
from seqpipe.options import DescribeOptions, PreprocessOptions
from seqpipe.sequences import SequenceDataset
from seqpipe.store import Store, TextColumn
from seqpipe.options import VerifyOptions
from seqpipe.verification import verify
from seqpipe.writer import Content, write_store
from tests.test_writer import write_plain

CSV = """id,sequence,label,part,mass,note
a,ACGT,x,train,1.5,first
b,AC,y,train,2,é ☃
c,GGT,x,test,3,
d,T,y,test,4.25,last
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sequences with classes, splits, numbers and texts: a store of a few KB."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "a.csv").write_text(CSV, encoding="utf-8")
    preprocess(PreprocessOptions(raw=(folder / "a.csv",), split="column:part", out=folder / "a.h5"))
    return folder / "a.h5"


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    """A copy of the small store, to be spoiled."""
    return Path(shutil.copy(small, tmp_path / "copy.h5"))


def content_of(path: Path) -> Any:
    """Return all that a user can read from a store."""
    dataset = SequenceDataset(path)
    samples = [(sequence.tolist(), metadata) for sequence, metadata in (dataset[i] for i in range(len(dataset)))]
    splits = {name: rows.tolist() for name, rows in dataset.store.splits.items()}
    return samples, splits, dataset.classes, dataset.store.header


def reseal(path: Path) -> None:
    """Make every checksum of a store right again, so that only its content can be found wrong."""
    with h5py.File(path, "r+") as file:
        def check(name: str, item: object) -> None:
            table = file.get(f"checksums/{name}")
            if isinstance(item, h5py.Dataset) and table is not None and table.shape[0]:
                table[()] = block_checksums(np.frombuffer(item[()].tobytes(), "u1").data)

        file.visititems(check)


def rebuild(source: Path, path: Path, change: Callable[[dict[str, np.ndarray], dict[str, Any]], None]) -> Path:
    """Write the store ``source`` again after ``change(arrays, header)``, with the right checksums."""
    store = Store(source)
    arrays = {name: array.copy() for name, array in store.arrays.items()
              if not name.startswith("checksums/") and name != "header"}
    header = json.loads(json.dumps(store.header))
    change(arrays, header)
    with mock.patch("seqpipe.writer.header_problem", return_value=None):
        write_store(path, {name: Content.of(array) for name, array in arrays.items()}, header, folder=path.parent)
    return path


def refused(path: Path) -> str:
    """Return the message with which a store is refused."""
    with pytest.raises(StoreError) as caught:
        Store(path)
    message = str(caught.value)
    assert str(path) in message and caught.value.path == path
    return message


# Damage


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


# Not a store


def test_what_is_no_store_is_told_apart(small: Path, tmp_path: Path) -> None:
    """Each has its own sentence."""
    path = tmp_path / "x.h5"
    assert "no such file; make a store with: seqpipe preprocess" in refused(path)
    assert "found a folder" in refused(tmp_path)
    path.write_bytes(b"")
    assert "not a seqpipe store (or one cut to almost nothing)" in refused(path)
    path.write_text(">a\nACGT\n")
    assert "does not start with the HDF5 signature; turn raw files into one" in refused(path)
    with h5py.File(path, "w") as file:
        file["values"] = np.arange(3)
    assert "an HDF5 file, but not a seqpipe store: expected the root attribute format='seqpipe'" in refused(path)
    for wrong in ("seqpipe", b"seqpipE", [b"seqpipe"], 7, np.arange(5000), h5py.Empty("S7")):
        with h5py.File(path, "w") as file:
            file.attrs["format"] = wrong
        assert "not a seqpipe store" in refused(path)
    with h5py.File(shutil.copy(small, path), "r+") as file:
        file.attrs.modify("format_version", np.uint32(2))
    assert "store of format version 2, this seqpipe reads up to 1; install a newer seqpipe" in refused(path)
    with h5py.File(shutil.copy(small, path), "r+") as file:
        file.attrs.modify("complete", np.uint8(0))
    assert "incomplete: its writing never ended" in refused(path)
    for name in ("complete", "format_version"):
        with h5py.File(shutil.copy(small, path), "r+") as file:
            del file.attrs[name]
        assert "damaged: the root attributes say" in refused(path) and f"{name}=None" in refused(path)
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = [1, 1]
    assert "format_version=None" in refused(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Opening it would wait for a writer for ever."""
    os.mkfifo(tmp_path / "pipe.h5")
    assert "no regular file" in refused(tmp_path / "pipe.h5")


@pytest.mark.parametrize("name", ["x\0.h5", "x" * 300 + ".h5", "file/x.h5", "loop"])
def test_a_path_that_cannot_be_opened_is_a_store_error(tmp_path: Path, name: str) -> None:
    """NUL in the name, a name too long, a file taken for a folder, a link to itself."""
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError):
        Store(tmp_path / name)


# Hostile structure


def replace_values(**options: Any) -> Callable[[h5py.File], None]:
    """Return an edit that replaces /values by a dataset made with the given options."""
    def edit(file: h5py.File) -> None:
        del file["values"]
        file.create_dataset("values", **options)
    return edit


def point_values(link: Any) -> Callable[[h5py.File], None]:
    """Return an edit that replaces /values by a link."""
    def edit(file: h5py.File) -> None:
        del file["values"]
        file["values"] = link
    return edit


def external_group(file: h5py.File) -> None:
    del file["metadata"]
    file["metadata"] = h5py.ExternalLink("other.h5", "/metadata")


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((10,), "u1")
    layout[:] = h5py.VirtualSource("other.h5", "values", (10,), "u1")
    del file["values"]
    file.create_virtual_dataset("values", layout)


def second_name(file: h5py.File) -> None:
    del file["metadata/label"]
    file["metadata/label"] = file["metadata/mass"]


def loop_of_groups(file: h5py.File) -> None:
    file["metadata/again"] = file["metadata"]


def text_group(group: str) -> Callable[[h5py.File], None]:
    """Return an edit that puts a group where an array belongs."""
    def edit(file: h5py.File) -> None:
        file[f"{group}/x/values"] = np.ones(10, "u1")
    return edit


def odd_numbers(file: h5py.File) -> None:
    kind = h5py.h5t.STD_U8LE.copy()
    kind.set_precision(4)
    del file["values"]
    h5py.h5d.create(file.id, b"values", kind, h5py.h5s.create_simple((10,)))


def compact(file: h5py.File) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    del file["values"]
    h5py.h5d.create(file.id, b"values", h5py.h5t.STD_U8LE, h5py.h5s.create_simple((10,)), dcpl=properties)


def unallocated(file: h5py.File) -> None:
    del file["values"]
    h5py.h5d.create(file.id, b"values", h5py.h5t.STD_U8LE, h5py.h5s.create_simple((10,)))


STRUCTURES: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "soft link": (point_values(h5py.SoftLink("/header")), "/values is a soft or external link"),
    "external link": (point_values(h5py.ExternalLink("other.h5", "/values")), "/values is a soft or external link"),
    "external group": (external_group, "/metadata is a soft or external link"),
    "external storage": (replace_values(shape=(10,), dtype="u1", external=[("other.bin", 0, 10)]), "external storage"),
    "virtual": (virtual, "in chunks, virtual"),
    "chunked": (replace_values(data=np.ones(10, "u1"), chunks=(5,)), "in chunks"),
    "chunk bomb": (replace_values(shape=(2**60,), dtype="u1", chunks=(1024,)), "in chunks"),
    "gzip": (replace_values(data=np.ones(10, "u1"), compression="gzip"), "in chunks, virtual, compressed"),
    "compact": (compact, "inside its own description"),
    "unallocated": (unallocated, "an array of shape .* with only 0 bytes"),
    "vlen": (replace_values(shape=(10,), dtype=h5py.vlen_dtype("u1")), "something else than numbers"),
    "text": (replace_values(shape=(10,), dtype=h5py.string_dtype()), "something else than numbers"),
    "compound": (replace_values(data=np.zeros(10, [("a", "u1")])), "something else than numbers"),
    "reference": (replace_values(shape=(10,), dtype=h5py.ref_dtype), "something else than numbers"),
    "enum": (replace_values(data=np.zeros(10, bool)), "something else than numbers"),
    "complex": (replace_values(data=np.zeros(10, complex)), "something else than numbers|complex"),
    "opaque": (replace_values(data=np.zeros(10, "V4")), "something else than numbers"),
    "half": (replace_values(data=np.zeros(10, "<f2")), "an array of <f2"),
    "big-endian": (replace_values(data=np.ones(10, ">u2")), "an array of >u2"),
    "odd precision": (odd_numbers, "an array of .*layout of their own"),
    "scalar": (replace_values(data=np.uint8(1)), "not a simple array"),
    "null": (replace_values(data=h5py.Empty("u1")), "not a simple array"),
    "two names": (second_name, "overlaps /metadata/"),
    "unknown array": (lambda file: file.create_dataset("other", data=[1]), "/other is an unknown object"),
    "unknown group": (lambda file: file.create_group("other"), "/other is an unknown object"),
    "unknown group below": (lambda file: file.create_group("metadata/note/x"), "/metadata/note/x is an unknown object"),
    "type": (lambda file: file.__setitem__("metadata/t", np.dtype("u1")), "neither the group nor the array"),
    "loop": (loop_of_groups, "/metadata/again/.* is an unknown object"),
    "text track": (text_group("tracks"), "neither the group nor the array"),
    "text split": (text_group("splits"), "neither the group nor the array"),
    "group for an array": (lambda file: (file.pop("values"), file.create_group("values")), "neither the group nor"),
    "array for a group": (lambda file: file.create_dataset("tracks", data=[1]), "neither the group nor the array"),
    "bytes in a name": (lambda file: h5py.h5g.create(file["metadata"].id, b"\xff"), "damaged"),
    "no values": (lambda file: file.pop("values"), "belongs to no array|values"),
    "no checksums": (lambda file: file.pop("checksums"), "/checksums/.* is missing"),
    "no table": (lambda file: file.pop("checksums/values"), "/checksums/values is missing"),
    "spare table": (lambda file: file.__setitem__("checksums/tracks/x", np.ones(1, "<u4")), "belongs to no array"),
    "wrong table": (lambda file: (file.pop("checksums/values"),
                                  file.__setitem__("checksums/values", np.ones(2, "<u4"))), "wrong shape"),
    "half a text": (lambda file: (file.pop("metadata/note/offsets"), file.pop("checksums/metadata/note/offsets")),
                    "/metadata/note is no text column"),
    "other half": (lambda file: (file.pop("metadata/note/values"), file.pop("checksums/metadata/note/values")),
                   "/metadata/note/values is missing"),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_hostile_structure_is_refused(copy: Path, small: Path, name: str) -> None:
    """The message says what is found and where."""
    shutil.copy(small, copy.with_name("other.h5"))
    edit, finding = STRUCTURES[name]
    with h5py.File(copy, "r+") as file:
        edit(file)
    with pytest.raises(StoreError, match=finding) as caught:
        Store(copy)
    assert str(copy) in str(caught.value)


def arrays_edit(name: str, array: np.ndarray | None) -> Callable[[dict[str, np.ndarray], dict[str, Any]], None]:
    """Return a change of one array, for ``rebuild``."""
    def change(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        if array is None:
            del arrays[name]
        else:
            arrays[name] = array
    return change


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
    monkeypatch.setattr("seqpipe.store.MAX_HEADER", 100)
    assert "no text of up to 100 bytes" in refused(copy)


# Good stores


def test_a_store_says_what_went_in(small: Path) -> None:
    """Values, metadata in the order of the input, splits, classes, header."""
    store = Store(small)
    assert len(store) == 4 and store.kind == "tokens" and store.classes == ["x", "y"] and store.channels == []
    assert store.alphabet is not None
    assert [store.alphabet.decode(store.sequence(i)) for i in range(4)] == ["ACGT", "AC", "GGT", "T"]
    assert list(store.metadata) == ["id", "label", "part", "mass", "note"]
    assert [store.metadata["note"][i] for i in range(4)] == ["first", "é ☃", "", "last"]
    assert store.metadata["mass"].tolist() == [1.5, 2, 3, 4.25]
    assert {name: rows.tolist() for name, rows in store.splits.items()} == {"train": [0, 1], "test": [2, 3]}
    with pytest.raises(StoreError, match=r"no split 'valid'; this store has 'train', 'test'"):
        store.split_rows("valid")


@settings(max_examples=100, deadline=None)
@given(st.slices(4), st.lists(st.integers(0, 3), max_size=6))
def test_lengths_are_those_of_the_sequences(small: Path, rows: slice, index: list[int]) -> None:
    """By any slice, and by any rows."""
    store = Store(small)
    every = [4, 2, 3, 1]
    assert store.lengths(rows).tolist() == every[rows]
    assert store.lengths(np.array(index, "<u8")).tolist() == [every[i] for i in index]
    assert store.lengths(rows).dtype == np.int64


def test_all_arrays_are_read_only(small: Path, vowels_store: Path) -> None:
    """None of them can be written, nor made writable."""
    for store in (Store(small), Store(vowels_store)):
        for array in [*store.arrays.values(), store.sequence(0)]:
            assert not array.flags.writeable
            with pytest.raises(ValueError):
                array.setflags(write=True)


def test_a_text_column_ends_where_it_ends(small: Path) -> None:
    """It can be listed, and no index outside of it is taken."""
    column = Store(small).metadata["id"]
    assert isinstance(column, TextColumn) and list(column) == ["a", "b", "c", "d"]
    for index in (-1, 4):
        with pytest.raises(IndexError):
            column[index]


def test_a_row_outside_is_refused(small: Path) -> None:
    """Negative rows too: they would give a sequence, and the wrong one."""
    for row in (-2, -1, 4, 10**20):
        with pytest.raises(StoreError, match=r"expected 0 <= row < 4"):
            Store(small).sequence(row)


def test_a_store_pickles_to_its_path(small: Path) -> None:
    """A few hundred bytes, and it comes back the same."""
    store = Store(small)
    data = pickle.dumps(store)
    assert len(data) < len(str(small)) + 200
    again = pickle.loads(data)
    assert again.header == store.header and np.array_equal(again.values, store.values)


def test_a_pickled_store_is_not_taken_for_the_one_that_replaced_it(tmp_path: Path) -> None:
    """A worker that opens another store than its parent would read other sequences in silence."""
    raw, out = tmp_path / "a.fasta", tmp_path / "a.h5"
    raw.write_text(">a\nACGT\n")
    preprocess(PreprocessOptions(raw=(raw,), out=out))
    store = Store(out)
    data = pickle.dumps(store)
    preprocess(PreprocessOptions(raw=(raw,), out=out, overwrite=True))
    pickle.loads(data)
    raw.write_text(">a\nACGG\n")
    preprocess(PreprocessOptions(raw=(raw,), out=out, overwrite=True))
    assert store.sequence(0).tolist() == [1, 2, 3, 4]  # the map keeps the old file
    with pytest.raises(StoreError, match="another store has taken this name"):
        pickle.loads(data)


def test_no_file_stays_open(small: Path) -> None:
    """Neither after an open that ends well nor after one that does not: only the map of an open store."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("open files are counted in /proc")
    before = len(os.listdir("/proc/self/fd"))
    stores = [Store(small) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) <= before + len(stores)
    stores.clear()
    for _ in range(3):
        with pytest.raises(StoreError):
            Store(small.parent / "a.csv")
    assert len(os.listdir("/proc/self/fd")) == before


def test_opening_takes_no_memory_for_sequences(tmp_path: Path) -> None:
    """Ten million sequences open in less than 2 MiB, by Python's count and by the system's."""
    count = 10_000_000
    path = write_plain(tmp_path / "many.h5", np.ones(count, "u1"), np.arange(count + 1, dtype="<u8"))

    def resident() -> int:
        status = Path("/proc/self/statm")
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0

    Store(path)  # what the first open imports is not its memory
    before = resident()
    tracemalloc.start()
    store = Store(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(store) == count and store.sequence(count - 1).tolist() == [1]
    assert peak < 2 << 20 and resident() - before < 2 << 20
