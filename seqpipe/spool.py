"""Temporary files that take bytes one record at a time and give them back as arrays.

Place in the flow: records -> encoding -> [spool] -> writer. An import of any size keeps its
data here instead of in memory: a store can be laid out only when all lengths are known.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        self._path = path
        self._buffer = bytearray()
        self._num_bytes = 0

    def __len__(self) -> int:
        return self._num_bytes // self.dtype.itemsize

    def append(self, data: bytes) -> None:
        """Append the bytes of whole items."""
        self._buffer += data
        self._num_bytes += len(data)
        if len(self._buffer) >= BUFFER:
            self._flush()

    def array(self) -> np.ndarray:
        """Return all items so far, read-only: a map of the file, or a copy where they are few."""
        if self._num_bytes == len(self._buffer):
            return np.frombuffer(bytes(self._buffer), self.dtype)
        self._flush()
        return np.asarray(np.memmap(self._path, self.dtype, "r"))

    def _flush(self) -> None:
        try:
            with open(self._path, "ab") as file:
                file.write(self._buffer)
        except OSError as error:
            raise SeqpipeError(
                f"{self._path}: could not set {len(self._buffer)} more bytes aside ({error}); an import needs room "
                "for its data there twice: free some space, or choose another --out", path=self._path,
            ) from error
        self._buffer.clear()


class RaggedSpool:
    """A spool of byte strings of any length, for text and for sequences."""

    def __init__(self, path: Path, dtype: np.dtype | str = "u1") -> None:
        self._values = Spool(path, dtype)
        self._offsets = Spool(path.with_name(path.name + ".offsets"), "<u8")
        self._offsets.append(bytes(8))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def append(self, data: bytes) -> None:
        """Append one string; ``data`` is the bytes of whole items."""
        self._values.append(data)
        self._offsets.append(len(self._values).to_bytes(8, "little"))

    def values(self) -> np.ndarray:
        return self._values.array()

    def offsets(self) -> np.ndarray:
        return self._offsets.array()

    def texts(self) -> Iterator[str]:
        """Yield the strings, decoded from UTF-8, in order."""
        values, offsets = self.values().data, self.offsets()
        for first in range(0, len(self), 4096):
            ends = offsets[first : first + 4097].tolist()
            for start, end in zip(ends[:-1], ends[1:], strict=True):
                yield str(values[start:end], "utf-8")

    def text(self, i: int) -> str:
        start, end = self.offsets()[i : i + 2].tolist()
        return self.values()[start:end].tobytes().decode()
