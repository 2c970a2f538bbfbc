"""Many small files are read into one part: nothing of the store, of the messages or of the policies tells."""

from __future__ import annotations

import gzip
import random
from dataclasses import replace
from pathlib import Path

import pytest

from seqpipe import collection, slices
from seqpipe.collection import _jobs
from seqpipe.errors import RawFormatError
from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions
from seqpipe.sequences import SequenceDataset


def write_files(folder: Path, kind: str) -> tuple[tuple[Path, ...], dict[str, object]]:
    """Write 20 small files of a kind; return them and the options of their import."""
    rng, files = random.Random(kind), []
    for number in range(20):
        path = folder / {"text": f"t{number:02}.txt", "split": f"f{number:02}_{'TEST' if number % 3 else 'TRAIN'}.fa",
                         "fasta": f"f{number:02}.fa{'.gz' * (number % 5 == 0)}", "mixed": f"m{number:02}." + (
                             "fa" if number % 4 else "jsonl")}.get(kind, f"c{number:02}.csv")
        texts = ["".join(rng.choices("acgtACGTN!", k=rng.randint(1, 9))) for _ in range(rng.randint(1, 6))]
        if path.suffix in (".fa", ".gz"):
            rows = [f">r{number}.{i} about {i}\n{text}\n" for i, text in enumerate(texts)]
        elif path.suffix == ".jsonl":
            rows = [f'{{"id": "j{number}.{i}", "seq": "{text}", "description": ""}}\n' for i, text in enumerate(texts)]
        elif kind == "text":
            rows = [f"{text}\n\n" for text in texts]
        elif kind == "some have ids" and number % 3:
            rows = ["seq\n", *(f"{text}\n" for text in texts)]
        elif kind == "quotes":
            note = '"a ""b\nc"' if number == 7 else "plain"
            rows = ["id,seq,note\n", *(f"i{number}.{i},{text},{note}\n" for i, text in enumerate(texts))]
        elif kind == "some have ids":
            rows = ["id,seq\n", *(f"i{number}.{i},{text}\n" for i, text in enumerate(texts))]
        else:
            rows = ["id,v\n", *(f"i{number}.{i},{len(text) / 4}\n" * len(text) for i, text in enumerate(texts))]
        data = "".join(rows).encode()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        files.append(path)
    options: dict[str, object] = {"value_columns": "v"} if kind == "long" else {
        "alphabet": "dna", "case": "upper", "on_unknown": "skip", "min_length": 2}
    return tuple(files), options | ({"split": "file"} if kind == "split" else {})


KINDS = ["fasta", "text", "split", "mixed", "some have ids", "quotes", "long"]


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_are_read_into_one_part_with_the_bytes_of_a_part_each(tmp_path, monkeypatch, kind):
    """Ids by number, splits by name, policies, counts, quoted tables: together and alone, by one worker or two."""
    files, options = write_files(tmp_path, kind)
    stores, counts = [], []
    for together, workers in ((1 << 22, 1), (7 * slices.FILE_BYTES, 2), (0, 1)):
        monkeypatch.setattr(slices, "TOGETHER_BYTES", together)
        monkeypatch.setattr(collection, "_jobs", lambda *given, jobs=_jobs: counts.append(jobs(*given)) or counts[-1])
        preprocess(PreprocessOptions(raw=files, out=tmp_path / "x.h5", overwrite=True, workers=workers, **options))
        stores.append((tmp_path / "x.h5").read_bytes())
    assert stores[0] == stores[1] == stores[2]
    assert len(counts[0]) < len(counts[1]) < len(counts[2]) == 20 or kind == "mixed"


@pytest.mark.parametrize("change, options, wanted", [
    (lambda files: files[9].write_text(">a\nAC\n>b\nA!C\n"), {}, r"f09\.fa:4: record 'b': symbol '!'"),
    (lambda files: files[9].write_text(""), {"format": "fasta"}, r"f09\.fa: no record: the file is empty"),
    (lambda files: files[9].write_text(">x\nAC\n>f3.0\nAC\n"), {},
     r"f09\.fa:3: record 'f3.0': the id was given before, at .*f03\.fa:1;"),
    (lambda files: files[9].write_text("acgt\n>x\nAC\n"), {"format": "fasta"},
     r"f09\.fa:1: found 'acgt', expected a FASTA"),
], ids=["symbol", "empty", "id", "header"])
def test_an_error_in_one_of_many_small_files_names_its_place(tmp_path, change, options, wanted):
    """File and line are those of the file itself, also where the record is looked for again afterwards."""
    files = tuple(tmp_path / f"f{number:02}.fa" for number in range(20))
    for number, path in enumerate(files):
        path.write_text(f">f{number}.0\nACGT\n>f{number}.1\nAC\n", "ascii")
    change(files)
    with pytest.raises(RawFormatError, match=wanted):
        preprocess(PreprocessOptions(raw=files, out=tmp_path / "x.h5", alphabet="dna", **options))
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_an_id_may_come_back_in_another_small_long_table_as_a_policy_says(tmp_path):
    """The rows of an id in one file are one record; in two files of one part they are two, and rules of ids apply."""
    files = tmp_path / "a.csv", tmp_path / "b.csv"
    for path in files:
        path.write_text("id,v\nx,1.5\nx,2.5\n" + f"{path.stem},1\n", "ascii")
    preprocess(PreprocessOptions(raw=files, out=tmp_path / "x.h5", value_columns="v", on_duplicate="rename"))
    assert [str(name) for name in SequenceDataset(tmp_path / "x.h5").store.metadata["id"]] == ["x", "a", "x.2", "b"]


def test_an_import_of_many_small_files_is_resumed_with_the_parts_that_are_there(tmp_path, monkeypatch):
    """Stopped at the third part, and resumed: the first two are kept, and the bytes are those of one go."""
    files, options = write_files(tmp_path, "text")
    plain = PreprocessOptions(raw=files, out=tmp_path / "x.h5", **options)
    preprocess(plain)
    monkeypatch.setattr(slices, "TOGETHER_BYTES", 4 * slices.FILE_BYTES)
    made: list[int] = []

    def make(job, ticks, make_part=collection.make_part):
        if made.append(job.number) or made == [0, 1, 2]:
            raise KeyboardInterrupt
        make_part(job, ticks)

    monkeypatch.setattr(collection, "make_part", make)
    resumed = replace(plain, out=tmp_path / "y.h5", resume=True)
    with pytest.raises(KeyboardInterrupt):
        preprocess(resumed)
    preprocess(resumed)
    assert made == [0, 1, 2, 2, 3, 4]
    assert (tmp_path / "y.h5").read_bytes() == (tmp_path / "x.h5").read_bytes()
