"""The sequences of all parts as one flat array, encoded by what the whole input holds.

Place in the flow: spools of the parts -> [values] -> /values, /offsets and the header's encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from seqpipe.alphabet import Alphabet, choose_alphabet
from seqpipe.encoding import code_bytes
from seqpipe.parts import Part, Rows, sequences_of
from seqpipe.writer import Content


class Values:
    """What the parts' sequences become in the store.

    Args:
        parts: in order, all of one kind.
        alphabet: ``--alphabet``.
        case: ``--case``.
        keep: (N,) bool, the records kept; None keeps all.
    """

    def __init__(self, parts: Sequence[Part], alphabet: str, case: str, keep: np.ndarray | None) -> None:
        states = [part.state["encoding"] for part in parts]
        self.lengths = Rows(parts, "lengths", keep).array().astype(np.int64)
        self.num_channels: int = states[0].get("num_channels", 0)
        self.kind = "features" if self.num_channels else "tokens"
        self._is_text = states[0]["kind"] == "symbols"
        self._spool = sequences_of(parts, keep)
        if self._is_text:
            found = frozenset("".join(state["symbols"] for state in states))
            self._alphabet = replace(choose_alphabet(alphabet, found), case=case)
            self._codes = states[0]["codes"]  # the same in all parts
        elif states[0]["kind"] == "ints":
            self._alphabet = Alphabet.of_ints(max(state["largest"] for state in states))
        elif not self.num_channels:
            self._alphabet = Alphabet.from_dict(states[0])

    def header(self) -> dict[str, Any]:
        """Return the header's ``encoding``."""
        if self.num_channels:
            return {"dtype": "float32", "num_channels": self.num_channels}
        return self._alphabet.to_dict()

    def content(self) -> Content:
        total = int(self.lengths.sum())
        if self.num_channels:
            blocks = (block.reshape(-1, self.num_channels) for block in self._spool.blocks())
            return Content((total, self.num_channels), np.dtype("<f4"), blocks)
        return Content((total,), self._alphabet.dtype, self._tokens())

    def _tokens(self) -> Iterator[np.ndarray]:
        dtype = self._alphabet.dtype
        if self._is_text and self._alphabet.symbols != self._codes:
            order = code_bytes(self._codes)
            yield from (self._alphabet.encode_utf8(block.tobytes().translate(order)) for block in self._spool.blocks())
        else:  # the codes are the tokens
            yield from (block if block.dtype == dtype else block.astype(dtype) for block in self._spool.blocks())

    def repeats(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the sequences that equal an earlier one, and the first each equals."""
        return self._spool.repeats()

    def features(self, counted: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the (rows, C) features of some sequences, end to end in blocks; ``counted`` is (N,) bool."""
        first = 0
        for items, lengths in self._spool.blocks_of_rows():
            yield items.reshape(-1, self.num_channels)[np.repeat(counted[first : first + len(lengths)], lengths)]
            first += len(lengths)
