"""Real data and random records go in, and exactly what they say comes out of the store."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.errors import OptionError
from seqpipe.ingest import preprocess
from seqpipe.labels import common_ways
from seqpipe.options import PreprocessOptions
from seqpipe.sequences import SequenceDataset
from seqpipe.summary import summarise_lengths
from tests.conftest import DATA, ROOT
from tests.test_preprocess_command import contents, run


def parse_fasta(path):
    """Return {id: (description, sequence)}, the plain way."""
    records = {}
    for block in path.read_text("utf-8").split(">")[1:]:
        header, *lines = block.split("\n")
        name, _, description = header.partition(" ")
        records[name] = description, "".join(lines)
    return records


def table(path, delimiter):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


# ---- real data ------------------------------------------------------------------------------


def test_peptides_and_their_joined_table_are_stored_as_they_stand(tmp_path, capsys):
    """4,620 sequences, labels and splits are those of the two files, in the order of the FASTA."""
    out = tmp_path / "amp.h5"
    code, text, _ = run(capsys, DATA / "amp/amp.fasta", "--labels", DATA / "amp/labels.tsv", "--label-column", "label",
                        "--split", "column:split", "--out", out)
    assert code == 0
    fasta = parse_fasta(DATA / "amp/amp.fasta")
    rows = {row["id"]: row for row in table(DATA / "amp/labels.tsv", "\t")}

    found = contents(out)

    assert list(found) == list(fasta) and len(found) == 4620
    for name, (sequence, metadata) in found.items():
        assert sequence == fasta[name][1]
        assert metadata == {"label": rows[name]["label"], "description": fasta[name][0], "split": rows[name]["split"]}
    for split, count in (("train", 3264), ("valid", 687), ("test", 669)):
        assert list(contents(out, split)) == [name for name in fasta if rows[name]["split"] == split]
        assert f"{split} {count:,}" in text
    for line in ("records  4,620 (tokens, alphabet protein, 28 symbols)", "values   151,465",
                 "lengths  min 7, median 31, max 174", "labels   2 classes from 'label': amp, other",
                 f"store    {out}"):
        assert line in text.splitlines()


def test_utterances_are_stored_as_they_stand(tmp_path, capsys):
    """Every number of 640 utterances is the float32 of the file, time first, train and test told by the files."""
    out = tmp_path / "vowels.h5"
    paths = [DATA / f"vowels/JapaneseVowels_{split}.ts" for split in ("TRAIN", "TEST")]
    code, text, _ = run(capsys, *paths, "--split", "file", "--out", out)
    assert code == 0 and "records  640 (features, 12 channels)" in text
    for path, split in zip(paths, ("train", "test"), strict=True):
        lines = path.read_text("utf-8").partition("@data")[2].strip().splitlines()
        found = contents(out, split)
        assert list(found) == [f"{path.stem}:{number}" for number in range(1, len(lines) + 1)]
        for line, (sequence, metadata) in zip(lines, found.values(), strict=True):
            *channels, label = line.strip().split(":")
            wanted = np.array([channel.split(",") for channel in channels], np.float64).T.astype(np.float32)
            assert np.array_equal(np.array(sequence, np.float32), wanted) and metadata == {"label": label}
    assert SequenceDataset(out).classes == list("123456789")


def test_words_from_a_table_are_stored_as_they_stand(shared, tmp_path, capsys):
    """15,000 words, their language and split are those of the TSV."""
    path, out = shared / "words/words.tsv", tmp_path / "w.h5"
    code, text, _ = run(capsys, path, "--sequence-column", "word", "--label-column", "lang", "--split", "column:split",
                        "--out", out)
    assert code == 0 and "alphabet chars, 47 symbols" in text and "5 classes from 'lang': de, en, es, fr, it" in text
    rows = table(path, "\t")
    assert list(contents(out).items()) == [
        (f"words:{number}", (row["word"], {"label": row["lang"], "split": row["split"]}))
        for number, row in enumerate(rows, start=1)]
    assert {split: len(SequenceDataset(out, split)) for split in ("train", "valid", "test")} == {
        "train": 10426, "valid": 2298, "test": 2276}


def test_paragraphs_from_json_lines_are_stored_as_they_stand(shared, tmp_path, capsys):
    """1,823 paragraphs in 20 scripts and languages come back letter by letter."""
    path, out = shared / "udhr/udhr.jsonl", tmp_path / "u.h5"
    code, text, _ = run(capsys, path, "--label-column", "lang", "--split", "column:split", "--out", out)
    assert code == 0 and "1,473 symbols" in text and "values   193,985" in text
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert list(contents(out).items()) == [
        (row["id"], (row["text"], {"label": row["lang"], "split": row["split"]})) for row in rows]
    assert SequenceDataset(out)[0][0].dtype == np.uint16


def test_rna_families_with_a_comma_table_are_stored_as_they_stand(shared, tmp_path, capsys):
    """Eight families of RNA, headers with a description, ambiguity codes, and a table with quotes."""
    out = tmp_path / "r.h5"
    code, text, _ = run(capsys, shared / "rna/rna.fasta", "--labels", shared / "rna/labels.csv", "--label-column",
                        "family", "--split", "column:split", "--out", out)
    assert code == 0 and "alphabet iupac, 16 symbols" in text and "8 classes" in text
    fasta = parse_fasta(shared / "rna/rna.fasta")
    rows = {row["id"]: row for row in table(shared / "rna/labels.csv", ",")}
    assert list(contents(out).items()) == [
        (name, (sequence, {"label": rows[name]["family"], "description": description,
                           "source_name": rows[name]["source_name"], "split": rows[name]["split"]}))
        for name, (description, sequence) in fasta.items()]


@pytest.mark.parametrize(("name", "count", "bases"), [("lambda_long.fastq", 400, 135788),
                                                      ("lambda_short.fastq.gz", 3000, 323058)])
def test_reads_are_stored_as_they_stand(shared, tmp_path, capsys, name, count, bases):
    """FASTQ, plain and gzip: ids and bases are every first and second of four lines."""
    path, out = shared / "reads" / name, tmp_path / "r.h5"
    code, text, _ = run(capsys, path, "--split", "none", "--out", out)
    assert code == 0 and f"values   {bases:,}" in text and "alphabet dna" in text and "splits   none" in text
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="ascii")
    with opened as file:
        lines = file.read().splitlines()
    wanted = {header[1:].split()[0]: sequence for header, sequence in zip(lines[::4], lines[1::4], strict=True)}
    assert {name: sequence for name, (sequence, _) in contents(out).items()} == wanted and len(wanted) == count


def test_lines_of_text_are_stored_as_they_stand(shared, tmp_path, capsys):
    """One paragraph a line, in another script, named by file and number."""
    path, out = shared / "udhr/txt/jpn.txt", tmp_path / "t.h5"
    assert run(capsys, path, "--out", out)[0] == 0
    lines = path.read_text("utf-8").splitlines()
    assert {name: sequence for name, (sequence, _) in contents(out).items()} == {
        f"jpn:{number}": line for number, line in enumerate(lines, start=1)}


# ---- random records -------------------------------------------------------------------------

# NUL cannot stand in a table; a lone surrogate is no text.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
FILLED = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
CELLS = st.one_of(TEXT, st.integers(-10**19, 10**19).map(str), st.floats().map(repr), st.sampled_from(
    ["007", "NA", "nan", "", "1.50", "-0", "1e5", " 1", "True", "null", '"', "a\tb", "a\r\nb", "\r", "\n", "\u2028"]))
NAMES = FILLED.filter(lambda name: name not in ("id", "seq", "label", "index"))


@st.composite
def records(draw):
    """Return the names of further columns, and rows of id, sequence, label and their cells."""
    names = draw(st.lists(NAMES, unique=True, max_size=3))
    ids = draw(st.lists(FILLED, unique=True, min_size=1, max_size=6))
    columns = [draw(st.lists(CELLS, min_size=len(ids), max_size=len(ids))) for _ in names]
    labels = draw(st.lists(FILLED, min_size=len(ids), max_size=len(ids)))
    sequences = draw(st.lists(FILLED, min_size=len(ids), max_size=len(ids)))
    return names, list(zip(ids, sequences, labels, *columns, strict=True))


def says(value, text):
    """Tell whether a metadata value is what the text says, to the last digit."""
    if isinstance(value, str):
        return value == text
    return str(value) == text if isinstance(value, np.integer) else repr(float(text)) == repr(float(value))


@settings(deadline=None, max_examples=60)
@given(records(), st.sampled_from(["csv", "tsv", "jsonl"]), st.sampled_from(["class", "none"]), st.sampled_from(
    ["auto", "chars", "bytes"]))
def test_any_records_come_back_from_the_store(drawn, format, label_type, alphabet):
    """Ids, sequences, labels and columns of any text survive each format, in order; numbers lose nothing."""
    names, rows = drawn
    header = ["id", "seq", "label", *names]
    with tempfile.TemporaryDirectory() as folder:
        raw, out = Path(folder, f"raw.{format}"), Path(folder, "x.h5")
        with open(raw, "w", encoding="utf-8", newline="") as file:
            if format == "jsonl":
                file.writelines(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows)
            else:
                writer = csv.writer(file, delimiter="," if format == "csv" else "\t", quoting=csv.QUOTE_ALL)
                writer.writerows([header, *rows])

        preprocess(PreprocessOptions(raw=(raw,), out=out, sequence_column="seq", label_type=label_type, split="none",
                                     alphabet=alphabet))

        dataset = SequenceDataset(out)
        assert dataset.columns == ["id", "label", *names]
        for row, (tokens, metadata) in zip(rows, dataset, strict=True):
            assert metadata["id"] == row[0] and dataset.decode(tokens) == row[1]
            if label_type == "class":
                assert dataset.classes[metadata["label"]] == row[2]
            else:
                assert says(metadata["label"], row[2])
            assert all(says(metadata[name], text) for name, text in zip(names, row[3:], strict=True))
        for name, texts in zip(names, list(zip(*rows, strict=True))[3:], strict=True):
            assert isinstance(dataset[0][1][name], str) == (not common_ways(texts))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2),
                         min_size=1, max_size=5), min_size=1, max_size=5))
def test_any_features_come_back_from_the_store(sequences):
    """Rows of float32 numbers are kept to the bit, with names for their channels."""
    with tempfile.TemporaryDirectory() as folder:
        raw, out = Path(folder, "raw.jsonl"), Path(folder, "x.h5")
        raw.write_text("".join(json.dumps({"values": rows}) + "\n" for rows in sequences), encoding="ascii")
        preprocess(PreprocessOptions(raw=(raw,), out=out, split="none"))
        dataset = SequenceDataset(out)
        assert [rows.tolist() for rows, _ in dataset] == sequences and dataset.channels == ["c1", "c2"]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 2**63 - 3) | st.integers(0, 300), min_size=1, max_size=5), min_size=1,
                max_size=5))
def test_any_integers_come_back_from_the_store(sequences):
    """Lists of integers are tokens, shifted by one, in the smallest type that holds the largest."""
    with tempfile.TemporaryDirectory() as folder:
        raw, out = Path(folder, "raw.jsonl"), Path(folder, "x.h5")
        raw.write_text("".join(json.dumps({"tokens": values}) + "\n" for values in sequences), encoding="ascii")
        preprocess(PreprocessOptions(raw=(raw,), out=out, split="none"))
        dataset = SequenceDataset(out)
        assert [[token - 1 for token in tokens.tolist()] for tokens, _ in dataset] == sequences
        assert dataset.store.values.dtype == np.min_scalar_type(max(map(max, sequences)) + 1)


def test_text_of_many_blocks_is_encoded_whole(make_store):
    """Texts longer than a block, and texts that end around its end, keep every symbol and its record."""
    rng = np.random.default_rng(0)
    lengths = [1, (1 << 20) + 7, 3, *rng.integers(1, 5000, 900).tolist(), (1 << 19), 1]
    texts = ["".join(rng.choice(list("abcß中\U0001f9ec"), length)) for length in lengths]
    dataset = SequenceDataset(make_store("a.txt", "\n".join(texts)))
    assert dataset.lengths[:].tolist() == lengths
    assert all(dataset.decode(dataset[i][0]) == texts[i] for i in range(len(texts)))


def test_integers_of_many_blocks_are_kept(make_store):
    """More integers than are converted at a time."""
    values = np.random.default_rng(0).integers(0, 70000, (1 << 20) + 5)
    dataset = SequenceDataset(make_store("a.txt", " ".join(map(str, values.tolist())), alphabet="ints"))
    assert np.array_equal(dataset[0][0], values + 1)


def test_columns_may_stand_in_another_order_in_another_file(tmp_path):
    """Cells are told by the name of their column."""
    (tmp_path / "a.csv").write_text("id,seq,x,y\na,A,x1,y1\n", encoding="ascii")
    (tmp_path / "b.tsv").write_text("y\tseq\tid\tx\ny2\tC\tb\tx2\n", encoding="ascii")
    raw, out = (tmp_path / "a.csv", tmp_path / "b.tsv"), tmp_path / "x.h5"
    preprocess(PreprocessOptions(raw=raw, out=out, split="none"))
    assert contents(out) == {"a": ("A", {"x": "x1", "y": "y1"}), "b": ("C", {"x": "x2", "y": "y2"})}


# ---- header and summary ---------------------------------------------------------------------


def check_statistics(dataset, part, label_type):
    """Compare one part of the header's statistics with numbers computed one by one."""
    lengths = [len(sequence) for sequence, _ in dataset]
    assert part["sequences"] == len(lengths) and part["values"] == sum(lengths)
    assert (part["lengths"]["min"], part["lengths"]["max"]) == (min(lengths), max(lengths))
    assert part["lengths"]["median"] == np.median(lengths)
    assert part["lengths"]["mean"] == pytest.approx(np.mean(lengths))
    edges, counts = (part["lengths"]["histogram"][key] for key in ("edges", "counts"))
    assert edges == sorted(set(edges)) and len(counts) == len(edges) - 1
    assert counts == [sum(a <= length < b for length in lengths) for a, b in zip(edges, edges[1:], strict=False)]
    if label_type == "class":
        labels = [metadata["label"] for _, metadata in dataset]
        assert part["classes"] == [labels.count(number) for number in range(len(dataset.classes))]


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2000), st.integers(0, 2**40)), min_size=1, max_size=30))
def test_histograms_count_every_length_once(lengths):
    """Ascending integer edges from the shortest to beyond the longest; every length lies in one bin."""
    summary = summarise_lengths(np.array(lengths), None, 0)["lengths"]
    edges, counts = summary["histogram"]["edges"], summary["histogram"]["counts"]
    assert edges == sorted(set(edges)) and (edges[0], edges[-1]) == (min(lengths), max(lengths) + 1)
    assert counts == [sum(a <= length < b for length in lengths) for a, b in zip(edges, edges[1:], strict=False)]


