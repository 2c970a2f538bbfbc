"""Arrays end to end, read as one where they are asked for.

Place in the flow: the arrays of several stores -> [joined] -> sharded, merging.

Finding a row is a bisection over the parts; a part is fetched when a row of it is read first.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np


class Joined:
    """(n, ...) numbers that lie in several arrays, in their order.

    Args:
        fetch: returns the k-th array, or anything that slices to one.
        counts: the length of each part.
        dtype: of all of them.
        row_shape: of one item.
        shifts: added to the items of each part.
    """

    def __init__(self, fetch: Callable[[int], Any], counts: Sequence[int], dtype: np.dtype | str,
                 row_shape: tuple[int, ...] = (), shifts: Sequence[int] | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.counts = list(counts)
        self.bounds = [0, *accumulate(counts)]
        self.shape = (self.bounds[-1], *row_shape)
        self._fetch, self._shifts = fetch, shifts

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        size = self.itemsize
        for length in self.shape:
            size *= length
        return size

    def __getitem__(self, key: Any) -> Any:
        """Return one item for an integer, an array for a slice, an array of integers or a mask.

        Raises:
            IndexError: an index is out of range.
        """
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                parts = list(self._slices(start, stop))
                return parts[0] if len(parts) == 1 else np.concatenate([self._empty(0), *parts])
            return self[np.arange(start, stop, step)]
        if np.ndim(key) == 0:
            i = operator.index(key)
            k, local = locate_part(self.bounds, i + len(self) if i < 0 else i)
            return self._shifted(self._fetch(k)[local], k)
        rows = np.asarray(key)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        rows = np.where(rows < 0, rows + len(self), rows)
        items = self._empty(len(rows))
        for k, which in parts_of(self.bounds, rows):
            items[which] = self._shifted(self._fetch(k)[rows[which] - self.bounds[k]], k)
        return items

    def __iter__(self) -> Iterator[Any]:
        for k in range(len(self.bounds) - 1):
            yield from self[self.bounds[k] : self.bounds[k + 1]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def astype(self, dtype: Any) -> np.ndarray:
        """Return all items as an array of ``dtype``."""
        return self[:].astype(dtype)

    def _slices(self, start: int, stop: int) -> Iterator[np.ndarray]:
        first = bisect_right(self.bounds, start) - 1
        for k in range(first, len(self.bounds) - 1):
            low, high = max(start, self.bounds[k]), min(stop, self.bounds[k + 1])
            if low >= stop:
                return
            if low < high:
                yield self._shifted(self._fetch(k)[low - self.bounds[k] : high - self.bounds[k]], k)

    def _shifted(self, items: Any, k: int) -> Any:
        if self._shifts is None or not self._shifts[k]:
            return items
        return items + self.dtype.type(self._shifts[k])

    def _empty(self, count: int) -> np.ndarray:
        return np.empty((count, *self.shape[1:]), self.dtype)


class JoinedTexts:
    """(N,) strings, or arrays of any length, that lie in several columns, in their order.

    Args:
        fetch: returns the k-th column.
        counts: the length of each.
    """

    def __init__(self, fetch: Callable[[int], Any], counts: Sequence[int]) -> None:
        self.bounds = [0, *accumulate(counts)]
        self._fetch = fetch

    def __len__(self) -> int:
        return self.bounds[-1]

    def __getitem__(self, i: int) -> Any:
        """Return string or array ``i``, 0 <= i < N; IndexError where there is none."""
        k, local = locate_part(self.bounds, i)
        return self._fetch(k)[local]

    def __iter__(self) -> Iterator[Any]:
        for part in self.parts():
            yield from (part[i] for i in range(len(part)))

    def parts(self) -> list[Any]:
        """Return all columns."""
        return [self._fetch(k) for k in range(len(self.bounds) - 1)]


def locate_part(bounds: list[int], i: int) -> tuple[int, int]:
    """Return the part that item ``i`` lies in, and its place there.

    Raises:
        IndexError: there is no such item.
    """
    if not 0 <= i < bounds[-1]:
        raise IndexError(f"index {i} is out of range; expected 0 <= index < {bounds[-1]}")
    k = bisect_right(bounds, i) - 1
    return k, i - bounds[k]


def parts_of(bounds: list[int], rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each part that some of (n,) rows lie in, and which of the rows those are, as indices.

    Raises:
        IndexError: a row is out of range.
    """
    if len(rows) and not 0 <= rows.min() <= rows.max() < bounds[-1]:
        raise IndexError(f"rows {rows.min()} to {rows.max()}; expected 0 <= row < {bounds[-1]}")
    part = np.searchsorted(np.asarray(bounds), rows, "right") - 1
    order = np.argsort(part, kind="stable")
    for which in np.split(order, np.flatnonzero(np.diff(part[order])) + 1):
        if len(which):
            yield int(part[which[0]]), which
