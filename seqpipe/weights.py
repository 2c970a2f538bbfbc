"""Draw sequences by weight, with replacement: class-balanced, or by a column.

Place in the flow: labels or a column -> [weights] -> batching.

Pure NumPy. An epoch of a data set of N sequences is N draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqpipe.errors import OptionError


def balanced_weights(labels: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Return weights with which every class is drawn equally often.

    Args:
        labels: (N,) class numbers, 0 <= label < len(classes).
        classes: the names of all classes.

    Returns:
        (N,) float64.

    Raises:
        OptionError: the labels are no class numbers, or a class has no members.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise OptionError(f"balanced sampling: the labels are {labels.dtype} of shape {labels.shape}; expected one "
                          "class number a sequence; use weighted sampling by a column")
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
        wrong = int(np.flatnonzero((labels < 0) | (labels >= len(classes)))[0])
        raise OptionError(f"balanced sampling: sequence {wrong} has class number {labels[wrong]}; expected "
                          f"0 <= number < {len(classes)}")
    counts = np.bincount(labels, minlength=len(classes))
    if len(empty := np.flatnonzero(counts == 0)):
        raise OptionError(f"balanced sampling: class {classes[empty[0]]!r} has no member among the {len(labels)} "
                          "sequences, so it cannot be drawn; use uniform sampling, or split anew (stratified)")
    return 1 / counts[labels]


def cumulative_weights(weights: np.ndarray, num_sequences: int) -> np.ndarray:
    """Return the running sum of weights, (N,) float64, from which ``draw`` draws.

    Raises:
        OptionError: a weight is negative, infinite or NaN, all are 0, or there are not N numbers.
    """
    weights = np.asarray(weights)
    if weights.shape != (num_sequences,) or weights.dtype.kind not in "iufb":
        raise OptionError(f"weights: found {weights.dtype} of shape {weights.shape}; expected one number for each of "
                          f"the {num_sequences} sequences")
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.cumsum(weights, dtype=np.float64)
    # A sum shows NaN and infinity of any part: no second array of N is needed to look for them.
    if not np.isfinite(sums[-1]) or weights.min() < 0:
        wrong = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
        if not len(wrong):
            raise OptionError("weights: their sum is too large for a number; divide them all by the largest")
        raise OptionError(f"weights: sequence {wrong[0]} has the weight {weights[wrong[0]]}; expected a finite number, "
                          "0 or more")
    if sums[-1] == 0:
        raise OptionError(f"weights: all {num_sequences} are 0; expected at least one above 0")
    return sums


def draw(sums: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return the sequences that uniform numbers choose.

    Args:
        sums: (N,) from ``cumulative_weights``.
        uniform: (k,) float64, 0 <= number < 1.

    Returns:
        (k,) int64 indices; a sequence of weight 0 is never among them.
    """
    # Rounding may bring a number up to the sum itself: the last sequence with a weight is meant.
    last = int(np.searchsorted(sums, sums[-1]))
    return np.minimum(np.searchsorted(sums, uniform * sums[-1], side="right"), last)
