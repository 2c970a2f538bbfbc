"""Pad the samples of a batch: three ways, one result.

Place in the flow: SequenceDataset -> DataLoader -> [collate] -> Batch.

    pad_sequence   torch.nn.utils.rnn.pad_sequence over ``from_numpy`` tensors
    manual         ``from_numpy``, a tensor of ``zeros`` per sequence, ``cat``, ``stack``
    fill           one buffer that bytes and zeros are copied to: the fast default

All three give bit-identical batches. Each is a plain function, so that it pickles and can be
given to any DataLoader as ``collate_fn``; options are bound with ``functools.partial``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqpipe import transport
from seqpipe.batch import Batch, Texts
from seqpipe.reading import Buffer, Plan, ShardedPlan
from seqpipe.sequences import RaggedBatch
from seqpipe.transforms import Sample

transport.register()  # a loader process that collates sends batches

Collate = Callable[..., Batch]
TORCH_TYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "float32",
               "float64", "complex64", "complex128")
ITEM = 1 << 31  # bytes; NumPy 1 makes no item of that size
PadArrays = Callable[[list[np.ndarray], int, str], Tensor]


def pad_sequence(
    samples: Sequence[Sample], *, padding_side: str = "right", pad_to_multiple: int = 1, num_classes: int | None = None
) -> Batch:
    """Collate with ``torch.nn.utils.rnn.pad_sequence``; arguments and result as ``fill``."""
    return _collate(samples, _pad_by_torch, padding_side, pad_to_multiple, num_classes)


def manual(
    samples: Sequence[Sample], *, padding_side: str = "right", pad_to_multiple: int = 1, num_classes: int | None = None
) -> Batch:
    """Collate with ``from_numpy``, ``zeros`` and ``cat``, as written by hand; arguments and result as ``fill``."""
    return _collate(samples, _pad_by_cat, padding_side, pad_to_multiple, num_classes)


def fill(
    samples: Sequence[Sample], *, padding_side: str = "right", pad_to_multiple: int = 1, num_classes: int | None = None
) -> Batch:
    """Collate into one buffer.

    Args:
        samples: B pairs (encoded_sequence, metadata) whose sequences have one dtype and one shape
            but for their length L_i >= 0.
        padding_side: ``right`` or ``left``: where the zeros go.
        pad_to_multiple: T is rounded up to a multiple of this.
        num_classes: how many classes there are, where a label is an array of class numbers.

    Returns:
        Batch, with T = max(1, max(L_i)) rounded up, sequences in their own dtype.

    Raises:
        ValueError: no samples; different dtypes or channels; metadata that only some samples have;
            a track that is not as long as its sequence.
    """
    return _collate(samples, _pad_by_fill, padding_side, pad_to_multiple, num_classes)


PADDINGS: dict[str, Collate] = {"fill": fill, "pad_sequence": pad_sequence, "manual": manual}


def _collate(
    samples: Sequence[Sample], pad: PadArrays, padding_side: str, pad_to_multiple: int, num_classes: int | None
) -> Batch:
    if not len(samples):
        raise ValueError("no samples to collate; expected at least one")
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side={padding_side!r}; expected 'right' or 'left'")
    if pad_to_multiple < 1:
        raise ValueError(f"pad_to_multiple={pad_to_multiple}; expected 1 or more")
    if isinstance(samples, RaggedBatch):
        num_classes = samples.num_classes if num_classes is None else num_classes
        if samples.plan is not None and pad is _pad_by_fill:
            return _fill_planned(samples.plan, padding_side, pad_to_multiple, num_classes)
    sequences = _plain_arrays("encoded_sequence", [sequence for sequence, _ in samples])
    metadata = [entry for _, entry in samples]
    lengths = [len(sequence) for sequence in sequences]
    num_steps = _round_up(max(lengths), pad_to_multiple)
    return Batch(
        sequences=pad(sequences, num_steps, padding_side),
        lengths=torch.from_numpy(np.array(lengths, np.int64)),
        index=torch.from_numpy(np.array([entry.get("index", -1) for entry in metadata], np.int64)),
        labels=_labels(metadata, num_classes),
        ids=tuple(_column(metadata, "id")) if "id" in metadata[0] else (),
        tracks={
            name: pad(_track(metadata, name, lengths), num_steps, padding_side)
            for name, value in metadata[0].items() if isinstance(value, np.ndarray) and name != "label"
        },
        padding_side=padding_side,
    )


def _round_up(longest: int, multiple: int) -> int:
    return -(-max(1, longest) // multiple) * multiple


def _fill_planned(
    plan: Plan | ShardedPlan, padding_side: str, pad_to_multiple: int, num_classes: int | None
) -> Batch:
    """Collate what is not read yet: bytes go from the map to the batch, without an array a sequence."""
    lengths, count = plan.lengths, len(plan.rows)
    num_steps = _round_up(plan.longest, pad_to_multiple)
    padded: dict[Any, Tensor] = {}
    for name, flat in plan.flats.items():
        row_bytes = num_steps * flat.width
        room = transport.room(count * row_bytes) if name is None else None
        rows = _rows(plan.pieces(name), row_bytes, padding_side, room)
        padded[name] = torch.from_numpy(rows.view(flat.dtype).reshape(count, num_steps, *flat.tail))
    labels = plan.labels()
    if isinstance(labels, list):
        labels = multi_hot(np.concatenate(labels), list(map(len, labels)), num_classes)
    return Batch(
        sequences=padded.pop(None),
        lengths=torch.from_numpy(lengths),
        index=torch.from_numpy(plan.rows),
        labels=None if labels is None else torch.from_numpy(labels),
        ids=Texts(plan.ids, count) if plan.has_ids else (),
        tracks=padded,
        padding_side=padding_side,
    )


def _rows(pieces: Sequence[Buffer], row_bytes: int, side: str, room: np.ndarray | None) -> np.ndarray:
    """Return B rows of bytes end to end, in ``room`` if given: each piece, and on one side of it zeros."""
    if side == "right" and row_bytes < ITEM:
        # An item of plain bytes takes any buffer, and zeros follow what is shorter than it.
        if room is None:
            return np.fromiter(pieces, f"V{row_bytes}", len(pieces))
        rows = room.view(f"V{row_bytes}")
        for at, piece in enumerate(pieces):
            rows[at] = piece
        return rows
    rows = np.empty(len(pieces) * row_bytes, np.uint8) if room is None else room
    rows.fill(0)
    target = rows.data
    for at, piece in enumerate(pieces):
        start = at * row_bytes if side == "right" else (at + 1) * row_bytes - len(piece)
        target[start : start + len(piece)] = piece
    return rows


def _column(metadata: list[dict[str, Any]], name: str) -> list[Any]:
    """Return one value per sample."""
    try:
        return [entry[name] for entry in metadata]
    except KeyError:
        i = next(i for i, entry in enumerate(metadata) if name not in entry)
        raise ValueError(f"sample {i} of the batch has no {name!r}, sample 0 has; expected it in all or none") from None


def _track(metadata: list[dict[str, Any]], name: str, lengths: list[int]) -> list[np.ndarray]:
    """Return the B arrays of a track, each as long as its sequence."""
    arrays = _plain_arrays(name, _column(metadata, name))
    for i, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        if len(array) != length:
            raise ValueError(
                f"{name!r} of sample {i} of the batch has {len(array)} elements, its sequence {length}; expected as "
                "many (a transform that shortens a sequence shortens its tracks too)"
            )
    return arrays


def _labels(metadata: list[dict[str, Any]], num_classes: int | None) -> Tensor | None:
    """Return (B,) int64 or float32 labels, (B, K) float32 for class numbers, None where there are none (or text)."""
    if "label" not in metadata[0]:
        return None
    column = _column(metadata, "label")
    if isinstance(column[0], np.ndarray) and column[0].ndim == 1:
        return torch.from_numpy(multi_hot(np.concatenate(column), list(map(len, column)), num_classes))
    labels = np.array(column)
    if labels.dtype.kind not in "iufb":
        return None
    return torch.from_numpy(labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64))


def multi_hot(numbers: np.ndarray, counts: Sequence[int] | np.ndarray, num_classes: int | None) -> np.ndarray:
    """Return (B, K) float32, 1 where a sequence has the class.

    Args:
        numbers: the class numbers of all B sequences end to end.
        counts: how many of them each sequence has.
        num_classes: K.

    Raises:
        ValueError: K is not known, or a number is no class.
    """
    if num_classes is None:
        raise ValueError("labels are arrays of class numbers, of how many classes is not known; collate with "
                         "functools.partial(fill, num_classes=len(dataset.classes))")
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < num_classes:
        raise ValueError(f"class numbers {numbers.min()} to {numbers.max()}; expected 0 <= number < {num_classes}")
    hot = np.zeros((len(counts), num_classes), np.float32)
    hot[np.repeat(np.arange(len(counts)), counts), numbers] = 1
    return hot


def _plain_arrays(name: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays in C order and native bytes, as torch needs them; refuse a mixture of types."""
    dtype, shape = arrays[0].dtype, arrays[0].shape[1:]
    if dtype.name not in TORCH_TYPES:
        raise ValueError(f"{name!r} of sample 0 of the batch is {dtype.name}, which torch lacks; expected one of "
                         f"{', '.join(TORCH_TYPES)}")
    for i, array in enumerate(arrays):
        if array.dtype != dtype or array.shape[1:] != shape:
            raise ValueError(
                f"{name!r} of sample {i} of the batch is {array.dtype} of shape {array.shape}, of sample 0 {dtype} of "
                f"shape {arrays[0].shape}; expected one dtype and one shape but for the length"
            )
        if not array.flags.carray:  # reversed, in another order, or read-only
            arrays[i] = array.copy(order="C")
    # One of the C types of a width is the one torch knows: longlong may be another int64 than long.
    native = np.dtype(dtype.name)
    return arrays if dtype.char == native.char and dtype.isnative else [array.astype(native) for array in arrays]


