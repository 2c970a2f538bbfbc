"""Write a store: whole, checked and durable, or not at all.

Place in the flow: spooled arrays + header -> [writer] -> seqs.h5.

The HDF5 library lays out an empty file; every byte of data then goes through plain writes,
block by block, with its checksum taken on the way. ``complete`` is set last, and the file
takes its name only after that and an fsync: a kill at any moment leaves the old file or the
new one.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from seqpipe.errors import SeqpipeError
from seqpipe.header import MAX_HEADER, header_problem
from seqpipe.layout import (
    ALIGNMENT,
    CHECKSUM_BLOCK,
    FORMAT,
    FORMAT_VERSION,
    num_blocks,
)
from seqpipe.publish import move_into_place

BATCH = 500  # datasets laid out at a time


@dataclass(frozen=True)
class Content:
    """What goes into one dataset.

    Attributes:
        shape: of the dataset.
        dtype: little-endian.
        blocks: arrays of ``dtype`` which, end to end, are the dataset in C order.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Iterable[np.ndarray]

    @classmethod
    def of(cls, array: np.ndarray) -> Content:
        """Wrap an array, in memory or mapped; it is written in slices of about 4 MiB."""
        rows = max(1, (4 << 20) // max(1, array.itemsize * int(np.prod(array.shape[1:]))))
        blocks = (array[first : first + rows] for first in range(0, len(array), rows))
        return cls(array.shape, array.dtype, blocks)

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


def write_store(
    path: Path, contents: Mapping[str, Content], header: dict[str, Any], *, folder: Path, overwrite: bool = True
) -> None:
    """Write the store at ``path``, whole or not at all.

    Args:
        path: the store to publish.
        contents: by dataset path inside the file, as ``layout`` lists them.
        header: JSON-able; becomes ``/header``.
        folder: for the unfinished file; on the same file system as ``path``.
        overwrite: replace what has the name by then.

    Raises:
        SeqpipeError: the disk is full, the folder cannot be written, or the header is too large.
    """
    assert header_problem(header) is None, header_problem(header)
    text = json.dumps(header, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER:
        raise SeqpipeError(
            f"{path}: the names of classes, columns and files take {len(text)} bytes; a store holds up to "
            f"{MAX_HEADER}; are the labels classes? --label-type none leaves them out", path=path,
        )
    contents = {**contents, "header": Content.of(np.frombuffer(text, "u1"))}
    temporary = folder / f".{uuid.uuid4().hex}.unfinished"
    needed = _needed(contents)
    try:
        _check_room(temporary, needed)
        offsets = _lay_out(temporary, contents)
        with open(temporary, "r+b") as file:
            _reserve(file)
            for name, content in contents.items():
                checksums = _write_dataset(file, name, content, offsets)
                if checksums:
                    file.seek(offsets[f"checksums/{name}"])
                    file.write(np.array(checksums, "<u4").tobytes())
        with h5py.File(temporary, "r+", libver=("v110", "v110")) as store:
            store.attrs.modify("complete", np.uint8(1))
        move_into_place(temporary, path, overwrite=overwrite)
    except (OSError, RuntimeError) as error:  # h5py raises RuntimeError where a file cannot be closed
        raise SeqpipeError(
            f"{path}: could not write the store of about {needed} bytes ({error}); nothing was changed; "
            "free some space (as much again is needed while it is written) or choose another --out",
            path=path,
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _needed(contents: Mapping[str, Content]) -> int:
    """Return the size of the store in bytes, a little more rather than less."""
    data = sum(content.num_bytes + 4 * num_blocks(content.num_bytes) for content in contents.values())
    return data + (8 << 10) + 2048 * len(contents)


def _check_room(path: Path, num_bytes: int) -> None:
    """Raise OSError where a file of ``num_bytes`` cannot be: the HDF5 library must not meet that."""
    if (free := shutil.disk_usage(path.parent).free) < num_bytes:
        raise OSError(errno.ENOSPC, f"only {free} bytes are free")
    with open(path, "xb") as file:
        file.truncate(num_bytes)


def _lay_out(path: Path, contents: Mapping[str, Content]) -> dict[str, int]:
    """Create the empty file; return each dataset's first byte (none for an empty dataset)."""
    access: dict[str, Any] = {"libver": ("v110", "v110"), "alignment_threshold": 1, "alignment_interval": ALIGNMENT}
    no_times = h5py.h5p.create(h5py.h5p.FILE_CREATE)  # h5py.File cannot say this of the root group
    no_times.set_obj_track_times(False)
    old_enough = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    old_enough.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    with h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, no_times, old_enough)) as store:
        store.attrs.create("format", np.bytes_(FORMAT))
        store.attrs.create("format_version", np.uint32(FORMAT_VERSION))
        store.attrs.create("complete", np.uint8(0))
    datasets = [(name, content.shape, content.dtype) for name, content in contents.items()]
    datasets += [(f"checksums/{name}", (num_blocks(content.num_bytes),), np.dtype("<u4"))
                 for name, content in contents.items()]
    offsets: dict[str, int] = {}
    # The library's list of gaps, which it searches for every object, is forgotten when the file is closed.
    for first in range(0, len(datasets), BATCH):
        with h5py.File(path, "r+", **access) as store:
            for name, shape, dtype in datasets[first : first + BATCH]:
                if (offset := _allocate(store, name, shape, dtype).get_offset()) is not None:
                    offsets[name] = offset
    return offsets


def _allocate(store: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype) -> h5py.h5d.DatasetID:
    """Create one contiguous dataset whose space is taken now and filled by nobody but us."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    *parents, leaf = name.encode().split(b"/")
    group = store.id
    for parent in parents:
        if group.links.exists(parent):
            group = h5py.h5g.open(group, parent)
        else:
            no_times = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
            no_times.set_obj_track_times(False)
            group = h5py.h5g.create(group, parent, gcpl=no_times)
    space = h5py.h5s.create_simple(shape)
    return h5py.h5d.create(group, leaf, h5py.h5t.py_create(dtype), space, dcpl=properties)


def _reserve(file: BinaryIO) -> None:
    """Take the whole file's space on the disk now, where the platform can: a full disk shows here."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise


def _write_dataset(file: BinaryIO, name: str, content: Content, offsets: Mapping[str, int]) -> list[int]:
    """Write one dataset; return the CRC-32 of each of its 64 KiB blocks."""
    if not content.num_bytes:
        return []
    file.seek(offsets[name])
    checksums: list[int] = []
    crc, room, written = 0, CHECKSUM_BLOCK, 0
    for block in content.blocks:
        assert block.dtype == content.dtype, (name, block.dtype, content.dtype)
        data = np.ascontiguousarray(block).reshape(-1).view("u1").data
        file.write(data)
        written += len(data)
        while len(data):
            crc = zlib.crc32(data[:room], crc)
            room, data = room - min(room, len(data)), data[room:]
            if not room:
                checksums.append(crc)
                crc, room = 0, CHECKSUM_BLOCK
    if room < CHECKSUM_BLOCK:
        checksums.append(crc)
    assert written == content.num_bytes, (name, written, content.num_bytes)
    return checksums
