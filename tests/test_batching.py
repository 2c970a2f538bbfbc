"""A plan of batches holds every sequence once, and depends on lengths, settings, seed and epoch alone."""

from __future__ import annotations

import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe import samplers
from seqpipe.batch_settings import PlanSettings
from seqpipe.batching import count_batches, padding_share, plan_batches, plan_window
from seqpipe.bench_batches import meeting_share
from seqpipe.samplers import LengthBatchSampler

MODES = [(shuffle, bucket) for shuffle in (False, True) for bucket in (False, True)]
SKEWED = np.random.default_rng(0).lognormal(5, 1, 20_000).astype(np.int64) + 1


def plan(lengths, batch_size=32, shuffle=True, bucket=True, **changes):
    return plan_batches(np.asarray(lengths), batch_size=batch_size, shuffle=shuffle, bucket=bucket, **changes)


def flat(batches):
    return np.concatenate(batches).tolist() if batches else []


@given(
    lengths=st.lists(st.integers(0, 10**6), max_size=300),
    batch_size=st.integers(1, 400),
    mode=st.sampled_from(MODES),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=150)
def test_each_index_is_in_exactly_one_batch(lengths, batch_size, mode, drop_last, seed, epoch):
    """Any lengths, batch size, seed and epoch; with drop_last only full batches are left."""
    batches = plan(lengths, batch_size, *mode, drop_last=drop_last, seed=seed, epoch=epoch)

    found = flat(batches)
    sizes = [len(batch) for batch in batches]
    assert len(found) == len(set(found)) and set(found) <= set(range(len(lengths)))
    assert len(batches) == count_batches(len(lengths), batch_size=batch_size, drop_last=drop_last)
    if drop_last:
        assert set(sizes) <= {batch_size} and len(lengths) - len(found) < batch_size
    else:
        assert len(found) == len(lengths)
        assert sorted(sizes, reverse=True)[:-1] == [batch_size] * (len(batches) - 1)


def test_without_shuffle_and_bucket_the_order_is_that_of_the_store():
    """Prediction relies on it."""
    assert flat(plan(SKEWED[:100], 7, shuffle=False, bucket=False)) == list(range(100))


@pytest.mark.parametrize("bucket", [False, True])
def test_drop_last_without_shuffle_leaves_out_the_last_of_the_store(bucket):
    """As torch's drop_last does, whatever their lengths."""
    assert sorted(flat(plan(SKEWED[:100], 32, shuffle=False, bucket=bucket, drop_last=True))) == list(range(96))


def test_bucketing_without_shuffle_keeps_the_order_of_the_store_as_far_as_it_can():
    """Rows ascend in a batch of like lengths, and batches come by their first row."""
    lengths = np.array([3, 1, 3, 2, 1])

    assert [batch.tolist() for batch in plan(lengths, 2, shuffle=False)] == [[0, 2], [1], [3, 4]]


@pytest.mark.parametrize("bucket", [False, True])
def test_same_seed_and_epoch_give_the_same_plan(bucket):
    """And another epoch or seed another; (0, 1) and (1, 0) differ, which seed + epoch would not."""
    plans = {
        (seed, epoch): flat(plan(SKEWED[:500], bucket=bucket, seed=seed, epoch=epoch))
        for seed, epoch in [(0, 0), (0, 1), (1, 0)]
    }

    assert flat(plan(SKEWED[:500], bucket=bucket, seed=0, epoch=1)) == plans[0, 1]
    assert len({tuple(order) for order in plans.values()}) == 3


def test_without_shuffle_every_epoch_is_the_same():
    """Neither seed nor epoch matters."""
    assert flat(plan(SKEWED[:500], shuffle=False, seed=1, epoch=2)) == flat(plan(SKEWED[:500], shuffle=False))


@pytest.mark.parametrize("seed", range(3))
def test_bucketing_pads_far_less_than_random_batches(seed):
    """On log-normal lengths (sigma 1) four fifths of random batches are padding, a fifth of bucketed ones."""
    random = padding_share(SKEWED, plan(SKEWED, bucket=False, seed=seed))
    bucketed = padding_share(SKEWED, plan(SKEWED, seed=seed))

    assert random > 0.75
    assert bucketed < 0.25


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("window", [2**18, 3_200], ids=["one window", "many windows"])
def test_batch_length_has_no_trend_with_the_step(seed, window):
    """The rank correlation of a batch's length with its place, and with the next one's, is near 0."""
    longest = np.array([SKEWED[batch].max() for batch in plan(SKEWED, seed=seed, window=window)])
    ranks = np.argsort(np.argsort(longest))

    few = 4 / np.sqrt(len(ranks))
    assert abs(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) < few
    assert abs(np.corrcoef(ranks[1:], ranks[:-1])[0, 1]) < few


