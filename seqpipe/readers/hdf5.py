"""Read HDF5 files people already have: sequences in one of three shapes, and columns beside them.

    a group      one dataset per sequence; its name is the id, its attributes are columns
    (N,)         a dataset of variable-length arrays, or of texts
    (N, T[, C])  a padded dataset, and beside it a dataset (N,) of lengths

Place in the flow: HDF5 file -> [hdf5] -> Record. The other (N,) datasets of the same group are
columns. Nothing the file says is believed: links other than hard ones, data outside the file and
sizes that its bytes cannot hold are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from seqpipe.errors import RawFormatError
from seqpipe.readers.numbers import COUNTED
from seqpipe.readers.raw import RawFile, brief
from seqpipe.records import SEQUENCE_NAMES, ColumnChoice, Record

LENGTH_NAMES = ("lengths", "length", "lens", "seq_lengths", "sequence_lengths")
ID_NAMES = ("id", "ids", "name", "names")
LEFT_OUT = "datasets left out: not one value per sequence"
DAMAGE = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError)
BLOCK_BYTES = 1 << 24  # of a padded dataset read at a time
BLOCK_ROWS = 1024
RATIO = 1100  # deflate makes at most 1032 bytes of one


def read_hdf5(raw: RawFile, columns: ColumnChoice) -> Iterator[Record]:
    """Yield the records of an HDF5 file: ``columns.sequence`` is the path of its sequences, if there are several.

    Raises:
        RawFormatError: the sequences cannot be told, an object cannot be read safely, a value
            is no sequence; the message names dataset path and index.
    """
    try:
        with h5py.File(raw.path, "r", locking="best-effort") as file:
            if "format_version" in file.attrs and "offsets" in file:
                raise raw.error("is a store of seqpipe already, which needs no import; merge and export take it")
            yield from _Source(raw, file, columns).records()
    except RawFormatError:
        raise
    except DAMAGE as error:
        raise raw.error(f"HDF5 cannot read it ({error}); it is cut or damaged: get it again") from error


class _Source:
    """An open file, and where in it the sequences and their columns are."""

    def __init__(self, raw: RawFile, file: h5py.File, columns: ColumnChoice) -> None:
        self._raw, self._columns = raw, columns
        self._groups: dict[str, dict[str, h5py.Dataset]] = {}
        self._walk(file, "/", set())
        self._find()

    def records(self) -> Iterator[Record]:
        if self._dataset is None:
            yield from self._one_dataset_each()
        else:
            yield from self._rows(self._dataset)

    def _error(self, place: str, message: str) -> RawFormatError:
        return RawFormatError(f"{self._raw.path}: {place}: {message}", path=self._raw.path)

    def _walk(self, group: h5py.Group, path: str, above: set[Any]) -> None:
        """Gather the datasets of each group, which have to be inside the file."""
        datasets = self._groups[path] = {}
        for name in group:
            place = path + name
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise self._error(place, "is a link to another place or file, which is not followed; copy the object "
                                         "itself into the file")
            item = group[name]
            if isinstance(item, h5py.Group):
                address = h5py.h5o.get_info(item.id).addr
                if address in above:
                    raise self._error(place, "is a group that stands inside itself; take the link out")
                self._walk(item, place + "/", above | {address})
            elif isinstance(item, h5py.Dataset):
                self._check_dataset(place, item)
                datasets[name] = item

    def _check_dataset(self, place: str, dataset: h5py.Dataset) -> None:
        properties = dataset.id.get_create_plist()
        if dataset.is_virtual or properties.get_external_count():
            raise self._error(place, "keeps its data in another file, which is not opened; copy them into this one")
        if dataset.shape is None:
            raise self._error(place, "is an empty (null) dataset; take it out")
        size, stored = dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size()
        if size > stored * RATIO:
            raise self._error(place, f"claims {size:,} bytes, and {stored:,} are stored; it was never written, or is "
                                     "damaged")

    def _find(self) -> None:
        """Decide which object holds the sequences."""
        found = dict(pair for path, datasets in self._groups.items() for pair in self._candidates(path, datasets))
        wanted = self._columns.sequence
        if wanted is not None:
            path = "/" + wanted.strip("/")
            if path not in found and path != "/":
                path = next((p for p in found if p.endswith(path)), path)
            if path not in found:
                raise self._raw.error(f"there are no sequences at {wanted!r}; {_listed(found)}; name one with "
                                      "--sequence-column")
        else:
            named = [path for path in found if path.rsplit("/", 1)[1].lower() in SEQUENCE_NAMES]
            path = named[0] if len(named) == 1 else next(iter(found), "")
            if len(found) != 1 and len(named) != 1:
                raise self._raw.error(f"the sequences cannot be told; {_listed(found)}; name one with "
                                      "--sequence-column")
        parent, _, name = path.rpartition("/")
        self._path = path
        if found[path] == "group":
            self._dataset, self._siblings = None, self._groups[path.rstrip("/") + "/"]
            self._lengths = None
            return
        beside = dict(self._groups[parent + "/"])
        self._dataset = beside.pop(name)
        count = len(self._dataset)
        self._lengths = None
        if found[path] == "padded":
            lengths = beside.pop(next(n for n in beside if n.lower() in LENGTH_NAMES))
            self._lengths = self._checked_lengths(lengths[:])
        self._siblings = {n: d for n, d in beside.items() if d.shape == (count,) and d.dtype.kind in "biufSO"}
        self._raw.counts[LEFT_OUT] += len(beside) - len(self._siblings)

    def _candidates(self, group: str, datasets: dict[str, h5py.Dataset]) -> Iterator[tuple[str, str]]:
        """Yield the objects of a group that may be the sequences, and how."""
        lengths = [d for n, d in datasets.items() if n.lower() in LENGTH_NAMES and d.ndim == 1 and d.dtype.kind in "iu"]
        several = False
        for name, dataset in datasets.items():
            text = h5py.check_string_dtype(dataset.dtype) is not None
            if dataset.ndim == 1 and not text and h5py.check_vlen_dtype(dataset.dtype) is not None:
                several = True
                yield group + name, "vlen"
            elif dataset.ndim in (2, 3) and lengths and len(dataset) == len(lengths[0]):
                several = True
                yield group + name, "padded"
            elif dataset.ndim == 1 and text and name.lower() in SEQUENCE_NAMES:
                several = True
                yield group + name, "vlen"
        if datasets and not several and all(_is_one_sequence(dataset) for dataset in datasets.values()):
            yield group.rstrip("/") or "/", "group"

    def _checked_lengths(self, lengths: np.ndarray) -> np.ndarray:
        assert self._dataset is not None
        most = self._dataset.shape[1]
        wrong = np.flatnonzero((lengths < 0) | (lengths > most))
        if len(wrong):
            i = int(wrong[0])
            raise self._error(f"{self._path}[{i}]", f"its length is {lengths[i]}; expected 0 <= length <= {most}")
        return lengths

    def _one_dataset_each(self) -> Iterator[Record]:
        for name, dataset in self._siblings.items():
            record = self._record(name, dataset.name)
            try:
                record.columns = {key: _text(value) for key, value in sorted(dataset.attrs.items())}
            except ValueError as error:
                raise record.error(f"an attribute: {error}") from None
            self._set_sequence(record, dataset[()])
            yield record

    def _rows(self, dataset: h5py.Dataset) -> Iterator[Record]:
        """Yield one record per row of a dataset, with the columns beside it."""
        siblings = dict(self._siblings)
        id_name = self._columns.id or next((n for n in siblings if n.lower() in ID_NAMES), None)
        if id_name is not None and id_name not in siblings:
            raise self._error(self._path, f"there is no column {id_name!r} beside it; the columns are "
                                          f"{', '.join(map(repr, siblings)) or 'none'}; name one with --id-column")
        width = max(1, dataset.dtype.itemsize * int(np.prod(dataset.shape[1:])))
        step = max(1, min(BLOCK_ROWS, BLOCK_BYTES // width))
        for start in range(0, len(dataset), step):
            block = dataset[start : start + step]
            beside = {name: sibling[start : start + step] for name, sibling in siblings.items()}
            for k, value in enumerate(block):
                record = self._record(None, f"{self._path}[{start + k}]")
                try:
                    record.columns = {name: _text(cells[k]) for name, cells in beside.items()}
                except ValueError as error:
                    raise record.error(f"a column beside it: {error}") from None
                if id_name is not None:
                    record.id = record.columns.pop(id_name)
                self._set_sequence(record, value if self._lengths is None else self._unpadded(record, value, start + k))
                yield record

    def _record(self, record_id: str | None, place: str) -> Record:
        return Record(record_id, "", {}, self._raw.path, 0, place=place)

    def _unpadded(self, record: Record, row: np.ndarray, i: int) -> np.ndarray:
        """Return the row without its padding, which has to be one value: another would be lost."""
        assert self._lengths is not None
        length = int(self._lengths[i])
        padding = row[length:].reshape(-1)
        if len(padding) and not (np.isnan(padding).all() if np.isnan(padding[0]) else (padding == padding[0]).all()):
            raise record.error(f"holds different values behind its length, {length}; expected padding of one value: "
                               "correct its length")
        return row[:length]

    def _set_sequence(self, record: Record, value: Any) -> None:
        """Put an array or a text of the file into ``record``."""
        if isinstance(value, bytes | str):
            try:
                record.sequence = _text(value)
            except ValueError as error:
                raise record.error(str(error)) from None
            return
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" or array.ndim not in (1, 2):
            raise record.error(f"found {array.dtype} of shape {array.shape}, expected text, (T,) or (T, C) numbers")
        if array.dtype.kind in "biu" and array.ndim == 1:
            if array.dtype == np.uint64 and len(array) and int(array.max()) >= 2**63:
                raise record.error(f"integer {array.max()} is out of the range of int64")
            record.sequence = array.astype(np.int64)
            return
        features = array.astype(np.float64).reshape(len(array), -1)
        if array.dtype.kind in "iu" and (features.astype(array.dtype) != array).any():
            raise record.error("an integer among features is beyond 2**53, so not exact")
        finite = np.isfinite(features)
        if not finite.all():
            step, channel = np.argwhere(~finite)[0].tolist()
            if not self._columns.missing:
                raise record.error(f"number {features[step, channel]} at step {step}, channel {channel} (0-based) is "
                                   "not finite; correct it, or keep what is missing as NaN with --on-missing nan")
            self._raw.counts[COUNTED] += int((~finite).sum())
            features[~finite] = np.nan
        record.sequence = features


def _is_one_sequence(dataset: h5py.Dataset) -> bool:
    if dataset.ndim == 0:
        return h5py.check_string_dtype(dataset.dtype) is not None
    return dataset.ndim in (1, 2) and dataset.dtype.kind in "biuf"


def _text(value: Any) -> str:
    """Return a cell or an attribute as text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{brief(value)} is no UTF-8 text") from None
    if isinstance(value, str):
        return value
    number = np.asarray(value)
    if number.ndim or number.dtype.kind not in "biuf":
        raise ValueError(f"found {brief(value)}, expected one number or text")
    return str(number.item())


def _listed(found: dict[str, str]) -> str:
    names = {"group": "one dataset per sequence", "vlen": "variable length", "padded": "padded, with lengths"}
    every = ", ".join(f"{path!r} ({names[how]})" for path, how in list(found.items())[:10])
    return f"there are sequences at {every}" if every else (
        "expected a group of one dataset per sequence, a variable-length dataset, or a padded one with a dataset "
        "'lengths' beside it")
