"""Tables and JSON Lines read in columns give what the strict readers give, records and errors, for any bytes."""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe import intake, slices
from seqpipe.errors import SeqpipeError
from seqpipe.ingest import preprocess
from seqpipe.intake import collect
from seqpipe.options import PreprocessOptions
from seqpipe.parts import STATE
from seqpipe.plan import Plan, lay_out, look_ahead
from seqpipe.readers import regular
from seqpipe.readers.numbers import parse_json_numbers
from seqpipe.slices import Slice

ROWS = {
    "csv": ["a,ACGT,x\n", "b,AC,y\n", "c,GT,\n", ",AC,y\n", "d,,y\n", "e,AC\n", "f,AC,x,y\n", '"g",AC,x\n', "h,a c,é\n",
            "i,AC,x\r\n", "j,AC,x\r", "\n", "k,é,x\n", "l,AC,\0\n", 'm,AC,x"y\n', "n,AC,\ud800x\n", "o,AC,\u2028\n",
            "p,AC,last", "\ufeff", ",,\n", 'q,AC,"x\ny"\n', " \n",
            '"r","AC","x"\n', '"","AC","x"\n', 's,"AC",""\n', 't,AC,"x""y"\n', 'u,AC,""""\n', 'v,"AC"x,y\n',
            'w,x"AC",y\n', 'x,"AC,y","z"\n', 'y,AC," ""x"\n', '"z,AC",x"\n', '"a"",AC",x\n', 'b,"AC"\n',
            '"c","AC","x"\r\n', '"d","AC","x"', 'e,"AC,y"\n'],
    "jsonl": ['{"id": "a", "seq": "ACGT", "n": "x"}\n', '{"id": "b", "seq": "AC", "n": "é"}\n',
              '{"id": "c", "seq": "AC", "n": ""}\n', '{"id": "", "seq": "AC", "n": "x"}\n',
              '{"id": "d", "seq": "", "n": "x"}\n', '{"id": "e", "seq": "AC", "n": 1}\n',
              '{"id": "f", "seq": "AC"}\n', '{"seq": "AC", "id": "g", "n": "x"}\n', '{"id":"h","seq":"AC","n":"x"}\n',
              '{"id": "i", "seq": "AC", "n": "\\u0041"}\n', '{"id": "j", "seq": "AC", "n": "x\ty"}\n',
              '{"id": "k", "seq": "AC", "n": "x"}\r\n', '{"id": "l", "seq": "AC", "n": "x"}\r', "\n", "x", "\ufeff",
              '{"id": "m", "seq": "AC", "n": "x"} {}\n', '{"id": "n", "seq": "AC", "n": "x\ny"}\n',
              '{"id": "o", "seq": "a c", "n": "\ud800"}\n', '{"id": "p", "seq": "AC", "id": "q"}\n',
              '{"id": "q", "seq": "AC", "n": "last"}', '{"id": "r", "sex": "AC", "n": "x"}\n'],
}
ROWS["long"] = ["a,0,1.5,2,x\n", "a,1,-1e3,2,x\n", "b,0,3,4,y\n", "b,1,3,4,y\n", "a,0,7,8,x\n", "c,5,1,2,\n",
                "c,4,1,2,\n", '"c",6, 1 ,"2",\n', "d,0,1_0,2,x\n", "d_e,0,1,2,x\n", "d,0,\u0661,2,x\n", "d,0,,2,x\n",
                "d,0,NA,2,x\n", "d,0,1,inf,x\n", "d,nan,1,2,x\n", ",0,1,2,x\n", "b,2,3,4,z\n", "d,0,1\n", "\n",
                "d,0,1,2,é\r\n", '"d",1,1,2,"é"\n', '"d",1,1,2,"é\nx"\n', "d,0,1e39,2,x\n", "d,0,1,2,last",
                "d,0,\x1c1,2,x\n", "\ufeff"]
