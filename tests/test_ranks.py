"""Real processes that train together over gloo: one plan, equal steps, the gradients of a single process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seqpipe import get_dataloader

SCRIPT = Path(__file__).with_name("ranks.py")


@pytest.fixture(scope="module")
def ranks(odd_store, tmp_path_factory):
    """Run the script on four ranks at once and return what each wrote; a rank that hangs fails the test."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": "4", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
             "ACCELERATE_USE_CPU": "true"}
    processes = [subprocess.Popen([sys.executable, SCRIPT, odd_store, folder / f"{rank}.json", str(port)],
                                  env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                                  stderr=subprocess.PIPE, text=True) for rank in range(4)]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=180)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


def reference(store, groups):
    """Return the gradient of the mean loss over the real elements of each group of rows, from one process."""
    torch.manual_seed(0)
    embedding, rnn, head = torch.nn.Embedding(6, 8), torch.nn.GRU(8, 8, batch_first=True), torch.nn.Linear(8, 2)
    parameters = [*embedding.parameters(), *rnn.parameters(), *head.parameters()]
    rows = {int(batch.index): batch for batch in get_dataloader(store, 1)}
    for group in groups:
        for parameter in parameters:
            parameter.grad = None
        count = sum(rows[row].num_elements for row in group)
        for row in group:
            tokens = rows[row].tokens
            outputs = head(rnn(embedding(tokens))[0])
            (torch.nn.functional.cross_entropy(outputs[0], tokens[0] % 2, reduction="sum") / count).backward()
        yield torch.cat([parameter.grad.flatten() for parameter in parameters])


@pytest.mark.parametrize("name", ["1", "2", "4, from the environment", "4, Accelerate", "4, from the process group"])
def test_ranks_take_equal_steps_and_compute_the_gradients_of_one_process(odd_store, ranks, name):
    """Odd number of sequences, token budget, shuffle, global generators that differ: no hang, no gap, no double.

    Each epoch has every row once over all ranks; a filler has weight 0 and changes no gradient.
    """
    runs = [rank[name] for rank in ranks if name in rank]
    assert len(runs) == int(name[0]) and len({len(steps) for steps in runs}) == 1

    by_step = list(zip(*runs, strict=True))
    groups = [[row for share in step if share["weight"] for row in share["rows"]] for step in by_step]
    ends = [i + 1 for i, step in enumerate(by_step) if step[0]["position"][1:] == [0, 0]]
    assert len(ends) == 2 and ends[1] == len(by_step)
    for start, end in ((0, ends[0]), (ends[0], ends[1])):
        assert sorted(sum(groups[start:end], [])) == list(range(101))
    for step in by_step:
        assert all(share["position"] == step[0]["position"] for share in step)
        assert all(share["rows"] == [-1] for share in step if not share["weight"])
        assert all(share["gradient"] == step[0]["gradient"] for share in step)
    for step, wanted in zip(by_step, reference(odd_store, groups), strict=True):
        found = torch.tensor(step[0]["gradient"])
        assert float((found - wanted).norm() / wanted.norm()) < 2e-6
