"""Errors a user can mend. Every message says where, what was found, what was expected, and what to do.

Each class takes one positional argument, the whole message: a DataLoader worker can then
rebuild the error, type and text, in the parent process.
"""

from __future__ import annotations

from pathlib import Path


class SeqpipeError(Exception):
    """Something is wrong with a file, an option or the machine, and the message says what.

    Attributes:
        path: the file concerned, or None. Also part of the message.
        line: 1-based line of the decompressed text, or None. Also part of the message.
    """

    def __init__(self, message: str, *, path: Path | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.line = line


class RawFormatError(SeqpipeError):
    """A raw file breaks its format, or holds something the options do not allow."""


class StoreError(SeqpipeError):
    """A file is not a seqpipe store, or a damaged one."""


class CheckpointError(SeqpipeError):
    """A checkpoint cannot be read, or does not fit what it is used for."""


class OptionError(SeqpipeError):
    """An option does not fit the data or the machine."""


class LongSequenceError(OptionError):
    """A sequence does not fit the budget of a batch.

    Attributes:
        index: of the sequence in its data set, or None. Also part of the message.
    """

    index: int | None = None


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Return a number of things in words: 1 channel, 2 channels, 3 classes."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
