"""Cut and damaged files are never read as shorter ones; broken lines are named."""

from __future__ import annotations

import gzip
import os

import pytest

from seqpipe.errors import RawFormatError
from tests import reference_readers
from tests.raw_files import COMPRESS, plain, read_bytes


WHOLE = {
    "fasta": ">a one\r\nACGT\r\nAC\r\n\r\n;c\r\n>b\r\nGGé\r\n",
    "fastq": "@a one\nACGT\n+\nII@+\n\n@b\nAC\nGT\n+b\n@I\nII\n",
    "csv": 'id,sequence,label\na,ACGT,x\n\nb,"A\r\n""C, ",y\nc,é,""\n',
    "tsv": "id\tsequence\tlabel\ra\tACGT\tx\rb\tAC\ty\r",
    "jsonl": '{"id":"1","seq":[[1.5,2.5],[3,4]],"label":"é"}\n\n{"id":"2","seq":[[5,6]],"label":null}\n',
    "text": "\ufeffalpha\n\nβeta\u2028 gamma\r\n",
    "ts": "@problemName T\n#c\n@dimensions 2\n@classLabel true up down\n@data\n1,2:3,4:up\n\n1:2:down\n",
}


def outcome(read):
    """Return the records, or the line of the error."""
    try:
        return [plain(record) if not isinstance(record, tuple) else record for record in read()]
    except RawFormatError as error:
        return error.line
    except reference_readers.Bad as error:
        return error.args[0]


@pytest.mark.parametrize("format", WHOLE)
def test_cut_at_every_byte_gives_what_a_slow_reader_gives(tmp_path, format):
    """The same records, or an error that names the same line; FASTQ and JSON Lines inside a record: an error."""
    content = WHOLE[format].encode()
    slow = getattr(reference_readers, format)
    whole = outcome(lambda: slow(content))
    assert outcome(lambda: read_bytes(tmp_path, content, format)) == whole and len(whole) > 1
    for size in range(len(content)):
        part = content[:size]
        found, expected = outcome(lambda: read_bytes(tmp_path, part, format)), outcome(lambda: slow(part))
        assert found == expected, part
        if format in ("fastq", "jsonl") and isinstance(found, list):
            assert found == whole[: len(found)], part


@pytest.mark.parametrize("kind, suffix", [("gzip", ".gz"), ("bzip2", ".bz2"), ("xz", ".xz"), ("zstd", ".zst")])
def test_compressed_file_cut_at_every_byte_is_an_error(tmp_path, kind, suffix):
    """Compressed data that end early are never read as a shorter file."""
    content = COMPRESS[kind](WHOLE["text"].encode())
    assert len(read_bytes(tmp_path, content, "text", name="raw.txt" + suffix)) == 2
    for size in range(len(content)):
        with pytest.raises(RawFormatError):
            read_bytes(tmp_path, content[:size], "text", name="raw.txt" + suffix)


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
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
    ("jsonl", b'{"seq":[1]}\n{"seq":[]}\n{"seq":[1.5]}\n', 3, r"1 channel, and line 1 holds integer"),
    ("jsonl", b'{"seq":[[1,2]]}\n{"seq":[[1]]}\n', 2, r"1 channel, and line 1 .* 2 channels"),
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
    ("ts", b"@classLabel true a\n@data\n1:2:a\n1:a\n", 4, r"found 1 channel and a label, expected 2"),
    ("ts", b"@classLabel false\n@data\n1,?,3\n", 3, r"channel 0, time step 1 \(both 0-based\): missing number '\?'"),
    ("ts", b"@classLabel false\n@data\n1,NaN\n", 3, r"time step 1 \(both 0-based\): missing number 'NaN'"),
    ("ts", b"@classLabel false\n@data\n1,2_0\n", 3, r"bad number '2_0'"),
    ("ts", b"@classLabel false\n@data\n1,1e999\n", 3, r"a number that is not finite, '1e999'"),
    ("ts", b"@classLabel false\n@data\n1,\n", 3, r"missing number ''"),
    ("ts", b"@targetLabel true\n@data\n1:nan\n", 3, r"target label 'nan', expected a finite number"),
    ("ts", b"@equalLength true\n@classLabel false\n@data\n1,2\n1\n", 5, r"found 1 time step, expected 2"),
    ("text", b"a\nb\0c\n", 2, r"a NUL character at column 2"),
    ("text", b"a\r\n" * 50_000 + b"b\xff", 50_001, r"byte 0xff at column 2 is not utf-8.*--encoding latin-1"),
    ("text", b"\xed\xa0\x80\n", 1, r"byte 0xed at column 1 is not utf-8"),
    ("text", b"\xff\xfea\0", 1, r"byte-order mark of UTF-16"),
    ("text", b"\xff\xfe\0\0a\0\0\0", 1, r"byte-order mark of UTF-32"),
    ("text", b"\x28\xb5\x2f\xfdxxxx", 1, r"zstd data are cut or damaged"),
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
