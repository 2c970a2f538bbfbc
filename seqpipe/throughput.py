"""Sums over training steps: loss, rates, padding, waiting, memory.

Place in the flow: Batch + loss -> [throughput] -> a line of metrics.jsonl.
"""

from __future__ import annotations

import sys
import time

import torch

from seqpipe.batch import Batch
from seqpipe.device import Waiting


class Throughput:
    """Sums over some training steps."""

    def __init__(self, device: torch.device) -> None:
        self._started = time.perf_counter()
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._terms = self._sequences = self._elements = self._padded = 0

    def add(self, batch: Batch, loss: torch.Tensor, terms: int) -> None:
        self._loss += loss.double()  # stays on the device: reading it here would make the CPU wait
        self._terms += terms
        self._sequences += len(batch)
        self._elements += batch.num_elements
        self._padded += batch.sequences.shape[0] * batch.sequences.shape[1]

    def mean_loss(self) -> float:
        return float(self._loss) / max(self._terms, 1)

    def report(self, waiting: Waiting) -> dict[str, float]:
        """Return one log line: rates per second, shares in percent, memory in MB."""
        loss = self.mean_loss()
        seconds = max(time.perf_counter() - self._started, 1e-9)
        return {
            "loss": loss,
            "sequences_per_s": round(self._sequences / seconds, 1),
            "elements_per_s": round(self._elements / seconds, 1),
            "padding_percent": round(100 * (1 - self._elements / max(self._padded, 1)), 2),
            "data_wait_percent": round(100 * waiting.seconds / seconds, 2),
            "memory_mb": round(peak_memory(self._loss.device) / 1e6, 1),
        }


def peak_memory(device: torch.device) -> int:
    """Return the peak memory so far in bytes: of the device for CUDA, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
