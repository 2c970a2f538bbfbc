"""Find what stands on both sides of a split: identical sequences, and groups.

Place in the flow: splits of an import -> [leakage] -> its summary; seqs.h5 -> store -> [leakage] -> describe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from seqpipe.hashing import find_repeats, hash_strings, identity_of
from seqpipe.sharded import ShardedStore
from seqpipe.store import Store


STEP = 4096  # sequences hashed together


def parted(again: np.ndarray, first: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """Return the first rows, ascending, of what stands in more than one split.

    Args:
        again, first: rows that equal an earlier row, and the first row each equals.
        splits: (N,) the number of each row's split.
    """
    return np.unique(first[splits[again] != splits[first]])


def group_column(header: Mapping[str, Any]) -> str | None:
    """Return the metadata column of the groups that the import knew, by the name it has in the store; or None."""
    told = header["input"]
    group = told.get("group_column")
    return "label" if group and group == told["label_column"] else group


def find_leakage(store: Store | ShardedStore) -> dict[str, list[dict[str, list[str]]]]:
    """Return what stands in more than one split of a store, in the order of the store.

    Returns:
        ``sequences``, and ``groups`` where the import knew them: for each sequence or group that is
        parted, the ids by split.
    """
    ids = store.column("id")
    splits = {name: np.asarray(store.split_rows(name)).astype(np.int64) for name in store.splits}
    rows = np.unique(np.concatenate([np.empty(0, np.int64), *splits.values()])).tolist()
    texts: dict[str, Callable[[int], str]] = {
        "sequences": lambda row: identity_of(store.sequence(row)).hex(),
    }
    if group := group_column(store.header):
        groups = store.column(group)
        texts["groups"] = lambda row: str(groups[row])
    found: dict[str, list[dict[str, list[str]]]] = {}
    for what, text in texts.items():
        keys = np.concatenate([np.empty(0, np.uint64), *(
            hash_strings([text(row) for row in rows[first : first + STEP]]) for first in range(0, len(rows), STEP))])
        again, first_of = find_repeats(keys, lambda i: text(rows[i]))
        members: dict[int, list[int]] = {}
        for i, first in zip(again.tolist(), first_of.tolist(), strict=True):
            members.setdefault(rows[first], [rows[first]]).append(rows[i])
        found[what] = []
        for _, same in sorted(members.items()):
            where = {name: [str(ids[row]) for row in np.intersect1d(same, inside).tolist()]
                     for name, inside in splits.items()}
            where = {name: names for name, names in where.items() if names}
            if len(where) > 1:
                found[what].append(where)
    return found
