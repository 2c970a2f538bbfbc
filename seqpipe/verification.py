"""Check every byte of a store, and every promise its readers rely on.

Place in the flow: seqs.h5 -> store -> [verification] -> the exact place of what is off.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from seqpipe.chunks import Chunks
from seqpipe.columns import ListColumn, TextColumn
from seqpipe.errors import StoreError, count_of
from seqpipe.hashing import find_repeats, hash_texts
from seqpipe.layout import CHECKSUM_BLOCK, Checksums, block_checksums
from seqpipe.locate import index_of_chunks
from seqpipe.manifest import is_manifest
from seqpipe.options import VerifyOptions
from seqpipe.sharded import ShardedStore, check_ids
from seqpipe.store import Store
from seqpipe.summary import summarise_lengths
from seqpipe.survey import manifest_of

STEP = 16 << 20  # bytes checked at a time; a multiple of CHECKSUM_BLOCK
TEXTS = 65536  # decoded at a time
MOST_FINDINGS = 20


@dataclass(frozen=True)
class Verification:
    """A store, or a manifest and its shards, in which nothing is off."""

    path: Path
    arrays: int
    num_bytes: int
    sequences: int
    shards: int = 0

    def __str__(self) -> str:
        shards = f"{count_of(self.shards, 'shard')}, " if self.shards else ""
        return (f"{self.path}: good: {shards}{count_of(self.sequences, 'sequence')}, {self.arrays} arrays, "
                f"{self.num_bytes:,} bytes; every checksum, offset, token and id")


def verify(options: VerifyOptions) -> Verification:
    """Check every checksum, offset, token and id of a store, or of a manifest and all its shards.

    Raises:
        StoreError: something is off; the message lists the places, the first 20 of them.
    """
    if not is_manifest(options.store):
        return verify_store(Store(options.store))
    opened = cache(Store)
    store = ShardedStore(options.store, opened=opened)
    paths = [store.manifest.shard_path(k) for k in range(len(store.manifest.shards))]
    found = [verify_store(opened(path)) for path in paths]
    for k in range(len(paths)):
        store.shard(k)  # refuses another store than the manifest names
    check_ids(store)
    expected = manifest_of(paths, store.path, opened=opened)
    if (expected.shards, expected.types) != (store.manifest.shards, store.manifest.types) \
            or not _same_header(expected.header, store.header):
        raise StoreError(f"{store.path}: damaged: it says other things of its shards than they hold; make the manifest "
                         "again with seqpipe merge", path=store.path)
    return Verification(store.path, sum(part.arrays for part in found), sum(part.num_bytes for part in found),
                        len(store), len(found))


def _same_header(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Say whether two headers are the same but for the last digits of sums and logarithms, which machines differ in."""
    def exact(header: dict[str, Any]) -> dict[str, Any]:
        splits = {name: {**part, "lengths": {**part.get("lengths", {}), "histogram": None}}
                  for name, part in header["splits"].items()}
        return {**header, "splits": splits, "moments": None}

    first, second = ([*header.get("moments", {}).values()] for header in (one, other))
    return exact(one) == exact(other) and np.allclose(first, second, rtol=1e-9)


def verify_store(store: Store) -> Verification:
    """Check every byte of one store; raises as ``verify``."""
    checked = {name: array for name, array in store.arrays.items() if not name.startswith("checksums/")}
    total = sum(array.nbytes for array in checked.values())
    findings: list[str] = []
    with tqdm(total=total, unit="B", unit_scale=True, desc="verify", disable=None) as bar:
        for name, array in checked.items():
            findings += (_bad_chunks if isinstance(array, Chunks) else _bad_blocks)(store, name, array, bar)
    # With a bad block the rest would only repeat it in other words.
    if not findings:
        findings += _bad_content(store)
    for array in checked.values():
        if isinstance(array, Chunks):  # a store may stay open beside a thousand others
            array.chunk.cache_clear()
    if findings:
        more = f"\n  and {len(findings) - MOST_FINDINGS} more" if len(findings) > MOST_FINDINGS else ""
        raise StoreError(
            f"{store.path}: damaged:\n  " + "\n  ".join(findings[:MOST_FINDINGS]) + more
            + "\nmake it again with preprocess, or copy it again from where it is whole", path=store.path,
        )
    return Verification(store.path, len(checked), total, len(store))


def _bad_blocks(store: Store, name: str, array: np.ndarray, bar: tqdm) -> Iterator[str]:
    """Yield the 64 KiB blocks of one array that fail their CRC-32."""
    data = array.reshape(-1).view(np.uint8)
    expected = store.checksums[name]
    for start in range(0, len(data), STEP):
        part = data[start : start + STEP]
        first = start // CHECKSUM_BLOCK
        found = block_checksums(part.data)
        for block in np.flatnonzero(found != expected[first : first + len(found)]) + first:
            low = int(block) * CHECKSUM_BLOCK
            high = min(low + CHECKSUM_BLOCK, len(data))
            yield f"/{name}: bytes {low} to {high} (block {block}) fail their CRC-32{store.hit(name, low, high)}"
        bar.update(len(part))


