"""Write a store: whole, checked and durable, or not at all.

Place in the flow: spooled arrays + header -> [writer] -> seqs.h5.

The HDF5 library lays out an empty file; every byte of data then goes through plain writes,
block by block, with its checksum taken on the way. (Compressed chunks it takes as they are, into
space that was reserved: it never meets a full disk.) ``complete`` is set last, and the file
takes its name only after that and an fsync: a kill at any moment leaves the old file or the
new one.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from seqpipe.errors import SeqpipeError
from seqpipe.header import MAX_HEADER, header_problem
from seqpipe.layout import ALIGNMENT, FORMAT, FORMAT_VERSION, MAX_CHUNK, Checksums, is_compressible, num_blocks
from seqpipe.packing import Content, Packed, pack
from seqpipe.publish import move_into_place

__all__ = ["Content", "write_store"]

BATCH = 500  # datasets laid out at a time


def write_store(
    path: Path, contents: Mapping[str, Content], header: dict[str, Any], *, folder: Path, overwrite: bool = True,
    compression: str = "none",
) -> None:
    """Write the store at ``path``, whole or not at all.

    Args:
        path: the store to publish.
        contents: by dataset path inside the file, as ``layout`` lists them.
        header: JSON-able; becomes ``/header``.
        folder: for the unfinished file; on the same file system as ``path``.
        overwrite: replace what has the name by then.
        compression: ``gzip`` puts the values and tracks into compressed chunks; or ``none``.

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
    temporary, spool = (folder / f".{uuid.uuid4().hex}.{part}" for part in ("unfinished", "chunks"))
    needed = _needed(contents.values())
    try:
        packed = {name: pack(content, name, spool) for name, content in contents.items()
                  if compression == "gzip" and is_compressible(name) and content.num_bytes
                  and content.row_bytes <= MAX_CHUNK}
        contents |= {f"chunks/{name}": chunks.table() for name, chunks in packed.items()}
        needed = _needed([packed.get(name, content) for name, content in contents.items()])
        _check_room(temporary, needed)
        offsets = _lay_out(temporary, contents, packed)
        with open(temporary, "r+b") as file:
            _reserve(file, needed if packed else 0)
        for name, chunks in packed.items():
            chunks.write(temporary, name, spool)
        with open(temporary, "r+b") as file:
            _reserve(file)
            for name, content in contents.items():
                checksums = packed[name].checksums if name in packed else _write_dataset(file, name, content, offsets)
                if len(checksums):
                    file.seek(offsets[f"checksums/{name}"])
                    file.write(checksums.tobytes())
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
        for file_ in (temporary, spool):
            file_.unlink(missing_ok=True)


def _needed(contents: Collection[Content | Packed]) -> int:
    """Return the size of the store in bytes, a little more rather than less."""
    data = sum(content.num_bytes + 4 * num_blocks(content.num_bytes) for content in contents)
    return data + (8 << 10) + 2048 * len(contents)


def _check_room(path: Path, num_bytes: int) -> None:
    """Raise OSError where a file of ``num_bytes`` cannot be: the HDF5 library must not meet that."""
    if (free := shutil.disk_usage(path.parent).free) < num_bytes:
        raise OSError(errno.ENOSPC, f"only {free} bytes are free")
    with open(path, "xb") as file:
        file.truncate(num_bytes)


def _lay_out(path: Path, contents: Mapping[str, Content], packed: Mapping[str, Packed]) -> dict[str, int]:
    """Create the empty file; return each dataset's first byte (none for one that is empty, or in chunks)."""
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
                dataset = _allocate(store, name, shape, dtype, packed.get(name))
                if (offset := dataset.get_offset()) is not None:
                    offsets[name] = offset
    return offsets


def _allocate(
    store: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype, packed: Packed | None
) -> h5py.h5d.DatasetID:
    """Create one dataset: in chunks, or contiguous, its space taken now; filled by nobody but us."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if packed is not None:
        packed.describe_to(properties)
    else:
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


def _reserve(file: BinaryIO, num_bytes: int = 0) -> None:
    """Take the file's space on the disk now, where the platform can: a full disk shows here.

    Args:
        file: to be filled.
        num_bytes: that it may grow to; what is not used of it is given back when HDF5 closes the file.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, max(num_bytes, os.fstat(file.fileno()).st_size))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise


def _write_dataset(file: BinaryIO, name: str, content: Content, offsets: Mapping[str, int]) -> np.ndarray:
    """Write one dataset; return the CRC-32 of each of its 64 KiB blocks."""
    checksums = Checksums()
    if content.num_bytes:
        file.seek(offsets[name])
        for data in content.parts(name):
            file.write(data)
            checksums.add(data)
    return checksums.array()
