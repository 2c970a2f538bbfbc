"""Choose the device and bring batches to it.

Place in the flow: DataLoader -> [device] -> network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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
    return f"cpu (threads: {torch.get_num_threads()}; OMP_NUM_THREADS sets another number)"


@contextmanager
def few_threads(device: torch.device) -> Iterator[None]:
    """Run the block with at most half of the cores, and at most 4, where the device is the CPU.

    The small matrices of an RNN gain little from more threads (here 0 to 20 % from a second one),
    and lose much where another process wants a core: threads that wait for each other then spin
    (measured on two cores: 27 to 55 s with two threads, 7 to 10 s with one). ``OMP_NUM_THREADS``
    overrides.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(before, count_cores() // 2, 4)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Waiting:
    """Seconds that training has waited for data."""

    seconds = 0.0


def batches_on(loader: Iterable[Batch], device: torch.device, waiting: Waiting | None = None) -> Iterator[Batch]:
    """Yield the loader's batches on ``device``; from pinned memory the CPU does not wait for the copy.

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