ROWS["tokens"] = [
    '{"id": 1, "seq": [1, 2, 30], "n": 1.50, "tracks/t": [0, 0.5, 1]}\n',
    '{"id": -0, "seq": [0], "n": -7, "tracks/t": [2]}\n',
    '{"id": 3, "seq": [4, 5], "n": null, "tracks/t": [1e2, 2e-05]}\n', *(
        f'{{"id": {name}, "seq": {seq}, "n": {n}, "tracks/t": {track}}}\n' for name, seq, n, track in [
            (4, "[1, 2]", "true", "[1]"), (5, "[]", "1", "[]"), (6, "[1, 2.0]", "1", "[1, 2]"), (7, "[-1]", "1", "[1]"),
            (8, "[01]", "1", "[1]"), (9, "[9007199254740993]", "1e999", "[1]"), (10, "[true]", "1", "[false]"),
            (11, "[99999999999999999999]", "1", "[1]"), (12, "[1,2]", "false", "[3,4]"), (13, "[1 ,2]", "1", "[3, 4]"),
            ('"x"', "[1]", '"x"', "[1]"), ('"\\u0000"', "[1]", '"\\u00e9"', "[1]"), ("1.0", "[1]", "1", "[1]"),
            (14, "[1]", "[1, [2], {}]", "[1]"), (15, "[1]", '{"a": 1, "a": 2}', "[1]"),
            (16, "[1]", '{"a": [1]}', "[1]"),
            (17, "[1]", "01", "[1]"), (18, "[1]", "1, 2", "[1]"), (19, "[1]", "", "[1]"), (33, "[1]", " ", "[1]"),
            (34, "[true]", "1", "[1]"), (35, "[1 2]", "1", "[1]"), (20, "[1]", "NaN", "[NaN]"),
            (21, "[1, 2]", "1", "[-0, -0.0]"), (22, "[[1]]", "1", "[1]"), (23, "[1, 2", "1", "[1, 2]"),
            (24, "[1]", "1", "3"),
            (25, "[1] ", "1e2", "[1]"), (26, "[1.5]", "1", "[1.5]"), (27, '"AC"', "1", "[1, 2]"),
            ("true", "[1]", "1", "[1]")]),
    "\n", '{"id": 28, "seq": [1], "tracks/t": [1], "n": 2}\n', '{"id": 29, "seq": [1], "n": 2}\n',
    '{"id": 30, "seq": [1], "n": 2, "tracks/t": [1]} \n', '{"id":31,"seq":[1],"n":2,"tracks/t":[1]}\n',
    '{"id": 32, "seq": [1], "n": 2, "tracks/t": [1]}']
ROWS["rows"] = [
    '{"id": "a", "seq": [[1, -2.5], [0.25, 1e3]], "tracks/quality": [7, 255]}\n',
    '{"id": "b", "seq": [[0.1, 2]], "tracks/quality": [0]}\n',
    '{"id": "é", "seq": [[-0.0, -1.5E-2]], "tracks/quality": [1]}\n',
    *(f'{{"id": "c", "seq": {seq}, "tracks/quality": {quality}}}\n' for seq, quality in [
        ("[[1, 2], [3]]", "[1, 2]"), ("[[1, 2], 3]", "[1, 2]"), ("[[1], [2, 3, 4]]", "[1, 2]"), ("[[1, 2, 3]]", "[1]"),
        ("[[1.5, -0]]", "[1]"), ("[[-0, 3]]", "[1]"), ("[[]]", "[1]"), ("[[1, 9007199254740993]]", "[1]"),
        ("[[1,2],[3,4]]", "[1,2]"),
        ("[[1, 2],  [3, 4]]", "[1, 2]"), ("[[1, 1e39]]", "[1]"), ("[[1, 1e999]]", "[1]"), ("[[1, null]]", "[1]"),
        ("[[1, NaN]]", "[1]"),
        ("[[1, true]]", "[1]"), ("[[1, 2]]", "[256]"), ("[[1, 2]]", "[1.0]"), ("[[1, 2]]", "[true]"),
        ("[[1, 2]]", "[1, 2]"),
        ("[[1, .5]]", "[1]"), ("[[1, 5.]]", "[1]"), ("[[1, +5]]", "[1]"), ("[[1, 1e]]", "[1]"),
        ("[[1, 2.5.1]]", "[1]"), ("[[1, 2-3]]", "[1]"),
        ("[[1, 00.5]]", "[1]"), ("[[1, -00.5]]", "[1]"), ("[[1], 2]", "[1]"), ("[[1, 1], [1]], [1]", "[1]"),
        ("[[1, 2]], [3, 4]]", "[1]"),
        ("[1.5, 2]", "[1, 2]"), ("[1, 2]", "[1, 2]"), ("[[[1, 2]]]", "[1]"), ("[[1, 2] ]", "[1]"),
        ("[[1, 2], 3[, 4]]", "[1, 2]"), ('[[1, "2"]]', "[1]")])]
