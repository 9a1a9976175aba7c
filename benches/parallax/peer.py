"""The model of parallax_bench.rs with torch's DistributedDataParallel over Gloo: a peer of `cargo xtask bench parallax`.

It takes the options and prints the line that a worker of ours prints.
"""

import argparse
import json
import math
import os
import time

import torch
import torch.distributed as dist
from torch import nn


class Words(nn.Module):
    """Two tables with sparse gradients, and two dense layers that see the mean of the words."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.seen = nn.Embedding(rows, width, sparse=True)
        self.next = nn.Embedding(rows, width, sparse=True)
        self.dense = nn.Sequential(nn.Linear(width, 2560), nn.Tanh(), nn.Linear(2560, width))

    def forward(self, seen: torch.Tensor, following: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        context = self.dense(self.seen(seen).mean(dim=0, keepdim=True))
        scores = [(self.next(ids) * context).sum(dim=1) for ids in (following, sampled)]
        return (scores[0] ** 2).mean() + (scores[1] ** 2).mean()


def words(dice: torch.Generator, n: int, rows: int) -> torch.Tensor:
    """Log-uniform numbers: small ones are frequent, as words are."""
    uniform = torch.rand(n, generator=dice, dtype=torch.float64)
    return ((uniform * math.log(rows + 1)).exp().long() - 1).clamp(0, rows - 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1280)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(Words(options.rows, options.width), gradient_as_bucket_view=True)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    dice = torch.Generator().manual_seed(rank + 1)
    took = []
    for step in range(options.warm + options.steps):
        counts = (options.tokens, options.tokens, options.tokens * 4 // 5)
        ids = [words(dice, n, options.rows) for n in counts]
        start = time.perf_counter()
        optimizer.zero_grad()
        model(*ids).backward()
        optimizer.step()
        if step >= options.warm:
            took.append((time.perf_counter() - start) * 1e3)
    took.sort()
    size, steps = int(os.environ["WORLD_SIZE"]), options.warm + options.steps
    line = json.dumps({"rank": rank, "size": size, "ms": took[len(took) // 2], "steps": steps})
    # One write: lines of several ranks in one pipe stay whole.
    os.write(1, f"{line}\n".encode())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
