"""Predict with a trained network.

    python scripts/predict.py --checkpoint runs/amp-001/best.pt --input data/amp/amp.fasta --out predictions.tsv
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from seqpipe.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    return run("predict", sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
