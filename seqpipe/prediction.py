"""Predict with a trained network: raw input or a store in, one row a record out, in input order.

Place in the flow: checkpoint + (readers or store) -> [prediction] -> predictions.tsv.

Records pass through in windows; a window is sorted by length, padded, run, and put back in order,
so that memory does not grow with the input.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from seqpipe.alphabet import Alphabet
from seqpipe.batch import Batch
from seqpipe.batching import plan_batches
from seqpipe.checkpoint import load_checkpoint
from seqpipe.collate import fill
from seqpipe.device import choose_device, few_threads
from seqpipe.encoding import encode_features
from seqpipe.errors import CheckpointError, OptionError, RawFormatError, count_of
from seqpipe.inputs import raw_files
from seqpipe.options import PredictOptions
from seqpipe.publish import check_output, published
from seqpipe.readers import detect_format, name_record, read_records
from seqpipe.readers.raw import RawFile
from seqpipe.records import ColumnChoice, Record, split_names
from seqpipe.rnn import ModelConfig, SequenceRNN
from seqpipe.sequences import Sample, SequenceDataset
from seqpipe.sharded import ShardedStore
from seqpipe.store import Store
from seqpipe.tasks import Metrics, Task

WINDOW_BATCHES = 64


@dataclass(frozen=True)
class PredictionSummary:
    """What was predicted: how many rows, where, and the metrics where labels are known."""

    out: Path
    rows: int
    metrics: dict[str, float] | None

    def __str__(self) -> str:
        metrics = "".join(f"{name} {value:.4f}\n" for name, value in (self.metrics or {}).items())
        return f"{metrics}{count_of(self.rows, 'prediction')} in {self.out}"


class Predictor:
    """A trained network with the encoding of its input.

    Args:
        path: a checkpoint.
        device: where it runs.

    Raises:
        CheckpointError: the checkpoint cannot be used.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        state = load_checkpoint(path)
        self.path, self.device = path, device
        self.data: dict[str, Any] = state["data"]
        try:
            self.task = Task(**state["task"])
            self.model = SequenceRNN(ModelConfig(**state["model_config"]))
            self.model.load_state_dict(state["model"])
            self.alphabet = Alphabet.from_dict(self.data["encoding"]) if self.data["kind"] == "tokens" else None
        except (TypeError, ValueError, KeyError, RuntimeError) as error:
            first_line = str(error).split("\n")[0]
            raise CheckpointError(f"{path}: damaged, or of another version ({first_line})", path=path) from None
        self.model.to(device).eval()

    def encode(self, sequence: str | np.ndarray) -> np.ndarray:
        """Return one raw sequence as the network reads it; ValueError where it does not fit."""
        if not len(sequence):
            raise ValueError("the sequence is empty; expected at least one element")
        if self.alphabet is None:
            return encode_features(sequence, len(self.data["channels"]))
        return self.alphabet.encode(sequence)

    @torch.no_grad()
    def outputs(self, batch: Batch) -> Tensor:
        return self.model(batch.sequences, batch.lengths)

    def header(self) -> list[str]:
        """Return the column names of the table of predictions."""
        if self.task.name == "lm":
            return ["id", "bits_per_token", "tokens"]
        return ["id", "prediction", *(f"p_{name}" for name in self.data["classes"])]

    def rows(self, outputs: Tensor, batch: Batch) -> list[list[Any]]:
        """Return one table row per sequence of a batch, without the ids."""
        if self.task.name == "classify":
            shares = outputs.softmax(dim=1).cpu()
            names = self.data["classes"]
            return [[names[best], *(f"{share:.6g}" for share in row)]
                    for best, row in zip(shares.argmax(dim=1).tolist(), shares.tolist(), strict=True)]
        if self.task.name == "regress":
            return [[f"{number:.9g}"] for number in self.task.numbers(outputs).tolist()]
        nats = functional.cross_entropy(outputs.transpose(1, 2), batch.tokens, reduction="none")
        totals = (nats * batch.mask).sum(dim=1).double().cpu() / np.log(2)
        lengths = batch.lengths.tolist()
        return [[f"{bits / n:.6g}", n] for bits, n in zip(totals.tolist(), lengths, strict=True)]


def predict(options: PredictOptions) -> PredictionSummary:
    """Write the table of predictions.

    Raises:
        CheckpointError: the checkpoint cannot be used, or does not fit the store.
        RawFormatError: the raw input breaks its format, or holds what the network never saw.
        OptionError: the options do not fit each other.
    """
    if bool(options.input) == (options.data is not None):
        raise OptionError("expected either --input RAW... or --data STORE")
    if options.split is not None and options.data is None:
        raise OptionError(f"--split {options.split} goes with --data")
    check_output(options.out, options.overwrite, [*options.input, *([options.data] if options.data else []),
                                                  options.checkpoint])
    device = choose_device(options.device)
    with few_threads(device), raw_files(options.input, options.out) as raw:
        return _predict(Predictor(options.checkpoint, device), replace(options, input=raw))


