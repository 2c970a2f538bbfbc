"""Read a store: every array of it is a plain ndarray over one read-only map of the file, or inflated from it.

Place in the flow: seqs.h5 -> locate -> [store] -> sequences.

Opening takes time and memory that do not depend on the number of sequences. A store holds no
HDF5 handle, pickles to its path, and is mapped again where it is unpickled.

Its arrays are the bytes of the file, whatever they are. The methods ``sequence``, ``lengths``,
``split_rows`` and ``column`` check each block on its first touch, as datasets do.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import zlib
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from seqpipe.alphabet import Alphabet
from seqpipe.checking import Checked, Rule, ascending, finite, within
from seqpipe.chunks import Chunks, overlap, table_problem
from seqpipe.errors import StoreError
from seqpipe.header import MAX_HEADER, header_problem
from seqpipe.layout import CHECKSUM_BLOCK, Extent, block_checksums, column_name, dataset_name, num_blocks
from seqpipe.locate import locate

LIBC = ctypes.CDLL(None)
PROBED = 8  # bytes looked at to know whether many are in memory


class TextColumn:
    """(N,) strings held as UTF-8 bytes end to end; read one at a time."""

    def __init__(self, values: np.ndarray, offsets: np.ndarray, place: str) -> None:
        self.values = values
        self.offsets = offsets
        self._bytes, self._ends = values.data, offsets.data
        self._place = place

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: int) -> str:
        """Return text ``i``, 0 <= i < N.

        Raises:
            IndexError: there is no such text.
            StoreError: its offsets are damaged, or it is no UTF-8.
        """
        if i < 0:
            raise IndexError(f"{self._place}: index {i} is out of range; expected 0 <= index < {len(self)}")
        start, end = self._ends[i], self._ends[i + 1]
        if not start <= end <= len(self._bytes):
            raise StoreError(f"{self._place}: the offsets of text {i} are {start}, {end}; expected "
                             f"start <= end <= {len(self._bytes)}; run: seqpipe verify")
        try:
            return str(self._bytes[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise StoreError(f"{self._place}: text {i} is no UTF-8 ({error}); run: seqpipe verify") from None


class ListColumn:
    """(N,) arrays of int32 class numbers, held end to end; read one at a time."""

    def __init__(self, values: np.ndarray, offsets: np.ndarray) -> None:
        self.values, self.offsets = values, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        """Return the class numbers of row ``i``, 0 <= i < N, as an array of its own."""
        if not 0 <= i < len(self):
            raise IndexError(f"index {i} is out of range; expected 0 <= index < {len(self)}")
        return self.values[int(self.offsets[i]) : int(self.offsets[i + 1])].copy()

    def numbers(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the class numbers of some rows, end to end in the order of the store."""
        chosen = np.zeros(len(self), bool)
        chosen[rows if isinstance(rows, slice) else rows.astype(np.int64)] = True
        return self.values[np.repeat(chosen, np.diff(self.offsets).astype(np.int64))]


Column = np.ndarray | TextColumn | ListColumn


