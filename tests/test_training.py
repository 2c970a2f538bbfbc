"""Training: what a run leaves behind, what it refuses, and that it learns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.train import main
from seqpipe.batch import Batch
from seqpipe.checkpoint import load_checkpoint
from seqpipe.collate import fill
from seqpipe.dataloader import get_dataloader
from seqpipe.device import Waiting, batches_on
from seqpipe.errors import OptionError, SeqpipeError
from seqpipe.hashing import hash_strings
from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions, TrainOptions
from seqpipe.prediction import Predictor
from seqpipe.rnn import SequenceRNN
from seqpipe.rundir import RunDirectory
from seqpipe.sequences import SequenceDataset
from seqpipe.split_sets import split_store
from seqpipe.store import Store
from seqpipe.tasks import Metrics, Task
from seqpipe.training import evaluate, learning_rate_share, train

QUICK = {"hidden_dim": 16, "embedding_dim": 16, "device": "cpu"}


def events(run: Path, name: str) -> list[dict[str, float]]:
    """Return the lines of metrics.jsonl of one event."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == name]


def test_a_run_directory_holds_config_log_and_both_checkpoints(amp_store: Path, tmp_path: Path) -> None:
    """Configuration, one log line per interval and epoch, the last and the best network."""
    result = train(TrainOptions(data=amp_store, out=tmp_path / "run", epochs=2, log_every=20, **QUICK))

    assert {path.name for path in result.run.iterdir()} == {"config.json", "metrics.jsonl", "last.pt", "best.pt"}
    config = json.loads((result.run / "config.json").read_text())
    assert (config["task"], config["device"], config["epochs"], config["rnn_path"]) == ("classify", "cpu", 2, "masked")
    steps, epochs = events(result.run, "step"), events(result.run, "epoch")
    assert [line["step"] for line in steps] == [20, 40, 60, 80, 100, 102]
    assert [line["epoch"] for line in epochs] == [0, 1]
    wanted = {"loss", "lr", "sequences_per_s", "elements_per_s", "padding_percent", "data_wait_percent", "memory_mb"}
    assert wanted <= steps[0].keys()
    assert steps[0]["padding_percent"] < 15
    assert load_checkpoint(result.run / "last.pt")["epoch"] == 1
    best = max(epochs, key=lambda line: (line["valid_accuracy"], -line["valid_loss"]))
    assert load_checkpoint(result.run / "best.pt")["epoch"] == best["epoch"]
    assert result.test is not None and result.test_sequences == 669
    assert f"test accuracy {result.test['accuracy']:.4f} of 669 sequences" in str(result)
    assert str(result.run) in str(result)


