"""Say what is inside a store.

    python scripts/describe.py amp.h5
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from seqpipe.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    return run("describe", sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