class Store:
    """An open store.

    Attributes:
        path: of the file.
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
        self._map, self._extents = locate(self.path)
        self._address = np.frombuffer(self._map, "u1").ctypes.data
        self.arrays: dict[str, Any] = {name: None if extent.chunk_rows else _map_array(self._map, extent)
                                       for name, extent in self._extents.items()}
        self._open_chunks()
        self._checked: dict[str, Checked] = {}
        self.checksums = {
            name.removeprefix("checksums/"): array
            for name, array in self.arrays.items() if name.startswith("checksums/")
        }
        self._check_checksums()
        self.header = self._read_header()
        self._check_shapes()
        self.values: np.ndarray = self.arrays["values"]
        self.offsets: np.ndarray = self.arrays["offsets"]
        self._ends = self.offsets.data
        columns = self._group("metadata")
        if sorted(self.header["columns"]) != sorted(columns):
            self._damaged(f"/header names the columns {self.header['columns']}, /metadata holds {sorted(columns)}")
        self.metadata: dict[str, Column] = {name: columns[name] for name in self.header["columns"]}
        self.tracks: dict[str, np.ndarray] = self._group("tracks")  # type: ignore[assignment]
        splits = self._group("splits")
        order = [name for name in self.header["splits"] if name in splits]  # of the import: train, valid, test
        self.splits: dict[str, np.ndarray] = {name: splits.pop(name) for name in order} | splits  # type: ignore
        self._check_header()

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
        return f"{len(self._map)} bytes with checksums {crc:08x}"

    def check_size(self) -> None:
        """Refuse a file that was cut short under its map: the system kills a process that reads what is gone.

        Raises:
            StoreError: the file is shorter than when it was opened.
        """
        if (size := self._map.size()) < len(self._map):
            raise StoreError(f"{self.path}: cut short while it was read: {size} bytes, {len(self._map)} when it was "
                             "opened; never write into a store that is read, replace it by a new file", path=self.path)

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
                partial(self._fetch, name),
            )
        return self._checked[name]

    def bad_bytes(self, name: str, finding: str, low: int, high: int) -> StoreError:
        """Return the error of the bytes ``low`` to ``high`` of an array in which something is off."""
        return StoreError(f"{self.path}: damaged: /{name}{finding}{self.hit(name, low, high)}; copy it again, or make "
                          f"it again with preprocess; for all that is off run: seqpipe verify {self.path}",
                          path=self.path)

    def advise(self, name: str, advice: str, start: int, stop: int) -> None:
        """Tell the system how the bytes ``start`` to ``stop`` of an array will be read, where it listens.

        Of an array in chunks, those are bytes of the file.
        """
        if hasattr(mmap, advice):
            first = self._extents[name].offset + start
            page = first - first % mmap.PAGESIZE
            self._map.madvise(getattr(mmap, advice), page, first + stop - start - page)

    def _fetch(self, name: str, blocks: list[int]) -> None:
        """Have the system fetch the blocks of an array that begin at some bytes, all at once, from a disk."""
        if not self.in_memory(name, blocks):
            for start in blocks:
                self.advise(name, "MADV_WILLNEED", start, min(start + CHECKSUM_BLOCK, self.arrays[name].nbytes))

    def in_memory(self, name: str, places: list[int]) -> bool:
        """Say whether a few of some bytes of an array are in the page cache; yes where the system does not tell."""
        # Not by a read that must not wait (RWF_NOWAIT): under newer kernels it does wait, and has pages fetched.
        mincore: Any = getattr(LIBC, "mincore", None)
        page, vector = mmap.PAGESIZE, ctypes.create_string_buffer(1)
        offset, most = self._extents[name].offset, len(self._map) - 1
        for place in places[:: max(1, len(places) // PROBED)] if mincore else []:
            at = min(offset + place, most) // page * page
            if mincore(ctypes.c_void_p(self._address + at), ctypes.c_size_t(1), vector) == 0 and not vector.raw[0] & 1:
                return False
        return True

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

    def _group(self, group: str) -> dict[str, Column]:
        """Return the members of a group: arrays, or text columns of values + offsets."""
        members: dict[str, Column] = {}
        for name, array in self.arrays.items():
            if name.startswith(group + "/"):
                link, _, part = name.removeprefix(group + "/").partition("/")
                column = column_name(link)
                if dataset_name(column) != link:  # else two names could stand for one column
                    self._damaged(f"/{group}/{link} is not how the name {column!r} is written")
                if not part:
                    members[column] = array
                elif part == "values":
                    ends = self.arrays[f"{group}/{link}/offsets"]
                    members[column] = TextColumn(array, ends, f"{self.path}: /{group}/{link}") \
                        if array.dtype == "u1" else ListColumn(array, ends)
        return members

    def _open_chunks(self) -> None:
        """Make the arrays that lie in chunks, once each table of chunks has been found good."""
        tables = {}
        for name, extent in self._extents.items():
            if extent.chunk_rows:
                table: Any = self.arrays.get(f"chunks/{name}")
                if problem := table_problem(extent, table, len(self._map)):
                    self._damaged(f"/chunks/{name}{problem}")
                found = block_checksums(table.reshape(-1).view("u1").data)
                if not np.array_equal(found, self.arrays.get(f"checksums/chunks/{name}", ())):
                    self._damaged(f"/chunks/{name} fails its CRC-32")
                tables[name] = table
                self.arrays[name] = Chunks(extent, table, memoryview(self._map), partial(self.bad_bytes, name))
            elif name.startswith("chunks/") and not (
                    (array := self._extents.get(name.removeprefix("chunks/"))) and array.chunk_rows):
                self._damaged(f"/{name} belongs to no array in chunks")
        if problem := overlap(tables, [item for item in self._extents.items() if item[0] not in tables]):
            self._damaged(problem)

    def _check_checksums(self) -> None:
        """Refuse an array without a table of checksums, and a table without its array."""
        for name, array in self.arrays.items():
            if name.startswith("checksums/"):
                if name.removeprefix("checksums/") not in self.arrays:
                    self._damaged(f"/{name} belongs to no array")
            else:
                table = self.checksums.get(name)
                if table is None or table.dtype != "<u4" or table.shape != (num_blocks(array.nbytes),):
                    self._damaged(f"/checksums/{name} is missing or has the wrong shape")

    def _read_header(self) -> dict[str, Any]:
        """Parse the JSON header; refuse one of another shape than readers rely on."""
        raw = self.arrays.get("header")
        if raw is None or raw.dtype != "u1" or raw.ndim != 1 or len(raw) > MAX_HEADER:
            self._damaged(f"/header is missing, or no text of up to {MAX_HEADER} bytes")
        if (block_checksums(raw.data) != self.checksums["header"]).any():
            self._damaged("/header fails its CRC-32")
        try:
            header = json.loads(raw.tobytes())
            json.dumps(header, ensure_ascii=False).encode()  # refuses half characters, which cannot be printed
        except (ValueError, RecursionError, MemoryError) as error:
            self._damaged(f"/header is no JSON ({error})")
        if problem := header_problem(header):
            self._damaged(f"/{problem} is missing, or not what it should be")
        return header

    def _check_shapes(self) -> None:
        """Refuse arrays whose shapes or types do not fit together; reads no more than their ends."""
        values, offsets = self.arrays.get("values"), self.arrays.get("offsets")
        if values is None or offsets is None:
            self._damaged("/values or /offsets is missing")
        dtype = values.dtype if self.alphabet is None else self.alphabet.dtype
        columns = () if self.alphabet is not None else (len(self.channels),)
        if values.dtype != dtype or not values.ndim or values.shape[1:] != columns:
            self._damaged(f"/values is {values.dtype} of shape {values.shape}, expected {dtype} of {('M', *columns)}")
        told = self.header["encoding"].get("dtype", dtype.name)
        if told not in (dtype.name, dtype.str):
            self._damaged(f"/values is {dtype}, /header says {told!r}")
        self._check_offsets("offsets", offsets, len(values))
        rows = len(offsets) - 1
        for name, array in self.arrays.items():
            group, _, rest = name.partition("/")
            if group == "metadata":
                self._check_column(name, rest, array, rows)
            elif group == "tracks" and array.shape != (len(values),):
                self._damaged(f"/{name} has shape {array.shape}, expected ({len(values)},)")
            elif group == "splits":
                if array.ndim != 1 or array.dtype != "<u8" or len(array) > rows:
                    self._damaged(f"/{name} is {array.dtype} of shape {array.shape}, expected row numbers")
                elif len(array) and array[-1] >= rows:
                    self._damaged(f"/{name} holds row {array[-1]}; expected rows < {rows}")

    def _check_column(self, name: str, rest: str, array: np.ndarray, rows: int) -> None:
        column, _, part = rest.partition("/")
        if not part:
            if array.shape != (rows,):
                self._damaged(f"/{name} has shape {array.shape}, expected ({rows},)")
        elif part == "values":
            offsets = self.arrays.get(f"metadata/{column}/offsets")
            if offsets is None or offsets.shape != (rows + 1,) or array.dtype not in ("u1", "<i4") \
                    or array.ndim != 1:
                self._damaged(f"/metadata/{column} is no text column of {rows} rows, nor one of class numbers")
            else:
                self._check_offsets(f"metadata/{column}/offsets", offsets, len(array))
        elif f"metadata/{column}/values" not in self.arrays:
            self._damaged(f"/metadata/{column}/values is missing")

    def _check_offsets(self, name: str, offsets: np.ndarray, total: int) -> None:
        if offsets.dtype != "<u8" or offsets.ndim != 1 or not len(offsets):
            self._damaged(f"/{name} is {offsets.dtype} of shape {offsets.shape}, expected (N+1,) uint64")
        elif offsets[0] != 0 or offsets[-1] != total:
            self._damaged(f"/{name} runs from {offsets[0]} to {offsets[-1]}, expected 0 to {total}")

    def _check_header(self) -> None:
        """Refuse a header that does not belong to these arrays."""
        label, label_type = self.metadata.get("label"), self.header["label_type"]
        kind = label.dtype.kind if isinstance(label, np.ndarray) else "list" if isinstance(label, ListColumn) else None
        kinds = {"class": ("i", "u"), "number": ("f",), "multilabel": ("list",)}
        if label_type != "none" and kind not in kinds[label_type]:
            self._damaged(f"/metadata/label does not hold labels of the type {label_type!r}")
        if "id" in self.metadata and not isinstance(self.metadata["id"], TextColumn):
            self._damaged("/metadata/id is no column of text")
        target = self.arrays.get("tracks/target")
        if self.header.get("target_classes") and (target is None or target.dtype not in ("u1", "<i4")):
            self._damaged("/tracks/target does not hold the classes that /header names")
        sizes = {name: len(rows) for name, rows in self.splits.items()} | {"all": len(self)}
        found = {name: part["sequences"] for name, part in self.header["splits"].items()}
        if found != sizes or self.header["splits"]["all"]["values"] != len(self.values):
            self._damaged(f"/header tells splits of {found}, the arrays are of {sizes}")

    def _damaged(self, finding: str) -> NoReturn:
        raise StoreError(f"{self.path}: damaged: {finding}; make it again with preprocess", path=self.path)


def _map_array(mapped: mmap.mmap, extent: Extent) -> np.ndarray:
    """Return one array as a plain read-only ndarray over the map."""
    count = math.prod(extent.shape)
    array = np.frombuffer(mapped, extent.dtype, count, extent.offset) if count else np.empty(0, extent.dtype)
    array = array.reshape(extent.shape)
    array.flags.writeable = False
    return array