@pytest.mark.parametrize("name", ["amp_store", "vowels_store"])
def test_statistics_in_the_header_are_those_of_the_records(name, request):
    """Counts, lengths, histogram and classes of the whole and of each split are right."""
    dataset = SequenceDataset(request.getfixturevalue(name))
    header = dataset.store.header
    assert list(header["splits"]) == ["all", *dataset.store.splits]
    check_statistics(dataset, header["splits"]["all"], header["label_type"])
    for split in dataset.store.splits:
        check_statistics(SequenceDataset(dataset.store, split), header["splits"][split], header["label_type"])


def test_moments_are_those_of_the_train_split(vowels_store):
    """Mean and deviation of each channel over all steps of the train split."""
    dataset = SequenceDataset(vowels_store, "train")
    steps = np.concatenate([sequence for sequence, _ in dataset]).astype(np.float64)
    moments = dataset.store.header["moments"]
    assert moments["mean"] == pytest.approx(steps.mean(axis=0), rel=1e-9)
    assert moments["deviation"] == pytest.approx(steps.std(axis=0), rel=1e-9)


def test_moments_survive_large_offsets_and_no_train_split(make_store):
    """Without splits all records count; a large mean does not cost the deviation its digits."""
    header = SequenceDataset(make_store("a.jsonl", '{"values": [[1e6, 5.5], [1000001, 5.5]]}\n')).store.header
    assert header["moments"] == {"mean": [1000000.5, 5.5], "deviation": [0.5, 0.0]}


