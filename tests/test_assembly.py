"""Policies across records: duplicate ids, joined tables, labels of several classes, targets, stores alike, leakage."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe import slices
from seqpipe.dataloader import get_dataloader
from seqpipe.description import describe
from seqpipe.errors import OptionError, RawFormatError, SeqpipeError
from seqpipe.hashing import hash_strings
from seqpipe.ingest import preprocess
from seqpipe.options import DescribeOptions, PreprocessOptions, TrainOptions, VerifyOptions
from seqpipe.selection import rename
from seqpipe.sequences import SequenceDataset
from seqpipe.training import train
from seqpipe.verification import verify


@pytest.fixture
def build(tmp_path):
    """Return a function that imports texts by file name and returns the dataset, verified, and the summary."""

    def run(files, **options):
        raw = []
        for name, text in files.items():
            (tmp_path / name).write_text(text, encoding="utf-8", newline="")
            if not name.startswith("_"):
                raw.append(tmp_path / name)
        out = tmp_path / "x.h5"
        chosen = {"split": "none", "overwrite": True, **options}
        summary = preprocess(PreprocessOptions(raw=tuple(raw), out=out, **chosen))
        verify(VerifyOptions(store=out))
        return SequenceDataset(out), summary

    return run


def columns(dataset, *names):
    return [tuple(metadata[name] for name in names) for _, metadata in dataset]


# ---- duplicate ids --------------------------------------------------------------------------

DUPLICATES = ">a\nAC\n>b\nGG\n>a\nGT\n>a.2\nTT\n>a\nCC\n"


def test_duplicates_are_left_out_but_the_first(build):
    """``skip`` keeps the first record of an id, and counts the others."""
    dataset, summary = build({"a.fa": DUPLICATES}, on_duplicate="skip")
    assert columns(dataset, "id") == [("a",), ("b",), ("a.2",)]
    assert dataset.decode(dataset[0][0]) == "AC" and "given before left out: 2" in str(summary)
    assert summary.header["provenance"]["options"]["on_duplicate"] == "skip"


def test_duplicates_are_renamed_past_ids_that_are_taken(build):
    """``rename`` keeps all records, and takes no id that another record has."""
    dataset, summary = build({"a.fa": DUPLICATES}, on_duplicate="rename")
    assert columns(dataset, "id") == [("a",), ("b",), ("a.3",), ("a.2",), ("a.4",)]
    assert "given before renamed: 2" in str(summary)


IDS = st.text("a.23", min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(IDS, min_size=1, max_size=30))
def test_new_ids_never_collide(ids):
    """All ids are distinct afterwards, first ones are kept, and the same input gives the same names."""
    again = [name for i, name in enumerate(ids) if name in ids[:i]]
    hashes = hash_strings(ids)
    new = rename(again, hashes)
    every = [*dict.fromkeys(ids), *new]
    assert len(set(every)) == len(every) == len(ids) and new == rename(again, hashes)
    assert all(made.startswith(f"{name}.") for made, name in zip(new, again, strict=True))


@pytest.mark.parametrize("policy", ["skip", "rename"])
def test_policies_do_not_depend_on_how_the_input_is_cut(build, monkeypatch, policy):
    """One part or many, with duplicates and unmatched records in all of them: the same bytes."""
    raw = "".join(f">r{i % 70}\n{'ACGT'[i % 4] * (i % 9 + 1)}\n" for i in range(200))
    table = "id,label,g\n" + "".join(f"r{i},{'xyz'[i % 3]},{i}\n" for i in range(10, 99))
    stores = []
    for size in (1 << 25, 256):
        monkeypatch.setattr(slices, "SLICE_BYTES", size)
        dataset, summary = build({"a.fa": raw, "_t.csv": table}, labels=None, on_duplicate=policy)
        dataset, summary = build({"a.fa": raw, "_t.csv": table}, on_duplicate=policy, on_unmatched="skip",
                                 labels=dataset.store.path.parent / "_t.csv", split="0.5,0.5", split_by="stratified")
        stores.append(dataset.store.path.read_bytes())
    assert stores[0] == stores[1]


# ---- joined tables --------------------------------------------------------------------------


def test_what_does_not_match_is_left_out_and_counted(build, tmp_path):
    """Records without a row and rows without a record go, both counted; the order stays."""
    files = {"a.fa": ">a\nA\n>b\nC\n>c\nG\n>d\nT\n", "_t.csv": "id,label\nd,x\nz,y\nb,x\ny,y\n"}
    dataset, summary = build(files, labels=tmp_path / "_t.csv", on_unmatched="skip")
    assert columns(dataset, "id", "label") == [("b", 0), ("d", 0)] and dataset.classes == ["x"]
    assert summary.header["provenance"]["counts"] == {
        "records without a row in the table of --labels left out": 2, "rows of --labels without a record left out": 2}


def test_nothing_left_is_an_error(build, tmp_path):
    """A table that matches no record says so."""
    with pytest.raises(RawFormatError, match=r"a.fa: no record is left: .* \(1\)"):
        build({"a.fa": ">a\nA\n", "_t.csv": "id,label\nd,x\n"}, labels=tmp_path / "_t.csv", on_unmatched="skip")


# ---- labels ---------------------------------------------------------------------------------


def test_labels_of_several_classes(build):
    """Any number of classes a record, none too; counts per split are those of the classes."""
    dataset, summary = build({"a.csv": "id,seq,label\na,AC,x;y\nb,GG,\nc,A,z\nd,C,z;x\n"}, label_type="multilabel",
                             split="0.5,0.5")
    assert dataset.classes == ["x", "y", "z"] and dataset[0][1]["label"].dtype == np.int32
    assert [label.tolist() for (label,) in columns(dataset, "label")] == [[0, 1], [], [2], [0, 2]]
    assert summary.header["splits"]["all"]["classes"] == [2, 1, 2]
    assert "multilabel" in summary.header["label_type"] and "3 classes" in str(summary)


def test_batches_hold_several_classes_and_train_says_it_cannot(build):
    """(B, K) float32 of ones and zeros; ``train`` names what it has no task for."""
    dataset, _ = build({"a.csv": "id,seq,label\na,AC,x;y\nb,GG,\nc,A,z\n"}, label_type="multilabel")
    batch = next(iter(get_dataloader(dataset.store.path, batch_size=3)))
    assert batch.labels.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    with pytest.raises(OptionError, match="no task yet for labels of several classes; use --task lm"):
        train(TrainOptions(data=dataset.store.path, out=dataset.store.path.parent / "run"))


def test_labels_of_several_classes_as_json_lists(build):
    """JSON lists are read as they stand, null as none."""
    rows = [{"seq": "A", "label": ["b;c", "a"]}, {"seq": "C", "label": None}, {"seq": "G", "label": []}]
    dataset, _ = build({"a.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}, label_type="multilabel",
                       label_separator="|")
    assert dataset.classes == ["a", "b;c"]
    assert [label.tolist() for (label,) in columns(dataset, "label")] == [[0, 1], [], []]


def test_wrong_labels_of_several_classes_name_their_line(build):
    """An empty class between separators, and a column without any class."""
    with pytest.raises(RawFormatError, match="a.csv:3: record 'b': column 'label': label 'x;' has an empty class"):
        build({"a.csv": "id,seq,label\na,AC,x\nb,GG,x;\n"}, label_type="multilabel")
    with pytest.raises(OptionError, match="column 'label' names no class in any record"):
        build({"a.csv": "id,seq,label\na,AC,\nb,GG,\n"}, label_type="multilabel")


def test_thousands_of_classes_come_back_byte_for_byte(build):
    """5,000 class names with blanks, quotes and line ends in them."""
    names = [f' {i}"ß\n{i % 7}' for i in range(5000)]
    rows = "".join(json.dumps({"id": str(i), "seq": "A", "label": name}) + "\n" for i, name in enumerate(names))
    dataset, _ = build({"a.jsonl": rows})
    assert [dataset.classes[label] for (label,) in columns(dataset, "label")] == names


def test_classes_given_fix_their_order(build, tmp_path):
    """The file's order is the store's, classes without a record too; a label outside is an error at its line."""
    (tmp_path / "classes").write_text("z\ny\nx\n", encoding="ascii")
    dataset, _ = build({"a.csv": "id,seq,label\na,AC,x\nb,GG,z\n"}, classes=tmp_path / "classes")
    assert dataset.classes == ["z", "y", "x"] and columns(dataset, "label") == [(2,), (0,)]
    with pytest.raises(RawFormatError, match="a.csv:3: record 'b': column 'label': label 'Z' is none of the 3"):
        build({"a.csv": "id,seq,label\na,AC,x\nb,GG,Z\n"}, classes=tmp_path / "classes")
    with pytest.raises(OptionError, match="--label-type number has no classes"):
        build({"a.csv": "id,seq,label\na,AC,x\n"}, classes=tmp_path / "classes", label_type="number")


# ---- targets --------------------------------------------------------------------------------


def test_targets_become_a_track(build):
    """One class per element, aligned with the sequence; the column itself is gone."""
    dataset, summary = build({"a.csv": "id,seq,ss\na,ACGT,HHE-\nb,GG,EE\n"}, target_column="ss")
    classes = summary.header["target_classes"]
    assert ["".join(classes[k] for k in target) for (target,) in columns(dataset, "target")] == ["HHE-", "EE"]
    assert summary.header["columns"] == ["id"] and dataset.store.tracks["target"].dtype == "u1"


def test_targets_of_records_left_out_are_left_out(build):
    """A duplicate that goes takes its target with it."""
    dataset, _ = build({"a.csv": "id,seq,ss\na,AC,HH\na,GG,EE\nb,T,E\n"}, target_column="ss", on_duplicate="skip")
    assert [target.tolist() for (target,) in columns(dataset, "target")] == [[1, 1], [0]]


@pytest.mark.parametrize("spell", [str, " ".join, ",".join])
def test_targets_are_cut_with_their_sequences(build, spell):
    """``--on-long truncate`` takes the same elements off both."""
    rows = f"a\tACGT\t{spell('HHEE')}\nb\tC\t{spell('E')}\n"
    dataset, _ = build({"a.tsv": "id\tseq\tss\n" + rows}, target_column="ss", max_length=3, on_long="truncate")
    assert [target.tolist() for (target,) in columns(dataset, "target")] == [[1, 1, 0], [0]]


@pytest.mark.parametrize(("rows", "finding"), [
    ("a,ACGT,HHE-\nb,GG,E\n", "a.csv:3: record 'b': column 'ss': the target has 1 symbol for the 2 elements"),
    ("a,ACGT,1 2 3 4.5\nb,GG,1 x\n", "a.csv:3: record 'b': column 'ss': target 'x' at position 1"),
])
def test_targets_that_do_not_fit_name_their_line(build, rows, finding):
    """Another length, or no number."""
    with pytest.raises(RawFormatError, match=finding):
        build({"a.csv": "id,seq,ss\n" + rows}, target_column="ss")


# ---- alike ----------------------------------------------------------------------------------


def test_a_store_like_another_has_its_alphabet_classes_and_types(build, tmp_path):
    """Fewer symbols, fewer classes and other numbers than the first still give the same tokens, classes and types."""
    first, _ = build({"a.csv": "id,seq,label,n,t\na,xyz,p,1.5,u\nb,z,q,2,1\n"})
    like = tmp_path / "first.h5"
    first.store.path.rename(like)
    second, _ = build({"a.csv": "id,seq,label,n,t\nc,zy,q,7,5\n"}, like=like)
    assert second.store.header["encoding"] == first.store.header["encoding"] and second.classes == ["p", "q"]
    assert second.decode(second[0][0]) == "zy" and columns(second, "label", "n", "t") == [(1, 7.0, "5")]


@pytest.mark.parametrize(("text", "options", "finding"), [
    ("id,seq,label\nc,w,p\n", {}, "a.csv:2: record 'c': symbol 'w' at position 0"),
    ("id,seq,label\nc,x,r\n", {}, "a.csv:2: record 'c': column 'label': label 'r' is none of the 2 classes"),
    ("id,seq,label,m\nc,x,p,1\n", {}, "the columns of that store are .*; expected the same"),
    ("id,seq,label\nc,x,p\n", {"alphabet": "dna"}, "--alphabet: --like .* fixes this"),
    ("id,seq,label\nc,x,p\n", {"label_type": "number"}, "--label-type number: the labels of --like"),
])
def test_what_cannot_be_like_the_other_store_is_refused(build, tmp_path, text, options, finding):
    """A symbol, a label or a column that the other store has not, or an option that contradicts it."""
    build({"a.csv": "id,seq,label\na,xyz,p\nb,z,q\n"})[0].store.path.rename(tmp_path / "first.h5")
    with pytest.raises(SeqpipeError, match=finding):
        build({"a.csv": text}, like=tmp_path / "first.h5", **options)


# ---- splits and leakage ---------------------------------------------------------------------


def test_sequences_on_both_sides_of_a_split_are_counted(build):
    """Identical sequences in two splits are told at once; those within one split are not."""
    rows = "a,ACGT,train\nb,ACGT,test\nc,GG,train\nd,GG,train\ne,ACGT,valid\nf,T,test\n"
    _, summary = build({"a.csv": "id,seq,s\n" + rows}, split="column:s")
    assert summary.header["leakage"] == {"sequences": 1}
    assert "1 sequence stands in more than one split" in str(summary)


def test_groups_on_both_sides_of_a_split_are_counted(build):
    """Where the split is given and the groups are known, parted groups are told."""
    rows = "a,A,train,g\nb,C,test,g\nc,G,train,h\n"
    _, summary = build({"a.csv": "id,seq,s,p\n" + rows}, split="column:s", split_by="group:p")
    assert summary.header["leakage"] == {"sequences": 0, "groups": 1}
    assert "1 group stands in more than one split" in str(summary)
    with pytest.raises(RawFormatError, match="a.csv:2: record 'a': column 'p': the group is empty"):
        build({"a.csv": "id,seq,p\na,A,\n"}, split="0.5,0.5", split_by="group:p")


def test_describe_lists_what_is_parted(build):
    """Ids by split of each sequence, and of each group, that stands in more than one."""
    rows = "a,ACGT,train,g\nb,ACGT,test,g\nc,GG,train,h\nd,GG,train,i\ne,ACGT,test,h\n"
    dataset, _ = build({"a.csv": "id,seq,s,p\n" + rows}, split="column:s", split_by="group:p")
    options = DescribeOptions(store=dataset.store.path, leakage=True, json=True)
    assert json.loads(describe(options))["leaks"] == {
        "sequences": [{"train": ["a"], "test": ["b", "e"]}],
        "groups": [{"train": ["a"], "test": ["b"]}, {"train": ["c"], "test": ["e"]}]}
    text = describe(DescribeOptions(store=dataset.store.path, leakage=True))
    assert "leakage   1 sequence in more than one split\n          train: a; test: b, e" in text


def test_groups_that_are_the_labels_are_found_where_the_store_has_them(build):
    """The column of the labels is called label in the store."""
    rows = "a,ACGT,train,g\nb,ACG,test,g\nc,GG,train,h\n"
    dataset, _ = build({"a.csv": "id,seq,s,kind\n" + rows}, split="column:s", split_by="group:kind",
                       label_column="kind")
    options = DescribeOptions(store=dataset.store.path, leakage=True, json=True)
    assert json.loads(describe(options))["leaks"]["groups"] == [{"train": ["a"], "test": ["b"]}]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(["A", "C", "ACGTACGTACGT", "ACGTACGAACGT", "G" * 40, "G" * 39 + "T"]), min_size=2,
                max_size=40), st.integers(0, 5))
def test_leakage_is_what_a_slow_count_finds(tmp_path_factory, sequences, seed):
    """Sequences of any length: the count is that of the sets of splits each stands in."""
    folder = tmp_path_factory.mktemp("leak")
    (folder / "a.txt").write_text("".join(f"{sequence}\n" for sequence in sequences), encoding="ascii")
    summary = preprocess(PreprocessOptions(raw=(folder / "a.txt",), out=folder / "x.h5", split="0.5,0.5", seed=seed))
    store = SequenceDataset(folder / "x.h5").store
    where: dict[str, set[str]] = {}
    for name, rows in store.splits.items():
        for row in rows.tolist():
            where.setdefault(sequences[row], set()).add(name)
    assert summary.header.get("leakage", {"sequences": 0})["sequences"] == sum(len(s) > 1 for s in where.values())


def test_a_class_with_one_member_goes_to_train_and_is_told(build):
    """Stratified, it is neither lost nor a crash."""
    rows = "".join(f"r{i},A{'CGT'[i % 3] * i},{'x' if i else 'rare'}\n" for i in range(20))
    dataset, summary = build({"a.csv": "id,seq,label\n" + rows}, split="0.6,0.2,0.2", split_by="stratified")
    assert "r0" in {dataset[row][1]["id"] for row in dataset.store.splits["train"].tolist()}
    assert "1 class has one record, which went to train" in str(summary)
