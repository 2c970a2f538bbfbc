"""Find where the arrays of an HDF5 file lie, believing nothing the file says.

Place in the flow: seqs.h5 -> [locate] -> store (which reads the map).

The file is mapped; h5py opens it, says where each array starts, and is closed again; it reads no data.
In order:

 1  a regular file (a pipe would block) that begins with the HDF5 signature: no user block
 2  HDF5 opens it, the same file: not cut short, not left open by a writer that died
 3  the three root attributes, each looked at before it is read: scalar, and of exactly its type
 4  only names of ``layout``, one path component at a time, each a hard link: nothing is followed
 5  each object an array or a group as its name says; no named type, no array for a group
 6  storage inside the file: not external, not virtual, not inside the description, and taken
 7  contiguous without a filter; or, where ``layout`` allows it, in chunks of bounded size through
    gzip (and shuffle) alone: no filter that HDF5 would load as a program
 8  plain little-endian numbers: no vlen, reference, compound, text, opaque, enum
 9  as many bytes as shape and type need, inside the file, aligned, no two arrays overlapping:
    a shape alone reserves no memory, since nothing is read into any

Content is the next modules' part: ``store`` (shapes that fit each other, ends of offsets, header),
``chunks`` (where chunks lie, what they inflate to) and ``checking`` (checksums, order, tokens).
What none of them can do is protect the HDF5 library from itself: it parses the file's structure.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from seqpipe.errors import StoreError
from seqpipe.layout import (
    FORMAT,
    FORMAT_VERSION,
    MAX_CHUNK,
    NUMBER_TYPES,
    SIGNATURE,
    Extent,
    is_array,
    is_compressible,
    is_group,
)

# What h5py makes of a damaged file, besides OSError.
DAMAGE = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError)


def locate(path: Path) -> tuple[mmap.mmap, dict[str, Extent]]:
    """Return a map of the store at ``path``, and every array of it by its path inside the file.

    Raises:
        StoreError: the file is missing, not a store, truncated, of a newer version, incomplete,
            or holds anything a store does not.
    """
    with _open(path) as plain:
        mapped = _map(path, plain)
        extents = _find(path, plain)
    _check_extents(path, extents, len(mapped))
    return mapped, extents


def _find(path: Path, plain: BinaryIO) -> dict[str, Extent]:
    try:
        with h5py.File(path, "r", locking="best-effort", rdcc_nbytes=0) as file:
            if os.name == "posix" and not os.path.sameopenfile(plain.fileno(), file.id.get_vfd_handle()):
                raise StoreError(f"{path}: another file took this name while it was opened; open it again", path=path)
            _check_attributes(path, file)
            return dict(_walk(path, file.id, ""))
    except DAMAGE as error:
        if getattr(error, "errno", None):  # too many files are open, say
            raise StoreError(f"{path}: cannot be opened ({error})", path=path) from None
        reason = "it is cut short" if "truncated" in str(error) else "HDF5 cannot read its structure"
        raise StoreError(
            f"{path}: damaged: {reason} ({error}); copy it again, or make it again with preprocess", path=path
        ) from None


def index_of_chunks(path: Path, name: str, table: np.ndarray) -> np.ndarray:
    """Return where HDF5's own index says that the chunks of an array lie, in the shape of ``table``.

    Args:
        path: of a store that ``locate`` has found good.
        name: of an array in chunks.
        table: (chunks, 2), first byte and bytes of each chunk.

    Raises:
        StoreError: HDF5 cannot read the index.
    """
    index = np.zeros_like(table)
    try:
        with h5py.File(path, "r", locking="best-effort", rdcc_nbytes=0) as file:
            dataset = file[name].id
            rows = dataset.get_create_plist().get_chunk()[0]
            dataset.chunk_iter(lambda chunk: index.__setitem__(
                chunk.chunk_offset[0] // rows, (chunk.byte_offset, chunk.size)))
    except DAMAGE as error:
        raise StoreError(f"{path}: damaged: HDF5 cannot read its index of the chunks of /{name} ({error})",
                         path=path) from None
    return index


def _open(path: Path) -> BinaryIO:
    """Open a regular file that starts like HDF5."""
    try:
        _check_kind(path, os.stat(path))  # opening a pipe would block
        file = open(path, "rb")
        _check_kind(path, os.fstat(file.fileno()))
        start = file.read(len(SIGNATURE))
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file; make a store with: seqpipe preprocess RAW --out {path}",
                         path=path) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be opened ({error})", path=path) from None
    if start != SIGNATURE:
        file.close()
        cut = " (or one cut to almost nothing)" if SIGNATURE.startswith(start) else ""
        raise StoreError(
            f"{path}: not a seqpipe store{cut}: it does not start with the HDF5 signature; "
            "turn raw files into one with: seqpipe preprocess RAW --out seqs.h5",
            path=path,
        )
    return file


def _check_kind(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder, no regular file" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise StoreError(f"{path}: expected a store, found {kind}; name a file made by preprocess", path=path)


def _map(path: Path, file: BinaryIO) -> mmap.mmap:
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be mapped into memory ({error}); copy it to a local disk",
                         path=path) from None


def _check_attributes(path: Path, file: h5py.File) -> None:
    found = _attribute(file, b"format", np.dtype(f"S{len(FORMAT)}"))
    if found != FORMAT.encode():
        raise StoreError(
            f"{path}: an HDF5 file, but not a seqpipe store: expected the root attribute "
            f"format={FORMAT!r}; turn raw files into one with: seqpipe preprocess RAW --out seqs.h5",
            path=path,
        )
    version = _attribute(file, b"format_version", np.dtype("<u4"))
    if version is not None and version > FORMAT_VERSION:
        raise StoreError(
            f"{path}: store of format version {version}, this seqpipe reads up to {FORMAT_VERSION}; "
            "install a newer seqpipe",
            path=path,
        )
    complete = _attribute(file, b"complete", np.dtype("u1"))
    if version != FORMAT_VERSION or complete not in (0, 1):
        raise StoreError(
            f"{path}: damaged: the root attributes say format_version={version}, complete={complete}; "
            f"expected {FORMAT_VERSION} and 1; make it again with preprocess", path=path,
        )
    if not complete:
        raise StoreError(f"{path}: incomplete: its writing never ended; make it again with preprocess", path=path)


def _attribute(file: h5py.File, name: bytes, dtype: np.dtype) -> Any:
    """Return a scalar root attribute of exactly this type, or None."""
    if not h5py.h5a.exists(file.id, name):
        return None
    attribute = h5py.h5a.open(file.id, name)
    # Looked at before it is read: its size is what the file says.
    if attribute.get_space().get_simple_extent_type() != h5py.h5s.SCALAR or attribute.dtype != dtype:
        return None
    value = np.empty((), dtype)
    attribute.read(value)
    return value[()].item()


def _walk(path: Path, group: h5py.h5g.GroupID, prefix: str) -> Iterator[tuple[str, Extent]]:
    """Yield the arrays below ``group``, a group reached by hard links alone."""
    names: list[bytes] = []
    group.links.iterate(names.append)
    for raw in names:
        name = prefix + raw.decode()
        if group.links.get_info(raw).type != h5py.h5l.TYPE_HARD:
            raise _refusal(path, name, "a soft or external link")
        if b"/" in raw or not (is_array(name) or is_group(name)):
            raise _refusal(path, name, "an unknown object")
        obj = h5py.h5o.open(group, raw)
        if isinstance(obj, h5py.h5d.DatasetID) and is_array(name):
            found = _extent(name, obj)
            if isinstance(found, str):
                raise _refusal(path, name, found)
            yield name, found
        elif isinstance(obj, h5py.h5g.GroupID) and is_group(name):
            yield from _walk(path, obj, name + "/")
        else:
            raise _refusal(path, name, "neither the group nor the array expected there")


def _refusal(path: Path, name: str, found: str) -> StoreError:
    return StoreError(
        f"{path}: /{name} is {found}, which a store never holds; do not trust this file, "
        "make the store again with preprocess", path=path,
    )


def _extent(name: str, dataset: h5py.h5d.DatasetID) -> Extent | str:
    """Return the extent of a plain array, or what is wrong with it."""
    properties = dataset.get_create_plist()
    layout = properties.get_layout()
    if properties.get_external_count() > 0:
        return "an array with external storage"
    if layout == h5py.h5d.VIRTUAL:
        return "a virtual array, made of other ones"
    if layout not in (h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED):
        return "an array inside its own description"
    kind = dataset.get_type()
    if kind.get_class() not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT):
        return "an array of something else than numbers"
    if dataset.dtype.str not in NUMBER_TYPES or kind != h5py.h5t.py_create(dataset.dtype):
        return f"an array of {dataset.dtype.str}, or of numbers with a layout of their own"
    if dataset.get_space().get_simple_extent_type() != h5py.h5s.SIMPLE:
        return "not a simple array"
    shape = tuple(map(int, dataset.shape))
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    if layout == h5py.h5d.CHUNKED:
        return _chunked(name, shape, dataset.dtype, filters, tuple(map(int, properties.get_chunk())))
    if filters:
        return f"a contiguous array with the filters {filters}"
    extent = Extent(dataset.get_offset() or 0, shape, dataset.dtype)
    if dataset.get_storage_size() != extent.num_bytes or (extent.num_bytes and not extent.offset):
        return f"an array of shape {shape} with only {dataset.get_storage_size()} bytes"
    return extent


def _chunked(name: str, shape: tuple[int, ...], dtype: np.dtype, filters: list[int], chunk: tuple[int, ...]
             ) -> Extent | str:
    """Return the extent of an array in chunks, or what is wrong with it; where they lie ``chunks`` looks at."""
    allowed = [h5py.h5z.FILTER_SHUFFLE] * (dtype.itemsize > 1) + [h5py.h5z.FILTER_DEFLATE]
    if not is_compressible(name):
        return "an array in chunks"
    if filters != allowed:
        return f"an array in chunks with the filters {filters}, not {allowed} (gzip)"
    if not shape or not 0 < chunk[0] <= shape[0] or chunk[1:] != shape[1:] \
            or math.prod(chunk) * dtype.itemsize > MAX_CHUNK:
        return f"an array of shape {shape} in chunks of {chunk}, which are too large or cut items"
    return Extent(0, shape, dtype, chunk[0])


def _check_extents(path: Path, extents: dict[str, Extent], size: int) -> None:
    """Refuse arrays that overlap, are not aligned, or reach past the end of the file."""
    end, before = 0, "the start of the file"
    for name, extent in sorted(extents.items(), key=lambda item: item[1].offset):
        if not extent.num_bytes or extent.chunk_rows:
            continue
        if extent.offset < end or extent.offset % extent.dtype.itemsize:
            raise StoreError(f"{path}: /{name} overlaps {before} or is not aligned; do not trust this file",
                             path=path)
        end, before = extent.offset + extent.num_bytes, f"/{name}"
        if end > size:
            raise StoreError(f"{path}: cut short: /{name} ends at byte {end}, the file at {size}", path=path)
