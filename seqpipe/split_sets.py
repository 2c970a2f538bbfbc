"""The train, valid and test set of a run.

Place in the flow: store -> [split_sets] -> training.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from torch.utils.data import Subset

from seqpipe.errors import OptionError
from seqpipe.hashing import hash_strings
from seqpipe.loading import store_rows
from seqpipe.sequences import SequenceDataset
from seqpipe.sharded import ShardedStore
from seqpipe.splits import SPLIT_NAMES
from seqpipe.store import Store

HOLD_OUT = 0.1  # of train, where a store has no valid split


def split_store(store: Store | ShardedStore, subset: int | None) -> tuple[Any, Any, SequenceDataset | None]:
    """Return the train, valid and test set; a store without valid lends 10 % of train, chosen by hash."""
    if store.splits and "train" not in store.splits:
        raise OptionError(f"{store.path}: no split 'train'; this store has {', '.join(map(repr, store.splits))}; "
                          "preprocess with another --split (none trains on all sequences)")
    train_set: Any = SequenceDataset(store, "train" if store.splits else None)
    test_set = SequenceDataset(store, "test") if len(store.splits.get("test", ())) else None
    if len(store.splits.get("valid", ())):
        valid_set: Any = SequenceDataset(store, "valid")
    else:
        if len(train_set) < 2:
            raise OptionError(f"{store.path}: {len(train_set)} sequences to train on; expected at least 2")
        held_out, kept = hold_out(train_set)
        announce(f"no valid split: {len(held_out):,} of {len(train_set):,} train sequences are held out for it")
        train_set, valid_set = Subset(train_set, kept), Subset(train_set, held_out)
    if others := [name for name in store.splits if name not in SPLIT_NAMES]:
        announce(f"not used: the splits {', '.join(others)}")
    if subset is not None:
        count = min(subset, len(train_set))
        announce(f"subset: the first {count:,} of {len(train_set):,} train sequences")
        train_set = Subset(train_set, range(count))
    if not len(train_set):
        raise OptionError(f"{store.path}: the train split is empty")
    return train_set, valid_set, test_set


def hold_out(dataset: SequenceDataset) -> tuple[list[int], list[int]]:
    """Return the indices held out and those kept, both ascending.

    A tenth with the lowest hashes of their ids: the same whatever the seed of the run.
    """
    ids = dataset.store.metadata["id"]
    hashes = hash_strings([str(ids[row]) for row in store_rows(dataset).tolist()])
    count = max(1, round(HOLD_OUT * len(hashes)))
    order = np.argsort(hashes, kind="stable")
    return sorted(order[:count].tolist()), sorted(order[count:].tolist())


def announce(*lines: str) -> None:
    """Tell the user what a run does, on stderr."""
    print(*lines, sep="\n", file=sys.stderr)
