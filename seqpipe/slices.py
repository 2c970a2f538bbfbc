"""Cut raw files into slices that can be read one by one, in any process.

Place in the flow: raw files -> [slices] -> collection, intake.

A slice is a range of bytes of one raw file that starts where a record starts. Where it is cut
depends on the file alone, never on the workers. What cannot be cut is one slice: compressed
files, tables (a quoted cell may hold line ends), encodings in which a byte says nothing alone.
"""

from __future__ import annotations

import codecs
import mmap
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seqpipe.errors import OptionError
from seqpipe.readers.raw import RawFile

SLICE_BYTES = 1 << 25
MAX_SLICES = 1000  # of one file
TOGETHER_BYTES = 1 << 22  # of small files that one part is made of, at most
FILE_BYTES = 1 << 15  # what a file counts for at least: opening it takes the time of reading about as many

# A line end and what follows it where a record starts. In FASTQ a line with "@" two lines above one
# with "+" is a header: a sequence has neither first, and a quality line is followed by a header and a
# sequence. (Where sequences are wrapped that may fail; then the slice before ends inside a record.)
_STARTS = {
    "fasta": re.compile(rb"\n(?=>)"),
    "fastq": re.compile(rb"\n(?=@[^\n]*\n[^\n]*\n\+)"),
    "jsonl": re.compile(rb"\n(?=\{)"),
    "text": re.compile(rb"\n(?=[^\r\n])"),
}
_CODECS = re.compile(r"utf-8|ascii|iso8859-\d+|cp125\d")


@dataclass(frozen=True)
class Slice:
    """A range of bytes of one raw file.

    Attributes:
        path: the file.
        format: of the file.
        start, end: ``start <= byte < end`` on disk; end None is the end of the file.
    """

    path: Path
    format: str
    start: int = 0
    end: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its file."""
        return self.start == 0 and self.end is None

    @property
    def num_bytes(self) -> int:
        """How many bytes it has on disk: none where the file was cut before it."""
        return max((self.path.stat().st_size if self.end is None else self.end) - self.start, 0)

    def open(self, encoding: str, line: int = 0, *, replace_bytes: bool = False) -> RawFile:
        """Open the file for the lines of this slice; ``line`` lines stand before it."""
        return RawFile(self.path, encoding, start=self.start, end=self.end, line=line, replace=replace_bytes)

    def in_blocks(self, encoding: str) -> bool:
        """Say whether the slice may be read in blocks of many records."""
        return self.format in ("fasta", "fastq") and has_ascii(encoding)

    def in_columns(self, encoding: str) -> bool:
        """Say whether the slice may be read column by column, if its rows are alike."""
        return self.format in ("csv", "tsv", "jsonl") and has_ascii(encoding)

    def lines_before(self) -> int:
        """Count the lines of the file before this slice."""
        count, left = 0, self.start
        with open(self.path, "rb") as file:
            while left and (data := file.read(min(left, 1 << 20))):
                left -= len(data)
                if data.endswith(b"\r") and left:  # do not part a CRLF
                    data += file.read(1)
                    left -= 1
                count += data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")
        return count

    def onwards(self) -> Slice:
        """Return the slice from the same start to the end of the file."""
        return replace(self, end=None)


def cut(raw: RawFile, format: str) -> list[Slice]:
    """Return the slices of an open file of the format told, in order."""
    starts = [0]
    if raw.compression is None and format in _STARTS and has_ascii(raw.encoding):
        step = max(SLICE_BYTES, -(-raw.size // MAX_SLICES))
        if step < raw.size:
            with open(raw.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                while (wanted := starts[-1] + step) < len(data):
                    match = _STARTS[format].search(data, wanted - 1)
                    if match is None:
                        break
                    starts.append(match.end())
    return [Slice(raw.path, format, start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]


def together(slices: Sequence[Slice]) -> list[tuple[Slice, ...]]:
    """Return the slices, in their order, by the part that each goes into: small files of one format have one."""
    groups: list[list[Slice]] = []
    size = 0
    for slice in slices:
        cost = max(slice.num_bytes, FILE_BYTES)
        before = groups[-1][-1] if groups else None
        if (before is not None and before.is_whole and slice.is_whole and before.format == slice.format
                and size + cost <= TOGETHER_BYTES):
            groups[-1].append(slice)
            size += cost
        else:
            groups.append([slice])
            size = cost
    return list(map(tuple, groups))


def share_of(slices: Sequence[Slice], shard: str) -> list[Slice]:
    """Return the contiguous share of the slices that ``--shard I/N`` names.

    Raises:
        OptionError: it is no share, or the input is cut into fewer slices.
    """
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", shard)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise OptionError(f"--shard {shard}: expected I/N with 1 <= I <= N, such as 1/3")
    if count > len(slices):
        raise OptionError(f"--shard {shard}: this input is read in {len(slices)} pieces (files, or {SLICE_BYTES >> 20} "
                          f"MiB of a large one); take at most {len(slices)} shards")
    return list(slices[(number - 1) * len(slices) // count : number * len(slices) // count])


def has_ascii(encoding: str) -> bool:
    """Say whether a byte below 128 is that character, always, in an encoding."""
    return _CODECS.fullmatch(codecs.lookup(encoding).name) is not None
