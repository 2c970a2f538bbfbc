"""The same records give the same store content, in whatever format and way they are written."""

from __future__ import annotations

import csv
import io
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions
from seqpipe.sequences import SequenceDataset
from tests.raw_files import COMPRESS

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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(st.data(), RECORDS, st.sampled_from(["fasta", "fastq", "jsonl", "csv", "tsv"]))
def test_every_format_gives_the_same_store(tmp_path, data, records, format):
    """Line ends, wrapping, blank lines, a byte-order mark, a last line without end and members leave no trace."""
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]), label="end")
    text = end.join(write(data, format, records)) + data.draw(st.sampled_from(["", end]), label="last")
    content = (data.draw(st.sampled_from(["", "\ufeff"]), label="mark") + text).encode()
    kind = data.draw(st.sampled_from(sorted(COMPRESS)), label="compression")
    cuts = sorted(data.draw(st.lists(st.integers(1, len(content)), max_size=2), label="members"))
    members = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True) if a < b]
    (tmp_path / "raw").write_bytes(b"".join(map(COMPRESS[kind], members)))

    out = tmp_path / "x.h5"
    preprocess(PreprocessOptions(raw=(tmp_path / "raw",), out=out, format=format, split="none", overwrite=True,
                                 label_column="description", label_type="class"))

    dataset = SequenceDataset(out)
    assert [(metadata["id"], dataset.decode(tokens), dataset.classes[metadata["label"]])
            for tokens, metadata in dataset] == records
