"""Measure seqpipe beside what people use today, on this machine, in one run.

Place in the flow: BenchOptions -> [bench] -> bench_import, bench_store or bench_batches -> a table.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from seqpipe.options import BenchOptions


def bench(options: BenchOptions) -> Any:
    """Run one benchmark and return its table; what it needs is imported only now.

    Raises:
        SeqpipeError: there is no room for its data, or a loader gives wrong batches.
    """
    return import_module(f"seqpipe.bench_{options.subject}").run(options)
