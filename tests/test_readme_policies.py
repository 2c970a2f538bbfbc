"""Every command in the README's table of policies runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from seqpipe.cli import main
from tests.conftest import DATA, ROOT

SECTION = (ROOT / "README.md").read_text("utf-8").partition("#### Policies")[2].partition("### The store")[0]
COMMANDS = re.findall(r"`(seqpipe preprocess [^`]*--out x\.h5)`", SECTION)


def test_each_row_has_an_example():
    """The table has one command a row, and the loop below sees them all."""
    assert len(COMMANDS) == sum(line.startswith("| `--") for line in SECTION.splitlines()) >= 15


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_run(command, tmp_path, monkeypatch, amp_store, capsys):
    """As they stand, in a folder with the data."""
    (tmp_path / "data").symlink_to(DATA)
    (tmp_path / "amp.h5").symlink_to(amp_store)
    (tmp_path / "classes.txt").write_text("other\namp\n", encoding="ascii")
    rows = "".join(f"r{i},ACGT,HHE-,p{i % 9}\n" for i in range(30))
    (tmp_path / "tags.csv").write_text("id,sequence,tags,patient\n" + rows, encoding="ascii")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command.replace(" A ", " data/amp/amp.fasta --labels data/amp/labels.tsv ", 1))
    assert main(words[1:]) == 0, capsys.readouterr().err
    assert Path("x.h5").is_file()
