"""The table of --labels, and long tables."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from seqpipe.errors import RawFormatError
from seqpipe.readers.tables import read_labels
from tests.raw_files import plain, read_bytes


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
        (b"id,label\na\n", 2, r"found 1 cell,"),
        (b"id,label\n", 1, r"no row below the header"),
        (b"", None, r"found none"),
    ],
)
def test_broken_labels_are_refused(tmp_path, content, line, message):
    (tmp_path / "l.csv").write_bytes(content)
    with pytest.raises(RawFormatError, match=message) as caught:
        read_labels(tmp_path / "l.csv")
    assert caught.value.line == line


# ---- long tables ------------------------------------------------------------------------------

LONG = b"id,t,v1,v2,who\na,0,1.5,2,x\na,0.5,-1e-3, 4 ,x\n\nb,7,5,6,y\n"
CHOICE = {"time": "t", "values": ("v2", "v1")}


def test_long_tables_become_features_tracks_and_columns(tmp_path):
    """One record per id: values in the order asked for, the time as a track, what does not change as a column."""
    a, b = read_bytes(tmp_path, LONG, "csv", **CHOICE)
    assert plain(a) == ("a", [[2.0, 1.5], [4.0, -0.001]], {"who": "x"}) and (a.line, b.line) == (2, 5)
    assert plain(b) == ("b", [[6.0, 5.0]], {"who": "y"})
    assert a.tracks["time"].tolist() == [0, 0.5] and a.tracks["time"].dtype == np.float64


def test_a_table_without_ids_is_one_record(tmp_path):
    """A file per sequence needs no id column; one that was meant as such changes, and is named."""
    (record,) = read_bytes(tmp_path, b"t\tv\n1\t2\n2\t3\n", "tsv", time="t", values=("v",))
    assert plain(record) == (None, [[2.0], [3.0]], {})
    with pytest.raises(RawFormatError, match=r":3: column 'name' is 'b', and 'a' in line 2; .*--id-column"):
        read_bytes(tmp_path, b"name,v\na,1\nb,2\n", "csv", values=("v",))


def test_long_sequences_are_parsed_in_pieces(tmp_path):
    """A sequence of more rows than are parsed at a time is one record, its times in order across the pieces."""
    rows = "".join(f"a,{i // 2},{i},-{i}\n" for i in range(10_000))
    (record,) = read_bytes(tmp_path, f"id,t,v1,v2\n{rows}".encode(), "csv", time="t", values=("v1", "v2"))
    assert record.sequence[:, 0].tolist() == list(range(10_000)) == (-record.sequence[:, 1]).tolist()
    assert record.tracks["time"].tolist() == [i // 2 for i in range(10_000)]
    with pytest.raises(RawFormatError, match=":4098: record 'a': column 't': the time 5.0 comes after 2047.0"):
        read_bytes(tmp_path, f"id,t,v1,v2\n{rows}".encode().replace(b"a,2048,4096", b"a,5,4096"), "csv", time="t",
                   values=("v1", "v2"))


@pytest.mark.parametrize(("old", "new", "line", "message"), [
    (b"-1e-3", b"", 3, "record 'a': column 'v1': missing number '', expected a finite number; .*--on-missing nan"),
    (b"-1e-3", b"NA", 3, "column 'v1': missing number 'NA'"),
    (b"-1e-3", b"inf", 3, "column 'v1': a number that is not finite, 'inf'"),
    (b"-1e-3", b"1_0", 3, "column 'v1': bad number '1_0', expected a decimal number"),
    (b"-1e-3", "\u0661".encode(), 3, "column 'v1': bad number '\u0661'"),
    (b"0.5", b"-0.5", 3, "column 't': the time -0.5 comes after 0.0; expected times that do not decrease"),
    (b"0.5", b"noon", 3, "column 't': bad number 'noon'"),
    (b"0.5", b"nan", 3, "column 't': missing number 'nan'"),
    (b" 4 ,x", b" 4 ,z", 3, "record 'a': column 'who' is 'z', and 'x' in line 2; expected one text for all rows"),
    (b"b,7", b",7", 5, "column 'id' is '', expected an id"),
    (b"v1", b"v3", 1, "there is no column 'v1'; the columns are 'id', 't', 'v3'.*--value-columns"),
    (b",t,", b",when,", 1, "there is no column 't'; .*--time-column"),
])
def test_broken_long_tables_name_line_id_and_column(tmp_path, old, new, line, message):
    """The message names the row's own line, not that of its record."""
    assert old in LONG
    with pytest.raises(RawFormatError, match=message) as caught:
        read_bytes(tmp_path, LONG.replace(old, new), "csv", **CHOICE)
    assert caught.value.line == line


def test_missing_numbers_are_kept_where_asked_for(tmp_path):
    """NaN stands for each of them, and they are counted; what is no number is an error all the same."""
    content = b"id,v\na,1\na,\na,NA\na,-inf\na,?\n"
    (record,) = read_bytes(tmp_path, content, "csv", values=("v",), missing=True)
    assert np.isnan(record.sequence[:, 0]).tolist() == [False, True, True, True, True]
    with pytest.raises(RawFormatError, match=":3: record 'a': column 'v': bad number 'none of it'"):
        read_bytes(tmp_path, content.replace(b"a,\n", b"a,none of it\n"), "csv", values=("v",), missing=True)
