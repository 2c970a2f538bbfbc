"""Decide which split a record belongs to.

Place in the flow: Record (id, columns, file name) -> [splits] -> /splits/NAME of the store.

Pure: a record's split depends on nothing but the record, the option and the seed, so that it
stays the same when records are added.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import Literal

from seqpipe.errors import OptionError

SPLIT_NAMES = ("train", "valid", "test")
ALIASES = {"val": "valid", "dev": "valid", "validation": "valid", "training": "train", "testing": "test"}
WHOLE = "all"  # what the header calls the whole store, so no split's name


@dataclass(frozen=True)
class SplitRule:
    """A parsed ``--split``.

    Attributes:
        kind: what decides: a hash of the id, a column, the file's name, or nothing.
        shares: for random: the share of train, valid and test, summing to 1.
        ends: for random: where in [0, 1) the share of each split ends.
        column: for column: its name.
        seed: for random: keys the hash.
    """

    kind: Literal["random", "column", "file", "none"]
    shares: tuple[float, ...] = ()
    ends: tuple[float, ...] = ()
    column: str = ""
    seed: int = 0

    def split_of(self, record_id: str, file_name: str, columns: dict[str, str]) -> str | None:
        """Return the split of one record, None for ``none``.

        Args:
            record_id: its id in the store.
            file_name: base name of the file it came from.
            columns: its columns, those of a joined table among them.

        Raises:
            ValueError: the column or the file's name holds no name of a split.
        """
        if self.kind == "random":
            return SPLIT_NAMES[bisect_right(self.ends, hash_fraction(self.seed, record_id))]
        if self.kind == "column":
            return split_name(columns[self.column])
        return split_of_file(file_name) if self.kind == "file" else None


def parse_split(option: str, seed: int) -> SplitRule:
    """Parse ``--split``: ``0.8,0.1,0.1``, ``column:NAME``, ``file`` or ``none``.

    Raises:
        OptionError: it is none of these, or the shares do not sum to 1.
    """
    if option == "file":
        return SplitRule("file")
    if option == "none":
        return SplitRule("none")
    if option.startswith("column:") and len(option) > len("column:"):
        return SplitRule("column", column=option.removeprefix("column:"))
    try:
        shares = tuple(float(share) for share in option.split(","))
    except ValueError:
        shares = ()
    if not (2 <= len(shares) <= 3 and min(shares) >= 0 and abs(sum(shares) - 1) <= 1e-6):
        raise OptionError(
            f"--split {option}: expected two or three shares of train,valid,test that sum to 1 "
            "(0.8,0.1,0.1), column:NAME, file or none"
        )
    # Rounding can leave the sum a hair below 1: the last share that is not empty takes the rest.
    last = max(i for i, share in enumerate(shares) if share > 0)
    ends = tuple(end if i < last else math.inf for i, end in enumerate(accumulate(shares)))
    return SplitRule("random", shares=shares, ends=ends, seed=seed)


def hash_fraction(seed: int, text: str) -> float:
    """Return a number 0 <= x < 1 that depends on (seed, text) alone, the same on every machine."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, salt=seed.to_bytes(8, "little"))
    return (int.from_bytes(digest.digest(), "little") >> 11) / 2**53


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
