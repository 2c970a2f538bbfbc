"""Compressed stores: the same content as plain ones by every way, readable by h5py alone, refused where damaged."""

from __future__ import annotations

import json
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe import get_dataloader
from seqpipe.chunks import Chunks
from seqpipe.description import describe
from seqpipe.ingest import preprocess
from seqpipe.layout import CHUNK, Extent
from seqpipe.merging import merge
from seqpipe.options import DescribeOptions, MergeOptions, PreprocessOptions, VerifyOptions
from seqpipe.sequences import SequenceDataset
from seqpipe.store import Store
from seqpipe.verification import verify
from seqpipe.writer import Content, write_store
from tests.conftest import DATA
from tests.test_writer import arrays_of, minimal_header


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, amp_store: Path, vowels_store: Path) -> list[tuple[Path, Path]]:
    """Stores of tokens and of features, each plain and compressed."""
    folder = tmp_path_factory.mktemp("gzip")
    amp, vowels = folder / "amp.h5", folder / "vowels.h5"
    preprocess(PreprocessOptions(raw=(DATA / "amp" / "amp.fasta",), labels=DATA / "amp" / "labels.tsv",
                                 split="column:split", out=amp, compression="gzip"))
    preprocess(PreprocessOptions(raw=tuple(sorted((DATA / "vowels").glob("*.ts"))), split="file", out=vowels,
                                 compression="gzip"))
    return [(amp_store, amp), (vowels_store, vowels)]


def write_flat(path: Path, values: np.ndarray, *, compression: str) -> Path:
    """Write a store of tokens in sequences of up to 1,000, with a track that counts them."""
    offsets = np.array([*range(0, len(values), 1000), len(values)], "<u8")
    contents = {"values": Content.of(values), "offsets": Content.of(offsets),
                "tracks/place": Content.of(np.arange(len(values), dtype="<u4"))}
    write_store(path, contents, minimal_header(np.diff(offsets).astype(np.int64)), folder=path.parent,
                compression=compression)
    return path


def test_a_compressed_store_holds_what_the_plain_one_holds(pairs: list[tuple[Path, Path]]) -> None:
    """Every sample, header and checksum; the file is smaller, and verify finds nothing off."""
    for plain, packed in pairs:
        one, other = SequenceDataset(plain), SequenceDataset(packed)
        assert isinstance(other.store.values, Chunks) and packed.stat().st_size < plain.stat().st_size
        assert one.store.header == other.store.header
        assert np.array_equal(one.store.checksums["values"], other.store.checksums["values"])
        for i in range(len(one)):
            (a, about), (b, same) = one[i], other[i]
            assert a.dtype == b.dtype and np.array_equal(a, b) and about == same and b.flags.writeable
        verify(VerifyOptions(store=packed))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_compressed_store_are_those_of_the_plain_one(pairs: list[tuple[Path, Path]], workers: int) -> None:
    """Shuffled, with and without worker processes, bit for bit."""
    for plain, packed in pairs:
        one, other = (get_dataloader(path, batch_size=64, shuffle=True, subset=500, num_workers=workers)
                      for path in (plain, packed))
        for a, b in zip(one, other, strict=True):
            assert np.array_equal(a.sequences.numpy(), b.sequences.numpy()) and a.ids == b.ids


def test_h5py_alone_reads_a_compressed_store(pairs: list[tuple[Path, Path]]) -> None:
    """All arrays, with the filters that every HDF5 library has: gzip, and shuffle for numbers of many bytes."""
    for plain, packed in pairs:
        expected, found = arrays_of(plain), arrays_of(packed)
        assert {name for name in found if "chunks" not in name} == set(expected)
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
        with h5py.File(packed) as file:
            values = file["values"]
            assert values.compression == "gzip" and values.shuffle == (values.dtype.itemsize > 1)
            size = np.prod(values.chunks) * values.dtype.itemsize
            assert CHUNK // 2 < size <= CHUNK and values.chunks[1:] == values.shape[1:]


