"""What several stores must have in common to be read as one, and the header they have together.

Place in the flow: headers of stores -> [agreement] -> sharded, merging.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqpipe.errors import StoreError
from seqpipe.splits import SPLIT_NAMES, WHOLE

_SAME = ("kind", "encoding", "channels", "label_type", "classes", "target_classes", "columns")
_LIKE = "import the second one again with --like and the first one's path, or keep them apart"
SPARE = "rows of --labels without a record left out"  # as it is counted
MERGE = "merge them into one .h5 file, which has the column of both"


def joint_header(names: Sequence[str], headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the header of several stores as one, with empty ``splits``: their summaries need all lengths.

    A store without a sequence (a shard may have left all out) counts for what was left out alone.

    Args:
        names: what to call each store in a message.
        headers: their headers, in the order of their rows.

    Raises:
        StoreError: two of them differ in what one store has once; the message names both.
    """
    provenances = [header["provenance"] for header in headers]
    told = [k for k, header in enumerate(headers) if header["splits"][WHOLE]["sequences"]] or list(range(len(headers)))
    names, headers = [names[k] for k in told], [headers[k] for k in told]
    first = headers[0]
    for name, header in zip(names[1:], headers[1:], strict=True):
        for key in _SAME:
            if header.get(key) != first.get(key):
                raise disagreement(names[0], name, key, first.get(key), header.get(key))
        if (len(header["splits"]) > 1) != (len(first["splits"]) > 1):
            raise disagreement(names[0], name, "splits", list(first["splits"])[1:], list(header["splits"])[1:])
    joint: dict[str, Any] = {key: first[key] for key in _SAME if key in first} | {"splits": {}}
    joint["writing"] = _joint_writing([header.get("writing", {}) for header in headers])
    joint["input"] = _joint_input([header["input"] for header in headers])
    if "moments" in first:
        joint["moments"] = _joint_moments(headers)
    joint["provenance"] = _joint_provenance(provenances)
    return joint


def shard_numbers(provenances: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Return which share of one import (from 1) each store is; None where they are not of one ``--shard I/N``."""
    found = [re.fullmatch("([0-9]{1,18})/([0-9]{1,18})", str(part.get("shard"))) for part in provenances]
    first = provenances[0]["options"]
    numbers = [(int(match[1]), int(match[2])) for match in found if match]
    if len(numbers) < len(found) or len({count for _, count in numbers}) > 1 or any(
            part["options"] != first for part in provenances):
        return None
    return [number for number, _ in numbers]


def num_spare(provenances: Sequence[Mapping[str, Any]]) -> int:
    """Return how many rows of the table of ``--labels`` no shard of an import uses; 0 where not all shards are here.

    No two shards use one row: both would have a record with its id, and no store can.
    """
    tables = [part["table"] for part in provenances if "table" in part]
    numbers = shard_numbers(provenances)
    if numbers is None or sorted(numbers) != list(range(1, int(provenances[0]["shard"].split("/")[1]) + 1)):
        return 0
    if len(tables) < len(provenances) or any(table["rows"] != tables[0]["rows"] for table in tables):
        return 0
    return int(tables[0]["rows"] - sum(table["used"] for table in tables))


def disagreement(first: str, second: str, what: str, one: Any, other: Any, remedy: str = _LIKE) -> StoreError:
    """Return the error about two stores that cannot be one."""
    if isinstance(one, list) and isinstance(other, list) and len(one) + len(other) > 16:
        # Thousands of classes say nothing; the first that differs does.
        at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
        one, other = (f"{len(part)} ({part[at] if at < len(part) else 'none'!r} at {at})" for part in (one, other))
    return StoreError(f"{first} and {second} cannot be one store: they differ in {what}: {_short(one)} and "
                      f"{_short(other)}; {remedy}")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else text[:200] + "…"


def split_order(names: Sequence[str]) -> list[str]:
    """Return names of splits, each once, in the order of a store: train, valid, test, then the others sorted."""
    return [*(name for name in SPLIT_NAMES if name in names), *sorted(set(names) - set(SPLIT_NAMES))]


def _joint_writing(parts: Sequence[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """Return the ways of writing numbers that gave the texts of each column in all stores."""
    common = {name: [way for way in ways if all(way in other.get(name, ()) for other in parts)]
              for name, ways in parts[0].items()}
    return {name: ways for name, ways in common.items() if ways}


def _joint_input(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how all were read; the format, and columns, that are not the same of all are left to be told."""
    def joint(key: str, value: Any) -> Any:
        if all(other.get(key) == value for other in inputs):
            return value
        return "auto" if key == "format" else None if key.endswith("_column") else value

    return {key: joint(key, value) for key, value in inputs[0].items()}


def _joint_provenance(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return all sources, each once, the options that all were imported with, and the sums of what was counted."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part.get("counts", {}))
    if spare := num_spare(parts):
        counts[SPARE] += spare
    # Tables of labels and the like stand behind the raw files, and are the same of all shards.
    backwards = zip(*(reversed(part["sources"]) for part in parts))
    num_common = sum(1 for _ in itertools.takewhile(lambda found: all(one == found[0] for one in found), backwards))
    sources: list[Any] = []
    for part in parts:
        sources += [source for source in part["sources"][: len(part["sources"]) - num_common] if source not in sources]
    common = parts[0]["sources"][len(parts[0]["sources"]) - num_common :]
    sources += [source for source in common if source not in sources]
    options = {name: value for name, value in parts[0]["options"].items()
               if all(name in part["options"] and part["options"][name] == value for part in parts)}
    joint = {"sources": sources, "options": options, "counts": dict(sorted(counts.items()))}
    return {key: joint[key] for key in parts[0] if key in joint}


def _joint_moments(headers: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return mean and deviation of each channel over the train splits of all, from those of each."""
    part = "train" if any("train" in header["splits"] for header in headers) else WHOLE
    counted = [(header["splits"][part]["values"], header["moments"]) for header in headers
               if header["splits"].get(part, {"values": 0})["values"]]
    if not counted:
        num_channels = len(headers[0]["channels"])
        return {"mean": [0.0] * num_channels, "deviation": [1.0] * num_channels}
    weights = np.array([[count] for count, _ in counted], float)
    means, deviations = (np.array([moments[key] for _, moments in counted]) for key in ("mean", "deviation"))
    mean = (weights * means).sum(axis=0) / weights.sum()
    variance = (weights * (deviations**2 + (means - mean) ** 2)).sum(axis=0) / weights.sum()
    return {"mean": mean.tolist(), "deviation": np.sqrt(variance).tolist()}
