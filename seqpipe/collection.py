"""Make the parts of all slices of an import, one after the other or many at a time.

Place in the flow: slices -> [collection: intake, part by part] -> parts -> assembly.

Which part holds what depends on the slices alone. Where slices fail, the error of the first one
in the order of the input is raised, whatever ran first. Parts that are there already are kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from seqpipe.errors import RawFormatError, SeqpipeError
from seqpipe.executors import Crew
from seqpipe.intake import collect
from seqpipe.parts import Part
from seqpipe.plan import Plan, lay_out, look_ahead
from seqpipe.slices import Slice, together


@dataclass(frozen=True)
class Job:
    """One part to be made, in this process or another.

    Attributes:
        number: of the part among all, from 0.
        slices, plan, pinned: as ``collect`` takes them.
        folder: of all parts.
        line: how many lines stand before the slice, where they were counted.
    """

    number: int
    slices: tuple[Slice, ...]
    plan: Plan
    pinned: tuple[str | None, str] | None
    folder: Path
    line: int = 0

    @property
    def into(self) -> Path:
        """The folder of the part."""
        return self.folder / f"part{self.number:06}"


class Stopped(Exception):
    """The import was given up while a worker was at it."""


def collect_all(
    slices: Sequence[Slice], plan: Plan, folder: Path, progress: Callable[[int], object], crew: Crew
) -> tuple[Plan, list[Part]]:
    """Return the plan with its layout, and the parts of all slices, in order.

    Args:
        slices: in the order of the input; those of one file next to each other.
        plan: with a layout, or without: then the first record makes it.
        folder: for the parts; may hold some of them.
        progress: called with numbers of bytes read.
        crew: makes the parts.

    Raises:
        RawFormatError: a record is not allowed, or breaks its format; the first one in the input.
    """
    if plan.layout is None:
        plan = replace(plan, layout=lay_out(look_ahead(slices[0], plan)[0], plan))
    jobs = _jobs(slices, plan, folder)
    ticks = Ticks(folder, len(jobs), progress)
    missing = {job.number: job for job in jobs if not _is_there(job)}
    for job in jobs:
        if job.number not in missing:
            ticks.set(job.number, sum(slice.num_bytes for slice in job.slices))
    parts: list[Part] = []
    try:
        crew.start(make_part, missing)
        for job in jobs:
            slice, before = job.slices[0], parts[-1].pieces[-1] if parts else {}
            if before and before["end"] is None and before["path"] == os.fsdecode(slice.path):
                continue  # the part before took the rest of the file
            try:
                if job.number in missing:
                    crew.finish(job.number, lambda chosen: make_part(chosen, ticks), ticks.show)
            except RawFormatError:
                if slice.is_whole:
                    raise
                # Its lines were counted from its own start; and it may have been cut inside a record.
                make_part(replace(job, slices=(slice.onwards(),), line=slice.lines_before()), ticks)
            except BrokenExecutor as error:
                raise SeqpipeError(f"{slice.path}: a worker died while it was imported (was it killed, or memory "
                                   f"short?): {error}; try again with fewer --workers", path=slice.path) from error
            parts.append(Part(job.into))
    finally:
        ticks.stop()
        crew.stop()
    return plan, parts


def _jobs(slices: Sequence[Slice], plan: Plan, folder: Path) -> list[Job]:
    jobs: list[Job] = []
    pinned: tuple[str | None, str] | None = None
    for number, group in enumerate(together(slices)):
        first = group[0]
        if not jobs or jobs[-1].slices[0].path != first.path:
            pinned = None if first.is_whole else look_ahead(replace(first, start=0), plan)[1]
        jobs.append(Job(number, group, plan, pinned, folder))
    return jobs


def make_part(job: Job, ticks: Ticks | None = None) -> None:
    """Make the part of a job; what a worker runs."""
    with ticks or Ticks(job.folder) as ticks:
        collect(job.slices, job.plan, job.into, pinned=job.pinned, line=job.line,
                progress=lambda count: ticks.set(job.number, count))


def _is_there(job: Job) -> bool:
    """Return whether an interrupted import left the part of a job, whole; remove it where it did not."""
    try:
        Part(job.into)
    except (OSError, ValueError, KeyError):
        shutil.rmtree(job.into, ignore_errors=True)
        return False
    return True


class Ticks:
    """How many bytes of each part were read: a file that all workers of an import write their numbers into.

    Args:
        folder: of the parts.
        count: of the parts, in the process that shows the progress; a worker opens what is there.
        progress: called with numbers of bytes.
    """

    def __init__(self, folder: Path, count: int = 0, progress: Callable[[int], object] | None = None) -> None:
        self._progress, self._shown = progress, 0
        path = folder / "progress"
        if progress is not None:
            path.write_bytes(bytes(8 * (count + 1)))
        self._file = open(path, "r+b", buffering=0)

    def __enter__(self) -> Ticks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is None:
            self._file.close()

    def set(self, number: int, count: int) -> None:
        """Note that ``count`` bytes of a part were read.

        Raises:
            Stopped: the import was given up.
        """
        self._file.seek(8 * number + 8)
        self._file.write(count.to_bytes(8, "little"))
        if self._progress is not None:
            self.show()
        elif self._read()[0]:
            raise Stopped

    def show(self) -> None:
        """Call ``progress`` with what is new."""
        total = int(self._read()[1:].sum())
        if self._progress is not None:
            self._progress(total - self._shown)
        self._shown = total

    def stop(self) -> None:
        """Have all workers give up."""
        self._file.seek(0)
        self._file.write(b"\1")
        self._file.close()

    def _read(self) -> np.ndarray:
        self._file.seek(0)
        return np.frombuffer(self._file.read(), "<u8")
