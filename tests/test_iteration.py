"""The loader counts where batches are used: it resumes at any of them, on any number of ranks and workers."""

from __future__ import annotations

import itertools
import json
import shutil
from itertools import zip_longest

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset

from seqpipe.dataloader import get_dataloader, restore_order, sampling_weights
from seqpipe.errors import CheckpointError, OptionError
from seqpipe.merging import merge
from seqpipe.options import MergeOptions
from seqpipe.sequences import SequenceDataset
from seqpipe.world import rank_and_size

LENGTHS = np.random.default_rng(7).integers(1, 60, 101)


def cut_a_little(sequence, metadata, rng):
    return sequence[rng.integers(0, 3) if len(sequence) > 3 else 0 :], metadata


@pytest.fixture
def store(odd_store):
    """Return the store of 101 sequences."""
    return odd_store


def content(batches):
    """Return what a training sees of its batches, in a form that can be compared."""
    return [(b.index.tolist(), b.weight, b.position, b.sequences.numpy().tobytes(), b.labels.tolist()) for b in batches]


def used(batches):
    """Return the rows that count."""
    return [row for batch in batches if batch.weight for row in batch.index.tolist()]


def forever(loader):
    """Yield batches of epoch after epoch."""
    while True:
        yield from loader


PLANS = [
    {"batch_size": 8, "shuffle": True},
    {"batch_size": 8},
    {"max_tokens": 300, "shuffle": True, "window": 40},
    {"max_tokens": 300, "batch_size": 5, "shuffle": True, "bucket": False, "pad_to_multiple": 8},
    {"max_tokens": 300, "shuffle": True, "sampling": "balanced"},
]


