"""Raw files by pattern and from standard input."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqpipe import ingest, slices
from seqpipe.errors import OptionError
from seqpipe.inputs import expand
from seqpipe.sequences import SequenceDataset
from tests.importing import contents, refused, run

ROOT = Path(__file__).parents[1]


def test_patterns_give_files_in_the_order_of_their_names(tmp_path):
    """Folders and hidden files are left out; a file whose name looks like a pattern is itself."""
    for name in ("b.fa", "a.fa", "c.txt", ".d.fa", "x/e.fa", "x/f[1].fa", "x/f1.fa"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(">a\nA\n", encoding="ascii")
    (tmp_path / "g.fa").mkdir()
    assert expand([tmp_path / "*.fa"]) == [tmp_path / "a.fa", tmp_path / "b.fa"]
    assert expand([tmp_path / "c.txt", tmp_path / "**" / "[ae].fa"]) == [
        tmp_path / "c.txt", tmp_path / "a.fa", tmp_path / "x" / "e.fa"]
    assert expand([tmp_path / "x" / "f[1].fa"]) == [tmp_path / "x" / "f[1].fa"]
    assert expand([Path("none.fa"), Path("-")]) == [Path("none.fa"), Path("-")]
    with pytest.raises(OptionError, match=r"z\*\.fa: no file fits this pattern"):
        expand([tmp_path / "z*.fa"])


def test_a_pattern_is_the_same_as_its_files(tmp_path, capsys):
    """The store has the same bytes; a file that fits two patterns is given twice, and refused."""
    for name in "ab":
        (tmp_path / f"{name}.fa").write_text(f">{name}\nACGT\n", encoding="ascii")
    one, two = tmp_path / "1.h5", tmp_path / "2.h5"
    assert run(capsys, tmp_path / "*.fa", "--out", one)[0] == 0
    assert run(capsys, tmp_path / "a.fa", tmp_path / "b.fa", "--out", two)[0] == 0
    assert one.read_bytes() == two.read_bytes()
    assert "a.fa: given twice" in refused(capsys, tmp_path / "*.fa", tmp_path / "a.*", "--out", tmp_path / "3.h5")
    assert "no file fits this pattern" in refused(capsys, tmp_path / "*.fq", "--out", tmp_path / "3.h5")


def piped(data, *argv):
    """Run preprocess with ``data`` at its standard input."""
    return subprocess.run([sys.executable, "-m", "seqpipe.cli", "preprocess", "-", *map(str, argv)], input=data,
                          cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=120)


def test_standard_input_is_read_like_a_file(tmp_path):
    """Compressed or not; ids, messages and provenance call it stdin, and nothing is left beside the output."""
    out = tmp_path / "x.h5"
    done = piped(gzip.compress(b"alpha\nbeta\n"), "--format", "text", "--split", "none", "--out", out)
    assert done.returncode == 0, done.stderr
    assert list(contents(out)) == ["stdin:1", "stdin:2"]
    assert [source["name"] for source in SequenceDataset(out).store.header["provenance"]["sources"]] == ["stdin"]
    done = piped(b">a\nAC\n>a\nGG\n", "--overwrite", "--out", out)
    assert done.returncode == 1
    assert done.stderr.decode().startswith(
        "seqpipe preprocess: stdin:3: record 'a': the id was given before, at stdin:1;")
    for data, options, message in ((b"", [], "stdin: no record: the file is empty"), (b">a\nA\n", ["-"], "given twice"),
                                   (b">a\nA\n", ["--resume"], "standard input cannot be read again")):
        done = piped(data, *options, "--out", tmp_path / "y.h5")
        assert done.returncode == 1 and message in done.stderr.decode()
    assert os.listdir(tmp_path) == ["x.h5"]


def test_a_standard_input_that_is_closed_is_refused(tmp_path, capsys, monkeypatch):
    """Python has no standard input then."""
    monkeypatch.setattr(sys, "stdin", None)
    assert "(standard input) is closed; give a file" in refused(capsys, "-", "--out", tmp_path / "x.h5")
    assert os.listdir(tmp_path) == []


SHRUNK = "changed while it was read; import it again when nothing writes to it"
CHANGES = {
    "removed": (Path.unlink, "was there when the import began, and cannot be found now; put it back, and import it "),
    "cut": (lambda path: os.truncate(path, path.stat().st_size // 2 + 1), SHRUNK),
    "emptied": (lambda path: os.truncate(path, 0), SHRUNK),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["a.fq", "b.csv", "c.fq.gz", "labels.tsv"])
@pytest.mark.parametrize("moment", ["before", "behind"])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_input_that_goes_or_shrinks_while_it_is_read_is_named(
    tmp_path, capsys, monkeypatch, change, name, moment, workers
):
    """Whatever the reader stumbles over then, the message says why, and nothing is left behind."""
    monkeypatch.setattr(slices, "SLICE_BYTES", 200)
    fastq = "".join(f"@%s{number} x\nACGT\n+\nIIII\n" for number in range(50))
    files = [tmp_path / each for each in ("a.fq", "b.csv", "c.fq.gz")]
    files[0].write_text(fastq.replace("%s", "a"), "ascii")
    files[1].write_text("id,seq,description\n" + "".join(f"b{number},ACGT,x\n" for number in range(50)), "ascii")
    files[2].write_bytes(gzip.compress(fastq.replace("%s", "c").encode()))
    (tmp_path / "labels.tsv").write_text("id\tkind\n" + "".join(f"{k}{i}\tx\n" for k in "abc" for i in range(50)))
    before = {path.name for path in tmp_path.iterdir()}
    damage, finding = CHANGES[change]

    def meanwhile(*given, collect_all=ingest.collect_all):
        if moment == "before":
            damage(tmp_path / name)
        found = collect_all(*given)
        if moment == "behind":
            damage(tmp_path / name)
        return found

    monkeypatch.setattr(ingest, "collect_all", meanwhile)
    err = refused(capsys, *files, "--labels", tmp_path / "labels.tsv", "--out", tmp_path / "x.h5", "--workers", workers)
    assert err.startswith(f"seqpipe preprocess: {tmp_path / name}: {finding}")
    assert {path.name for path in tmp_path.iterdir()} == before - ({name} if change == "removed" else set())
