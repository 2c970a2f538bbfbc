"""Make the parts of all slices of an import, one after the other or many at a time.

Place in the flow: slices -> [collection: intake, slice by slice] -> parts -> assembly.

Which part holds what depends on the slices alone. Where slices fail, the error of the first one
in the order of the input is raised, whatever ran first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from seqpipe.errors import RawFormatError
from seqpipe.intake import Plan, collect, lay_out, look_ahead
from seqpipe.parts import Part
from seqpipe.slices import Slice

Pinned = tuple[str | None, str] | None


def collect_all(
    slices: Sequence[Slice], plan: Plan, folder: Path, progress: Callable[[int], object]
) -> tuple[Plan, list[Part]]:
    """Return the plan with its layout, and the parts of all slices, in order.

    Args:
        slices: in the order of the input; those of one file next to each other.
        plan: without a layout.
        folder: for the parts.
        progress: called with numbers of bytes read.

    Raises:
        RawFormatError: a record is not allowed, or breaks its format; the first one in the input.
    """
    first, _ = look_ahead(slices[0], plan)
    plan = replace(plan, layout=lay_out(first, plan))
    parts: list[Part] = []
    pinned: Pinned = None
    position = 0
    while position < len(slices):
        slice = slices[position]
        if not slice.start:
            pinned = None if slice.end is None else look_ahead(slice, plan)[1]
        into = folder / f"part{position:06}"
        seen = 0

        def tick(count: int) -> None:
            nonlocal seen
            progress(count - seen)
            seen = count

        try:
            collect(slice, plan, into, pinned=pinned, progress=tick)
        except RawFormatError:
            slice = slice.onwards()
            collect(slice, plan, into, pinned=pinned, line=slice.lines_before(), progress=tick)
            while position + 1 < len(slices) and slices[position + 1].path == slice.path:
                position += 1
        parts.append(Part(into))
        position += 1
    return plan, parts
