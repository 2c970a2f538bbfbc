"""Write many stores into one file, or a manifest of them.

    python scripts/merge.py part1.h5 part2.h5 --out all.seqpipe.json
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from seqpipe.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    return run("merge", sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
