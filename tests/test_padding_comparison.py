"""compare_padding measures every strategy, and proves that they agree."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch

from scripts.compare_padding import main
from seqpipe.batch import Batch
from seqpipe.collate import PADDINGS, fill

COLUMNS = ["batches", "padding", "pad_us", "batch_us", "sequences_per_s", "padding_percent"]
QUICK = ["--rounds", "2", "--max-batches", "4"]


def compare(path, *more):
    return main(["--data", str(path), *QUICK, *map(str, more)])


def test_table_and_csv_hold_each_strategy_on_each_kind_of_batches(amp_store, tmp_path, capsys):
    """Three strategies x three kinds; times add up, sorted pads far less, a budget least; the proof counts batches."""
    assert compare(amp_store, "--out", tmp_path / "new" / "folder", "--max-batches", 20) == 0

    output = capsys.readouterr().out
    with open(tmp_path / "new" / "folder" / "comparison.csv", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == COLUMNS
    assert [(row["batches"], row["padding"]) for row in table] == [
        (batches, padding) for batches in ("random", "sorted", "budget") for padding in PADDINGS]
    assert output.splitlines()[0].split() == "batches padding pad us batch us sequences/s padding %".split()
    assert "proof: in 60 batches every strategy gave the same tensor" in output
    assert output.splitlines()[-1] == f"table: {tmp_path / 'new' / 'folder' / 'comparison.csv'}"
    for row in table:
        pad_us, batch_us, rate, share = (float(row[name]) for name in COLUMNS[2:])
        assert pad_us > 0 and batch_us > 0
        assert rate == pytest.approx(64e6 / batch_us, rel=0.5 if row["batches"] == "budget" else 0.1)
        least, most = {"random": (50, 80), "sorted": (0, 15), "budget": (0, 8)}[row["batches"]]
        assert least < share < most


def test_without_out_nothing_is_written(amp_store, tmp_path, monkeypatch, capsys):
    """Only the table is printed."""
    monkeypatch.chdir(tmp_path)

    assert compare(amp_store, "--split", "test") == 0
    assert "table:" not in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_features_are_compared_too(vowels_store, capsys):
    """(T, 12) float32."""
    assert compare(vowels_store, "--batch-size", 16) == 0
    assert capsys.readouterr().out.count("pad_sequence") == 3


def test_a_store_of_one_sequence_is_enough(make_store, capsys):
    """One batch of one row without padding."""
    assert compare(make_store("one.fasta", ">a\nACGT\n")) == 0

    output = capsys.readouterr().out
    assert "proof: in 3 batches" in output and output.splitlines()[1].split()[-1] == "0.0"


def shifted(samples, **options):
    """Move every row by one step."""
    batch = fill(samples, **options)
    return Batch(batch.sequences.roll(1, 1), batch.lengths, batch.index)


def widened(samples, **options):
    batch = fill(samples, **options)
    return Batch(batch.sequences.to(torch.int64), batch.lengths, batch.index)


def reinterpreted(samples, **options):
    """The same bytes as another type."""
    batch = fill(samples, **options)
    return Batch(batch.sequences.view(torch.int8), batch.lengths, batch.index)


def cut(samples, **options):
    """Lose the last element of each sequence."""
    batch = fill(samples, **options)
    return Batch(batch.sequences, batch.lengths - 1, batch.index)


def dirty(samples, **options):
    """Leave something in the padding."""
    batch = fill(samples, **options)
    return Batch(batch.sequences.masked_fill(~batch.mask, 3), batch.lengths, batch.index)


@pytest.mark.parametrize("broken", [shifted, widened, reinterpreted, cut, dirty])
@pytest.mark.parametrize("name", PADDINGS)
def test_the_proof_fails_when_a_strategy_is_wrong(amp_store, tmp_path, capsys, monkeypatch, broken, name):
    """Whichever of the three it is; one message, exit code 1, no table."""
    monkeypatch.setitem(PADDINGS, name, broken)

    assert compare(amp_store, "--out", tmp_path) == 1

    errors = capsys.readouterr().err
    assert "changed the sequences of the rows" in errors and "please report it" in errors
    assert not (tmp_path / "comparison.csv").exists()


def test_a_file_as_folder_is_refused_before_measuring(amp_store, tmp_path, capsys, monkeypatch):
    """For the name itself and for a part of its path."""
    (tmp_path / "taken").write_text("x")
    monkeypatch.setattr("seqpipe.padding_comparison._prove", lambda *_: pytest.fail("measured first"))
    for out in (tmp_path / "taken", tmp_path / "taken" / "below"):
        assert compare(amp_store, "--out", out) == 1
        assert capsys.readouterr().err == (
            f"seqpipe compare-padding: --out {out}: expected a folder, found a file\n")
    assert (tmp_path / "taken").read_text() == "x"


@pytest.mark.parametrize("options, message", [
    (["--split", "dev"], "no split 'dev'"),
    (["--batch-size", "0"], "--batch-size 0: expected 1 or more"),
    (["--rounds", "0"], "--rounds 0: expected 1 or more"),
])
def test_wrong_options_are_one_message(amp_store, capsys, options, message):
    """Exit code 1."""
    assert compare(amp_store, *options) == 1
    assert message in capsys.readouterr().err


def test_a_missing_store_is_one_message_and_makes_no_folder(tmp_path, capsys):
    """The store is opened first."""
    assert compare(tmp_path / "none.h5", "--out", tmp_path / "out") == 1
    assert "none.h5" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_empty_split_is_nothing_to_measure(amp_store, capsys, monkeypatch):
    """Rather than a division by zero."""
    from seqpipe.pieces import SplitRows
    from seqpipe.reading import StoreReader

    monkeypatch.setattr(StoreReader, "split", lambda self, name: SplitRows(np.empty(0, np.uint64), None))
    assert compare(amp_store, "--split", "train") == 1
    assert "no sequences to measure on" in capsys.readouterr().err
