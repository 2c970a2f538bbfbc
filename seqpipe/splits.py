"""Decide which split a record belongs to.

Place in the flow: Record (id, columns, file name) -> [splits] -> /splits/NAME of the store.

Pure: a record's split depends on nothing but the record, the option and the seed, so that it
stays the same when records are added.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from seqpipe.errors import OptionError
from seqpipe.records import Record

SPLIT_NAMES = ("train", "valid", "test")
ALIASES = {"val": "valid", "dev": "valid", "validation": "valid", "training": "train", "testing": "test"}


@dataclass(frozen=True)
class SplitRule:
    """A parsed ``--split``.

    Attributes:
        kind: what decides: a hash of the id, a column, the file's name, or nothing.
        shares: for random: the share of train, valid and test, summing to 1.
        column: for column: its name.
        seed: for random: keys the hash.
    """

    kind: Literal["random", "column", "file", "none"]
    shares: tuple[float, ...] = ()
    column: str = ""
    seed: int = 0

    def split_of(self, record: Record, record_id: str, columns: dict[str, str]) -> str | None:
        """Return the split of one record, None for ``none``.

        Args:
            record: where it came from.
            record_id: its id in the store.
            columns: its columns, those of a joined table among them.

        Raises:
            RawFormatError: the column is missing or empty, or the file name has no split in it.
        """
        if self.kind == "random":
            return pick_share(hash_fraction(self.seed, record_id), self.shares)
        if self.kind == "column":
            if self.column not in columns:
                raise record.error(
                    f"no column {self.column!r} for --split column:{self.column}; "
                    f"the columns are {sorted(columns)}"
                )
            return self._named(record, columns[self.column], f"column {self.column!r}")
        if self.kind == "file":
            words = re.split(r"[^a-z]+", record.path.name.split(".")[0].lower())
            names = [word for word in words if ALIASES.get(word, word) in SPLIT_NAMES]
            if len(names) != 1:
                raise record.error(
                    f"--split file expects one of _TRAIN, _VALID or _TEST in the file's name, "
                    f"found {record.path.name!r}; rename it, or use another --split"
                )
            return self._named(record, names[0], "the file's name")
        return None

    def _named(self, record: Record, text: str, where: str) -> str:
        name = ALIASES.get(text.strip().lower(), text.strip())
        name = name.lower() if name.lower() in SPLIT_NAMES else name
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise record.error(
                f"{where} holds {text!r} as the split; expected train, valid, test, "
                "or a name of letters, digits, _ and -"
            )
        return name


def parse_split(option: str, seed: int) -> SplitRule:
    """Parse ``--split``: ``0.8,0.1,0.1``, ``column:NAME``, ``file`` or ``none``.

    Raises:
        OptionError: it is none of these, or the shares do not sum to 1.
    """
    if option in ("file", "none"):
        return SplitRule(option)  # type: ignore[arg-type]
    if option.startswith("column:") and len(option) > len("column:"):
        return SplitRule("column", column=option.removeprefix("column:"))
    try:
        shares = tuple(float(share) for share in option.split(","))
    except ValueError:
        shares = ()
    if not 2 <= len(shares) <= 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise OptionError(
            f"--split {option}: expected shares of train,valid,test that sum to 1 (0.8,0.1,0.1), "
            "column:NAME, file or none"
        )
    return SplitRule("random", shares=shares, seed=seed)


def hash_fraction(seed: int, text: str) -> float:
    """Return a number 0 <= x < 1 that depends on (seed, text) alone, the same on every machine."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, salt=seed.to_bytes(8, "little"))
    return (int.from_bytes(digest.digest(), "little") >> 11) / 2**53


def pick_share(fraction: float, shares: tuple[float, ...]) -> str:
    """Return the split whose share of [0, 1) holds ``fraction``."""
    end = 0.0
    for name, share in zip(SPLIT_NAMES, shares, strict=False):
        end += share
        if fraction < end:
            return name
    # Rounding can leave the sum a hair below 1: the last share that is not empty takes the rest.
    return [name for name, share in zip(SPLIT_NAMES, shares, strict=False) if share > 0][-1]
