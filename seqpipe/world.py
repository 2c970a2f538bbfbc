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
    found = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    texts = found.get("RANK", "0"), found.get("WORLD_SIZE", "1")
    rank, size = (int(text) if text.isdecimal() else -1 for text in texts)
    if not 0 <= rank < size or (size > 1 and "RANK" not in found):
        raise OptionError(f"found {found} in the environment; expected 0 <= RANK < WORLD_SIZE, as torchrun sets them, "
                          "or neither; unset them, or give rank and world_size")
    return rank, size
