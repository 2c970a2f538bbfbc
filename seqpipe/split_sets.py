"""The train, valid and test set of a run.

Place in the flow: store -> [split_sets] -> training.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
from torch.utils.data import Subset

from seqpipe.dataloader import store_rows
from seqpipe.errors import OptionError, count_of
from seqpipe.hashing import hash_strings
from seqpipe.sequences import SequenceDataset
from seqpipe.sharded import ShardedStore
from seqpipe.splits import SPLIT_NAMES
from seqpipe.store import Store

FOLD = re.compile("fold[0-9]+")
HOLD_OUT = 0.1  # of train, where a store has no valid split


def split_store(
    store: Store | ShardedStore, subset: int | None, fold: int | None = None
) -> tuple[Any, Any, SequenceDataset | None]:
    """Return the train, valid and test set; a store without valid lends 10 % of train, chosen by hash.

    Args:
        store: to be split.
        subset: how many sequences of train are used, None for all.
        fold: the number of the fold that is the test set; the others are train. None for a store without folds.

    Raises:
        OptionError: the store has no such fold, or no train split, or too little in it.
    """
    folds = [name for name in store.splits if FOLD.fullmatch(name)]
    if fold is not None or (folds and "train" not in store.splits):
        if f"fold{fold}" not in folds:
            what = f"no fold {fold}" if fold is not None else "no split 'train'"
            remedy = f"give one with --fold, 0 <= fold < {len(folds)}" if folds else "preprocess with --folds"
            raise OptionError(f"{store.path}: {what}; this store has "
                              f"{', '.join(map(repr, store.splits)) or 'no splits'}; {remedy}")
        rows = np.sort(np.concatenate([np.asarray(store.split_rows(name)) for name in folds if name != f"fold{fold}"]))
        announce(f"fold {fold} of {len(folds)} is the test set, the others are train")
        train_set: Any = Subset(SequenceDataset(store), rows.tolist())
        test_set: SequenceDataset | None = SequenceDataset(store, f"fold{fold}")
    else:
        if store.splits and "train" not in store.splits:
            raise OptionError(f"{store.path}: no split 'train'; this store has {', '.join(map(repr, store.splits))}; "
                              "preprocess with another --split (none trains on all sequences)")
        train_set = SequenceDataset(store, "train" if store.splits else None)
        test_set = SequenceDataset(store, "test") if len(store.splits.get("test", ())) else None
    if fold is None and len(store.splits.get("valid", ())):
        valid_set: Any = SequenceDataset(store, "valid")
    else:
        if len(train_set) < 2:
            raise OptionError(f"{store.path}: {count_of(len(train_set), 'sequence')} to train on; expected at least 2")
        held_out, kept = hold_out(train_set)
        announce(f"no valid split: {len(held_out):,} of {len(train_set):,} train sequences are held out for it")
        train_set, valid_set = Subset(train_set, kept), Subset(train_set, held_out)
    if others := [name for name in store.splits if name not in (folds if fold is not None else SPLIT_NAMES)]:
        announce(f"not used: the splits {', '.join(others)}")
    if subset is not None:
        count = min(subset, len(train_set))
        announce(f"subset: the first {count:,} of {len(train_set):,} train sequences")
        train_set = Subset(train_set, range(count))
    if not len(train_set):
        raise OptionError(f"{store.path}: the train split is empty")
    return train_set, valid_set, test_set


def hold_out(dataset: SequenceDataset | Subset) -> tuple[list[int], list[int]]:
    """Return the indices held out and those kept, both ascending.

    A tenth with the lowest hashes of their ids: the same whatever the seed of the run.
    """
    whole: Any = dataset.dataset if isinstance(dataset, Subset) else dataset
    ids = whole.store.column("id")
    hashes = hash_strings([str(ids[row]) for row in store_rows(dataset).tolist()])
    count = max(1, round(HOLD_OUT * len(hashes)))
    order = np.argsort(hashes, kind="stable")
    return sorted(order[:count].tolist()), sorted(order[count:].tolist())


def announce(*lines: str) -> None:
    """Tell the user what a run does, on stderr."""
    print(*lines, sep="\n", file=sys.stderr)
