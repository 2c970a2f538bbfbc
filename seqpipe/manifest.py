"""The manifest of a sharded store: a small JSON file that names stores beside it and says what is in them.

Place in the flow: merging -> [manifest] -> sharded.

    {"format": "seqpipe.manifest", "format_version": 1, "crc32": of "content" as ``_text`` writes it,
     "content": {"header": as the one merged store would have it, "types": dtype by column and track,
                 "shards": [{"file": a name without separators, "size": bytes, "digest", "data": see ``Shard``,
                             "rows": N, "values": M, "min_length": ..., "max_length": ...,
                             "splits": {name: number of rows}}, ...]}}

Everything that a run needs to plan is in here, so that opening a manifest reads no shard. A shard
is told by its size and by the SHA-256 over its tables of checksums: read in a moment, and ``verify``
checks that the tables hold for every byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.errors import StoreError
from seqpipe.header import header_problem, misfit
from seqpipe.layout import NUMBER_TYPES
from seqpipe.publish import published

SUFFIX = ".seqpipe.json"
FORMAT = "seqpipe.manifest"
FORMAT_VERSION = 1
MAX_MANIFEST = 1 << 26  # bytes
TEXT, LISTS = "text", "lists"  # the types of columns of texts, and of lists of class numbers
FEATURE_TYPES = NUMBER_TYPES | {np.dtype(code).name for code in NUMBER_TYPES}
MOST = 2**62

_SHARD = {"file": (str,), "size": (int,), "digest": (str,), "data": (str,), "rows": (int,), "values": (int,),
          "min_length": (int,), "max_length": (int,), "splits": {str: (int,)}}
_CONTENT = {"header": {}, "types": {str: (str,)}, "shards": [_SHARD]}


@dataclass(frozen=True)
class Shard:
    """One store of a manifest.

    Attributes:
        file: its name beside the manifest, or its path where there is no manifest.
        size: of the file, in bytes.
        digest: of its content, see ``digest``.
        data: the same, but of its header: where the data came from is no part of them.
        rows: number of sequences.
        values: number of elements of all of them.
        min_length, max_length: of its sequences; 0 where there are none.
        splits: number of rows by split.
    """

    file: str
    size: int
    digest: str
    data: str
    rows: int
    values: int
    min_length: int
    max_length: int
    splits: dict[str, int]


@dataclass(frozen=True)
class Manifest:
    """What is known of a sharded store before a shard is read.

    Attributes:
        path: of the manifest; where there is none, of the first shard.
        folder: that the shards' names start from.
        header: of all shards together, as one store would have it.
        types: dtype string, ``text`` or ``lists`` of each ``metadata/NAME`` and ``tracks/NAME``.
        shards: in the order of their rows.
    """

    path: Path
    folder: Path
    header: dict[str, Any]
    types: dict[str, str]
    shards: tuple[Shard, ...]

    @property
    def digest(self) -> str:
        """A text that tells these shards from others."""
        return hashlib.sha256("".join(shard.digest for shard in self.shards).encode()).hexdigest()

    @property
    def data(self) -> str:
        """A text that tells the data of these shards from others, wherever they came from."""
        return hashlib.sha256("".join(shard.data for shard in self.shards).encode()).hexdigest()

    def shard_path(self, k: int) -> Path:
        return self.folder / self.shards[k].file


def is_manifest(path: Path | str) -> bool:
    """Say whether a path names a manifest."""
    return Path(path).name.endswith(SUFFIX)


def digest(checksums: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 over a store's tables of checksums: another one where any byte of its arrays is."""
    return _digest(checksums, sorted(checksums))


def data_digest(checksums: Mapping[str, np.ndarray]) -> str:
    """Return the same without the header: where the data came from, such as the name of a raw file, is not in it."""
    return _digest(checksums, sorted(checksums.keys() - {"header"}))


def _digest(checksums: Mapping[str, np.ndarray], names: Iterable[str]) -> str:
    total = hashlib.sha256()
    for name in names:
        total.update(f"{name}\0{len(checksums[name])}\0".encode())
        total.update(np.ascontiguousarray(checksums[name]).data)
    return total.hexdigest()


def write_manifest(manifest: Manifest, *, overwrite: bool) -> None:
    """Write a manifest to its path, whole or not at all.

    Raises:
        StoreError: it is too large: too many shards, or classes.
        SeqpipeError: the file cannot be written.
    """
    content = {"header": manifest.header, "types": manifest.types, "shards": [asdict(s) for s in manifest.shards]}
    assert (problem := _content_problem(content)) is None, problem
    crc = zlib.crc32(_text(content).encode())
    outer = {"format": FORMAT, "format_version": FORMAT_VERSION, "crc32": crc, "content": content}
    text = json.dumps(outer, ensure_ascii=False, allow_nan=False, indent=1).encode()
    if len(text) > MAX_MANIFEST:
        raise StoreError(f"{manifest.path}: the manifest of {len(manifest.shards)} shards takes {len(text)} bytes, "
                         f"expected up to {MAX_MANIFEST}: merge the shards into one .h5 file", path=manifest.path)
    with published(manifest.path, overwrite=overwrite) as file:
        file.write(text)


