"""Many stores read as one: rows are numbered through, and a shard is mapped when one of its rows is read first.

Place in the flow: manifest, or paths of stores -> [sharded] -> sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.agreement import joint_header
from seqpipe.columns import TextColumn
from seqpipe.described import Described
from seqpipe.errors import StoreError
from seqpipe.hashing import find_repeats, hash_texts
from seqpipe.joined import Joined, JoinedTexts, locate_part
from seqpipe.labels import write_number
from seqpipe.manifest import LISTS, TEXT, Shard, is_manifest, read_manifest
from seqpipe.splits import WHOLE
from seqpipe.store import Store
from seqpipe.survey import Opener, check_types, manifest_of, shard_of, types_of

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

OTHER_FILES = 64  # that a process may have open besides its shards
Data = Path | str | Sequence[Path | str]


class ShardedStore(Described):
    """Many stores as one, with the interface of ``Store``.

    Attributes:
        path: of the manifest; of the first store where there is none.
        header: of all shards together.
        manifest: the shards.
        offsets, values, metadata, tracks, splits: as those of a ``Store``, read where they are asked for.

    Args:
        data: a manifest, or the paths of stores and manifests, whose rows follow each other.
        mixed: read columns of numbers in one store and of text, or other numbers, in another as an import of
            everything would have them; else such stores are refused.
        opened: opens a store; by default anew where it is asked for.

    Raises:
        StoreError: a shard is missing or no store, or two of them cannot be one store.
    """

    def __init__(self, data: Data, *, mixed: bool = False, opened: Opener = Store) -> None:
        self._data, self._mixed, self._opened = data, mixed, opened
        self.manifest = read_manifest(Path(data)) if isinstance(data, Path | str) \
            else manifest_of(shard_paths(data), mixed=mixed, opened=opened)
        self.path, self.header = self.manifest.path, self.manifest.header
        shards = self.manifest.shards
        self._stores: list[Store | None] = [None] * len(shards)
        _allow_files(self.path, len(shards))
        rows, values = [shard.rows for shard in shards], [shard.values for shard in shards]
        self.bounds = Joined(lambda k: None, rows, "u8").bounds
        starts = Joined(lambda k: None, values, "u8").bounds
        dtype = self.alphabet.dtype if self.alphabet else np.dtype(self.header["encoding"]["dtype"]).newbyteorder("<")
        tail = (len(self.channels),) if self.kind == "features" else ()
        self.values = Joined(lambda k: self.shard(k).values, values, dtype, tail)
        self.offsets = Joined(self._offsets, [*rows, 1], "<u8", shifts=[*starts])
        types = self.manifest.types
        self.metadata = {name: self._column(name, types[f"metadata/{name}"], rows) for name in self.header["columns"]}
        self.tracks = {name.removeprefix("tracks/"): self._track(name.removeprefix("tracks/"), dtype, values)
                       for name, dtype in types.items() if name.startswith("tracks/")}
        self.splits = {name: self._split(name) for name in self.header["splits"] if name != WHOLE}

    def __len__(self) -> int:
        """Return N, the number of sequences of all shards."""
        return self.bounds[-1]

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self._data, "stamp": self.manifest.digest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["data"])  # type: ignore[misc]
        if self.manifest.digest != state["stamp"]:
            raise StoreError(f"{self.path}: other shards have taken this name since it was opened; start again, and "
                             "write new stores to new names while one is read", path=self.path)

    def shard(self, k: int) -> Store:
        """Return the ``k``-th shard, mapped the first time it is asked for.

        Raises:
            StoreError: it is damaged, or not the store that the manifest was made with.
        """
        store = self._stores[k]
        if store is None:
            store = self._stores[k] = self._open(k)
        return store

    def locate(self, row: int) -> tuple[int, int]:
        """Return the shard of a row, and the row there.

        Raises:
            StoreError: there is no such row.
        """
        if not 0 <= row < len(self):
            raise self._no_row(row, row)
        return locate_part(self.bounds, row)

    def sequence(self, row: int) -> np.ndarray:
        """Return a read-only view of sequence ``row``: (T,) tokens or (T, C) features.

        Raises:
            StoreError: the shard or the offsets of this row are damaged, or there is no such row.
        """
        k, local = self.locate(row)
        return self.shard(k).sequence(local)

    def lengths(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the lengths of some rows as int64.

        Raises:
            StoreError: a shard or the offsets of a row are damaged, or there is no such row.
        """
        counts = [shard.rows for shard in self.manifest.shards]
        if isinstance(rows, np.ndarray) and len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise self._no_row(int(rows.min()), int(rows.max()))
        return Joined(lambda k: _Lengths(self.shard(k)), counts, "<i8")[rows]

    def split_rows(self, split: str) -> Joined:
        """Return the ascending row numbers of a split, which are read where they are asked for.

        Raises:
            StoreError: the store has no such split.
        """
        if split not in self.splits:
            raise StoreError(f"{self.path}: no split {split!r}; this store has "
                             f"{', '.join(map(repr, self.splits)) or 'no splits'}", path=self.path)
        return self.splits[split]

    def column(self, name: str) -> Any:
        """Return a whole column of the metadata, which is read where it is asked for."""
        return self.metadata[name]

    def _open(self, k: int) -> Store:
        path, told = self.manifest.shard_path(k), self.manifest.shards[k]
        store = self._opened(path)
        found, header = shard_of(store, told.file), store.header
        if found != told:
            raise StoreError(f"{path}: not the store that {self.path} was made with ({_difference(found, told)}); put "
                             "that one back, or make the manifest again with seqpipe merge", path=path)
        joint_header([str(self.path), str(path)], [self.header, header])
        if not self._mixed and told.rows:  # without a row its columns have no type
            check_types(self.path, path, self.manifest.types, types_of(store))
        return store

    def _offsets(self, k: int) -> np.ndarray:
        return self.shard(k).offsets[:-1] if k < len(self._stores) else np.zeros(1, "<u8")

    def _column(self, name: str, dtype: str, rows: list[int]) -> Joined | JoinedTexts:
        def fetch(k: int) -> Any:
            return column_as(self.shard(k), name, dtype) if self._mixed else self.shard(k).column(name)

        return JoinedTexts(fetch, rows) if dtype in (TEXT, LISTS) else Joined(fetch, rows, dtype)

    def _track(self, name: str, dtype: str, values: list[int]) -> Joined:
        return Joined(lambda k: self.shard(k).tracks[name], values, dtype)

    def _split(self, name: str) -> Joined:
        counts = [shard.splits.get(name, 0) for shard in self.manifest.shards]
        return Joined(lambda k: self.shard(k).split_rows(name), counts, "<u8", shifts=self.bounds)

    def _no_row(self, first: int, last: int) -> StoreError:
        rows = f"row {first}" if first == last else f"rows {first} to {last}"
        return StoreError(f"{self.path}: no {rows}; expected 0 <= row < {len(self)}", path=self.path)


