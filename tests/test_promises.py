"""Random walks over the arguments of get_dataloader: each promise of batches and resume, against a slow reference."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
from torch.utils.data import Subset

from seqpipe.dataloader import get_dataloader, store_rows
from seqpipe.errors import OptionError
from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions
from seqpipe.sequences import SequenceDataset

LENGTHS = {
    "mixed": np.random.default_rng(1).integers(0, 60, 101),
    "tiny": np.array([5, 0, 7, 3, 9, 1]),
    "one": np.array([4]),
    "equal": np.full(40, 7),
    "skewed": np.clip(np.random.default_rng(2).lognormal(2, 1.2, 120), 0, 300).astype(np.int64),
}


def cut_a_little(sequence, metadata, rng):
    return sequence[rng.integers(0, 3) if len(sequence) > 3 else 0 :], metadata


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """One store for each kind of lengths; classes a and b, weights 0 to 3, splits train and test."""
    folder, rng = tmp_path_factory.mktemp("walks"), np.random.default_rng(0)
    for name, lengths in LENGTHS.items():
        lines = [f"s{i},{''.join(rng.choice(list('ACGT'), n))},{'ab'[i % 5 == 3]},{i % 4 + (i == 0)},"
                 f"{'test' if i % 3 == 2 else 'train'}" for i, n in enumerate(lengths.tolist())]
        (folder / f"{name}.csv").write_text("\n".join(["id,sequence,label,heavy,part", *lines, ""]))
        preprocess(PreprocessOptions(raw=(folder / f"{name}.csv",), out=folder / f"{name}.h5", split="column:part",
                                     alphabet="dna", on_empty="keep"))
    return folder


def content(loader):
    return [(batch.index.tolist(), batch.weight, batch.position, [row.tolist() for row in batch.unpad()],
             batch.sequences.numpy().tobytes(), batch.labels.tolist(), tuple(batch.ids)) for batch in loader]


def draw_data(draw, folder):
    """Return a dataset, a Subset of one, or a Subset of that; and the lengths of the whole store."""
    name = draw.choice(list(LENGTHS))
    split = draw.choice([None, None, "train"])
    transform = draw.choice([None, cut_a_little])
    data = SequenceDataset(folder / f"{name}.h5", split, transform, seed=draw.choice([0, 2**40]))
    for _ in range(draw.choice([0, 0, 1, 2])):
        count = len(data)
        rows = draw.sample(range(count), draw.randint(1, count))
        data = Subset(data, [row - count * draw.choice([0, 1]) for row in rows])
    return data, LENGTHS[name]


def draw_options(draw, longest):
    """Return arguments of get_dataloader; a budget may be below the longest sequence where a policy allows it."""
    multiple = draw.choice([1, 1, 3, 8])
    least = max(1, -(-longest // multiple)) * multiple
    options = {
        "shuffle": draw.random() < 0.7, "bucket": draw.choice([None, True, False]), "drop_last": draw.random() < 0.2,
        "seed": draw.choice([0, 1, 2**31, 2**64]), "window": draw.choice([1, 7, 40, 2**18]),
        "pad_to_multiple": multiple, "longest_first": draw.random() < 0.3, "mixing": draw.choice([0, 0.018, 0.5, 10]),
        "padding": draw.choice(["fill", "manual", "pad_sequence"]), "padding_side": draw.choice(["right", "left"]),
    }
    bounds = draw.choice(["rows", "tokens", "both"])
    if bounds != "tokens":
        options["batch_size"] = draw.choice([1, 2, 8, 1000])
    if bounds != "rows":
        options["on_long"] = draw.choice(["error", "truncate", "skip", "alone"])
        options["max_tokens"] = draw.choice([least, 3 * least + 5, 10**6])
        if options["on_long"] != "error" and draw.random() < 0.4:
            options["max_tokens"] = draw.randint(multiple, least)
    if draw.random() < 0.25:
        options |= {"shuffle": True, "sampling": draw.choice(["balanced", "weighted:heavy"])}
    return options


def check_epoch(data, options, lengths, epoch, batches):
    """Compare an epoch with what the options promise, batch by batch and row by row."""
    rows, found = store_rows(data).tolist(), [row for batch in batches for row in batch[0]]
    budget, on_long, multiple = options.get("max_tokens"), options.get("on_long"), options["pad_to_multiple"]
    allowed = budget and budget // multiple * multiple
    wanted = [row for row in rows if on_long != "skip" or lengths[row] <= allowed]
    if "sampling" in options:
        assert set(found) <= set(rows) and (len(found) == len(rows) or on_long == "skip" or options["drop_last"])
        assert options["sampling"] == "balanced" or all(row % 4 or row == 0 for row in found)
    elif options["drop_last"]:
        assert len(set(found)) == len(found) and set(found) <= set(wanted)
        assert budget or len(found) == len(rows) // options["batch_size"] * options["batch_size"]
    else:
        assert sorted(found) == sorted(wanted)
        if not options["shuffle"] and not options["bucket"] and not options["longest_first"]:
            assert found == wanted

    base = data
    while isinstance(base, Subset):
        base = base.dataset
    plain = SequenceDataset(base.store.path)
    for index, weight, _, sequences, _, labels, ids in batches:
        cut = [min(lengths[row], allowed) if on_long == "truncate" else lengths[row] for row in index]
        cost = max(1, -(-max(cut) // multiple)) * multiple * len(index)
        assert weight == 1 and len(index) <= options.get("batch_size", np.inf)
        assert budget is None or cost <= budget or (len(index) == 1 and on_long == "alone")
        for row, found_sequence, label, name in zip(index, sequences, labels, ids, strict=True):
            sequence, metadata = plain[row]
            if base.transform:
                sequence, _ = cut_a_little(sequence, metadata, np.random.default_rng([base.seed, epoch, row]))
            assert found_sequence == sequence[: allowed if on_long == "truncate" else None].tolist()
            assert (label, name) == (metadata["label"], f"s{row}")


def walk(draw, folder, workers):
    """Take one random data set, arguments, epoch, ranks and resumes."""
    data, lengths = draw_data(draw, folder)
    options = draw_options(draw, int(lengths[store_rows(data)].max()))
    epoch, num_ranks = draw.choice([0, 1, 5, 2**31, 2**40]), draw.randint(1, 7)

    def make(state=None, **place):
        count = draw.choice(workers)
        more = {"persistent_workers": draw.random() < 0.5, "prefetch_factor": draw.choice([1, 2, 4])} if count else {}
        loader = get_dataloader(data, num_workers=count, **options, **more, **place)
        if state is None:
            loader.set_epoch(epoch)
        else:
            loader.load_state_dict(json.loads(json.dumps(state)))
        return loader

    try:
        loader = make()
    except OptionError as error:
        assert any(text in str(error) for text in ("has no member", "below the shortest", "are 0; expected"))
        return
    length = len(loader)
    batches, following = content(loader), content(loader)
    assert len(batches) == length
    check_epoch(data, options, lengths, epoch, batches)

    ranks = [content(make(rank=rank, world_size=num_ranks)) for rank in range(num_ranks)]
    assert {len(steps) for steps in ranks} == {-(-length // num_ranks)}
    for (index, weight, *_), wanted in itertools.zip_longest(itertools.chain(*zip(*ranks, strict=True)), batches):
        assert (index, weight) == ((wanted[0], 1) if wanted else ([-1], 0))

    taken, state = [], None
    for _ in range(draw.randint(1, 4)):
        loader = make(state)
        taken += content(itertools.islice(loader, min(draw.randint(0, 5), length - len(taken))))
        state = loader.state_dict()
    rest = content(make(state))
    assert taken + rest == batches + (following if state["position"][0] == epoch + 1 else [])

    if state["position"][0] == epoch:
        rest = [content(make(state, rank=rank, world_size=num_ranks)) for rank in range(num_ranks)]
        assert len({len(steps) for steps in rest}) == 1
        left = [row for steps in rest for index, weight, *_ in steps if weight for row in index]
        assert sorted(left + [row for batch in taken for row in batch[0]]) == \
            sorted(row for batch in batches for row in batch[0])


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 3_000), marks=pytest.mark.slow)], ids=str)
def test_every_promise_holds_for_any_arguments(stores, seeds, capsys):
    """Each row once, in budget, as its reference; equal steps on all ranks; resumes on any ranks go on."""
    for seed in seeds:
        walk(random.Random(seed), stores, workers=[0])


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 200), marks=pytest.mark.slow)], ids=str)
def test_every_promise_holds_for_any_workers(stores, seeds, capsys):
    """With 0 to 3 of them, persistent or not, each loader with another number."""
    for seed in seeds:
        walk(random.Random(10**6 + seed), stores, workers=[0, 0, 1, 2, 3])
