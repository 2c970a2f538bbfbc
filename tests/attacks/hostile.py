"""Hostile files, made by code: each is a good store but for one thing.

An attack edits a copy of a good store in place. ``bait`` is a pipe that nobody writes to: a reader
that followed a link or an external file to it would wait there for ever.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from seqpipe.header import MAX_HEADER
from seqpipe.layout import block_checksums, num_blocks
from tests.attacks.files import arrays_edit, rebuild, reseal

Attack = Callable[[Path, Path], Any]
Edit = Callable[[h5py.File, Path], Any]
NUM_VALUES = 10  # of the small store
PETABYTE = 2**50


def edit(change: Edit) -> Attack:
    """Return an attack that changes the open HDF5 file."""
    def attack(path: Path, bait: Path) -> None:
        with h5py.File(path, "r+", alignment_threshold=1, alignment_interval=64) as file:
            change(file, bait)
    return attack


def link(name: str, make: Callable[[Path], Any]) -> Attack:
    """Return an attack that puts a link in the place of an object."""
    def change(file: h5py.File, bait: Path) -> None:
        del file[name]
        file[name] = make(bait)
    return edit(change)


def values(name: str = "values", **options: Any) -> Attack:
    """Return an attack that makes another dataset of /values."""
    def change(file: h5py.File, bait: Path) -> None:
        del file[name]
        file.create_dataset(name, **options)
    return edit(change)


def packed(change: Callable[[np.ndarray, bytearray, h5py.File], Any]) -> Attack:
    """Return an attack that compresses the store and changes the table of the one chunk, and the file's bytes."""
    def attack(path: Path, bait: Path) -> None:
        rebuild(path, path.with_name("packed.h5"), lambda arrays, header: None, compression="gzip").replace(path)
        data = bytearray(path.read_bytes())
        with h5py.File(path) as file:
            table = file["chunks/values"][()]
            change(table, data, file)
            places = {name: file[name].id.get_offset() for name in ("chunks/values", "checksums/chunks/values")}
        sealed = {"chunks/values": table, "checksums/chunks/values": block_checksums(table.reshape(-1).view("u1").data)}
        for name, array in sealed.items():
            data[places[name] : places[name] + array.nbytes] = array.tobytes()
        path.write_bytes(data)
    return attack


def chunk_at(start: int | None = None, size: int | None = None) -> Attack:
    """Return an attack that says the chunk lies elsewhere, or is of another size."""
    def change(table: np.ndarray, data: bytearray, file: h5py.File) -> None:
        table[0] = table[0, 0] if start is None else start, table[0, 1] if size is None else size
    return packed(change)


def chunk_of(chunk: bytes) -> Attack:
    """Return an attack that puts another chunk in place of the one there is."""
    def change(table: np.ndarray, data: bytearray, file: h5py.File) -> None:
        table[0] = len(data), len(chunk)
        data.extend(chunk)
    return packed(change)


def over_an_array(table: np.ndarray, data: bytearray, file: h5py.File) -> None:
    """The chunk is said to lie where the header does."""
    table[0, 0] = file["header"].id.get_offset() + 3


def virtual(file: h5py.File, bait: Path) -> None:
    layout = h5py.VirtualLayout((NUM_VALUES,), "u1")
    layout[:] = h5py.VirtualSource(str(bait), "values", (NUM_VALUES,), "u1")
    del file["values"]
    file.create_virtual_dataset("values", layout)


def external_storage(file: h5py.File, bait: Path) -> None:
    del file["values"]
    file.create_dataset("values", (NUM_VALUES,), "u1", external=[(str(bait), 0, NUM_VALUES)])


def shape_bomb(file: h5py.File, bait: Path) -> None:
    """A petabyte declared, nothing stored: a contiguous array whose space is not taken yet."""
    del file["values"]
    h5py.h5d.create(file.id, b"values", h5py.h5t.STD_U8LE, h5py.h5s.create_simple((PETABYTE,)))


