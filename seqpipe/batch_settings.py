"""What a plan of batches depends on, beside lengths and epoch; and whether the lengths keep its budget.

Place in the flow: options -> [batch_settings] -> batching.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seqpipe.cutting import padded
from seqpipe.errors import LongSequenceError, OptionError
from seqpipe.windows import Windows

WINDOW = 2**18  # sequences planned together: a few ms of planning, some 10 MB
MIXING = 0.018
ON_LONG = ("error", "truncate", "skip", "alone")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What, beside lengths and epoch, a plan depends on.

    Attributes:
        batch_size: sequences a batch at most; None is without limit.
        max_tokens: rows x padded length at most; None is without limit. Given both, both hold.
        shuffle: another order each epoch; otherwise the store's.
        bucket: sequences of like length into one batch. Without ``shuffle`` rows and batches keep the
            store's order as far as that allows: ascending rows in a batch, batches by their first row.
        drop_last: leave out the batch that is not full. With ``max_tokens`` that is, in each window,
            the last one if it could hold one sequence more (of the shortest, with ``bucket``).
        seed: of the order; 0 or more.
        window: sequences planned together, at most.
        pad_to_multiple: padded lengths are multiples of this.
        on_long: what becomes of a sequence over ``max_tokens``: ``error``, ``truncate`` (to what fits),
            ``skip``, or ``alone`` (a batch of its own, over the budget).
        longest_first: the batch with the most padded elements comes first, so that memory runs out at
            step 1 or never: in each window, and the window with the largest of all changes places
            with the first.
        mixing: with ``shuffle`` and ``bucket``, the share of padding (about) that may be spent on letting
            sequences of nearby lengths meet: lengths as far apart as this share of the length itself
            and of the mean length count as equal. 0 is tight: equal lengths alone count as equal.
    """

    batch_size: int | None = None
    max_tokens: int | None = None
    shuffle: bool
    bucket: bool
    drop_last: bool = False
    seed: int = 0
    window: int = WINDOW
    pad_to_multiple: int = 1
    on_long: str = "error"
    longest_first: bool = False
    mixing: float = MIXING

    def __post_init__(self) -> None:
        if self.batch_size is None and self.max_tokens is None:
            raise ValueError("neither batch_size nor max_tokens; expected one of them, or both")
        for name, least in (("batch_size", 1), ("max_tokens", 1), ("seed", 0), ("window", 1), ("pad_to_multiple", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)
                                      or value < least):
                raise ValueError(f"{name}={value!r}; expected a whole number, {least} or more")
        if self.max_tokens is not None and self.max_tokens < self.pad_to_multiple:
            raise ValueError(f"max_tokens={self.max_tokens} is less than pad_to_multiple={self.pad_to_multiple}: no "
                             "batch fits; raise the one or lower the other")
        for name in ("shuffle", "bucket", "drop_last", "longest_first"):
            if not isinstance(value := getattr(self, name), bool | np.bool_):
                raise ValueError(f"{name}={value!r}; expected True or False")
        if self.on_long not in ON_LONG:
            raise ValueError(f"on_long={self.on_long!r}; expected one of {', '.join(map(repr, ON_LONG))}")
        if not (isinstance(self.mixing, int | float | np.number) and 0 <= self.mixing < math.inf):
            raise ValueError(f"mixing={self.mixing!r}; expected a number, 0 or more")

    @property
    def longest_allowed(self) -> int | None:
        """The longest sequence that fits ``max_tokens``, and the length to which ``truncate`` cuts."""
        return None if self.max_tokens is None else self.max_tokens // self.pad_to_multiple * self.pad_to_multiple

    def windows(self, num_sequences: int, epoch: int) -> Windows:
        """Return the windows of an epoch of N >= 1 sequences."""
        return Windows(num_sequences, self.window, self.batch_size or 1, self.shuffle, self.seed, epoch)


def long_error(index: int, length: int, settings: PlanSettings) -> LongSequenceError:
    """Return the error that names a sequence over the budget."""
    rounded = f", {padded(np.array(length), settings.pad_to_multiple)} when padded to a multiple of " \
        f"{settings.pad_to_multiple}" if settings.pad_to_multiple > 1 else ""
    error = LongSequenceError(
        f"sequence {index} has length {length}{rounded}, over max_tokens={settings.max_tokens}; raise max_tokens, or "
        "choose on_long='truncate', 'skip' or 'alone'"
    )
    error.index = index
    return error


def check_budget(shortest: int, longest: int, longest_index: int, settings: PlanSettings) -> None:
    """Refuse a budget that the data set cannot keep, before any batch is planned.

    Raises:
        LongSequenceError: the longest sequence is over the budget, and ``on_long`` is ``error``.
        OptionError: not one sequence fits, and ``on_long`` would skip them all.
    """
    if settings.longest_allowed is None or longest <= settings.longest_allowed:
        return
    if shortest > settings.longest_allowed and settings.on_long in ("error", "skip"):
        raise OptionError(f"max_tokens={settings.max_tokens} is below the shortest of all sequences, of length "
                          f"{shortest}: no batch fits; raise max_tokens, or choose on_long='truncate' or 'alone'")
    if settings.on_long == "error":
        raise long_error(longest_index, longest, settings)
