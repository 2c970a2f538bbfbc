"""Many stores into one file, or under one manifest.

Place in the flow: seqs.h5, more.h5 -> sharded -> [merging] -> writer, or manifest.

Nothing is loaded: arrays pass through in blocks, and only what the header sums up (the lengths and
classes of all sequences) and one hash an id is held in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from seqpipe.agreement import num_spare, shard_numbers
from seqpipe.errors import OptionError, StoreError, count_of
from seqpipe.hashing import find_repeats, hash_strings, identity_of, sample_hashes
from seqpipe.joined import Joined, JoinedTexts
from seqpipe.layout import dataset_name
from seqpipe.leakage import group_column, parted
from seqpipe.manifest import SUFFIX, is_manifest, write_manifest
from seqpipe.options import AppendOptions, MergeOptions
from seqpipe.publish import check_output, working_folder, writing
from seqpipe.sharded import ShardedStore, check_ids, opener, shard_paths
from seqpipe.summary import channel_moments
from seqpipe.survey import Opener
from seqpipe.verification import verify_store
from seqpipe.writer import Content, write_store


# Of a header's keys: merged stores have the bytes that one import has.
ORDER = ("kind", "encoding", "label_type", "classes", "channels", "columns", "splits", "writing", "input",
         "target_classes", "leakage", "moments", "provenance")


@dataclass(frozen=True)
class MergeSummary:
    """What was merged, and where it is."""

    path: Path
    shards: int
    rows: int
    values: int

    def __str__(self) -> str:
        return (f"{count_of(self.rows, 'sequence')}, {count_of(self.values, 'value')} of "
                f"{count_of(self.shards, 'store')} in {self.path}")


def merge(options: MergeOptions) -> MergeSummary:
    """Write the stores of ``options`` into one file, or a manifest of them where the output is named like one.

    Raises:
        StoreError: an input is no store, two of them cannot be one, or share an id.
        OptionError: the output exists, or a manifest is to lie in another folder than its shards.
    """
    paths = shard_paths(options.stores)
    check_output(options.out, options.overwrite, [*paths, *options.stores])
    opened = opener(paths)
    paths = in_order(paths, opened)
    if not any(len(opened(path)) for path in paths):
        raise StoreError(f"{paths[0]}: no record is left in any of the stores; correct the input, or change the "
                         "options that leave them out", path=paths[0])
    if is_manifest(options.out):
        return _write_manifest(paths, options.out, opened, overwrite=options.overwrite)
    for path in paths:  # a damaged byte would get a good checksum in the new file
        verify_store(opened(path))
    store = ShardedStore(paths, mixed=True, opened=opened)
    check_ids(store)
    header = dict(store.header)
    if "moments" in header:  # to the last bit those of an import of everything
        rows: Any = store.splits.get("train", np.arange(len(store)))
        values, offsets = cast(np.ndarray, store.values), cast(np.ndarray, store.offsets)
        header["moments"] = channel_moments(values, offsets, rows)
    if len(store.splits) > 1:
        header["leakage"] = count_leakage(store)
    header = {key: header[key] for key in ORDER if key in header}
    with working_folder(options.out) as folder:
        write_store(options.out, joined_contents(store), header, folder=folder, overwrite=options.overwrite,
                    compression=options.compression)
    return _summary(options.out, store)


def in_order(paths: list[Path], opened: Opener) -> list[Path]:
    """Return stores in the order of their rows: as given, or where ``--shard i/N`` made all of them, by that.

    Raises:
        StoreError: a shard of such an import is missing, or there twice, or rows of labels have no record.
    """
    provenances = [opened(path).header["provenance"] for path in paths]
    numbers = shard_numbers(provenances)
    if numbers is None:
        return paths
    by_number: dict[int, Path] = {}
    for number, path in zip(numbers, paths, strict=True):
        if number in by_number:
            raise StoreError(f"{path}: shard {number}, as is {by_number[number]}; give every shard once", path=path)
        by_number[number] = path
    count = int(provenances[0]["shard"].split("/")[1])
    if missing := next((number for number in range(1, count + 1) if number not in by_number), 0):
        raise StoreError(f"{paths[0]}: one of {count} shards of an import, and shard {missing}/{count} is not among "
                         "the stores given; give all of them, or make it with preprocess --shard", path=paths[0])
    if provenances[0]["options"].get("on_unmatched") == "error" and (spare := num_spare(provenances)):
        raise StoreError(f"{paths[0]}: {spare:,} of the {provenances[0]['table']['rows']:,} rows in the table of "
                         f"--labels have no record in any of the {count} shards; is a raw file missing? Correct the "
                         "table, or make the shards with --on-unmatched skip", path=paths[0])
    return [by_number[number] for number in sorted(by_number)]


def append(options: AppendOptions) -> MergeSummary:
    """Write a manifest of the shards of another one and further stores; by default it replaces the old one.

    Raises:
        StoreError: an input is no store, two of them cannot be one, or share an id.
        OptionError: the output exists, or does not lie beside its shards.
    """
    if not is_manifest(options.manifest):
        raise OptionError(f"{options.manifest}: expected a manifest, NAME{SUFFIX}; make one of a store with: seqpipe "
                          f"merge {options.manifest} --out NAME{SUFFIX}")
    out = options.out or options.manifest
    if not is_manifest(out):
        raise OptionError(f"--out {out}: expected the name of a manifest, NAME{SUFFIX}; seqpipe merge writes one file")
    with writing(out):  # two that append at once would lose one of the two shards
        paths = shard_paths([options.manifest, *options.stores])
        replaces = options.out is None or options.overwrite
        check_output(out, replaces, paths)
        return _write_manifest(paths, out, opener(paths), overwrite=replaces)


def _write_manifest(paths: list[Path], out: Path, opened: Opener, *, overwrite: bool) -> MergeSummary:
    for path in paths:
        if path.parent.resolve() != out.parent.resolve():
            raise OptionError(f"--out {out}: a manifest lies beside its shards, and {path} is in another folder; move "
                              "it, or merge into one .h5 file")
    store = ShardedStore(paths, opened=opened)
    check_ids(store)
    shards = tuple(replace(shard, file=Path(shard.file).name) for shard in store.manifest.shards)
    write_manifest(replace(store.manifest, path=out, folder=out.parent, shards=shards), overwrite=overwrite)
    return _summary(out, store)


def _summary(out: Path, store: ShardedStore) -> MergeSummary:
    return MergeSummary(out, len(store.manifest.shards), len(store), len(store.values))


def count_leakage(store: ShardedStore) -> dict[str, int]:
    """Return how many sequences, and where groups are known how many groups, stand in more than one split."""
    shards = [store.shard(k) for k in range(len(store.manifest.shards))]
    splits = np.full(len(store), len(store.splits))
    for number, name in enumerate(store.splits):
        splits[store.split_rows(name).astype(np.int64)] = number
    keys = [sample_hashes(np.asarray(shard.values), shard.offsets) for shard in shards]
    again, first = find_repeats(np.concatenate(keys), lambda row: identity_of(store.sequence(row)))
    counts = {"sequences": len(parted(again, first, splits))}
    if group := group_column(store.header):
        texts = [str(text) for text in store.metadata[group]]
        counts["groups"] = len(parted(*find_repeats(hash_strings(texts), lambda row: texts[row]), splits))
    return counts


def joined_contents(store: ShardedStore) -> dict[str, Content]:
    """Return the datasets of one store with all rows of a sharded one, in the order an import writes them."""
    contents = {"values": _content(store.values), "offsets": _content(store.offsets)}
    for name, column in store.metadata.items():
        contents |= _column_contents(name, column)
    contents |= {f"tracks/{dataset_name(name)}": _content(track) for name, track in store.tracks.items()}
    contents |= {f"splits/{name}": _content(rows) for name, rows in store.splits.items()}
    return contents


def _column_contents(name: str, column: Joined | JoinedTexts) -> dict[str, Content]:
    path = f"metadata/{dataset_name(name)}"
    if isinstance(column, Joined):
        return {path: _content(column)}
    rows: list[Any] = column.parts()
    values = Joined(lambda k: rows[k].values, [len(part.values) for part in rows], rows[0].values.dtype)
    ends = Joined(lambda k: rows[k].offsets[:-1] if k < len(rows) else np.zeros(1, "<u8"),
                  [*map(len, rows), 1], "<u8", shifts=values.bounds)
    return {f"{path}/values": _content(values), f"{path}/offsets": _content(ends)}


def _content(array: Any) -> Content:
    return Content.of(array)  # which needs nothing of an array but its shape, its dtype and its slices
