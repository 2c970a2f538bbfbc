"""One padded batch of sequences.

Place in the flow: samples -> collate -> [batch] -> device -> network.

B sequences, T the padded length, C channels; always batch first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence


class Texts(Sequence[str]):
    """B texts that are read when one of them is looked at; they pickle as a tuple."""

    def __init__(self, read: Callable[[], list[str]], count: int) -> None:
        self._read: Callable[[], list[str]] | None = read
        self._count = count
        self._texts: list[str] = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: Any) -> Any:
        if self._read is not None:
            self._texts, self._read = self._read(), None
        return self._texts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> Any:
        return tuple, (list(self),)


@dataclass(frozen=True, eq=False)
class Batch:
    """B sequences padded to one length, and what belongs to them.

    Attributes:
        sequences: (B, T) token ids or (B, T, C) features in the store's dtype; 0 where padded.
        lengths: (B,) int64, elements per sequence, always on the CPU, where packing needs them.
        index: (B,) int64, the row of each sequence in the whole store, on the CPU.
        labels: (B,) int64 class numbers, (B,) float32 numbers, or for several classes a sequence
            (B, K) float32, 1 where it has the class; None without labels.
        ids: the B ids, read when they are looked at.
        tracks: (B, T) numbers per element by name, padded with 0 like the sequences.
        padding_side: ``right`` or ``left``.
        weight: 1.0, or 0.0 for a batch that only fills a step of this rank.
        position: where the batch stands in its epoch, for a loader that resumes; None elsewhere.
    """

    sequences: Tensor
    lengths: Tensor
    index: Tensor
    labels: Tensor | None = None
    ids: Sequence[str] = ()
    tracks: dict[str, Tensor] = field(default_factory=dict)
    padding_side: str = "right"
    weight: float = 1.0
    position: Any = None

    def __len__(self) -> int:
        """Return B."""
        return len(self.lengths)

    @cached_property
    def mask(self) -> Tensor:
        """(B, T) bool on the sequences' device, True where data. Made from the lengths on first use."""
        device = self.sequences.device
        steps = torch.arange(self.sequences.shape[1], device=device)
        lengths = self.lengths.to(device, non_blocking=True)[:, None]
        if self.padding_side == "left":
            return steps >= self.sequences.shape[1] - lengths
        return steps < lengths

    @cached_property
    def tokens(self) -> Tensor:
        """``sequences`` as int64, cast on their own device on first use.

        Raises:
            TypeError: the sequences are features.
        """
        if self.sequences.ndim != 2:
            raise TypeError(f"features of shape {tuple(self.sequences.shape)} are no tokens; use batch.sequences")
        return self.sequences.long()

    @property
    def num_elements(self) -> int:
        """How many elements are data; the rest of B x T is padding."""
        return int(self.lengths.sum())

    def packed(self) -> PackedSequence:
        """Return the sequences (tokens as int64) as a PackedSequence.

        Raises:
            ValueError: the padding is on the left, or a sequence is empty: torch packs neither.
        """
        if self.padding_side != "right":
            raise ValueError("packing expects padding on the right, found left; collate with padding_side='right'")
        if not int(self.lengths.min()):
            raise ValueError(f"sequence {int(self.lengths.argmin())} of the batch is empty; torch cannot pack it")
        data = self.tokens if self.sequences.ndim == 2 else self.sequences
        return pack_padded_sequence(data, self.lengths, batch_first=True, enforce_sorted=False)

    def jagged(self) -> tuple[Tensor, Tensor]:
        """Return the values without padding, end to end, and ``cu_seqlens``: (B+1,) int32 on the same device.

        Sequence i is ``values[cu_seqlens[i]:cu_seqlens[i + 1]]``.
        """
        ends = torch.zeros(len(self) + 1, dtype=torch.int32, device=self.lengths.device)
        ends[1:] = torch.cumsum(self.lengths, 0)
        return self.sequences[self.mask], ends.to(self.sequences.device, non_blocking=True)

    def unpad(self) -> list[np.ndarray]:
        """Return the B sequences as numpy arrays of their own lengths."""
        rows = self.sequences.cpu().numpy()
        if self.padding_side == "left":
            return [row[len(row) - n :].copy() for row, n in zip(rows, self.lengths.tolist(), strict=True)]
        return [row[:n].copy() for row, n in zip(rows, self.lengths.tolist(), strict=True)]

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory; a DataLoader with ``pin_memory=True`` calls this."""
        return self._map(lambda tensor: tensor.pin_memory(), lengths=True)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Return the batch on ``device``. ``lengths`` and ``index`` stay on the CPU."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking), lengths=False)

    def _map(self, change: Any, *, lengths: bool) -> Batch:
        host = {"lengths": change(self.lengths), "index": change(self.index)} if lengths else {}
        return replace(
            self,
            sequences=change(self.sequences),
            labels=None if self.labels is None else change(self.labels),
            tracks={name: change(track) for name, track in self.tracks.items()},
            **host,
        )
