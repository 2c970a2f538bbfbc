"""Writing a store: what the file holds, that it never depends on anything but its content, and
that the old file or the new one is there whatever happens on the way."""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe import writer
from seqpipe.errors import OptionError, SeqpipeError
from seqpipe.ingest import preprocess
from seqpipe.intake import Intake
from seqpipe.layout import column_name, dataset_name, is_array
from seqpipe.options import PreprocessOptions
from seqpipe.spool import BUFFER, Spools
from seqpipe.store import Store
from seqpipe.summary import summarise_lengths
from seqpipe.writer import Content, write_store
from tests.conftest import DATA

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, limited and killed here")


def minimal_header(lengths: np.ndarray) -> dict[str, Any]:
    """Return the header of a store of DNA without columns, labels or splits."""
    return {
        "kind": "tokens",
        "encoding": {"alphabet": "dna", "symbols": "ACGTN", "num_tokens": 6, "pad_id": 0},
        "label_type": "none",
        "classes": [],
        "channels": [],
        "columns": [],
        "splits": {"all": summarise_lengths(lengths, None, 0)},
        "input": {"format": "fasta", "encoding": "utf-8", "id_column": None, "sequence_column": None,
                  "label_column": None},
        "provenance": {"sources": [], "options": {}},
    }


def write_plain(path: Path, values: np.ndarray, offsets: np.ndarray) -> Path:
    """Write a store without metadata."""
    contents = {"values": Content.of(values), "offsets": Content.of(offsets)}
    write_store(path, contents, minimal_header(np.diff(offsets).astype(np.int64)), folder=path.parent)
    return path


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Read every dataset of an HDF5 file with h5py alone."""
    arrays: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]})  # type: ignore[func-returns-value]
                        if isinstance(item, h5py.Dataset) else None)
    return arrays


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked child; return its exit status, 0 where no assertion failed."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def limit_file_size(num_bytes: int) -> None:
    """Let no file of this process grow past ``num_bytes``: to a writer, a full disk."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


# What the file holds


def test_h5py_alone_reads_the_tokens_of_the_fasta(amp_store: Path) -> None:
    """values and offsets, read by h5py and the header's symbols, give the peptides of the FASTA file."""
    arrays = arrays_of(amp_store)
    symbols = np.array(["?", *Store(amp_store).header["encoding"]["symbols"]])
    text = "".join(symbols[arrays["values"]])
    offsets = arrays["offsets"].tolist()
    ids = arrays["metadata/id/values"].tobytes().decode()
    ends = arrays["metadata/id/offsets"].tolist()
    records = (DATA / "amp" / "amp.fasta").read_text().split(">")[1:]
    assert len(records) == len(offsets) - 1 == len(ends) - 1
    for i, record in enumerate(records):
        header, *lines = record.splitlines()
        assert text[offsets[i] : offsets[i + 1]] == "".join(lines)
        assert ids[ends[i] : ends[i + 1]] == header.split()[0]


def test_h5py_alone_reads_the_features_of_the_ts_files(vowels_store: Path) -> None:
    """values and offsets, read by h5py, give the numbers of the .ts files as float32."""
    arrays = arrays_of(vowels_store)
    row = 0
    for path in sorted((DATA / "vowels").glob("*.ts")):
        lines = path.read_text().splitlines()
        for line in lines[lines.index("@data") + 1 :]:
            channels = [list(map(float, part.split(","))) for part in line.split(":")[:-1]]
            start, end = arrays["offsets"][row : row + 2].tolist()
            assert np.array_equal(arrays["values"][start:end], np.array(channels, np.float32).T)
            row += 1
    assert row == len(arrays["offsets"]) - 1


