"""Say what is inside a store, from its header and a look at its lengths.

Place in the flow: seqs.h5 -> store -> [description] -> text, JSON or a plot.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.batching import padding_share, plan_batches
from seqpipe.chunks import Chunks
from seqpipe.errors import OptionError, StoreError, count_of
from seqpipe.leakage import find_leakage
from seqpipe.options import DescribeOptions, PreprocessOptions
from seqpipe.publish import check_output, published
from seqpipe.sequences import SequenceDataset
from seqpipe.sharded import ShardedStore, open_store
from seqpipe.store import Store
from seqpipe.summary import describe_labels

MOST_LENGTHS = 1_000_000  # looked at to predict the padding
BATCH_SIZE = 32
PLOT_BINS = 32


def describe(options: DescribeOptions) -> str:
    """Return the description of a store, as text or JSON.

    Raises:
        StoreError: the store cannot be read.
        OptionError: a plot is asked for and matplotlib is not installed.
    """
    store = open_store(options.store)
    if options.plot is not None:
        if options.plot.suffix.lower() != ".png":
            raise OptionError(f"--plot {options.plot}: expected a name that ends with .png")
        check_output(options.plot, True, [options.store], option="--plot")
        plot_lengths(store, options.plot)
    content = describe_store(store)
    try:
        content["head"] = [_sample(store, row) for row in range(min(options.head, len(store)))]
    except ValueError as error:
        raise StoreError(f"{store.path}: damaged: {error}; run: seqpipe verify {store.path}", path=store.path) from None
    if options.leakage:
        content["leaks"] = find_leakage(store)
    return json.dumps(content, indent=2, ensure_ascii=False) if options.json else _as_text(store, content)


def describe_store(store: Store | ShardedStore) -> dict[str, Any]:
    """Return what is inside a store, JSON-able: its header, its arrays, and the padding to expect."""
    looked_at = min(len(store), MOST_LENGTHS)
    lengths = store.lengths(slice(0, looked_at))
    padding = {
        name: round(100 * padding_share(lengths, plan_batches(lengths, batch_size=BATCH_SIZE, shuffle=True,
                                                              bucket=bucket)), 2)
        for name, bucket in (("random", False), ("bucketed", True))
    }
    return {
        "path": str(store.path),
        "file_bytes": store.path.stat().st_size,
        **store.header,
        **_parts(store),
        "padding_percent": {"batch_size": BATCH_SIZE, "lengths_looked_at": looked_at, **padding},
    }


def _parts(store: Store | ShardedStore) -> dict[str, Any]:
    """Return the arrays of a store, or the shards of a manifest."""
    if isinstance(store, ShardedStore):
        return {"shards": [asdict(shard) for shard in store.manifest.shards]}
    parts: dict[str, Any] = {"arrays": {name: f"{array.dtype} {array.shape}" for name, array in store.arrays.items()
                                        if not name.startswith("checksums/")}}
    if isinstance(store.values, Chunks):
        ends = store.offsets[: MOST_LENGTHS + 1]
        parts["compression"] = {
            "method": "gzip", "chunk_bytes": store.values.chunk_bytes,
            "stored_percent": round(100 * int(store.values.table[:, 1].sum()) / store.values.nbytes, 2),
            "inflated_per_byte_shuffled": round(store.values.inflated_per_byte(ends[:-1], ends[1:]), 2),
        }
    return parts


def plot_lengths(store: Store | ShardedStore, path: Path) -> None:
    """Draw the lengths of each split as a PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise OptionError("--plot needs matplotlib; install it with: pip install 'torch-seqpipe[plot]'") from None
    names = [name for name, rows in store.splits.items() if len(rows)]
    lengths = {name: store.lengths(store.split_rows(name)[:MOST_LENGTHS].astype(np.int64)) for name in names}
    lengths = lengths or {"all": store.lengths(slice(0, MOST_LENGTHS))}
    low, high = min(map(np.min, lengths.values())), max(map(np.max, lengths.values()))
    wide = high > 20 * max(low, 1)
    space = np.geomspace if wide else np.linspace
    # Integer edges, one set for all splits: bins of whole lengths that can be compared.
    edges = np.unique(space(max(low, 1), high + 1, PLOT_BINS + 1).astype(np.int64))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, values in lengths.items():
        share = 100 * np.histogram(values, edges)[0] / len(values)
        axes.stairs(share, edges, label=f"{name} ({len(values):,})", linewidth=1.6)
    axes.set(xlabel="length (elements)", ylabel="sequences per bin, % of the split", title=store.path.name)
    axes.ticklabel_format(useOffset=False)
    if wide:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    with published(path) as file:
        figure.savefig(file, format="png", dpi=150)


