"""Measure seqpipe beside what people use today.

    python scripts/bench.py store
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from seqpipe.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    return run("bench", sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