@pytest.mark.parametrize("name", ["amp_store", "vowels_store"])
def test_every_dataset_is_plain_aligned_and_checked(name: str, request: pytest.FixtureRequest) -> None:
    """Superblock of v110; all arrays contiguous, unfiltered, little-endian, 64-byte aligned; CRC-32 per 64 KiB."""
    path = request.getfixturevalue(name)
    assert path.read_bytes()[8] == 3  # version of the superblock
    with h5py.File(path) as file:
        assert dict(file.attrs) == {"format": b"seqpipe", "format_version": 1, "complete": 1}
        assert (file.attrs["format_version"].dtype, file.attrs["complete"].dtype) == ("<u4", "u1")
        for name, array in arrays_of(path).items():
            dataset = file[name]
            assert is_array(name)
            properties = dataset.id.get_create_plist()
            assert properties.get_layout() == h5py.h5d.CONTIGUOUS and properties.get_nfilters() == 0
            assert dataset.dtype.str[0] in "<|" and dataset.dtype.kind in "iuf"
            assert dataset.id.get_offset() is None or dataset.id.get_offset() % 64 == 0
            if not name.startswith("checksums/"):
                data = array.tobytes()
                expected = [zlib.crc32(data[i : i + 65536]) for i in range(0, len(data), 65536)]
                assert file[f"checksums/{name}"][()].tolist() == expected


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the time, nor the working folder, nor the output's name goes into the file."""
    columns = [f"column{i}" for i in range(40)]  # enough for HDF5 to index the group
    raw = tmp_path / "raw" / "a.csv"
    (tmp_path / "other").mkdir()
    raw.parent.mkdir()
    raw.write_text(f"id,sequence,{','.join(columns)}\na,ACGT,{','.join(columns)}\nb,GG,{','.join(columns)}\n")
    first, second = tmp_path / "first.h5", tmp_path / "other" / "2.h5"
    preprocess(PreprocessOptions(raw=(raw,), out=first))
    time.sleep(1.1)
    monkeypatch.chdir(tmp_path / "other")
    preprocess(PreprocessOptions(raw=(Path("../raw/a.csv"),), out=Path("2.h5")))
    assert first.read_bytes() == second.read_bytes()


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=20))
def test_a_column_name_survives_as_a_link_name(column: str) -> None:
    """Any text without half characters comes back, and its link name is one path component."""
    name = dataset_name(column)
    assert column_name(name) == column
    assert name not in ("", ".", "..") and not set(name) & {"/", "\0"}


@pytest.mark.parametrize("column", ["a/b", ".", "..", "a%2Fb", "%", "nul\0nul", "é ☃", "x" * 1000])
def test_a_column_of_any_name_can_be_written_and_read(tmp_path: Path, column: str) -> None:
    """Names that HDF5 gives a meaning to are escaped."""
    header = minimal_header(np.array([1, 2])) | {"columns": [column]}
    contents = {"values": Content.of(np.ones(3, "u1")), "offsets": Content.of(np.array([0, 1, 3], "<u8")),
                f"metadata/{dataset_name(column)}": Content.of(np.array([7, 8], "<i8"))}
    write_store(tmp_path / "a.h5", contents, header, folder=tmp_path)
    assert Store(tmp_path / "a.h5").metadata[column].tolist() == [7, 8]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 200_000), max_size=6))
def test_checksums_do_not_depend_on_how_the_data_came(tmp_path_factory: pytest.TempPathFactory,
                                                      sizes: list[int]) -> None:
    """Blocks of any sizes, empty ones among them, give the CRC-32 of each 64 KiB of the whole."""
    path = tmp_path_factory.mktemp("w") / "a.h5"
    sizes = [*sizes, 1]
    values = np.random.default_rng(0).integers(1, 6, sum(sizes), np.uint8)
    parts = np.split(values, np.cumsum(sizes)[:-1])
    offsets = np.array([0, len(values)], "<u8")
    contents = {"values": Content(values.shape, values.dtype, parts), "offsets": Content.of(offsets)}
    write_store(path, contents, minimal_header(np.array([len(values)])), folder=path.parent)
    with h5py.File(path) as file:
        assert np.array_equal(file["values"][()], values)
        expected = [zlib.crc32(values[i : i + 65536].tobytes()) for i in range(0, len(values), 65536)]
        assert file["checksums/values"][()].tolist() == expected


