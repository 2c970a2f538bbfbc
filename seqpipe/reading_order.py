"""The order in which one direction of a recurrent layer reads a padded batch.

Place in the flow: lengths -> [reading_order] -> rnn.

    masked   the padded kernels run past a sequence's end; what they give there is never used
    packed   the padding is left out; on a CPU 2 to 40 times slower, longer sequences more

Both move vectors by row numbers: position t of sequence b is row b * T + t of the flattened
batch, and one ``index_select`` reverses, packs, or does both at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence


class ReadingOrder(NamedTuple):
    """The order in which one direction reads a batch.

    Attributes:
        rows: row numbers in reading order, on the batch's device; None reads the batch as it is.
        batch_sizes: of a packed order, rows per step, on the CPU; else None, and ``rows``
            are a permutation of range(B * T).
    """

    rows: Tensor | None
    batch_sizes: Tensor | None


def choose_rnn_path(rnn_path: str, device: torch.device) -> str:
    """Return "masked" or "packed"; "auto" is packed on CUDA and masked elsewhere."""
    if rnn_path == "auto":
        return "packed" if device.type == "cuda" else "masked"
    return rnn_path


def plan_order(
    lengths: Tensor, counts: Tensor, num_steps: int, *, backward: bool, packed: bool
) -> ReadingOrder:
    """Return how one direction reads a batch.

    Args:
        lengths: (B,) int64 on the CPU.
        counts: the same on the batch's device, where the row numbers are made.
        num_steps: T.
        backward: each sequence from its end.
        packed: leave the padding out.
    """
    if packed:
        # Packing the row numbers once spares packing vectors in each layer, and makes packing
        # and reversing one move. An empty sequence keeps one row: torch packs no empty one.
        rows = number_rows(counts, num_steps, backward=backward)
        order = pack_padded_sequence(rows, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
        return ReadingOrder(order.data, order.batch_sizes)
    if backward:
        return ReadingOrder(number_rows(counts, num_steps, backward=True).flatten(), None)
    return ReadingOrder(None, None)


def number_rows(counts: Tensor, num_steps: int, *, backward: bool) -> Tensor:
    """Return the (B, T) row numbers in reading order, on the device of ``counts``, the (B,) lengths.

    Backward, each sequence is reversed within its length and its padding stays in place.
    """
    steps = torch.arange(num_steps, device=counts.device).expand(len(counts), num_steps)
    if backward:
        last = counts[:, None] - 1
        steps = torch.where(steps <= last, last - steps, steps)
    return steps + num_steps * torch.arange(len(counts), device=counts.device)[:, None]


def run_in_order(rnn: nn.Module, vectors: Tensor, order: ReadingOrder) -> Tensor:
    """Return (B, T, H): the outputs of one direction of one layer, each at its own position.

    Args:
        rnn: batch first.
        vectors: (B, T, width).
        order: from ``plan_order``; positions it leaves out get zeros.
    """
    if order.rows is None:
        return rnn(vectors)[0]
    selected = vectors.flatten(0, 1).index_select(0, order.rows)
    if order.batch_sizes is None:
        outputs = rnn(selected.view(vectors.shape))[0].flatten(0, 1)
    else:
        outputs = rnn(PackedSequence(selected, order.batch_sizes))[0].data
    num_sequences, num_steps = vectors.shape[:2]
    restored = outputs.new_zeros(num_sequences * num_steps, outputs.shape[1])
    return restored.index_copy(0, order.rows, outputs).view(num_sequences, num_steps, -1)