@pytest.mark.parametrize("options", [{"batch_size": 8}, {"max_tokens": 4_000}, {"batch_size": 8, "window": 1_500}],
                         ids=str)
def test_no_seed_gives_a_trend(options):
    """Chance alone would give one of 250 batches a rank correlation over 0.05 in two of five epochs."""
    lengths = SKEWED[:3_000]
    for seed in range(20):
        batches = plan_batches(lengths, shuffle=True, bucket=True, seed=seed, on_long="alone", **options)
        assert len(batches) > 100 and abs(trend([lengths[batch].max() for batch in batches])) < 0.05


def test_bucketing_mixes_sequences_over_more_than_a_window():
    """Shuffled before sorted: neighbours in the store seldom meet in a batch."""
    spans = [np.ptp(batch) for batch in plan(np.sort(SKEWED), 8, window=3_200)]

    assert np.median(spans) > 10 * 8


def test_padding_share_counts_padding_only():
    """4 + 4 real elements of 4 x 3 are two thirds; nothing at all is no padding."""
    assert padding_share(np.array([4, 2, 2]), [np.array([0, 1, 2])]) == pytest.approx(1 - 8 / 12)
    assert padding_share(np.array([0, 2]), [np.array([0]), np.array([1])]) == pytest.approx(1 / 3)
    assert padding_share(np.array([5]), []) == 0.0


def test_an_empty_dataset_has_no_batches():
    """An empty list, for every mode, with and without drop_last."""
    for shuffle, bucket in MODES:
        assert plan([], shuffle=shuffle, bucket=bucket) == []
        assert plan([], shuffle=shuffle, bucket=bucket, drop_last=True) == []


def test_a_plan_of_a_million_takes_part_of_a_second():
    """A tenth of a second on a free core; ten seconds are allowed for a busy one."""
    lengths = np.random.default_rng(0).integers(1, 1000, 10**6)
    started = time.process_time()

    batches = plan(lengths)

    assert len(batches) == 31_250
    assert time.process_time() - started < 10


def test_sampler_yields_lists_of_int_of_the_epoch_at_the_first_batch():
    """set_epoch during an iteration is for the next one; before its first batch it still counts for this one."""
    sampler = LengthBatchSampler(SKEWED[:100], batch_size=8, shuffle=True, bucket=True, seed=3)
    batches = iter(sampler)
    sampler.set_epoch(0)
    first = [next(batches)]
    sampler.set_epoch(1)
    first += batches

    assert all(isinstance(i, int) for batch in first for i in batch)
    assert first == [batch.tolist() for batch in plan(SKEWED[:100], 8, seed=3)]
    assert list(sampler) == [batch.tolist() for batch in plan(SKEWED[:100], 8, seed=3, epoch=1)]
    assert len(sampler) == 13


# ---- what padding costs, and what mixing is left -------------------------------------------------


LOGNORMAL = np.clip(np.round(np.random.default_rng(1).lognormal(np.log(200), 0.8, 200_000)), 10, 5_000).astype(np.int64)
BUDGET = int(64 * LOGNORMAL.mean())


def trend(values):
    """Return the rank correlation of values with their place."""
    return np.corrcoef(np.argsort(np.argsort(values)), np.arange(len(values)))[0, 1]


@pytest.mark.parametrize("window", [2**18, 60_000], ids=["one window", "four windows"])
@pytest.mark.parametrize("options, most", [
    ({"max_tokens": BUDGET}, 0.02), ({"max_tokens": BUDGET, "mixing": 0}, 0.007), ({"batch_size": 64}, 0.025),
], ids=["budget", "budget, tight", "64 rows"])
def test_padding_of_log_normal_lengths(options, most, window):
    """Median 200, sigma 0.8, 10 to 5,000: 80 % of random batches is padding; no trend of lengths over the epoch."""
    batches = plan_batches(LOGNORMAL, shuffle=True, bucket=True, window=window, **options)

    assert padding_share(LOGNORMAL, batches) <= most + (0.01 if window < 2**18 else 0)
    assert abs(trend([LOGNORMAL[batch].max() for batch in batches])) < 0.05
    if "max_tokens" in options:
        assert max(len(batch) * LOGNORMAL[batch].max() for batch in batches) <= BUDGET


