"""The columns of a store's metadata: numbers, texts and lists of class numbers.

Place in the flow: arrays of a store -> [columns] -> store.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.errors import StoreError
from seqpipe.layout import column_name


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


def members_of(arrays: Mapping[str, Any], group: str, path: Path) -> dict[str, Any]:
    """Return the columns, tracks or splits by name.

    Args:
        arrays: of a store, by their paths inside the file; sound, as ``soundness`` has found.
        group: ``metadata``, ``tracks`` or ``splits``.
        path: of the store, for messages.
    """
    members: dict[str, Any] = {}
    for name, array in arrays.items():
        if name.startswith(group + "/"):
            link, _, part = name.removeprefix(group + "/").partition("/")
            if not part:
                members[column_name(link)] = array
            elif part == "values":
                ends = arrays[f"{group}/{link}/offsets"]
                members[column_name(link)] = TextColumn(array, ends, f"{path}: /{group}/{link}") \
                    if array.dtype == "u1" else ListColumn(array, ends)
    return members
