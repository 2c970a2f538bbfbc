"""What is exported and imported again is the same store; what a format cannot hold is named beforehand."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqpipe.cli import main
from seqpipe.errors import OptionError, RawFormatError
from seqpipe.exporting import export
from seqpipe.ingest import preprocess
from seqpipe.options import ExportOptions, PreprocessOptions
from seqpipe.store import Store

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


def content(path: Path, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return all a store holds but how it was read, to be compared."""
    store = Store(path)
    same = ("kind", "encoding", "label_type", "classes", "channels", "splits", "writing")
    found: dict[str, Any] = {key: store.header[key] for key in same}
    found["columns"] = [name for name in store.header["columns"] if name not in without]
    found["moments"] = store.header.get("moments")
    for name, array in store.arrays.items():
        if not name.startswith(("checksums", "chunks", "header", *(f"metadata/{column}" for column in without))):
            found[name] = (array.dtype.str, array.shape, array[:].tobytes())
    return found


def import_again(command: str, out: Path) -> Path:
    """Run the command that an export prints; return the new store."""
    words = shlex.split(command)[1:]
    words[words.index("NEW.h5")] = str(out)
    assert main([*words, "--overwrite"]) == 0
    return out


def round_trip(store: Path, format: str, suffix: str = "") -> Path:
    """Export a store, and import what was written as the export says."""
    out = store.with_name(f"{store.stem}-again.{format}{suffix}")
    summary = export(ExportOptions(stores=(store,), format=format, out=out, overwrite=True))  # type: ignore[arg-type]
    assert summary is not None and summary.records == len(Store(store))
    return import_again(summary.command, out.with_suffix(".h5"))


@pytest.mark.parametrize(("format", "suffix"), [("csv", ""), ("jsonl", ""), ("csv", ".gz"), ("jsonl", ".gz")])
def test_peptides_survive_a_round_trip(amp_store: Path, format: str, suffix: str) -> None:
    """Tokens, classes, text columns and splits: the same store again, byte for byte but for its provenance."""
    assert content(round_trip(amp_store, format, suffix)) == content(amp_store)


def test_features_survive_a_round_trip(vowels_store: Path) -> None:
    """Every float32 bit, the classes and the splits; the split becomes a column that was not there."""
    assert content(round_trip(vowels_store, "jsonl"), without=("split",)) == content(vowels_store)


def test_fasta_survives_a_round_trip(make_store: Callable[..., Path]) -> None:
    """Ids and descriptions are all that FASTA has."""
    store = make_store("a.fasta", ">x/1 a  b >c \nACGT\nNN\n>y|é\nAC\n", alphabet="iupac")
    assert content(round_trip(store, "fasta")) == content(store)
    assert (store.parent / "a-again.fasta").read_text() == ">x/1 a  b >c \nACGTNN\n>y|é\nAC\n"


