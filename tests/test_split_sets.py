"""The train, valid and test set of a run on folds."""

from __future__ import annotations

import pytest

from seqpipe.dataloader import store_rows
from seqpipe.errors import OptionError
from seqpipe.options import TrainOptions
from seqpipe.split_sets import split_store
from seqpipe.store import Store
from seqpipe.training import train

RAW = "id,seq,label\n" + "".join(f"r{i},{'ACGT'[i % 4] * (i % 7 + 1)},c{i % 3}\n" for i in range(60))


def test_folds_take_turns_as_the_test_set(make_store):
    """Each fold is the test set once, all others are train and valid, and nothing is in two of them."""
    store = Store(make_store("a.csv", RAW, split="0.8,0.1,0.1", folds=5))
    tested = []
    for fold in range(5):
        parts = [store_rows(part).tolist() for part in split_store(store, None, fold)]
        assert sorted(sum(parts, [])) == list(range(60)) and parts[2] == store.splits[f"fold{fold}"].tolist()
        tested += parts[2]
    assert sorted(tested) == list(range(60))


@pytest.mark.parametrize(("options", "fold", "finding"), [
    ({"folds": 3}, 3, "no fold 3; this store has 'fold0', 'fold1', 'fold2'; give one with --fold, 0 <= fold < 3"),
    ({"folds": 3}, None, "no split 'train'; .* give one with --fold"),
    ({}, 0, "no fold 0; this store has 'train', .*; preprocess with --folds"),
])
def test_folds_that_are_not_there_are_refused(make_store, options, fold, finding):
    """The splits there are stand in the message."""
    store = Store(make_store("a.csv", RAW, split="0.8,0.1,0.1", **options))
    with pytest.raises(OptionError, match=finding):
        split_store(store, None, fold)


def test_a_run_on_a_fold_reports_its_test_metrics(make_store, tmp_path):
    """``train --fold`` from the store to the metrics of the fold."""
    data = make_store("a.csv", RAW, split="0.8,0.1,0.1", split_by="stratified", folds=3)
    result = train(TrainOptions(data=data, out=tmp_path / "run", fold=1, epochs=1, hidden_dim=4, embedding_dim=4))
    assert result.test is not None and result.test_sequences == 20
