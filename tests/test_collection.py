"""An import by many workers, and one that was killed and resumed, give the bytes of a plain one."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from seqpipe import collection, slices
from seqpipe.collection import make_part
from seqpipe.errors import OptionError, RawFormatError
from seqpipe.executors import Crew
from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions
from seqpipe.publish import parts_folder
from seqpipe.readers.raw import RawFile
from seqpipe.sequences import SequenceDataset
from seqpipe.slices import cut
from tests.conftest import ROOT

SMALL = 2000  # bytes of a slice


@pytest.fixture
def small_slices(monkeypatch):
    """Cut files into slices of 2,000 bytes."""
    monkeypatch.setattr(slices, "SLICE_BYTES", SMALL)


def write_fasta(path: Path, count: int, seed: int = 0, end: str = "\n") -> Path:
    """Write random records of 0 to 5 lines, some with a description."""
    rng = random.Random(seed)
    with open(path, "w", encoding="ascii", newline="") as file:
        for number in range(count):
            file.write(f">r{number}" + (f" about {number}" if rng.random() < 0.5 else "") + end)
            for _ in range(rng.randint(1, 5)):
                file.write("".join(rng.choices("ACGT", k=rng.randint(1, 60))) + end)
    return path


def imported(raw: Path, out: Path, **options: object) -> bytes:
    preprocess(PreprocessOptions(raw=(raw,), out=out, overwrite=True, **options))  # type: ignore[arg-type]
    assert sorted(path.name for path in out.parent.iterdir() if path.name.startswith(".")) == []
    return out.read_bytes()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_slices_give_what_the_whole_file_gives(tmp_path, monkeypatch, end):
    """However a file is cut, the store has the same bytes."""
    raw = write_fasta(tmp_path / "a.fa", 300, end=end)
    whole = imported(raw, tmp_path / "x.h5")
    for size in (50, 777, SMALL):
        monkeypatch.setattr(slices, "SLICE_BYTES", size)
        with RawFile(raw) as opened:
            count = len(cut(opened, "fasta"))
        assert count == 1 if end == "\r" else count > 10
        assert imported(raw, tmp_path / "x.h5") == whole


@pytest.mark.parametrize("format", ["fastq", "jsonl", "txt"])
def test_other_formats_that_can_be_cut(tmp_path, small_slices, format):
    """FASTQ, also with qualities that look like headers, JSON Lines and text are cut where records start."""
    rng = random.Random(1)
    raw = tmp_path / f"a.{format}"
    with open(raw, "w", encoding="utf-8") as file:
        for number in range(400):
            text = "".join(rng.choices("ACGT", k=rng.randint(1, 40)))
            quality = "@" + "".join(rng.choices("@+I>", k=len(text) - 1))
            file.write({"fastq": f"@r{number}\n{text}\n+\n{quality}\n", "txt": f"{text}\n\n",
                        "jsonl": f'{{"id": "r{number}", "seq": "{text}", "n": {number}}}\n'}[format])
    with RawFile(raw) as opened:
        assert len(cut(opened, {"txt": "text"}.get(format, format))) > 4
    sliced = imported(raw, tmp_path / "x.h5")
    slices.SLICE_BYTES = 1 << 25
    assert imported(raw, tmp_path / "x.h5") == sliced


def test_a_wrapped_fastq_that_was_cut_inside_a_record_is_read_on_as_one(tmp_path, monkeypatch):
    """Quality lines of a wrapped record may look like a header and its "+": the cut is found out, nothing is lost."""
    raw = tmp_path / "a.fastq"
    raw.write_text("".join(f"@r{number}\nACGT\nACGT\nACGT\n+\n@III\nIIII\n+III\n" for number in range(200)), "ascii")
    whole = imported(raw, tmp_path / "x.h5")
    monkeypatch.setattr(slices, "SLICE_BYTES", 300)
    assert imported(raw, tmp_path / "x.h5") == whole


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_give_the_bytes_of_one_process(tmp_path, small_slices, workers):
    """1, 2 and 4 workers write the same store."""
    raw = write_fasta(tmp_path / "a.fa", 300)
    one = imported(raw, tmp_path / "one.h5")
    assert imported(raw, tmp_path / "more.h5", workers=workers) == one


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_bad_record_of_the_input_is_named_with_its_line(tmp_path, small_slices, workers):
    """A slice counts its lines from its start; the message counts them from that of the file."""
    raw = write_fasta(tmp_path / "a.fa", 300)
    lines = raw.read_text("ascii").split("\n")
    bad = [number for number, line in enumerate(lines) if not line.startswith(">")][50::40]
    for number in bad:
        lines[number] = lines[number] + "!"
    raw.write_text("\n".join(lines), "ascii")
    with pytest.raises(RawFormatError) as found:
        imported(raw, tmp_path / "x.h5", alphabet="dna", workers=workers)
    record = max(number for number, line in enumerate(lines[: bad[0]]) if line.startswith(">"))
    assert f"a.fa:{bad[0] + 1}: record '{lines[record][1:].split()[0]}': symbol '!'" in str(found.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.fa"]


def test_a_file_that_was_cut_is_named_by_whichever_slice_is_read_first(tmp_path, small_slices, monkeypatch):
    """A process may come to the last slice first, which starts where the file has nothing any more."""
    raw = write_fasta(tmp_path / "a.fa", 300)
    with RawFile(raw) as opened:
        last = cut(opened, "fasta")[-1]
    assert last.num_bytes == raw.stat().st_size - last.start > 0

    def last_one_first(self, number, here, meanwhile, finish=Crew.finish):
        if number == 0:
            os.truncate(raw, SMALL)
            here(self._jobs[max(self._jobs)])
        finish(self, number, here, meanwhile)

    monkeypatch.setattr(Crew, "finish", last_one_first)
    with pytest.raises(RawFormatError, match="a.fa: changed while it was read"):
        imported(raw, tmp_path / "x.h5")
    assert last.num_bytes == 0
    assert os.listdir(tmp_path) == ["a.fa"]


def test_a_job_does_not_grow_with_the_number_of_files(tmp_path, monkeypatch):
    """10,000 files would make jobs that each carry 10,000 names; a job has those of its own files alone."""
    monkeypatch.setattr(slices, "TOGETHER_BYTES", 3 * slices.FILE_BYTES)
    sizes = []
    monkeypatch.setattr(collection, "make_part", lambda job, ticks: sizes.append(len(pickle.dumps(job))) or
                        make_part(job, ticks))
    files = [tmp_path / f"{number:02}.fa" for number in range(30)]
    for number, path in enumerate(files):
        path.write_text(f">r{number}\nACGT\n", "ascii")
    for raw in (files[:3], files):
        preprocess(PreprocessOptions(raw=tuple(raw), out=tmp_path / "x.h5", overwrite=True))
    assert len(sizes) == 11 and max(sizes) < sizes[0] + 20


def test_ids_by_number_and_duplicates_count_through_all_slices(tmp_path, small_slices):
    """STEM:n is the record's number in its file; the lines of two equal ids are those of the file."""
    raw = tmp_path / "a.txt"
    raw.write_text("".join(f"text {number}\n" for number in range(1000)), "ascii")
    imported(raw, tmp_path / "x.h5")
    assert [str(name) for name in SequenceDataset(tmp_path / "x.h5").store.metadata["id"]] == [
        f"a:{number}" for number in range(1, 1001)]
    twice = tmp_path / "b.fa"
    twice.write_text("".join(f">r{number % 900}\nACGT\n" for number in range(901)), "ascii")
    with pytest.raises(RawFormatError, match=r"b\.fa:1801: record 'r0': the id was given before, at .*b\.fa:1;"):
        imported(twice, tmp_path / "x.h5")


