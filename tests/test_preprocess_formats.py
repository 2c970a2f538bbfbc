"""The command preprocess on qualities, long tables, HDF5 and what is missing: from the raw file to the batch."""

from __future__ import annotations

import h5py
import numpy as np

from seqpipe.cli import main as seqpipe_main
from seqpipe.dataloader import get_dataloader
from seqpipe.sequences import SequenceDataset
from tests.importing import contents, refused, run
from tests.raw_files import AWKWARD

LONG = "id,t,v1,v2,label\na,0,1.5,2,x\na,1,-1,4,x\nb,7,5,6,y\n"


def test_qualities_reach_the_batch(tmp_path, capsys):
    """--quality keep makes a track of Phred scores; the default drops them, which are then in no store."""
    out = tmp_path / "x.h5"
    assert run(capsys, AWKWARD / "fq_plain.fastq", "--quality", "keep", "--split", "none", "--out", out)[0] == 0
    assert [metadata["quality"].tolist() for _, metadata in contents(out).values()] == [
        [40, 40, 40, 40, 39, 39, 39, 39], [0, 1, 2, 3], [93]]
    (batch,) = get_dataloader(out)
    assert batch.tracks["quality"][2].tolist() == [93] + [0] * 7 and str(batch.tracks["quality"].dtype) == "torch.uint8"
    assert run(capsys, AWKWARD / "fq_plain.fastq", "--overwrite", "--out", out)[0] == 0
    assert SequenceDataset(out).store.tracks == {}
    message = refused(capsys, AWKWARD / "fa_crlf.fasta", "--quality", "keep", "--out", tmp_path / "y.h5")
    assert "fa_crlf.fasta: --quality keep is for fastq, and this file is fasta" in message


def test_long_tables_reach_the_batch(tmp_path, capsys):
    """Values are features under their names, the time a track, and a constant column the label."""
    raw, out = tmp_path / "a.csv", tmp_path / "x.h5"
    raw.write_text(LONG, encoding="ascii")
    argv = [raw, "--time-column", "t", "--value-columns", "v2,v1"]
    code, text, err = run(capsys, *argv, "--split", "none", "--out", out)
    assert code == 0 and "2 classes from 'label'" in text, err
    assert SequenceDataset(out).channels == ["v2", "v1"]
    found = contents(out)
    assert {name: sequence for name, (sequence, _) in found.items()} == {"a": [[2, 1.5], [4, -1]], "b": [[6, 5]]}
    assert [(m["time"].tolist(), m["label"]) for _, m in found.values()] == [([0, 1], "x"), ([7], "y")]
    (batch,) = get_dataloader(out)
    assert batch.sequences.shape == (2, 2, 2) and batch.tracks["time"].tolist() == [[0, 1], [7, 0]]


def test_long_tables_are_refused_where_they_do_not_fit(tmp_path, capsys):
    """Rows of an id that comes back, options that exclude each other, formats that have no columns."""
    raw, out = tmp_path / "a.csv", tmp_path / "x.h5"
    raw.write_text(LONG + "a,2,0,0,x\n", encoding="ascii")
    for policy in ("error", "skip", "rename"):
        message = refused(capsys, raw, "--value-columns", "v1,v2", "--time-column", "t", "--on-duplicate", policy,
                          "--out", out)
        assert f"a.csv:5: record 'a': the rows of this id started at {raw}:2 and were broken off" in message
    assert "put double quotes around" in refused(capsys, raw, "--value-columns", "v1\nv2", "--out", out)
    assert "--value-columns too" in refused(capsys, raw, "--time-column", "t", "--out", out)
    argv = [raw, "--value-columns", "v1", "--sequence-column", "v2"]
    assert "exclude each other" in refused(capsys, *argv, "--out", out)
    message = refused(capsys, AWKWARD / "fa_crlf.fasta", "--value-columns", "v1", "--out", out)
    assert "is for csv, tsv and jsonl" in message
    raw.write_text(LONG.replace(",label", ",time"), encoding="ascii")
    message = refused(capsys, raw, "--value-columns", "v1,v2", "--time-column", "t", "--out", out)
    assert "a.csv:2: record 'a': column 'time' has the name of a track" in message