def test_mixing_lets_other_sequences_meet():
    """More of it, more padding and fewer pairs that meet again in the next epoch."""
    found = []
    for mixing in (0, 0.018, 0.1):
        epochs = [plan_batches(LOGNORMAL, max_tokens=BUDGET, shuffle=True, bucket=True, mixing=mixing, epoch=epoch)
                  for epoch in (0, 1)]
        found.append((padding_share(LOGNORMAL, epochs[0]), meeting_share(*epochs, num_sequences=len(LOGNORMAL))))

    padding, meeting = zip(*found, strict=True)
    assert padding[0] < padding[1] < padding[2] < 0.12
    assert 0.5 > meeting[0] > 3 * meeting[1] > 6 * meeting[2]


def test_equal_lengths_fill_every_batch():
    """Edges follow the data: one length is one bucket, whatever was hoped for."""
    batches = plan_batches(np.full(1_000, 7), max_tokens=70, shuffle=True, bucket=True)

    assert [len(batch) for batch in batches] == [10] * 100


# ---- budgets, order ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_no_batch_is_over_its_budget_whatever_the_order(mode):
    """Lengths 100, 10, 10, 10, 100 with 150: the longest of a batch counts, not the last or the sum."""
    lengths = np.array([100, 10, 10, 10, 100])
    for order in (lengths, np.sort(lengths), np.sort(lengths)[::-1]):
        for seed in range(5):
            batches = plan_batches(order, max_tokens=150, shuffle=mode[0], bucket=mode[1], seed=seed)
            assert max(len(batch) * order[batch].max() for batch in batches) <= 150
            assert sorted(flat(batches)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("window", [2**18, 2_000], ids=["one window", "many windows"])
@pytest.mark.parametrize("options", [{"batch_size": 16}, {"max_tokens": 200_000}, {"batch_size": 16, "weights": True},
                                     {"max_tokens": 5_000, "on_long": "alone"}, {"batch_size": 30, "drop_last": True}],
                         ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_the_largest_batch_comes_first_on_request(mode, options, window):
    """Memory that will not do fails at step 1: of all windows, in each epoch, drawn by weight or not."""
    if options.get("weights"):
        if not mode[0]:
            return  # draws are random
        options = {**options, "weights": SKEWED % 5}
    one = LengthBatchSampler(SKEWED, shuffle=mode[0], bucket=mode[1], longest_first=True, window=window, **options)
    for epoch in range(2):
        batches = list(one)
        cost = [len(batch) * SKEWED[batch].max() for batch in batches]
        assert cost[0] == max(cost)
        if "weights" not in options and not options.get("drop_last"):
            assert sorted(flat(batches)) == list(range(len(SKEWED)))
            assert batches[0] == plan_batches(SKEWED, shuffle=mode[0], bucket=mode[1], longest_first=True,
                                              window=window, epoch=epoch, **options)[0].tolist()


@pytest.mark.parametrize("weights", [None, SKEWED % 5], ids=["uniform", "drawn"])
def test_of_very_many_sequences_one_window_is_known_to_come_first(weights, monkeypatch):
    """That of the longest sequence; where they are drawn, the first as it is. No window is planned to find it."""
    monkeypatch.setattr(samplers, "MOST_AT_ONCE", 10_000)
    one = LengthBatchSampler(SKEWED, batch_size=16, shuffle=True, bucket=True, longest_first=True, window=2_000,
                             weights=weights)
    steps = list(one.steps())
    cost = [len(batch) * SKEWED[batch].max() for batch, _, _ in steps]

    in_first = 1 + next(i for i, (_, position, _) in enumerate(steps) if position[1])
    assert in_first < len(cost) and cost[0] == max(cost[:in_first])
    assert not one._known and (weights is not None or SKEWED.argmax() in steps[0][0])


def test_drop_last_with_a_budget_leaves_out_what_could_hold_more():
    """Of each window; a batch that is full stays."""
    lengths = np.full(10, 5)

    assert len(plan_batches(lengths, max_tokens=25, shuffle=True, bucket=True, drop_last=True)) == 2
    for shuffle, bucket in MODES:
        assert len(plan_batches(lengths, max_tokens=20, shuffle=shuffle, bucket=bucket, drop_last=True)) == 2
        assert len(plan_batches(lengths, max_tokens=20, shuffle=shuffle, bucket=bucket)) == 3
        assert plan_batches(lengths, max_tokens=60, shuffle=shuffle, bucket=bucket, drop_last=True) == []


def test_drop_last_leaves_out_others_in_each_epoch():
    """Not always the shortest, which bucketing has last."""
    left_out = [set(range(1_000)) - set(flat(plan(SKEWED[:1_000], 300, drop_last=True, epoch=epoch)))
                for epoch in range(12)]

    assert all(len(rows) == 100 for rows in left_out)
    assert len(set.union(*left_out)) > 600


def test_plans_ignore_the_random_state_of_the_process():
    """Ranks whose global generators differ cut the same plan."""
    np.random.seed(1)
    first = flat(plan(SKEWED))
    np.random.seed(2)

    assert flat(plan(SKEWED)) == first


def test_the_plan_is_written_down():
    """A change of it would break the resume of every run that is under way: raise ``states.STATE_VERSION``."""
    lengths = np.arange(700) * 7919 % 97 + 1
    found = {}
    kinds = {"rows": {"batch_size": 10}, "tokens": {"max_tokens": 500}, "plain": {"batch_size": 9}}
    for name, options in kinds.items():
        batches = plan_batches(lengths, shuffle=True, bucket=name != "plain", window=300, seed=3, epoch=4, **options)
        found[name] = [len(batches), zlib.crc32(np.concatenate(batches).astype("<i8").tobytes())]

    assert found == {"rows": [70, 769317437], "tokens": [80, 2103125725], "plain": [78, 2289348897]}


# ---- many sequences ------------------------------------------------------------------------------


class Counted:
    """Lengths that are computed where asked for, and count how many were."""

    def __init__(self, num_sequences):
        self.num_sequences, self.asked = num_sequences, 0

    def __len__(self):
        return self.num_sequences

    def __getitem__(self, rows):
        rows = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        self.asked += len(rows)
        return 10 + rows * 2_654_435_761 % 491


@pytest.mark.parametrize("window", [0, 1, 1_907, 3_813])
@pytest.mark.parametrize("options", [{"max_tokens": 17_600}, {"batch_size": 64}], ids=str)
def test_any_place_of_an_epoch_of_a_billion_is_planned_alone(options, window):
    """One window of lengths is looked at, and as many sequences are in batches."""
    settings_ = PlanSettings(shuffle=True, bucket=True, **options)
    lengths = Counted(10**9)
    found = plan_window(lengths, settings_, epoch=5, window=window)

    assert len(settings_.windows(10**9, 5)) == 3_815 or options == {"batch_size": 64}
    assert lengths.asked == len(found.indices) == len(np.unique(found.indices)) <= 2**18 + 64


def test_resuming_in_a_billion_plans_one_window():
    """Near the end as at the start; the state itself looks at a sample of the lengths."""
    asked = []
    for window in (0, 3_000, 3_800):
        lengths = Counted(10**9)
        sampler = LengthBatchSampler(lengths, max_tokens=17_600, shuffle=True, bucket=True)
        sampler.load_state_dict(sampler.state_dict((2, window, 700)))
        assert next(iter(sampler))
        asked.append(lengths.asked)

    assert max(asked) <= 2 * 2**18 + 2**18 and max(asked) - min(asked) <= 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_planning_a_billion_takes_little_memory():
    """Three windows, batch by batch, of lengths that are computed and of a sparse file of 8 GB: below 200 MB."""
    code = """
import tempfile
import numpy as np
from seqpipe.batch_settings import PlanSettings
from seqpipe.batching import plan_window
class Computed:
    def __len__(self): return 10**9
    def __getitem__(self, rows): return 10 + rows * 2_654_435_761 % 491
with tempfile.TemporaryFile() as file:
    file.truncate(8 * 10**9)
    for lengths in (Computed(), np.memmap(file, "<i8", "r")):
        settings = PlanSettings(max_tokens=17_600, shuffle=True, bucket=True)
        for window in (0, 2_000, 3_814):
            plan = plan_window(lengths, settings, epoch=0, window=window)
            assert sum(map(len, plan)) == len(plan.indices)
with open("/proc/self/status") as status:  # getrusage has the parent's peak in it
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1000)
"""
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert int(result.stdout) < 200