def _bad_chunks(store: Store, name: str, chunks: Chunks, bar: tqdm) -> Iterator[str]:
    """Yield the chunks that cannot be inflated, or lie elsewhere than HDF5 says; then blocks as ``_bad_blocks``."""
    checksums, left = Checksums(), chunks.nbytes
    whole = True
    for k in range(len(chunks.table)):
        try:
            data = chunks.chunk(k)
        except StoreError as error:
            whole = False
            yield str(error).removeprefix(f"{store.path}: damaged: ").partition("; copy it again")[0]
            continue
        finally:
            bar.update(min(left, chunks.chunk_bytes))
        checksums.add(data[: min(left, len(data))])
        left -= len(data)
    if not whole:
        return
    for block in np.flatnonzero(checksums.array() != store.checksums[name]):
        low = int(block) * CHECKSUM_BLOCK
        high = min(low + CHECKSUM_BLOCK, chunks.nbytes)
        yield f"/{name}: bytes {low} to {high} (block {block}) fail their CRC-32{store.hit(name, low, high)}"
    index = index_of_chunks(store.path, name, chunks.table)
    wrong = np.flatnonzero((index != chunks.table).any(axis=1))
    if len(wrong):
        k = int(wrong[0])
        yield (f"/chunks/{name}[{k}] is {chunks.table[k].tolist()}, HDF5's own index says {index[k].tolist()}; "
               "expected the same")


def _bad_content(store: Store) -> Iterator[str]:
    """Yield what is off although every checksum holds."""
    texts = {name: column for name, column in store.metadata.items() if isinstance(column, TextColumn)}
    names = sorted(store.arrays, key=lambda name: not name.endswith("offsets") and not name.startswith("splits/"))
    findings: list[str] = []
    for name in names:
        if findings and not name.endswith("offsets") and not name.startswith("splits/"):
            break  # what follows is read by these offsets and rows
        findings += _misfit(store, name)
    if not findings:
        findings = [finding for name, column in texts.items() for finding in _bad_text(name, column)]
    yield from findings
    if findings:
        return
    if "id" not in texts:
        yield "/metadata/id is missing"
    else:
        yield from _bad_ids(texts["id"])
    yield from _bad_summary(store)


def _misfit(store: Store, name: str) -> Iterator[str]:
    """Yield the first numbers of an array that are not what they must be."""
    rule, array = store.rule(name), store.arrays[name]
    if rule is None or not array.nbytes:
        return
    width = int(np.prod(array.shape[1:], dtype=np.int64))
    step = STEP // (array.itemsize * width)
    for start in range(0, len(array), step):
        flat = array[start : start + step + rule.span - 1].reshape(-1)
        at = rule.first_misfit(flat)
        if at >= 0:
            i = start + at // width
            found = flat[at : at + rule.span].tolist()
            place = f"{i}:{i + len(found)}" if len(found) > 1 else f"{i}"
            where = ""
            if name == "values":
                row = int(np.searchsorted(store.offsets, np.uint64(i), "right")) - 1
                where = f" (row {row}, element {i - int(store.offsets[row])})"
            yield f"/{name}[{place}] is {', '.join(map(str, found))}{where}; expected {rule.expected}"
            return


def _bad_summary(store: Store) -> Iterator[str]:
    """Yield where the header's summary of a split is not what its sequences say."""
    lengths, labels = store.lengths(slice(None)), store.metadata.get("label")
    selections: dict[str, Any] = {"all": slice(None), **store.splits}
    for name, rows in selections.items():
        numbers = None
        if store.classes and labels is not None and not isinstance(labels, TextColumn):
            numbers = labels.numbers(rows) if isinstance(labels, ListColumn) else labels[rows]
        expected, told = summarise_lengths(lengths[rows], numbers, len(store.classes)), store.header["splits"][name]
        if len(lengths[rows]):
            # Edges come from logarithms, whose last digit differs between machines: counts by the told ones.
            histogram = told["lengths"]["histogram"]
            counts = np.histogram(lengths[rows], histogram["edges"])[0].tolist()
            expected["lengths"]["histogram"] = {**histogram, "counts": counts}
        if any(told.get(key) != value for key, value in expected.items()):
            yield f"/header tells other counts or lengths of the split {name!r} than its sequences have"


def _bad_text(name: str, column: TextColumn) -> Iterator[str]:
    """Yield the first text of a column that is no UTF-8."""
    data, ends = column.values.data, column.offsets
    for first in range(0, len(column), TEXTS):
        bounds = ends[first : first + TEXTS + 1]
        starts = bounds[:-1][bounds[:-1] < bounds[1:]]
        # Together they are UTF-8 and none begins within a character: then each is UTF-8.
        if not (column.values[starts] & 0xC0 == 0x80).any() and _is_text(data[int(bounds[0]) : int(bounds[-1])]):
            continue
        for i, (start, end) in enumerate(itertools.pairwise(bounds.tolist()), start=first):
            try:
                str(data[start:end], "utf-8")
            except UnicodeDecodeError as error:
                yield f"/metadata/{name}[{i}] is no UTF-8 text ({error})"
                return


def _is_text(data: memoryview) -> bool:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _bad_ids(ids: TextColumn) -> Iterator[str]:
    """Yield the first id that is empty, or stands twice."""
    keys = hash_texts(ids.values, ids.offsets)
    ordered = np.sort(keys)  # far quicker than to sort rows, and mostly the end of it
    if (ordered[1:] == ordered[:-1]).any():
        again, before = find_repeats(keys, lambda row: ids[row])
        for second, first in zip(again[:1].tolist(), before[:1].tolist(), strict=True):
            yield f"/metadata/id[{second}] is {ids[second]!r}, as is /metadata/id[{first}]; expected distinct ids"
            return
    lengths = np.diff(ids.offsets)
    if len(lengths) and not lengths.all():
        yield f"/metadata/id[{int(np.argmin(lengths != 0))}] is empty"