def test_missing_numbers_are_kept_and_counted(tmp_path, capsys):
    """--on-missing nan keeps NaN beside true zeros; the moments leave it out, and verify allows it there only."""
    raw, out = tmp_path / "a.csv", tmp_path / "x.h5"
    raw.write_text("id,v1,v2\na,1,\na,0,nan\nb,5,7\nb,,inf\n", encoding="ascii")
    argv = [raw, "--value-columns", "v1,v2", "--split", "none", "--out", out]
    assert "a.csv:2: record 'a': column 'v2': missing number ''" in refused(capsys, *argv)
    code, text, err = run(capsys, *argv, "--on-missing", "nan")
    assert code == 0 and "counted  missing or non-finite numbers kept as NaN: 4" in text, err
    nan = float("nan")
    found = [sequence for sequence, _ in contents(out).values()]
    np.testing.assert_array_equal(found, [[[1, nan], [0, nan]], [[5, 7], [nan, nan]]])
    header = SequenceDataset(out).store.header
    assert header["moments"]["mean"] == [2.0, 7.0] and header["moments"]["deviation"][1] == 0
    assert header["encoding"]["missing"] is True
    assert header["provenance"]["counts"] == {"missing or non-finite numbers kept as NaN": 4}


def test_undecodable_bytes_are_replaced_and_counted(tmp_path, capsys):
    """--on-undecodable replace writes U+FFFD for each byte; blank lines are counted too."""
    raw, out = tmp_path / "a.txt", tmp_path / "x.h5"
    raw.write_bytes(b"ab\xffc\n\n\xfe\xfd \xe2\x82\n\xe4\n")
    message = refused(capsys, raw, "--out", out)
    assert "a.txt:1: byte 0xff at column 3 is not utf-8" in message and "--on-undecodable replace" in message
    code, text, err = run(capsys, raw, "--on-undecodable", "replace", "--split", "none", "--out", out)
    assert code == 0 and "counted  undecodable bytes replaced by U+FFFD: 6" in text and "blank lines skipped: 1" in text
    assert [sequence for sequence, _ in contents(out).values()] == ["ab\ufffdc", "\ufffd\ufffd \ufffd\ufffd", "\ufffd"]


def test_hdf5_files_of_other_makers_are_imported(tmp_path, capsys):
    """Padded rows and the columns beside them become a store; a store itself is no raw file."""
    raw, out = tmp_path / "raw.h5", tmp_path / "x.h5"
    with h5py.File(raw, "w") as file:
        file["x"], file["lengths"], file["label"] = [[1, 2, 0], [3, 0, 0]], [2, 1], ["p", "q"]
        file["other"] = [1, 2, 3]
    code, text, err = run(capsys, raw, "--split", "none", "--out", out)
    assert code == 0 and "counted  datasets left out: not one value per sequence: 1" in text, err
    assert contents(out) == {"raw:1": ("1 2", {"label": "p"}), "raw:2": ("3", {"label": "q"})}
    assert "is a store of seqpipe already" in refused(capsys, out, "--out", tmp_path / "y.h5")
    with h5py.File(raw, "a") as file:
        file["x"][1], file["lengths"][1] = 0, 0
    assert "raw.h5: /x[1]: the sequence is empty" in refused(capsys, raw, "--out", tmp_path / "y.h5")


def test_missing_numbers_pass_through_training_and_prediction(tmp_path, capsys):
    """A missing number is the channel's mean to the network: losses and predictions are finite, padding or not."""
    raw, out, table = tmp_path / "a.csv", tmp_path / "x.h5", tmp_path / "p.tsv"
    rows = (f"r{i},{t},{'' if (i + t) % 3 else i % 2},{i % 2 * 3 - t},{'xy'[i % 2]}\n"
            for i in range(40) for t in range(2 + i % 5))
    raw.write_text("id,t,v1,v2,label\n" + "".join(rows), encoding="ascii")
    argv = [raw, "--time-column", "t", "--value-columns", "v1,v2", "--out", out]
    assert run(capsys, *argv, "--on-missing", "nan")[0] == 0
    argv = ["train", "--data", out, "--out", tmp_path / "run", "--epochs", 2, "--hidden-dim", 8, "--device", "cpu"]
    assert seqpipe_main([str(word) for word in argv]) == 0, capsys.readouterr().err
    argv = ["predict", "--checkpoint", tmp_path / "run" / "best.pt", "--input", raw, "--out", table, "--device", "cpu"]
    assert seqpipe_main([str(word) for word in argv]) == 0, capsys.readouterr().err
    lines = [line.split("\t") for line in table.read_text("utf-8").splitlines()]
    assert len(lines) == 41 and all(0 <= float(cell) <= 1 for line in lines[1:] for cell in line[2:])
