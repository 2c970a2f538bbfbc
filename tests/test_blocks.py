"""FASTA and FASTQ read in blocks give what the strict readers give, records and errors, for any bytes."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe import intake, slices
from seqpipe.errors import SeqpipeError
from seqpipe.intake import collect
from seqpipe.options import PreprocessOptions
from seqpipe.parts import STATE
from seqpipe.plan import Plan, lay_out, look_ahead
from seqpipe.readers import blocks
from seqpipe.slices import Slice

WORDS = {
    "fasta": [">", ">r1", ">r2 of some", "\n", "\n", "\r\n", "\r", "ACGT", "GATTACA", " ", "\t", "acg", ";", "; note",
              "*", "-", "é", ">r1\nACGT\n", ">b c\nAC\nGT\n", "\0", "\ufeff", "\u2028", "\x0b", "N", "@", "+"],
    "fastq": ["@r1", "@r2 of some", "\n", "\n", "\r\n", "\r", "ACGT", "IIII", "+", "@", " ", "é", "\0", "\x7f", "A",
              "I", "\n\n", "@r1\nACGT\n+\nIIII\n", "@b c\nAC\n+\n@+\n", "@w\nAC\nGT\n+\nII\nII\n",
              "@s\nAC\n+s\nII\n"],
}


def outcome(raw: Path, format: str, folder: Path, alphabet: str, in_blocks: bool, monkeypatch) -> object:
    """Return the spools of the part made of a file, or the error."""
    options = PreprocessOptions(raw=(raw,), out=raw, alphabet=alphabet, label_type="none")
    whole = Slice(raw, format)
    try:
        plan = Plan(options, ())
        first, _ = look_ahead(whole, plan)
        plan = Plan(options, (), lay_out(first, plan))
        with monkeypatch.context() as patch:
            if not in_blocks:
                patch.setattr(slices.Slice, "in_blocks", lambda self, encoding: False)
            collect([whole], plan, folder)
    except SeqpipeError as error:
        return str(error)
    state = json.loads((folder / STATE).read_text("utf-8"))
    return state, {name: (folder / name).read_bytes() for name, array in state["arrays"].items() if array["items"]}


def compare(data: bytes, format: str, alphabet: str, block_bytes: int, monkeypatch, name: str = "a.dat") -> object:
    """Check that blocks and strict reader agree on some bytes; return what they agree on."""
    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        raw = Path(folder, name)
        raw.write_bytes(data)
        strict = outcome(raw, format, Path(folder, "strict"), alphabet, False, monkeypatch)
        found = outcome(raw, format, Path(folder, "blocks"), alphabet, True, monkeypatch)
    assert found == strict
    return found


@pytest.mark.parametrize("format", ["fasta", "fastq"])
def test_any_text_has_the_outcome_of_the_strict_reader(format):
    """Records, ids, descriptions, or the same message: for any sequence of odd pieces, any size of blocks."""

    @settings(deadline=None, max_examples=300)
    @given(st.lists(st.sampled_from(WORDS[format]), max_size=14).map("".join),
           st.sampled_from(["auto", "dna", "bytes"]), st.integers(1, 40))
    def check(text, alphabet, block_bytes):
        with pytest.MonkeyPatch.context() as monkeypatch:
            compare(text.encode(), format, alphabet, block_bytes, monkeypatch)

    check()


def regular(format: str, count: int) -> bytes:
    rng = random.Random(0)
    text = ""
    for number in range(count):
        bases = "".join(rng.choices("ACGT", k=rng.randint(1, 9)))
        header = f"r{number} x y" if number % 2 else f"r{number}"
        text += (f">{header}\n{bases[:4]}\n{bases[4:]}\n" if format == "fasta"
                 else f"@{header}\n{bases}\n+\n{'@' * len(bases)}\n")
    return text.encode()


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("format", ["fasta", "fastq"])
def test_a_cut_at_any_byte_has_the_outcome_of_the_strict_reader(monkeypatch, format, packed):
    """Also where compressed data are cut: what was there is read, then the damage has its line."""
    data = regular(format, 6)
    data = gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :]) if packed else data
    for end in range(len(data) + 1):
        compare(data[:end], format, "auto", 30, monkeypatch, name="a.gz" if packed else "a.dat")


@pytest.mark.parametrize("format", ["fasta", "fastq"])
def test_regular_files_are_read_in_blocks(monkeypatch, format):
    """No record of a regular file goes through the strict reader."""
    taken = []
    monkeypatch.setattr(intake.Intake, "add", lambda self, record: taken.append(record))
    state, _ = outcome_of_blocks(regular(format, 100), format, monkeypatch)
    assert state["rows"] == 100 and taken == []


def outcome_of_blocks(data: bytes, format: str, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 200)
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "a.dat")
        raw.write_bytes(data)
        return outcome(raw, format, Path(folder, "part"), "auto", True, monkeypatch)


def test_a_record_without_an_end_in_sight_is_read_line_by_line(monkeypatch):
    """Blocks do not grow without bound: a record longer than the longest block is the strict reader's."""
    monkeypatch.setattr(blocks, "LONGEST", 100)
    compare(b">a\nAC\n>b\n" + b"ACGT\n" * 100 + b">c\nGG\n", "fasta", "auto", 20, monkeypatch)
