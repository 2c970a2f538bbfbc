"""What may be done with a record that does not fit: an error, or what the user asked for, counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqpipe import slices
from seqpipe.alphabet import Alphabet
from seqpipe.errors import RawFormatError
from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions
from seqpipe.readers import blocks
from seqpipe.sequences import SequenceDataset

FASTA = ">a\nACGT\n>b\nAXGTX\n>c\n\n>d\nacgt\n>e\nACGTACGTAC\n>f\nGG\n"


def run(
    tmp_path: Path, text: str = FASTA, name: str = "a.fa", **options: object
) -> tuple[dict[str, str], dict[str, int]]:
    """Import a text; return {id: sequence} and the counts of the header, which the summary shows too."""
    raw, out = tmp_path / name, tmp_path / "x.h5"
    raw.write_text(text, "utf-8")
    chosen = {"split": "none", "overwrite": True, **options}
    summary = preprocess(PreprocessOptions(raw=(raw,), out=out, **chosen))  # type: ignore[arg-type]
    dataset = SequenceDataset(out)
    counts = dataset.store.header["provenance"]["counts"]
    assert all(f"{what}: {count:,}" in str(summary) for what, count in counts.items())
    return {metadata["id"]: dataset.decode(tokens) for tokens, metadata in dataset}, counts


@pytest.mark.parametrize(("options", "finding"), [
    ({}, "a.fa:4: record 'b': symbol 'X' at position 1"),
    ({"on_unknown": "unk"}, "a.fa:5: record 'c': the sequence is empty; .* or use --on-empty skip or keep"),
    ({"on_unknown": "skip", "on_empty": "skip"}, "a.fa:8: record 'd': symbol 'a'|a.fa:10: record 'e'"),
    ({"on_unknown": "unk", "on_empty": "keep", "max_length": 5},
     "a.fa:10: record 'e': the sequence has 10 elements, more than --max-length 5; use --on-long skip or truncate"),
])
def test_every_policy_is_strict_by_default(tmp_path, options, finding):
    """Whatever no flag allows is an error that names the record and the flag."""
    if options == {"on_unknown": "skip", "on_empty": "skip"}:
        found, counts = run(tmp_path, alphabet="dna", **options)
        assert list(found) == ["a", "e", "f"]
        assert counts == {"records left out: a symbol is not in the alphabet": 2,
                          "records left out: the sequence is empty": 1}
        return
    with pytest.raises(RawFormatError, match=finding):
        run(tmp_path, alphabet="dna", **options)


def test_unknown_symbols_become_one_more_token(tmp_path):
    """The token is the last one, decodes to "?", is counted, and stands in the encoding of the header."""
    found, counts = run(tmp_path, FASTA.replace(">c\n\n", ""), alphabet="dna", on_unknown="unk")
    assert found == {"a": "ACGT", "b": "A?GT?", "d": "????", "e": "ACGTACGTAC", "f": "GG"}
    assert counts == {"unknown symbols, read as token 6": 6}
    store = SequenceDataset(tmp_path / "x.h5").store
    assert store.header["encoding"] == {"alphabet": "dna", "symbols": "ACGTN", "num_tokens": 7, "pad_id": 0,
                                        "unk_id": 6}
    alphabet = Alphabet.from_dict(store.header["encoding"])
    assert alphabet.encode("Aß中\U0001f9ecT").tolist() == [1, 6, 6, 6, 4]  # one token a symbol, not a byte
    assert alphabet.encode("A>~T").tolist() == [1, 6, 6, 4]


@pytest.mark.parametrize("alphabet", ["dna", "auto"])
@pytest.mark.parametrize(("case", "wanted"), [("upper", "ACGTNA"), ("lower", "acgtna")])
def test_case_is_changed_where_asked_for(tmp_path, case, wanted, alphabet):
    """Every letter changed is counted; the encoding says so, and whoever encodes with it does the same."""
    if (case, alphabet) == ("lower", "dna"):
        with pytest.raises(RawFormatError, match="symbol 'a' at position 0"):
            run(tmp_path, ">a\nACgtna\n", alphabet=alphabet, case=case)
        return
    found, counts = run(tmp_path, ">a\nACgtna\n", alphabet=alphabet, case=case)
    assert found == {"a": wanted}
    assert counts == {"letters whose case was changed": 4 if case == "upper" else 2}
    encoding = SequenceDataset(tmp_path / "x.h5").store.header["encoding"]
    assert encoding["case"] == case and Alphabet.from_dict(encoding).encode("AcGt").tolist() == (
        Alphabet.from_dict(encoding).encode(wanted[:4]).tolist())


@pytest.mark.parametrize("alphabet", ["chars", "dna"])
def test_a_line_feed_inside_a_sequence_is_a_symbol(tmp_path, alphabet):
    """What ends a line of FASTA is never dropped from a string of JSON, one record at a time or many."""
    text = "".join(f'{{"id": "{name}", "sequence": "AC\\nGT"}}\n' for name in "abc")
    if alphabet == "dna":
        with pytest.raises(RawFormatError, match=r"symbol '\\n' at position 2"):
            run(tmp_path, text, "a.jsonl", alphabet=alphabet)
        return
    assert run(tmp_path, text, "a.jsonl", alphabet=alphabet)[0] == dict.fromkeys("abc", "AC\nGT")


def test_letters_that_become_several_keep_their_case(tmp_path):
    """Upper case of "ß" would be two letters: the length of a sequence never changes."""
    found, counts = run(tmp_path, "straße\n", "a.txt", case="upper")
    assert found == {"a:1": "STRAßE"} and counts == {"letters whose case was changed": 5}


@pytest.mark.parametrize(("name", "text", "kept", "lengths"), [
    ("a.fa", ">a\nACGT\n>b\n\n>c\nA\n", ["a", "b", "c"], [4, 0, 1]),
    ("a.jsonl", '{"id": "a", "tokens": []}\n{"id": "b", "tokens": [3, 4]}\n', ["a", "b"], [0, 2]),
    ("a.jsonl", '{"id": "a", "values": [[1.5, 2]]}\n{"id": "b", "values": []}\n', ["a", "b"], [1, 0]),
    ("a.jsonl", '{"id": "a", "values": []}\n{"id": "b", "values": [[1.5, 2]]}\n', ["a", "b"], [0, 1]),
    ("a.csv", "id,seq\na,\nb,AC\n", ["a", "b"], [0, 2]),
])
def test_empty_sequences_of_every_kind(tmp_path, name, text, kept, lengths):
    """Kept they have length 0; left out they are counted; ids by number count them too."""
    raw, out = tmp_path / name, tmp_path / "x.h5"
    raw.write_text(text, "utf-8")
    options = PreprocessOptions(raw=(raw,), out=out, split="none", on_empty="keep", overwrite=True)
    preprocess(options)
    dataset = SequenceDataset(out)
    assert dataset.lengths[:].tolist() == lengths and [metadata["id"] for _, metadata in dataset] == kept
    preprocess(replace(options, on_empty="skip"))
    assert SequenceDataset(out).lengths[:].tolist() == [length for length in lengths if length]
    assert SequenceDataset(out).store.header["provenance"]["counts"] == {"records left out: the sequence is empty": 1}


@pytest.mark.parametrize("alphabet", ["dna", "bytes", "chars"])
def test_lengths_are_bounded(tmp_path, alphabet):
    """Too short ones are left out; too long ones are left out or cut; all of it is counted."""
    text = ">a\nACGT\n>e\nACGTACGTAC\n>f\nGG\n"
    found, counts = run(tmp_path, text, alphabet=alphabet, min_length=3, max_length=6, on_long="truncate")
    assert found == {"a": "ACGT", "e": "ACGTAC"}
    assert counts == {"records left out: shorter than 3": 1, "sequences cut to 6": 1}
    found, counts = run(tmp_path, text, alphabet=alphabet, max_length=6, on_long="skip")
    assert found == {"a": "ACGT", "f": "GG"} and counts == {"records left out: longer than 6": 1}
    with pytest.raises(RawFormatError, match=r"a\.fa: no record is left: records left out: shorter than 99 \(3\); "):
        run(tmp_path, text, alphabet=alphabet, min_length=99)


def test_a_cut_keeps_tracks_and_whole_characters(tmp_path):
    """Qualities are cut with their bases; bytes are cut between characters; integers between words."""
    raw, out = tmp_path / "a.fastq", tmp_path / "x.h5"
    raw.write_text("@a\nACGT\n+\nIJKL\n", "ascii")
    options = PreprocessOptions(raw=(raw,), out=out, quality="keep", max_length=2, on_long="truncate", split="none",
                                overwrite=True)
    preprocess(options)
    _, metadata = SequenceDataset(out)[0]
    assert metadata["quality"].tolist() == [40, 41]
    found, _ = run(tmp_path, "aß中\n", "a.txt", alphabet="bytes", max_length=5, on_long="truncate")
    assert found == {"a:1": "aß"}
    found, _ = run(tmp_path, "10 20 30\n", "b.txt", alphabet="ints", max_length=2, on_long="truncate")
    assert found == {"b:1": "10 20"}


def test_ids_by_number_count_the_records_left_out(tmp_path):
    """STEM:n is the record's place in its file, whatever became of those before it."""
    found, _ = run(tmp_path, "abc\nx\nabcd\n", "a.txt", min_length=2)
    assert found == {"a:1": "abc", "a:3": "abcd"}


@pytest.mark.parametrize("on_unknown", ["skip", "unk"])
def test_counts_and_bytes_depend_on_neither_slices_nor_blocks_nor_workers(tmp_path, monkeypatch, on_unknown):
    """Policies give the same store however the input is read."""
    rng = np.random.default_rng(0)
    raw = tmp_path / "a.fa"
    texts = ["".join(rng.choice(list("ACGTacgtX"), rng.integers(0, 9))) for _ in range(600)]
    raw.write_text("".join(f">r{n}\n{text}\n" for n, text in enumerate(texts)))
    options = PreprocessOptions(raw=(raw,), out=tmp_path / "x.h5", alphabet="dna", case="upper", on_unknown=on_unknown,
                                on_empty="skip", min_length=2, max_length=6, on_long="truncate", overwrite=True)
    preprocess(options)
    wanted = options.out.read_bytes()
    counts = SequenceDataset(options.out).store.header["provenance"]["counts"]
    assert len(counts) == 5 and min(counts.values()) > 10
    monkeypatch.setattr(slices, "SLICE_BYTES", 900)
    for block_bytes, workers in ((50, 1), (1 << 20, 2)):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        preprocess(replace(options, workers=workers))
        assert options.out.read_bytes() == wanted, json.dumps(counts)