@pytest.mark.parametrize("rows", [30, pytest.param(101, marks=pytest.mark.slow)])
@pytest.mark.parametrize("plan", PLANS)
def test_a_state_after_any_batch_resumes_there(store, plan, rows):
    """Every batch of two epochs, and a second and a third time: bytes, positions and draws as they would have come."""
    dataset = Subset(SequenceDataset(store, transform=cut_a_little), range(rows))

    def make(state=None):
        loader = get_dataloader(dataset, num_workers=0, **plan)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        return loader

    loader = make()
    wanted = content([*loader, *loader])
    for stop in range(len(wanted) + 1):
        found, state = [], None
        for further in (stop, 1, 2, len(wanted)):
            loader = make(state)
            found += content(itertools.islice(forever(loader), min(further, len(wanted) - len(found))))
            state = loader.state_dict()
        assert found == wanted and state["position"] == [2, 0, 0]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_another_number_of_ranks_takes_over_anywhere(store, data):
    """Each sequence that was left comes exactly once, and all ranks take the same number of steps."""
    plan = {"shuffle": True, "seed": data.draw(st.integers(0, 3)), "num_workers": 0,
            **data.draw(st.sampled_from([{"batch_size": 4}, {"max_tokens": 200}, {"max_tokens": 200, "window": 30}]))}
    dataset = SequenceDataset(store)
    before, after = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    loaders = [get_dataloader(dataset, rank=rank, world_size=before, **plan) for rank in range(before)]
    assert len({len(loader) for loader in loaders}) == 1
    stop = data.draw(st.integers(0, len(loaders[0])))
    taken = [batch for loader in loaders for batch in itertools.islice(loader, stop)]
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)

    rest, steps = [], []
    for rank in range(after):
        loader = get_dataloader(dataset, rank=rank, world_size=after, **plan)
        loader.load_state_dict(states[0])
        loader.set_epoch(0)
        batches = list(loader)
        steps.append(len(batches))
        rest += batches
    assert sorted(used(taken) + used(rest)) == list(range(101))
    assert len(set(steps)) == 1


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_share_one_plan(store, world_size):
    """Step by step the ranks' batches are the single plan's; what is missing at the end are fillers of weight 0."""
    options = {"max_tokens": 200, "shuffle": True, "num_workers": 0}
    single = list(get_dataloader(store, **options))
    ranks = [list(get_dataloader(store, rank=r, world_size=world_size, **options)) for r in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1 and len(ranks[0]) == -(-len(single) // world_size)

    merged = [batch for step in zip(*ranks, strict=True) for batch in step]
    shortest = LENGTHS.min()
    for found, wanted in zip_longest(merged, single):
        if wanted is None:
            assert found.weight == 0 and found.index.tolist() == [-1] and found.lengths.tolist() == [shortest]
        else:
            assert found.weight == 1 and torch.equal(found.sequences, wanted.sequences)
            assert torch.equal(found.index, wanted.index)


def test_set_epoch_goes_on_in_the_epoch_of_a_state(store):
    """A loop that sets each epoch may resume: the rest of that epoch, none where it had ended, whole ones after."""
    loader = get_dataloader(store, 8, shuffle=True)
    epochs = [used(loader) for _ in range(3)]

    for stop in (5, 13):
        loader = get_dataloader(store, 8, shuffle=True)
        loader.set_epoch(1)
        taken = list(itertools.islice(loader, stop))
        resumed = get_dataloader(store, 8, shuffle=True)
        resumed.load_state_dict(loader.state_dict())
        found = []
        for epoch in (1, 2):
            resumed.set_epoch(epoch)
            found.append(used(resumed))
        assert [used(taken) + found[0], found[1]] == epochs[1:]
    resumed.set_epoch(0)
    assert used(resumed) == epochs[0]


def test_a_state_at_the_end_of_an_epoch_starts_the_next(store):
    """No epoch is lost, none repeated."""
    loader = get_dataloader(store, 8, shuffle=True)
    epochs = [used(loader), used(loader)]
    loader = get_dataloader(store, 8, shuffle=True)
    list(loader)
    resumed = get_dataloader(store, 8, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    assert used(resumed) == epochs[1]


def test_len_is_that_of_the_running_epoch_to_its_last_batch(store):
    """Also while workers are ahead: ``i + 1 == len(loader)`` is true at the last batch, and only there."""
    options = {"max_tokens": 300, "shuffle": True, "bucket": False}
    for workers in (0, 2):
        loader, lengths = get_dataloader(store, num_workers=workers, **options), []
        for _ in range(4):
            length = len(loader)
            last = [i + 1 == len(loader) for i, _ in enumerate(loader)]
            assert last == [False] * (length - 1) + [True]
            lengths.append(length)
        assert len(set(lengths)) > 1
        loader.set_epoch(1)
        assert len(loader) == lengths[1]


def test_two_iterators_at_once_are_two_epochs(store):
    """Two at once are two epochs, begun with their first batches; the state is that of the later one."""
    epochs = get_dataloader(store, 8, shuffle=True)
    wanted = [used(epochs), used(epochs)]
    loader = get_dataloader(store, 8, shuffle=True)
    first, second = iter(loader), iter(loader)
    before = loader.state_dict()
    found = [[], []]
    for one, other in zip(first, second, strict=True):
        found[0] += used([one])
        found[1] += used([other])
    assert found == wanted
    assert (before["position"], loader.state_dict()["position"]) == ([0, 0, 0], [2, 0, 0])


@pytest.mark.parametrize("changed, message", [
    ({"seed": 1}, "seed was 0 when the state was saved and is 1 now"),
    ({"batch_size": 9}, "batch_size was 8 .* is 9 now"),
    ({"max_tokens": 500}, "max_tokens was None .* is 500 now"),
    ({"bucket": False}, "bucket was True .* is False now"),
    ({"sampling": "balanced"}, "weights was None"),
    ({"subset": 50}, "num_sequences was 101 .* is 50 now"),
])
def test_a_state_of_another_setting_is_refused(store, changed, message):
    """Naming what it was and what it is."""
    state = get_dataloader(store, 8, shuffle=True).state_dict()
    other = get_dataloader(store, **{"batch_size": 8, "shuffle": True, **changed})
    with pytest.raises(CheckpointError, match=message):
        other.load_state_dict(state)


def test_a_state_of_another_file_is_refused(store, make_store):
    """One with the same lengths, but other tokens; a copy is the same data, and so is an import of a file renamed."""
    text = store.with_name("odd.csv").read_text()
    other = make_store("odd.csv", text.replace("A", "T"), alphabet="dna")
    copy = shutil.copy(store, other.with_name("copy.h5"))
    renamed = make_store("renamed.csv", text, alphabet="dna")
    state = get_dataloader(store, 8).state_dict()

    for same in (copy, renamed):
        get_dataloader(same, 8).load_state_dict(state)
    with pytest.raises(CheckpointError, match="source was '.*' when the state was saved and is"):
        get_dataloader(other, 8).load_state_dict(state)


def test_a_state_of_a_manifest_is_of_its_data(store, make_store, tmp_path):
    """As that of a store: shards made anew from renamed files resume, from a list of paths too; other tokens do not."""
    text = store.with_name("odd.csv").read_text()
    lines = text.splitlines(keepends=True)
    halves = ["".join(lines[:60]), lines[0] + "".join(lines[60:])]

    def manifest_of(name, *texts):
        shards = tuple(make_store(f"{name}{k}.csv", half, like=store) for k, half in enumerate(texts))
        merge(MergeOptions(stores=shards, out=tmp_path / f"{name}.seqpipe.json"))
        return tmp_path / f"{name}.seqpipe.json"

    state = get_dataloader(manifest_of("first", *halves), 8).state_dict()
    same = manifest_of("renamed", *halves)
    for data in (same, [tmp_path / "renamed0.h5", tmp_path / "renamed1.h5"]):
        get_dataloader(data, 8).load_state_dict(state)
    other = manifest_of("other", halves[0], halves[1].replace("A", "T"))
    with pytest.raises(CheckpointError, match="source was '.*' when the state was saved and is"):
        get_dataloader(other, 8).load_state_dict(state)


def test_seeds_and_epochs_may_be_large(store):
    """Any seed, NumPy's integers too; epochs as far as an int64 carries them to workers."""
    for seed in (2**64, 2**70, np.int64(3), np.uint64(2**64 - 1)):
        loader = get_dataloader(store, np.int64(8), shuffle=True, seed=seed, transform=cut_a_little, num_workers=0)
        loader.set_epoch(2**62 - 1)
        assert sorted(used(loader)) == list(range(101))
        json.dumps(loader.state_dict())
    with pytest.raises(ValueError, match="expected 0 <= epoch < 2"):
        loader.set_epoch(2**62)


# ---- budgets, draws, order ------------------------------------------------------------------


def test_batch_size_is_unlimited_with_a_budget(store):
    """And 32 without; given both, both hold."""
    assert len(next(iter(get_dataloader(store)))) == 32
    budget = list(get_dataloader(store, max_tokens=3000))
    both = list(get_dataloader(store, 20, max_tokens=600, shuffle=True))

    assert max(len(batch) for batch in budget) > 32 and max(b.sequences.numel() for b in budget) <= 3000
    assert max(len(batch) for batch in both) == 20 and max(b.sequences.numel() for b in both) <= 600


def test_a_sequence_over_the_budget_is_named(store):
    """With its row, its id and its length."""
    row = int(LENGTHS.argmax())
    with pytest.raises(OptionError, match=rf"odd.h5: row {row} \(id 's{row}'\): .*59"):
        get_dataloader(store, max_tokens=50, shuffle=True)


@pytest.mark.parametrize("on_long, fate", [
    ("truncate", "cut to 50"), ("skip", "left out"), ("alone", "each a batch of its own"),
])
def test_what_becomes_of_long_sequences_is_said_and_done(store, capsys, on_long, fate):
    """Cut, left out or alone, as asked; counted in one line; all others are there and whole."""
    batches = list(get_dataloader(store, max_tokens=50, shuffle=True, on_long=on_long))
    count = int((LENGTHS > 50).sum())
    assert capsys.readouterr().err == f"on_long: {count} of 101 sequences are longer than 50 elements: {fate}\n"

    lengths = {row: n for b in batches for row, n in zip(b.index.tolist(), b.lengths.tolist(), strict=True)}
    wanted = {row: min(n, 50) if on_long == "truncate" else n for row, n in enumerate(LENGTHS.tolist())
              if on_long != "skip" or n <= 50}
    assert lengths == wanted
    assert all(b.sequences.numel() <= 50 or len(b) == 1 for b in batches)


def test_balanced_and_weighted_sampling_draw_as_told(store):
    """As many draws as sequences; classes alike; a sequence of weight 0 never; other draws each epoch."""
    balanced = get_dataloader(store, 8, shuffle=True, sampling="balanced")
    epochs = [[batch.labels for batch in balanced] for _ in range(8)]
    labels = torch.cat([torch.cat(epoch) for epoch in epochs])
    weighted = used(get_dataloader(store, 8, shuffle=True, sampling="weighted:heavy"))

    assert len(labels) == 8 * 101 and 0.4 < labels.double().mean() < 0.6
    assert len(weighted) == 101 and set(weighted) == set(range(10))
    assert torch.cat(epochs[0]).tolist() != torch.cat(epochs[1]).tolist()
    assert sampling_weights(SequenceDataset(store), "uniform") is None


@pytest.mark.parametrize("sampling, message", [
    ("fair", "sampling 'fair'; expected uniform, balanced or weighted:COLUMN"),
    ("weighted:", "expected uniform, balanced or weighted:COLUMN"),
    ("weighted:id", "'weighted:id': expected one of the columns of numbers, 'label', 'heavy'"),
])
def test_a_wrong_sampling_is_refused(store, sampling, message):
    """Naming what there is."""
    with pytest.raises(OptionError, match=message):
        get_dataloader(store, shuffle=True, sampling=sampling)


def test_sampling_without_what_it_needs_is_refused(store, make_store):
    """Classes to balance, a member of each, a weight above 0."""
    dataset = SequenceDataset(store)
    with pytest.raises(OptionError, match="this store has none; use uniform or weighted"):
        get_dataloader(make_store("n.txt", "ACGT\nACG\n"), shuffle=True, sampling="balanced")
    with pytest.raises(OptionError, match="class 'b' has no member among the 3 sequences"):
        get_dataloader(Subset(dataset, [0, 1, 2]), shuffle=True, sampling="balanced")
    with pytest.raises(OptionError, match="all 2 are 0"):
        get_dataloader(Subset(dataset, [20, 21]), shuffle=True, sampling="weighted:heavy")


def test_results_come_back_in_the_order_of_the_data(store):
    """From batches by length, over several ranks, of any view; what is missing or doubled is named."""
    dataset = SequenceDataset(store)
    view = Subset(dataset, np.random.default_rng(0).permutation(101)[:77].tolist())
    for data in (dataset, view):
        index, results = [], []
        for rank in range(3):
            for batch in get_dataloader(data, max_tokens=200, bucket=True, rank=rank, world_size=3):
                index.append(batch.index)
                results.append(batch.lengths * 2)
        found = restore_order(data, torch.cat(index), torch.cat(results))
        assert found.tolist() == [2 * len(data[i][0]) for i in range(len(data))]
    with pytest.raises(ValueError, match="100 results for 101 sequences; none for row 100"):
        restore_order(dataset, np.arange(100), np.zeros(100))
    with pytest.raises(ValueError, match="102 results for 101 sequences; a row has more than one"):
        restore_order(dataset, [*range(101), 3], np.zeros(102))


def test_longest_first_shows_the_largest_batch_at_step_one(store):
    """Memory runs out at once or never; the other epochs too."""
    loader = get_dataloader(store, max_tokens=300, shuffle=True, longest_first=True)
    for _ in range(3):
        sizes = [batch.sequences.numel() for batch in loader]
        assert sizes[0] == max(sizes)


# ---- ranks from the environment -------------------------------------------------------------


@pytest.mark.parametrize("environment, wanted", [
    ({}, (0, 1)), ({"WORLD_SIZE": "1"}, (0, 1)), ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1)),
    ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
])
def test_rank_and_world_size_are_torchruns(store, monkeypatch, environment, wanted):
    """The loader takes its share by itself."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert rank_and_size() == wanted
    rank, size = wanted
    explicit = get_dataloader(store, 8, shuffle=True, rank=rank, world_size=size)
    assert content(get_dataloader(store, 8, shuffle=True)) == content(explicit)


@pytest.mark.parametrize("environment", [
    {"WORLD_SIZE": "2"}, {"RANK": "1"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "x", "WORLD_SIZE": "2"},
])
def test_half_a_world_is_refused(store, monkeypatch, environment):
    """Rather than every process reading everything."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match="expected 0 <= RANK < WORLD_SIZE, as torchrun sets them"):
        get_dataloader(store)
    with pytest.raises(ValueError, match="rank=0 and world_size=None; expected both or neither"):
        get_dataloader(store, rank=0)


def test_an_environment_that_is_not_the_process_groups_is_refused(store, monkeypatch, tmp_path):
    """Rather than every process reading a share that nobody else completes."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        assert rank_and_size() == (0, 1)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(OptionError, match="'RANK': '1', .* and rank 0 of 1 in torch's process group; expected the"):
            get_dataloader(store)
    finally:
        torch.distributed.destroy_process_group()
