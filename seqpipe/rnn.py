"""Recurrent networks over padded batches; a sequence's result does not depend on its batch.

Place in the flow: Batch.sequences, Batch.lengths -> [rnn] -> outputs -> loss, metrics, predictions.

    1. tokens are embedded; features are standardised, then mapped linearly
    2. each layer has one recurrent module a direction; the backward one reads every sequence
       reversed within its length, and its outputs are put back in order
    3. classify, regress: pool over the real positions, then a linear head;
       lm: the head at every position

Two ways to run step 2, masked and packed, share every parameter and give the same result: see
``reading_order``.

Terms:
    B, T      sequences in the batch; padded length, T >= 1
    C, E, H   channels per position; ``embedding_dim``; ``hidden_dim``
    D         directions, 1 or 2
    lengths   (B,) int64 on the CPU, positions per sequence before padding, 0 <= length <= T
    mask      (B, T) bool, True where data
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from seqpipe.alphabet import PAD_ID
from seqpipe.reading_order import ReadingOrder, choose_rnn_path, plan_order, run_in_order

CELLS: dict[str, Callable[..., nn.Module]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
CHOICES = {
    "task": ("classify", "regress", "lm"),
    "model": tuple(CELLS),
    "pooling": ("last", "mean", "max", "attention"),
    "rnn_path": ("auto", "masked", "packed"),
}
LEAST = {"num_tokens": 0, "num_channels": 0, "num_outputs": 1, "embedding_dim": 1, "hidden_dim": 1, "layers": 1}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What fixes a SequenceRNN: plain values, kept in checkpoints.

    ``ModelConfig(**dataclasses.asdict(config)) == config``, also through JSON.

    Attributes:
        task: classify, regress, or lm (predict each token from those before it).
        num_tokens: size of the alphabet, pad id 0 included; 0 for features.
        num_channels: numbers per position; 0 for tokens.
        num_outputs: classes; 1 for regress; ``num_tokens`` for lm.
        model: the recurrent cell.
        embedding_dim: width of what the first layer reads.
        hidden_dim: width of one direction of one layer.
        layers: number of recurrent layers.
        bidirectional: read each sequence from both ends; not for lm.
        dropout: share zeroed between layers and before the head, while training.
        pooling: how the real positions become one vector; lm does not pool.
        rnn_path: masked, packed, or auto: see ``choose_rnn_path``.
        missing: read NaN, a missing number, as the channel's mean; without it NaN stays NaN, and
            makes the loss NaN.

    Raises:
        ValueError: a value is out of range, or two do not fit together.
    """

    task: Literal["classify", "regress", "lm"]
    num_tokens: int = 0
    num_channels: int = 0
    num_outputs: int
    model: Literal["rnn", "gru", "lstm"]
    embedding_dim: int
    hidden_dim: int
    layers: int
    bidirectional: bool
    dropout: float
    pooling: Literal["last", "mean", "max", "attention"]
    rnn_path: Literal["auto", "masked", "packed"]
    missing: bool = False

    def __post_init__(self) -> None:
        expect = self._expect
        for name, names in CHOICES.items():
            expect(name, getattr(self, name) in names, f"one of {', '.join(names)}")
        for name, least in LEAST.items():
            value = getattr(self, name)
            expect(name, type(value) is int and value >= least, f"an integer >= {least}")
        expect("bidirectional", type(self.bidirectional) is bool, "True or False")
        is_share = type(self.dropout) in (int, float) and 0 <= self.dropout < 1
        expect("dropout", is_share, "a number, 0 <= dropout < 1")
        if self.num_channels:
            expect("num_tokens", self.num_tokens == 0, f"0 with num_channels={self.num_channels}")
        else:
            expect("num_tokens", self.num_tokens >= 2, ">= 2 (pad id, a symbol), or num_channels >= 1")
        if self.task == "regress":
            expect("num_outputs", self.num_outputs == 1, "1 with task='regress'")
        if self.task == "lm":
            expect("num_channels", self.num_channels == 0, "0 with task='lm', which predicts tokens")
            same = self.num_outputs == self.num_tokens
            expect("num_outputs", same, f"num_tokens={self.num_tokens} with task='lm'")
            expect("bidirectional", not self.bidirectional, "False with task='lm': it would read the answer")

    def _expect(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ValueError(f"ModelConfig: {name} is {getattr(self, name)!r}, expected {expected}")


class SequenceRNN(nn.Module):
    """Classify, regress or model right-padded sequences of unequal length.

    In eval mode the output for a sequence is the same alone and in any batch, up to
    rounding (1e-5 in float32), whatever stands in the padding. A sequence of length 0
    pools to zeros, the initial state, so its output is the head's bias.

    Attributes:
        config: what it was built from.
        mean, deviation: (C,) float64 buffers, features only; 0 and 1 until
            ``set_statistics``. float64, because the difference of two large numbers
            (times, positions) in float32 loses what matters; ``float()`` would cast them.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        if config.num_tokens:
            self.embedding = nn.Embedding(config.num_tokens, config.embedding_dim, padding_idx=PAD_ID)
        else:
            self.register_buffer("mean", torch.zeros(config.num_channels, dtype=torch.float64))
            self.register_buffer("deviation", torch.ones(config.num_channels, dtype=torch.float64))
            self.projection = nn.Linear(config.num_channels, config.embedding_dim)
        num_directions = 2 if config.bidirectional else 1
        width = num_directions * config.hidden_dim
        cell = CELLS[config.model]
        self.layers = nn.ModuleList()
        for input_dim in [config.embedding_dim] + [width] * (config.layers - 1):
            directions = [cell(input_dim, config.hidden_dim, batch_first=True) for _ in range(num_directions)]
            self.layers.append(nn.ModuleList(directions))
        if config.task != "lm" and config.pooling == "attention":
            self.query = nn.Parameter(torch.randn(width) / width**0.5)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(width, config.num_outputs)

    def set_statistics(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        """Standardise features by the train split's statistics; they travel in the state dict.

        Args:
            mean: (C,) mean of each channel.
            deviation: (C,) standard deviation of each channel; 0, a constant channel, counts as 1.

        Raises:
            ValueError: not C finite numbers each, or a deviation below 0.
        """
        num_channels = self.config.num_channels
        center, scale = (torch.from_numpy(np.array(values, np.float64)) for values in (mean, deviation))
        usable = center.isfinite().all() and scale.isfinite().all() and (scale >= 0).all()
        if num_channels == 0 or not center.shape == scale.shape == (num_channels,) or not usable:
            raise ValueError(
                f"mean is {mean!r} and deviation {deviation!r}, expected {num_channels} finite numbers "
                "each (one a channel), deviations >= 0"
            )
        self.mean.copy_(center)
        self.deviation.copy_(scale.masked_fill(scale == 0, 1.0))

    def forward(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        """Return one output per sequence, or per position for lm.

        Args:
            sequences: (B, T) token ids of any integer dtype, or (B, T, C) numbers of any
                real dtype; right-padded, on the model's device; token ids are not checked.
            lengths: (B,) int64 on the CPU, 0 <= length <= T.

        Returns:
            classify: (B, num_outputs) logits; regress: (B, 1).
            lm: (B, T, num_outputs) logits; position t predicts token t and has read the
            tokens before it, so the first is predicted from the begin mark alone.
            Positions t >= length carry no meaning.

        Raises:
            ValueError: a shape, dtype, device or length is not as above.
        """
        self._check(sequences, lengths)
        device = sequences.device
        counts = lengths.to(device, non_blocking=True)
        mask = torch.arange(sequences.shape[1], device=device) < counts[:, None]
        packed = choose_rnn_path(self.config.rnn_path, device) == "packed"
        directions = (False, True) if self.config.bidirectional else (False,)
        orders = [plan_order(lengths, counts, mask.shape[1], backward=b, packed=packed) for b in directions]
        by_direction = self._run_layers(self._embed(sequences, mask), orders)
        if self.config.task == "lm":
            return self.head(self.dropout(by_direction[0]))
        return self.head(self.dropout(self._pool(by_direction, mask, counts)))

    def _check(self, sequences: Tensor, lengths: Tensor) -> None:
        channels = (self.config.num_channels,) if self.config.num_channels else ()
        shape = tuple(sequences.shape)
        if len(shape) != 2 + len(channels) or shape[2:] != channels or 0 in shape:
            raise ValueError(f"sequences has shape {shape}, expected {('B', 'T', *channels)}, B and T >= 1")
        if lengths.dtype != torch.int64 or lengths.device.type != "cpu" or lengths.shape != shape[:1]:
            found = f"{tuple(lengths.shape)} {lengths.dtype} on {lengths.device}"
            raise ValueError(f"lengths is {found}, expected {shape[:1]} torch.int64 on cpu")
        low, high = (int(value) for value in lengths.aminmax())
        if low < 0 or high > shape[1]:
            raise ValueError(f"lengths reach from {low} to {high}, expected 0 <= length <= T={shape[1]}")

    def _embed(self, sequences: Tensor, mask: Tensor) -> Tensor:
        """Return what the first layer reads, (B, T, E) in the dtype of the parameters."""
        if self.config.num_channels:
            standardised = (sequences.to(self.mean.dtype) - self.mean) / self.deviation
            # A NaN in the padding, times a gradient of zero, would still be NaN.
            unknown = ~mask[:, :, None]
            if self.config.missing:
                unknown = unknown | standardised.isnan()
            clean = standardised.masked_fill(unknown, 0.0)
            return self.projection(clean.to(self.projection.weight.dtype))
        tokens = sequences.to(torch.int64)
        if self.config.task == "lm":
            begin = tokens.new_full((len(tokens), 1), PAD_ID)  # its embedding is zeros
            tokens = torch.cat([begin, tokens[:, :-1]], dim=1)
        return self.embedding(tokens)

    def _run_layers(self, vectors: Tensor, orders: Sequence[ReadingOrder]) -> list[Tensor]:
        """Return the last layer's outputs, (B, T, H) per direction, each at its own position."""
        outputs: list[Tensor] = []
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleList)
            if outputs:
                vectors = self.dropout(torch.cat(outputs, dim=2))
            outputs = [run_in_order(rnn, vectors, order) for rnn, order in zip(layer, orders, strict=True)]
        return outputs

    def _pool(self, by_direction: list[Tensor], mask: Tensor, counts: Tensor) -> Tensor:
        """Return (B, D * H), one vector of the real positions of each sequence; zeros if it has none."""
        if self.config.pooling == "last":
            # The backward direction ends where the sequence begins.
            final_steps = [(counts - 1).clamp(min=0), torch.zeros_like(counts)]
            sequence_numbers = torch.arange(len(counts), device=counts.device)
            pooled = [outputs[sequence_numbers, steps] for outputs, steps in zip(by_direction, final_steps)]
        elif self.config.pooling == "max":
            absent = ~mask[:, :, None]
            pooled = [outputs.masked_fill(absent, -torch.inf).amax(dim=1) for outputs in by_direction]
        elif self.config.pooling == "mean":
            ones = mask[:, None, :].to(by_direction[0].dtype)
            pooled = [(ones @ outputs).squeeze(1) / counts.clamp(min=1)[:, None] for outputs in by_direction]
        else:
            scores = torch.cat(by_direction, dim=2) @ self.query
            # Not -inf: a sequence of length 0 would get NaN weights.
            weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=1)
            weights = weights[:, None, :].to(by_direction[0].dtype)
            pooled = [(weights @ outputs).squeeze(1) for outputs in by_direction]
        return torch.cat(pooled, dim=1).masked_fill(counts[:, None] == 0, 0.0)
