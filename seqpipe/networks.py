"""The task and the network that fit a store.

Place in the flow: store, options -> [networks] -> training.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqpipe.dataloader import store_rows
from seqpipe.errors import OptionError, StoreError
from seqpipe.options import TrainOptions
from seqpipe.rnn import ModelConfig
from seqpipe.sharded import ShardedStore
from seqpipe.store import Store
from seqpipe.tasks import Task

MOST_EMBEDDING = 8 << 30  # bytes


def describe_task(name: str, store: Store | ShardedStore, train_set: Any) -> Task:
    """Return the task with its number of outputs and the moments of its labels.

    Raises:
        StoreError: a label is no number of a class.
    """
    if name == "lm":
        assert store.alphabet is not None
        return Task(name, store.alphabet.num_tokens)
    if name == "classify":
        numbers = np.asarray(store.column("label"))
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(store.classes):
            raise StoreError(
                f"{store.path}: damaged: /metadata/label holds {numbers.min()} to {numbers.max()}, expected "
                f"0 <= label < {len(store.classes)}; run: seqpipe verify {store.path}", path=store.path,
            )
        return Task(name, len(store.classes))
    labels = np.asarray(store.column("label"))[store_rows(train_set)]
    return Task(name, 1, float(labels.mean()), float(labels.std()) or 1.0)


def configure(task: Task, store: Store | ShardedStore, options: TrainOptions) -> ModelConfig:
    """Return what fixes the network for a task.

    Raises:
        OptionError: the embedding of the alphabet would take more memory than any machine gives it.
    """
    embedding_bytes = 4 * options.embedding_dim * (store.alphabet.num_tokens if store.alphabet else 0)
    if embedding_bytes > MOST_EMBEDDING:
        raise OptionError(f"{store.path}: the alphabet has {embedding_bytes // 4 // options.embedding_dim:,} tokens; "
                          f"their embedding would take {embedding_bytes / 1e9:,.0f} GB: number the integers from 0 "
                          "on without gaps, or lower --embedding-dim")
    return ModelConfig(
        task=task.name,  # type: ignore[arg-type]
        num_tokens=store.alphabet.num_tokens if store.alphabet else 0,
        num_channels=len(store.channels),
        missing=store.header["encoding"].get("missing") is True,
        num_outputs=task.num_outputs,
        model=options.model,
        embedding_dim=options.embedding_dim,
        hidden_dim=options.hidden_dim,
        layers=options.layers,
        bidirectional=options.bidirectional and task.name != "lm",
        dropout=options.dropout,
        pooling=options.pooling,
        rnn_path=options.rnn_path,
    )