def plug_in_filter(file: h5py.File, bait: Path) -> None:
    """A filter that HDF5 would load as a program from a folder of plug-ins."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((NUM_VALUES,))
    properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (1,))
    del file["values"]
    h5py.h5d.create(file.id, b"values", h5py.h5t.STD_U8LE, h5py.h5s.create_simple((NUM_VALUES,)), dcpl=properties)


def large_header(file: h5py.File, bait: Path) -> None:
    """Sparse on the disk: a quarter of a gigabyte for a parser, in a file of a few kilobytes."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    for name, kind, size in ((b"header", h5py.h5t.STD_U8LE, MAX_HEADER + 1),
                             (b"checksums/header", h5py.h5t.STD_U32LE, num_blocks(MAX_HEADER + 1))):
        del file[name.decode()]
        h5py.h5d.create(file.id, name, kind, h5py.h5s.create_simple((size,)), dcpl=properties)


def attribute(name: str, value: Any) -> Attack:
    """Return an attack that replaces a root attribute."""
    def change(file: h5py.File, bait: Path) -> None:
        del file.attrs[name]
        file.attrs[name] = value
    return edit(change)


def user_block(path: Path, bait: Path) -> None:
    """Bytes before the HDF5 file, such as a program; HDF5 would find the file behind them."""
    path.write_bytes(b"#!/bin/sh\n".ljust(512, b"\0") + path.read_bytes())


def pipe(path: Path, bait: Path) -> None:
    path.unlink()
    path.symlink_to(bait)


def address(name: str, change: Callable[[h5py.File], int]) -> Attack:
    """Return an attack that moves an array to another place in the file.

    In the file format of 1998, whose descriptions carry no checksums that would tell of it.
    """
    def attack(path: Path, bait: Path) -> None:
        old = path.with_name("old-format.h5")
        with h5py.File(path) as source, h5py.File(old, "w", libver="earliest", alignment_threshold=1,
                                                  alignment_interval=64) as file:
            names: list[str] = []
            source.visit(names.append)
            for item in (source[name] for name in names):
                if isinstance(item, h5py.Dataset):
                    file[item.name] = item[()]
            for key in source.attrs:
                file.attrs.create(key, source.attrs[key], dtype=source.attrs.get_id(key).dtype)
        with h5py.File(old) as file:
            before, after = file[name].id.get_offset(), change(file)
        data = old.read_bytes()
        marked = b"\3\1" + before.to_bytes(8, "little")  # a layout of version 3, contiguous, and its address
        assert data.count(marked) == 1
        path.write_bytes(data.replace(marked, b"\3\1" + after.to_bytes(8, "little")))
        old.unlink()
    return attack


def content(name: str, array: np.ndarray | None) -> Attack:
    """Return an attack that writes the store again with another array, or without it, all checksums right."""
    def attack(path: Path, bait: Path) -> None:
        rebuild(path, path.with_name("rebuilt.h5"), arrays_edit(name, array)).replace(path)
    return attack


def header(change: Callable[[dict[str, Any]], Any]) -> Attack:
    """Return an attack that writes the store again with another header, all checksums right."""
    def attack(path: Path, bait: Path) -> None:
        rebuild(path, path.with_name("rebuilt.h5"), lambda arrays, header: change(header)).replace(path)
    return attack


def header_text(start: bytes, rest: bytes = b" ") -> Attack:
    """Return an attack that overwrites the header's text."""
    def attack(path: Path, bait: Path) -> None:
        with h5py.File(path, "r+") as file:
            file["header"][()] = np.frombuffer(start + rest * (len(file["header"]) - len(start)), "u1")
        reseal(path)
    return attack


def loop_of_groups(file: h5py.File, bait: Path) -> None:
    file["metadata/note/values2"] = file["metadata"]


def second_name(file: h5py.File, bait: Path) -> None:
    del file["metadata/label"]
    file["metadata/label"] = file["metadata/mass"]


def reset(counts: dict[str, Any]) -> None:
    counts["splits"]["all"]["sequences"] = 2**62


