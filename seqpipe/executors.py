"""Where the parts of an import are made: in this process, in others of this machine, or on a dask cluster.

Place in the flow: --workers, --executor -> [executors] -> collection.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

from seqpipe.errors import OptionError

SCHEME = "dask://"


@contextmanager
def open_executor(workers: int, address: str | None) -> Iterator[Executor | None]:
    """Yield what runs the jobs of an import: None for this process.

    Args:
        workers: processes of this machine.
        address: ``dask://HOST:PORT`` of a scheduler whose workers see the same files, or None.

    Raises:
        OptionError: there is no such scheduler, or dask is not installed.
    """
    if address is not None:
        with _dask(address) as executor:
            yield executor
    elif workers == 1:
        yield None
    else:
        # Not fork: it is unsafe as soon as a library of this process has a thread of its own.
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker) as executor:
            try:
                yield executor
            finally:
                executor.shutdown(wait=False, cancel_futures=True)


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it: a killed parent cannot tell its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    if not address.startswith(SCHEME):
        raise OptionError(f"--executor {address}: expected {SCHEME}HOST:PORT, the address of a dask scheduler")
    try:
        from distributed import Client
    except ImportError:
        raise OptionError(f"--executor {address}: dask is not installed; pip install 'torch-seqpipe[dask]'") from None
    try:
        client = Client(f"tcp://{address.removeprefix(SCHEME)}", timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise OptionError(f"--executor {address}: no dask scheduler answers there ({error}); start one with: dask "
                          "scheduler") from None
    with client, client.get_executor(pure=False) as executor:
        yield executor