def _tensor(array: np.ndarray) -> Tensor:
    # Along a dimension of size 1, NumPy calls a negative stride contiguous and torch refuses it.
    return torch.from_numpy(array if min(array.strides) >= 0 else array.copy())


def _pad_by_torch(arrays: list[np.ndarray], num_steps: int, side: str) -> Tensor:
    tensors = list(map(_tensor, arrays))
    padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_side=side)
    if (missing := num_steps - padded.shape[1]) > 0:
        zeros = padded.new_zeros((len(arrays), missing, *padded.shape[2:]))
        padded = torch.cat([padded, zeros] if side == "right" else [zeros, padded], dim=1)
    return padded


def _pad_by_cat(arrays: list[np.ndarray], num_steps: int, side: str) -> Tensor:
    rows = []
    for array in arrays:
        sequence = _tensor(array)
        zeros = torch.zeros((num_steps - len(array), *array.shape[1:]), dtype=sequence.dtype, device=sequence.device)
        rows.append(torch.cat([sequence, zeros] if side == "right" else [zeros, sequence]))
    return torch.stack(rows)


def _pad_by_fill(arrays: list[np.ndarray], num_steps: int, side: str) -> Tensor:
    first = arrays[0]
    row_bytes = first.itemsize * int(np.prod(first.shape[1:]))
    # NumPy allocates: above 32 MiB torch.zeros is about 4 times slower.
    padded = np.zeros(len(arrays) * num_steps * row_bytes, np.uint8)
    target, start = padded.data, 0
    for array in arrays:
        data = (array if array.ndim == 1 else array.reshape(-1)).view(np.uint8).data
        at = start if side == "right" else start + num_steps * row_bytes - len(data)
        target[at : at + len(data)] = data
        start += num_steps * row_bytes
    return torch.from_numpy(padded.view(first.dtype).reshape(len(arrays), num_steps, *first.shape[1:]))
