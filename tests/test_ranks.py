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


def run_ranks(store, folder, world_size):
    """Run the script on every rank and return what each wrote; a rank that hangs fails the test."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(world_size):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen([sys.executable, SCRIPT, store, folder / f"{rank}.json", str(port)],
                                          env=environment, stderr=subprocess.PIPE, text=True))
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]


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


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_take_equal_steps_and_compute_the_gradients_of_one_process(odd_store, tmp_path, world_size):
    """Odd number of sequences, token budget, shuffle, global generators that differ: no hang, no gap, no double.

    Each epoch has every row once over all ranks; a filler has weight 0 and changes no gradient.
    """
    ranks = run_ranks(odd_store, tmp_path, world_size)
    assert len({len(rank["steps"]) for rank in ranks}) == 1

    by_step = list(zip(*(rank["steps"] for rank in ranks), strict=True))
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