class _Lengths:
    """The lengths of a store's sequences, as something to slice."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getitem__(self, rows: Any) -> Any:
        return self._store.lengths(np.array([rows]))[0] if np.ndim(rows) == 0 and not isinstance(rows, slice) \
            else self._store.lengths(rows)


def open_store(data: Data | Store | ShardedStore) -> Store | ShardedStore:
    """Return what ``data`` names as one store.

    Args:
        data: the path of a store or of a manifest, a list of such paths, or a store that is open.

    Raises:
        StoreError: it is no store, or several that cannot be one.
    """
    if isinstance(data, Store | ShardedStore):
        return data
    if isinstance(data, Path | str):
        return ShardedStore(data) if is_manifest(Path(data)) else Store(data)
    paths = list(data)
    return open_store(paths[0]) if len(paths) == 1 else ShardedStore(paths)


def shard_paths(data: Data) -> list[Path]:
    """Return the paths of the stores that ``data`` names, those of manifests among them."""
    paths: list[Path] = []
    for path in map(Path, [data] if isinstance(data, Path | str) else data):
        if is_manifest(path):
            manifest = read_manifest(path)
            paths += [manifest.shard_path(k) for k in range(len(manifest.shards))]
        else:
            paths.append(path)
    return paths


def opener(paths: Sequence[Path]) -> Opener:
    """Return what opens each of some stores once, when it is asked for first, and keeps it open."""
    _allow_files(paths[0] if paths else Path(), len(paths))
    return cache(Store)


def check_ids(store: ShardedStore) -> None:
    """Refuse an id that stands in two shards.

    Raises:
        StoreError: there is one; the message names it and both shards.
    """
    columns = [store.shard(k).column("id") for k in range(len(store.manifest.shards))]
    keys = np.concatenate([hash_texts(column.values, column.offsets) for column in columns])
    ids: Any = store.metadata["id"]
    again, before = find_repeats(keys, lambda row: ids[row])
    if len(again):
        (k, row), (other, other_row) = store.locate(int(before[0])), store.locate(int(again[0]))
        one, two = store.manifest.shard_path(k), store.manifest.shard_path(other)
        raise StoreError(f"{one} and {two}: the id {ids[int(again[0])]!r} stands in row {row} of the first and in row "
                         f"{other_row} of the second (0-based); ids must be unique: rename one in the raw input and "
                         "import it again")


def column_as(store: Store, name: str, dtype: str) -> Any:
    """Return a column of numbers as other numbers, or as the texts they were read from."""
    column = store.column(name)
    if not isinstance(column, np.ndarray) or column.dtype.str == dtype:
        return column
    if dtype != TEXT:
        return column.astype(dtype)
    texts = [write_number(number, store.header["writing"][name]).encode() for number in column.tolist()]
    offsets = np.zeros(len(texts) + 1, "<u8")
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return TextColumn(np.frombuffer(b"".join(texts), "u1"), offsets, f"{store.path}: /metadata/{name}")


def _allow_files(path: Path, num_shards: int) -> None:
    """Let this process have a file more open for each shard: a map holds one, and other stores have theirs."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_shards + OTHER_FILES
    if needed > hard != resource.RLIM_INFINITY:
        raise StoreError(f"{path}: {num_shards} shards need {needed} open files, and this process may have {hard}; "
                         "raise the limit (ulimit -n), or merge the shards into fewer", path=path)
    if soft != resource.RLIM_INFINITY:
        wanted = max(needed, soft + num_shards)
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _difference(found: Shard, told: Shard) -> str:
    """Return the first thing that two descriptions of a shard differ in."""
    name = next(name for name in vars(told) if getattr(found, name) != getattr(told, name))
    return f"{name} {getattr(found, name)}, expected {getattr(told, name)}"
