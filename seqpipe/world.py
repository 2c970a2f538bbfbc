"""The place of this process among those that train together.

Place in the flow: torchrun's RANK and WORLD_SIZE, torch's process group -> [world] -> dataloader, training.
"""

from __future__ import annotations

import os

import torch.distributed

from seqpipe.errors import OptionError


def rank_and_size() -> tuple[int, int]:
    """Return rank and number of ranks: of the process group, else as torchrun sets them, else (0, 1).

    Raises:
        OptionError: RANK or WORLD_SIZE is set to no such number, only one of them is, or the process group
            that was initialised has others.
    """
    found = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    texts = found.get("RANK", "0"), found.get("WORLD_SIZE", "1")
    rank, size = (int(text) if text.isdecimal() else -1 for text in texts)
    if not 0 <= rank < size or (size > 1 and "RANK" not in found):
        raise OptionError(f"found {found} in the environment; expected 0 <= RANK < WORLD_SIZE, as torchrun sets them, "
                          "or neither; unset them, or give rank and world_size")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        group = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if found and group != (rank, size):
            raise OptionError(f"found {found} in the environment, and rank {group[0]} of {group[1]} in torch's process "
                              "group; expected the same in both; unset the variables, or give rank and world_size")
        return group
    return rank, size
