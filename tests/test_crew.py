"""A crew does every job once, here or elsewhere, and says what failed in the order of the jobs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from seqpipe import executors
from seqpipe.errors import SeqpipeError
from seqpipe.executors import Crew, open_crew

WAYS = {"alone": (0, 0), "one helper": (1, 1), "three helpers": (3, 3), "all at once": (2, None)}


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    """Yield a crew whose others are threads."""
    threads, at_once = request.param
    if not threads:
        yield Crew()
        return
    with ThreadPoolExecutor(threads) as executor:
        yield Crew(executor, at_once)


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_every_job_is_done_once(crew: Crew, count: int) -> None:
    """No job is lost or done twice, and each is done when it was waited for."""
    done: list[int] = []

    def run(job: int) -> None:
        time.sleep(0.001 * (job % 3))
        done.append(job)

    jobs = {number: 10 * number for number in range(count)}
    crew.start(run, jobs)
    for number, job in jobs.items():
        crew.finish(number, run, lambda: None)
        assert job in done
    crew.stop()
    assert sorted(done) == list(jobs.values())


def test_failures_come_in_the_order_of_the_jobs(crew: Crew) -> None:
    """A job that failed early is named when its turn comes; those behind it are done all the same."""
    def run(job: int) -> None:
        time.sleep(0.001)
        if job in (7, 12, 13):
            raise SeqpipeError(f"job {job}")

    jobs = {number: number for number in range(20)}
    crew.start(run, jobs)
    failed = []
    for number in jobs:
        try:
            crew.finish(number, run, lambda: None)
        except SeqpipeError as error:
            failed.append((number, str(error)))
    crew.stop()
    assert failed == [(number, f"job {number}") for number in (7, 12, 13)]


def test_this_process_works_while_others_are_at_it() -> None:
    """What it waits for is done elsewhere meanwhile: a job that ends only when a later one was done here."""
    first, later, began = threading.Event(), threading.Event(), threading.Event()
    where: dict[int, str] = {}

    def run(job: int) -> None:
        where[job] = threading.current_thread().name
        if job == 1:
            began.set()
            assert later.wait(30)
        if job == 2:
            later.set()
        if job == 0:
            first.set()
            assert began.wait(30)  # until the other has the next one

    with ThreadPoolExecutor(1, "other") as executor:
        executor.submit(first.wait, 30)  # the other comes later
        crew = Crew(executor, 1)
        crew.start(run, {number: number for number in range(3)})
        for number in range(3):
            crew.finish(number, run, lambda: None)
    here = threading.current_thread().name
    assert where == {0: here, 1: "other_0", 2: here}


def test_a_timeout_of_a_job_is_an_error_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job raises is never taken for the crew's own look at the clock, however long it was at it."""
    monkeypatch.setattr(executors, "POLL", 0.001)
    first, gate, looks = threading.Event(), threading.Event(), []

    def run(job: int) -> None:
        if job == 1:
            assert gate.wait(30)
            raise TimeoutError("the disk did not answer")

    def here(job: int) -> None:
        first.set()
        while not crew._futures:  # until the other has the next one
            time.sleep(0.001)

    def meanwhile() -> None:
        looks.append(1)
        gate.set()

    with ThreadPoolExecutor(1) as executor:
        executor.submit(first.wait, 30)  # the other comes later
        crew = Crew(executor, 1)
        crew.start(run, {0: 0, 1: 1})
        crew.finish(0, here, meanwhile)
        with pytest.raises(TimeoutError, match="the disk did not answer"):
            crew.finish(1, here, meanwhile)
    assert looks


def test_nothing_is_handed_out_after_the_stop() -> None:
    """An import that was given up begins no further part."""
    done: list[int] = []
    gate = threading.Event()

    def run(job: int) -> None:
        assert gate.wait(30)
        done.append(job)

    with ThreadPoolExecutor(1) as executor:
        crew = Crew(executor, 1)
        crew.start(run, {number: number for number in range(9)})
        while not crew._futures:
            time.sleep(0.001)
        crew.stop()
        gate.set()
    assert done in ([], [0])


def note(path: Path) -> None:
    """Write down who does a job."""
    path.write_text(str(os.getpid()), "ascii")
    time.sleep(0.05)


def test_workers_are_this_process_and_one_less(tmp_path: Path) -> None:
    """With two workers, two processes make parts; one of them is this one."""
    jobs = {number: tmp_path / str(number) for number in range(400)}
    with open_crew(2, None) as crew:
        crew.start(note, jobs)
        pids: set[int] = set()
        for number, path in jobs.items():
            crew.finish(number, note, lambda: None)
            pids.add(int(path.read_text("ascii")))
            if len(pids) == 2:
                break
        crew.stop()
    assert os.getpid() in pids and len(pids) == 2 and crew.seconds > 0


def died(job: int) -> None:
    os._exit(3)


def test_a_worker_that_dies_is_told() -> None:
    """The job it was at fails; nobody waits for ever."""
    with open_crew(2, None) as crew:
        def here(job: int) -> None:
            while not crew._futures:  # until the worker has one
                time.sleep(0.001)

        crew.start(died, dict.fromkeys(range(3), 0))
        with pytest.raises(BrokenExecutor, match="terminated abruptly"):
            for number in range(3):
                crew.finish(number, here, lambda: None)
