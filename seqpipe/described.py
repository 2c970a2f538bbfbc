"""What the header of a store says its sequences are.

Place in the flow: header -> [described] -> store, sharded.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from seqpipe.alphabet import Alphabet


class Described:
    """Sequences that a JSON header describes.

    Attributes:
        header: the JSON header, found good.
    """

    header: dict[str, Any]

    @property
    def kind(self) -> str:
        """``tokens`` or ``features``."""
        return str(self.header["kind"])

    @cached_property
    def alphabet(self) -> Alphabet | None:
        """The alphabet of tokens; None for features."""
        return Alphabet.from_dict(self.header["encoding"]) if self.kind == "tokens" else None

    @property
    def classes(self) -> list[str]:
        """Class names by class number; empty without classes."""
        return list(self.header["classes"])

    @property
    def channels(self) -> list[str]:
        """Channel names; empty for tokens."""
        return list(self.header["channels"])
