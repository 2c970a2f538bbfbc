"""Check every byte of a store, and every promise its readers rely on.

Place in the flow: seqs.h5 -> store -> [verification] -> the exact place of what is off.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from seqpipe.chunks import Chunks
from seqpipe.errors import StoreError
from seqpipe.layout import CHECKSUM_BLOCK, Checksums, block_checksums
from seqpipe.locate import index_of_chunks
from seqpipe.manifest import is_manifest
from seqpipe.options import VerifyOptions
from seqpipe.sharded import ShardedStore, check_ids, manifest_of
from seqpipe.store import Store, TextColumn
from seqpipe.summary import summarise_lengths

STEP = 16 << 20  # bytes checked at a time; a multiple of CHECKSUM_BLOCK
TEXTS = 4096  # decoded at a time
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
        shards = f"{self.shards} shards, " if self.shards else ""
        return (f"{self.path}: good: {shards}{self.sequences:,} sequences, {self.arrays} arrays, {self.num_bytes:,} "
                "bytes; every checksum, offset, token and id")


def verify(options: VerifyOptions) -> Verification:
    """Check every checksum, offset, token and id of a store, or of a manifest and all its shards.

    Raises:
        StoreError: something is off; the message lists the places, the first 20 of them.
    """
    if not is_manifest(options.store):
        return verify_store(options.store)
    store = ShardedStore(options.store)
    paths = [store.manifest.shard_path(k) for k in range(len(store.manifest.shards))]
    found = [verify_store(path) for path in paths]
    for k in range(len(paths)):
        store.shard(k)  # refuses another store than the manifest names
    check_ids(store)
    expected = manifest_of(paths, store.path)
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


def verify_store(path: Path) -> Verification:
    """Check every byte of one store; raises as ``verify``."""
    store = Store(path)
    checked = {name: array for name, array in store.arrays.items() if not name.startswith("checksums/")}
    total = sum(array.nbytes for array in checked.values())
    findings: list[str] = []
    with tqdm(total=total, unit="B", unit_scale=True, desc="verify", disable=None) as bar:
        for name, array in checked.items():
            findings += (_bad_chunks if isinstance(array, Chunks) else _bad_blocks)(store, name, array, bar)
    # With a bad block the rest would only repeat it in other words.
    if not findings:
        findings += _bad_content(store)
    if findings:
        more = f"\n  and {len(findings) - MOST_FINDINGS} more" if len(findings) > MOST_FINDINGS else ""
        raise StoreError(
            f"{path}: damaged:\n  " + "\n  ".join(findings[:MOST_FINDINGS]) + more
            + "\nmake it again with preprocess, or copy it again from where it is whole", path=path,
        )
    return Verification(path, len(checked), total, len(store))


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
    orders = [("offsets", store.offsets, False)]
    orders += [(f"metadata/{name}/offsets", column.offsets, False) for name, column in texts.items()]
    orders += [(f"splits/{name}", rows, True) for name, rows in store.splits.items()]
    findings = [finding for name, numbers, strict in orders for finding in _bad_order(name, numbers, strict=strict)]
    if not findings:
        findings = [finding for name, column in texts.items() for finding in _bad_text(name, column)]
    yield from findings
    if findings:
        return  # what follows reads by these offsets, rows and texts
    yield from _bad_tokens(store)
    if "id" not in texts:
        yield "/metadata/id is missing or no text"
    else:
        yield from _bad_ids(texts["id"])
    findings = list(_bad_labels(store))
    yield from findings or _bad_summary(store)


def _bad_labels(store: Store) -> Iterator[str]:
    """Yield the first label that is no class number, or no finite number."""
    labels = store.metadata.get("label")
    if store.header["label_type"] == "none" or not isinstance(labels, np.ndarray):
        return
    count = len(store.classes)
    wrong = (labels < 0) | (labels >= count) if count else ~np.isfinite(labels)
    if wrong.any():
        row = int(np.argmax(wrong))
        yield f"/metadata/label[{row}] is {labels[row]}; expected {f'0 <= label < {count}' if count else 'a number'}"


def _bad_summary(store: Store) -> Iterator[str]:
    """Yield where the header's summary of a split is not what its sequences say."""
    lengths, labels = store.lengths(slice(None)), store.metadata.get("label")
    selections: dict[str, Any] = {"all": slice(None), **store.splits}
    for name, rows in selections.items():
        numbers = labels[rows] if store.classes and isinstance(labels, np.ndarray) else None
        expected, told = summarise_lengths(lengths[rows], numbers, len(store.classes)), store.header["splits"][name]
        if len(lengths[rows]):
            # Edges come from logarithms, whose last digit differs between machines: counts by the told ones.
            histogram = told["lengths"]["histogram"]
            counts = np.histogram(lengths[rows], histogram["edges"])[0].tolist()
            expected["lengths"]["histogram"] = {**histogram, "counts": counts}
        if any(told.get(key) != value for key, value in expected.items()):
            yield f"/header tells other counts or lengths of the split {name!r} than its sequences have"


