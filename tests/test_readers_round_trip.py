"""Any records, written in any way, come back as they were."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqpipe.readers.raw import RawFile
from tests.raw_files import COMPRESS, FIXTURE_OK, plain, read_bytes


ENDS = st.sampled_from(["\n", "\r\n", "\r"])
LETTERS = st.text("ACGTacgtN*-xß中", min_size=1, max_size=40)
NAMES = st.text("abcXYZ019_|.", min_size=1, max_size=8)
DESCRIPTIONS = st.text("abc x=;>@+\u2028\x85", max_size=10).map(lambda text: text.strip(" "))
CELLS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\ufeff"), max_size=12)


def pack(data, text, kind):
    """Return text as bytes, compressed as members that are cut at drawn places."""
    content = text.encode()
    if kind == "plain":
        return content
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=3)))
    parts = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)])]
    return b"".join(map(COMPRESS[kind], parts))


def wrap(text, width):
    return [text[start:start + width] for start in range(0, len(text), width)]


@FIXTURE_OK
@given(st.data())
def test_fasta_comes_back(tmp_path, data):
    """Line ends, wrapping, blank lines, comments and compression leave no trace in FASTA."""
    entries = data.draw(st.lists(st.tuples(NAMES, DESCRIPTIONS, LETTERS | st.just("")), min_size=1))
    lines = []
    for name, description, letters in entries:
        lines.append(f">{name} {description}".rstrip(" "))
        for part in wrap(letters, data.draw(st.integers(1, 50))):
            lines += data.draw(st.lists(st.sampled_from(["", " \t", "; no letters"]), max_size=1))
            lines.append(part + data.draw(st.sampled_from(["", " ", "\t"])))
    end = data.draw(ENDS)
    text = end.join(lines) + data.draw(st.sampled_from(["", end, end + end]))

    records = read_bytes(tmp_path, pack(data, text, data.draw(st.sampled_from(sorted(COMPRESS)))), None)

    assert [plain(r) for r in records] == [(n, s, {"description": d}) for n, d, s in entries]
    assert all(lines[r.line - 1].startswith(">" + r.id) for r in records)
    assert all(r.sequence.startswith(lines[r.sequence_line - 1].strip(" \t")) for r in records if r.sequence)


@FIXTURE_OK
@given(st.data())
def test_fastq_comes_back(tmp_path, data):
    """Four-line and wrapped FASTQ give the same records, whatever the quality looks like."""
    entries = data.draw(st.lists(st.tuples(NAMES, DESCRIPTIONS, LETTERS), min_size=1))
    end = data.draw(ENDS)
    lines = []
    for name, description, letters in entries:
        quality = data.draw(st.text("@+!~I", min_size=len(letters), max_size=len(letters)))
        header = f"{name} {description}".rstrip(" ")
        width = data.draw(st.integers(1, 50))
        lines += ["@" + header, *wrap(letters, width), "+" + data.draw(st.sampled_from(["", header]))]
        lines += wrap(quality, width) + data.draw(st.lists(st.just(""), max_size=2))
    text = end.join(lines) + end

    records = read_bytes(tmp_path, pack(data, text, data.draw(st.sampled_from(sorted(COMPRESS)))), "fastq")

    assert [plain(r) for r in records] == [(n, s, {"description": d}) for n, d, s in entries]


@FIXTURE_OK
@given(st.data())
def test_tables_come_back(tmp_path, data):
    """Every cell of a CSV or TSV comes back byte for byte, line ends in cells too."""
    width = data.draw(st.integers(0, 3))
    rows = data.draw(st.lists(st.tuples(NAMES, CELLS, *[CELLS] * width), min_size=1))
    format, delimiter = data.draw(st.sampled_from([("csv", ","), ("tsv", "\t")]))
    names = ["id", "sequence", "label", "gap", "é"][: width + 2]
    out = io.StringIO(newline="")
    end = data.draw(ENDS)
    # With other ends the writer leaves a CR or LF in a cell unquoted, where it is needed.
    quoting = csv.QUOTE_MINIMAL if end == "\r\n" else csv.QUOTE_ALL
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerow(names)
    for row in rows:
        writer.writerow(row)
        if data.draw(st.booleans()):
            out.write("\n")
    packed = pack(data, out.getvalue(), data.draw(st.sampled_from(sorted(COMPRESS))))

    records = read_bytes(tmp_path, packed, format)

    assert [plain(r) for r in records] == [(r[0], r[1], dict(zip(names[2:], r[2:]))) for r in rows]


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SEQUENCES = st.one_of(
    st.lists(CELLS, min_size=1),
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6), min_size=1),
    st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4), min_size=1),
)


@FIXTURE_OK
@given(st.data(), SEQUENCES, ENDS, st.booleans())
def test_jsonl_comes_back(tmp_path, data, sequences, end, ascii_only):
    """Text, integers and features come back exactly, and so do the other values."""
    extras = st.one_of(CELLS, st.integers(), st.booleans(), st.none(), st.lists(st.integers(), max_size=2))
    objects = [{"seq": s, "x": data.draw(extras), "id": data.draw(NAMES)} for s in sequences]
    text = "".join(json.dumps(o, ensure_ascii=ascii_only) + end + end for o in objects)

    records = read_bytes(tmp_path, pack(data, text, data.draw(st.sampled_from(sorted(COMPRESS)))), "jsonl")

    assert [r.id for r in records] == [o["id"] for o in objects]
    assert [plain(r)[1] for r in records] == [
        s if isinstance(s, str) else [list(x) if isinstance(x, tuple) else x for x in s] for s in sequences
    ]
    assert [r.columns["x"] if isinstance(o["x"], str) else json.loads(r.columns["x"] or "null")
            for r, o in zip(records, objects)] == [o["x"] for o in objects]


@FIXTURE_OK
@given(st.data(), st.lists(CELLS, min_size=1), ENDS)
def test_text_comes_back(tmp_path, data, lines, end):
    """A line of text is a sequence as it stands; only LF, CRLF and CR end a line."""
    lines = [line.replace("\n", "").replace("\r", "") for line in lines] + ["last \x0b\x0c\x85\u2028"]
    packed = pack(data, end.join(lines), data.draw(st.sampled_from(sorted(COMPRESS))))

    records = read_bytes(tmp_path, packed, "text")

    assert [(r.id, r.sequence, r.line) for r in records] == [
        (None, line, number) for number, line in enumerate(lines, start=1) if line
    ]


@FIXTURE_OK
@given(st.data(), st.integers(1, 3), ENDS)
def test_ts_comes_back(tmp_path, data, num_channels, end):
    """Every number of a .ts file comes back bit for bit, one row a time step."""
    step = st.lists(NUMBERS, min_size=num_channels, max_size=num_channels)
    series = data.draw(st.lists(st.lists(step, min_size=1, max_size=5), min_size=1))
    lines = ["#c", f"@DIMENSIONS {num_channels}", "@classlabel TRUE a b", "@Data"]
    for steps in series:
        lines.append(":".join(",".join(map(repr, channel)) for channel in zip(*steps)) + ":b")
    packed = pack(data, end.join(lines), data.draw(st.sampled_from(sorted(COMPRESS))))

    records = read_bytes(tmp_path, packed, "ts")

    assert [plain(r) for r in records] == [(None, steps, {"label": "b"}) for steps in series]
    assert all(r.sequence.dtype == np.float64 and r.sequence.flags.c_contiguous for r in records)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("keep_ends", [False, True])
def test_lines_are_whole_wherever_a_block_ends(tmp_path, end, keep_ends):
    """A CRLF or a letter of many bytes that lies across two blocks stays one."""
    lines = ["é" * (number % 977) for number in range(1500)]
    (tmp_path / "a").write_bytes(end.join([*lines, ""]).encode())
    with RawFile(tmp_path / "a") as raw:
        found = list(raw.lines(keep_ends=keep_ends))
        assert raw.line == len(lines)
        assert raw.bytes_read() == raw.size > 1 << 20
    assert found == [line + end * keep_ends for line in lines]