ROWS["flat"] = [f'{{"seq": {seq}}}\n' for seq in (
    "[1.5, 2]", "[3e0]", "[0.1, -2]", "[1, 2]", "[1, 2.0, 3]", "[0.5, true]", "[0.5, null]", "[[0.5]]", "[NaN, 1]",
    "[0.5,1]", "[-0, 1.5]")]
HEADS = {"csv": ["id,seq,n\n"] * 6 + ["id,seq,id\n", "seq\n", "id,,seq\n", '"id",seq,n\n', "\ufeffid,seq,n\n",
                                      "\nid,seq,n\n", "id,n,other\n", "id,seq,n\r\n"],
         "long": ["id,t,v,w,n\n"] * 6 + ['"id","t","v","w","n"\n', "t,id,v,w,n\n", "t,x,v,w,n\n", "id,t,v,n\n",
                                         "v,t,w\n"],
         **dict.fromkeys(("jsonl", "tokens", "rows", "flat"), [""])}


def outcome(raw: Path, format: str, folder: Path, alphabet: str, in_columns: bool) -> object:
    """Return the spools of the part made of a file, or the error."""
    options = PreprocessOptions(raw=(raw,), out=raw, alphabet=alphabet, label_type="none",
                                on_missing="nan" if alphabet == "dna" and format not in ("csv", "jsonl") else "error")
    if format not in ("csv", "jsonl"):
        options = replace(options, alphabet="auto")
    if format == "long":
        options = replace(options, value_columns="v,w", time_column="t")
    whole = Slice(raw, "csv" if format in ("csv", "long") else "jsonl")
    try:
        plan = Plan(options, ())
        first, _ = look_ahead(whole, plan)
        plan = Plan(options, (), lay_out(first, plan))
        with pytest.MonkeyPatch.context() as patch:
            if not in_columns:
                patch.setattr(slices.Slice, "in_columns", lambda self, encoding: False)
            collect([whole], plan, folder)
    except SeqpipeError as error:
        return str(error)
    state = json.loads((folder / STATE).read_text("utf-8"))
    return state, {name: (folder / name).read_bytes() for name, array in state["arrays"].items() if array["items"]}


