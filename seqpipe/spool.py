"""Temporary files that take bytes one record at a time and give them back as arrays.

Place in the flow: records -> encoding -> [spool] -> writer. An import of any size keeps its
data here instead of in memory: a store can be laid out only when all lengths are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

BUFFER = 1 << 20  # bytes


class Spool:
    """An append-only file of items of one dtype."""

    def __init__(self, path: Path, dtype: np.dtype | str) -> None:
        self.dtype = np.dtype(dtype)
        self._path = path
        self._file = open(path, "wb", buffering=BUFFER)
        self._num_bytes = 0

    def __len__(self) -> int:
        return self._num_bytes // self.dtype.itemsize

    def append(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._num_bytes += len(data)

    def array(self) -> np.ndarray:
        """Return all items as a read-only map of the file."""
        self._file.flush()
        if not self._num_bytes:
            return np.empty(0, self.dtype)
        return np.asarray(np.memmap(self._path, self.dtype, "r"))

    def close(self) -> None:
        self._file.close()


class RaggedSpool:
    """A spool of byte strings of any length, for text and for sequences."""

    def __init__(self, path: Path, dtype: np.dtype | str = "u1") -> None:
        self._values = Spool(path, dtype)
        self._offsets = Spool(path.with_name(path.name + ".offsets"), "<u8")
        self._offsets.append(bytes(8))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def append(self, data: bytes | memoryview) -> None:
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

    def close(self) -> None:
        self._values.close()
        self._offsets.close()