# ---- kill and resume ------------------------------------------------------------------------

KILLED = """
import sys, time
from pathlib import Path
from seqpipe import slices
slices.SLICE_BYTES = 2000
from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions
preprocess(PreprocessOptions(raw=(Path(sys.argv[1]),), out=Path(sys.argv[2]), resume=True, workers=int(sys.argv[3])))
"""


def kill_and_resume(tmp_path: Path, wait: float, workers: int, wanted: bytes) -> bool:
    """Kill an import some time after its first part appeared, resume it, compare; return whether it was killed."""
    out = tmp_path / "x.h5"
    command = [sys.executable, "-c", KILLED, str(tmp_path / "a.fa"), str(out), str(workers)]
    child = subprocess.Popen(command, cwd=ROOT)
    parts = parts_folder(out)
    while child.poll() is None and not any(parts.glob("part*")):
        time.sleep(0.001)
    time.sleep(wait)
    child.kill()
    killed = child.wait() == -signal.SIGKILL
    if killed:
        assert not out.exists()
        subprocess.run(command, cwd=ROOT, check=True)
    assert out.read_bytes() == wanted and not parts.exists()
    out.unlink()
    return killed


def killed_again_and_again(tmp_path: Path, count: int) -> None:
    raw = write_fasta(tmp_path / "a.fa", 4000)
    wanted = imported(raw, tmp_path / "plain.h5")
    rng = random.Random(count)
    killed = [kill_and_resume(tmp_path, rng.uniform(0, 0.4), 1 + number % 2, wanted) for number in range(count)]
    assert any(killed)


def test_an_import_that_was_killed_goes_on_to_the_same_bytes(tmp_path):
    """SIGKILL at random moments, with and without workers, and --resume: the store of an import in one go."""
    killed_again_and_again(tmp_path, 4)


@pytest.mark.slow
def test_an_import_that_was_killed_fifty_times_goes_on_to_the_same_bytes(tmp_path):
    """As above, at fifty moments."""
    killed_again_and_again(tmp_path, 50)


def test_parts_of_another_import_are_refused(tmp_path, small_slices, monkeypatch):
    """Other options, or a raw file that changed meanwhile, are named with both values; a plain import starts anew."""
    raw, out = write_fasta(tmp_path / "a.fa", 300), tmp_path / "x.h5"
    options = PreprocessOptions(raw=(raw,), out=out, resume=True)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("seqpipe.ingest.write_store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            preprocess(options)
    assert parts_folder(out).is_dir()
    with pytest.raises(OptionError, match="are of another import: alphabet was 'auto' and is 'dna' now; start anew"):
        preprocess(replace(options, alphabet="dna"))
    time.sleep(0.01)
    os.utime(raw)
    with pytest.raises(OptionError, match=r"are of another import: size and time of .*a\.fa was "):
        preprocess(options)
    preprocess(replace(options, resume=False))
    assert out.exists() and not parts_folder(out).exists()


@pytest.mark.parametrize("mark", ["", "{", "null", None])
def test_parts_of_an_import_that_was_killed_before_it_had_noted_its_options_are_made_anew(tmp_path, mark):
    """The folder is there, and what the import wrote of itself is not, or not whole."""
    raw, out = write_fasta(tmp_path / "a.fa", 30), tmp_path / "x.h5"
    (parts_folder(out) / "part000000").mkdir(parents=True)
    if mark is not None:
        (parts_folder(out) / "import.json").write_text(mark)
    assert imported(raw, out, resume=True) == imported(raw, tmp_path / "y.h5")
