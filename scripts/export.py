"""Write the records of a store as FASTA, CSV or JSON Lines.

    python scripts/export.py seqs.h5 --format jsonl --out seqs.jsonl.gz
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from seqpipe.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    return run("export", sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
