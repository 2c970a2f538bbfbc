"""Pad the samples of a batch: three ways, one result.

Place in the flow: SequenceDataset -> DataLoader -> [collate] -> Batch.

    pad_sequence   torch.nn.utils.rnn.pad_sequence over ``from_numpy`` tensors
    manual         ``from_numpy``, a tensor of ``zeros`` per sequence, ``cat``, ``stack``
    fill           one zeroed buffer and a copy of bytes per sequence: the fast default

All three give bit-identical batches. Each is a plain function, so that it pickles and can be
given to any DataLoader as ``collate_fn``; options are bound with ``functools.partial``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqpipe.batch import Batch
from seqpipe.sequences import Sample

Collate = Callable[..., Batch]
PadArrays = Callable[[list[np.ndarray], int, str], Tensor]


def pad_sequence(samples: Sequence[Sample], *, padding_side: str = "right", pad_to_multiple: int = 1) -> Batch:
    """Collate with ``torch.nn.utils.rnn.pad_sequence``; arguments and result as ``fill``."""
    return _collate(samples, _pad_by_torch, padding_side, pad_to_multiple)


def manual(samples: Sequence[Sample], *, padding_side: str = "right", pad_to_multiple: int = 1) -> Batch:
    """Collate with ``from_numpy``, ``zeros`` and ``cat``, as written by hand; arguments and result as ``fill``."""
    return _collate(samples, _pad_by_cat, padding_side, pad_to_multiple)


def fill(samples: Sequence[Sample], *, padding_side: str = "right", pad_to_multiple: int = 1) -> Batch:
    """Collate into one zeroed buffer.

    Args:
        samples: B pairs (encoded_sequence, metadata) whose sequences have one dtype and one shape
            but for their length L_i >= 0.
        padding_side: ``right`` or ``left``: where the zeros go.
        pad_to_multiple: T is rounded up to a multiple of this.

    Returns:
        Batch, with T = max(1, max(L_i)) rounded up, sequences in their own dtype.

    Raises:
        ValueError: no samples, or sequences of different dtypes or channels.
    """
    return _collate(samples, _pad_by_fill, padding_side, pad_to_multiple)


PADDINGS: dict[str, Collate] = {"fill": fill, "pad_sequence": pad_sequence, "manual": manual}


def _collate(samples: Sequence[Sample], pad: PadArrays, padding_side: str, pad_to_multiple: int) -> Batch:
    if not samples:
        raise ValueError("no samples to collate; expected at least one")
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side={padding_side!r}; expected 'right' or 'left'")
    sequences = _plain_arrays([sequence for sequence, _ in samples])
    metadata = [entry for _, entry in samples]
    num_steps = max(1, *map(len, sequences)) if len(sequences) > 1 else max(1, len(sequences[0]))
    num_steps = -(-num_steps // pad_to_multiple) * pad_to_multiple
    tracks = {
        name: pad(_plain_arrays([entry[name] for entry in metadata]), num_steps, padding_side)
        for name, value in metadata[0].items() if isinstance(value, np.ndarray) and name != "label"
    }
    return Batch(
        sequences=pad(sequences, num_steps, padding_side),
        lengths=torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64),
        index=torch.tensor([entry.get("index", -1) for entry in metadata], dtype=torch.int64),
        labels=_labels(metadata),
        ids=tuple(entry["id"] for entry in metadata) if "id" in metadata[0] else (),
        tracks=tracks,
        padding_side=padding_side,
    )


def _labels(metadata: list[dict[str, Any]]) -> Tensor | None:
    """Return (B,) int64 or float32 labels, None where there are none (or only text)."""
    labels = [entry["label"] for entry in metadata if "label" in entry]
    if len(labels) != len(metadata) or isinstance(labels[0], str):
        return None
    whole = isinstance(labels[0], int | np.integer)
    return torch.tensor(labels, dtype=torch.int64 if whole else torch.float32)


def _plain_arrays(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays in C order and native bytes, as torch needs them; refuse a mixture of types."""
    first = arrays[0]
    for i, array in enumerate(arrays):
        if array.dtype != first.dtype or array.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"sequence {i} of the batch is {array.dtype} of shape {array.shape}, sequence 0 is {first.dtype} "
                f"of shape {first.shape}; expected one dtype and one shape but for the length"
            )
        if not (array.flags.c_contiguous and array.flags.writeable and array.dtype.isnative):
            arrays[i] = np.array(array, array.dtype.newbyteorder("="), order="C")
    return arrays


def _pad_by_torch(arrays: list[np.ndarray], num_steps: int, side: str) -> Tensor:
    tensors = [torch.from_numpy(array) for array in arrays]
    padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_side=side)
    if (missing := num_steps - padded.shape[1]) > 0:
        zeros = padded.new_zeros((len(arrays), missing, *padded.shape[2:]))
        padded = torch.cat([padded, zeros] if side == "right" else [zeros, padded], dim=1)
    return padded


def _pad_by_cat(arrays: list[np.ndarray], num_steps: int, side: str) -> Tensor:
    rows = []
    for array in arrays:
        sequence = torch.from_numpy(array)
        zeros = torch.zeros((num_steps - len(array), *array.shape[1:]), dtype=sequence.dtype)
        rows.append(torch.cat([sequence, zeros] if side == "right" else [zeros, sequence]))
    return torch.stack(rows)


def _pad_by_fill(arrays: list[np.ndarray], num_steps: int, side: str) -> Tensor:
    first = arrays[0]
    row_bytes = first.itemsize * int(np.prod(first.shape[1:]))
    # NumPy allocates: above 32 MiB torch.zeros is about 4 times slower.
    padded = np.zeros(len(arrays) * num_steps * row_bytes, np.uint8)
    target, start = padded.data, 0
    for array in arrays:
        data = array.reshape(-1).view(np.uint8).data
        at = start if side == "right" else start + num_steps * row_bytes - len(data)
        target[at : at + len(data)] = data
        start += num_steps * row_bytes
    return torch.from_numpy(padded.view(first.dtype).reshape(len(arrays), num_steps, *first.shape[1:]))
