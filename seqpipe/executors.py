"""Where the parts of an import are made: in this process, with others of this machine, or on a dask cluster.

Place in the flow: --workers, --executor -> [executors] -> collection.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any

from seqpipe.errors import OptionError, SeqpipeError

SCHEME = "dask://"
POLL = 0.2  # seconds between two looks at the workers


class Crew:
    """Does jobs in this process and in others, each where somebody is free; they begin in their order, about.

    Args:
        executor: has the others; None where there are none.
        at_once: how many jobs the executor is given before one of them has ended; None gives it
            all of them, and this process does none.

    Attributes:
        seconds: of processor time that others took for the jobs that were finished.
    """

    def __init__(self, executor: Executor | None = None, at_once: int | None = 0) -> None:
        self._executor, self._at_once = executor, at_once
        self.seconds = 0.0
        self._guard = threading.Lock()
        self._waiting: deque[int] = deque()
        self._futures: dict[int, Future[float]] = {}
        self._done: dict[int, SeqpipeError | None] = {}  # in this process, before they were asked for

    def start(self, run: Callable[[Any], None], jobs: Mapping[int, Any]) -> None:
        """Have the others begin.

        Args:
            run: does a job; can be pickled.
            jobs: by number, in order.
        """
        self._run, self._jobs = run, jobs
        self._waiting.extend(jobs)
        if self._at_once is None:
            for _ in jobs:
                self._hand_out()
        elif self._at_once and len(jobs) > 1:
            threading.Thread(target=self._wake, daemon=True).start()  # this process need not wait for their start

    def finish(self, number: int, here: Callable[[Any], None], meanwhile: Callable[[], None]) -> None:
        """Return when a job is done; while others are at it, do later ones here. Call it in the order of the jobs.

        Args:
            number: of the job.
            here: does a job in this process.
            meanwhile: called now and then where there is nothing to do but wait.

        Raises:
            Exception: that of the job, or one of ``here`` that is no SeqpipeError of a later job.
        """
        while number not in self._done:
            chosen = number
            with self._guard:
                future = self._futures.get(number)
                if future is None and number in self._waiting:
                    self._waiting.remove(number)
                elif future is not None and not future.done() and self._waiting:
                    chosen = self._waiting.popleft()
            if chosen == number and future is not None:
                if wait([future], POLL).done:
                    self.seconds += future.result()
                    return
                meanwhile()
                continue
            self._done[chosen] = None
            try:
                here(self._jobs[chosen])
            except SeqpipeError as error:
                self._done[chosen] = error
        if (failure := self._done[number]) is not None:
            raise failure

    def stop(self) -> None:
        """Hand nothing more out."""
        with self._guard:
            self._waiting.clear()
        for future in list(self._futures.values()):
            future.cancel()

    def _wake(self) -> None:
        """Start the others; each gets its first job when it is there."""
        assert self._executor is not None
        with suppress(RuntimeError):  # everything is done already
            for _ in range(self._at_once or 0):
                self._executor.submit(int).add_done_callback(self._hand_out)

    def _hand_out(self, ended: Future[Any] | None = None) -> None:
        """Give the next job to the others, now that one has ended."""
        if ended is not None and (ended.cancelled() or isinstance(ended.exception(), BrokenExecutor)):
            return
        assert self._executor is not None
        with self._guard:
            if not self._waiting:
                return
            number = self._waiting.popleft()
            try:
                future = self._futures[number] = self._executor.submit(_timed, self._run, self._jobs[number])
            except RuntimeError:  # the others have just died; what they did last says so
                return self._waiting.appendleft(number)
        future.add_done_callback(self._hand_out)


def _timed(run: Callable[[Any], None], job: Any) -> float:
    """Do a job in another process; return the processor time it took."""
    start = time.thread_time()
    run(job)
    return time.thread_time() - start


@contextmanager
def open_crew(workers: int, address: str | None) -> Iterator[Crew]:
    """Yield who does the jobs of an import.

    Args:
        workers: processes of this machine, this one included.
        address: ``dask://HOST:PORT`` of a scheduler whose workers see the same files, or None.

    Raises:
        OptionError: there is no such scheduler, or dask is not installed.
    """
    if address is not None:
        with _dask(address) as executor:
            yield Crew(executor, None)
    elif workers == 1:
        yield Crew()
    else:
        # Not fork: it is unsafe as soon as a library of this process has a thread of its own. The server has none; it
        # imports once for all workers, and those of later imports.
        context = multiprocessing.get_context("forkserver" if "forkserver" in multiprocessing.get_all_start_methods()
                                              else "spawn")
        context.set_forkserver_preload(["seqpipe.collection"])
        with ProcessPoolExecutor(workers - 1, context, _start_worker) as executor:
            try:
                yield Crew(executor, workers - 1)
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
