"""Measure padding strategies on your own data.

    python scripts/compare_padding.py --data amp.h5 --out comparison
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from seqpipe.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    return run("compare-padding", sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