def _bad_order(name: str, numbers: np.ndarray, *, strict: bool) -> Iterator[str]:
    """Yield the first place where ``numbers`` do not ascend."""
    step = STEP // 8
    for start in range(0, len(numbers), step):
        part = numbers[start : start + step + 1]
        wrong = part[1:] <= part[:-1] if strict else part[1:] < part[:-1]
        if wrong.any():
            i = start + int(np.argmax(wrong))
            yield f"/{name}[{i}:{i + 2}] is {numbers[i]}, {numbers[i + 1]}; expected ascending numbers"
            return


def _bad_tokens(store: Store) -> Iterator[str]:
    """Yield the first token outside the alphabet, or feature that is not finite."""
    rows = max(1, STEP // (store.values.itemsize * max(1, len(store.channels))))
    for start in range(0, len(store.values), rows):
        part = store.values[start : start + rows]
        if store.alphabet is None:
            known = ~np.isinf(part) if store.header["encoding"].get("missing") is True else np.isfinite(part)
            wrong, expected = ~known.reshape(len(part), -1).all(axis=1), "finite numbers"
        else:
            last = store.alphabet.num_tokens - 1
            wrong, expected = (part < 1) | (part > last), f"1 <= token <= {last}"
        if wrong.any():
            i = start + int(np.argmax(wrong))
            row = int(np.searchsorted(store.offsets, i, "right")) - 1
            yield f"/values[{i}] is {store.values[i]} (row {row}, element {i - int(store.offsets[row])}); " \
                  f"expected {expected}"
            return


def _bad_text(name: str, column: TextColumn) -> Iterator[str]:
    """Yield the first text of a column that is no UTF-8."""
    data, ends = column.values.data, column.offsets
    for first in range(0, len(column), TEXTS):
        bounds = ends[first : first + TEXTS + 1].tolist()
        for i, (start, end) in enumerate(itertools.pairwise(bounds), start=first):
            try:
                str(data[start:end], "utf-8")
            except UnicodeDecodeError as error:
                yield f"/metadata/{name}[{i}] is no UTF-8 text ({error})"
                return


def _bad_ids(ids: TextColumn) -> Iterator[str]:
    """Yield the first id that is empty, or stands twice."""
    hashes = np.fromiter((hash(ids[i]) for i in range(len(ids))), np.int64, len(ids))
    order = np.argsort(hashes, kind="stable")
    for k in np.flatnonzero(np.diff(hashes[order]) == 0):
        first, second = int(order[k]), int(order[k + 1])
        if ids[first] == ids[second]:
            yield f"/metadata/id[{second}] is {ids[second]!r}, as is /metadata/id[{first}]; expected distinct ids"
            return
    lengths = np.diff(ids.offsets)
    if len(lengths) and not lengths.all():
        yield f"/metadata/id[{int(np.argmin(lengths != 0))}] is empty"
