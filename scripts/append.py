"""Add stores to a manifest.

    python scripts/append.py all.seqpipe.json part3.h5
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from seqpipe.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    return run("append", sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
