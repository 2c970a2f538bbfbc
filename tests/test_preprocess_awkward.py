"""Odd files: each is imported as it stands, or refused with its place; the outcome of each is in cases.json."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil

import pytest

from seqpipe import slices
from seqpipe.readers.raw import MARKED
from seqpipe.sequences import SequenceDataset
from tests.importing import contents, refused, run
from tests.raw_files import AWKWARD

CASES = {case["id"]: case for case in json.loads((AWKWARD / "cases.json").read_text("utf-8"))}


def prepare(case, folder):
    """Return the command line of an awkward case, with what it needs put into ``folder``."""
    files = [folder / name for name in case["files"]]
    for path in files:
        if (AWKWARD / path.name).is_file():
            shutil.copy(AWKWARD / path.name, path)
    setup = case.get("setup", {})
    if setup.get("kind") == "long_line":
        unit, length = setup["unit"], setup["length"]
        files = [folder / "long.fasta"]
        files[0].write_text(f">big\n{unit * (length // len(unit))}\n", encoding="ascii")
    elif setup.get("kind") == "directory":
        files[0].mkdir()
    elif setup.get("kind") == "missing":
        files = [folder / setup["path"]]
    elif setup.get("kind") == "chmod":
        if os.geteuid() == 0:
            pytest.skip("root can read every file")
        files[0].chmod(0)
    options = case["options"]
    sequence = next((options[key] for key in ("sequence", "text", "tokens", "values") if key in options), None)
    chosen = {"--labels": files[1] if "labels" in options else None, "--id-column": options.get("id"),
              "--sequence-column": sequence, "--label-column": options.get("label"),
              "--format": options.get("format")}
    if "label_separator" in options:
        chosen |= {"--label-type": "multilabel", "--label-separator": options["label_separator"]}
    if case["format"] == "csv-long":
        chosen |= {"--time-column": options["time"], "--value-columns": ",".join(options["values"]),
                   "--sequence-column": None}
    return [files[0], *(word for option, value in chosen.items() if value is not None for word in (option, value)),
            "--split", "none"]


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case["expect"] == "accept"])
def test_awkward_inputs_are_imported_as_they_stand(tmp_path, capsys, name):
    """Ids, sequences and labels of every odd but right file arrive, in its order."""
    case, out = CASES[name], tmp_path / "x.h5"
    argv = [*prepare(case, tmp_path), "--out", out]
    code, text, err = run(capsys, *argv)
    assert code == 0, err

    found = contents(out)

    assert len(found) == case["n"] and SequenceDataset(out).lengths[:].tolist() == case["lengths"]
    stem = argv[0].stem
    assert list(found) == ([f"{stem}:{i + 1}" for i in range(case["n"])] if case["format"] in ("ts", "text")
                           else case["ids"])
    sequences = [sequence for sequence, _ in found.values()]
    if "sha256_concat" in case:
        assert hashlib.sha256("".join(sequences).encode()).hexdigest() == case["sha256_concat"]
    if case["format"] == "ts":
        assert sequences == case["values"]
    elif "sequences" in case:
        assert sequences == case["sequences"]
    if "labels" in case:
        assert [metadata["label"] for _, metadata in found.values()] == case["labels"]
    for sense, note in (("one class", "only one class, 'x'"), ("classes", "2,000 classes for 2,000 records")):
        if any(sense in warning for warning in case.get("warn", [])):
            assert note in text
    if case.get("warn"):
        assert "note     " in text


@pytest.mark.parametrize("old", [False, True], ids=["new", "over an old store"])
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case["expect"] == "reject"])
def test_awkward_inputs_are_refused_without_a_trace(tmp_path, capsys, name, old):
    """File, line and a telling word are in the one message; there is no output, or the old one untouched."""
    case, out = CASES[name], tmp_path / "out" / "x.h5"
    argv = [*prepare(case, tmp_path), "--out", out, *(["--overwrite"] if old else [])]
    out.parent.mkdir()
    if old:
        out.write_bytes(b"the old one")

    message = refused(capsys, *argv)

    expected = case["error"]
    assert expected["file"] in message
    if expected["lines_ok"]:
        assert re.search(rf"{re.escape(expected['file'])}:({'|'.join(map(str, expected['lines_ok']))}): ", message)
    assert any(word.lower() in message.lower() for word in expected["mention_any"])
    assert os.listdir(out.parent) == (["x.h5"] if old else [])
    assert not old or out.read_bytes() == b"the old one"


def test_strict_alphabet_names_line_and_symbol_of_an_awkward_input(tmp_path, capsys):
    """Where the alphabet is fixed, an ambiguity code and a lower-case letter are errors."""
    message = refused(capsys, AWKWARD / "fa_iupac.fasta", "--alphabet", "dna", "--out", tmp_path / "x.h5")
    assert "fa_iupac.fasta:2: record 'x': symbol 'R' at position 4" in message
    message = refused(capsys, AWKWARD / "fa_lower.fasta", "--alphabet", "dna", "--out", tmp_path / "x.h5")
    assert "fa_lower.fasta:2: " in message and "(0-based) is not in alphabet 'dna' (ACGTN)" in message


def test_latin_1_is_read_where_it_is_named(tmp_path, capsys):
    """``--encoding`` decodes what is not UTF-8."""
    out = tmp_path / "x.h5"
    assert run(capsys, AWKWARD / "enc_bad.txt", "--encoding", "latin-1", "--out", out)[0] == 0
    lines = (AWKWARD / "enc_bad.txt").read_bytes().decode("latin-1").splitlines()
    assert [sequence for sequence, _ in contents(out).values()] == lines


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name, content, options, kept", [
    ("a.csv", "id,seq\na,AC\n\ufeffid,seq\nb,AG\n\ufeffc,AA\n", [],
     {"a": "AC", "\ufeffid": "seq", "b": "AG", "\ufeffc": "AA"}),
    ("a.tsv", 'id\tseq\na\t"AC"\r\n\ufeff"b"\tAG\r\n\ufeffc\tAA\r\n', [],
     {"a": "AC", '\ufeff"b"': "AG", "\ufeffc": "AA"}),
    ("a.csv", "id,v\na,0.5\na,1.5\n\ufeffb,2\n\ufeffb,3\n", ["--value-columns", "v"],
     {"a": [[0.5], [1.5]], "\ufeffb": [[2.0], [3.0]]}),
    ("a.txt", "AC\n\ufeffAG\nA\ufeffA\n\ufeff\n", [],
     {"a:1": "AC", "a:2": "\ufeffAG", "a:3": "A\ufeffA", "a:4": "\ufeff"}),
    ("a.fa", ">a\nAC\n\ufeffAG\n\ufeffA\n>b \ufeff\nAG\n", [], {"a": "AC\ufeffAG\ufeffA", "b": "AG"}),
])
def test_a_byte_order_mark_inside_a_file_is_kept_and_counted(
    tmp_path, capsys, monkeypatch, name, content, options, kept, workers
):
    """Files put end to end: the marks of the later ones are text like any other, and the summary says so."""
    monkeypatch.setattr(slices, "SLICE_BYTES", 6)
    (tmp_path / name).write_bytes(("\ufeff" + content).encode())
    code, out, _ = run(capsys, tmp_path / name, *options, "--out", tmp_path / "x.h5", "--split", "none",
                       "--workers", workers)
    assert code == 0 and f"counted  {MARKED}: 2\n" in out
    assert {key: sequence for key, (sequence, _) in contents(tmp_path / "x.h5").items()} == kept


@pytest.mark.parametrize("name, content", [
    ("a.fa", ">a\nAC\n\ufeff>b\nAG\n"), ("a.fq", "@a\nAC\n+\nII\n\ufeff@b\nAC\n+\nII\n"),
    ("a.jsonl", '{"id": "a", "seq": "AC"}\n\ufeff{"id": "b", "seq": "AC"}\n'),
])
def test_a_byte_order_mark_before_a_record_is_refused_where_it_hides_it(tmp_path, capsys, name, content):
    """In formats whose records start with a mark of their own, the message names the line and shows it."""
    (tmp_path / name).write_bytes(content.encode())
    err = refused(capsys, tmp_path / name, "--out", tmp_path / "x.h5")
    assert re.search(rf"{re.escape(str(tmp_path / name))}:[2359]: .*'\\ufeff[>@{{]", err)
