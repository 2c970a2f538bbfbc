"""The place of this process among those that train together.

Place in the flow: torchrun's RANK and WORLD_SIZE -> [world] -> loading, training.
"""

from __future__ import annotations

import os

from seqpipe.errors import OptionError


def rank_and_size() -> tuple[int, int]:
    """Return rank and number of ranks as torchrun sets them, (0, 1) where it set none.

    Raises:
        OptionError: RANK or WORLD_SIZE is set to no such number, or only one of them is.
    """
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and size in (None, "1"):
        return 0, 1
    try:
        assert rank is not None and size is not None
        numbers = int(rank), int(size)
        assert 0 <= numbers[0] < numbers[1]
    except (AssertionError, ValueError):
        raise OptionError(f"found RANK={rank} and WORLD_SIZE={size} in the environment; expected 0 <= RANK < WORLD_SIZE "
                          "as torchrun sets them, or neither; unset them, or give rank and world_size") from None
    return numbers