def test_the_same_seed_gives_the_same_losses_and_another_seed_others(amp_store: Path, tmp_path: Path) -> None:
    """A run is a function of its options: log and weights come out the same, bit for bit."""
    losses, weights = {}, {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run = train(TrainOptions(data=amp_store, out=tmp_path / name, subset=300, epochs=2, seed=seed, **QUICK)).run
        losses[name] = [(line["train_loss"], line["valid_loss"]) for line in events(run, "epoch")]
        weights[name] = load_checkpoint(run / "last.pt")["model"]
    assert losses["a"] == losses["b"] != losses["c"]
    assert all(torch.equal(weights["a"][key], weights["b"][key]) for key in weights["a"])


@pytest.mark.parametrize("padding", ["pad_sequence", "manual"])
def test_the_padding_strategy_does_not_change_the_training(amp_store: Path, tmp_path: Path, padding: str) -> None:
    """All collate functions give the same batches, so the losses are equal to the last bit."""
    runs = [train(TrainOptions(data=amp_store, out=tmp_path / name, subset=200, epochs=1, padding=name, **QUICK)).run
            for name in ("fill", padding)]
    assert events(runs[0], "epoch")[0]["train_loss"] == events(runs[1], "epoch")[0]["train_loss"]


def test_masked_and_packed_training_agree(amp_store: Path, tmp_path: Path) -> None:
    """Both ways to run the network give the same first losses, to rounding."""
    losses = []
    for path in ("masked", "packed"):
        run = train(TrainOptions(data=amp_store, out=tmp_path / path, subset=128, epochs=2, rnn_path=path, dropout=0,
                                 **QUICK)).run
        losses.append([line["train_loss"] for line in events(run, "epoch")])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.parametrize("model", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("pooling", ["last", "mean", "max", "attention"])
def test_every_model_and_pooling_trains(amp_store: Path, tmp_path: Path, model: str, pooling: str) -> None:
    """Each combination runs forward, backward, validation and test."""
    result = train(TrainOptions(data=amp_store, out=tmp_path / "run", subset=64, epochs=1, model=model,
                                pooling=pooling, layers=2, **QUICK))
    assert result.test is not None and 0 <= result.test["accuracy"] <= 1


def test_a_budget_and_balanced_draws_train_whole_epochs(amp_store: Path, tmp_path: Path) -> None:
    """Epochs of a token budget differ in steps, and none of them is cut short; the largest batch comes first."""
    result = train(TrainOptions(data=amp_store, out=tmp_path / "run", subset=500, epochs=3, max_tokens=1000,
                                longest_first=True, log_every=1, **QUICK))
    loader = get_dataloader(split_store(Store(amp_store), 500)[0], max_tokens=1000, shuffle=True, longest_first=True)
    sizes = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        sizes.append([batch.sequences.numel() for batch in loader])
    steps = events(result.run, "step")

    assert [len([line for line in steps if line["epoch"] == epoch]) for epoch in range(3)] == list(map(len, sizes))
    assert steps[-1]["lr"] < 1e-4 and all(epoch[0] == max(epoch) <= 1000 for epoch in sizes)
    train(TrainOptions(data=amp_store, out=tmp_path / "balanced", subset=200, epochs=1, sampling="balanced", mixing=0.5,
                       **QUICK))


def test_one_of_several_processes_is_refused(amp_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """Under torchrun each would train a network of its own on its share: said, and nothing is written."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["--data", str(amp_store), "--out", str(tmp_path / "run")]) == 1
    assert "found WORLD_SIZE=2 in the environment: seqpipe train is one process" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_max_steps_and_max_time_end_a_run_after_saving(amp_store: Path, tmp_path: Path) -> None:
    """A run that is cut short validates, saves and tests like any other."""
    run = train(TrainOptions(data=amp_store, out=tmp_path / "steps", max_steps=7, **QUICK)).run
    assert load_checkpoint(run / "last.pt")["step"] == 7
    run = train(TrainOptions(data=amp_store, out=tmp_path / "time", max_time=0.2, epochs=1000, **QUICK)).run
    assert 1 <= load_checkpoint(run / "last.pt")["step"] < 1000


def test_features_are_standardised_by_the_train_split(vowels_store: Path, tmp_path: Path) -> None:
    """Mean and deviation are those of the train split alone, kept in the checkpoint."""
    result = train(TrainOptions(data=vowels_store, out=tmp_path / "run", epochs=1, **QUICK))
    values = np.concatenate([sequence for sequence, _ in SequenceDataset(vowels_store, "train")]).astype(np.float64)
    saved = load_checkpoint(result.run / "best.pt")["model"]
    assert saved["mean"].numpy() == pytest.approx(values.mean(axis=0), rel=1e-9)
    assert saved["deviation"].numpy() == pytest.approx(values.std(axis=0), rel=1e-9)


def test_without_a_valid_split_a_tenth_of_train_is_held_out(
    vowels_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sequences held out are never trained on, are chosen by hash, and the user is told."""
    train(TrainOptions(data=vowels_store, out=tmp_path / "run", epochs=1, **QUICK))
    assert "27 of 270 train sequences are held out" in capsys.readouterr().err
    store = Store(vowels_store)
    train_set, valid_set, _ = split_store(store, None)
    kept, held_out = ({metadata["id"] for _, metadata in part} for part in (train_set, valid_set))
    everything = {metadata["id"] for _, metadata in SequenceDataset(store, "train")}
    assert not kept & held_out and kept | held_out == everything and len(held_out) == 27
    assert held_out == set(sorted(everything, key=lambda name: int(hash_strings([name])[0]))[:27])
    assert held_out != {store.metadata["id"][row] for row in range(27)}


def test_training_never_reads_what_is_held_out(vowels_store: Path, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of all training steps are those kept; those of validation are those held out."""
    seen: dict[bool, set[int]] = {True: set(), False: set()}
    forward = SequenceRNN.forward
    taken: list[int] = []

    def recorded(model: SequenceRNN, sequences: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        seen[model.training].update(taken)
        return forward(model, sequences, lengths)

    def watched(loader: Iterable[Batch], device: torch.device, waiting: Waiting | None = None) -> Iterator[Batch]:
        for batch in batches_on(loader, device, waiting):
            taken[:] = batch.index.tolist()
            yield batch

    monkeypatch.setattr("seqpipe.training.batches_on", watched)
    monkeypatch.setattr(SequenceRNN, "forward", recorded)
    train(TrainOptions(data=vowels_store, out=tmp_path / "run", epochs=1, **QUICK))
    train_set, valid_set, test_set = split_store(Store(vowels_store), None)
    assert seen[True] == {metadata["index"] for _, metadata in train_set}
    assert seen[False] == {metadata["index"] for part in (valid_set, test_set) for _, metadata in part}


@pytest.mark.parametrize("center", [0.0, 1e5, -1e6])
def test_regression_metrics_equal_those_of_numpy(center: float) -> None:
    """MAE, RMSE and R2 in the labels' own units, also for labels far from zero."""
    rng = np.random.default_rng(0)
    labels = (center + rng.normal(size=200)).astype(np.float32)
    task = Task("regress", 1, center, 1.0)
    outputs = torch.from_numpy(labels.astype(np.float64) - center + 0.3 * rng.normal(size=200)).float()[:, None]
    metrics = Metrics(task, torch.device("cpu"))
    for part in np.array_split(np.arange(200), 7):
        batch = fill([(np.zeros(1, "u1"), {"label": labels[i]}) for i in part])
        metrics.update(outputs[part], batch)
    errors = outputs[:, 0].double().numpy() + center - labels
    found = metrics.compute()
    assert found["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-9)
    assert found["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-9)
    total = np.square(labels.astype(np.float64) - labels.astype(np.float64).mean()).sum()
    assert found["r2"] == pytest.approx(1 - (errors**2).sum() / total, abs=1e-4)


def test_a_test_split_of_one_number_has_no_r2(make_store: Callable[..., Path], tmp_path: Path) -> None:
    """R2 is undefined there, and left out."""
    rows = "".join(f"r{i},{'ACGT' * (i % 3 + 1)},{i / 8},{'train' if i else 'test'}\n" for i in range(30))
    store = make_store("r.csv", "id,sequence,label,part\n" + rows, split="column:part")
    result = train(TrainOptions(data=store, out=tmp_path / "run", epochs=1, **QUICK))
    assert result.test is not None and set(result.test) == {"loss", "mae", "rmse"}


def regression_table(num_rows: int) -> str:
    """Return a CSV whose target is 1000 plus 10 times the share of A in the sequence."""
    rng = np.random.default_rng(0)
    rows = ["id,sequence,target"]
    for i in range(num_rows):
        text = "".join(rng.choice(list("ACGT"), rng.integers(10, 30), p=[(q := rng.random()), *[(1 - q) / 3] * 3]))
        rows.append(f"r{i},{text},{1000 + 10 * text.count('A') / len(text):.4f}")
    return "\n".join(rows) + "\n"


def test_regression_learns_labels_in_their_own_units(make_store: Callable[..., Path], tmp_path: Path) -> None:
    """Labels far from zero are learned, and the error is reported in the labels' units."""
    store = make_store("r.csv", regression_table(600), label_column="target", split="0.8,0.1,0.1")
    result = train(TrainOptions(data=store, out=tmp_path / "run", epochs=30, pooling="mean", dropout=0, lr=5e-3,
                                **QUICK))
    labels = np.array([metadata["label"] for _, metadata in SequenceDataset(store, "test")])
    assert result.task.name == "regress" and labels.dtype == np.float32
    assert result.test is not None
    assert result.test["mae"] < 0.3 * np.abs(labels - labels.mean()).mean()
    assert result.test["r2"] > 0.8


def test_a_language_model_beats_order_zero_where_order_matters(make_store: Callable[..., Path],
                                                               tmp_path: Path) -> None:
    """Text that repeats ABC has 1.58 bits a letter at order 0, and nearly none for who reads on."""
    rng = np.random.default_rng(0)
    text = "".join(("ABC" * 20)[start:][: rng.integers(10, 40)] + "\n" for start in rng.integers(0, 3, 300))
    store = make_store("abc.txt", text, split="0.8,0.1,0.1")
    result = train(TrainOptions(data=store, out=tmp_path / "run", task="lm", epochs=20, lr=1e-2, **QUICK))
    assert result.test is not None and result.test["bits_per_token"] < 0.3


def test_metrics_do_not_depend_on_the_batch_size(amp_store: Path, tmp_path: Path) -> None:
    """Sums are divided once at the end: uneven batches count fairly."""
    run = train(TrainOptions(data=amp_store, out=tmp_path / "run", subset=64, epochs=1, **QUICK)).run
    predictor = Predictor(run / "best.pt", torch.device("cpu"))
    found = [evaluate(predictor.model, predictor.task, get_dataloader(amp_store, batch_size, split="test"),
                      torch.device("cpu")) for batch_size in (1000, 64, 7)]
    assert found[0]["accuracy"] == found[1]["accuracy"] == found[2]["accuracy"]
    assert found[0]["loss"] == pytest.approx(found[2]["loss"], rel=1e-6)


def test_the_learning_rate_rises_and_falls_to_zero() -> None:
    """A short rise, the full rate, and zero at the end."""
    shares = [learning_rate_share(p) for p in np.linspace(0, 1, 101)]
    assert 0 < shares[0] < 0.1 and max(shares) <= 1 and shares[5] > 0.99 and shares[-1] == 0
    assert np.all(np.diff(shares[6:]) < 0)


@pytest.mark.parametrize(("options", "finding"), [
    ({"task": "regress"}, "--task regress needs number labels"),
    ({"device": "cuda"}, "torch finds no CUDA device"),
])
def test_options_that_do_not_fit_are_refused_before_a_run_directory_is_made(
    amp_store: Path, tmp_path: Path, options: dict[str, str], finding: str
) -> None:
    """One message, and no half-made run."""
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(OptionError, match=finding):
        train(TrainOptions(data=amp_store, out=tmp_path / "run", **{**QUICK, **options}))
    assert not (tmp_path / "run").exists()


def test_a_store_without_what_the_task_needs_is_refused(make_store: Callable[..., Path], tmp_path: Path) -> None:
    """One class, too few sequences, or no train split: a sentence each."""
    one = make_store("one.csv", "id,sequence,label\na,ACGT,x\nb,ACG,x\n")
    with pytest.raises(OptionError, match="nothing to classify"):
        train(TrainOptions(data=one, out=tmp_path / "a", **QUICK))
    single = make_store("single.csv", "id,sequence\na,ACGT\n")
    with pytest.raises(OptionError, match="expected at least 2"):
        train(TrainOptions(data=single, out=tmp_path / "b", **QUICK))
    test_only = make_store("t.csv", "id,sequence,part\na,ACGT,test\nb,ACG,test\n", split="column:part")
    with pytest.raises(SeqpipeError, match="no split 'train'; this store has 'test'"):
        train(TrainOptions(data=test_only, out=tmp_path / "c", **QUICK))


def test_a_run_directory_in_use_is_refused(amp_store: Path, tmp_path: Path) -> None:
    """Nothing of an earlier run is overwritten."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.pt").write_text("precious")
    with pytest.raises(OptionError, match="not empty"):
        train(TrainOptions(data=amp_store, out=tmp_path / "run", **QUICK))
    assert (tmp_path / "run" / "best.pt").read_text() == "precious"


def test_of_two_runs_that_start_at_once_one_gets_the_folder(tmp_path: Path) -> None:
    """Two processes that both found the folder empty never write into one run."""
    first = RunDirectory(tmp_path / "run", "x")
    (first.path / "metrics.jsonl").unlink()  # as the second saw it: empty
    RunDirectory(tmp_path / "run", "x")
    with pytest.raises(OptionError, match="choose another"):
        RunDirectory(tmp_path / "run", "x")


def test_the_log_is_json_whatever_the_numbers(tmp_path: Path) -> None:
    """A number that is not finite becomes null."""
    run = RunDirectory(tmp_path / "run", "x")
    run.log("step", loss=float("nan"), rmse=float("inf"), step=3)
    line = json.loads((run.path / "metrics.jsonl").read_text())
    assert line == {"event": "step", "loss": None, "rmse": None, "step": 3}


def test_a_loss_that_is_not_finite_ends_the_run_with_a_remedy(vowels_store: Path, tmp_path: Path) -> None:
    """The user hears which step and rows, and what to change."""
    with pytest.raises(SeqpipeError, match=r"the loss is (nan|inf) at step \d+ .*lower --lr"):
        train(TrainOptions(data=vowels_store, out=tmp_path / "run", lr=1e38, clip=1e38, log_every=1, **QUICK))


@pytest.mark.parametrize("bad", [["--epochs", "0"], ["--dropout", "1"], ["--lr", "0"], ["--seed", "-1"],
                                 ["--batch-size", "0"], ["--num-workers", "-1"], ["--weight-decay", "nan"],
                                 ["--weight-decay", "inf"], ["--lr", "nan"], ["--seed", str(2**64)]])
def test_a_value_out_of_range_names_the_flag(amp_store: Path, bad: list[str],
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1, one line, no traceback."""
    assert main(["--data", str(amp_store), *bad]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"seqpipe train: {bad[0]} {float(bad[1]) if '.' in message[:40] else bad[1]}")
    assert "expected" in message and "Traceback" not in message


def test_the_built_in_default_trains_from_raw_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    """Without --data the store is made in the run directory; the accuracy and the run are printed."""
    monkeypatch.chdir(tmp_path)
    assert main(["--max-steps", "30", "--device", "cpu"]) == 0
    assert (tmp_path / "runs" / "amp-001" / "amp.h5").is_file()
    out = capsys.readouterr().out
    assert "test accuracy 0." in out and "run directory runs/amp-001" in out
    assert main(["--max-steps", "1", "--device", "cpu"]) == 0
    assert (tmp_path / "runs" / "amp-002" / "best.pt").is_file()


def test_two_epochs_on_the_peptides_beat_length_and_class_sizes(amp_store: Path, tmp_path: Path) -> None:
    """The larger class is 0.549 of the test split, the length alone gives 0.535: the order was learned."""
    result = train(TrainOptions(data=amp_store, out=tmp_path / "run", epochs=2, device="cpu"))
    assert result.test is not None and result.test["accuracy"] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "reach"), [
    ("amp", {}, 0.87), ("vowels", {}, 0.93), ("words", {"max_time": 60.0}, 0.885),
])
def test_accuracies_that_must_be_reached(
    amp_store: Path, vowels_store: Path, shared_words: Path, tmp_path: Path, name: str, options: dict[str, float],
    reach: float
) -> None:
    """The default network reaches the accuracy promised for each data set."""
    store = {"amp": amp_store, "vowels": vowels_store, "words": shared_words}[name]
    result = train(TrainOptions(data=store, out=tmp_path / "run", **options))
    assert result.test is not None and result.test["accuracy"] >= reach


@pytest.fixture(scope="module")
def shared_words(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """15,000 words of five languages."""
    out = tmp_path_factory.mktemp("words") / "words.h5"
    preprocess(PreprocessOptions(raw=(shared / "words" / "words.tsv",), sequence_column="word", label_column="lang",
                                 split="column:split", out=out))
    return out