U8 = np.dtype("<u8")
NUMBERS = "something else than numbers"
LINK = "/{} is a soft or external link, which a store never holds; do not trust this file"
ATTACKS: dict[str, tuple[Attack, str]] = {
    "external link": (link("values", lambda bait: h5py.ExternalLink(bait, "/values")), LINK.format("values")),
    "external link on the way": (link("metadata", lambda bait: h5py.ExternalLink(bait, "/x")), LINK.format("metadata")),
    "external link to checksums": (link("checksums", lambda bait: h5py.ExternalLink(bait, "/")),
                                   LINK.format("checksums")),
    "external storage": (edit(external_storage), "/values is an array with external storage"),
    "virtual dataset": (edit(virtual), "/values is a virtual array, made of other ones"),
    "soft link": (link("values", lambda bait: h5py.SoftLink("/header")), LINK.format("values")),
    "soft link on the way": (link("metadata", lambda bait: h5py.SoftLink("/checksums/metadata")),
                             LINK.format("metadata")),
    "soft link to itself": (link("values", lambda bait: h5py.SoftLink("/values")), LINK.format("values")),
    "cycle of groups": (edit(loop_of_groups), "/metadata/note/values2 is an unknown object"),
    "shape bomb": (edit(shape_bomb), r"/values is an array of shape \(1125899906842624,\) with only 0 bytes"),
    "chunks not compressed": (values(shape=(2**60,), dtype="u1", chunks=(2**20,)), r"in chunks with the filters \[\]"),
    "bomb of chunks": (values(shape=(2**60,), dtype="u1", chunks=(2**20,), compression="gzip"),
                       "/chunks/values is missing, or not the table of 1099511627776 chunks"),
    "bomb in a chunk": (values(data=np.zeros(2**24, "u1"), chunks=(2**24,), compression="gzip"),
                        r"in chunks of \(16777216,\), which are too large"),
    "chunks of offsets": (values("offsets", data=np.zeros(5, "<u8"), chunks=(5,), compression="gzip"),
                          "/offsets is an array in chunks"),
    "chunks nobody can find": (values(data=np.ones(NUM_VALUES, "u1"), chunks=(NUM_VALUES,), compression="gzip"),
                               "/chunks/values is missing, or not the table of 1 chunks"),
    "bomb inside a chunk": (chunk_of(zlib.compress(bytes(20000), 9)),
                            "chunk 0 .* inflates to 11 bytes or more; expected 10"),
    "chunk no gzip": (chunk_of(b"\xff" * 20), "chunk 0 .* cannot be inflated"),
    "chunk cut": (chunk_of(zlib.compress(b"\1" * NUM_VALUES)[:-1]), "chunk 0 .* expected 10 and an end"),
    "chunk of padding": (chunk_of(zlib.compress(bytes(NUM_VALUES))), r"CRC-32|/values\[0\] is 0; expected 1 <= token"),
    "chunk past the end": (chunk_at(start=2**62), r"/chunks/values\[0\] is 4611686018427387904, .*expected a place in"),
    "chunk overflows": (chunk_at(start=2**64 - 5), r"/chunks/values\[0\] is 18446744073709551611, "),
    "chunk over an array": (packed(over_an_array), "a chunk of /values at byte .* overlaps /header"),
    "chunk of no bytes": (chunk_at(size=0), r"/chunks/values\[0\] is \d+, 0; expected"),
    "chunk too large": (chunk_at(size=5000), r"/chunks/values\[0\] is \d+, 5000; .* 1 to 74 bytes"),
    "table of no chunks": (content("chunks/values", np.zeros((2, 2), "<u8")), "/chunks/values belongs to no array"),
    "vlen": (values(shape=(NUM_VALUES,), dtype=h5py.vlen_dtype("u1")), NUMBERS),
    "text": (values(shape=(NUM_VALUES,), dtype=h5py.string_dtype()), NUMBERS),
    "object reference": (values(shape=(NUM_VALUES,), dtype=h5py.ref_dtype), NUMBERS),
    "region reference": (values(shape=(NUM_VALUES,), dtype=h5py.regionref_dtype), NUMBERS),
    "compound": (values(data=np.zeros(NUM_VALUES, [("a", "u1")])), NUMBERS),
    "opaque": (values(data=np.zeros(NUM_VALUES, "V4")), NUMBERS),
    "enum": (values(data=np.zeros(NUM_VALUES, bool)), NUMBERS),
    "big-endian": (values(data=np.ones(NUM_VALUES, ">u2")), "an array of >u2"),
    "plug-in filter": (edit(plug_in_filter), r"in chunks with the filters \[32015\], not \[1\] \(gzip\)"),
    "named type": (edit(lambda file, bait: file.__setitem__("metadata/t", np.dtype("u1"))), "neither the group nor"),
    "unknown object": (edit(lambda file, bait: file.create_group("other")), "/other is an unknown object"),
    "two names of one array": (edit(second_name), "/metadata/.* overlaps /metadata/"),
    "extents overlap": (address("metadata/mass", lambda file: file["metadata/label"].id.get_offset() + 8),
                        "/metadata/mass overlaps /metadata/label"),
    "extent not aligned": (address("metadata/mass", lambda file: file["metadata/mass"].id.get_offset() + 4),
                           "/metadata/mass overlaps .* or is not aligned"),
    "extent past the end": (address("values", lambda file: file.id.get_filesize() - NUM_VALUES + 1),
                            "cut short: /values ends at byte|damaged.*invalid dataset size"),
    "extent far past the end": (address("values", lambda file: 2**62), "cut short: /values ends at byte|damaged"),
    "extent overflows": (address("values", lambda file: 2**64 - 2), "cut short|damaged"),
    "user block": (user_block, "does not start with the HDF5 signature"),
    "pipe": (pipe, "no regular file"),
    "newer version": (attribute("format_version", np.uint32(7)), "format version 7, this seqpipe reads up to 1"),
    "incomplete": (attribute("complete", np.uint8(0)), "incomplete: its writing never ended"),
    "large attribute": (attribute("format", np.zeros(5000)), "not a seqpipe store"),
    "large header": (edit(large_header), f"/header is missing, or no text of up to {MAX_HEADER} bytes"),
    "header no JSON": (header_text(b"{]"), "/header is no JSON"),
    "header of endless depth": (header_text(b"[", b"["), "/header is no JSON"),
    "header counts wrong": (header(reset), "/header tells splits"),
    "header num_tokens wrong": (header(lambda header: header["encoding"].update(num_tokens=2**40)), "header.encoding"),
    "offsets decrease": (content("offsets", np.array([0, 6, 4, 9, 10], U8)),
                         r"/offsets\[1:3\] is 6, 4; expected start <= end|/offsets.* 6, 4"),
    "offsets beyond the end": (content("offsets", np.array([0, 4, 11, 9, 10], U8)),
                               r"/offsets\[1:3\] is 4, 11|/offsets\[2:4\] is 11, 9"),
    "offsets overflow": (content("offsets", np.array([0, 2**64 - 4, 6, 9, 10], U8)),
                         r"/offsets\[(0:2\] is 0, |1:3\] is )18446744073709551612"),
    "offsets end early": (content("offsets", np.array([0, 4, 6, 9, 9], U8)), "/offsets runs from 0 to 9"),
    "token outside of the alphabet": (content("values", np.array([1, 9, 3, 4, 1, 2, 3, 3, 4, 4], "u1")),
                                      r"token 9|/values\[1\] is 9"),
    "token that is padding": (content("values", np.array([1, 0, 3, 4, 1, 2, 3, 3, 4, 4], "u1")),
                              r"token 0|/values\[1\] is 0"),
    "class outside": (content("metadata/label", np.array([0, 7, 0, 1])), "7; expected 0 <= label < 2|class 7|label"),
    "split outside": (content("splits/train", np.array([0, 2**40], U8)), "/splits/train holds row 1099511627776"),
    "column too short": (content("metadata/mass", np.zeros(3)), r"/metadata/mass has shape \(3,\), expected \(4,\)"),
    "text offsets": (content("metadata/id/offsets", np.array([0, 3, 2, 3, 4], U8)), "/metadata/id"),
    "text no UTF-8": (content("metadata/id/values", np.full(4, 255, "u1")), "/metadata/id"),
}


def make_all(folder: Path, good: Path) -> dict[str, Path]:
    """Make every attack, each in a folder of its own below ``folder``; return its path by name."""
    bait = folder / "bait"
    os.mkfifo(bait)
    paths = {}
    for number, (name, (attack, _)) in enumerate(ATTACKS.items()):
        (folder / str(number)).mkdir()
        paths[name] = Path(shutil.copy(good, folder / str(number) / "a.h5"))
        attack(paths[name], bait)
    return paths
