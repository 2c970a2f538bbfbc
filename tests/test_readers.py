"""Readers give back every record as it stands, tell the format, and stream."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import tracemalloc
from pathlib import Path

import pytest

from seqpipe.errors import OptionError, RawFormatError
from seqpipe.readers import detect_format, read_records
from seqpipe.readers.raw import RawFile
from seqpipe.readers.tables import read_labels
from seqpipe.records import ColumnChoice
from tests.raw_files import AWKWARD, plain, read, read_bytes

DATA = Path(__file__).parents[1] / "data"
CASES = {case["id"]: case for case in json.loads((AWKWARD / "cases.json").read_text("utf-8"))}
# What a reader alone does not decide: unique ids, empty sequences, label columns, joins,
# long tables, and file modes that do not bind every user.
LATER = {
    "fa-dup-id", "fa-empty-seq", "jsonl-empty-list", "label-column-missing", "label-id-mismatch",
    "csv-missing-cell", "csv-nan-inf", "unreadable", "fa-long-line", "missing-file", "zstd",
}


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


def test_qualities_are_kept_where_asked_for(tmp_path):
    """Phred scores from 0 to 93, one per base, wrapped records too; without the choice there is no track."""
    data = b"@a\nACGT\n+\n!~I@\n\n@b x\nGG\nC\n+\n@+\n\"\n"
    records = read_bytes(tmp_path, data, "fastq", quality=True)
    assert [record.tracks["quality"].tolist() for record in records] == [[0, 93, 40, 31], [31, 10, 1]]
    assert {record.tracks["quality"].dtype.str for record in records} == {"|u1"}
    assert [record.tracks for record in read(tmp_path / "raw", "fastq")] == [{}, {}]


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
    known = {"--format", "--encoding", "--id-column", "--sequence-column", "--label-column", "--labels",
             "--value-columns", "--time-column", "--on-missing", "--on-undecodable"}
    assert set(re.findall(r"--[a-z][a-z-]*[a-z]", text)) <= known


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
