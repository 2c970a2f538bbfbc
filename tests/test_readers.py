"""Readers give back every record as it stands, or name the line that is wrong."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqpipe.errors import OptionError, RawFormatError
from seqpipe.readers import FORMATS, detect_format, read_records
from seqpipe.readers.raw import RawFile
from seqpipe.readers.tables import read_labels
from seqpipe.records import ColumnChoice

AWKWARD = Path(__file__).parent / "awkward"
DATA = Path(__file__).parents[1] / "data"
CASES = {case["id"]: case for case in json.loads((AWKWARD / "cases.json").read_text("utf-8"))}
# What a reader alone does not decide: unique ids, empty sequences, label columns, joins,
# long tables, and file modes that do not bind every user.
LATER = {
    "fa-dup-id", "fa-empty-seq", "jsonl-empty-list", "label-column-missing", "label-id-mismatch",
    "csv-missing-cell", "csv-nan-inf", "unreadable", "fa-long-line", "missing-file", "zstd",
}
FIXTURE_OK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def read(path, format=None, encoding="utf-8", **choice):
    """Return all records of a file."""
    with RawFile(path, encoding) as raw:
        return list(read_records(raw, format or detect_format(raw), ColumnChoice(**choice)))


def read_bytes(folder, data, format, name="raw", **choice):
    (folder / name).write_bytes(data)
    return read(folder / name, format, **choice)


def plain(record):
    """Return what a record holds in a form that can be compared."""
    sequence = record.sequence if isinstance(record.sequence, str) else record.sequence.tolist()
    return record.id, sequence, record.columns


# ---- awkward inputs -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in CASES if n not in LATER and CASES[n]["expect"] == "accept"])
def test_awkward_input_is_read_as_it_stands(name):
    """Ids, lengths, sequences and labels of every odd but right file come back."""
    case = CASES[name]
    options = case["options"]
    names = [options[key] for key in ("sequence", "text", "tokens", "values") if key in options]
    path = AWKWARD / case["files"][0]

    records = read(path, case["format"], id=options.get("id"), sequence=(names or [None])[0])

    assert [len(record.sequence) for record in records] == case["lengths"]
    if case["format"] not in ("text", "ts"):
        assert [record.id for record in records] == case["ids"]
    if "sha256_concat" in case:
        text = "".join(record.sequence for record in records)
        assert hashlib.sha256(text.encode()).hexdigest() == case["sha256_concat"]
    if "sequences" in case:
        assert [record.sequence for record in records] == case["sequences"]
    if case["format"] == "ts":
        assert [record.sequence.tolist() for record in records] == case["values"]
    if "labels" in case and not {"task", "label_separator"} & options.keys():
        assert [record.columns[options.get("label", "label")] for record in records] == case["labels"]


@pytest.mark.parametrize("name", [n for n in CASES if n not in LATER and CASES[n]["expect"] == "reject"])
def test_awkward_input_is_rejected_at_its_line(name):
    """Every broken file is refused with its name, the right line and the right word."""
    case = CASES[name]
    expected = case["error"]

    with pytest.raises(RawFormatError) as caught:
        read(AWKWARD / case["files"][0] if name != "directory" else AWKWARD, case["format"])

    message = str(caught.value)
    if name != "directory":
        assert expected["file"] in message
    if expected.get("lines_ok"):
        assert caught.value.line in expected["lines_ok"]
        assert f"{expected['file']}:{caught.value.line}: " in message
    assert any(word.lower() in message.lower() for word in expected.get("mention_any", [""]))


@pytest.mark.parametrize("name", sorted(CASES))
def test_format_of_awkward_input_is_detected(name):
    """Content or name tell the format of every file, save those that no reader opens."""
    case = CASES[name]
    if name in ("directory", "missing-file", "fa-long-line", "unreadable", "zstd", "utf16-le-bom"):
        return
    with RawFile(AWKWARD / case["files"][0]) as raw:
        found = detect_format(raw)
    expected = {"csv-long": "csv", "fasta+labels": "fasta"}.get(case["format"], case["format"])
    assert found == ("fasta" if name == "fq-is-fasta" else expected)


def test_fastas_of_five_million_letters_and_wide_cells_are_read(tmp_path):
    """A line or a cell may be 5,000,000 letters long."""
    letters = "ACGTN" * 1_000_000
    assert read_bytes(tmp_path, f">big\n{letters}\n".encode(), "fasta")[0].sequence == letters
    table = f"id,sequence\nbig,{letters}\n".encode()
    assert read_bytes(tmp_path, table, "csv")[0].sequence == letters


# ---- any records, any way of writing them ---------------------------------------------------

ENDS = st.sampled_from(["\n", "\r\n", "\r"])
LETTERS = st.text("ACGTacgtN*-xß中", min_size=1, max_size=40)
NAMES = st.text("abcXYZ019_|.", min_size=1, max_size=8)
DESCRIPTIONS = st.text("abc x=;>@+\u2028\x85", max_size=10).map(lambda text: text.strip(" "))
CELLS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\ufeff"), max_size=12)
COMPRESS = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


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


# ---- cut and damaged files --------------------------------------------------------------------

WHOLE = {
    "fasta": ">a one\r\nACGT\r\nAC\r\n\r\n>b\r\nGGé\r\n",
    "fastq": "@a one\nACGT\n+\nII@+\n\n@b\nAC\nGT\n+b\n@I\nII\n",
    "csv": 'id,sequence,label\na,ACGT,x\n\nb,"A\n""C",y\n',
    "tsv": "id\tsequence\tlabel\na\tACGT\tx\nb\tAC\ty\n",
    "jsonl": '{"id":1,"seq":[[1,2.5],[3,4]],"label":"é"}\n{"id":2,"seq":[[5,6]],"label":null}\n',
    "text": "alpha\n\nβeta gamma\n",
    "ts": "@problemName T\n@dimensions 2\n@classLabel true up down\n@data\n1,2:3,4:up\n1:2:down\n",
}


@pytest.mark.parametrize("format", FORMATS)
def test_cut_at_every_byte_is_a_valid_beginning_or_an_error(tmp_path, format):
    """No cut gives another exception, or a record that the whole file does not begin with."""
    content = WHOLE[format].encode()
    whole = [plain(record) for record in read_bytes(tmp_path, content, format)]
    for size in range(len(content)):
        try:
            records = [plain(record) for record in read_bytes(tmp_path, content[:size], format)]
        except RawFormatError as error:
            assert error.path == tmp_path / "raw"
            continue
        assert records[:-1] == whole[: len(records) - 1]
        if format in ("fastq", "jsonl"):
            assert records == whole[: len(records)], content[:size]


@pytest.mark.parametrize("kind, suffix", [("gzip", ".gz"), ("bzip2", ".bz2"), ("xz", ".xz")])
def test_compressed_file_cut_at_every_byte_is_an_error(tmp_path, kind, suffix):
    """Compressed data that end early are never read as a shorter file."""
    content = COMPRESS[kind](WHOLE["text"].encode())
    assert len(read_bytes(tmp_path, content, "text", name="raw.txt" + suffix)) == 2
    for size in range(len(content)):
        with pytest.raises(RawFormatError):
            read_bytes(tmp_path, content[:size], "text", name="raw.txt" + suffix)


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
@pytest.mark.parametrize("second", [b"rubbish", b"BZh9rubbish..", None])
def test_what_follows_compressed_data_is_not_lost(tmp_path, kind, second):
    """Bytes behind a member, and a damaged second member, are an error that says so."""
    first = COMPRESS[kind](b"alpha\nbeta\n")
    if second is None:
        second = bytearray(COMPRESS[kind](os.urandom(3000).hex().encode()))
        second[len(second) // 2] ^= 0xFF
    with pytest.raises(RawFormatError, match=f"{kind} data are cut or damaged near this line") as caught:
        read_bytes(tmp_path, first + bytes(second), "text")
    assert caught.value.line >= 3
    assert len(read_bytes(tmp_path, first + bytes(4), "text")) == 2  # zeros may pad a stream


def test_line_before_the_cut_of_a_long_gzip_file_is_named(tmp_path):
    """The message says how far a cut file can be read."""
    content = gzip.compress("".join(f"{number:08d}\n" for number in range(100_000)).encode())
    with pytest.raises(RawFormatError) as caught:
        read_bytes(tmp_path, content[: len(content) // 2], "text")
    assert 30_000 < caught.value.line < 70_000


# ---- messages -----------------------------------------------------------------------------------

BROKEN = [
    ("fasta", b"ACGT\n>a\nAC\n", 1, r"found 'ACGT', expected a FASTA header"),
    ("fasta", b">a\nAC\nAC GT\n", 3, r"record 'a': found ' ', white space, inside"),
    ("fasta", b">a\nAC\nACGT>b\n", 3, r"record 'a': found '>', a header mark"),
    ("fasta", b">a\nAC\n \t\nA\x0b\n", 4, r"found '\\x0b', white space"),
    ("fasta", b">a\nAC\n> \t\nAC\n", 3, r"without an id"),
    ("fasta", b"\n\n", 2, r"no record: its 2 lines hold none"),
    ("fastq", b"@a\nACGT\n+\nIIII\nACGT\n", 5, r"expected a FASTQ header"),
    ("fastq", b"@a\nACGT\n+b\nIIII\n", 3, r"record 'a': found '\+b', expected '\+' alone"),
    ("fastq", b"@a\nACGT\n+\nII\n@b\nAC\n+\nII\n", 4, r"record 'a': the quality has 2 characters"),
    ("fastq", b"@a\nACGT\n+\nII\x07I\n", 4, r"'\\x07' at position 2 \(0-based\)"),
    ("fastq", "@a\nACGT\n+\nIIéI\n".encode(), 4, r"'é' at position 2"),
    ("fastq", b"@a\nAC GT\n+\nIIIII\n", 2, r"white space, inside"),
    ("fastq", b"@a\nACGT\n", 2, r"record 'a': the file ends before the '\+' line"),
    ("csv", b"id,,sequence\n", 1, r"column 2 \(1-based\) has an empty name"),
    ("csv", b"id,sequence\n\na,A\nb,C,x\n", 4, r"found 3 cells, \['b', 'C', 'x'\], expected 2 columns"),
    ("csv", b'id,sequence\na,"A\nb,C\n', 2, r"row that starts here \(read up to line 3\) is broken"),
    ("csv", b'id,sequence\na,"A\n\nB"\n\nb,C,x\n', 6, r"found 3 cells"),
    ("csv", b'id,sequence\na,"A"x\n', 2, r"check its quotes"),
    ("csv", b"id,sequence\n,A\n", 2, r"column 'id' is ''"),
    ("csv", b"name,dna\na,A\n", 1, r"the columns are 'name', 'dna'; .* --sequence-column"),
    ("tsv", b"id,sequence\na,A\n", 1, r"the columns are 'id,sequence'"),
    ("jsonl", b'{"seq":"A"}\n{"seq":"A"\n', 2, r"not valid JSON at column 11: Expecting ','"),
    ("jsonl", b'{"seq":"A"}\n["A"]\n', 2, r"found a JSON list"),
    ("jsonl", b'{"seq":"A","seq":"C"}\n', 1, r"key 'seq' comes twice"),
    ("jsonl", b'{"seq":"A","x":1}\n{"seq":"A"}\n', 2, r"key 'x' is missing"),
    ("jsonl", b'{"seq":"A"}\n{"seq":"A","y":1}\n', 2, r"key 'y' is new"),
    ("jsonl", b'{"id":1.5,"seq":"A"}\n', 1, r"key 'id' is 1.5, expected text or an integer"),
    ("jsonl", b'{"id":true,"seq":"A"}\n', 1, r"key 'id' is True"),
    ("jsonl", b'{"id":"","seq":"A"}\n', 1, r"key 'id' is ''"),
    ("jsonl", b'{"id":"a","seq":null}\n', 1, r"record 'a': key 'seq': found None"),
    ("jsonl", b'{"seq":[1,true]}\n', 1, r"found True at position 1"),
    ("jsonl", b'{"seq":[1,NaN]}\n', 1, r"NaN is not a JSON number"),
    ("jsonl", b'{"seq":[1.5,1e999]}\n', 1, r"position 1 \(0-based\) is out of the range of float64"),
    ("jsonl", b'{"seq":[1.5,9007199254740993]}\n', 1, r"beyond 2\*\*53"),
    ("jsonl", b'{"seq":[-9223372036854775809]}\n', 1, r"position 0 \(0-based\) is out of the range of int64"),
    ("jsonl", b'{"seq":[' + b"9" * 5000 + b"]}\n", 1, r"not JSON that can be kept"),
    ("jsonl", b'{"seq":' + b"[" * 100_000 + b"\n", 1, r"not JSON that can be kept|not valid JSON"),
    ("jsonl", b'{"seq":[[]]}\n', 1, r"time step 0 \(0-based\) is \[\]"),
    ("jsonl", b'{"seq":[[1],2]}\n', 1, r"time step 1 \(0-based\) is 2, expected a list of 1"),
    ("jsonl", b'{"seq":[1,[2]]}\n', 1, r"found \[2\] at position 1"),
    ("jsonl", b'{"seq":["1","2"]}\n', 1, r"found '1' at position 0 \(0-based\), expected a number"),
    ("jsonl", b'{"seq":[1]}\n{"seq":[]}\n{"seq":[1.5]}\n', 3, r"1 channels, and line 1 holds integer"),
    ("jsonl", b'{"seq":[[1,2]]}\n{"seq":[[1]]}\n', 2, r"1 channels, and line 1 .* 2 channels"),
    ("jsonl", b'{"seq":"\\ud800"}\n', 1, r"\\ud800 is half a character"),
    ("jsonl", b'{"seq":"A","x":1e999}\n', 1, r"key 'x': "),
    ("ts", b"@classLabel false\n1,2\n", 2, r"expected @data or one of"),
    ("ts", b"@dimensions 2\n@data\n", 2, r"no @classLabel line"),
    ("ts", b"@classLabel false\n", 1, r"no @data line"),
    ("ts", b"@timeStamps true\n", 1, r"series with time stamps are not read"),
    ("ts", b"@dimensions two\n", 1, r"@dimensions is 'two', expected a count"),
    ("ts", b"@univariate\n", 1, r"@univariate is '', expected true or false"),
    ("ts", b"@classLabel true\n", 1, r"names no class"),
    ("ts", b"@classLabel true a\n@data\n1:b\n", 3, r"label 'b' is not one of the declared classes, a"),
    ("ts", b"@classLabel true a\n@data\n1,2:3:a\n", 3, r"unequal lengths, \[1, 2\]"),
    ("ts", b"@classLabel true a\n@data\n1:2:a\n1:a\n", 4, r"found 1 channels and a label, expected 2"),
    ("ts", b"@classLabel false\n@data\n1,?,3\n", 3, r"missing value '\?' in channel 0 at time step 1"),
    ("ts", b"@classLabel false\n@data\n1,NaN\n", 3, r"bad value 'NaN' in channel 0 at time step 1"),
    ("ts", b"@classLabel false\n@data\n1,2_0\n", 3, r"bad value '2_0'"),
    ("ts", b"@classLabel false\n@data\n1,1e999\n", 3, r"out of the range of float64"),
    ("ts", b"@classLabel false\n@data\n1,\n", 3, r"missing value ''"),
    ("ts", b"@targetLabel true\n@data\n1:nan\n", 3, r"target label 'nan', expected a finite number"),
    ("ts", b"@equalLength true\n@classLabel false\n@data\n1,2\n1\n", 5, r"found 1 time steps, expected 2"),
    ("text", b"a\nb\0c\n", 2, r"a NUL character at column 2"),
    ("text", b"a\r\n" * 50_000 + b"b\xff", 50_001, r"byte 0xff at column 2 is not utf-8.*--encoding latin-1"),
    ("text", b"\xed\xa0\x80\n", 1, r"byte 0xed at column 1 is not utf-8"),
    ("text", b"\xff\xfea\0", 1, r"byte-order mark of UTF-16"),
    ("text", b"\xff\xfe\0\0a\0\0\0", 1, r"byte-order mark of UTF-32"),
    ("text", b"\x28\xb5\x2f\xfdxxxx", None, r"is compressed with zstd, which is not read; decompress it"),
    ("text", b"PK\x03\x04xxxx", None, r"is compressed with ZIP"),
]


@pytest.mark.parametrize("format, content, line, message", BROKEN)
def test_broken_input_is_refused_with_its_place_and_reason(tmp_path, format, content, line, message):
    """The message starts with file and line and says what was found."""
    with pytest.raises(RawFormatError, match=message) as caught:
        read_bytes(tmp_path, content, format)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"{tmp_path / 'raw'}{f':{line}' if line else ''}: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "choice, message",
    [
        ({"id": "x"}, r"no column 'x'; the columns are 'id', 'dna'; name one of them with --id-column"),
        ({"sequence": "x"}, r"no column 'x'; .* --sequence-column"),
        ({"id": "dna", "sequence": "dna"}, r"'dna' is named as id and as sequence"),
    ],
)
@pytest.mark.parametrize("format, content", [("csv", b"id,dna\na,A\n"), ("jsonl", b'{"id":"a","dna":"A"}\n')])
def test_column_that_is_not_there_is_named_beside_those_that_are(tmp_path, format, content, choice, message):
    with pytest.raises(RawFormatError, match=message) as caught:
        read_bytes(tmp_path, content, format, **choice)
    assert caught.value.line == 1


def test_columns_can_be_chosen(tmp_path):
    """A named column is the id or the sequence, and "id" is then a column like any other."""
    content = b"id,text,seq\n1,A,C\n"
    assert plain(read_bytes(tmp_path, content, "csv")[0]) == ("1", "C", {"text": "A"})
    chosen = read_bytes(tmp_path, content, "csv", id="seq", sequence="text")[0]
    assert plain(chosen) == ("C", "A", {"id": "1"})
    other = read_bytes(tmp_path, content, "csv", sequence="id")[0]
    assert plain(other) == (None, "1", {"text": "A", "seq": "C"})


def test_paths_that_are_no_readable_files_have_their_own_messages(tmp_path):
    """Missing, directory, FIFO and forbidden are told apart, and none of them blocks."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "locked").write_text(">a\nA\n")
    (tmp_path / "locked").chmod(0)
    (tmp_path / "dir.fasta").mkdir()
    for name, message in [
        ("no_such.fasta", "no such file"), ("dir.fasta", "is a directory"), ("pipe", "named pipe"),
        ("dir.fasta/x" * 500, "cannot be opened"), ("locked/x", "cannot be opened"),
    ]:
        with pytest.raises(RawFormatError, match=message) as caught:
            read(tmp_path / name, "fasta")
        assert str(caught.value).startswith(str(tmp_path / name))
    if os.geteuid() != 0:
        with pytest.raises(RawFormatError, match="permission denied"):
            read(tmp_path / "locked", "fasta")


