"""Carry a Batch from a loader process to its parent as one buffer.

Place in the flow: collate in a worker -> [transport] -> the loader in the parent.

A worker's queue would send each tensor of a batch through a shared file of its own, which costs
more than making the batch. Here all tensors lie end to end in one buffer: bytes in the pipe, or,
above ``LARGE``, one block of anonymous shared memory (a memfd), of which only the number travels.
Such a block has no name: it is gone when worker and parent have let go of it, however they end.
"""

from __future__ import annotations

import mmap
import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from seqpipe.batch import Batch
from seqpipe.errors import SeqpipeError

LARGE = 1 << 19  # bytes
ALIGNMENT = 64  # bytes

OPENED = b"\1"

# What this worker sent and its parent had not opened yet: descriptor and size of each block.
_sent: list[tuple[int, int]] = []

Layout = list[tuple[str, str, tuple[int, ...], int]]


def register() -> None:
    """Let queues and pipes between processes carry batches this way; other pickles are as ever."""
    ForkingPickler.register(Batch, _reduce)


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
    pieces: list[Any] = []
    end = 0
    for name, array in arrays.items():
        data = array.reshape(-1).view(np.uint8).data
        layout.append((name, array.dtype.str, array.shape, end))
        pieces += [data, bytes(-len(data) % ALIGNMENT)]
        end += len(data) + len(pieces[-1])
    rest = {"ids": tuple(batch.ids), "padding_side": batch.padding_side, "weight": batch.weight,
            "position": batch.position}
    if end >= LARGE and get_worker_info() is not None and hasattr(os, "memfd_create"):
        try:
            return _open_block, (os.getpid(), _share(pieces, end), end, layout, rest)
        except OSError:
            pass  # no more descriptors or memory: the pipe does it too
    return _open_bytes, (b"".join(pieces), layout, rest)


def _share(pieces: list[Any], size: int) -> int:
    """Put the pieces into a block of shared memory; return its descriptor. Lets go of the blocks that were opened."""
    for descriptor, end in [entry for entry in _sent if os.pread(entry[0], 1, entry[1]) == OPENED]:
        _sent.remove((descriptor, end))
        os.close(descriptor)
    descriptor = os.memfd_create("seqpipe")
    try:
        os.ftruncate(descriptor, size + 1)  # the last byte becomes OPENED when the parent has opened the block
        at = 0
        for piece in pieces:
            while len(piece):
                written = os.pwrite(descriptor, piece, at)
                at, piece = at + written, piece[written:]
    except OSError:
        os.close(descriptor)
        raise
    _sent.append((descriptor, size))
    return descriptor


def _open_block(process: int, descriptor: int, size: int, layout: Layout, rest: dict[str, Any]) -> Batch:
    try:
        own = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    except OSError as error:
        raise SeqpipeError(f"a batch of {size} bytes from loader process {process} cannot be opened ({error}); use "
                           "num_workers=0, or smaller batches") from None
    try:
        block = mmap.mmap(own, size + 1, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        os.pwrite(own, OPENED, size)
    finally:
        os.close(own)
    return _batch(block, layout, rest)


def _open_bytes(data: bytes, layout: Layout, rest: dict[str, Any]) -> Batch:
    return _batch(bytearray(data), layout, rest)


def _batch(buffer: Any, layout: Layout, rest: dict[str, Any]) -> Batch:
    """Return a batch whose tensors lie in ``buffer`` and keep it alive."""
    tensors: dict[str, Any] = {}
    tracks: dict[str, Tensor] = {}
    for name, dtype, shape, offset in layout:
        tensor = torch.from_numpy(np.ndarray(shape, dtype, buffer, offset))
        if name.startswith("tracks/"):
            tracks[name.removeprefix("tracks/")] = tensor
        else:
            tensors[name] = tensor
    return Batch(**tensors, tracks=tracks, **rest)
