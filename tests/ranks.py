"""One rank of data-parallel runs on the CPU: started by test_ranks.py, once per rank.

    python tests/ranks.py STORE OUT PORT       (RANK and WORLD_SIZE in the environment, as torchrun sets them)

Trains two epochs among the first rank alone, the first two, all, and all through Accelerate. Writes the rows,
weights and gradients of each run to OUT as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import accelerate
import numpy as np
import torch
import torch.distributed as dist

from seqpipe import get_dataloader


def main() -> None:
    store, out, port = sys.argv[1:]
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks,
                            timeout=timedelta(seconds=60))
    torch.set_num_threads(1)
    runs = {}
    for world_size in (1, 2):
        group = dist.new_group(list(range(world_size)))
        if rank < world_size:
            runs[str(world_size)] = train(store, group, rank=rank, world_size=world_size)
    runs["4, from the environment"] = train(store, dist.group.WORLD)
    runs["4, Accelerate"] = train(store, None)
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    runs["4, from the process group"] = train(store, dist.group.WORLD)
    Path(out).write_text(json.dumps(runs))
    dist.destroy_process_group()


def train(store: str, group: dist.ProcessGroup | None, **place: int) -> list[dict]:
    """Return what each step of two epochs had; ``place`` is that of this rank; no group is Accelerate's way."""
    torch.manual_seed(0)
    embedding, rnn = torch.nn.Embedding(6, 8), torch.nn.GRU(8, 8, batch_first=True)
    network = torch.nn.Sequential(embedding, First(rnn), torch.nn.Linear(8, 2))
    model = torch.nn.parallel.DistributedDataParallel(network, process_group=group) if group else \
        accelerate.Accelerator(cpu=True).prepare(network)
    # Whatever the ranks drew before must not matter to their plan.
    torch.manual_seed(100 + dist.get_rank())
    np.random.seed(100 + dist.get_rank())
    loader = get_dataloader(store, max_tokens=200, shuffle=True, num_workers=0, **place)
    steps = []
    for _ in range(2):
        for batch in loader:
            # The sum of the losses over the number of real elements on all ranks; DDP divides by the ranks.
            count = torch.tensor(float(batch.num_elements * batch.weight))
            dist.all_reduce(count, group=group)
            outputs = model(batch.tokens)
            wanted = (batch.tokens % 2).masked_fill(~batch.mask, -100)
            loss = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), wanted.flatten(), reduction="sum")
            model.zero_grad()
            (loss * batch.weight * dist.get_world_size(group) / count).backward()
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
            steps.append({"rows": batch.index.tolist(), "weight": batch.weight, "position": batch.position,
                          "gradient": gradient.tolist()})
    return steps


class First(torch.nn.Module):
    """A module that returns a pair, reduced to its first part."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.module(values)[0]


if __name__ == "__main__":
    main()
