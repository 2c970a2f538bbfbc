"""What is no store, and files of a structure that a store never has: refused before anything of them is read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from seqpipe.errors import StoreError
from seqpipe.store import Store
from tests.attacks.files import refused


def test_what_is_no_store_is_told_apart(small: Path, tmp_path: Path) -> None:
    """Each has its own sentence."""
    path = tmp_path / "x.h5"
    assert "no such file; make a store with: seqpipe preprocess" in refused(path)
    assert "found a folder" in refused(tmp_path)
    path.write_bytes(b"")
    assert "not a seqpipe store (or one cut to almost nothing)" in refused(path)
    path.write_text(">a\nACGT\n")
    assert "does not start with the HDF5 signature; turn raw files into one" in refused(path)
    with h5py.File(path, "w") as file:
        file["values"] = np.arange(3)
    assert "an HDF5 file, but not a seqpipe store: expected the root attribute format='seqpipe'" in refused(path)
    for wrong in ("seqpipe", b"seqpipE", [b"seqpipe"], 7, np.arange(5000), h5py.Empty("S7")):
        with h5py.File(path, "w") as file:
            file.attrs["format"] = wrong
        assert "not a seqpipe store" in refused(path)
    with h5py.File(shutil.copy(small, path), "r+") as file:
        file.attrs.modify("format_version", np.uint32(2))
    assert "store of format version 2, this seqpipe reads up to 1; install a newer seqpipe" in refused(path)
    with h5py.File(shutil.copy(small, path), "r+") as file:
        file.attrs.modify("complete", np.uint8(0))
    assert "incomplete: its writing never ended" in refused(path)
    for name in ("complete", "format_version"):
        with h5py.File(shutil.copy(small, path), "r+") as file:
            del file.attrs[name]
        assert "damaged: the root attributes say" in refused(path) and f"{name}=None" in refused(path)
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = [1, 1]
    assert "format_version=None" in refused(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Opening it would wait for a writer for ever."""
    os.mkfifo(tmp_path / "pipe.h5")
    assert "no regular file" in refused(tmp_path / "pipe.h5")


@pytest.mark.parametrize("name", ["x\0.h5", "x" * 300 + ".h5", "file/x.h5", "loop"])
def test_a_path_that_cannot_be_opened_is_a_store_error(tmp_path: Path, name: str) -> None:
    """NUL in the name, a name too long, a file taken for a folder, a link to itself."""
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError):
        Store(tmp_path / name)


# Hostile structure


def replace_values(**options: Any) -> Callable[[h5py.File], None]:
    """Return an edit that replaces /values by a dataset made with the given options."""
    def edit(file: h5py.File) -> None:
        del file["values"]
        file.create_dataset("values", **options)
    return edit


def point_values(link: Any) -> Callable[[h5py.File], None]:
    """Return an edit that replaces /values by a link."""
    def edit(file: h5py.File) -> None:
        del file["values"]
        file["values"] = link
    return edit


def external_group(file: h5py.File) -> None:
    del file["metadata"]
    file["metadata"] = h5py.ExternalLink("other.h5", "/metadata")


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((10,), "u1")
    layout[:] = h5py.VirtualSource("other.h5", "values", (10,), "u1")
    del file["values"]
    file.create_virtual_dataset("values", layout)


def second_name(file: h5py.File) -> None:
    del file["metadata/label"]
    file["metadata/label"] = file["metadata/mass"]


def loop_of_groups(file: h5py.File) -> None:
    file["metadata/again"] = file["metadata"]


def text_group(group: str) -> Callable[[h5py.File], None]:
    """Return an edit that puts a group where an array belongs."""
    def edit(file: h5py.File) -> None:
        file[f"{group}/x/values"] = np.ones(10, "u1")
    return edit


def odd_numbers(file: h5py.File) -> None:
    kind = h5py.h5t.STD_U8LE.copy()
    kind.set_precision(4)
    del file["values"]
    h5py.h5d.create(file.id, b"values", kind, h5py.h5s.create_simple((10,)))


def compact(file: h5py.File) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    del file["values"]
    h5py.h5d.create(file.id, b"values", h5py.h5t.STD_U8LE, h5py.h5s.create_simple((10,)), dcpl=properties)


def unallocated(file: h5py.File) -> None:
    del file["values"]
    h5py.h5d.create(file.id, b"values", h5py.h5t.STD_U8LE, h5py.h5s.create_simple((10,)))


