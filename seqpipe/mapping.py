"""The map of a store's file: its arrays, which of their bytes are in memory, and how they will be read.

Place in the flow: locate -> [mapping] -> store.

A page that is not in memory is fetched when it is touched, one at a time, and a disk is idle most of
that time. Whoever knows what will be read next says so, and it is fetched all at once.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from typing import Any

import numpy as np

from seqpipe.layout import CHECKSUM_BLOCK, Extent

LIBC = ctypes.CDLL(None) if os.name == "posix" else None
PROBED = 8  # places looked at to know whether many are in memory
LOWEST_BIT = bytes(byte & 1 for byte in range(256))  # of what mincore says of a page: whether it is in memory


class Mapping:
    """A mapped file whose arrays have been located.

    Args:
        mapped: the file, read-only.
        extents: of its arrays, by their paths inside the file.

    Attributes:
        extents: as given.
        data: the bytes of the file.
    """

    def __init__(self, mapped: mmap.mmap, extents: dict[str, Extent]) -> None:
        self.extents, self.data, self._map = extents, memoryview(mapped), mapped
        self._address = np.frombuffer(mapped, "u1").ctypes.data

    def __len__(self) -> int:
        """Return the bytes of the file when it was mapped."""
        return len(self._map)

    def size(self) -> int:
        """Return the bytes that the file has now."""
        return self._map.size()

    def array(self, name: str) -> np.ndarray:
        """Return a contiguous array as a plain read-only ndarray over the map."""
        extent = self.extents[name]
        count = math.prod(extent.shape)
        array = np.frombuffer(self._map, extent.dtype, count, extent.offset) if count else np.empty(0, extent.dtype)
        array = array.reshape(extent.shape)
        array.flags.writeable = False
        return array

    def advise_all(self, advice: str) -> None:
        """Tell the system how the file will be read, where it listens."""
        if hasattr(mmap, advice):
            self._map.madvise(getattr(mmap, advice))

    def advise(self, name: str, advice: str, start: int, stop: int) -> None:
        """Tell the system how the bytes ``start`` to ``stop`` of an array will be read, where it listens.

        Of an array in chunks, those are bytes of the file.
        """
        if hasattr(mmap, advice):
            first = self.extents[name].offset + start
            page = first - first % mmap.PAGESIZE
            self._map.madvise(getattr(mmap, advice), page, first + stop - start - page)

    def fetch(self, name: str, blocks: list[int]) -> None:
        """Have the system fetch the blocks of an array that begin at some bytes, all at once, from a disk."""
        if not self.in_memory(name, blocks, CHECKSUM_BLOCK):
            for start in blocks:
                self.advise(name, "MADV_WILLNEED", start, min(start + CHECKSUM_BLOCK, self.extents[name].num_bytes))

    def in_memory(self, name: str, places: list[int], size: int = 1) -> bool:
        """Say whether ``size`` bytes of an array from some places on are in the page cache, by a few of the places.

        Yes where the system does not tell.
        """
        # Not by a read that must not wait (RWF_NOWAIT): under newer kernels it does wait, and has pages fetched.
        mincore: Any = getattr(LIBC, "mincore", None)  # not on Windows
        page, pages = mmap.PAGESIZE, ctypes.create_string_buffer(size // mmap.PAGESIZE + 2)
        offset, end = self.extents[name].offset, len(self)
        for place in places[:: max(1, len(places) // PROBED)] if mincore else []:
            first = min(offset + place, end - 1) // page * page
            count = -(-(min(offset + place + size, end) - first) // page)
            if mincore(ctypes.c_void_p(self._address + first), ctypes.c_size_t(count * page), pages) == 0 \
                    and 0 in pages.raw[:count].translate(LOWEST_BIT):
                return False
        return True
