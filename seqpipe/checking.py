"""Check the bytes of an array where they are touched first.

Place in the flow: store -> [checking] -> pieces.

An array has one CRC-32 per 64 KiB block. A process checks a block the first time it reads from
it, and with the CRC what the numbers of the block must be: ascending, tokens of the alphabet,
finite. One byte a block remembers what is done; where all is done, reading tests one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from seqpipe.layout import CHECKSUM_BLOCK, crc32, num_blocks

BLOCK_BITS = CHECKSUM_BLOCK.bit_length() - 1
COUNTED = 1 << 20  # blocks: of a larger array it is not counted how many are still to be checked


@dataclass(frozen=True)
class Rule:
    """What numbers must be.

    Attributes:
        expected: in words.
        first_misfit: returns the place of the first number of a part that is not so, or -1.
        span: how many numbers show what is wrong.
    """

    expected: str
    first_misfit: Callable[[np.ndarray], int]
    span: int = 1


def within(name: str, low: int, high: int) -> Rule:
    """Return the rule ``low <= number < high``."""
    def first_misfit(part: np.ndarray) -> int:
        if not part.size or (part.min() >= low and part.max() < high):
            return -1
        return int(np.argmax((part < low) | (part >= high)))
    return Rule(f"{low} <= {name} < {high}", first_misfit)


def finite(allow_nan: bool) -> Rule:
    """Return the rule that numbers are finite, or not infinite."""
    def first_misfit(part: np.ndarray) -> int:
        half = len(part) + 1 >> 1
        # No product or sum hides what is not finite. Of halves, as BLAS starts threads for 10,000 numbers.
        if not half or part.dtype.char in "fd" and math.isfinite(np.vdot(part[:half], part[-half:])):
            return -1
        bad = np.isinf(part) if allow_nan else ~np.isfinite(part)
        at = int(bad.argmax())  # the first True, found sooner than by any()
        return at if bad[at] else -1
    return Rule("numbers that are not infinite" if allow_nan else "finite numbers", first_misfit)


def ascending(expected: str, limit: int, *, strict: bool) -> Rule:
    """Return the rule that numbers ascend and do not pass ``limit``."""
    def first_misfit(part: np.ndarray) -> int:
        if not part.size:
            return -1
        wrong = part[1:] <= part[:-1] if strict else part[1:] < part[:-1]
        if wrong.any():
            return int(np.argmax(wrong))
        return int(np.argmax(part > limit)) if part[-1] > limit else -1
    return Rule(expected, first_misfit, span=2)


class Checked:
    """One array, its blocks checked on their first touch.

    Args:
        array: contiguous.
        checksums: (blocks,) uint32; None where blocks are only fetched, or nothing is to be done.
        rule: what its numbers must be, or None.
        refuse: makes the error, given what is wrong and from which to which byte.
        will_need: told the first bytes of the blocks that will be read in a moment.

    Attributes:
        array: as given.
        left: 0 once every block is checked; readers then need not ask.
    """

    def __init__(
        self, array: np.ndarray, checksums: np.ndarray | None, rule: Rule | None = None,
        refuse: Callable[[str, int, int], Exception] | None = None,
        will_need: Callable[[list[int]], None] | None = None,
    ) -> None:
        self.array = array
        self._flat = array.reshape(-1)
        self._bytes = self._flat.view(np.uint8).data
        self._width = array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        self._checksums, self._rule, self._refuse, self._will_need = checksums, rule, refuse, will_need
        # One more than there are: the block after the last, which holds nothing, is always good.
        self._done = np.zeros(num_blocks(array.nbytes) + 1, bool)
        self._done[-1] = True
        self.left = 0 if checksums is None and will_need is None else len(self._done) - 1

    def is_done(self, index: np.ndarray) -> np.ndarray:
        """Say of some items, by an array of their numbers, whether nothing is to be done for their blocks."""
        return self._done[index * self._width >> BLOCK_BITS] if self.left else np.ones(len(index), bool)

    def touch(self, start: int, stop: int) -> None:
        """Check the blocks of the items ``start`` to ``stop``, of which there is one at least.

        Raises:
            StoreError: a block is damaged.
        """
        first, last = start * self._width >> BLOCK_BITS, stop * self._width - 1 >> BLOCK_BITS
        if not self._done[first : last + 1].all():
            self._check(first + np.flatnonzero(~self._done[first : last + 1]))

    def touch_items(self, index: np.ndarray) -> None:
        """Check the blocks of some items, by an array of their numbers."""
        blocks = index * self._width >> BLOCK_BITS
        done = self._done[blocks]
        if not done.all():
            self._check(np.unique(blocks[~done]))

    def touch_ranges(self, starts: np.ndarray, stops: np.ndarray, longest: int) -> None:
        """Check the blocks of ranges of items.

        Args:
            starts, stops: (B,) int64.
            longest: the most items of a range.
        """
        first, last = starts * self._width >> BLOCK_BITS, stops * self._width >> BLOCK_BITS
        short = longest * self._width <= CHECKSUM_BLOCK  # then a range lies in two blocks at most
        # The block of the item after a range, which costs less to find than its last, is seldom another one.
        if short and self._done[first].all() and self._done[last].all():
            return
        some = stops > starts
        first, last = first[some], stops[some] * self._width - 1 >> BLOCK_BITS
        blocks = [first, last] if short else [np.empty(0, np.int64), *map(np.arange, first, last + 1)]
        wanted = np.concatenate(blocks)
        self._check(np.unique(wanted[~self._done[wanted]]))

    def _check(self, blocks: np.ndarray) -> None:
        starts = (blocks << BLOCK_BITS).tolist()
        if self._will_need is not None:
            self._will_need(starts)
        if self._checksums is not None:
            self._verify(blocks, starts, self._checksums[blocks].tolist())
        self._done[blocks] = True
        if len(self._done) <= COUNTED:
            self.left = len(self._done) - int(np.count_nonzero(self._done))

    def _verify(self, blocks: np.ndarray, starts: list[int], checksums: list[int]) -> None:
        assert self._refuse is not None
        for block, start, crc in zip(blocks.tolist(), starts, checksums, strict=True):
            data = self._bytes[start : start + CHECKSUM_BLOCK]
            if crc32(data) != crc:
                stop = start + len(data)
                raise self._refuse(f": bytes {start} to {stop} (block {block}) fail their CRC-32", start, stop)
            if self._rule is not None:
                size = self._flat.itemsize
                first = start // size
                at = self._rule.first_misfit(self._flat[first : first + len(data) // size])
                if at >= 0:
                    raise self._misfit(self._rule, first + at)

    def _misfit(self, rule: Rule, at: int) -> Exception:
        assert self._refuse is not None
        found = self._flat[at : at + rule.span].tolist()
        place = f"[{at}:{at + len(found)}]" if len(found) > 1 else f"[{at}]"
        size = self._flat.itemsize
        finding = f"{place} is {', '.join(map(str, found))}; expected {rule.expected}"
        return self._refuse(finding, at * size, at * size + size)