STRUCTURES: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "soft link": (point_values(h5py.SoftLink("/header")), "/values is a soft or external link"),
    "external link": (point_values(h5py.ExternalLink("other.h5", "/values")), "/values is a soft or external link"),
    "external group": (external_group, "/metadata is a soft or external link"),
    "external storage": (replace_values(shape=(10,), dtype="u1", external=[("other.bin", 0, 10)]), "external storage"),
    "virtual": (virtual, "a virtual array"),
    "chunked": (replace_values(data=np.ones(10, "u1"), chunks=(5,)), "in chunks"),
    "chunk bomb": (replace_values(shape=(2**60,), dtype="u1", chunks=(1024,)), "in chunks"),
    "gzip": (replace_values(data=np.ones(10, "u1"), compression="gzip"), "/chunks/values is missing"),
    "compact": (compact, "inside its own description"),
    "unallocated": (unallocated, "an array of shape .* with only 0 bytes"),
    "vlen": (replace_values(shape=(10,), dtype=h5py.vlen_dtype("u1")), "something else than numbers"),
    "text": (replace_values(shape=(10,), dtype=h5py.string_dtype()), "something else than numbers"),
    "compound": (replace_values(data=np.zeros(10, [("a", "u1")])), "something else than numbers"),
    "reference": (replace_values(shape=(10,), dtype=h5py.ref_dtype), "something else than numbers"),
    "enum": (replace_values(data=np.zeros(10, bool)), "something else than numbers"),
    "complex": (replace_values(data=np.zeros(10, complex)), "something else than numbers|complex"),
    "opaque": (replace_values(data=np.zeros(10, "V4")), "something else than numbers"),
    "half": (replace_values(data=np.zeros(10, "<f2")), "an array of <f2"),
    "big-endian": (replace_values(data=np.ones(10, ">u2")), "an array of >u2"),
    "odd precision": (odd_numbers, "an array of .*layout of their own"),
    "scalar": (replace_values(data=np.uint8(1)), "not a simple array"),
    "null": (replace_values(data=h5py.Empty("u1")), "not a simple array"),
    "two names": (second_name, "overlaps /metadata/"),
    "unknown array": (lambda file: file.create_dataset("other", data=[1]), "/other is an unknown object"),
    "unknown group": (lambda file: file.create_group("other"), "/other is an unknown object"),
    "unknown group below": (lambda file: file.create_group("metadata/note/x"), "/metadata/note/x is an unknown object"),
    "type": (lambda file: file.__setitem__("metadata/t", np.dtype("u1")), "neither the group nor the array"),
    "loop": (loop_of_groups, "/metadata/again/.* is an unknown object"),
    "text track": (text_group("tracks"), "neither the group nor the array"),
    "text split": (text_group("splits"), "neither the group nor the array"),
    "group for an array": (lambda file: (file.pop("values"), file.create_group("values")), "neither the group nor"),
    "array for a group": (lambda file: file.create_dataset("tracks", data=[1]), "neither the group nor the array"),
    "bytes in a name": (lambda file: h5py.h5g.create(file["metadata"].id, b"\xff"), "damaged"),
    "no values": (lambda file: file.pop("values"), "belongs to no array|values"),
    "no checksums": (lambda file: file.pop("checksums"), "/checksums/.* is missing"),
    "no table": (lambda file: file.pop("checksums/values"), "/checksums/values is missing"),
    "spare table": (lambda file: file.__setitem__("checksums/tracks/x", np.ones(1, "<u4")), "belongs to no array"),
    "wrong table": (lambda file: (file.pop("checksums/values"),
                                  file.__setitem__("checksums/values", np.ones(2, "<u4"))), "wrong shape"),
    "half a text": (lambda file: (file.pop("metadata/note/offsets"), file.pop("checksums/metadata/note/offsets")),
                    "/metadata/note is no text column"),
    "other half": (lambda file: (file.pop("metadata/note/values"), file.pop("checksums/metadata/note/values")),
                   "/metadata/note/values is missing"),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_hostile_structure_is_refused(copy: Path, small: Path, name: str) -> None:
    """The message says what is found and where."""
    shutil.copy(small, copy.with_name("other.h5"))
    edit, finding = STRUCTURES[name]
    with h5py.File(copy, "r+") as file:
        edit(file)
    with pytest.raises(StoreError, match=finding) as caught:
        Store(copy)
    assert str(copy) in str(caught.value)
