"""The whole way by the commands alone, on every real data set: raw files, store, network, predictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqpipe.cli import main
from tests.conftest import DATA, SHARED

CASES = {
    "amp": (DATA, ["amp/amp.fasta"],
            ["--labels", "amp/labels.tsv", "--label-column", "label", "--split", "column:split"], 4620),
    "vowels": (DATA, ["vowels/JapaneseVowels_TRAIN.ts", "vowels/JapaneseVowels_TEST.ts"], ["--split", "file"], 640),
    "words": (SHARED, ["words/words.tsv"],
              ["--sequence-column", "word", "--label-column", "lang", "--split", "column:split"], 15000),
    "udhr": (SHARED, ["udhr/udhr.jsonl"], ["--label-column", "lang", "--split", "column:split"], 1823),
    "rna": (SHARED, ["rna/rna.fasta"],
            ["--labels", "rna/labels.csv", "--label-column", "family", "--split", "column:split"], 1429),
    "reads": (SHARED, ["reads/lambda_long.fastq"], [], 400),
    "reads-gz": (SHARED, ["reads/lambda_short.fastq.gz"], [], 3000),
}


@pytest.mark.parametrize("name", CASES)
def test_raw_files_become_a_store_a_network_and_predictions(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """preprocess, verify, describe, train, predict and compare-padding work one after the other."""
    folder, files, options, num_records = CASES[name]
    if not folder.is_dir():
        pytest.skip("the data sets whose licences keep them out of the repository are not here")
    raw = [str(folder / file) for file in files]
    options = [str(folder / option) if option.startswith(f"{name}/") else option for option in options]
    monkeypatch.chdir(tmp_path)

    assert main(["preprocess", *raw, *options, "--out", "x.h5"]) == 0
    assert f"records  {num_records:,} " in capsys.readouterr().out
    assert main(["verify", "x.h5"]) == 0
    assert main(["describe", "x.h5", "--head", "1"]) == 0
    assert main(["train", "--data", "x.h5", "--max-steps", "3", "--hidden-dim", "8", "--device", "cpu"]) == 0
    assert "run directory runs/x-001" in capsys.readouterr().out
    assert main(["predict", "--checkpoint", "runs/x-001/best.pt", "--input", *raw, "--out", "p.tsv"]) == 0
    assert len(Path("p.tsv").read_text(encoding="utf-8").splitlines()) == num_records + 1
    assert main(["compare-padding", "--data", "x.h5", "--max-batches", "3", "--rounds", "1", "--out", "c"]) == 0
    assert len(Path("c/comparison.csv").read_text().splitlines()) == 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reads", "reads-gz"])
def test_a_language_model_of_the_reads_beats_order_zero(name: str, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 2.06 bits a token, where the frequencies of the letters alone give 2.089."""
    from seqpipe.options import TrainOptions
    from seqpipe.training import train

    folder, files, _, _ = CASES[name]
    if not folder.is_dir():
        pytest.skip("the data sets whose licences keep them out of the repository are not here")
    monkeypatch.chdir(tmp_path)
    assert main(["preprocess", str(folder / files[0]), "--out", "x.h5"]) == 0
    result = train(TrainOptions(data=Path("x.h5"), task="lm", max_time=120))
    assert result.test is not None and result.test["bits_per_token"] <= 2.06
