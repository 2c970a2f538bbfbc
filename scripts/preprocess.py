"""Turn raw sequence files into one store.

    python scripts/preprocess.py data/amp/amp.fasta --labels data/amp/labels.tsv --split column:split --out amp.h5
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from seqpipe.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    return run("preprocess", sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
