"""Every rank, from any place of an epoch, takes its part of one plan: nothing lost, nothing repeated."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.errors import CheckpointError, LongSequenceError, OptionError
from seqpipe.samplers import LengthBatchSampler

LENGTHS = np.random.default_rng(0).lognormal(5, 1, 1_000).astype(np.int64) + 1
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "bucket": True, "window": 300}


def sampler(lengths: Any = LENGTHS, **changes: Any) -> LengthBatchSampler:
    return LengthBatchSampler(lengths, **{**OPTIONS, **changes})


def run(one: LengthBatchSampler, num_steps: int | None = None) -> tuple[list[Any], Any]:
    """Return (indices, weight) of the next steps, and the state after the last of them."""
    taken, state = [], one.state_dict()
    for indices, position, weight in one.steps():
        if num_steps is not None and len(taken) == num_steps:
            break
        taken.append((indices.tolist(), weight))
        state = one.state_dict(position)
    return taken, state


def real(steps: list[Any]) -> list[Any]:
    """Return the batches of steps, fillers left out."""
    return [indices for indices, weight in steps if weight]


@st.composite
def plans(draw: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Return lengths and settings of any kind; a budget holds the longest sequence."""
    lengths = np.array(draw(st.lists(st.integers(0, 60), min_size=1, max_size=150)))
    multiple = draw(st.sampled_from([1, 1, 8]))
    least = max(1, -(-int(lengths.max()) // multiple)) * multiple
    bounds = draw(st.sampled_from(["rows", "tokens", "both"]))
    return lengths, {
        "batch_size": None if bounds == "tokens" else draw(st.integers(1, 40)),
        "max_tokens": None if bounds == "rows" else draw(st.integers(least, 4 * least + 200)),
        "shuffle": draw(st.booleans()), "bucket": draw(st.booleans()), "seed": draw(st.integers(0, 2**63)),
        "window": draw(st.sampled_from([1, 20, 64, 1_000])), "pad_to_multiple": multiple,
        "longest_first": draw(st.booleans()), "mixing": draw(st.sampled_from([0, 0.02, 0.5])),
    }


WORLDS = st.integers(1, 7)
EPOCHS = st.integers(0, 2**31)


@given(plan=plans(), epoch=EPOCHS)
@settings(deadline=None, max_examples=200)
def test_each_sequence_comes_once_and_within_the_budget(plan: Any, epoch: int) -> None:
    """Any lengths, budget, mode, seed and epoch; ``len`` is exact before anything is read."""
    lengths, options = plan
    one = LengthBatchSampler(lengths, **options)
    one.set_epoch(epoch)
    expected = len(one)
    batches = list(one)

    assert len(batches) == expected
    assert sorted(sum(batches, [])) == list(range(len(lengths)))
    for batch in batches:
        padded = max(1, -(-int(lengths[batch].max()) // options["pad_to_multiple"])) * options["pad_to_multiple"]
        assert len(batch) * padded <= (options["max_tokens"] or np.inf)
        assert 1 <= len(batch) <= (options["batch_size"] or np.inf)
    if not options["bucket"] and not options["shuffle"] and not options["longest_first"]:
        assert sum(batches, []) == list(range(len(lengths)))


@given(plan=plans(), epoch=EPOCHS, world_size=WORLDS)
@settings(deadline=None, max_examples=150)
def test_ranks_share_one_plan_and_take_equally_many_steps(plan: Any, epoch: int, world_size: int) -> None:
    """Rank r takes batches r, r + W, …; what the last step lacks is one shortest sequence of weight 0."""
    lengths, options = plan
    whole = LengthBatchSampler(lengths, **options)
    whole.set_epoch(epoch)
    batches = list(whole)
    ranks = []
    for rank in range(world_size):
        one = LengthBatchSampler(lengths, **options, rank=rank, world_size=world_size)
        one.set_epoch(epoch)
        assert len(one) == -(-len(batches) // world_size)
        ranks.append([(indices.tolist(), position, weight) for indices, position, weight in one.steps()])

    for rank, steps in enumerate(ranks):
        assert len(steps) == -(-len(batches) // world_size)
        assert real([(indices, weight) for indices, _, weight in steps]) == batches[rank::world_size]
        for (indices, position, weight), (_, other, _) in zip(steps, ranks[0], strict=True):
            assert position == other  # any rank's state serves all
            if not weight:
                assert len(indices) == 1 and position == (epoch + 1, 0, 0)
                assert lengths[indices[0]] == lengths.min() or options["window"] < len(lengths)


@given(plan=plans(), epoch=EPOCHS, worlds=st.tuples(WORLDS, WORLDS, WORLDS), stops=st.tuples(*[st.integers(0, 60)] * 2))
@settings(deadline=None, max_examples=150)
def test_resume_with_another_number_of_ranks_gives_each_remaining_sequence_once(
    plan: Any, epoch: int, worlds: tuple[int, int, int], stops: tuple[int, int]
) -> None:
    """Twice in one epoch, at any steps."""
    lengths, options = plan
    seen: list[int] = []
    state = None
    for world_size, stop in zip(worlds, (*stops, None), strict=True):
        states = []
        for rank in range(world_size):
            one = LengthBatchSampler(lengths, **options, rank=rank, world_size=world_size)
            one.set_epoch(epoch)
            if state:
                one.load_state_dict(state)
            if one.epoch > epoch:
                continue
            steps, after = run(one, stop)
            seen += sum(real(steps), [])
            states.append(after)
        assert all(after == states[0] for after in states)
        state = states[0] if states else state

    assert sorted(seen) == list(range(len(lengths)))
    assert state is not None and state["position"] == [epoch + 1, 0, 0]


@pytest.mark.parametrize("count", [200, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("changes", [{}, {"batch_size": None, "max_tokens": 4_000, "on_long": "alone"},
                                     {"weights": LENGTHS % 3}, {"longest_first": True}],
                         ids=lambda value: "-".join(value) if isinstance(value, dict) else value)
def test_resume_at_every_step_is_the_uninterrupted_epoch(world_size: int, changes: dict[str, Any], count: int) -> None:
    """Bit for bit, through JSON, also for a second and a third resume, and at the end of the epoch."""
    changes = {**changes, "lengths": LENGTHS[:count], "window": 70, "rank": world_size - 1, "world_size": world_size}
    if "weights" in changes:
        changes["weights"] = changes["weights"][:count]
    steps, _ = run(sampler(**changes))
    following, _ = run(sampler_at(1, **changes))
    for stop in range(len(steps) + 1):
        before, state = run(sampler(**changes), stop)
        for further in (0, 2, None):  # steps of the second, third and last run
            resumed = sampler(**changes)
            resumed.load_state_dict(json.loads(json.dumps(state)))
            if state["position"][0] == 1:
                assert before == steps and run(resumed)[0] == following  # a whole epoch, none lost, none repeated
                break
            more, state = run(resumed, further)
            before += more
        else:
            assert before == steps and run(resumed)[0] == following


def sampler_at(epoch: int, **changes: Any) -> LengthBatchSampler:
    one = sampler(**changes)
    one.set_epoch(epoch)
    return one


def test_each_iteration_is_the_next_epoch() -> None:
    """Unless set_epoch says another; an iterator that was never asked for a batch is none."""
    one = sampler()
    epochs = [list(one) for _ in range(3)]

    assert epochs[0] != epochs[1] != epochs[2]
    iter(one)
    assert list(one) == list(sampler_at(3))
    one.set_epoch(1)
    assert list(one) == epochs[1] and list(one) == epochs[2]


def test_len_follows_the_epoch_that_is_set() -> None:
    """With a budget epochs differ in length; ``len`` is that of the running one, then of the next."""
    one = sampler(batch_size=None, max_tokens=6_000, on_long="alone", bucket=False)
    counts = {epoch: len(list(sampler_at(epoch, batch_size=None, max_tokens=6_000, on_long="alone", bucket=False)))
              for epoch in range(4)}

    assert len(set(counts.values())) > 1
    for epoch, count in counts.items():
        assert len(one) == count
        for _ in one:
            assert one.epoch == epoch and len(one) == count


def test_a_loader_of_torch_takes_the_sampler_as_it_is() -> None:
    """Its iterator is made twice for one iteration with workers; epochs follow each other all the same."""
    for num_workers in (0, 2):
        loader: Any = torch.utils.data.DataLoader(range(1_000), batch_sampler=sampler(),  # type: ignore[arg-type]
                                                  num_workers=num_workers)
        assert [[batch.tolist() for batch in loader] for _ in range(2)] == [list(sampler()), list(sampler_at(1))]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_resumes_in_the_middle_and_at_the_end(num_workers: int) -> None:
    """torchdata's StatefulDataLoader keeps the state of the sampler's iterator; no epoch is lost or repeated."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        return torchdata.StatefulDataLoader(range(1_000), batch_sampler=sampler(), num_workers=num_workers)

    wanted = [list(sampler_at(epoch)) for epoch in range(3)]
    for stop in (1, 40, len(wanted[0])):
        first = loader()
        batches = iter(first)
        before = [next(batches).tolist() for _ in range(stop)]
        if stop == len(wanted[0]):
            assert list(batches) == []
        second = loader()
        second.load_state_dict(first.state_dict())
        after = [[batch.tolist() for batch in second] for _ in range(2)]
        if stop == len(wanted[0]):
            assert before == wanted[0] and after == wanted[1:]
        else:
            assert before + after[0] == wanted[0] and after[1] == wanted[1]


def test_a_sampler_pickles_and_copies_in_the_middle_of_a_run() -> None:
    """Frameworks copy what they are given."""
    one = sampler()
    next(iter(one))

    assert list(pickle.loads(pickle.dumps(one))) == list(copy.deepcopy(one)) == list(sampler_at(1))


# ---- states that do not fit ----------------------------------------------------------------------


@pytest.mark.parametrize("name, change, was, now", [
    ("seed", {"seed": 7}, 0, 7), ("batch_size", {"batch_size": 9}, 8, 9),
    ("max_tokens", {"max_tokens": 10**6}, None, 10**6),
    ("bucket", {"bucket": False}, True, False), ("window", {"window": 200}, 300, 200),
    ("mixing", {"mixing": 0.5}, 0.018, 0.5), ("source", {"source": "b.h5"}, "", "b.h5"),
    ("pad_to_multiple", {"pad_to_multiple": 8}, 1, 8), ("drop_last", {"drop_last": True}, False, True),
    ("num_sequences", {"lengths": LENGTHS[:-1]}, 1_000, 999),
], ids=str)
def test_a_state_of_another_setting_names_both_values(name: str, change: dict[str, Any], was: Any, now: Any) -> None:
    """And which setting it is."""
    state = sampler().state_dict()
    with pytest.raises(CheckpointError) as error:
        sampler(**change).load_state_dict(state)

    assert f"cannot resume: {name} was {was!r} when the state was saved and is {now!r} now" in str(error.value)


def test_a_state_of_other_lengths_or_weights_is_refused() -> None:
    """One length of a thousand is enough."""
    changed = LENGTHS.copy()
    changed[500] += 1
    weights = np.ones(1_000)
    with pytest.raises(CheckpointError, match="cannot resume: lengths was '"):
        sampler(changed).load_state_dict(sampler().state_dict())
    with pytest.raises(CheckpointError, match="cannot resume: weights was None when"):
        sampler(weights=weights).load_state_dict(sampler().state_dict())
    with pytest.raises(CheckpointError, match="cannot resume: weights was '"):
        sampler(weights=weights + (np.arange(1_000) == 3)).load_state_dict(sampler(weights=weights).state_dict())


def test_a_state_does_not_depend_on_how_lengths_are_held() -> None:
    """A list, another integer type, or lengths that are computed where asked for."""
    state = sampler().state_dict((2, 1, 5))
    for lengths in (LENGTHS.tolist(), LENGTHS.astype(np.uint16), torch.from_numpy(LENGTHS), Computed(LENGTHS)):
        one = sampler(lengths)
        one.load_state_dict(state)
        assert run(one) == run(resumed(state)) and one.state_dict()["plan"] == state["plan"]


class Computed:
    """Lengths that take nothing but index arrays."""

    def __init__(self, lengths: np.ndarray) -> None:
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return self._lengths[rows + 0]


def resumed(state: dict[str, Any]) -> LengthBatchSampler:
    one = sampler()
    one.load_state_dict(state)
    return one


@pytest.mark.parametrize("damage", [
    lambda state: None, lambda state: [], lambda state: {}, lambda state: {**state, "version": 0},
    lambda state: {**state, "plan": {}}, lambda state: {**state, "plan": None},
    lambda state: {**state, "position": [0, 0]},
    lambda state: {**state, "position": [0, 4, 0]}, lambda state: {**state, "position": [0, -1, 0]},
    lambda state: {**state, "position": [0, 0.5, 0]}, lambda state: {**state, "position": "000"},
])
def test_what_is_no_state_is_refused_in_a_sentence(damage: Any) -> None:
    """And the sampler stays where it was."""
    one = sampler()
    with pytest.raises(CheckpointError, match="cannot resume: "):
        one.load_state_dict(damage(sampler().state_dict()))

    assert list(one) == list(sampler())


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("changes, message", [
    ({"batch_size": None}, "neither batch_size nor max_tokens"), ({"batch_size": 0}, "batch_size=0; expected a whole"),
    ({"max_tokens": 2.5}, r"max_tokens=2.5; expected a whole number, 1 or more"), ({"seed": -1}, "seed=-1"),
    ({"window": 0}, "window=0"), ({"on_long": "cut"}, "on_long='cut'; expected one of 'error', 'truncate'"),
    ({"mixing": float("nan")}, "mixing=nan"), ({"rank": 2, "world_size": 2}, "rank=2 of world_size=2; expected whole"),
    ({"rank": 0.0}, "rank=0.0 of"), ({"shuffle": "no"}, "shuffle='no'; expected True or False"),
    ({"max_tokens": 7, "pad_to_multiple": 8}, "max_tokens=7 is less than pad_to_multiple=8"),
    ({"weights": np.ones(1_000), "shuffle": False}, "weights draw at random"),
])
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    """Each by its name and value."""
    with pytest.raises(ValueError, match=message):
        sampler(**changes)


def test_lengths_and_epochs_that_are_none_are_refused() -> None:
    """Each with what was found."""
    for lengths, message in (([1.5, 2], "lengths: found float64"), ([[1, 2]], r"of shape \(1, 2\)"),
                             ([3, -1], "sequence 1 has length -1")):
        with pytest.raises(ValueError, match=message):
            list(sampler(lengths))
    with pytest.raises(ValueError, match="epoch=-1; expected 0 <= epoch < "):
        sampler().set_epoch(-1)


def test_an_empty_data_set_is_refused() -> None:
    """A loop over nothing would go unnoticed."""
    with pytest.raises(OptionError, match="no sequences to batch: the data set is empty"):
        sampler(np.empty(0, np.int64))


def test_a_sequence_over_the_budget_is_named_before_the_first_batch() -> None:
    """By index and length, with what padding makes of it; the error carries the index."""
    with pytest.raises(LongSequenceError, match="sequence 2 has length 50, 56 when padded to a multiple of 8, over "
                       "max_tokens=55; raise max_tokens, or choose on_long='truncate', 'skip' or 'alone'") as error:
        sampler(np.array([3, 4, 50]), batch_size=None, max_tokens=55, pad_to_multiple=8)

    assert error.value.index == 2
    with pytest.raises(OptionError, match="max_tokens=2 is below the shortest of all sequences, of length 3"):
        sampler(np.array([3, 4, 50]), batch_size=None, max_tokens=2, on_long="skip")


@pytest.mark.parametrize("bucket", [False, True])
def test_policies_for_sequences_over_the_budget(bucket: bool) -> None:
    """Skipped, cut to what fits, or alone; the rest keeps the budget, and they are counted."""
    lengths = np.array([100, 10, 10, 10, 100, 7])
    batches = {}
    for policy in ("truncate", "skip", "alone"):
        one = sampler(lengths, batch_size=None, max_tokens=30, on_long=policy, bucket=bucket, window=3)
        counts = one.num_long, one.num_batches
        batches[policy] = list(one)
        assert counts == (2, len(batches[policy]))
        for batch in batches[policy]:
            assert len(batch) * min(30, lengths[batch].max()) <= 30

    assert sorted(sum(batches["skip"], [])) == [1, 2, 3, 5]
    assert sorted(sum(batches["alone"], [])) == sorted(sum(batches["truncate"], [])) == list(range(6))
    assert [0] in batches["alone"] and [4] in batches["alone"]
    assert sampler(lengths, max_tokens=30, pad_to_multiple=8, on_long="truncate").settings.longest_allowed == 24
