"""Say what in the arrays of a store does not fit together, reading no more than their ends.

Place in the flow: arrays, header -> [soundness] -> store.

Pure: each function returns the first finding, in words that follow the store's path, or None. What
the arrays hold is checked later, block by block, where it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from seqpipe.header import MAX_HEADER, header_problem
from seqpipe.layout import block_checksums, column_name, dataset_name, num_blocks

Arrays = Mapping[str, Any]


def checksum_problem(arrays: Arrays) -> str | None:
    """Find an array without a table of checksums, or a table without its array."""
    for name, array in arrays.items():
        if name.startswith("checksums/"):
            if name.removeprefix("checksums/") not in arrays:
                return f"/{name} belongs to no array"
        else:
            table = arrays.get(f"checksums/{name}")
            if table is None or table.dtype != "<u4" or table.shape != (num_blocks(array.nbytes),):
                return f"/checksums/{name} is missing or has the wrong shape"
    return None


def parse_header(arrays: Arrays) -> tuple[str | None, dict[str, Any]]:
    """Return what is wrong with the JSON header, or None and the header, of a shape that readers rely on."""
    raw = arrays.get("header")
    if raw is None or raw.dtype != "u1" or raw.ndim != 1 or len(raw) > MAX_HEADER:
        return f"/header is missing, or no text of up to {MAX_HEADER} bytes", {}
    if (block_checksums(raw.data) != arrays["checksums/header"]).any():
        return "/header fails its CRC-32", {}
    try:
        header = json.loads(raw.tobytes())
        json.dumps(header, ensure_ascii=False).encode()  # refuses half characters, which cannot be printed
    except (ValueError, RecursionError, MemoryError) as error:
        return f"/header is no JSON ({error})", {}
    if problem := header_problem(header):
        return f"/{problem} is missing, or not what it should be", {}
    return None, header


def shape_problem(arrays: Arrays, dtype: np.dtype | None, header: Mapping[str, Any]) -> str | None:
    """Find arrays whose shapes, types or names do not fit together.

    Args:
        arrays: of the store, by their paths inside the file.
        dtype: of the tokens; None for features, whose channels the header names.
        header: of the store.
    """
    return next(_shape_findings(arrays, dtype, header), None)


def _shape_findings(arrays: Arrays, dtype: np.dtype | None, header: Mapping[str, Any]) -> Iterator[str]:
    values, offsets = arrays.get("values"), arrays.get("offsets")
    if values is None or offsets is None:
        yield "/values or /offsets is missing"
        return
    expected = values.dtype if dtype is None else dtype
    tail = () if dtype is not None else (len(header["channels"]),)
    if values.dtype != expected or not values.ndim or values.shape[1:] != tail:
        yield f"/values is {values.dtype} of shape {values.shape}, expected {expected} of {('M', *tail)}"
    told = header["encoding"].get("dtype", expected.name)
    if told not in (expected.name, expected.str):
        yield f"/values is {expected}, /header says {told!r}"
    yield from _offsets_findings("offsets", offsets, len(values))
    rows = len(offsets) - 1
    for name, array in arrays.items():
        group, _, rest = name.partition("/")
        if group in ("metadata", "tracks", "splits"):
            link = rest.partition("/")[0]
            if dataset_name(column_name(link)) != link:  # else two names could stand for one column
                yield f"/{group}/{link} is not how the name {column_name(link)!r} is written"
        if group == "metadata":
            yield from _column_findings(arrays, name, rest, rows)
        elif group == "tracks" and array.shape != (len(values),):
            yield f"/{name} has shape {array.shape}, expected ({len(values)},)"
        elif group == "splits":
            if array.ndim != 1 or array.dtype != "<u8" or len(array) > rows:
                yield f"/{name} is {array.dtype} of shape {array.shape}, expected row numbers"
            elif len(array) and array[-1] >= rows:
                yield f"/{name} holds row {array[-1]}; expected rows < {rows}"


def _column_findings(arrays: Arrays, name: str, rest: str, rows: int) -> Iterator[str]:
    array, (column, _, part) = arrays[name], rest.partition("/")
    if not part:
        if array.shape != (rows,):
            yield f"/{name} has shape {array.shape}, expected ({rows},)"
    elif part == "values":
        offsets = arrays.get(f"metadata/{column}/offsets")
        if offsets is None or offsets.shape != (rows + 1,) or array.dtype not in ("u1", "<i4") or array.ndim != 1:
            yield f"/metadata/{column} is no text column of {rows} rows, nor one of class numbers"
        else:
            yield from _offsets_findings(f"metadata/{column}/offsets", offsets, len(array))
    elif f"metadata/{column}/values" not in arrays:
        yield f"/metadata/{column}/values is missing"


def _offsets_findings(name: str, offsets: np.ndarray, total: int) -> Iterator[str]:
    if offsets.dtype != "<u8" or offsets.ndim != 1 or not len(offsets):
        yield f"/{name} is {offsets.dtype} of shape {offsets.shape}, expected (N+1,) uint64"
    elif offsets[0] != 0 or offsets[-1] != total:
        yield f"/{name} runs from {offsets[0]} to {offsets[-1]}, expected 0 to {total}"


def content_problem(arrays: Arrays, header: Mapping[str, Any]) -> str | None:
    """Find what a header says that does not belong to these arrays, which are sound in themselves."""
    columns = {column_name(name.split("/")[1]) for name in arrays if name.startswith("metadata/")}
    if sorted(header["columns"]) != sorted(columns):
        return f"/header names the columns {header['columns']}, /metadata holds {sorted(columns)}"
    label_type, label, lists = header["label_type"], arrays.get("metadata/label"), arrays.get("metadata/label/values")
    kind = label.dtype.kind if label is not None else "list" if lists is not None and lists.dtype == "<i4" else None
    kinds = {"class": ("i", "u"), "number": ("f",), "multilabel": ("list",)}
    if label_type != "none" and kind not in kinds[label_type]:
        return f"/metadata/label does not hold labels of the type {label_type!r}"
    if "id" in columns and ("metadata/id/values" not in arrays or arrays["metadata/id/values"].dtype != "u1"):
        return "/metadata/id is no column of text"
    target = arrays.get("tracks/target")
    if header.get("target_classes") and (target is None or target.dtype not in ("u1", "<i4")):
        return "/tracks/target does not hold the classes that /header names"
    sizes = {column_name(name.removeprefix("splits/")): len(rows)
             for name, rows in arrays.items() if name.startswith("splits/")} | {"all": len(arrays["offsets"]) - 1}
    found = {name: part["sequences"] for name, part in header["splits"].items()}
    if found != sizes or header["splits"]["all"]["values"] != len(arrays["values"]):
        return f"/header tells splits of {found}, the arrays are of {sizes}"
    return None
