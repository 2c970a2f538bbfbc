"""The same records give the same store content, in whatever format and way they are written."""

from __future__ import annotations

import csv
import io
import json

import h5py
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions
from seqpipe.sequences import SequenceDataset
from tests.raw_files import COMPRESS, FIXTURE_OK

SYMBOLS = st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\t\n\r \ufeff")
NAMES = st.text(SYMBOLS, min_size=1, max_size=9)
RECORDS = st.lists(st.tuples(NAMES, st.text("ACGTNacgt*-", min_size=1, max_size=90), st.sampled_from("xyz")),
                   min_size=1, max_size=6, unique_by=lambda record: record[0])


def wrapped(text, width):
    return [text[at : at + width] for at in range(0, len(text), width)]


def write(data, format, records):
    """Return the records as text lines, wrapped and with blank lines where the format allows it."""
    width = data.draw(st.integers(1, 99), label="width")
    blank = st.lists(st.just(""), max_size=2)
    if format == "fasta":
        return [line for name, letters, label in records
                for line in (f">{name} {label}", *data.draw(blank), *wrapped(letters, width), *data.draw(blank))]
    if format == "fastq":
        return [line for name, letters, label in records
                for line in (f"@{name} {label}", *wrapped(letters, width), "+", *wrapped("@" * len(letters), width),
                             *data.draw(blank))]
    if format == "jsonl":
        return [line for name, letters, label in records
                for line in (json.dumps({"description": label, "id": name, "seq": letters}), *data.draw(blank))]
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter="," if format == "csv" else "\t", quoting=csv.QUOTE_ALL, lineterminator="")
    lines = []
    for row in (["id", "description", "seq"], *((name, label, letters) for name, letters, label in records)):
        out.seek(0)
        out.truncate()
        writer.writerow(row)
        lines += [out.getvalue(), *data.draw(blank)]
    return lines


def imported(tmp_path, data, lines, format, **choice):
    """Return the store of lines that are written with any ends, mark and members."""
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]), label="end")
    text = end.join(lines) + data.draw(st.sampled_from(["", end]), label="last")
    content = (data.draw(st.sampled_from(["", "\ufeff"]), label="mark") + text).encode()
    kind = data.draw(st.sampled_from(sorted(COMPRESS)), label="compression")
    cuts = sorted(data.draw(st.lists(st.integers(1, len(content)), max_size=2), label="members"))
    members = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True) if a < b]
    (tmp_path / "raw").write_bytes(b"".join(map(COMPRESS[kind], members)))
    return stored(tmp_path, format, **choice)


def stored(tmp_path, format, **choice):
    out = tmp_path / "x.h5"
    preprocess(PreprocessOptions(raw=(tmp_path / "raw",), out=out, format=format, split="none", overwrite=True,
                                 **choice))
    return SequenceDataset(out)


@settings(FIXTURE_OK, max_examples=25)
@given(st.data(), RECORDS, st.sampled_from(["fasta", "fastq", "jsonl", "csv", "tsv"]))
def test_every_format_gives_the_same_store(tmp_path, data, records, format):
    """Line ends, wrapping, blank lines, a byte-order mark, a last line without end and members leave no trace."""
    dataset = imported(tmp_path, data, write(data, format, records), format, label_column="description",
                       label_type="class")

    assert [(metadata["id"], dataset.decode(tokens), dataset.classes[metadata["label"]])
            for tokens, metadata in dataset] == records


STEPS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SERIES = st.integers(1, 3).flatmap(lambda width: st.lists(
    st.tuples(NAMES, st.lists(st.lists(STEPS, min_size=width, max_size=width), min_size=1, max_size=9),
              st.sampled_from("xyz")), min_size=1, max_size=6, unique_by=lambda record: record[0]))