def read_manifest(path: Path) -> Manifest:
    """Return a manifest whose every number has been looked at, and whose shards are there with their sizes.

    Raises:
        StoreError: it is no manifest, a damaged one, of a newer version, or a shard is missing.
    """
    outer = _read_json(path)
    if not isinstance(outer, dict) or outer.get("format") != FORMAT:
        raise StoreError(f"{path}: not a manifest: expected a JSON object with \"format\": \"{FORMAT}\"; make one "
                         f"with: seqpipe merge A.h5 B.h5 --out {path}", path=path)
    version = outer.get("format_version")
    if type(version) is int and version > FORMAT_VERSION:
        raise StoreError(f"{path}: manifest of format version {version}, this seqpipe reads up to {FORMAT_VERSION}; "
                         "install a newer seqpipe", path=path)
    content: Any = outer.get("content")
    if version != FORMAT_VERSION or outer.keys() != {"format", "format_version", "crc32", "content"}:
        raise _damaged(path, f"it has the keys {sorted(map(str, outer))[:8]} and format_version={version!r}")
    if zlib.crc32(_text(content).encode()) != outer["crc32"]:
        raise _damaged(path, "its content fails its CRC-32")
    if problem := _content_problem(content):
        raise _damaged(path, f"{problem} is missing, or not what it should be")
    shards = tuple(Shard(**shard) for shard in content["shards"])
    _check_files(path, shards)
    return Manifest(path, path.parent, content["header"], content["types"], shards)


def _read_json(path: Path) -> Any:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
            raise StoreError(f"{path}: expected a manifest, found no regular file", path=path)
        if status.st_size > MAX_MANIFEST:
            raise StoreError(f"{path}: {status.st_size} bytes, expected a manifest of up to {MAX_MANIFEST}; do not "
                             "trust this file", path=path)
        data = path.read_bytes()
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file; make a manifest with: seqpipe merge A.h5 B.h5 --out {path}",
                         path=path) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be opened ({error})", path=path) from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError, MemoryError) as error:
        raise _damaged(path, f"it is no JSON ({error})") from None


def _text(content: Any) -> str:
    """Return the one way of writing JSON that a manifest's CRC-32 is of; escapes what is not ASCII."""
    return json.dumps(content, separators=(",", ":"))


def _damaged(path: Path, finding: str) -> StoreError:
    return StoreError(f"{path}: damaged: {finding}; make the manifest again with seqpipe merge", path=path)


def _content_problem(content: Any) -> str | None:
    """Return the first place in a manifest's content that readers could not use, or None."""
    place = misfit(content, _CONTENT, "content")
    if place := place or header_problem(content["header"]):
        return place
    header, shards = content["header"], content["shards"]
    if header["kind"] == "features" and header["encoding"]["dtype"] not in FEATURE_TYPES:
        return "content.header.encoding.dtype"
    columns = {name.partition("/")[2] for name in content["types"] if name.startswith("metadata/")}
    others = [name for name in content["types"] if not name.startswith(("metadata/", "tracks/"))]
    if others or columns != set(header["columns"]) or "all" not in header["splits"] or len(columns) != len(
            header["columns"]) or not set(content["types"].values()) <= NUMBER_TYPES | {TEXT, LISTS}:
        return "content.types"
    for i, shard in enumerate(shards):
        rows, values, low, high = (shard[name] for name in ("rows", "values", "min_length", "max_length"))
        counts = [shard["size"], rows, values, low, high, *shard["splits"].values()]
        if not 0 <= min(counts) <= max(counts) < MOST or max([0, *shard["splits"].values()]) > rows or not (
                low * rows <= values <= high * rows and low <= high):
            return f"content.shards[{i}]: a count"
        if not shard["file"] or re.search(r"[/\\\0]", shard["file"]) or shard["file"] in (".", ".."):
            return f"content.shards[{i}].file {shard['file'][:80]!r}, a plain file name,"
        for name in ("digest", "data"):
            if not re.fullmatch("[0-9a-f]{64}", shard[name]):
                return f"content.shards[{i}].{name}"
    names = [shard["file"] for shard in shards]
    if not shards or len(set(names)) != len(names):
        return f"content.shards: each shard once, {_twice(names)!r}"
    return _sum_problem(header["splits"], shards)


def _sum_problem(splits: dict[str, Any], shards: list[dict[str, Any]]) -> str | None:
    """Return the first count of the header that its shards do not add up to, or None."""
    known = {name for name in splits if name != "all"}
    for name, part in splits.items():
        told = part["sequences"] if name != "all" else (part["sequences"], part["values"])
        found = sum(s["splits"].get(name, 0) for s in shards) if name != "all" else (
            sum(s["rows"] for s in shards), sum(s["values"] for s in shards))
        if told != found:
            return f"content.header.splits.{name} {told}, the sum of the shards {found},"
    stray = [name for s in shards for name in s["splits"] if name not in known]
    return f"content.shards: the split {stray[0]!r}" if stray else None


def _twice(names: Iterable[str]) -> str:
    return next((name for name, count in Counter(names).items() if count > 1), "none")


def _check_files(path: Path, shards: Iterable[Shard]) -> None:
    """Refuse a manifest whose shards are not there, or have other sizes."""
    for shard in shards:
        file = path.parent / shard.file
        try:
            size = file.stat().st_size
        except (OSError, ValueError) as error:
            raise StoreError(f"{path}: its shard {file} cannot be opened ({error}); put it back, or make the manifest "
                             "again with seqpipe merge", path=path) from None
        if size != shard.size:
            raise StoreError(f"{path}: its shard {file} has {size} bytes, the manifest says {shard.size}: the file was "
                             "replaced or cut; put it back, or make the manifest again with seqpipe merge", path=path)
