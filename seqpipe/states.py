"""The state of a batch sampler: where it stands, and of which plan; no other plan goes on from it.

Place in the flow: position, lengths, settings -> [states] -> a checkpoint, and back to samplers.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

import numpy as np

from seqpipe.batch_settings import PlanSettings
from seqpipe.batching import lengths_between
from seqpipe.errors import CheckpointError

Position = tuple[int, int, int]  # epoch, window, batch in window
STATE_VERSION = 2  # another one where a seed gives other batches than before
CHUNK = 2**18  # lengths looked at together
MOST_AT_ONCE = 2**24  # lengths looked at before the first batch; of more, 1,024 runs
RUN = 256
MOST_EPOCHS = 2**62  # an epoch travels to loader processes as an int64


def fingerprint(lengths: Any, sums: np.ndarray | None, settings: PlanSettings, source: str) -> dict[str, Any]:
    """Return what a state must agree in, by name: all that changes the plan."""
    return {
        "source": source,
        "num_sequences": len(lengths),
        "lengths": _digest(lengths),
        "weights": None if sums is None else _digest(sums.view(np.int64)),
        **{name: value.item() if isinstance(value, np.generic) else value for name, value in asdict(settings).items()},
    }


def state_of(position: Position, plan: dict[str, Any]) -> dict[str, Any]:
    """Return a state of plain numbers and texts; ``plan`` is a ``fingerprint``."""
    return {"version": STATE_VERSION, "position": list(position), "plan": dict(plan)}


def position_of(state: dict[str, Any], plan: dict[str, Any], num_windows: int) -> Position:
    """Return where a state goes on.

    Raises:
        CheckpointError: it is of another plan; the message names both values.
    """
    if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
        found = state.get("version") if isinstance(state, dict) else state
        raise CheckpointError(f"cannot resume: found a state of version {found!r}, expected {STATE_VERSION}; start "
                              "the epoch anew")
    then = state["plan"] if isinstance(state.get("plan"), dict) else {}
    for name, now in plan.items():
        if name not in then or then[name] != now:
            raise CheckpointError(f"cannot resume: {name} was {then.get(name)!r} when the state was saved and is "
                                  f"{now!r} now; use the data and settings of then, or start the epoch anew")
    position = state.get("position")
    if not (isinstance(position, list | tuple) and len(position) == 3 and all(type(n) is int for n in position)
            and min(position) >= 0 and position[0] <= MOST_EPOCHS and position[1] < num_windows):
        raise CheckpointError(f"cannot resume: found the position {position!r}; expected epoch, window and batch, "
                              f"0 <= window < {num_windows}; start the epoch anew")
    return position[0], position[1], position[2]


def _digest(numbers: Any) -> str:
    """Return a digest of numbers: of all up to ``MOST_AT_ONCE``, else of 1,024 runs at even distances."""
    count = len(numbers)
    size = CHUNK if count <= MOST_AT_ONCE else RUN
    starts = range(0, count, CHUNK) if count <= MOST_AT_ONCE else range(0, count - size + 1, (count - size) // 1023)
    digest = hashlib.blake2b(digest_size=8)
    for start in starts:
        part = lengths_between(numbers, start, min(start + size, count))
        digest.update(part.astype("<i8", copy=False).data)
    return digest.hexdigest()
