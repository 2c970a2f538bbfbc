"""What a network is trained for: its outputs, its loss, its metrics.

Place in the flow: batch + outputs of rnn -> [tasks] -> training, prediction.

    classify   (B, K) logits     cross entropy per sequence    accuracy, macro F1
    regress    (B, 1) numbers    squared error per sequence    MAE, RMSE, R2
    lm         (B, T, V) logits  cross entropy per token       bits per token, perplexity

K classes, V tokens of the alphabet. Losses are sums over real elements: divide them by the number
of real elements, never average the averages of batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seqpipe.batch import Batch
from seqpipe.errors import OptionError

IGNORED = -100  # no token


@dataclass(frozen=True)
class Task:
    """A task with what the data say about it.

    Attributes:
        name: classify, regress or lm.
        num_outputs: K, 1 or V.
        label_mean, label_deviation: of the train split, for regress; the network learns
            standardised labels, users see their own units.
    """

    name: str
    num_outputs: int
    label_mean: float = 0.0
    label_deviation: float = 1.0

    @property
    def key_metric(self) -> str:
        """The metric that chooses the best checkpoint."""
        return {"classify": "accuracy", "regress": "mae", "lm": "bits_per_token"}[self.name]

    def improves(self, metrics: Mapping[str, float], best: Mapping[str, float] | None) -> bool:
        """Return whether ``metrics`` beat ``best``; among equals the lower loss wins."""
        if best is None:
            return True
        sign = -1 if self.name == "classify" else 1
        return (sign * metrics[self.key_metric], metrics["loss"]) < (sign * best[self.key_metric], best["loss"])

    def loss_sum(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the losses of all real elements of a batch, a scalar.

        Args:
            outputs: of the network, on the device of ``batch.sequences``.
            batch: with labels for classify and regress.
        """
        if self.name == "lm":
            # Selecting by the mask would make the CPU wait for CUDA to count it.
            wanted = batch.tokens.masked_fill(~batch.mask, IGNORED)
            return functional.cross_entropy(outputs.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED,
                                            reduction="sum")
        assert batch.labels is not None
        if self.name == "regress":
            wanted = (batch.labels - self.label_mean) / self.label_deviation
            return (outputs[:, 0] - wanted).square().sum()
        return functional.cross_entropy(outputs, batch.labels, reduction="sum")

    def num_terms(self, batch: Batch) -> int:
        """Return how many losses ``loss_sum`` adds up."""
        return batch.num_elements if self.name == "lm" else len(batch)

    def numbers(self, outputs: Tensor) -> Tensor:
        """Return (B,) predictions of regress in the units of the labels."""
        return outputs[:, 0] * self.label_deviation + self.label_mean


class Metrics:
    """Metrics of one pass over some batches; sums, so that batches of any size count fairly."""

    def __init__(self, task: Task, device: torch.device) -> None:
        from torchmetrics import MetricCollection, classification, regression

        self._task = task
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._terms = self._sequences = 0
        if task.name == "classify":
            self._collection = MetricCollection({
                "accuracy": classification.MulticlassAccuracy(task.num_outputs, average="micro", validate_args=False),
                "macro_f1": classification.MulticlassF1Score(task.num_outputs, average="macro", validate_args=False),
            })
        elif task.name == "regress":
            self._collection = MetricCollection({
                "mae": regression.MeanAbsoluteError(),
                "rmse": regression.MeanSquaredError(squared=False),
                "r2": regression.R2Score(),
            })
        else:
            self._collection = MetricCollection({})
        # Sums of squares of numbers far from zero: in float32 R2 would be wrong in its first digit.
        self._collection.set_dtype(torch.float64).to(device)

    def update(self, outputs: Tensor, batch: Batch) -> None:
        """Count one batch, given the network's outputs for it."""
        self._loss += self._task.loss_sum(outputs, batch).double()
        self._terms += self._task.num_terms(batch)
        self._sequences += len(batch)
        if self._task.name == "classify":
            self._collection.update(outputs, batch.labels)
        elif self._task.name == "regress":
            assert batch.labels is not None
            self._collection.update(self._task.numbers(outputs.double()), batch.labels.double())

    def compute(self) -> dict[str, float]:
        """Return ``loss`` (mean per element) and the task's metrics."""
        loss = float(self._loss) / max(self._terms, 1)
        if self._task.name == "lm":
            return {"loss": loss, "bits_per_token": loss / math.log(2), "perplexity": math.exp(min(loss, 700))}
        defined = {name: metric for name, metric in self._collection.items() if name != "r2" or self._sequences > 1}
        return {"loss": loss, **{name: float(metric.compute()) for name, metric in defined.items()}}


def choose_task(requested: str, header: Mapping[str, Any], place: str) -> str:
    """Return the task for ``--task`` and a store.

    Args:
        requested: auto, classify, regress or lm.
        header: of the store.
        place: the store's name, for messages.

    Raises:
        OptionError: the store has not what the task needs.
    """
    label_type, kind, classes = header["label_type"], header["kind"], header["classes"]
    if requested == "auto" and label_type == "multilabel":
        raise OptionError(f"{place}: train has no task yet for labels of several classes; use --task lm, which needs "
                          "no labels, or get_dataloader and a loss of your own")
    if requested == "auto":
        requested = {"class": "classify", "number": "regress"}.get(label_type, "lm")
    if requested == "classify" and label_type != "class":
        raise OptionError(f"{place}: --task classify needs class labels, this store's labels are {label_type!r}; "
                          "preprocess with --label-column")
    if requested == "classify" and len(classes) < 2:
        raise OptionError(f"{place}: all labels are {classes[0]!r}: there is nothing to classify")
    if requested == "regress" and label_type != "number":
        raise OptionError(f"{place}: --task regress needs number labels, this store's labels are {label_type!r}; "
                          "preprocess with --label-column and --label-type number")
    if requested == "lm" and kind != "tokens":
        remedy = "use --task auto" if label_type != "none" else "preprocess with --label-column"
        raise OptionError(f"{place}: --task lm predicts the next token, and this store holds {kind}; {remedy}")
    return requested
