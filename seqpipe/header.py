"""The shape of a store's JSON header, and what does not fit it.

Place in the flow: intake -> [header] -> writer; seqs.h5 -> store -> [header].
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

MAX_HEADER = 1 << 28  # bytes

# What a header holds: a tuple lists the types a value may have, a list holds values of one shape,
# a dict needs the keys named (``str``: any keys). Numbers are finite, integers fit into int64.
_TEXT, _COUNT, _NUMBER = (str,), (int,), (int, float)
_OPTION = (str, int, float, bool, type(None))
LENGTHS = {"min": _COUNT, "median": _NUMBER, "mean": _NUMBER, "max": _COUNT,
           "histogram": {"edges": [_COUNT], "counts": [_COUNT]}}
HEADER = {
    "kind": _TEXT,
    "encoding": {},
    "label_type": _TEXT,
    "classes": [_TEXT],
    "channels": [_TEXT],
    "columns": [_TEXT],
    "splits": {str: {"sequences": _COUNT, "values": _COUNT}},
    "input": {"format": _TEXT, "encoding": _TEXT, "id_column": _OPTION, "sequence_column": _OPTION,
              "label_column": _OPTION},
    "provenance": {"sources": [{"name": _TEXT, "size": _COUNT, "sha256": _TEXT}], "options": {str: _OPTION}},
}
# What a header may hold besides; older stores have less.
FURTHER = {
    "target_classes": [_TEXT],
    "leakage": {str: _COUNT},
    "input": {str: _OPTION},
}
_WAY = re.compile(r"integer|short|with \.0|([1-9]|1[0-5]) decimals")  # see labels.common_ways
TOKEN_ENCODING = {"alphabet": _TEXT, "symbols": _TEXT, "num_tokens": _COUNT, "pad_id": _COUNT}
FEATURE_ENCODING = {"dtype": _TEXT, "num_channels": _COUNT}
MOMENTS = {"mean": [_NUMBER], "deviation": [_NUMBER]}


def misfit(value: Any, shape: Any, place: str) -> str | None:
    """Return the first place in JSON data that does not have the ``shape`` told, or None.

    Args:
        value: as ``json.loads`` returns it.
        shape: as ``HEADER`` is written.
        place: what to call ``value``.
    """
    if isinstance(shape, tuple):
        good = type(value) in shape and (
            math.isfinite(value) if isinstance(value, float)
            else not isinstance(value, int) or -(2**63) <= value < 2**63)
        return None if good else place
    if isinstance(shape, list):
        if not isinstance(value, list):
            return place
        parts = ((f"{place}[{i}]", part, shape[0]) for i, part in enumerate(value))
    elif not isinstance(value, dict):
        return place
    elif str in shape:
        parts = ((f"{place}.{key}", part, shape[str]) for key, part in value.items())
    else:
        parts = ((f"{place}.{key}", value.get(key, ...), part) for key, part in shape.items())
    return next((found for name, part, inner in parts if (found := misfit(part, inner, name))), None)


def header_problem(header: Any) -> str | None:
    """Return the first place in a header, as ``json.loads`` returns it, that readers could not use, or None."""
    if place := misfit(header, HEADER, "header"):
        return place
    encoding, classes = header["encoding"], header["classes"]
    if header["kind"] not in ("tokens", "features"):
        return "header.kind"
    if header["kind"] == "tokens":
        if place := misfit(encoding, TOKEN_ENCODING, "header.encoding"):
            return place
        symbols = encoding["symbols"]
        sizes = {"bytes": 257, "ints": encoding["num_tokens"]} if not symbols else {}
        last = encoding["num_tokens"] - 1
        expected = sizes.get(encoding["alphabet"], len(symbols) + 1 + (bool(symbols) and "unk_id" in encoding))
        if (last + 1 != expected or last < 1 or len(set(symbols)) != len(symbols) or encoding["pad_id"] != 0
                or encoding.get("unk_id", last) != last or encoding.get("case", "upper") not in ("upper", "lower")):
            return "header.encoding"
    else:
        num_channels = len(header["channels"])
        place = misfit(encoding, FEATURE_ENCODING, "header.encoding") or misfit(
            header.get("moments"), MOMENTS, "header.moments")
        if place or not num_channels or encoding["num_channels"] != num_channels:
            return place or "header.channels"
        if {len(header["moments"]["mean"]), len(header["moments"]["deviation"])} != {num_channels}:
            return "header.moments"
    kinds = {"class": True, "multilabel": True, "number": False, "none": False}  # whether there are classes
    if kinds.get(header["label_type"]) != bool(classes):
        return "header.label_type"
    for key, shape in FURTHER.items():
        if key in header and (place := misfit(header[key], shape, f"header.{key}")):
            return place
    if place := misfit(header["provenance"].get("counts", {}), {str: _COUNT}, "header.provenance.counts"):
        return place
    if place := misfit(header["provenance"].get("table", {"rows": 0, "used": 0}), {"rows": _COUNT, "used": _COUNT},
                       "header.provenance.table"):
        return place
    if misfit(header.get("writing", {}), {str: [_TEXT]}, "") is not None or not all(
            _WAY.fullmatch(way) for ways in header.get("writing", {}).values() for way in ways):
        return "header.writing"
    return next((place for name, part in header["splits"].items()
                 if (place := _split_problem(part, len(classes), f"header.splits.{name}"))), None)


def _split_problem(part: dict[str, Any], num_classes: int, place: str) -> str | None:
    """Return the first place in the summary of a split that does not fit the rest of it."""
    if num_classes and (misfit(part.get("classes"), [(int,)], "") is not None or len(part["classes"]) != num_classes):
        return f"{place}.classes"
    if not part["sequences"]:
        return None
    if found := misfit(part.get("lengths"), LENGTHS, f"{place}.lengths"):
        return found
    edges, counts = (part["lengths"]["histogram"][key] for key in ("edges", "counts"))
    if len(edges) != len(counts) + 1 or not counts or any(a >= b for a, b in itertools.pairwise(edges)):
        return f"{place}.lengths.histogram"
    return None
