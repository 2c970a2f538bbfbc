"""Read a store: every array of it is a plain ndarray over one read-only map of the file, or inflated from it.

Place in the flow: seqs.h5 -> locate -> [store] -> sequences.

Opening takes time and memory that do not depend on the number of sequences. A store holds no
HDF5 handle, pickles to its path, and is mapped again where it is unpickled.

Its arrays are the bytes of the file, whatever they are. The methods ``sequence``, ``lengths``,
``split_rows`` and ``column`` check each block on its first touch, as datasets do.
"""

from __future__ import annotations

import zlib
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.checking import Checked, Rule, ascending, finite, within
from seqpipe.chunks import Chunks, overlap, table_problem
from seqpipe.columns import Column, TextColumn, members_of
from seqpipe.described import Described
from seqpipe.errors import StoreError
from seqpipe.layout import block_checksums, dataset_name
from seqpipe.locate import locate
from seqpipe.mapping import Mapping
from seqpipe.soundness import checksum_problem, content_problem, parse_header, shape_problem


class Store(Described):
    """An open store.

    Attributes:
        path: of the file.
        mapping: of the file.
        header: the JSON header.
        arrays: every array by its path inside the file, read-only; ``Chunks`` where it is compressed.
        values: (M,) token ids or (M, C) features of all sequences end to end.
        offsets: (N+1,) uint64; sequence i is ``values[offsets[i]:offsets[i + 1]]``.
        metadata: (N,) numbers, texts or lists of class numbers by column, in the order of the input.
        tracks: (M,) numbers by name, aligned with ``values``.
        splits: ascending (n,) uint64 row numbers by name.
        checksums: (blocks,) uint32 by the path of the array they are of.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.mapping = Mapping(*locate(self.path))
        # The ends of most arrays, and some whole, are fetched at once: reading ahead of each could take megabytes.
        self.mapping.advise_all("MADV_RANDOM")
        extents = self.mapping.extents
        for name, extent in extents.items():
            if name == "header" or name.startswith("chunks/"):
                self.mapping.advise(name, "MADV_WILLNEED", 0, extent.num_bytes)
            elif name.endswith("offsets") and extent.num_bytes:
                self.mapping.advise(name, "MADV_WILLNEED", 0, 1)
                self.mapping.advise(name, "MADV_WILLNEED", extent.num_bytes - 1, extent.num_bytes)
        self.arrays: dict[str, Any] = {name: None if extent.chunk_rows else self.mapping.array(name)
                                       for name, extent in extents.items()}
        self._open_chunks()
        self._checked: dict[str, Checked] = {}
        self.checksums = {
            name.removeprefix("checksums/"): array
            for name, array in self.arrays.items() if name.startswith("checksums/")
        }
        self._require(checksum_problem(self.arrays))
        problem, self.header = parse_header(self.arrays)
        self._require(problem)
        self._require(shape_problem(self.arrays, self.alphabet.dtype if self.alphabet else None, self.header))
        self.values: np.ndarray = self.arrays["values"]
        self.offsets: np.ndarray = self.arrays["offsets"]
        self._ends = self.offsets.data
        self._require(content_problem(self.arrays, self.header))
        columns, splits = (members_of(self.arrays, group, self.path) for group in ("metadata", "splits"))
        self.metadata: dict[str, Column] = {name: columns[name] for name in self.header["columns"]}
        self.tracks: dict[str, np.ndarray] = members_of(self.arrays, "tracks", self.path)
        # In the order of the import: train, valid, test.
        self.splits: dict[str, np.ndarray] = {name: splits[name] for name in self.header["splits"] if name in splits}
        self.mapping.advise_all("MADV_NORMAL")

    def __len__(self) -> int:
        """Return N, the number of sequences."""
        return len(self.offsets) - 1

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "stamp": self._stamp}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]
        if self._stamp != state["stamp"]:
            raise StoreError(
                f"{self.path}: another store has taken this name since it was opened: it was {state['stamp']}, it is "
                f"{self._stamp}; start again, and write new stores to new names while one is read", path=self.path,
            )

    @cached_property
    def _stamp(self) -> str:
        """What tells this store from another one that takes its name: its size and a sum over all its checksums."""
        crc = 0
        for name in sorted(self.checksums):
            crc = zlib.crc32(self.checksums[name].data, zlib.crc32(name.encode(), crc))
        return f"{len(self.mapping)} bytes with checksums {crc:08x}"

    def check_size(self) -> None:
        """Refuse a file that was cut short under its map: the system kills a process that reads what is gone.

        Raises:
            StoreError: the file is shorter than when it was opened.
        """
        if (size := self.mapping.size()) < len(self.mapping):
            raise StoreError(f"{self.path}: cut short while it was read: {size} bytes, {len(self.mapping)} when it was "
                             "opened; never write into a store that is read, replace it by a new file", path=self.path)

    def sequence(self, row: int) -> np.ndarray:
        """Return a read-only view of sequence ``row``: (T,) tokens or (T, C) features.

        Raises:
            StoreError: the offsets of this row are damaged, or there is no such row.
        """
        if not 0 <= row < len(self):
            raise self.no_row(row)
        self._touch("offsets", row, row + 2)
        start, end = self._ends[row], self._ends[row + 1]
        if not start <= end <= len(self.values):
            raise self.bad_offsets("offsets", row)
        self._touch("values", start, end)
        return self.values[start:end]

    def lengths(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the lengths of some rows as int64.

        Raises:
            StoreError: the offsets of a row are damaged, or there is no such row.
        """
        numbers: Any = range(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows, np.int64)
        if isinstance(rows, slice) and numbers.step == 1:
            self._touch("offsets", numbers.start, max(numbers.start, numbers.stop) + 1)
            ends = self.offsets[numbers.start : max(numbers.start, numbers.stop) + 1]
            starts, stops = ends[:-1], ends[1:]
        else:
            index = np.asarray(numbers, np.int64)
            if len(index) and not 0 <= index.min() <= index.max() < len(self):
                raise StoreError(
                    f"{self.path}: rows {index.min()} to {index.max()} are asked for; expected "
                    f"0 <= row < {len(self)}; run: seqpipe verify {self.path}", path=self.path,
                )
            self.checked("offsets").touch_items(np.concatenate([index, index + 1]))
            starts, stops = self.offsets[index], self.offsets[index + 1]
        bad = (starts > stops) | (stops > len(self.values))
        if bad.any():
            raise self.bad_offsets("offsets", int(numbers[int(np.argmax(bad))]))
        return (stops - starts).astype(np.int64)

    def no_row(self, row: int) -> StoreError:
        """Return the error of a row that is not there: it comes from a split, and an IndexError would end a loop."""
        return StoreError(f"{self.path}: no row {row}; expected 0 <= row < {len(self)}; run: seqpipe verify "
                          f"{self.path}", path=self.path)

    def bad_offsets(self, name: str, row: int) -> StoreError:
        """Return the error of a row whose offsets, in the array ``name``, do not ascend or pass the end."""
        start, end = self.arrays[name][row : row + 2].tolist()
        total = len(self.arrays[name.removesuffix("offsets") + "values"])
        return StoreError(f"{self.path}: /{name}[{row}:{row + 2}] is {start}, {end}; expected start <= end <= {total}; "
                          f"run: seqpipe verify {self.path}", path=self.path)

    def split_rows(self, split: str) -> np.ndarray:
        """Return the ascending row numbers of a split.

        Raises:
            StoreError: the store has no such split.
        """
        if split not in self.splits:
            raise self.no_split(split)
        self._touch(f"splits/{dataset_name(split)}")
        return self.splits[split]

    def no_split(self, split: str) -> StoreError:
        """Return the error of a split that is not there."""
        return StoreError(f"{self.path}: no split {split!r}; this store has "
                          f"{', '.join(map(repr, self.splits)) or 'no splits'}", path=self.path)

    def column(self, name: str) -> Any:
        """Return a whole column of the metadata.

        Raises:
            StoreError: there is no such column, or a block of it is damaged.
        """
        if name not in self.metadata:
            raise StoreError(f"{self.path}: no column {name!r}; it has {', '.join(map(repr, self.metadata)) or 'none'}",
                             path=self.path)
        path = f"metadata/{dataset_name(name)}"
        for part in (path, f"{path}/offsets", f"{path}/values"):
            if part in self.arrays:
                self._touch(part)
        return self.metadata[name]

    def _touch(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Check the blocks of some items of an array; chunks are checked where they are inflated."""
        array = self.arrays[name]
        stop = len(array) if stop is None else stop
        if start < stop and not isinstance(array, Chunks):
            self.checked(name).touch(start, stop)

    def checked(self, name: str) -> Checked:
        """Return the array at ``name`` inside the file so that reading checks each block on its first touch."""
        if name not in self._checked:
            self._checked[name] = Checked(
                self.arrays[name], self.checksums[name], self.rule(name),
                lambda finding, low, high: self.bad_bytes(name, finding, low, high),
                partial(self.mapping.fetch, name),
            )
        return self._checked[name]

    def bad_bytes(self, name: str, finding: str, low: int, high: int) -> StoreError:
        """Return the error of the bytes ``low`` to ``high`` of an array in which something is off."""
        return StoreError(f"{self.path}: damaged: /{name}{finding}{self.hit(name, low, high)}; copy it again, or make "
                          f"it again with preprocess; for all that is off run: seqpipe verify {self.path}",
                          path=self.path)

    def hit(self, name: str, low: int, high: int) -> str:
        """Return in words which records the bytes ``low`` to ``high`` of an array belong to, where to any."""
        group, _, rest = name.partition("/")
        array = self.arrays[name]
        if not array.nbytes or not len(self) or group not in ("values", "offsets", "metadata", "tracks"):
            return ""
        width = array.nbytes // len(array)
        first, last = low // width, -(-high // width) - 1
        ends = self.offsets if group in ("values", "tracks") else \
            self.arrays[name.removesuffix("values") + "offsets"] if rest.endswith("/values") else None
        if ends is not None:
            first, last = (np.searchsorted(ends, np.array([first, last], ends.dtype), "right") - 1).tolist()
        first, last = max(0, min(first, len(self) - 1)), max(0, min(last, len(self) - 1))
        ids = self.metadata.get("id")
        try:
            names = f" ({ids[first]!r} to {ids[last]!r})" if isinstance(ids, TextColumn) else ""
        except StoreError:
            names = ""
        return f": rows {first} to {last} (0-based){names}"

    def rule(self, name: str) -> Rule | None:
        """Return what the numbers of an array must be, besides what its checksums say."""
        group, _, rest = name.partition("/")
        if name == "values":
            if self.alphabet is None:
                return finite(allow_nan=self.header["encoding"].get("missing") is True)
            return within("token", 1, self.alphabet.num_tokens)
        if name == "offsets" or group == "metadata" and rest.endswith("/offsets"):
            total = len(self.arrays[name.removesuffix("offsets") + "values"])
            return ascending(f"start <= end <= {total}", total, strict=False)
        if group == "splits":
            return ascending(f"rows that ascend, each < {len(self)}", len(self) - 1, strict=True)
        if name in ("metadata/label", "metadata/label/values") and self.header["label_type"] != "none":
            return within("label", 0, len(self.classes)) if self.classes else finite(allow_nan=False)
        if name == "tracks/target":
            classes = self.header.get("target_classes")
            return within("target", 0, len(classes)) if classes else finite(allow_nan=False)
        return None

    def _open_chunks(self) -> None:
        """Make the arrays that lie in chunks, once each table of chunks has been found good."""
        tables = {}
        for name, extent in self.mapping.extents.items():
            if extent.chunk_rows:
                table: Any = self.arrays.get(f"chunks/{name}")
                if problem := table_problem(extent, table, len(self.mapping)):
                    self._require(f"/chunks/{name}{problem}")
                found = block_checksums(table.reshape(-1).view("u1").data)
                if not np.array_equal(found, self.arrays.get(f"checksums/chunks/{name}", ())):
                    self._require(f"/chunks/{name} fails its CRC-32")
                tables[name] = table
                self.arrays[name] = Chunks(extent, table, self.mapping.data, partial(self.bad_bytes, name))
            elif name.startswith("chunks/") and not (
                    (array := self.mapping.extents.get(name.removeprefix("chunks/"))) and array.chunk_rows):
                self._require(f"/{name} belongs to no array in chunks")
        self._require(overlap(tables, [item for item in self.mapping.extents.items() if item[0] not in tables]))

    def _require(self, finding: str | None) -> None:
        """Refuse a store in which something was found."""
        if finding:
            raise StoreError(f"{self.path}: damaged: {finding}; make it again with preprocess", path=self.path)
