"""Carry a Batch from a loader process to its parent as one buffer.

Place in the flow: collate in a worker -> [transport] -> the loader in the parent.

A worker's queue would send each tensor of a batch through a shared file of its own, which costs
more than making the batch. Here all tensors lie end to end in one buffer: bytes in the pipe, or,
from ``LARGE`` on, a block of anonymous shared memory (a memfd), of which only the number travels. The
parent copies it to memory of its own, and the worker fills it again: fresh pages cost more than a
copy, and whoever keeps a batch keeps no block. A block has no name, and lasts as long as its worker.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from seqpipe.batch import Batch, Texts
from seqpipe.errors import SeqpipeError

LARGE = 1 << 14  # bytes of a batch from which a block is faster than the pipe
LARGEST = 1 << 30  # bytes; the system moves a little less than 2 GiB in one call
IN_PLACE = 1 << 18  # bytes of sequences from which they are collated in the block; below, C joins them faster
ALIGNMENT = 64  # bytes; a block has its tensors after as many, which begin with the number of the batch in it
PADDING = bytes(ALIGNMENT)
TAKEN = bytes(8)  # that number when the parent has copied the batch
HAS_BLOCKS = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")

Layout = list[tuple[str, str, tuple[int, ...], int]]
Rest = tuple[tuple[int | None, Any], str, float, Any]


def register() -> None:
    """Let queues and pipes between processes carry batches this way; other pickles are as ever."""
    ForkingPickler.register(Batch, _reduce)


class _Block:
    """Shared memory of this process; ``held`` gives the array that is in it, if somebody here has it still."""

    def __init__(self) -> None:
        self.process, self.descriptor = os.getpid(), os.memfd_create("seqpipe")
        self.size = 0
        self.memory: mmap.mmap | None = None
        self.held: Callable[[], np.ndarray | None] = lambda: None
        self.place = (0, 0)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


_blocks: deque[_Block] = deque()
_rooms: dict[tuple[int, int], _Block] = {}  # by address and size of what may be in it and was not sent yet
_numbers = itertools.count(1)


def room(size: int) -> np.ndarray | None:
    """Return (size,) uint8 that a batch whose sequences lie in it is sent from without a copy.

    None where there is nothing to win: outside of loader processes, for small batches, without memory.
    """
    if not IN_PLACE <= size <= LARGEST or not HAS_BLOCKS or get_worker_info() is None:
        return None
    end = ALIGNMENT + size
    try:
        block = _take(end)
        if block.memory is None or len(block.memory) < end:
            block.memory = None
            os.posix_fallocate(block.descriptor, 0, end)  # pages that are not there would end the process when written
            block.memory = mmap.mmap(block.descriptor, end)
            block.size = max(block.size, end)
    except OSError:
        return None
    array = np.frombuffer(block.memory, np.uint8, size, ALIGNMENT)
    block.held, block.place = weakref.ref(array), (_address(array), size)
    _rooms[block.place] = block
    _blocks.append(block)
    return array


def _take(size: int) -> _Block:
    """Return a block that nobody uses any more, in either process, or a new one; it is not in ``_blocks``."""
    for _ in range(len(_blocks)):
        block = _blocks.popleft()  # before it is looked at: threads that send share the blocks
        if block.process != os.getpid():
            continue  # of the process that this one was forked from
        if block.held() is None and os.pread(block.descriptor, len(TAKEN), 0) in (TAKEN, b""):
            _rooms.pop(block.place, None)  # never sent: its memory may move, and another array come to lie there
            if block.size > 4 * size:  # after a rare large batch
                block.memory, block.size = None, 0
                os.ftruncate(block.descriptor, 0)
            return block
        _blocks.append(block)
    return _Block()


def _send(parts: list[Any], end: int) -> tuple[int, int]:
    """Put the parts, first the sequences and their padding, into a block; return its descriptor and number."""
    number = next(_numbers)
    head = number.to_bytes(ALIGNMENT, "little")
    block = _rooms.pop((_address(parts[0]), len(parts[0])), None)
    if block is not None and block.process == os.getpid() and block.held() is not None:
        start = ALIGNMENT + _padded(len(parts[0]))
        _write(block, parts[2:], start, ALIGNMENT + end - start)
        os.pwrite(block.descriptor, head, 0)
    else:
        block = _take(ALIGNMENT + end)
        _write(block, [head, *parts], 0, ALIGNMENT + end)
        _blocks.append(block)
    return block.descriptor, number


def _write(block: _Block, parts: list[Any], start: int, size: int) -> None:
    if os.pwritev(block.descriptor, parts, start) < size:
        raise OSError("no room for it")
    block.size = max(block.size, start + size)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _padded(size: int) -> int:
    return size + -size % ALIGNMENT


def _reduce(batch: Batch) -> Any:
    tensors = {"sequences": batch.sequences, "lengths": batch.lengths, "index": batch.index}
    if batch.labels is not None:
        tensors["labels"] = batch.labels
    tensors |= {f"tracks/{name}": track for name, track in batch.tracks.items()}
    try:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    except (TypeError, RuntimeError):  # on another device, or of a type that NumPy has not
        return batch.__reduce_ex__(2)
    layout: Layout = []
    end = 0
    for name, array in arrays.items():
        layout.append((name, array.dtype.str, array.shape, end))
        end += _padded(array.nbytes)
    parts: list[Any] = []
    for array in arrays.values():
        parts += [array.reshape(-1).view(np.uint8), PADDING[: -array.nbytes % ALIGNMENT]]
    rest = (_packed(batch.ids), batch.padding_side, batch.weight, batch.position)
    if LARGE <= end <= LARGEST and HAS_BLOCKS and get_worker_info() is not None:
        try:
            return _open_block, (os.getpid(), *_send(parts, end), end, layout, rest)
        except OSError:
            pass  # no more descriptors or memory: the pipe does it too
    return _open_bytes, (b"".join(parts), layout, rest)


def _packed(ids: Sequence[str]) -> tuple[int | None, Any]:
    """Return B and the texts as one, which pickles at once; None and the texts where one has a NUL in it."""
    try:
        texts = tuple(ids)
    except SeqpipeError as error:  # raised here, it would be lost and the parent wait for ever
        return len(ids), error
    joined = "\0".join(texts)
    return (len(texts), joined) if joined.count("\0") == len(texts) - 1 else (None, texts)


def _unpacked(texts: str | SeqpipeError) -> list[str]:
    if isinstance(texts, SeqpipeError):
        raise texts
    return texts.split("\0")


def _open_block(process: int, descriptor: int, number: int, size: int, layout: Layout, rest: Rest) -> Batch:
    head, buffer = bytearray(ALIGNMENT), np.empty(size, np.uint8)
    try:
        block = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
        try:
            if os.preadv(block, [head, buffer.data], 0) < len(head) + size or int.from_bytes(head, "little") != number:
                raise OSError("it was opened before")
            os.pwrite(block, TAKEN, 0)
        finally:
            os.close(block)
    except OSError as error:
        raise SeqpipeError(f"a batch of {size} bytes from loader process {process} cannot be opened ({error}); use "
                           "num_workers=0, or smaller batches") from None
    return _batch(buffer, layout, rest)


def _open_bytes(data: bytes, layout: Layout, rest: Rest) -> Batch:
    return _batch(bytearray(data), layout, rest)


def _batch(buffer: Any, layout: Layout, rest: Rest) -> Batch:
    """Return a batch whose tensors lie in ``buffer`` and keep it alive."""
    tensors: dict[str, Any] = {}
    tracks: dict[str, Tensor] = {}
    for name, dtype, shape, offset in layout:
        tensor = torch.from_numpy(np.ndarray(shape, dtype, buffer, offset))
        if name.startswith("tracks/"):
            tracks[name.removeprefix("tracks/")] = tensor
        else:
            tensors[name] = tensor
    (count, texts), padding_side, weight, position = rest
    ids = texts if count is None else Texts(partial(_unpacked, texts), count)
    return Batch(**tensors, ids=ids, tracks=tracks, padding_side=padding_side, weight=weight, position=position)