def test_encodings(tmp_path):
    """A named encoding decodes; an unknown one, and one that the file contradicts, is refused."""
    latin = read_bytes(tmp_path, "é\nü".encode("latin-1"), "text", encoding="latin-1")
    assert [record.sequence for record in latin] == ["é", "ü"]
    for encoding in ("utf-16", "utf-32", "utf-16-le"):
        content = ("\ufeff" * encoding.endswith("le") + "é\r\nü").encode(encoding)
        records = read_bytes(tmp_path, content, "text", encoding=encoding)
        assert [record.sequence for record in records] == ["é", "ü"]
    with pytest.raises(RawFormatError, match="byte-order mark of UTF-8, and --encoding is 'latin-1'"):
        read_bytes(tmp_path, b"\xef\xbb\xbfa", "text", encoding="latin-1")
    for name in ("no-such", "base64", "undefined"):
        with pytest.raises(OptionError, match=f"--encoding '{name}'"):
            read_bytes(tmp_path, b"a", "text", encoding=name)
    with pytest.raises(RawFormatError, match=":3: byte 0x81 at column 2 is not shift_jis"):
        read_bytes(tmp_path, b"a\nb\nc\x81\x20\n", "text", encoding="shift_jis")
    with pytest.raises(RawFormatError, match=":3: byte 0x00 is not utf-16"):
        read_bytes(tmp_path, b"\xff\xfea\0\n\0b\0\n\0c\0\0\xd8d\0\n\0", "text", encoding="utf-16")
    with pytest.raises(RawFormatError, match=":2: byte 0x62 is not utf-16-le"):
        read_bytes(tmp_path, b"a\0\n\0b", "text", encoding="utf-16-le")
    with pytest.raises(RawFormatError, match="is not utf-16"):
        read_bytes(tmp_path, "ab".encode("utf-16-le"), "text", encoding="utf-16")