def write_series(data, format, records):
    """Return the series as text lines, with blank lines where the format allows it."""
    blank = st.lists(st.just(""), max_size=2)
    if format == "jsonl":
        return [line for name, steps, label in records
                for line in (json.dumps({"id": name, "label": label, "values": steps}), *data.draw(blank))]
    if format == "ts":
        head = ["#c", f"@dimensions {len(records[0][1][0])}", "@classLabel true x y z", "@data"]
        return head + [line for _, steps, label in records for line in (
            ":".join([*(",".join(map(repr, channel)) for channel in zip(*steps, strict=True)), label]),
            *data.draw(blank))]
    delimiter = "," if format == "csv" else "\t"
    quoting = data.draw(st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]), label="quoting")
    rows = [["id", "label", "time", *(f"v{channel}" for channel in range(len(records[0][1][0])))]]
    rows += [[name, label, time, *step] for name, steps, label in records for time, step in enumerate(steps)]
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerows(rows)
    return [line for row in out.getvalue().split("\n")[:-1] for line in (row, *data.draw(blank))]


@settings(FIXTURE_OK, max_examples=25)
@given(st.data(), SERIES, st.sampled_from(["jsonl", "ts", "csv", "tsv"]))
def test_every_format_of_numbers_gives_the_same_store(tmp_path, data, records, format):
    """Rows of float32 numbers are kept to the bit in JSON Lines, .ts and long tables, however they are written."""
    values = ",".join(f"v{channel}" for channel in range(len(records[0][1][0])))
    long = {"time_column": "time", "value_columns": values} if format in ("csv", "tsv") else {}
    dataset = imported(tmp_path, data, write_series(data, format, records), format, label_type="class", **long)

    found = [(metadata["id"], steps.tolist(), dataset.classes[metadata["label"]]) for steps, metadata in dataset]
    assert [row[1:] for row in found] == [record[1:] for record in records]
    assert format == "ts" or [row[0] for row in found] == [record[0] for record in records]


@settings(FIXTURE_OK, max_examples=25)
@given(SERIES, st.sampled_from(["group", "vlen", "padded"]), st.booleans())
def test_every_shape_of_hdf5_gives_the_same_store(tmp_path, records, how, tokens):
    """One dataset per sequence, variable length or padded: the numbers, ids and labels are those that were written."""
    wanted = [(f"r{number}", [[abs(step[0]) % 100 // 1] for step in steps] if tokens else [step[:1] for step in steps],
               label) for number, (_, steps, label) in enumerate(records)]
    dtype = np.dtype("u1" if tokens else "f4")
    with h5py.File(tmp_path / "raw", "w") as file:
        if how == "group":
            for name, steps, label in wanted:
                file.create_dataset(f"reads/{name}", data=np.array(steps, dtype)[:, 0]).attrs["label"] = label
        else:
            file["id"], file["label"] = ([row[column] for row in wanted] for column in (0, 2))
        if how == "vlen":
            cells = file.create_dataset("x", (len(wanted),), h5py.vlen_dtype(dtype))
            for number, (_, steps, _) in enumerate(wanted):
                cells[number] = np.array(steps, dtype)[:, 0]
        if how == "padded":
            file["lengths"] = [len(steps) for _, steps, _ in wanted]
            file["x"] = np.array([[step[0] for step in (*steps, *[[0]] * (9 - len(steps)))] for _, steps, _ in wanted],
                                 dtype)

    dataset = stored(tmp_path, "h5", label_type="class")

    back = [(metadata["id"], (values[:, None] - 1.0 if tokens else values).tolist(), dataset.classes[metadata["label"]])
            for values, metadata in dataset]
    assert [(name.rsplit("/")[-1], *rest) for name, *rest in back] == wanted


@settings(FIXTURE_OK, max_examples=25)
@given(st.data(), st.lists(st.text(SYMBOLS | st.just(" "), max_size=30), min_size=1, max_size=9).filter(any))
def test_lines_of_text_give_the_same_store(tmp_path, data, lines):
    """A line is a sequence as it stands; blank lines are none."""
    dataset = imported(tmp_path, data, lines, "text")

    assert [dataset.decode(tokens) for tokens, _ in dataset] == [line for line in lines if line]
