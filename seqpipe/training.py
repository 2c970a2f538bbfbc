"""Train an RNN on a store.

Place in the flow: store -> dataloader -> device -> rnn -> tasks -> [training] -> run directory.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Subset
from tqdm import tqdm

import seqpipe
from seqpipe.batch import Batch
from seqpipe.batch_settings import MIXING
from seqpipe.checkpoint import load_checkpoint, save_checkpoint
from seqpipe.dataloader import SequenceLoader, get_dataloader
from seqpipe.device import Waiting, batches_on, choose_device, describe_device, few_threads
from seqpipe.errors import OptionError, SeqpipeError, count_of
from seqpipe.ingest import preprocess
from seqpipe.networks import configure, describe_task
from seqpipe.options import PreprocessOptions, TrainOptions
from seqpipe.reading_order import choose_rnn_path
from seqpipe.rnn import SequenceRNN
from seqpipe.rundir import RunDirectory
from seqpipe.sequences import SequenceDataset
from seqpipe.sharded import ShardedStore, open_store
from seqpipe.split_sets import announce, split_store
from seqpipe.store import Store
from seqpipe.tasks import Metrics, Task, choose_task
from seqpipe.throughput import Throughput
from seqpipe.world import rank_and_size

BUILT_IN = Path(__file__).parents[1] / "data" / "amp"
WARMUP = 0.05  # share of the run in which the learning rate rises
DEFAULT_EPOCHS, LEAST_STEPS, MOST_EPOCHS = 12, 500, 100
DEFAULT_BATCH_SIZE = 64


@dataclass(frozen=True)
class TrainResult:
    """What a training run reached.

    Attributes:
        run: the run directory.
        task: what was trained.
        valid: metrics of the best epoch on the valid split.
        test: metrics of best.pt on the test split; None without one.
        test_sequences: how many sequences that was.
        seconds: spent training, validation included.
    """

    run: Path
    task: Task
    valid: dict[str, float]
    test: dict[str, float] | None
    test_sequences: int
    seconds: float

    def __str__(self) -> str:
        split, metrics = ("test", self.test) if self.test else ("valid", self.valid)
        name = self.task.key_metric
        others = ", ".join(f"{key} {value:.4f}" for key, value in metrics.items() if key != name)
        count = f" of {count_of(self.test_sequences, 'sequence')}" if self.test else ""
        return (f"{split} {name.replace('_', ' ')} {metrics[name]:.4f}{count} ({others}), "
                f"trained in {self.seconds:.0f} s; run directory {self.run}")


def train(options: TrainOptions) -> TrainResult:
    """Train, validate after each epoch, test the best network.

    Raises:
        SeqpipeError: the store cannot be read, has not what the task needs, or the loss is no
            longer finite.
    """
    if (world_size := rank_and_size()[1]) > 1:
        raise OptionError(f"found WORLD_SIZE={world_size} in the environment: seqpipe train is one process, and each "
                          f"of {world_size} would train a network of its own; start it without torchrun, or write the "
                          "loop yourself: get_dataloader gives each rank its share")
    device = choose_device(options.device)
    with few_threads(device):
        try:
            return _train(options, device)
        except RuntimeError as error:
            if not (isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)):
                raise
            raise SeqpipeError(f"out of memory on {device.type} ({str(error).splitlines()[0]}); lower --batch-size, "
                               "--max-tokens or --hidden-dim, or train on sequences that are cut shorter") from None


def _train(options: TrainOptions, device: torch.device) -> TrainResult:
    store, run = _open(options)
    name = choose_task(options.task, store.header, str(store.path))
    train_set, valid_set, test_set = split_store(store, options.subset, options.fold)
    task = describe_task(name, store, train_set)
    if name == "lm" and options.bidirectional:
        announce("lm reads each sequence forward only")
    torch.manual_seed(options.seed)
    model = SequenceRNN(configure(task, store, options)).to(device)
    if store.kind == "features":
        model.set_statistics(store.header["moments"]["mean"], store.header["moments"]["deviation"])
    run = run or RunDirectory(options.out, store.path.stem)
    trainer = _Trainer(options, run, store, task, model, device)
    train_loader, valid_loader = trainer.loader(train_set, train=True), trainer.loader(valid_set, train=False)
    epochs = trainer.count_epochs(len(train_loader))
    run.write_config({**dataclasses.asdict(options), "task": name, "device": device.type,
                      "epochs": epochs, "store": store.path,
                      "rnn_path": choose_rnn_path(model.config.rnn_path, device)})
    announce(
        f"device   {describe_device(device)}",
        f"data     {store.path}: train {len(train_set):,}, valid {len(valid_set):,}, "
        f"test {len(test_set) if test_set is not None else 0:,} sequences",
        f"network  {name}: {model.config.model}, {sum(p.numel() for p in model.parameters()):,} parameters, "
        f"{choose_rnn_path(model.config.rnn_path, device)}",
        f"run      {run.path}",
    )
    if device.type == "cpu" and model.config.rnn_path == "packed":
        announce("note     packed sequences are slow on a CPU, the more so the longer they are; "
                 "--rnn-path masked gives the same numbers")
    started = time.perf_counter()
    valid = trainer.fit(train_loader, valid_loader, epochs)
    seconds = time.perf_counter() - started
    test = None
    if test_set is not None:
        model.load_state_dict(load_checkpoint(run.path / "best.pt")["model"])
        test = evaluate(model, task, trainer.loader(test_set, train=False), device)
        run.log("test", **test)
    return TrainResult(run.path, task, valid, test, 0 if test_set is None else len(test_set), seconds)


@torch.no_grad()
def evaluate(model: SequenceRNN, task: Task, loader: SequenceLoader, device: torch.device) -> dict[str, float]:
    """Return the metrics of a network over all batches of a loader."""
    model.eval()
    metrics = Metrics(task, device)
    for batch in batches_on(loader, device):
        metrics.update(model(batch.sequences, batch.lengths), batch)
    return metrics.compute()


class _Trainer:
    """The loop of one run, and the numbers that grow while it goes."""

    def __init__(self, options: TrainOptions, run: RunDirectory, store: Store | ShardedStore, task: Task,
                 model: SequenceRNN, device: torch.device) -> None:
        self._options, self._run, self._store, self._task = options, run, store, task
        self._model, self._device = model, device
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
        self._step = 0
        self._started = time.perf_counter()

    def count_epochs(self, steps: int) -> int:
        """Return the number of epochs, given the steps of the first one."""
        if self._options.epochs is not None:
            return self._options.epochs
        return min(MOST_EPOCHS, max(DEFAULT_EPOCHS, -(-LEAST_STEPS // steps)))

    def loader(self, dataset: SequenceDataset | Subset, *, train: bool) -> SequenceLoader:
        """Return the loader of a split; evaluation is grouped by length too, as its order does not matter."""
        options = self._options
        batch_size = options.batch_size or (DEFAULT_BATCH_SIZE if options.max_tokens is None else None)
        return get_dataloader(
            dataset, batch_size=batch_size, max_tokens=options.max_tokens, shuffle=train, bucket=options.bucket,
            sampling=options.sampling if train else "uniform", longest_first=options.longest_first and train,
            mixing=MIXING if options.mixing is None else options.mixing, seed=options.seed,
            num_workers=options.num_workers, padding=options.padding, pin_memory=self._device.type == "cuda",
        )

    def fit(self, train_loader: SequenceLoader, valid_loader: SequenceLoader, epochs: int) -> dict[str, float]:
        """Train; write last.pt each epoch and best.pt when the valid metric improves; return its metrics."""
        best: dict[str, float] | None = None
        self._started = time.perf_counter()
        with tqdm(unit="step", desc="train", disable=None) as bar:
            for epoch in range(epochs):
                # Under a token budget epochs differ in steps: only that of the epoch which is set is known.
                train_loader.set_epoch(epoch)
                total = min(self._step + (epochs - epoch) * len(train_loader), self._options.max_steps or sys.maxsize)
                bar.total = total
                train_loss = self._train_epoch(train_loader, epoch, total, bar)
                metrics = evaluate(self._model, self._task, valid_loader, self._device)
                self._check_finite(metrics["loss"], "of the valid split")
                self._run.log("epoch", epoch=epoch, step=self._step, train_loss=train_loss,
                              **{f"valid_{name}": value for name, value in metrics.items()})
                improved = self._task.improves(metrics, best)
                if improved:
                    best = metrics
                    self._save("best.pt", epoch, metrics)
                self._save("last.pt", epoch, metrics)
                key = self._task.key_metric
                tqdm.write(f"epoch {epoch + 1:3d}/{epochs}  train loss {train_loss:.4f}  valid loss "
                           f"{metrics['loss']:.4f}  valid {key.replace('_', ' ')} {metrics[key]:.4f}"
                           f"{'  best' if improved else ''}", file=sys.stderr)
                if self._finished(total):
                    if epoch + 1 < epochs:
                        announce(f"stopped after {self._step:,} steps, in epoch {epoch + 1} of {epochs} (--max-steps, "
                                 "--max-time)")
                    break
        assert best is not None
        return best

    def _train_epoch(self, loader: SequenceLoader, epoch: int, total: int, bar: Any) -> float:
        """Run one pass (or what is left of the budget); return the mean loss of its elements."""
        self._model.train()
        waiting = Waiting()
        window, whole = Throughput(self._device), Throughput(self._device)
        for batch in batches_on(loader, self._device, waiting):
            loss = self._train_step(batch, total)
            terms = self._task.num_terms(batch)
            for sums in (window, whole):
                sums.add(batch, loss, terms)
            self._step += 1
            bar.update()
            if self._step % self._options.log_every == 0 or self._finished(total):
                report = window.report(waiting)
                self._check_finite(report["loss"], f"(batch with the rows {batch.index[:8].tolist()})")
                self._run.log("step", epoch=epoch, step=self._step, lr=self._optimizer.param_groups[0]["lr"], **report)
                bar.set_postfix(loss=f"{report['loss']:.4f}", refresh=False)
                window, waiting.seconds = Throughput(self._device), 0.0
            if self._finished(total):
                break
        mean_loss = whole.mean_loss()
        self._check_finite(mean_loss, "of the epoch")
        return mean_loss

    def _train_step(self, batch: Batch, total: int) -> torch.Tensor:
        """Update the weights from one batch; return the sum of its losses, detached."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._options.lr * learning_rate_share(self._progress(total))
        loss = self._task.loss_sum(self._model(batch.sequences, batch.lengths), batch)
        self._optimizer.zero_grad(set_to_none=True)
        (loss / self._task.num_terms(batch)).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._options.clip)
        self._optimizer.step()
        return loss.detach()

    def _progress(self, total: int) -> float:
        """Return how much of the run is done, 0 <= share <= 1, by steps or by time, whichever is more."""
        seconds = time.perf_counter() - self._started
        return min(1.0, max(self._step / total, seconds / (self._options.max_time or math.inf)))

    def _finished(self, total: int) -> bool:
        return self._progress(total) >= 1

    def _check_finite(self, loss: float, where: str) -> None:
        if not math.isfinite(loss):
            raise SeqpipeError(f"{self._store.path}: the loss is {loss} at step {self._step} {where}; lower --lr; "
                               f"the run so far is in {self._run.path}")

    def _save(self, name: str, epoch: int, metrics: dict[str, float]) -> None:
        header = self._store.header
        save_checkpoint(self._run.path / name, {
            "seqpipe_version": seqpipe.__version__,
            "model_config": dataclasses.asdict(self._model.config),
            "task": dataclasses.asdict(self._task),
            "data": {key: header[key] for key in ("kind", "encoding", "label_type", "classes", "channels", "input")},
            "model": self._model.state_dict(),
            "epoch": epoch,
            "step": self._step,
            "metrics": metrics,
        })


def learning_rate_share(progress: float) -> float:
    """Return the share of ``--lr`` at 0 <= progress <= 1: a short rise, then down to 0 along a cosine."""
    if progress < WARMUP:
        return (progress + 0.002) / (WARMUP + 0.002)
    return 0.5 * (1 + math.cos(math.pi * (progress - WARMUP) / (1 - WARMUP)))


def _open(options: TrainOptions) -> tuple[Store | ShardedStore, RunDirectory | None]:
    """Return the store; without ``--data`` the built-in one, made in the new run directory."""
    if options.data is not None:
        return open_store(options.data), None
    if not BUILT_IN.is_dir():
        raise OptionError(f"no --data given, and the built-in data are not at {BUILT_IN}; give --data STORE")
    run = RunDirectory(options.out, "amp")
    announce("no --data given: training on the built-in peptides of data/amp")
    summary = preprocess(PreprocessOptions(
        raw=(BUILT_IN / "amp.fasta",), labels=BUILT_IN / "labels.tsv", label_column="label", split="column:split",
        out=run.path / "amp.h5",
    ))
    announce(str(summary))
    return open_store(summary.path), run
