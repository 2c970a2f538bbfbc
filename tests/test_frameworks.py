"""torchdata, Lightning and Accelerate over our dataset, sampler and loader: nothing is lost or repeated."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch
from torch.utils.data import DataLoader

from seqpipe.collate import fill
from seqpipe.dataloader import get_dataloader
from seqpipe.samplers import LengthBatchSampler
from seqpipe.sequences import SequenceDataset

PLAN = {"max_tokens": 250, "shuffle": True, "bucket": False}


def cut_a_little(sequence, metadata, rng):
    return sequence[rng.integers(0, 3) if len(sequence) > 3 else 0 :], metadata


@pytest.fixture
def dataset(odd_store):
    """Return 101 sequences of 1 to 59 bases."""
    return SequenceDataset(odd_store)


def sampler_of(dataset):
    return LengthBatchSampler(dataset.lengths, **PLAN)


def rows(batches):
    return [batch.index.tolist() for batch in batches]


def wanted_epochs(dataset, count):
    """Return the batches of the first epochs; they differ in number."""
    loader = get_dataloader(dataset, **PLAN)
    epochs = [rows(loader) for _ in range(count)]
    assert len(set(map(len, epochs))) > 1
    return epochs


# ---- torchdata ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_dataloader_resumes_over_our_dataset(dataset, workers):
    """After any batch, with workers that prefetch: the rest of the epoch and the next one, byte for byte."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make():
        return stateful.StatefulDataLoader(dataset, batch_sampler=sampler_of(dataset), collate_fn=fill,
                                           num_workers=workers)

    def content(batches):
        return [(batch.index.tolist(), batch.sequences.numpy().tobytes()) for batch in batches]

    loader = make()
    wanted = [content(loader), content(loader)]
    for stop in (1, 5, len(wanted[0]) - 1):
        first = make()
        taken = content(itertools.islice(first, stop))
        second = make()
        second.load_state_dict(first.state_dict())
        assert [taken + content(second), content(second)] == wanted


# ---- Lightning ------------------------------------------------------------------------------


@pytest.fixture
def lightning():
    """Lightning, without its advice on loaders."""
    return pytest.importorskip("lightning.pytorch")


def make_module(lightning, loader):
    class Module(lightning.LightningModule):
        """Counts what it is given."""

        def __init__(self):
            super().__init__()
            self.loader = loader
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen = []

        def train_dataloader(self):
            self.loader.set_epoch(self.current_epoch)  # before Lightning counts the batches of the epoch
            return self.loader

        def on_train_epoch_start(self):
            self.seen.append([])

        def training_step(self, batch, number):
            self.seen = self.seen or [[]]  # resumed in the middle, an epoch does not start
            self.seen[-1].append(batch.index.tolist())
            return self.weight * batch.num_elements

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def fit(lightning, folder, loader, epochs, path=None, **options):
    """Train; without reloading, Lightning would cut each epoch to the number of batches of the first."""
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        **{"enable_checkpointing": False, "reload_dataloaders_every_n_epochs": 1, **options},
    )
    module = make_module(lightning, loader)
    trainer.fit(module, ckpt_path=path, **({"weights_only": False} if path else {}))
    return trainer, module


@pytest.mark.filterwarnings("ignore")  # Lightning's advice: more workers, a logger, fewer log steps
def test_lightning_trains_epochs_of_differing_length_whole(dataset, lightning, tmp_path):
    """Three epochs: every batch of each."""
    wanted = wanted_epochs(dataset, 3)
    trainer, module = fit(lightning, tmp_path, get_dataloader(dataset, **PLAN), 3)

    assert module.seen == wanted
    assert trainer.global_step == sum(map(len, wanted))


@pytest.mark.filterwarnings("ignore")
def test_lightning_that_cuts_an_epoch_is_told_of(dataset, lightning, tmp_path):
    """Without reloading it asks for the number of batches once: what it leaves out of later epochs is said."""
    lengths = [len(epoch) for epoch in wanted_epochs(dataset, 3)]
    assert max(lengths) > lengths[0]
    with pytest.warns(UserWarning, match=f"was left after {lengths[0]} of its {max(lengths)} batches, the len"):
        fit(lightning, tmp_path, get_dataloader(dataset, **PLAN), 3, reload_dataloaders_every_n_epochs=0)
        gc.collect()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("own", [True, False])
def test_lightnings_set_epoch_reaches_the_sampler(dataset, lightning, tmp_path, own):
    """With a loader given as it is: epochs of one length are whole, and a later run begins in its own epoch."""
    options = {"batch_size": 8, "shuffle": True, "bucket": True}
    wanted = get_dataloader(dataset, **options)
    wanted = [rows(wanted) for _ in range(3)]

    def run(epochs, path=None):
        loader = get_dataloader(dataset, **options) if own else \
            DataLoader(dataset, batch_sampler=LengthBatchSampler(dataset.lengths, **options), collate_fn=fill)
        trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
                                    enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path)
        module = make_module(lightning, loader)
        trainer.fit(module, loader, ckpt_path=path, **({"weights_only": False} if path else {}))
        return trainer, module

    trainer, module = run(2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    assert module.seen == wanted[:2]
    assert run(3, tmp_path / "two.ckpt")[1].seen == wanted[2:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 1])
def test_lightning_resumes_in_the_middle_of_an_epoch(dataset, lightning, tmp_path, workers):
    """It keeps our loader's state in its checkpoint: the batches left are those that come, then whole epochs."""
    wanted = wanted_epochs(dataset, 3)
    keep = lightning.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=7, save_top_k=-1)
    fit(lightning, tmp_path, get_dataloader(dataset, num_workers=workers, **PLAN), 2, enable_checkpointing=True,
        callbacks=[keep])
    for step in (7, 28):
        epoch, done = (0, step) if step < len(wanted[0]) else (1, step - len(wanted[0]))
        _, module = fit(lightning, tmp_path, get_dataloader(dataset, num_workers=workers, **PLAN), 3,
                        tmp_path / f"step={step}.ckpt")
        assert module.seen == [wanted[epoch][done:], *wanted[epoch + 1 :]]


# ---- Accelerate -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("own", [True, False])
def test_accelerate_prepares_and_iterates(dataset, own):
    """Every batch of three epochs, once, with the loss of each backward."""
    accelerate = pytest.importorskip("accelerate")
    wanted = wanted_epochs(dataset, 3)
    loader = get_dataloader(dataset, **PLAN) if own else \
        DataLoader(dataset, batch_sampler=sampler_of(dataset), collate_fn=fill)
    accelerator = accelerate.Accelerator(cpu=True)
    weight = torch.nn.Linear(1, 1)
    model, optimizer, prepared = accelerator.prepare(weight, torch.optim.SGD(weight.parameters(), 0.1), loader)
    found = []
    for _ in range(3):
        found.append([])
        for batch in prepared:
            found[-1].append(batch.index.tolist())
            accelerator.backward(model(batch.lengths.float()[:, None]).sum())
            optimizer.step()
            optimizer.zero_grad()
    assert found == wanted
