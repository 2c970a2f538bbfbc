"""Temporary files that become arrays: a store can be laid out only when all lengths are known.

Place in the flow: a part of an import -> [spool] -> parts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seqpipe.errors import SeqpipeError

BUFFER = 1 << 16  # bytes


class Spool:
    """An append-only file of items of one dtype.

    The file is open only while a full buffer goes into it: a table may have more columns than a
    process may have open files.
    """

    def __init__(self, path: Path, dtype: np.dtype | str) -> None:
        self.dtype = np.dtype(dtype)
        self.path = path
        self._buffer = bytearray()
        self._num_bytes = 0

    def __len__(self) -> int:
        return self._num_bytes // self.dtype.itemsize

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Append the bytes of whole items."""
        self._num_bytes += len(data)
        if len(data) >= BUFFER:
            self._flush()
            self._write(data)
            return
        self._buffer += data
        if len(self._buffer) >= BUFFER:
            self._flush()

    def extend(self, items: np.ndarray) -> None:
        """Append an array of items."""
        self.append(np.ascontiguousarray(items, self.dtype).data.cast("B"))

    def close(self) -> dict[str, str | int]:
        """Write what is left; return the dtype and the number of items. Without any there is no file."""
        self._flush()
        return {"dtype": self.dtype.str, "items": len(self)}

    def _flush(self) -> None:
        if self._buffer:
            self._write(self._buffer)
            self._buffer.clear()

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            with open(self.path, "ab") as file:
                file.write(data)
        except OSError as error:
            raise SeqpipeError(
                f"{self.path}: could not set {len(data)} more bytes aside ({error}); an import needs room "
                "for its data there twice: free some space, or choose another --out", path=self.path,
            ) from error


class Spools:
    """The spools of one folder, by name; those of ragged rows come with one of their lengths.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._spools: dict[str, Spool] = {}

    def new(self, name: str, dtype: np.dtype | str) -> Spool:
        """Return a new spool."""
        spool = self._spools[name] = Spool(self.folder / name, dtype)
        return spool

    def new_ragged(self, name: str, dtype: np.dtype | str = "u1") -> RaggedSpool:
        """Return a new spool of rows of any length."""
        return RaggedSpool(self.new(name, dtype), self.new(f"{name}.lengths", "<u8"))

    def close(self) -> dict[str, dict[str, str | int]]:
        """Write what is left; return the dtype and the number of items of each spool."""
        return {name: spool.close() for name, spool in self._spools.items()}


class RaggedSpool:
    """A spool of rows of any length, for text and for sequences; lengths are in items."""

    def __init__(self, values: Spool, lengths: Spool) -> None:
        self.values, self.lengths = values, lengths

    def append(self, data: bytes) -> None:
        """Append one row; ``data`` is the bytes of whole items."""
        self.values.append(data)
        self.lengths.append((len(data) // self.values.dtype.itemsize).to_bytes(8, "little"))

    def extend(self, data: bytes | bytearray | memoryview, lengths: np.ndarray) -> None:
        """Append many rows, end to end in ``data``."""
        self.values.append(data)
        self.lengths.extend(lengths)
