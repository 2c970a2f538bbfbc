"""One rank of a data-parallel run on the CPU: started by test_ranks.py, once per rank.

    python tests/ranks.py STORE OUT PORT       (RANK and WORLD_SIZE in the environment)

Writes the rows, weights and gradients of two epochs to OUT as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from seqpipe import get_dataloader


def main() -> None:
    store, out, port = sys.argv[1:]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size,
                            timeout=timedelta(seconds=60))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    embedding, rnn = torch.nn.Embedding(6, 8), torch.nn.GRU(8, 8, batch_first=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(embedding, First(rnn), torch.nn.Linear(8, 2)))
    # Whatever the ranks drew before must not matter to their plan.
    torch.manual_seed(100 + rank)
    np.random.seed(100 + rank)
    loader = get_dataloader(store, max_tokens=200, shuffle=True, num_workers=0)
    steps = []
    for _ in range(2):
        for batch in loader:
            # The sum of the losses over the number of real elements on all ranks; DDP divides by the ranks.
            count = torch.tensor(float(batch.num_elements * batch.weight))
            dist.all_reduce(count)
            outputs = model(batch.tokens)
            wanted = (batch.tokens % 2).masked_fill(~batch.mask, -100)
            loss = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), wanted.flatten(), reduction="sum")
            model.zero_grad()
            (loss * batch.weight * world_size / count).backward()
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
            steps.append({"rows": batch.index.tolist(), "weight": batch.weight, "position": batch.position,
                          "gradient": gradient.tolist()})
    Path(out).write_text(json.dumps({"len": len(loader), "steps": steps}))
    dist.destroy_process_group()


class First(torch.nn.Module):
    """A module that returns a pair, reduced to its first part."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.module(values)[0]


if __name__ == "__main__":
    main()
