"""The command preprocess: wrong files, every option, and what each message says."""

from __future__ import annotations

import ast
import os
import re
import shutil
from pathlib import Path

import pytest

import seqpipe
from scripts.preprocess import main
from seqpipe.sequences import SequenceDataset
from tests.conftest import DATA
from tests.importing import contents, refused, run

FASTA = ">a\nACGT\n>b\nGG\n"
TABLE = "id,seq,label,fold\na,ACGT,x,train\nb,GG,y,test\n"

WRONG = {
    "unknown symbol": (
        {"a.fa": ">a\nAC\nGJ\n"}, ["--alphabet", "dna"],
        "a.fa:3: record 'a': symbol 'J' at position 3 (0-based) is not in alphabet 'dna' (ACGTN); correct "
        "the record, or choose another --alphabet"),
    "unknown symbol in a wrapped sequence": (
        {"a.fa": "\n>b\nA\n>a\n\n AC\n;J\n\nG\nTTJ\n>c\nA\n"}, ["--alphabet", "dna"],
        "a.fa:10: record 'a': symbol 'J' at position 5 (0-based)"),
    "unknown symbol in a wrapped FASTQ": (
        {"a.fq": "@a\nAC\n\nGJ\n+\nIIII\n"}, ["--alphabet", "dna"],
        "a.fq:4: record 'a': symbol 'J' at position 3 (0-based)"),
    "duplicate id in a file": (
        {"a.fa": ">a\nA\n>b\nC\n>a x\nG\n>b\nC\n"}, [],
        "a.fa:5: record 'a': the id was given before, at {}/a.fa:1; ids must be unique: rename"),
    "duplicate id in two files": (
        {"a.fa": FASTA, "b.fa": "\n>c\nA\n>b\nA\n"}, [],
        "b.fa:4: record 'b': the id was given before, at {}/a.fa:3"),
    "many duplicate ids": (
        {"a.fa": "".join(f">r{i % 20}\nA\n" for i in range(60))}, [],
        "a.fa:41: record 'r0': the id was given before, at {}/a.fa:1;"),
    "the same stem twice": (
        {"a.txt": "x\n", "s/a.txt": "x\n"}, [], "s/a.txt:1: record 'a:1': the id was given before"),
    "empty sequence": (
        {"a.csv": "id,seq\na,AC\nb,\n"}, [], "a.csv:3: record 'b': the sequence is empty; expected at least"),
    "empty label": (
        {"a.csv": "id,seq,label\na,AC,x\nb,AC,\n"}, [],
        "a.csv:3: record 'b': column 'label': the label is empty; fill it in, or use --label-type none"),
    "empty label in a joined table": (
        {"a.fa": FASTA, "labels": "id,label\n\nb,\na,x\n"}, [],
        "labels:3: record 'b': column 'label': the label is empty"),
    "no label column": (
        {"a.csv": "\nid,seq,klass\na,AC,x\n"}, ["--label-column", "label"],
        "a.csv:2: there is no column 'label' for --label-column label; besides id and sequence the columns "
        "are 'klass'; name one of them"),
    "no label key": (
        {"a.jsonl": '{"seq": "A", "klass": 1}\n'}, ["--label-column", "id"],
        "a.jsonl:1: there is no column 'id' for --label-column id"),
    "no label column in FASTA": (
        {"a.fa": FASTA}, ["--label-column", "label"],
        "a.fa:1: record 'a': there is no column 'label' for --label-column"),
    "no label column in both": (
        {"a.fa": FASTA, "labels": "id,x\na,1\nb,2\n"}, ["--label-column", "y"],
        "the columns are 'description', 'x'"),
    "no split column": (
        {"a.csv": TABLE}, ["--split", "column:split"],
        "a.csv:1: there is no column 'split' for --split column:split; besides id and sequence the columns "
        "are 'label', 'fold'"),
    "empty split": (
        {"a.csv": TABLE + "c,A,x,\n"}, ["--split", "column:fold"],
        "a.csv:4: record 'c': column 'fold': found '' as the split; expected train, valid, test"),
    "split in a joined table": (
        {"a.fa": FASTA, "labels": "id,fold\na,train\nb,a/b\n"}, ["--split", "column:fold"],
        "labels:3: record 'b': column 'fold': found 'a/b' as the split"),
    "too many splits": (
        {"a.csv": "id,seq,fold\n" + "".join(f"r{i},A,f{i}\n" for i in range(1002))}, ["--split", "column:fold"],
        "a.csv:1002: record 'r1000': column 'fold': found more than 1000 different splits; choose another"),
    "split in the file's name": (
        {"a.fa": FASTA}, ["--split", "file"], "a.fa: --split file expects one of _TRAIN, _VALID"),
    "number label": (
        {"a.csv": "seq,label\nA,1.5\nA,x\n"}, [], "a.csv:3: record 'a:2': column 'label': label 'x' is no "
        "finite number; correct it, or use --label-type class"),
    "number label in a joined table": (
        {"a.fa": FASTA, "labels": "id,label\nb,nan\na,1.5\n"}, [],
        "labels:2: record 'b': column 'label': label 'nan' is no finite number"),
    "unmatched record": (
        {"a.fa": FASTA, "labels": "id,label\na,x\n"}, [],
        "labels: records without a row here (1): 'b'; expected one row for each record; correct the ids"),
    "unmatched row": (
        {"a.fa": FASTA, "labels": "id,label\na,x\nb,y\nc,z\n"}, [],
        "labels: rows without a record (1): 'c' (line 4); expected one row"),
    "nothing matches": (
        {"a.fa": FASTA, "labels": "id,label\nc,x\n"}, [],
        "labels: records without a row here (2): 'a', 'b'; rows without a record (1): 'c'"),
    "column in record and table": (
        {"a.csv": TABLE, "labels": "id,label\na,x\nb,x\n"}, [],
        "a.csv:1: column 'label' stands both here and in {}/labels; rename it"),
    "column in a later record and table": (
        {"a.ts": "@classLabel false\n@data\n1,2\n", "b.ts": "@classLabel true x\n@data\n1,2:x\n",
         "labels": "id,label\na:1,x\nb:1,y\n"}, [], "b.ts:3: has the columns ['label'], but the first record has []"),
    "mixed kinds: text, then numbers": (
        {"a.fa": FASTA, "b.jsonl": '{"id": "c", "description": "", "tokens": [1]}\n'}, [],
        "b.jsonl:1: record 'c': found integers, expected text, as in the first record; all "
        "sequences must be of one kind"),
    "mixed kinds: numbers, then text": (
        {"a.jsonl": '{"tokens": [1]}\n', "b.txt": "1 2\n"}, [],
        "b.txt:1: found text, expected integers, as in the first record (--alphabet ints"),
    "mixed kinds: features, then text": (
        {"a.jsonl": '{"values": [[1.5, 2]]}\n', "b.txt": "1 2\n"}, [],
        "b.txt:1: found text, expected rows of 2 numbers; correct the record"),
    "other channels": (
        {"a.jsonl": '{"values": [[1.5, 2]]}\n', "b.jsonl": '{"values": [[1.5]]}\n'}, [],
        "b.jsonl:1: found 1 channel, expected 2; correct the record"),
    "features and an alphabet": (
        {"a.jsonl": '{"values": [[1.5, 2]]}\n'}, ["--alphabet", "dna"],
        "a.jsonl:1: found rows of 2 numbers, which are no symbols; leave --alphabet dna out"),
    "integers and an alphabet": (
        {"a.jsonl": '{"tokens": [1]}\n'}, ["--alphabet", "chars"],
        "a.jsonl:1: found integers, but --alphabet chars expects text; use --alphabet ints"),
    "text and ints": (
        {"a.fa": FASTA}, ["--alphabet", "ints"], "a.fa:2: record 'a': found 'ACGT', expected integers separated"),
    "float beyond float32": (
        {"a.jsonl": '{"values": [1.5, 1e39]}\n'}, [],
        "a.jsonl:1: number 1e+39 at step 1, channel 0 (0-based) is not finite in float32"),
    "other columns": (
        {"a.csv": TABLE, "b.csv": "id,seq,label\nc,A,x\n"}, [],
        "b.csv:2: record 'c': has the columns ['label'], but the first record has ['fold', 'label']"),
    "column index": (
        {"a.csv": "id,seq,index\na,A,1\n"}, [], "a.csv:1: column 'index' has a name that seqpipe gives to"),
    "column id": (
        {"a.csv": "id,seq,name\na,A,1\n"}, ["--id-column", "name"], "a.csv:1: column 'id' has a name that seqpipe"),
    "column label and another label": (
        {"a.csv": TABLE}, ["--label-column", "fold"], "a.csv:1: column 'label' has a name"),
    "column with a long name": (
        {"a.csv": f"id,seq,{'ß' * 501}\na,A,1\n"}, [], "has a name of more than 1000 bytes; shorten"),
    "id with NUL": (
        {"a.jsonl": '{"id": "a\\u0000", "seq": "A"}\n'}, [], "a.jsonl:1: record 'a\\x00': the id is 'a\\x00'"),
    "id column of FASTA": (
        {"a.fa": FASTA}, ["--id-column", "name"], "a.fa: --id-column name is for csv, tsv, jsonl and h5, and"),
    "sequence column of FASTA": (
        {"a.fa": FASTA}, ["--sequence-column", "name"], "a.fa: --sequence-column name is for csv"),
    "no such labels": (
        {"a.fa": FASTA}, ["--labels", "{}/none.csv"], "none.csv: no such file; check the path"),
    "stratified without classes": (
        {"a.fa": FASTA}, ["--split-by", "stratified"],
        "--split-by stratified needs class labels, and the labels are 'none'; name"),
    "no group column": (
        {"a.fa": FASTA}, ["--split-by", "group:g"],
        "a.fa:1: record 'a': there is no column 'g' for --split-by group:g"),
    "bad split": (
        {"a.fa": FASTA}, ["--split", "0.5,0.6"], "--split 0.5,0.6: expected two or three shares"),
    "negative seed": (
        {"a.fa": FASTA}, ["--seed", "-1"], "--seed -1: expected 0 or more"),
    "large seed": (
        {"a.fa": FASTA}, ["--seed", str(2**64)],
        "--seed 18446744073709551616: expected 0 or more, up to 9223372036854775807"),
    "bad alphabet": (
        {"a.fa": FASTA}, ["--alphabet", "DNA"], "--alphabet DNA: no such alphabet, and no such file; expected auto"),
    "bad alphabet file": (
        {"a.fa": FASTA, "x/abc": "A\nBC\n"}, ["--alphabet", "{}/x/abc"], "x/abc:2: found 'BC'; expected auto"),
    "bad encoding": (
        {"a.fa": FASTA}, ["--encoding", "utf-9"], "--encoding 'utf-9': unknown encoding"),
    "missing second file": (
        {"a.fa": ">a\n\n>a\n"}, ["{}/b.fa"], "b.fa: no such file; check the path"),
    "folder": (
        {"a.fa": FASTA, "d/x": ""}, ["{}/d"], "d: is a directory; name the files in it"),
    "input given twice": (
        {"a.fa": FASTA}, ["{}/./a.fa"], "a.fa: given twice, first as {}/a.fa; name every raw file once"),
    "input given twice by a link": (
        {"a.fa": FASTA, "b.lnk": "a.fa"}, ["{}/b.lnk"], "b.lnk: given twice, first as {}/a.fa"),
    "unknown format": (
        {"a.dat": "x\n"}, [], "a.dat: neither the first lines nor the name tell the format"),
    "odd names": (
        {"größe und – mehr.fa": ">a\nA\n>a\nA\n"}, [], "größe und – mehr.fa:3: record 'a': the id was given before"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_gives_one_message_and_no_output(tmp_path, capsys, name):
    """Place, finding, expectation and remedy in one line; nothing is left in the output's folder."""
    files, options, expected = WRONG[name]
    raw = []
    for file, text in files.items():
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        if file.endswith(".lnk"):
            path.symlink_to(tmp_path / text)
            continue
        path.write_text(text, encoding="utf-8", newline="")
        if file == "labels":
            options = [*options, "--labels", str(path)]
        elif path.suffix:
            raw.append(path)
    out = tmp_path / "out" / "x.h5"
    out.parent.mkdir()

    options = [option.replace("{}", str(tmp_path)) for option in options]
    message = refused(capsys, *raw, *options, "--out", out)

    assert expected.replace("{}", str(tmp_path)) in message
    assert os.listdir(out.parent) == []


@pytest.fixture
def fasta(tmp_path):
    path = tmp_path / "a.fa"
    path.write_text(FASTA, encoding="ascii")
    return path


def test_an_existing_output_is_replaced_only_when_told(fasta, tmp_path, capsys):
    """Without --overwrite the old file stays as it is; with it, the new store takes its place."""
    out = tmp_path / "x.h5"
    out.write_bytes(b"old")
    message = refused(capsys, fasta, "--out", out)
    assert f"--out {out}: the file exists" in message and "--overwrite" in message and out.read_bytes() == b"old"
    assert run(capsys, fasta, "--out", out, "--overwrite")[0] == 0
    assert list(contents(out)) == ["a", "b"]
    assert sorted(os.listdir(tmp_path)) == ["a.fa", "x.h5"]


def test_outputs_that_cannot_be_are_refused_at_once(fasta, tmp_path, capsys):
    """An input, a folder, a device, or a folder that is not there; nothing is changed."""
    labels, alphabet = tmp_path / "labels.csv", tmp_path / "abc.txt"
    labels.write_text("id,label\na,x\nb,y\n", encoding="ascii")
    alphabet.write_text("A\nC\nG\nT\n", encoding="ascii")
    (tmp_path / "pipe").parent.joinpath("link").symlink_to(fasta)
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    for out, finding in ((fasta, "is one of the inputs"), (tmp_path / "link", "is one of the inputs"),
                         (labels, "is one of the inputs"), (alphabet, "is one of the inputs"),
                         (tmp_path, "this is a folder"), (tmp_path / "pipe", "a device or a pipe"),
                         (tmp_path / "no" / "x.h5", f"the folder {tmp_path / 'no'} does not exist; make it first"),
                         (fasta / "x.h5", "does not exist")):
        message = refused(capsys, fasta, "--labels", labels, "--alphabet", alphabet, "--out", out, "--overwrite")
        assert f"--out {out}: " in message and finding in message
    assert sorted(os.listdir(tmp_path)) == before and fasta.read_text("ascii") == FASTA


def test_no_raw_file_is_an_error_that_shows_the_command(tmp_path, capsys):
    """The message shows where raw files go."""
    assert "no raw file given; expected: seqpipe preprocess RAW... --out STORE" in refused(
        capsys, "--out", tmp_path / "x.h5")


@pytest.mark.parametrize("argv", [["a.fa"], ["a.fa", "--out", "x.h5", "--format", "genbank"],
                                  ["a.fa", "--out", "x.h5", "--seed", "x"],
                                  ["a.fa", "--out", "x.h5", "--on-unknown=drop"]])
def test_wrong_usage_exits_with_2(tmp_path, monkeypatch, capsys, argv):
    """A missing --out, a value or an option that does not exist."""
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert capsys.readouterr().err and os.listdir(tmp_path) == []


def test_odd_paths_and_names_are_ordinary(tmp_path, capsys):
    """Blanks, other scripts and a leading dash in names of files, folders, columns and classes."""
    folder = tmp_path / "мои данные – x"
    folder.mkdir()
    raw, out = folder / "日本 語.csv", folder / "вы ход.h5"
    raw.write_text("id,seq,label,a/b,.c,..,%2F,d e,values\nя 1,ACGT,z\u0301,1,2,3,4,5,6\n"
                   '"b,""",GG,"new\nline",2,3,4,5,6,x\n', encoding="utf-8", newline="")
    code, text, err = run(capsys, raw, "--split", "none", "--out", out)
    assert code == 0 and "2 classes from 'label': 'new\\nline', z\u0301" in text, (text, err)
    assert contents(out) == {
        "я 1": ("ACGT", {"label": "z\u0301", "a/b": 1, ".c": 2, "..": 3, "%2F": 4, "d e": 5, "values": "6"}),
        'b,"': ("GG", {"label": "new\nline", "a/b": 2, ".c": 3, "..": 4, "%2F": 5, "d e": 6, "values": "x"})}


@pytest.mark.skipif(os.name != "posix" or os.uname().sysname != "Linux", reason="other systems refuse such names")
def test_file_names_that_are_no_text_are_ordinary(tmp_path, capsys):
    """A name of bytes that are not UTF-8 is shown with replacement characters."""
    raw = tmp_path / os.fsdecode(b"gr\xf6\xdfe.txt")
    raw.write_text("abc\n", encoding="ascii")
    assert run(capsys, raw, "--out", tmp_path / "x.h5")[0] == 0
    assert list(contents(tmp_path / "x.h5")) == ["gr\ufffd\ufffde:1"]


# ---- options --------------------------------------------------------------------------------


def test_every_option_is_tried_somewhere():
    """The tests use all options there are."""
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert [option for option in option_names("preprocess") if f'"{option}"' not in tests
            and f"{option[2:].replace('-', '_')}=" not in tests] == []


def test_options_choose_format_columns_and_types(tmp_path, capsys):
    """Format, columns, alphabet, type of labels and seed do what the help says."""
    raw, out = tmp_path / "raw.dat", tmp_path / "x.h5"
    raw.write_text("name\ttokens\tgrade\tid2\nr1\t5 0\t1\t007\nr2\t3\t2\t008\n", encoding="ascii")
    code, text, _ = run(capsys, raw, "--format", "tsv", "--id-column", "name", "--sequence-column", "tokens",
                        "--label-column", "grade", "--label-type", "number", "--alphabet", "ints", "--seed", 7,
                        "--split", "0.5,0.5", "--encoding", "ascii", "--out", out)
    assert code == 0 and "labels   numbers from 'grade'" in text and "alphabet ints, 6 symbols" in text
    assert contents(out) == {"r1": ("5 0", {"label": 1.0, "id2": "007"}), "r2": ("3", {"label": 2.0, "id2": "008"})}
    options = SequenceDataset(out).store.header["provenance"]["options"]
    assert options == {"format": "tsv", "id_column": "name", "sequence_column": "tokens", "label_column": "grade",
                       "label_type": "number", "split": "0.5,0.5", "split_by": "random", "folds": 0,
                       "encoding": "ascii", "seed": 7, "alphabet": "ints", "time_column": None,
                       "value_columns": None, "on_missing": "error", "on_undecodable": "error", "quality": "drop",
                       "case": "keep", "on_unknown": "error", "on_empty": "error", "min_length": 0,
                       "max_length": None, "on_long": "error",
                       "label_separator": ";", "target_column": None, "classes": None, "like": None,
                       "on_unmatched": "error", "on_duplicate": "error"}


@pytest.mark.parametrize(("kind", "labels"), [("auto", ["1", "2"]), ("class", ["1", "2"]), ("number", [1.0, 2.0]),
                                              ("none", ["1", "2"])])
def test_label_types_are_those_asked_for(tmp_path, capsys, kind, labels):
    """Integers are classes unless numbers are asked for; with none the column is like any other."""
    raw, out = tmp_path / "raw.csv", tmp_path / "x.h5"
    raw.write_text("seq,label\nA,1\nC,2\n", encoding="ascii")
    code, text, _ = run(capsys, raw, "--label-type", kind, "--out", out)
    assert code == 0
    assert [str(m["label"]) if kind == "none" else m["label"] for _, m in contents(out).values()] == labels
    assert ("labels are taken as classes" in text) is (kind == "auto")
    assert SequenceDataset(out).store.header["label_type"] == {"auto": "class"}.get(kind, kind)


@pytest.mark.parametrize("by", ["stratified", "group:g"])
@pytest.mark.parametrize("folds", [0, 5])
def test_splits_are_drawn_by_class_or_by_group(tmp_path, capsys, by, folds):
    """Each class has its shares to one record, or no group stands in two splits; folds as well as train and test."""
    raw, out = tmp_path / "a.csv", tmp_path / "x.h5"
    raw.write_text("id,seq,label,g\n" + "".join(f"r{i},ACGT,c{i % 3},g{i % 20}\n" for i in range(99)), encoding="ascii")
    assert run(capsys, raw, "--split", "0.6,0.2,0.2", "--split-by", by, "--folds", folds, "--out", out)[0] == 0
    dataset = SequenceDataset(out)
    splits = {name: [dataset[row][1] for row in rows.tolist()] for name, rows in dataset.store.splits.items()}
    assert list(splits) == ([f"fold{k}" for k in range(5)] if folds else ["train", "valid", "test"])
    assert sorted(m["id"] for rows in splits.values() for m in rows) == sorted(f"r{i}" for i in range(99))
    if by == "stratified":
        shares = dict.fromkeys(splits, 0.2) if folds else {"train": 0.6, "valid": 0.2, "test": 0.2}
        assert all(abs(sum(m["label"] == c for m in rows) - 33 * shares[name]) < 1
                   for name, rows in splits.items() for c in range(3))
    else:
        assert sum(len({m["g"] for m in rows}) for rows in splits.values()) == 20


def test_alphabets_decide_the_tokens(tmp_path, capsys):
    """A name fixes the tokens, auto takes the first that holds all, and a file is an alphabet too."""
    raw, out, symbols = tmp_path / "a.txt", tmp_path / "x.h5", tmp_path / "abc.txt"
    raw.write_text("GATA\n", encoding="ascii")
    symbols.write_text("T\nG\nA\n", encoding="ascii")
    for name, tokens in (("dna", [3, 1, 4, 1]), ("auto", [3, 1, 4, 1]), ("rna", None), ("iupac", [3, 1, 4, 1]),
                         ("protein", [6, 1, 17, 1]), ("chars", [2, 1, 3, 1]), ("bytes", [72, 66, 85, 66]),
                         (symbols, [2, 3, 1, 3])):
        argv = [raw, "--alphabet", name, "--overwrite", "--out", out]
        if tokens is None:
            assert "symbol 'T' at position 2 (0-based) is not in alphabet 'rna' (ACGUN)" in refused(capsys, *argv)
        else:
            assert run(capsys, *argv)[0] == 0
            assert SequenceDataset(out)[0][0].tolist() == tokens


def test_the_same_input_gives_the_same_bytes(tmp_path, capsys):
    """Output name, folder and time leave no trace; another seed does."""
    stores = []
    for number, seed in enumerate((0, 0, 1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(DATA / "amp/amp.fasta", folder)
        assert run(capsys, folder / "amp.fasta", "--labels", DATA / "amp/labels.tsv", "--seed", seed, "--out",
                   folder / f"{number}.h5")[0] == 0
        stores.append((folder / f"{number}.h5").read_bytes())
    assert stores[0] == stores[1] != stores[2]


def option_names(command):
    """Return the options of a command, as its --help prints them."""
    from seqpipe.cli import COMMANDS

    fields = COMMANDS[command][0].__dataclass_fields__
    return {f"--{name.replace('_', '-')}" for name in fields}


def test_help_names_every_option(capsys):
    """--help exits with 0, shows every option, the positional files and an example."""
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert [option for option in option_names("preprocess") - {"--raw"} if not re.search(rf"{option}[ ,]", text)] == []
    assert "RAW..." in text and "Example: seqpipe preprocess data/amp/amp.fasta" in text
    known = option_names("preprocess") | {"--help"}
    assert {*re.findall(r"--[a-z][a-z-]*", text)} <= known


def test_messages_offer_only_options_that_exist():
    """Every option that a message of the import mentions is one of preprocess, or of the describe it points to."""
    root = Path(seqpipe.__file__).parent
    modules = [*(root / "readers").glob("*.py"), *(root / f"{name}.py" for name in (
        "alphabet", "assembly", "collection", "encoding", "executors", "ingest", "intake", "labels", "likeness",
        "plan", "records", "selection", "splits", "spool", "summary", "targets", "writer"))]
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                unknown = {*re.findall(r"(?<![\w-])--[a-z][a-z-]*", node.value)}
                unknown -= option_names("preprocess") | option_names("describe")
                assert not unknown, f"{path.name}:{node.lineno}: {unknown}"