def test_header_says_how_the_input_was_read(amp_store):
    """Format, columns and sources by base name, size and digest, and no path or time."""
    header = SequenceDataset(amp_store).store.header
    assert header["input"] == {"format": "fasta", "id_column": None, "sequence_column": None, "label_column": "label",
                               "target_column": None, "group_column": None,
                               "encoding": "utf-8", "time_column": None, "value_columns": None,
                               "on_missing": "error", "on_undecodable": "error"}
    assert [source["name"] for source in header["provenance"]["sources"]] == ["amp.fasta", "labels.tsv"]
    assert header["provenance"]["sources"][0]["size"] == (DATA / "amp/amp.fasta").stat().st_size
    assert str(ROOT) not in json.dumps(header)


@pytest.mark.parametrize(("labels", "note"), [
    (["1", "2"], "labels are taken as classes; --label-type number reads them as numbers"),
    (["1", "2.5"], "labels are taken as numbers, as one has a fraction; --label-type class reads classes"),
    (["a", "a"], "only one class, 'a': there is nothing to classify"),
    (["a", "b"], None),
])
def test_guesses_and_oddities_are_announced(tmp_path, capsys, labels, note):
    """What was guessed about labels is said, and how to have it otherwise; sure things are not."""
    (tmp_path / "a.csv").write_text("seq,label\n" + "".join(f"A,{label}\n" for label in labels), encoding="ascii")
    code, text, _ = run(capsys, tmp_path / "a.csv", "--split", "none", "--out", tmp_path / "x.h5")
    assert code == 0
    notes = [line.removeprefix("note     ") for line in text.splitlines() if line.startswith("note ")]
    assert notes == ([note] if note else [])


