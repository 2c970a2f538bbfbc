"""Find what stands on both sides of a split: identical sequences, and groups.

Place in the flow: splits of an import -> [leakage] -> its summary; seqs.h5 -> store -> [leakage] -> describe.
"""

from __future__ import annotations

import numpy as np


def parted(again: np.ndarray, first: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """Return the first rows, ascending, of what stands in more than one split.

    Args:
        again, first: rows that equal an earlier row, and the first row each equals.
        splits: (N,) the number of each row's split.
    """
    return np.unique(first[splits[again] != splits[first]])
