"""Read plain text: one sequence a line, as it stands.

Place in the flow: RawFile -> [text] -> Record.
"""

from __future__ import annotations

from collections.abc import Iterator

from seqpipe.readers.raw import BLANK, RawFile
from seqpipe.records import Record


def read_text(raw: RawFile) -> Iterator[Record]:
    """Yield one record per line, without an id. Empty lines are skipped and counted, white space is kept."""
    for line in raw.lines():
        if line:
            yield Record(None, line, {}, raw.path, raw.line, raw.line)
        else:
            raw.counts[BLANK] += 1