@pytest.mark.parametrize("kind", [0, 1])
def test_h5dump_lists_a_store(pairs: list[tuple[Path, Path]], kind: int) -> None:
    """The HDF5 library's own tool, plain and compressed, with data."""
    if shutil.which("h5dump") is None:
        pytest.skip("h5dump is not here; Debian has it in hdf5-tools")
    for path in pairs[kind]:
        done = subprocess.run(["h5dump", "-d", "/values", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "(0" in done.stdout, done.stderr


def test_the_same_input_gives_the_same_compressed_bytes(tmp_path: Path) -> None:
    """Wherever and whenever it is made."""
    values = np.random.default_rng(0).integers(1, 6, 100_000, np.uint8)
    (tmp_path / "other").mkdir()
    one, other = (write_flat(tmp_path / name, values, compression="gzip") for name in ("a.h5", "other/b.h5"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<f4", "<f8"])
@pytest.mark.parametrize("tail", [(), (3,), (3000,)])
def test_any_slice_is_that_of_the_plain_array(tmp_path: Path, dtype: str, tail: tuple[int, ...]) -> None:
    """Integers, slices with any step, arrays of integers and masks, of items narrower and wider than a chunk."""
    count = 20_000 if not tail else 7000 if tail == (3,) else 9
    array = np.random.default_rng(1).integers(0, 200, (count, *tail)).astype(dtype)
    header = minimal_header(np.array([count]))
    contents = {"values": Content.of(array), "offsets": Content.of(np.array([0, count], "<u8"))}
    if dtype != "u1" or tail:
        columns = [f"c{i}" for i in range(tail[0])] if tail else ["c"]
        array = array.reshape(count, -1)
        contents["values"] = Content.of(array)
        moments = {"mean": [0.0] * len(columns), "deviation": [1.0] * len(columns)}
        header |= {"kind": "features", "channels": columns, "moments": moments,
                   "encoding": {"dtype": np.dtype(dtype).str, "num_channels": len(columns)}}
    write_store(tmp_path / "a.h5", contents, header, folder=tmp_path, compression="gzip")
    chunks = Store(tmp_path / "a.h5").values
    assert isinstance(chunks, Chunks) and chunks.shape == array.shape and chunks.dtype == array.dtype

    @settings(max_examples=30, deadline=None)
    @given(st.slices(count), st.integers(-count, count - 1))
    def check(part: slice, i: int) -> None:
        assert np.array_equal(chunks[part], array[part]) if part.step in (1, None) or tail != (3,) else True
        assert np.array_equal(chunks[i], array[i])

    check()
    index = np.random.default_rng(2).integers(0, count, 50)
    assert np.array_equal(chunks[index], array[index])
    mask = np.zeros(count, bool)
    mask[index] = True
    assert np.array_equal(chunks[mask], array[mask]) and np.array_equal(np.asarray(chunks), array)
    for outside in (-count - 1, count):
        with pytest.raises(IndexError, match="out of range"):
            chunks[outside]


def test_each_chunk_of_a_batch_is_inflated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However its pieces are mixed; and a process keeps no more than a few."""
    monkeypatch.setattr("seqpipe.chunks.CACHE", 3 * CHUNK)
    values = np.random.default_rng(0).integers(1, 6, 40 * CHUNK, np.uint8)
    dataset = SequenceDataset(write_flat(tmp_path / "a.h5", values, compression="gzip"), columns=[])
    chunks: Any = dataset.store.values
    rows = np.random.default_rng(1).permutation(len(dataset)).tolist()
    next(iter(get_dataloader(dataset, batch_size=len(dataset), shuffle=True)))
    assert chunks.num_inflated == chunks.nbytes and len(rows) == len(dataset)
    assert chunks.chunk.cache_info().currsize == 3


@pytest.mark.parametrize("inflater", ["zlib", "isal.isal_zlib"])
def test_a_damaged_chunk_is_refused_or_gives_what_was_packed(inflater: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By zlib and by what the extra ``fast`` has instead: any bit may be flipped, any byte missing, bytes too many."""
    monkeypatch.setattr("seqpipe.chunks.zlib", pytest.importorskip(inflater))
    numbers = np.random.default_rng(0).integers(0, 5, 300).astype("<u2")
    packed = zlib.compress(numbers.view("u1").reshape(-1, 2).T.tobytes(), 4)

    def inflated(data: bytes) -> bytes:
        chunks = Chunks(Extent(0, (300,), numbers.dtype, 300), np.array([[0, len(data)]], "<u8"), memoryview(data),
                        lambda finding, low, high: ValueError(finding))
        return chunks[:].tobytes()

    assert inflated(packed) == numbers.tobytes()
    flipped = [bytes([*packed[:i], packed[i] ^ 1 << bit, *packed[i + 1 :]]) for i in range(len(packed))
               for bit in range(8)]
    cut = [packed[:length] for length in range(1, len(packed))]
    more = [zlib.compress(bytes(size), 4) for size in (599, 601, 10**8)]
    refused = 0
    for data in (*flipped, *cut, *more):
        try:
            assert inflated(data) == numbers.tobytes()
        except ValueError as error:
            assert "cannot be inflated" in str(error) or "expected 600 and an end" in str(error)
            refused += 1
    assert refused >= len(cut) + len(more) + len(flipped) - 8  # of the first two bytes, a few bits mean nothing


def test_stores_merge_into_a_compressed_one(tmp_path: Path, pairs: list[tuple[Path, Path]]) -> None:
    """And a compressed one into a plain one: every array is that of an import, bit for bit."""
    for plain, packed in pairs:
        for source, option, expected in ((plain, "gzip", packed), (packed, "none", plain)):
            merge(MergeOptions(stores=(source,), out=tmp_path / "m.h5", overwrite=True,
                               compression=option))  # type: ignore[arg-type]
            found, wanted = arrays_of(tmp_path / "m.h5"), arrays_of(expected)
            assert found.keys() == wanted.keys() and isinstance(Store(tmp_path / "m.h5").values, Chunks) \
                == (option == "gzip")
            for name in wanted:
                assert np.array_equal(found[name], wanted[name]) or "header" in name or name == "chunks/values"


def test_an_array_without_values_has_no_chunks(tmp_path: Path) -> None:
    """There is nothing to compress, and HDF5 could not describe it."""
    path = write_flat(tmp_path / "a.h5", np.empty(0, "u1"), compression="gzip")
    assert Store(path).values.shape == (0,) and isinstance(Store(path).values, np.ndarray)


def test_describe_tells_what_shuffled_reading_costs(tmp_path: Path) -> None:
    """Chunks inflated for each sequence read alone, per byte of it; and what the values take."""
    values = np.random.default_rng(0).integers(1, 6, 2 * CHUNK, np.uint8)
    path = write_flat(tmp_path / "a.h5", values, compression="gzip")
    ends = [*range(0, len(values), 1000), len(values)]
    chunks = sum((b - 1) // CHUNK - a // CHUNK + 1 for a, b in zip(ends[:-1], ends[1:], strict=True))
    told = json.loads(describe(DescribeOptions(store=path, head=0, json=True)))["compression"]
    assert told["inflated_per_byte_shuffled"] == round(chunks * CHUNK / len(values), 2)
    assert 30 < told["stored_percent"] < 45
    assert f"{told['inflated_per_byte_shuffled']:.1f} bytes are inflated for each byte used" in describe(
        DescribeOptions(store=path, head=0))
