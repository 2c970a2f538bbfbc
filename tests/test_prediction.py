"""Prediction: one row a record, in input order, the same whatever the batch."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.predict import main
from seqpipe.errors import SeqpipeError
from seqpipe.options import TrainOptions
from seqpipe.prediction import Predictor
from seqpipe.sequences import SequenceDataset
from seqpipe.training import train
from tests.conftest import DATA

QUICK = {"hidden_dim": 16, "embedding_dim": 16, "device": "cpu"}


def read_rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.fixture(scope="module")
def amp_checkpoint(amp_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that has learned a little."""
    run = tmp_path_factory.mktemp("amp") / "run"
    return train(TrainOptions(data=amp_store, out=run, epochs=2, **QUICK)).run / "best.pt"


@pytest.fixture(scope="module")
def vowels_checkpoint(vowels_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("vowels") / "run"
    return train(TrainOptions(data=vowels_store, out=run, epochs=5, **QUICK)).run / "best.pt"


def test_raw_input_gives_one_row_a_record_in_input_order(amp_checkpoint: Path, tmp_path: Path) -> None:
    """4,620 peptides in, 4,620 rows out; probabilities sum to 1 and the largest is the prediction."""
    out = tmp_path / "p.tsv"
    raw = DATA / "amp" / "amp.fasta"
    assert main(["--checkpoint", str(amp_checkpoint), "--input", str(raw), "--out", str(out)]) == 0
    rows = read_rows(out)
    ids = [line[1:].split()[0] for line in raw.read_text().splitlines() if line.startswith(">")]
    assert [row["id"] for row in rows] == ids and len(ids) == 4620
    assert list(rows[0]) == ["id", "prediction", "p_amp", "p_other"]
    for row in rows:
        assert float(row["p_amp"]) + float(row["p_other"]) == pytest.approx(1, abs=1e-5)
        assert row["prediction"] == ("amp" if float(row["p_amp"]) >= float(row["p_other"]) else "other")


@pytest.mark.parametrize("batch_size", [1, 7, 500])
def test_predictions_equal_those_of_each_sequence_alone(amp_checkpoint: Path, amp_store: Path, tmp_path: Path,
                                                        batch_size: int) -> None:
    """Neither the batch nor the window a record falls into changes its row."""
    out = tmp_path / "p.tsv"
    assert main(["--checkpoint", str(amp_checkpoint), "--data", str(amp_store), "--split", "valid",
                 "--batch-size", str(batch_size), "--out", str(out)]) == 0
    predictor = Predictor(amp_checkpoint, torch.device("cpu"))
    for row, (sequence, metadata) in zip(read_rows(out), SequenceDataset(amp_store, "valid"), strict=True):
        alone = predictor.model(torch.from_numpy(sequence)[None], torch.tensor([len(sequence)])).softmax(1)
        assert row["id"] == metadata["id"]
        assert float(row["p_amp"]) == pytest.approx(alone[0, 0].item(), abs=2e-5)


def test_a_store_with_labels_also_gives_the_metrics(amp_checkpoint: Path, amp_store: Path, tmp_path: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    """The accuracy printed is that of the rows written."""
    out = tmp_path / "p.tsv"
    assert main(["--checkpoint", str(amp_checkpoint), "--data", str(amp_store), "--split", "test",
                 "--out", str(out)]) == 0
    dataset = SequenceDataset(amp_store, "test")
    right = [row["prediction"] == dataset.classes[metadata["label"]]
             for row, (_, metadata) in zip(read_rows(out), dataset, strict=True)]
    assert f"accuracy {np.mean(right):.4f}" in capsys.readouterr().out


def test_features_are_read_as_in_training(vowels_checkpoint: Path, vowels_store: Path, tmp_path: Path) -> None:
    """Raw .ts files and the store made of them give the same rows."""
    raw = [str(path) for path in sorted((DATA / "vowels").glob("*.ts"))]
    tables = []
    for name, source in (("raw.tsv", ["--input", *raw]), ("store.tsv", ["--data", str(vowels_store)])):
        assert main(["--checkpoint", str(vowels_checkpoint), *source, "--out", str(tmp_path / name)]) == 0
        tables.append((tmp_path / name).read_text())
    assert tables[0] == tables[1] and tables[0].count("\n") == 641


def test_case_and_unknown_symbols_are_read_as_in_training(make_store: Callable[..., Path], tmp_path: Path) -> None:
    """Raw input in small letters, with symbols outside the alphabet, gives the rows of the store made of it."""
    text = "".join(f">r{i} {'xy'[i % 2]}\n{'acGTnx'[i % 6] * (i % 5 + 1)}AcgT\n" for i in range(40))
    store = make_store("a.fasta", text, alphabet="dna", case="upper", on_unknown="unk", label_column="description")
    run = train(TrainOptions(data=store, out=tmp_path / "run", epochs=2, **QUICK)).run
    tables = []
    for name, source in (("raw.tsv", ["--input", str(tmp_path / "a.fasta")]), ("store.tsv", ["--data", str(store)])):
        assert main(["--checkpoint", str(run / "best.pt"), *source, "--out", str(tmp_path / name)]) == 0
        tables.append((tmp_path / name).read_text())
    assert tables[0] == tables[1] and len({row["p_x"] for row in read_rows(tmp_path / "raw.tsv")}) > 10


def test_columns_and_format_come_from_the_checkpoint_and_flags_override(
    make_store: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table is read by the columns of the training data; another table names its own."""
    rows = "".join(f"n{i},{'ACGT'[i % 4] * (i % 5 + 1)},{'xy'[i % 2]}\n" for i in range(40))
    store = make_store("t.csv", "name,dna,kind\n" + rows, id_column="name", sequence_column="dna", label_column="kind")
    run = train(TrainOptions(data=store, out=tmp_path / "run", epochs=1, **QUICK)).run
    command = ["--checkpoint", str(run / "best.pt"), "--out", str(tmp_path / "p.tsv"), "--overwrite", "--input"]
    assert main([*command, str(tmp_path / "t.csv")]) == 0
    assert [row["id"] for row in read_rows(tmp_path / "p.tsv")] == [f"n{i}" for i in range(40)]
    other = tmp_path / "o.tsv"
    other.write_text("who\tseq\nz\tACG\n")
    assert main([*command, str(other)]) == 1
    assert "name" in capsys.readouterr().err
    assert main([*command, str(other), "--format", "tsv", "--id-column", "who", "--sequence-column", "seq"]) == 0
    assert [row["id"] for row in read_rows(tmp_path / "p.tsv")] == ["z"]


def test_regression_and_language_model_have_their_own_columns(make_store: Callable[..., Path], tmp_path: Path) -> None:
    """regress: one number a record; lm: bits per token and the number of tokens."""
    text = "id,sequence,label\n" + "".join(f"r{i},{'AC' * (i % 7 + 1)},{i / 8}\n" for i in range(30))
    store = make_store("r.csv", text)
    for task, columns in (("regress", ["id", "prediction"]), ("lm", ["id", "bits_per_token", "tokens"])):
        run = train(TrainOptions(data=store, out=tmp_path / task, task=task, epochs=1, **QUICK)).run
        out = tmp_path / f"{task}.tsv"
        assert main(["--checkpoint", str(run / "best.pt"), "--input", str(tmp_path / "r.csv"), "--out", str(out)]) == 0
        rows = read_rows(out)
        assert list(rows[0]) == columns and len(rows) == 30
        if task == "lm":
            assert [int(row["tokens"]) for row in rows] == [2 * (i % 7 + 1) for i in range(30)]


def test_blank_text_is_no_sequence_of_integers(make_store: Callable[..., Path], tmp_path: Path,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    """White space alone holds no integer: an error in preprocess and in predict, not a sequence of length 0."""
    with pytest.raises(SeqpipeError, match=r"w\.csv:2: record 'a': the sequence is empty"):
        make_store("w.csv", 'id,sequence,label\na,"  ",x\nb,1 2 3,y\n', alphabet="ints")
    store = make_store("i.csv", "id,sequence,label\na,1,x\nb,1 2 3,y\nc,2,x\n", alphabet="ints")
    run = train(TrainOptions(data=store, out=tmp_path / "run", epochs=1, **QUICK)).run
    assert main(["--checkpoint", str(run / "best.pt"), "--input", str(tmp_path / "w.csv"),
                 "--out", str(tmp_path / "p.tsv")]) == 1
    assert "the sequence is empty" in capsys.readouterr().err


def test_ids_and_classes_with_any_line_end_come_back_from_the_table(make_store: Callable[..., Path],
                                                                    tmp_path: Path) -> None:
    """CR, LF, tabs and quotes in an id or a class name neither break nor join rows."""
    names = ["a\rb", "a\nb", "a\tb", 'a"b', "a\r\nb", "plain", " lead", "é"]
    lines = [json.dumps({"id": name, "sequence": "ACGT" * (i + 1), "label": names[i % 3]})
             for i, name in enumerate(names)]
    store = make_store("n.jsonl", "\n".join(lines) + "\n")
    run = train(TrainOptions(data=store, out=tmp_path / "run", epochs=1, **QUICK)).run
    out = tmp_path / "p.tsv"
    assert main(["--checkpoint", str(run / "best.pt"), "--input", str(tmp_path / "n.jsonl"), "--out", str(out)]) == 0
    rows = read_rows(out)
    assert [row["id"] for row in rows] == names
    assert list(rows[0])[2:] == [f"p_{name}" for name in sorted(names[:3])]


@pytest.mark.parametrize(("content", "finding"), [
    (">a\nACDE\n>b\nACJ1\n", ":4: record 'b': symbol '1' at position 3"),
    (">a\nACDE\n>b\n>c\nAA\n", "record 'b': the sequence is empty"),
    ("", "the file is empty"),
])
def test_input_the_network_cannot_read_names_its_place_and_leaves_no_table(
    amp_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, finding: str
) -> None:
    """An error in the last record leaves no half-written table, and an old one untouched."""
    raw, out = tmp_path / "x.fasta", tmp_path / "p.tsv"
    raw.write_text(content)
    command = ["--checkpoint", str(amp_checkpoint), "--input", str(raw), "--out", str(out), "--overwrite"]
    assert main(command) == 1
    message = capsys.readouterr().err
    assert finding in message and str(raw) in message and "Traceback" not in message
    assert not out.exists()
    out.write_text("old")
    assert main(command) == 1
    assert out.read_text() == "old" and {path.name for path in tmp_path.iterdir()} == {"x.fasta", "p.tsv"}


def test_options_that_do_not_fit_are_refused(amp_checkpoint: Path, amp_store: Path, vowels_store: Path,
                                             tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both or none of --input and --data, an existing output, a store of another kind, no checkpoint."""
    out = tmp_path / "p.tsv"
    base = ["--checkpoint", str(amp_checkpoint), "--out", str(out)]
    cases = [
        (base, "expected either --input RAW... or --data STORE"),
        ([*base, "--data", str(amp_store), "--input", "x.fasta"], "expected either"),
        ([*base, "--input", "x.fasta", "--split", "test"], "--split test goes with --data"),
        ([*base, "--data", str(vowels_store)], "its kind is 'features'"),
        ([*base, "--data", str(amp_store), "--split", "tset"], "no split 'tset'"),
        (["--checkpoint", str(tmp_path / "no.pt"), "--out", str(out), "--data", str(amp_store)], "no such checkpoint"),
        (["--checkpoint", str(amp_store), "--out", str(out), "--data", str(amp_store)], "not a checkpoint"),
        (["--checkpoint", str(amp_checkpoint), "--out", str(amp_checkpoint), "--overwrite", "--data", str(amp_store)],
         "this is one of the inputs"),
    ]
    for argv, finding in cases:
        assert main(argv) == 1
        message = capsys.readouterr().err
        assert finding in message and "Traceback" not in message
    assert not out.exists()
    out.write_text("old")
    assert main([*base, "--data", str(amp_store)]) == 1
    assert "--overwrite" in capsys.readouterr().err and out.read_text() == "old"