def test_messages_offer_only_options_that_exist():
    """Every option named in a reader's source is one of the import's options."""
    sources = (Path(__file__).parents[1] / "seqpipe" / "readers").glob("*.py")
    text = "".join(path.read_text("utf-8") for path in sources)
    known = {"--format", "--encoding", "--id-column", "--sequence-column", "--label-column", "--labels"}
    assert set(re.findall(r"--[a-z][a-z-]*[a-z]", text)) <= known


# ---- telling the format ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("a", b"\xef\xbb\xbf\r\n; c\r\n>a\r\nA", "fasta"),
        ("a.txt", b"@r1 x\r\nAC\r\n\r\n+\r\nII\r\n", "fastq"),
        ("a.csv", b'{"seq": "A"}', "jsonl"),
        ("a.txt", b"# c\n\n@PROBLEMNAME x\n", "ts"),
        ("a.x.FNA.gz", gzip.compress(b"ACGT, not yet right\n"), "fasta"),
        ("a.tab", b"id\tseq\n", "tsv"),
        ("a.txt", b"@name says hello\n", "text"),
        ("a.ndjson", b"{}", "jsonl"),
    ],
)
def test_format_is_told_by_content_then_by_name(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    with RawFile(tmp_path / name) as raw:
        assert detect_format(raw) == expected
        assert raw.line == 0 and len(list(raw.lines())) == raw.line  # nothing was consumed


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", b"\x89HDF\r\n\x1a\n....", "is an HDF5 file"),
        ("a.dat", b"id,seq\n", "name it with --format"),
        ("a", b"", "no record: the file is empty"),
    ],
)
def test_format_that_cannot_be_told_is_asked_for(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with RawFile(tmp_path / name) as raw, pytest.raises(RawFormatError, match=message):
        detect_format(raw)


def test_unknown_format_is_an_option_error(tmp_path):
    with pytest.raises(OptionError, match="--format 'fast'"):
        read_bytes(tmp_path, b">a\nA", "fast")


# ---- tables of labels -------------------------------------------------------------------------


@pytest.mark.parametrize("name, delimiter", [("l.csv", ","), ("l.TSV.gz", "\t"), ("l.txt", "\t"), ("l", ",")])
def test_labels_come_back_with_their_lines(tmp_path, name, delimiter):
    text = delimiter.join("label id k".split()) + "\n" + delimiter.join([" x", "a", "NA"]) + "\n"
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read_labels(tmp_path / name) == {"a": ({"label": " x", "k": "NA"}, 2)}


@pytest.mark.parametrize(
    "content, line, message",
    [
        (b"id,label\na,x\n\nb,y\na,x\n", 5, r"id 'a' stands in line 2 already"),
        (b"name,label\na,x\n", 1, r"expected a header row with 'id' .* found 'name', 'label'"),
        (b"id\na\n", 1, r"at least one other column"),
        (b"id,label\n,x\n", 2, r"column 'id' is ''"),
        (b"id,label\na\n", 2, r"found 1 cells"),
        (b"id,label\n", 1, r"no row below the header"),
        (b"", None, r"found none"),
    ],
)
def test_broken_labels_are_refused(tmp_path, content, line, message):
    (tmp_path / "l.csv").write_bytes(content)
    with pytest.raises(RawFormatError, match=message) as caught:
        read_labels(tmp_path / "l.csv")
    assert caught.value.line == line


# ---- real data, memory ------------------------------------------------------------------------


def test_real_peptides_and_their_labels():
    """4,620 peptides with 151,465 letters, each with its label."""
    records = read(DATA / "amp" / "amp.fasta")
    labels = read_labels(DATA / "amp" / "labels.tsv")
    assert (len(records), sum(len(record.sequence) for record in records)) == (4620, 151_465)
    assert set("".join(record.sequence for record in records)) == set("ACDEFGHIKLMNPQRSTVWY")
    assert [record.id for record in records] == list(labels)


@pytest.mark.parametrize("part, count, steps", [("TRAIN", 270, 4274), ("TEST", 370, 5687)])
def test_real_vowels(part, count, steps):
    """The utterances of nine speakers have 12 channels and 7 to 29 time steps."""
    records = read(DATA / "vowels" / f"JapaneseVowels_{part}.ts")
    assert len(records) == count
    assert sum(len(record.sequence) for record in records) == steps
    assert {record.sequence.shape[1] for record in records} == {12}
    assert {record.columns["label"] for record in records} == set("123456789")


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Ten times the records take the same memory to read through."""
    peaks = []
    for count in (20_000, 200_000):
        with open(tmp_path / "a.fasta", "w") as file:
            file.writelines(f">s{number}\nACGTACGTACGTACGTACGT\n" for number in range(count))
        tracemalloc.start()
        with RawFile(tmp_path / "a.fasta") as raw:
            assert sum(1 for _ in read_records(raw, "fasta", ColumnChoice())) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_file_is_closed_when_reading_fails(tmp_path):
    """An error leaves no open file behind, so the file can be put away."""
    shutil.copy(AWKWARD / "fa_emptyhdr.fasta", tmp_path / "a.fasta")
    with pytest.raises(RawFormatError), RawFile(tmp_path / "a.fasta") as raw:
        list(read_records(raw, "fasta", ColumnChoice()))
    assert raw.bytes_read() == raw.size
    raw.close()


def test_qualities_are_kept_where_asked_for(tmp_path):
    """Phred scores from 0 to 93, one per base, wrapped records too; without the choice there is no track."""
    data = b"@a\nACGT\n+\n!~I@\n\n@b x\nGG\nC\n+\n@+\n\"\n"
    records = read_bytes(tmp_path, data, "fastq", quality=True)
    assert [record.tracks["quality"].tolist() for record in records] == [[0, 93, 40, 31], [31, 10, 1]]
    assert {record.tracks["quality"].dtype.str for record in records} == {"|u1"}
    assert [record.tracks for record in read(tmp_path / "raw", "fastq")] == [{}, {}]
