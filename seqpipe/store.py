"""Read a store: every array of it is a plain ndarray over one read-only map of the file.

Place in the flow: seqs.h5 -> locate -> [store] -> sequences.

Opening takes time and memory that do not depend on the number of sequences. A store holds no
HDF5 handle, pickles to its path, and is mapped again where it is unpickled.
"""

from __future__ import annotations

import json
import mmap
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.alphabet import Alphabet
from seqpipe.errors import StoreError
from seqpipe.layout import column_name, num_blocks
from seqpipe.locate import Extent, locate


class TextColumn:
    """(N,) strings held as UTF-8 bytes end to end; read one at a time."""

    def __init__(self, values: np.ndarray, offsets: np.ndarray) -> None:
        self.values = values
        self.offsets = offsets
        self._bytes, self._ends = values.data, offsets.data

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: int) -> str:
        return str(self._bytes[self._ends[i] : self._ends[i + 1]], "utf-8")


Column = np.ndarray | TextColumn


class Store:
    """An open store.

    Attributes:
        path: of the file.
        header: the JSON header.
        arrays: every array by its path inside the file, read-only.
        values: (M,) token ids or (M, C) features of all sequences end to end.
        offsets: (N+1,) uint64; sequence i is ``values[offsets[i]:offsets[i + 1]]``.
        metadata: (N,) numbers or texts by column, in the order of the input.
        tracks: (M,) numbers by name, aligned with ``values``.
        splits: ascending (n,) uint64 row numbers by name.
        checksums: (blocks,) uint32 by the path of the array they are of.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.arrays = _map_arrays(self.path, locate(self.path))
        self.header = _read_header(self.path, self.arrays)
        self._check_shapes()
        self.values: np.ndarray = self.arrays["values"]
        self.offsets: np.ndarray = self.arrays["offsets"]
        self._ends = self.offsets.data
        columns = self._group("metadata")
        order = [name for name in self.header["columns"] if name in columns]
        self.metadata: dict[str, Column] = {name: columns[name] for name in order or columns}
        self.tracks: dict[str, np.ndarray] = self._group("tracks")  # type: ignore[assignment]
        self.splits: dict[str, np.ndarray] = self._group("splits")  # type: ignore[assignment]
        self.checksums = {
            name.removeprefix("checksums/"): array
            for name, array in self.arrays.items() if name.startswith("checksums/")
        }

    def __len__(self) -> int:
        """Return N, the number of sequences."""
        return len(self.offsets) - 1

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    @property
    def kind(self) -> str:
        """``tokens`` or ``features``."""
        return str(self.header["kind"])

    @cached_property
    def alphabet(self) -> Alphabet | None:
        """The alphabet of tokens; None for features."""
        return Alphabet.from_dict(self.header["encoding"]) if self.kind == "tokens" else None

    @property
    def classes(self) -> list[str]:
        """Class names by class number; empty without classes."""
        return list(self.header["classes"])

    @property
    def channels(self) -> list[str]:
        """Channel names; empty for tokens."""
        return list(self.header["channels"])

    def sequence(self, row: int) -> np.ndarray:
        """Return a read-only view of sequence ``row``: (T,) tokens or (T, C) features.

        Raises:
            StoreError: the offsets of this row are damaged.
        """
        start, end = self._ends[row], self._ends[row + 1]
        if not start <= end <= len(self.values):
            raise StoreError(
                f"{self.path}: /offsets[{row}:{row + 2}] is {start}, {end}; expected "
                f"start <= end <= {len(self.values)}; run: seqpipe verify {self.path}",
                path=self.path,
            )
        return self.values[start:end]

    def lengths(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the lengths of some rows as int64."""
        if isinstance(rows, slice):
            first, last, step = rows.indices(len(self))
            rows = np.arange(first, last, step)
            if step == 1:
                return np.diff(self.offsets[first : max(first, last) + 1]).astype(np.int64)
        rows = np.asarray(rows, np.int64)
        return (self.offsets[rows + 1] - self.offsets[rows]).astype(np.int64)

    def split_rows(self, split: str) -> np.ndarray:
        """Return the ascending row numbers of a split.

        Raises:
            StoreError: the store has no such split.
        """
        if split not in self.splits:
            raise StoreError(
                f"{self.path}: no split {split!r}; this store has "
                f"{', '.join(map(repr, self.splits)) or 'no splits'}",
                path=self.path,
            )
        return self.splits[split]

    def _group(self, group: str) -> dict[str, Column]:
        """Return the members of a group: arrays, or text columns of values + offsets."""
        members: dict[str, Column] = {}
        for name, array in self.arrays.items():
            if name.startswith(group + "/"):
                link, _, part = name.removeprefix(group + "/").partition("/")
                if not part:
                    members[column_name(link)] = array
                elif part == "values":
                    members[column_name(link)] = TextColumn(array, self.arrays[f"{group}/{link}/offsets"])
        return members

    def _check_shapes(self) -> None:
        """Refuse arrays whose shapes or types do not fit together; reads no more than their ends."""
        values, offsets = self.arrays.get("values"), self.arrays.get("offsets")
        if values is None or offsets is None:
            self._damaged("/values or /offsets is missing")
            return
        tokens = self.kind == "tokens"
        if (values.ndim, values.dtype.kind) != (1, "u") if tokens else values.ndim != 2:
            self._damaged(f"/values is {values.dtype} of shape {values.shape}, which does not fit {self.kind}")
        _check_offsets(self, "offsets", offsets, len(values))
        rows = len(offsets) - 1
        for name, array in self.arrays.items():
            group, _, rest = name.partition("/")
            if group == "metadata":
                self._check_column(name, rest, array, rows)
            elif group == "tracks" and array.shape != (len(values),):
                self._damaged(f"/{name} has shape {array.shape}, expected ({len(values)},)")
            elif group == "splits" and (array.ndim != 1 or array.dtype != "<u8" or len(array) > rows):
                self._damaged(f"/{name} is {array.dtype} of shape {array.shape}, expected row numbers")
            if group != "checksums":
                table = self.arrays.get(f"checksums/{name}")
                if table is None or table.dtype != "<u4" or table.shape != (num_blocks(array.nbytes),):
                    self._damaged(f"/checksums/{name} is missing or has the wrong shape")

    def _check_column(self, name: str, rest: str, array: np.ndarray, rows: int) -> None:
        column, _, part = rest.partition("/")
        if not part:
            if array.shape != (rows,):
                self._damaged(f"/{name} has shape {array.shape}, expected ({rows},)")
        elif part == "values":
            offsets = self.arrays.get(f"metadata/{column}/offsets")
            if offsets is None or offsets.shape != (rows + 1,) or array.dtype != "u1" or array.ndim != 1:
                self._damaged(f"/metadata/{column} is no text column of {rows} rows")
            else:
                _check_offsets(self, f"metadata/{column}/offsets", offsets, len(array))
        elif part != "offsets" or f"metadata/{column}/values" not in self.arrays:
            self._damaged(f"/{name} is not expected there")

    def _damaged(self, finding: str) -> None:
        raise StoreError(f"{self.path}: damaged: {finding}; make it again with preprocess", path=self.path)