def test_empty_splits_are_announced(tmp_path, capsys):
    """A share without a record is said; a share of nothing is not."""
    (tmp_path / "a.txt").write_text("x\n", encoding="ascii")
    text = run(capsys, tmp_path / "a.txt", "--split", "0.5,0.5,0", "--out", tmp_path / "x.h5")[1]
    assert text.count("is empty") == 1
    with pytest.raises(OptionError, match="--seed"):
        PreprocessOptions(raw=(), out=tmp_path, seed=2**64)


# ---- memory ---------------------------------------------------------------------------------

IMPORT = """
import resource, sys
from pathlib import Path
from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions

preprocess(PreprocessOptions(raw=(Path(sys.argv[1]),), out=Path(sys.argv[2])))  # loads all there is to load
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) << 10
limit = used + (int(sys.argv[4]) << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
preprocess(PreprocessOptions(raw=(Path(sys.argv[3]),), out=Path(sys.argv[2]), overwrite=True, alphabet=sys.argv[5]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to limit a process's memory")
@pytest.mark.parametrize("alphabet", ["dna", "chars"])
@pytest.mark.parametrize(("num_records", "length", "limit"), [(4, 7_500_000, 80), (150_000, 200, 30)])
def test_memory_does_not_grow_with_the_file(tmp_path, num_records, length, limit, alphabet):
    """30 MB of FASTA, few long records or many short ones, are imported within a fixed amount of memory."""
    small, raw, out = tmp_path / "small.fa", tmp_path / "raw.fa", tmp_path / "x.h5"
    small.write_text(">a\nACGT\n", encoding="ascii")
    line = "ACGTTGCAAC" * 6 + "\n"
    sequence = line * (length // 60) + line[: length % 60] + "\n"
    with open(raw, "w", encoding="ascii") as file:
        file.writelines(f">read{number}\n{sequence}" for number in range(num_records))
    done = subprocess.run([sys.executable, "-c", IMPORT, small, out, raw, str(limit), alphabet], cwd=ROOT,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(SequenceDataset(out)) == num_records
