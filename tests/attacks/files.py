"""Stores to spoil, and ways to spoil them so that only one thing is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest

from seqpipe.errors import StoreError
from seqpipe.layout import block_checksums
from seqpipe.sequences import SequenceDataset
from seqpipe.store import Store
from seqpipe.writer import Content, write_store

Change = Callable[[dict[str, np.ndarray], dict[str, Any]], None]


def content_of(path: Path) -> Any:
    """Return all that a user can read from a store."""
    dataset = SequenceDataset(path)
    samples = [(sequence.tolist(), metadata) for sequence, metadata in (dataset[i] for i in range(len(dataset)))]
    parts = {name: SequenceDataset(path, split=name) for name in dataset.store.splits}
    splits = {name: [part[i][1]["index"] for i in range(len(part))] for name, part in parts.items()}
    return samples, splits, dataset.classes, dataset.store.header


def reseal(path: Path) -> None:
    """Make every checksum of a store right again, so that only its content can be found wrong."""
    with h5py.File(path, "r+") as file:
        def check(name: str, item: object) -> None:
            table = file.get(f"checksums/{name}")
            if isinstance(item, h5py.Dataset) and table is not None and table.shape[0]:
                table[()] = block_checksums(np.frombuffer(item[()].tobytes(), "u1").data)

        file.visititems(check)


def rebuild(source: Path, path: Path, change: Change, compression: str = "none") -> Path:
    """Write the store ``source`` again after ``change(arrays, header)``, with the right checksums."""
    store = Store(source)
    arrays = {name: np.array(array) for name, array in store.arrays.items()
              if not name.startswith(("checksums/", "chunks/")) and name != "header"}
    header = json.loads(json.dumps(store.header))
    change(arrays, header)
    with mock.patch("seqpipe.writer.header_problem", return_value=None):
        write_store(path, {name: Content.of(array) for name, array in arrays.items()}, header, folder=path.parent,
                    compression=compression)
    return path


def refused(path: Path) -> str:
    """Return the message with which a store is refused."""
    with pytest.raises(StoreError) as caught:
        Store(path)
    message = str(caught.value)
    assert str(path) in message and caught.value.path == path
    return message


def arrays_edit(name: str, array: np.ndarray | None) -> Change:
    """Return a change of one array, for ``rebuild``."""
    def change(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        if array is None:
            del arrays[name]
        else:
            arrays[name] = array
    return change
