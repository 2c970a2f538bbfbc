"""Reading a good store: what went in comes out, read-only, small when pickled, and without open files."""

from __future__ import annotations

import gc
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.errors import StoreError
from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions
from seqpipe.columns import TextColumn
from seqpipe.store import Store
from tests.test_writer import write_plain


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
    both = r"it was \d+ bytes with checksums \w{8}, it is \d+ bytes with checksums \w{8};"
    with pytest.raises(StoreError, match=both):
        pickle.loads(data)


def test_no_file_stays_open(small: Path) -> None:
    """Neither after an open that ends well nor after one that does not: only the map of an open store."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("open files are counted in /proc")
    gc.collect()  # what other tests left
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