@st.composite
def records(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Draw the objects of a JSON Lines file, and options to import it with."""
    count = draw(st.integers(1, 6))
    alphabet = draw(st.sampled_from(["dna", "protein", "chars", "bytes", "ints", "features"]))
    symbols = {"dna": "ACGTN", "protein": "ACDEFGHIKLMNPQRSTVWYBJOUXZ*-"}.get(alphabet)
    if alphabet == "ints":
        sequence = st.lists(st.integers(0, draw(st.sampled_from([3, 300, 70000, 2**40]))), min_size=1, max_size=8)
    elif alphabet == "features":
        number = st.floats(width=32, allow_nan=False, allow_infinity=False)
        channels = draw(st.integers(1, 3))
        sequence = st.lists(st.lists(number, min_size=channels, max_size=channels), min_size=1, max_size=5)
    else:
        sequence = st.text(symbols or st.characters(codec="utf-8"), min_size=1, max_size=12)
    ids = draw(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6),
                        min_size=count, max_size=count, unique=True))
    found: list[dict[str, Any]] = [{"id": name, "sequence": draw(sequence)} for name in ids]
    options = {"alphabet": alphabet if alphabet != "features" else "auto", "split": "none"}
    label = draw(st.sampled_from([None, st.sampled_from(["a", "b", "\u2028", "10", "9"]), st.integers(0, 3),
                                  st.floats(-1e30, 1e30)]))
    columns = {"label": label} if label is not None else {}
    if label is not None:
        options["label_type"] = draw(st.sampled_from(["class", "number"])) if label is not None else "none"
        if options["label_type"] == "number":
            columns["label"] = st.floats(-1e30, 1e30)
    for name in draw(st.lists(st.sampled_from(["age", "note", "a/b", "é", "sequence_2", "split"]), unique=True)):
        columns[name] = draw(st.sampled_from([ANY_TEXT, st.integers(-10**17, 10**17), st.floats(allow_nan=False,
                             allow_infinity=False), st.sampled_from(["1", "2.50", "", "x"])]))
    if draw(st.booleans()):
        options["split"] = draw(st.sampled_from(["0.5,0.3,0.2", "column:part"]))
        columns["part"] = st.sampled_from(["train", "valid", "test", "fold-1"])
    has_track = alphabet != "bytes" and draw(st.booleans())
    time = st.floats(allow_nan=False, allow_infinity=False)
    for record in found:
        record |= {name: draw(values) for name, values in columns.items()}
        if has_track:
            length = len(record["sequence"])
            record["tracks/time"] = draw(st.lists(time, min_size=length, max_size=length))
    return found, options


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=records())
def test_json_lines_hold_everything(case: tuple[list[dict[str, Any]], dict[str, str]], tmp_path: Path) -> None:
    """Any tokens, features, labels, columns and splits: exported and imported again, the store is the same."""
    objects, options = case
    raw = tmp_path / "x.jsonl"
    raw.write_text("".join(json.dumps(entry) + "\n" for entry in objects))
    store = tmp_path / "x.h5"
    preprocess(PreprocessOptions(raw=(raw,), out=store, overwrite=True, **options))  # type: ignore[arg-type]

    again = round_trip(store, "jsonl")

    added = [name for name in Store(again).header["columns"] if name not in Store(store).header["columns"]]
    assert len(added) <= (options["split"] != "none")
    assert content(again, without=tuple(added)) == content(store)
    assert content(round_trip(again, "jsonl")) == content(again)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=records())
def test_csv_holds_what_it_does_not_refuse(case: tuple[list[dict[str, Any]], dict[str, str]], tmp_path: Path) -> None:
    """CSV refuses features, tracks and NUL, and gives the rest back as it was."""
    objects, options = case
    raw = tmp_path / "x.jsonl"
    raw.write_text("".join(json.dumps(entry) + "\n" for entry in objects))
    store = tmp_path / "x.h5"
    preprocess(PreprocessOptions(raw=(raw,), out=store, overwrite=True, **options))  # type: ignore[arg-type]
    try:
        again = round_trip(store, "csv")
    except OptionError as error:
        assert "--format jsonl" in str(error)
        has_nul = any("\0" in str(value) for entry in objects for value in entry.values())
        assert Store(store).kind == "features" or Store(store).tracks or has_nul
        return
    added = [name for name in Store(again).header["columns"] if name not in Store(store).header["columns"]]
    assert content(again, without=tuple(added)) == content(store)


@pytest.mark.parametrize(("name", "raw", "options", "format", "message"), [
    ("a.jsonl", '{"id": "a", "sequence": [[1.0]]}', {}, "fasta", "rows of numbers; use --format jsonl"),
    ("a.jsonl", '{"id": "a", "sequence": [[1.0]]}', {}, "csv", "rows of numbers; use --format jsonl"),
    ("a.jsonl", '{"id": "a b", "sequence": "AC"}', {}, "fasta", r"space in the id of row 0, 'a b'; use --format csv"),
    ("a.jsonl", '{"id": "a", "sequence": "AC", "n": 1}', {}, "fasta", r"the column 'n'; use --format csv or jsonl"),
    ("a.jsonl", '{"id": "a", "sequence": "A C"}', {}, "fasta", r"symbol ' ' in a sequence; use --format csv or jsonl"),
    ("a.jsonl", '{"id": "a", "sequence": "A C"}', {"alphabet": "bytes"}, "fasta", r"the symbol ' ' in a sequence"),
    ("a.jsonl", '{"id": "a", "sequence": "A>C"}', {}, "fasta", r"the symbol '>' in a sequence"),
    ("a.jsonl", '{"id": "a", "sequence": [1, 2]}', {}, "fasta", r"integers; use --format csv or jsonl"),
    ("a.jsonl", '{"id": "a", "sequence": "AC", "description": " x"}', {}, "fasta", r"'description' of row 0"),
    ("a.jsonl", '{"id": "a", "sequence": "AC", "n": "\\u0000"}', {}, "csv", r"NUL in the column 'n' of row 0.*jsonl"),
    ("a.jsonl", '{"id": "a", "sequence": "A\\u0000"}', {}, "csv", r"NUL.*--format jsonl"),
    ("a.fasta", ">a\nAC\n", {"split": "1,0"}, "fasta", r"the splits; use --format csv or jsonl"),
])
def test_what_a_format_cannot_hold_is_refused_by_name(
    make_store: Callable[..., Path], name: str, raw: str, options: dict[str, str], format: str, message: str
) -> None:
    """Before anything is written, with the format that can."""
    store = make_store(name, raw + "\n", **options)
    before = sorted(store.parent.iterdir())
    with pytest.raises(OptionError, match=message):
        export(ExportOptions(stores=(store,), format=format, out=store.with_name("out")))  # type: ignore[arg-type]
    assert sorted(store.parent.iterdir()) == before


def test_columns_and_splits_are_chosen(amp_store: Path, tmp_path: Path) -> None:
    """--columns leaves the rest out, so that FASTA holds it; --split takes one split's records in their order."""
    out = tmp_path / "test.fasta"
    summary = export(ExportOptions(stores=(amp_store,), format="fasta", out=out, split="test", columns="description"))
    store = Store(amp_store)
    ids = [store.metadata["id"][row] for row in store.split_rows("test").tolist()]
    assert [line.split()[0][1:] for line in out.read_text().splitlines() if line[0] == ">"] == ids
    assert summary is not None and summary.records == len(ids)
    with pytest.raises(OptionError, match=r"--columns size: .* has no 'size'; it has 'label', .*'split'"):
        export(ExportOptions(stores=(amp_store,), format="csv", out=tmp_path / "x", columns="size"))


def test_standard_output_holds_records_alone(amp_store: Path) -> None:
    """With --out - the records go to stdout and the command to import them to stderr; a closed pipe is no traceback."""
    command = [sys.executable, "-m", "seqpipe.cli", "export", str(amp_store), "--format", "jsonl", "--out", "-"]
    run = subprocess.run(command, capture_output=True, check=True)
    lines = run.stdout.splitlines()
    assert len(lines) == len(Store(amp_store)) and all(json.loads(line)["id"] for line in lines)
    assert b"seqpipe preprocess RAW --out NEW.h5 --format jsonl" in run.stderr
    cut = subprocess.run(f"{shlex.join(command)} | head -1", shell=True, capture_output=True)
    assert b"Traceback" not in cut.stderr and b"Exception" not in cut.stderr and len(cut.stdout.splitlines()) == 1


def test_the_same_store_gives_the_same_compressed_file(amp_store: Path, tmp_path: Path) -> None:
    """No time and no name of the temporary file stands in it."""
    for name in ("a.csv.gz", "b.csv.gz"):
        (tmp_path / name[0]).mkdir()
        export(ExportOptions(stores=(amp_store,), format="csv", out=tmp_path / name[0] / "x.csv.gz"))
    first, second = ((tmp_path / k / "x.csv.gz").read_bytes() for k in "ab")
    assert first == second and gzip.decompress(first).startswith(b"id,sequence,label,")


def test_an_existing_output_is_kept(amp_store: Path, tmp_path: Path) -> None:
    """Without --overwrite; and the store itself is never the output."""
    out = tmp_path / "x.csv"
    out.write_text("mine")
    with pytest.raises(OptionError, match="--overwrite"):
        export(ExportOptions(stores=(amp_store,), format="csv", out=out))
    with pytest.raises(OptionError, match="this is one of the inputs"):
        export(ExportOptions(stores=(amp_store,), format="csv", out=amp_store, overwrite=True))
    assert out.read_text() == "mine" and len(Store(amp_store)) == 4620


def test_numbers_keep_their_bits(make_store: Callable[..., Path]) -> None:
    """Double precision labels and columns come back exactly, as do integers beyond 2**53."""
    rows = "a,AC,0.1,1e-300,9007199254740993\nb,A,-2.5,0.30000000000000004,1\n"
    store = make_store("a.csv", "id,sequence,label,x,n\n" + rows, label_type="number")
    text = (store.parent / "a.csv").read_text()
    again = Store(round_trip(store, "jsonl"))
    assert content(again.path) == content(store)
    label = again.metadata["label"]
    assert isinstance(label, np.ndarray) and label.tolist() == [0.1, -2.5]
    round_trip(store, "csv")
    assert (store.parent / "a-again.csv").read_text() == text


def test_numbers_keep_their_texts(make_store: Callable[..., Path]) -> None:
    """0.50 stays 0.50, in CSV and in JSON Lines."""
    raw = "id,sequence,price,ratio,n\na,AC,0.50,-0,12\nb,A,2.25,0.5,-3\n"
    store = make_store("a.csv", raw)
    again = round_trip(round_trip(store, "jsonl"), "csv")
    assert content(again) == content(store)
    assert again.with_suffix(".csv").read_text() == raw


def test_tracks_and_channels_survive_a_round_trip(tmp_path: Path) -> None:
    """A long table with times, missing numbers and names of channels; reads with their qualities."""
    long, reads = tmp_path / "long.csv", tmp_path / "reads.fastq"
    long.write_text('id,t,"v,1",v2,label\na,0,1.5,2,up\na,1.25,,2,up\nb,0,3,-4e-7,down\n')
    reads.write_text("@r1 x\nACGTN\n+\n!IIz~\n@r2\nAC\n+\nAB\n")
    for raw, options in ((long, {"time_column": "t", "value_columns": '"v,1",v2', "on_missing": "nan"}),
                         (reads, {"quality": "keep", "alphabet": "dna"})):
        store = raw.with_suffix(".h5")
        preprocess(PreprocessOptions(raw=(raw,), out=store, split="none", **options))  # type: ignore[arg-type]
        assert Store(store).tracks
        assert content(round_trip(store, "jsonl")) == content(store)
        with pytest.raises(OptionError, match="--format jsonl"):
            export(ExportOptions(stores=(store,), format="csv", out=tmp_path / "x.csv"))


@pytest.mark.parametrize("format", ["fasta", "csv", "jsonl"])
def test_unknown_symbols_and_case_survive_a_round_trip(make_store: Callable[..., Path], format: str) -> None:
    """What the alphabet did not hold is written as ?, and is unknown again."""
    store = make_store("a.fasta", ">a x\nACGTxRn\n>b\nac\n", alphabet="dna", on_unknown="unk", case="upper")
    assert content(round_trip(store, format)) == content(store)


@pytest.mark.parametrize(("entry", "options", "message"), [
    ('"sequence": "ACG", "tracks/time": [1.0, 2.0]', {}, "the track 'time' has 2 numbers for 3 elements"),
    ('"sequence": "ACG", "tracks/time": [1.0, 2.0, "x"]', {}, "key 'tracks/time': found 'x' at position 2"),
    ('"sequence": "ACG", "tracks/quality": [1, 2, 256]', {}, "0 <= quality < 256"),
    ('"sequence": [[1.0, 2.0]]', {"value_columns": "a"}, "found features of 2 channels, and --value-columns names 1"),
    ('"sequence": "ACG"', {"value_columns": "a"}, "found text, and --value-columns names 1 channel"),
])
def test_tracks_and_channels_that_do_not_fit_are_refused(
    make_store: Callable[..., Path], entry: str, options: dict[str, str], message: str
) -> None:
    """By file, line and id."""
    with pytest.raises(RawFormatError, match=rf"a.jsonl:1: record 'a': .*{message}"):
        make_store("a.jsonl", f'{{"id": "a", {entry}}}\n', **options)


def test_several_labels_and_targets_survive_a_round_trip(make_store: Callable[..., Path]) -> None:
    """Sets of classes, empty ones among them and names with separators in them; one class per element."""
    entries = [{"id": f"a{i}", "sequence": "ACGT"[: 1 + i % 4], "label": [["x", "y;z"], ["x"], [], ["q"]][i % 4],
                "target": ["h", "e", "h", "e"][: 1 + i % 4], "split": ("train", "test")[i % 2]} for i in range(8)]
    store = make_store("a.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries), alphabet="dna",
                       label_type="multilabel", target_column="target", split="column:split")
    assert content(round_trip(store, "jsonl")) == content(store)


@pytest.mark.parametrize(("options", "added"), [
    ({"split": "0.5,0.3,0.2", "classes": "c\nunused\na\nb\n"}, ()),  # made like another store: no column more
    ({"folds": 3}, ("split",)), ({"folds": 3, "compression": "gzip"}, ("split",)),
    ({"split_by": "group:note", "split": "0.5,0.5"}, ("split",)), ({"case": "lower"}, ("split",)),
])
def test_splits_that_were_drawn_survive_a_round_trip(
    make_store: Callable[..., Path], tmp_path: Path, options: dict[str, Any], added: tuple[str, ...]
) -> None:
    """With classes in any order, some of them of no record, folds, chunks, and ids of any text."""
    ids = ["a/b", ".", "..", " x ", "\u2028", "a\nb", 'q"q', ",", "\t", "#", "@id", ">x", "\ufeffz", "NA", "007"]
    if "classes" in options:
        (tmp_path / "classes.txt").write_text(options["classes"])
        options = options | {"classes": tmp_path / "classes.txt"}
    entries = [{"id": name, "sequence": "ACGT"[: 1 + i % 4], "label": "abc"[i % 3], "note": f"é\n{i % 5}"}
               for i, name in enumerate(ids)]
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    store = make_store("a.jsonl", text, **{"split": "0.5,0.3,0.2", **options})
    assert len(Store(store).splits) > 1
    for format in ("jsonl", "csv"):
        assert content(round_trip(store, format), without=added) == content(store)
