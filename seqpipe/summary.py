"""Numbers that describe many sequences: their lengths, classes and channels.

Place in the flow: lengths, labels, values -> [summary] -> header of the store, describe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from seqpipe.errors import count_of
from seqpipe.labels import parse_number
from seqpipe.splits import SPLIT_NAMES, SplitRule

HISTOGRAM_BINS = 48
ROWS = 1024  # sequences looked at together
PIECE = 1 << 16  # elements summed together


def summarise_lengths(lengths: np.ndarray, labels: np.ndarray | None, num_classes: int) -> dict[str, Any]:
    """Return the JSON summary of some sequences.

    Args:
        lengths: (n,) int64, in elements.
        labels: (n,) class numbers, or None.
        num_classes: how many classes there are in the whole store.
    """
    summary: dict[str, Any] = {"sequences": len(lengths), "values": int(lengths.sum())}
    if len(lengths):
        ordered = np.sort(lengths)  # once, for all that follows
        low, high = int(ordered[0]), int(ordered[-1])
        # Integer edges, even on a logarithmic scale: lengths often span three orders of magnitude.
        inner = np.geomspace(max(low, 1), high + 1, HISTOGRAM_BINS + 1).astype(np.int64)[1:-1]
        edges = np.unique([low, *inner, high + 1])
        summary["lengths"] = {
            "min": low,
            "median": float(ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]].mean()),
            "mean": float(lengths.mean()),
            "max": high,
            "histogram": {"edges": edges.tolist(), "counts": np.diff(np.searchsorted(ordered, edges)).tolist()},
        }
    if labels is not None:
        summary["classes"] = np.bincount(labels, minlength=num_classes).tolist()
    return summary


def channel_moments(values: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> dict[str, list[float]]:
    """Return mean and standard deviation of each channel over the elements of some sequences.

    Args:
        values: (M, C) features of all sequences end to end.
        offsets: (N+1,) where sequences end.
        rows: the sequences counted.

    Returns:
        as ``moments_of``.
    """
    counted = np.zeros(len(offsets) - 1, bool)
    counted[rows.astype(np.int64)] = True

    def blocks() -> Iterator[np.ndarray]:
        for first in range(0, len(counted), ROWS):
            ends = offsets[first : first + ROWS + 1].astype(np.int64)
            for start in range(ends[0], ends[-1], PIECE):
                inside = np.clip(ends, start, start + PIECE)
                yield values[inside[0] : inside[-1]][np.repeat(counted[first : first + ROWS], np.diff(inside))]

    return moments_of(blocks(), values.shape[1])


def moments_of(blocks: Iterable[np.ndarray], num_channels: int) -> dict[str, list[float]]:
    """Return mean and standard deviation of each channel.

    Args:
        blocks: (rows, C) features, end to end; how they are cut changes no bit of the result.
        num_channels: C.

    Returns:
        ``mean`` and ``deviation``, C numbers each (0 and 1 without any element); NaN is left out.
    """
    count, total, squares, center = (np.zeros(num_channels) for _ in range(4))
    for piece in _pieces(blocks):
        part = piece.astype(np.float64)
        missing = np.isnan(part)
        if not count.any():
            center = np.nan_to_num(part[0])  # sums are taken around it: large offsets do not cost digits
        part -= center
        part[missing] = 0
        count += len(part) - missing.sum(axis=0)
        total += part.sum(axis=0)
        squares += np.square(part).sum(axis=0)
    divisor = np.maximum(count, 1)
    mean = total / divisor
    deviation = np.where(count, np.sqrt(np.maximum(squares / divisor - mean**2, 0)), 1.0)
    center[count == 0] = 0
    return {"mean": (mean + center).tolist(), "deviation": deviation.tolist()}


def _pieces(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Cut arrays that lie end to end anew, every ``PIECE`` rows: sums of floats depend on how they are grouped."""
    held: list[np.ndarray] = []
    missing = PIECE
    for block in blocks:
        start = 0
        while start < len(block):
            held.append(block[start : start + missing])
            start += len(held[-1])
            missing -= len(held[-1])
            if not missing:
                yield np.concatenate(held)
                held, missing = [], PIECE
    if held:
        yield np.concatenate(held)


def describe_labels(header: Mapping[str, Any]) -> str:
    """Return one line on the labels of a store."""
    column = header["input"].get("label_column")
    if names := header["classes"]:
        shown = ", ".join(name if name.isprintable() else repr(name) for name in names[:8])
        shown += ", …" if len(names) > 8 else ""
        many = ", any number a record" if header["label_type"] == "multilabel" else ""
        return f"{count_of(len(names), 'class', 'classes')} from {column!r}{many}: {shown}"
    return f"numbers from {column!r}" if header["label_type"] == "number" else "none"


def notes_on(header: Mapping[str, Any], label_type: str, rule: SplitRule) -> list[str]:
    """Return what the user should know about a new store: what was guessed, and what looks odd.

    Args:
        header: of the store.
        label_type: the option ``--label-type``.
        rule: how the splits were made.
    """
    shares = rule.shares
    count, classes = header["splits"]["all"]["sequences"], header["classes"]
    notes = []
    if label_type == "auto" and header["label_type"] == "number":
        notes.append("labels are taken as numbers, as one has a fraction; --label-type class reads classes")
    elif label_type == "auto" and classes and all(parse_number(name) is not None for name in classes):
        notes.append("labels are taken as classes; --label-type number reads them as numbers")
    others = [name for name in header["columns"] if name not in ("id", "label", "description")]
    if header["label_type"] == "none" and label_type != "none" and others:
        notes.append(f"no labels: {', '.join(others[:6])} became metadata; --label-column NAME makes one the label")
    if shares and "split" in header["columns"]:
        notes.append("the input has a column 'split', and the split was drawn by a hash; --split column:split takes it")
    if len(classes) == 1:
        notes.append(f"only one class, {classes[0]!r}: there is nothing to classify")
    elif len(classes) > max(100, count // 2):
        notes.append(f"{len(classes):,} classes for {count:,} records: are these labels?")
    notes += [f"the split {name!r} is empty" for name, share in zip(SPLIT_NAMES, shares, strict=False)
              if share > 0 and name not in header["splits"]]
    alone = header["splits"]["all"].get("classes", []).count(1)
    if rule.by == "stratified" and alone and not rule.folds:
        first = SPLIT_NAMES[next(i for i, share in enumerate(shares) if share > 0)]
        notes.append(f"{alone:,} {'classes have' if alone > 1 else 'class has'} one record, which went to {first}")
    if spaced := [name for name in classes if name != name.strip() and name.strip() in classes]:
        notes.append(f"classes that differ by white space alone: {spaced[0]!r} and {spaced[0].strip()!r}")
    for what, number in header.get("leakage", {}).items():
        if number:
            stands = "stands" if number == 1 else "stand"
            notes.append(f"{count_of(number, what.removesuffix('s'))} {stands} in more than one split: scores will be "
                         "too good; seqpipe describe --leakage lists them")
    return notes