def _sample(store: Store | ShardedStore, row: int) -> dict[str, Any]:
    sequence, metadata = SequenceDataset(store)[row]
    shown = (store.alphabet.decode(sequence[:60]) + ("…" if len(sequence) > 60 else "") if store.alphabet
             else np.array2string(sequence[:2], precision=4, threshold=12).replace("\n", ""))
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in metadata.items()
             if not isinstance(value, np.ndarray)}
    return {**plain, "length": len(sequence), "sequence": shown}


def _as_text(store: Store | ShardedStore, content: dict[str, Any]) -> str:
    encoding = content["encoding"]
    symbols = encoding.get("symbols", "")
    what = (f"alphabet {encoding['alphabet']}, {count_of(encoding['num_tokens'] - 1, 'symbol')}"
            + (f" ({symbols})" if 0 < len(symbols) <= 40 else "") + f", pad id {encoding['pad_id']}"
            if store.kind == "tokens" else f"{count_of(encoding['num_channels'], 'channel')}, {encoding['dtype']}")
    shards = content.get("shards", [])
    num_bytes = sum(shard["size"] for shard in shards) or content["file_bytes"]
    lines = [
        f"{store.path}: {num_bytes / 1e6:,.1f} MB" + (f" in {count_of(len(shards), 'shard')}" if shards else ""),
        f"kind      {store.kind}, {what}",
        f"labels    {describe_labels(content)}",
        f"columns   {', '.join(content['columns'])}",
        "",
        f"{'split':8} {'sequences':>12} {'values':>14} {'min':>8} {'median':>8} {'mean':>8} {'max':>9}  classes",
    ]
    for name, part in content["splits"].items():
        spread = part.get("lengths", dict.fromkeys(("min", "median", "mean", "max"), 0))
        classes = part.get("classes", [])
        shown = ", ".join(f"{store.classes[i]} {classes[i]:,}" for i in range(min(len(classes), 6)))
        lines.append(f"{name:8} {part['sequences']:12,} {part['values']:14,} {spread['min']:8,} "
                     f"{spread['median']:8,g} {spread['mean']:8,.1f} {spread['max']:9,}  "
                     f"{shown}{', …' if len(classes) > 6 else ''}")
    padding = content["padding_percent"]
    lines += ["", f"padding   batches of {padding['batch_size']}: random {padding['random']:.1f} %, by length "
                  f"{padding['bucketed']:.1f} % (from {padding['lengths_looked_at']:,} lengths)"]
    if packed := content.get("compression"):
        lines.append(f"gzip      values take {packed['stored_percent']:.0f} %; read shuffled, "
                     f"{packed['inflated_per_byte_shuffled']:,.1f} bytes are inflated for each byte used "
                     "(merge makes a plain store)")
    for source in content["provenance"]["sources"]:
        lines.append(f"source    {source['name']}, {source['size']:,} bytes, SHA-256 {source['sha256'][:16]}…")
    defaults: dict[str, Any] = {field.name: field.default for field in fields(PreprocessOptions)}
    chosen = [f"{name}={value}" for name, value in content["provenance"]["options"].items()
              if value != defaults.get(name)]
    lines.append("options   " + (", ".join(chosen) or "all at their defaults"))
    lines += [f"counted   {name}: {count:,}" for name, count in content["provenance"].get("counts", {}).items()]
    if targets := content.get("target_classes"):
        lines.append(f"targets   {count_of(len(targets), 'class', 'classes')}: {', '.join(targets[:8])}"
                     f"{', …' if len(targets) > 8 else ''}")
    leaks = content.get("leaks", {})
    for what, count in (content.get("leakage", {}) | {what: len(found) for what, found in leaks.items()}).items():
        found = leaks.get(what, [])
        lines.append(f"leakage   {count_of(count, what.removesuffix('s'))} in more than one split"
                     + " (the first 100; --json lists all)" * (len(found) > 100))
        lines += ["          " + "; ".join(f"{name}: {', '.join(ids)}" for name, ids in where.items())
                  for where in found[:100]]
    for sample in content["head"]:
        lines.append("sample    " + ", ".join(f"{name}={value}" for name, value in sample.items()))
    text = "\n".join(lines)  # texts of the data may hold what would move a terminal's cursor
    return "".join(symbol if symbol.isprintable() or symbol == "\n" else repr(symbol)[1:-1] for symbol in text)
