"""Decide which split a record belongs to.

Place in the flow: hashes of ids or groups, classes, column texts, file names -> [splits] -> /splits/NAME.

Pure: drawn by hash, a record's split depends on nothing but its id (or group) and the seed, so that
it stays the same when records are added. Stratified, it depends on the whole input.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from seqpipe.errors import OptionError
from seqpipe.hashing import fractions

SPLIT_NAMES = ("train", "valid", "test")
ALIASES = {"val": "valid", "dev": "valid", "validation": "valid", "training": "train", "testing": "test"}
MAX_FOLDS = 1000
WHOLE = "all"  # what the header calls the whole store, so no split's name


@dataclass(frozen=True)
class SplitRule:
    """A parsed ``--split``, with ``--split-by`` and ``--folds``.

    Attributes:
        kind: what decides: chance, a column, the file's name, or nothing.
        by: for random: what is drawn, each record, the records of a class, or whole groups.
        group: the column of groups; where the split is not random, it is only checked.
        shares: for random without folds: the share of train, valid and test, summing to 1.
        folds: for random: how many folds of one size, or 0.
        column: for column: its name.
        seed: for random: keys the hash.
    """

    kind: Literal["random", "column", "file", "none"]
    by: Literal["random", "stratified", "group"] = "random"
    group: str = ""
    shares: tuple[float, ...] = ()
    folds: int = 0
    column: str = ""
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The splits of a random rule, by number."""
        return tuple(f"fold{k}" for k in range(self.folds)) if self.folds else SPLIT_NAMES[: len(self.shares)]


def parse_split(option: str, seed: int, *, by: str = "random", folds: int = 0) -> SplitRule:
    """Parse ``--split``, ``--split-by`` and ``--folds``.

    Raises:
        OptionError: an option is none of what it may be, the shares do not sum to 1, or the options
            do not fit each other.
    """
    kind, _, group = by.partition(":")
    if by not in ("random", "stratified") and (kind != "group" or not group):
        raise OptionError(f"--split-by {by}: expected random, stratified or group:COLUMN")
    if folds and not 2 <= folds <= MAX_FOLDS:
        raise OptionError(f"--folds {folds}: expected 2 or more, up to {MAX_FOLDS}")
    column = option.removeprefix("column:") if option.startswith("column:") else ""
    if option in ("file", "none") or column:
        for name, given in (("--folds", folds), ("--split-by stratified", kind == "stratified")):
            if given:
                raise OptionError(f"{name}: --split {option} leaves nothing to draw; take one of the two out")
        return SplitRule("column" if column else option, group=group, column=column)  # type: ignore[arg-type]
    rule = SplitRule("random", kind, group, _parse_shares(option), seed=seed)  # type: ignore[arg-type]
    return replace(rule, shares=(), folds=folds) if folds else rule


def _parse_shares(option: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(share) for share in option.split(","))
    except ValueError:
        shares = ()
    if not (2 <= len(shares) <= 3 and min(shares) >= 0 and abs(sum(shares) - 1) <= 1e-6):
        raise OptionError(
            f"--split {option}: expected two or three shares of train,valid,test that sum to 1 "
            "(0.8,0.1,0.1), column:NAME, file or none"
        )
    return shares


def draw_by_hash(rule: SplitRule, hashes: np.ndarray) -> np.ndarray:
    """Return (n,) uint16 numbers of ``rule.names``, each from one hash alone.

    So a record keeps its split when others are added, records of one hash (of their group) stand in
    one split, and shares are met about, as chance has it.
    """
    drawn = fractions(hashes)
    if rule.folds:
        return (drawn * rule.folds).astype(np.uint16)
    # Rounding can leave the sum a hair below 1: the last share that is not empty takes the rest.
    last = max(i for i, share in enumerate(rule.shares) if share > 0)
    return np.searchsorted(np.cumsum(rule.shares[:last]), drawn, side="right").astype(np.uint16)


def draw_by_class(rule: SplitRule, classes: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Return (n,) uint16 numbers of ``rule.names``, with the shares of the rule in each class.

    In each class every split has its share rounded up or down; what rounding owes a split in one
    class it is given in a later one. The first split with a share (train) is never left without a
    class. Which records of a class go where follows from their hashes, not from their order.

    Args:
        rule: random.
        classes: (n,) class numbers.
        hashes: (n,) uint64, of (seed, id).
    """
    order = np.lexsort((hashes, classes))
    numbers = np.empty(len(order), np.uint16)
    if rule.folds:
        numbers[order] = np.arange(len(order)) % rule.folds
        return numbers
    shares = np.array(rule.shares)
    first = int(np.argmax(shares > 0))
    owed = np.zeros(len(shares))  # what each split has been given too little so far
    start = 0
    for count in np.bincount(classes[order]).tolist():
        exact = count * shares / shares.sum()
        given = np.floor(exact + 1e-9).astype(np.int64)
        owed += exact - given
        may = exact - given > 1e-9
        for _ in range(count - int(given.sum())):
            chosen = first if not given[first] and may[first] else int(np.argmax(np.where(may, owed, -np.inf)))
            given[chosen] += 1
            owed[chosen] -= 1
            may[chosen] = False
        numbers[order[start : start + count]] = np.repeat(np.arange(len(shares), dtype=np.uint16), given)
        start += count
    return numbers


@lru_cache
def split_name(text: str) -> str:
    """Return the name of a split as a column spells it: ``Train``, ``val`` and the like are understood.

    Raises:
        ValueError: it cannot be the name of a split.
    """
    name = ALIASES.get(text.strip().lower(), text.strip())
    name = name.lower() if name.lower() in SPLIT_NAMES else name
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name) or name.lower() == WHOLE:
        raise ValueError(
            f"found {text[:100]!r} as the split; expected train, valid, test, or another name of letters, "
            f"digits, _ and - (but not {WHOLE!r}, the whole store); correct it, or use another --split"
        )
    return name


@lru_cache
def split_of_file(file_name: str) -> str:
    """Return the split that a file's name says.

    Raises:
        ValueError: it says none, or two.
    """
    words = {ALIASES.get(word, word) for word in re.split(r"[^a-z]+", file_name.lower())}
    names = [name for name in SPLIT_NAMES if name in words]
    if len(names) != 1:
        raise ValueError(
            "--split file expects one of _TRAIN, _VALID or _TEST in the file's name; rename it, or use "
            "another --split"
        )
    return names[0]