def compare(data: bytes, format: str, alphabet: str, block_bytes: int) -> object:
    """Check that columns and strict reader agree on some bytes; return what they agree on."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(regular, "BLOCK_BYTES", block_bytes)
        raw = Path(folder, "a.dat")
        raw.write_bytes(data)
        strict = outcome(raw, format, Path(folder, "strict"), alphabet, False)
        found = outcome(raw, format, Path(folder, "columns"), alphabet, True)
    assert found == strict
    return found


@pytest.mark.parametrize("format", list(ROWS))
def test_any_rows_have_the_outcome_of_the_strict_reader(format):
    """Records, ids, columns, or the same message: for any regular rows with an odd one among them, any blocks."""
    good, odd = ROWS[format][:3], st.sampled_from(ROWS[format])

    @settings(deadline=None, max_examples=300)
    @given(st.sampled_from(HEADS[format]), st.lists(st.sampled_from(good), max_size=5), st.lists(odd, max_size=2),
           st.lists(st.sampled_from(good), max_size=3), st.sampled_from(["auto", "dna", "bytes"]), st.integers(1, 60))
    def check(head, before, between, after, alphabet, block_bytes):
        text = head + "".join(before + between + after)
        compare(text.encode("utf-8", "surrogatepass"), format, alphabet, block_bytes)

    check()


@pytest.mark.parametrize("format", list(ROWS))
def test_each_odd_row_has_the_outcome_of_the_strict_reader(format):
    """Behind a regular row, in its block or in the next one."""
    for odd in ROWS[format]:
        data = (HEADS[format][0] + ROWS[format][0] + odd).encode("utf-8", "surrogatepass")
        for block_bytes in (1, len(data)):
            compare(data, format, "auto", block_bytes)


def make_rows(format: str, count: int) -> bytes:
    rng = random.Random(0)
    if format == "long":
        return ("id,t,v,w,n\n" + "".join(f"r{number},{step},{rng.random()},{rng.random():.2f},{number % 3}\n"
                                         for number in range(count) for step in range(rng.randint(1, 4)))).encode()
    if format in ("tokens", "rows", "flat"):
        return "".join(ROWS[format][number % 3] for number in range(count)).encode()
    rows = [(f"r{number}", "".join(rng.choices("ACGT", k=rng.randint(1, 9))), rng.choice(["x", "", "é z"]))
            for number in range(count)]
    if format == "jsonl":
        objects = [dict(zip(("id", "seq", "n"), row, strict=True)) for row in rows]
        return "".join(json.dumps(values, ensure_ascii=False) + "\n" for values in objects).encode()
    return ("id,seq,n\n" + "".join(",".join(row) + "\n" for row in rows)).encode()


@pytest.mark.parametrize("format", list(ROWS))
def test_a_cut_at_any_byte_has_the_outcome_of_the_strict_reader(format):
    """A last line that is cut is an error, or a shorter last cell, as the strict reader has it."""
    data = make_rows(format, 4)
    for end in range(len(data) + 1):
        compare(data[:end], format, "auto", 30)


@pytest.mark.parametrize("format", list(ROWS))
def test_regular_rows_are_read_in_columns(monkeypatch, format):
    """No record of a regular file goes through the strict reader."""
    monkeypatch.setattr(intake.Intake, "add", None)
    monkeypatch.setattr(intake.Intake, "add_all", None)
    monkeypatch.setattr(regular, "BLOCK_BYTES", 200)
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "a.dat")
        raw.write_bytes(make_rows(format, 100))
        state, _ = outcome(raw, format, Path(folder, "part"), "auto", True)
    assert state["rows"] == 100


def test_objects_with_escapes_blanks_and_lists_are_read_in_columns(monkeypatch, tmp_path):
    """What only a parser can read does not need the strict reader either, and has its outcome."""
    values = [{"id": f"r{number}", "seq": [number, 2], "tracks/t": [0.5, 1], "n": n} for number in range(10)
              for n in ('say "é"', "x\\y", 1.5, None, ["a", {"b": [1]}])]
    data = "".join(json.dumps(value, separators=(", ", ":" + " " * (k % 3))) + "\n" for k, value in enumerate(values))
    raw = tmp_path / "a.dat"
    raw.write_bytes(data.encode())
    strict = outcome(raw, "tokens", tmp_path / "strict", "auto", False)
    monkeypatch.setattr(intake.Intake, "add_all", None)
    assert outcome(raw, "tokens", tmp_path / "part", "auto", True) == strict


def test_a_track_that_the_first_file_lacks_is_refused(tmp_path):
    """Of a later file that is read in columns, too: nothing of it is dropped."""
    (tmp_path / "a.jsonl").write_text('{"id": "a", "seq": [1]}\n', "utf-8")
    (tmp_path / "b.jsonl").write_text('{"id": "b", "seq": [1], "tracks/t": [1]}\n', "utf-8")
    with pytest.raises(SeqpipeError, match=r"has the tracks \['t'\], but the first record has \[\]"):
        preprocess(PreprocessOptions(raw=(tmp_path / "a.jsonl", tmp_path / "b.jsonl"), out=tmp_path / "s.h5"))


NUMBERS = [
    "0", "-0", "-0.0", "17", "-3", "0.5", "12.25", "1e5", "1E+05", "-1e-07", "3.14159265358979", "1e400", "01", "+1",
    "1.", ".5", "1e", "--1", "1-2", "1.2.3", "1e5e5", "", "-", "e5", "0x1", "NaN", "1 2", "9007199254740993", "-00.5"]


@settings(max_examples=1000)
@given(st.lists(st.one_of(st.sampled_from(NUMBERS[:11]), st.sampled_from(NUMBERS), st.floats().map(repr)), min_size=1,
                max_size=6))
def test_numbers_are_those_of_the_json_module_to_the_bit(texts):
    """What is taken has the values and the kind that json gives; what json refuses is not taken."""
    text = ",".join(texts)
    try:
        found = parse_json_numbers(text.encode())
    except ValueError:
        return
    values = json.loads(f"[{text}]")
    assert (found.dtype == np.int64) == all(type(value) is int for value in values)
    assert found.tobytes() == np.array(values, found.dtype).tobytes()
