"""Every command of the README runs: those of its tables, and those a reader types one after another."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest

from seqpipe.cli import COMMANDS, main
from tests.conftest import DATA, ROOT

TEXT = (ROOT / "README.md").read_text("utf-8")
POLICIES = TEXT.partition("### Policies\n")[2].partition("### Large inputs\n")[0]
IN_TABLES = [command for command in re.findall(r"^\|.*`(seqpipe preprocess [^`]*--out x\.h5)` \|$", TEXT, re.M)
             if "dask://" not in command]  # there is no cluster here
TYPED = [line for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.M | re.S) for line in block.splitlines()]
SHORTER = {"train": ["--max-steps", "2"], "compare-padding": ["--max-batches", "3", "--rounds", "1"]}
BASES = "".join(f">g{i}\nACGTN\nACG\n" for i in range(30))
FILES = {
    "genes.fa": BASES, "parts/1.fa": BASES, "parts/2.fa": BASES, "parts/3.fa": BASES, "classes.txt": "other\namp\n",
    "words.tsv": "id\tword\tlang\n" + "".join(f"w{i}\tword\ten\nv{i}\twort\tde\n" for i in range(20)),
    "sensors.csv": "sensor,t,x,y\n" + "".join(f"s{i // 3},{i % 3},{i},2\n" for i in range(60)),
    "gaps.csv": "sensor,x,y\n" + "".join(f"s{i // 3},{i},{'NA' if i % 5 else 2}\n" for i in range(60)),
    "udhr.jsonl": "".join(f'{{"id": "{i}", "text": "all are born", "lang": "en"}}\n' for i in range(20)),
    "deu.txt": "für alle\nund jeden\n" * 20,
    "tags.csv": "id,sequence,tags,patient\n" + "".join(f"r{i},ACGT,HHE-,p{i % 9}\n" for i in range(30)),
}


@pytest.fixture
def folder(tmp_path, monkeypatch, amp_store):
    """A folder with the files that the README speaks of."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "reads.fq.gz").write_bytes(gzip.compress(b"".join(b"@r%d\nACGT\n+\nIIII\n" % i for i in range(30))))
    for name in ("TRAIN", "TEST"):
        (tmp_path / f"x_{name}.ts").symlink_to(DATA / "vowels" / f"JapaneseVowels_{name}.ts")
    with h5py.File(tmp_path / "old.h5", "w") as file:
        reads = file.create_dataset("reads/x", (20,), h5py.vlen_dtype(np.uint8))
        for row in range(20):
            reads[row] = np.arange(row + 1)
    (tmp_path / "data").symlink_to(DATA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arguments(command):
    """Return what follows ``seqpipe``, of a command in either spelling."""
    words = shlex.split(command, comments=True)
    if words[0] == "python":
        return [Path(words[1]).stem.replace("_", "-"), *words[2:]]
    return words[1:]


def test_each_row_of_policies_has_an_example():
    """The table has one command a row, and the loop below sees them all."""
    rows = sum(line.startswith("| `--") for line in POLICIES.splitlines())
    assert rows == sum(command in POLICIES for command in IN_TABLES) >= 19


@pytest.mark.parametrize("command", IN_TABLES)
def test_the_examples_of_tables_run(command, folder, amp_store, capsys):
    """As they stand, in a folder with the data."""
    (folder / "amp.h5").symlink_to(amp_store)
    command = command.replace(" A ", " data/amp/amp.fasta --labels data/amp/labels.tsv ", 1)
    assert main(arguments(command.replace("parts/*.fa", "'parts/*.fa'"))) == 0, capsys.readouterr().err
    assert (folder / "x.h5").is_file()


def test_the_commands_a_reader_types_run_one_after_another(folder, make_store, capsys):
    """Each command but verify, describe and bench is among them; training is cut short."""
    for month in ("jan", "feb", "mar"):
        rows = "".join(f"{month}{i},ACGT{'A' * i},{'xy'[i % 2]},{['train', 'test'][i > 8]}\n" for i in range(12))
        make_store(f"{month}.csv", "id,sequence,label,s\n" + rows, alphabet="dna", split="column:s")
    seen = set()
    for line in TYPED:
        words = arguments(line)
        assert main([*words, *SHORTER.get(words[0], [])]) == 0, (line, capsys.readouterr().err)
        seen.add(words[0])
    assert seen == set(COMMANDS) - {"verify", "describe", "bench"}


def test_commands_of_the_readme_exist():
    """The table of commands has each, and no other."""
    table = TEXT.partition("## Commands\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z-]+) ", table, re.M)) == set(COMMANDS)
