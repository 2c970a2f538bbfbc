"""Look at stores to say what they are together: their manifest.

Place in the flow: stores -> agreement -> [survey] -> sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.agreement import MERGE, disagreement, joint_header, split_order
from seqpipe.columns import ListColumn
from seqpipe.errors import StoreError
from seqpipe.labels import type_of_ways
from seqpipe.manifest import LISTS, TEXT, Manifest, Shard, data_digest, digest
from seqpipe.splits import WHOLE
from seqpipe.store import Store
from seqpipe.summary import summarise_lengths

Opener = Callable[[Path], Store]


def shard_of(store: Store, file: str) -> Shard:
    """Return what a manifest says about a store."""
    splits = {name: len(rows) for name, rows in store.splits.items()}
    lengths = store.header["splits"][WHOLE].get("lengths", {"min": 0, "max": 0})
    return Shard(file, len(store.mapping), digest(store.checksums), data_digest(store.checksums),
                 len(store), len(store.values), lengths["min"], lengths["max"], splits)


def types_of(store: Store) -> dict[str, str]:
    """Return the dtype, ``text`` or ``lists`` of each metadata column and track."""
    columns = {f"metadata/{name}": _type_of(column) for name, column in store.metadata.items()}
    return columns | {f"tracks/{name}": track.dtype.str for name, track in sorted(store.tracks.items())}


def _type_of(column: Any) -> str:
    if isinstance(column, np.ndarray):
        return column.dtype.str
    return TEXT if column.values.dtype == "u1" else LISTS


def manifest_of(paths: Sequence[Path], path: Path | None = None, *, mixed: bool = False, opened: Opener = Store
                ) -> Manifest:
    """Return the manifest of some stores in this order; reads the lengths of all their sequences.

    Args:
        paths: of the stores.
        path: of the manifest, in the folder of the stores; None for stores anywhere without one.
        mixed, opened: as ``ShardedStore`` takes them.

    Raises:
        StoreError: a path is no store, is given twice, or two stores cannot be one.
    """
    if not paths:
        raise StoreError("no store given; expected the path of at least one")
    shards: list[Shard] = []
    stores: list[_Summarised] = []
    for file in paths:
        store = opened(file)
        shards.append(shard_of(store, file.name if path else str(file)))
        stores.append(_Summarised(store))
        if (first := next(k for k, shard in enumerate(shards) if shard.digest == shards[-1].digest)) < len(shards) - 1:
            raise StoreError(f"{file}: holds the same as {paths[first]}; give every store once", path=file)
    header = joint_header(list(map(str, paths)), [store.header for store in stores])
    told = [(file, store) for file, store in zip(paths, stores, strict=True) if len(store.lengths)]
    told = told or [(paths[0], stores[0])]  # a store without a sequence does not tell of what types its columns are
    joint = _joint_types([store for _, store in told], header["writing"]) if mixed and "writing" in header else {}
    types = told[0][1].types | joint
    for file, other in told:
        check_types(told[0][0], file, types, other.types | joint)
    header["splits"] |= _summaries(stores, len(header["classes"]))
    return Manifest(path or paths[0], path.parent if path else Path(), header, types, tuple(shards))


class _Summarised:
    """What the header of many stores needs of each; the store itself need not stay open."""

    def __init__(self, store: Store) -> None:
        self.header, self.types = store.header, types_of(store)
        self.lengths = store.lengths(slice(None))
        self._label = _detached(store.column("label")) if store.classes else None
        self._splits = {name: np.array(store.split_rows(name)) for name in store.splits}

    def rows(self, split: str) -> np.ndarray:
        """Return the rows of a split, or of the whole store."""
        return np.arange(len(self.lengths)) if split == WHOLE else self._splits.get(split, np.empty(0, np.int64))

    def class_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the class numbers of some rows, end to end."""
        if isinstance(self._label, np.ndarray):
            return self._label[rows]
        assert self._label is not None
        chosen = np.zeros(len(self.lengths), bool)
        chosen[rows.astype(np.int64)] = True
        return self._label.values[np.repeat(chosen, np.diff(self._label.offsets).astype(np.int64))]


def _detached(column: Any) -> Any:
    """Return a column of labels in memory."""
    if isinstance(column, ListColumn):
        return ListColumn(np.array(column.values), np.array(column.offsets))
    return np.array(column)


def _joint_types(stores: Sequence[_Summarised], writing: dict[str, list[str]]) -> dict[str, str]:
    """Return the type that an import of everything gives each column whose texts are known of every store."""
    joint: dict[str, str] = {}
    for path in stores[0].types:
        name = path.removeprefix("metadata/")
        types = {store.types.get(path) for store in stores}
        known = all(store.types.get(path) == TEXT or name in store.header.get("writing", {}) for store in stores)
        if path.startswith("metadata/") and known and types != {TEXT}:
            joint[path] = type_of_ways(writing.get(name, []))
    return joint


def _summaries(stores: Sequence[_Summarised], num_classes: int) -> dict[str, Any]:
    """Return the summary of each split of all stores together."""
    names = split_order([name for store in stores for name in store.header["splits"] if name != WHOLE])
    summaries: dict[str, Any] = {}
    for name in (WHOLE, *names):
        rows = [store.rows(name) for store in stores]
        lengths = np.concatenate([store.lengths[chosen] for store, chosen in zip(stores, rows, strict=True)])
        labels = np.concatenate([store.class_numbers(chosen) for store, chosen in zip(stores, rows, strict=True)]) \
            if num_classes else None
        summaries[name] = summarise_lengths(lengths, labels, num_classes)
    return summaries


def check_types(first: Path, second: Path, one: dict[str, str], other: dict[str, str]) -> None:
    """Refuse two stores of which a column or track has not the same type; the message names both."""
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            raise disagreement(str(first), str(second), f"types of {name}", one.get(name), other.get(name), MERGE)