def _check_offsets(store: Store, name: str, offsets: np.ndarray, total: int) -> None:
    if offsets.dtype != "<u8" or offsets.ndim != 1 or not len(offsets):
        store._damaged(f"/{name} is {offsets.dtype} of shape {offsets.shape}, expected (N+1,) uint64")
    elif offsets[0] != 0 or offsets[-1] != total:
        store._damaged(f"/{name} runs from {offsets[0]} to {offsets[-1]}, expected 0 to {total}")


def _map_arrays(path: Path, extents: dict[str, Extent]) -> dict[str, np.ndarray]:
    """Map the file once and return each array as a plain read-only ndarray over it."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {}
    for name, extent in extents.items():
        if extent.offset + extent.num_bytes > len(mapped):
            raise StoreError(f"{path}: the file shrank while it was opened; open it again", path=path)
        count = extent.num_bytes // extent.dtype.itemsize
        array = np.frombuffer(mapped, extent.dtype, count, extent.offset) if count else np.empty(0, extent.dtype)
        arrays[name] = array.reshape(extent.shape)
        arrays[name].flags.writeable = False
    return arrays


def _read_header(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Parse the JSON header and check that what readers rely on is there."""
    raw = arrays.get("header")
    try:
        header = json.loads(raw.tobytes() if raw is not None and raw.dtype == "u1" else b"")
        ok = (
            header["kind"] in ("tokens", "features")
            and all(isinstance(header[key], list) for key in ("classes", "channels", "columns"))
            and all(isinstance(header[key], dict) for key in ("encoding", "splits", "input", "provenance"))
            and (header["kind"] != "tokens" or Alphabet.from_dict(header["encoding"]).num_tokens > 1)
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{path}: damaged: /header is not the JSON of a store ({error})", path=path) from None
    if not ok:
        raise StoreError(f"{path}: damaged: /header does not describe tokens or features", path=path)
    return header