def _predict(predictor: Predictor, options: PredictOptions) -> PredictionSummary:
    metrics, total = None, None
    if options.data is not None:
        dataset = SequenceDataset(options.data, options.split)
        _check_fit(predictor, dataset.store)
        samples: Iterator[Sample] = (dataset[i] for i in range(len(dataset)))
        metrics, total = _known_metrics(predictor, dataset.store), len(dataset)
    else:
        samples = _raw_samples(predictor, options)
    count = 0
    with (published(options.out, "w", overwrite=options.overwrite, encoding="utf-8", newline="") as file,
          tqdm(total=total, unit=" sequences", desc="predict", disable=None) as bar):
        _write_rows(file, [predictor.header()])
        for window in _windows(samples, options.batch_size * WINDOW_BATCHES):
            _write_rows(file, _predict_window(predictor, window, options.batch_size, metrics))
            count += len(window)
            bar.update(len(window))
    return PredictionSummary(options.out, count, None if metrics is None or not count else metrics.compute())


def _write_rows(file: IO[str], rows: list[list[Any]]) -> None:
    """Write table rows; cells with a tab, a quote or a line end of any kind are quoted."""
    plain = csv.writer(file, delimiter="\t", lineterminator="\n")
    quoted = csv.writer(file, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        # The csv module leaves a bare CR unquoted where lines end with LF.
        (quoted if any("\r" in str(cell) for cell in row) else plain).writerow(row)


def _windows(samples: Iterator[Sample], size: int) -> Iterator[tuple[Sample, ...]]:
    while window := tuple(itertools.islice(samples, size)):
        yield window


def _predict_window(
    predictor: Predictor, window: tuple[Sample, ...], batch_size: int, metrics: Metrics | None
) -> list[list[Any]]:
    """Return the table rows of some samples, in their order."""
    lengths = np.array([len(sequence) for sequence, _ in window])
    rows: list[list[Any]] = [[]] * len(window)
    for indices in plan_batches(lengths, batch_size=batch_size, shuffle=False, bucket=True):
        batch = fill([window[i] for i in indices.tolist()]).to(predictor.device)
        outputs = predictor.outputs(batch)
        if metrics is not None:
            metrics.update(outputs, batch)
        for i, row in zip(indices.tolist(), predictor.rows(outputs, batch), strict=True):
            rows[i] = [window[i][1]["id"], *row]
    return rows


def _raw_samples(predictor: Predictor, options: PredictOptions) -> Iterator[Sample]:
    """Yield the records of the raw files, encoded; options override how the training data were read."""
    known = predictor.data["input"]
    columns = ColumnChoice(options.id_column or known["id_column"], options.sequence_column or known["sequence_column"],
                           options.encoding or known["encoding"], known.get("time_column"),
                           split_names(known.get("value_columns")), missing=known.get("on_missing") == "nan")
    number = 0
    for path in options.input:
        with RawFile(path, columns.encoding, replace=known.get("on_undecodable") == "replace") as raw:
            chosen = options.format or known["format"]
            if chosen == "auto":
                chosen = detect_format(raw)
            for n, record in enumerate(_hinted(read_records(raw, chosen, columns), chosen, options), start=1):
                try:
                    sequence = predictor.encode(record.sequence)
                except ValueError as error:
                    raise record.error(f"{error}; the network of {predictor.path} was not trained on such input",
                                       line=record.sequence_line) from None
                yield sequence, {"index": number, "id": name_record(record, n)}
                number += 1


def _hinted(records: Iterator[Record], format: str, options: PredictOptions) -> Iterator[Record]:
    """Yield the records; where not even the first can be read, say that the format was not the user's choice."""
    try:
        first = next(records)
    except RawFormatError as error:
        if options.format is not None:
            raise
        raise RawFormatError(f"{error}; it was read as {format}, the format of the training data: --format names "
                             "another", path=error.path, line=error.line) from None
    yield first
    yield from records


def _check_fit(predictor: Predictor, store: Store | ShardedStore) -> None:
    """Refuse a store that is encoded otherwise than the training data."""
    for name, expected, found in (
        ("kind", predictor.data["kind"], store.kind),
        ("encoding", predictor.data["encoding"], store.header["encoding"]),
        ("channels", predictor.data["channels"], store.channels),
    ):
        if expected != found:
            raise CheckpointError(
                f"{store.path}: its {name} is {found!r}, the network of {predictor.path} was trained with "
                f"{expected!r}; predict from the raw files with --input"
            )


def _known_metrics(predictor: Predictor, store: Store | ShardedStore) -> Metrics | None:
    """Return metrics to fill where the store has the labels the network predicts, else None."""
    same = (store.header["label_type"], store.classes) == (predictor.data["label_type"], predictor.data["classes"])
    return Metrics(predictor.task, predictor.device) if same or predictor.task.name == "lm" else None
