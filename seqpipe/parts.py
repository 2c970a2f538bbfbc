"""Read the closed parts of an import as arrays: mapped, in order, with or without some of the rows.

Place in the flow: part folders -> [parts] -> assembly.

A part holds the records of one slice of the input, or of some small files: a folder of spools and a
``part.json``, which lists them and the slices. N is the number of records of all parts together.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.hashing import find_repeats, hash_texts, identity_of, sample_hashes
from seqpipe.spool import Spool

STATE = "part.json"
ROWS = 1 << 15  # rows looked at together, at most
BLOCK = 1 << 22  # items in a block, about


class Part:
    """One closed part.

    Args:
        folder: where its spools lie.
        state: what ``part.json`` is to hold, where it is not there yet.

    Attributes:
        folder: as given.
        state: what ``part.json`` holds.
        pieces: of each slice in order its path, format, start and end, and how many records were read and kept.
        rows: the number of its records.

    Raises:
        OSError, ValueError, KeyError: the folder holds no complete part.
    """

    def __init__(self, folder: Path, state: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.state: dict[str, Any] = state or json.loads((folder / STATE).read_text("utf-8"))
        self.pieces: list[dict[str, Any]] = self.state["pieces"]
        self.rows: int = self.state["rows"]
        self._arrays: dict[str, dict[str, Any]] = self.state["arrays"]
        for name, array in self._arrays.items():
            size = (folder / name).stat().st_size if array["items"] else 0
            if size != array["items"] * np.dtype(array["dtype"]).itemsize:
                raise ValueError(f"{folder / name}: {size} bytes")

    def array(self, name: str) -> np.ndarray:
        """Return a spool's items, read-only and mapped."""
        array = self._arrays[name]
        if not array["items"]:
            return np.empty(0, array["dtype"])
        return np.asarray(np.memmap(array.get("path", self.folder / name), array["dtype"], "r"))

    def add_hashes(self, seed: int, *, sequences: bool) -> None:
        """Set the hashes of ids and sequences aside; whoever makes the part does it, many at a time.

        Args:
            seed: of the ids' hashes.
            sequences: whether those of sequences will be asked for.
        """
        found = {}
        if self.state["ids"]:
            found[f"id.hashes{seed}"] = Ragged([self], "id").hashes(seed)
        if sequences:
            found["values.keys"] = sequences_of([self]).keys()
        for name, hashes in found.items():
            spool = Spool(self.folder / name, "<u8")
            spool.extend(hashes)
            self._arrays[name] = spool.close()

    def hashes(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return (rows,) uint64 hashes that were set aside, or else those made now."""
        return self.array(name) if name in self._arrays else make()

    def adopt(self, name: str, spool: Spool) -> None:
        """Add a spool that lies elsewhere."""
        self._arrays[name] = {"path": str(spool.path), **spool.close()}

    def piece(self, row: int) -> dict[str, Any]:
        """Return the piece that a row is of."""
        ends = list(accumulate(piece["rows"] for piece in self.pieces))
        return self.pieces[bisect_right(ends, row)]

    def numbers(self) -> np.ndarray:
        """Return (rows,) the number of each record among those read, from 1: some may have been left out."""
        return np.delete(np.arange(1, self.state["read"] + 1), self.array("skipped").astype(np.int64) - 1)


class Rows:
    """Numbers of all parts end to end, one a record."""

    def __init__(self, parts: Sequence[Part], name: str, keep: np.ndarray | None = None) -> None:
        self._parts, self._name, self._keep = parts, name, keep

    def array(self) -> np.ndarray:
        """Return (N,) the numbers of the records kept, in memory."""
        pieces = [part.array(self._name) for part in self._parts]
        items = np.concatenate(pieces) if pieces else np.empty(0, np.uint64)
        return items if self._keep is None else items[self._keep]


class Ragged:
    """Rows of any length of all parts end to end.

    Args:
        parts: in order.
        name: of the spool of values.
        lengths: of the spool of lengths (default: the one beside it).
        width: items a unit of length takes.
        keep: (N,) bool, the records kept; None keeps all.
    """

    def __init__(self, parts: Sequence[Part], name: str, *, lengths: str = "", width: int = 1,
                 keep: np.ndarray | None = None) -> None:
        self._parts, self._name, self._width, self._keep = parts, name, width, keep
        self._lengths_name = lengths or f"{name}.lengths"

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the items."""
        return self._parts[0].array(self._name).dtype

    def lengths(self) -> np.ndarray:
        """Return (N,) uint64: the length of each row kept, in memory."""
        return Rows(self._parts, self._lengths_name, self._keep).array()

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the items of the rows kept, end to end, in blocks of whole rows and limited size."""
        return (block for block, _ in self.blocks_of_rows())

    def blocks_of_rows(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield blocks, and the lengths of their rows."""
        for part, lengths, keep in self._by_part():
            values, start, first = part.array(self._name), 0, 0
            ends = np.cumsum(lengths) * np.uint64(self._width)
            while first < part.rows:
                last = max(first + 1, int(np.searchsorted(ends, np.uint64(start + BLOCK), "right")))
                last = min(last, first + ROWS, part.rows)
                end = int(ends[last - 1])
                block, widths = values[start:end], lengths[first:last].astype(np.int64)
                if not (kept := keep[first:last]).all():
                    block, widths = block[np.repeat(kept, widths * self._width)], widths[kept]
                yield block, widths
                first, start = last, end

    def rows(self) -> Iterator[bytes]:
        """Yield the bytes of each row kept; for rows of single bytes."""
        for rows in self._rows():
            yield from rows

    def _rows(self) -> Iterator[list[bytes]]:
        for block, lengths in self.blocks_of_rows():
            data, ends = block.tobytes(), np.cumsum(lengths).tolist()
            yield list(map(data.__getitem__, map(slice, [0, *ends], ends)))

    def distinct(self) -> Iterator[str]:
        """Yield every text that stands in a row kept, far fewer times than it stands there."""
        for rows in self._rows():
            yield from map(bytes.decode, dict.fromkeys(rows))

    def numbered(self) -> tuple[np.ndarray, list[str]]:
        """Return (N,) int64 which text each row kept is, and the texts, each once, as they come first."""
        seen: dict[bytes, int] = {}
        pieces = [np.empty(0, np.int64)]
        for rows in self._rows():
            for row in dict.fromkeys(rows):
                seen.setdefault(row, len(seen))
            pieces.append(np.fromiter(map(seen.__getitem__, rows), np.int64, len(rows)))
        return np.concatenate(pieces), list(map(bytes.decode, seen))

    def texts(self) -> Iterator[str]:
        """Yield each row kept, decoded from UTF-8."""
        return map(bytes.decode, self.rows())

    def hashes(self, seed: int = 0) -> np.ndarray:
        """Return (N,) uint64 hashes of the rows kept, in memory; for rows of single bytes."""
        pieces = []
        for part, lengths, keep in self._by_part():
            make = partial(hash_texts, part.array(self._name), offsets_of(lengths), seed=seed)
            pieces.append(part.hashes(f"{self._name}.hashes{seed}", make)[keep])
        return np.concatenate(pieces)

    def keys(self) -> np.ndarray:
        """Return (N,) uint64 keys of the rows kept, in memory; equal where rows are equal, and rarely elsewhere."""
        pieces = []
        for part, lengths, keep in self._by_part():
            make = partial(sample_hashes, part.array(self._name).reshape(-1, self._width), offsets_of(lengths))
            pieces.append(part.hashes(f"{self._name}.keys", make)[keep])
        return np.concatenate(pieces)

    def repeats(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows kept that equal an earlier one, and the first each equals, numbered among those kept."""
        read: Callable[[int], bytes] | None = None

        def identity(i: int) -> bytes:
            nonlocal read
            read = read or self._reader()
            return identity_of(read(i))

        return find_repeats(self.keys(), identity)

    def _reader(self) -> Callable[[int], bytes]:
        """Return what reads the bytes of a row, by its number among those kept."""
        arrays = [part.array(self._name) for part in self._parts]
        starts, ends, counts = [], [], []
        for part, lengths, keep in self._by_part():
            bounds = offsets_of(lengths) * np.uint64(self._width)
            starts.append(bounds[:-1][keep])
            ends.append(bounds[1:][keep])
            counts.append(len(starts[-1]))
        firsts = [0, *accumulate(counts)]

        def read(i: int) -> bytes:
            k = bisect_right(firsts, i) - 1
            row = i - firsts[k]
            return arrays[k][int(starts[k][row]) : int(ends[k][row])].tobytes()

        return read

    def text(self, i: int) -> str:
        """Return row ``i`` of all rows, kept or not, decoded from UTF-8."""
        part, row = find_part(self._parts, i)
        lengths = part.array(self._lengths_name)[: row + 1]
        end = int(lengths.sum())
        return part.array(self._name)[end - int(lengths[-1]) : end].tobytes().decode()

    def _by_part(self) -> Iterator[tuple[Part, np.ndarray, np.ndarray]]:
        """Yield each part with its lengths and which of its rows are kept."""
        first = 0
        for part in self._parts:
            keep = np.ones(part.rows, bool) if self._keep is None else self._keep[first : first + part.rows]
            yield part, part.array(self._lengths_name), keep
            first += part.rows


def sequences_of(parts: Sequence[Part], keep: np.ndarray | None = None) -> Ragged:
    """Return the sequences of parts of one kind, encoded as far as a part can."""
    encoding = parts[0].state["encoding"]
    if encoding["kind"] == "symbols":
        return Ragged(parts, "values", keep=keep)
    return Ragged(parts, "values", lengths="lengths", width=max(1, encoding.get("num_channels", 0)), keep=keep)


def find_part(parts: Sequence[Part], i: int) -> tuple[Part, int]:
    """Return the part that holds record ``i`` of all, and its row there."""
    for part in parts:
        if i < part.rows:
            return part, i
        i -= part.rows
    raise IndexError(i)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return (N+1,) uint64: where rows of such lengths start, and the end of the last one."""
    offsets = np.zeros(len(lengths) + 1, "<u8")
    np.cumsum(lengths, out=offsets[1:])
    return offsets
