"""Choose the device and bring batches to it.

Place in the flow: DataLoader -> [device] -> network.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import torch

from seqpipe.batch import Batch
from seqpipe.errors import OptionError


def choose_device(requested: str) -> torch.device:
    """Return the device for ``--device``: auto is CUDA where there is one.

    Raises:
        OptionError: CUDA is asked for and there is none.
    """
    if requested == "cuda" and not torch.cuda.is_available():
        raise OptionError("--device cuda: torch finds no CUDA device here; use --device cpu or auto")
    if requested == "auto":
        requested = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(requested)


def describe_device(device: torch.device) -> str:
    """Return one line on the device, for the user."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)}), pinned memory, non_blocking copies"
    return f"cpu ({torch.get_num_threads()} threads)"


class Waiting:
    """Seconds that training has waited for data."""

    seconds = 0.0


def batches_on(loader: Iterable[Batch], device: torch.device, waiting: Waiting | None = None) -> Iterator[Batch]:
    """Yield the loader's batches on ``device``; from pinned memory the copy overlaps the computation.

    Args:
        loader: of batches, pinned for CUDA.
        device: where they go.
        waiting: its ``seconds`` grow by the time spent on getting batches.
    """
    batches = iter(loader)
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        if batch is not None and device.type != "cpu":
            batch = batch.to(device, non_blocking=True)
        if waiting is not None:
            waiting.seconds += time.perf_counter() - started
        if batch is None:
            return
        yield batch