def test_a_table_of_more_columns_than_open_files(make_store: Callable[..., Path]) -> None:
    """700 text columns import under a limit of 256 open files."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    names = [f"c{i}" for i in range(700)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        out = make_store("wide.csv", f"id,sequence,{','.join(names)}\na,ACGT,{','.join(names)}\n")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    metadata = Store(out).metadata
    assert [metadata[name][0] for name in names] == names


# What is there when the writing does not end well


@needs_fork
def test_a_full_disk_leaves_the_old_store(tmp_path: Path) -> None:
    """At every size at which the disk may be full: a message with path and bytes, and nothing changed."""
    rng = np.random.default_rng(1)
    values = rng.integers(1, 6, 300_000, np.uint8)
    offsets = np.array([0, 100, 300_000], "<u8")
    out = write_plain(tmp_path / "out.h5", values[:100], np.array([0, 40, 100], "<u8"))
    old = out.read_bytes()
    size = write_plain(tmp_path / "whole.h5", values, offsets).stat().st_size
    listing = sorted(tmp_path.iterdir())

    def work() -> None:
        for limit in [0, 47, 1000, 5000, *rng.integers(0, size, 15).tolist(), size - 1]:
            limit_file_size(limit)
            with pytest.raises(SeqpipeError, match=r"out\.h5: could not write the store of about \d+ bytes"):
                write_plain(out, values, offsets)
            assert out.read_bytes() == old and sorted(tmp_path.iterdir()) == listing

    assert in_child(work) == 0


def test_a_disk_with_too_little_room_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free space is looked at first."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(SeqpipeError, match="only 1000 bytes are free"):
        write_plain(tmp_path / "a.h5", np.ones(5000, "u1"), np.array([0, 5000], "<u8"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_while_writing_leaves_the_old_store(tmp_path: Path, error: type[BaseException]) -> None:
    """Whatever ends the writing, the old store stays and the unfinished file goes."""
    out = write_plain(tmp_path / "out.h5", np.ones(3, "u1"), np.array([0, 3], "<u8"))
    old = out.read_bytes()

    def blocks() -> Iterator[np.ndarray]:
        yield np.ones(10, "u1")
        raise error

    contents = {"values": Content((20,), np.dtype("u1"), blocks()), "offsets": Content.of(np.array([0, 20], "<u8"))}
    with pytest.raises(error):
        write_store(out, contents, minimal_header(np.array([20])), folder=tmp_path)
    assert out.read_bytes() == old and list(tmp_path.iterdir()) == [out]


def test_an_interrupt_of_an_import_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No store and no temporary folder, even when the interrupt comes last."""
    raw = tmp_path / "a.fasta"
    raw.write_text(">a\nACGT\n")

    def interrupt(temporary: Path, path: Path, *, overwrite: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("seqpipe.writer.move_into_place", interrupt)
    with pytest.raises(KeyboardInterrupt):
        preprocess(PreprocessOptions(raw=(raw,), out=tmp_path / "a.h5"))
    assert list(tmp_path.iterdir()) == [raw]


def test_a_folder_that_is_gone_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """The folder of the output disappears while the import runs."""
    with pytest.raises(SeqpipeError, match=r"a\.h5: could not write the store .* choose another --out"):
        write_plain(tmp_path / "gone" / "a.h5", np.ones(3, "u1"), np.array([0, 3], "<u8"))


def test_a_file_that_appears_during_an_import_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --overwrite a name that was free at the start is looked at again at the end."""
    raw, out = tmp_path / "a.fasta", tmp_path / "a.h5"
    raw.write_text(">a\nACGT\n")
    lay_out = writer._lay_out

    def meanwhile(*arguments: Any) -> dict[str, int]:
        out.write_text("precious")
        return lay_out(*arguments)

    monkeypatch.setattr(writer, "_lay_out", meanwhile)
    with pytest.raises(OptionError, match=r"a\.h5: the file appeared .* --overwrite"):
        preprocess(PreprocessOptions(raw=(raw,), out=out))
    assert out.read_text() == "precious" and sorted(tmp_path.iterdir()) == [raw, out]


def test_a_raw_file_that_changes_during_an_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest in the provenance is that of what was read, or there is no store."""
    raw, out = tmp_path / "a.fasta", tmp_path / "a.h5"
    raw.write_text(">a\nACGT\n")
    close = Intake.close

    def meanwhile(intake: Intake) -> Any:
        raw.write_text(">a\nACGT\n>b\nGG\n")
        return close(intake)

    monkeypatch.setattr(Intake, "close", meanwhile)
    with pytest.raises(SeqpipeError, match=r"a\.fasta: changed while it was read"):
        preprocess(PreprocessOptions(raw=(raw,), out=out))
    assert list(tmp_path.iterdir()) == [raw]


# Spools


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=8), max_size=20), st.sampled_from([0, 1, BUFFER // 3, BUFFER]))
def test_a_spool_holds_what_it_took(tmp_path_factory: pytest.TempPathFactory, texts: list[str], padding: int) -> None:
    """All rows, in order, however large they are: one by one and many at once; without any there is no file."""
    folder = tmp_path_factory.mktemp("s")
    rows = [(text + "x" * padding).encode() for text in texts]
    spools = Spools(folder)
    spool = spools.new_ragged("text")
    for row in rows:
        spool.append(row)
    spool.extend(b"".join(rows), np.array([len(row) for row in rows], "<u8"))
    told = spools.close()
    for name, dtype, expected in [("text", "u1", b"".join(rows * 2)),
                                  ("text.lengths", "<u8", np.array([len(row) for row in rows * 2], "<u8").tobytes())]:
        assert told[name] == {"dtype": np.dtype(dtype).str, "items": len(expected) // np.dtype(dtype).itemsize}
        assert ((folder / name).read_bytes() if (folder / name).exists() else b"") == expected
        assert (folder / name).exists() == bool(expected)
