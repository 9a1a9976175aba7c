"""The model of parallax_bench.rs with its tables on servers of torch.distributed.rpc: a peer of `cargo xtask bench parallax`.

The first worker of each host has a shard of both tables. A worker asks every server for the rows of a step, each once, and sends it
their gradients; servers apply a step when all workers have sent it. Dense layers are those of DistributedDataParallel over Gloo. It
takes the options and prints the line that a worker of ours prints.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time

import torch
import torch.distributed as dist
from peer import words
from torch import nn
from torch.distributed import rpc

RATE, EPSILON = 0.05, 1e-10


class Shard:
    """Rows whose number has the same remainder, and Adagrad's sums of them, of both tables."""

    def __init__(self, n_rows: int, width: int, n_workers: int) -> None:
        self.rows = [torch.randn(n_rows, width) * 0.01 for _ in range(2)]
        self.sums = [torch.zeros(n_rows, width) for _ in range(2)]
        self.n_workers, self.version = n_workers, 0
        self.given: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
        self.changed = threading.Condition()

    def pull(self, step: int, ids: list[torch.Tensor]) -> list[torch.Tensor]:
        with self.changed:
            assert self.changed.wait_for(lambda: self.version >= step, timeout=60), "a worker sent no gradients"
            return [rows[each] for rows, each in zip(self.rows, ids, strict=True)]

    def push(self, gradients: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        with self.changed:
            self.given.append(gradients)
            if len(self.given) < self.n_workers:
                return
            for table in range(2):
                ids, at = torch.unique(torch.cat([given[table][0] for given in self.given]), return_inverse=True)
                raw = torch.cat([given[table][1] for given in self.given])
                merged = torch.zeros(len(ids), raw.shape[1]).index_add_(0, at, raw).div_(self.n_workers)
                sums = self.sums[table].index_add_(0, ids, merged.square())[ids]
                self.rows[table].index_add_(0, ids, merged / (sums.sqrt() + EPSILON), alpha=-RATE)
            self.given.clear()
            self.version += 1
            self.changed.notify_all()


#: Of this process, if it serves.
shard: Shard | None = None


def pull(step: int, ids: list[torch.Tensor]) -> list[torch.Tensor]:
    assert shard is not None, "only servers are asked"
    return shard.pull(step, ids)


def push(gradients: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    assert shard is not None, "only servers are asked"
    shard.push(gradients)


class Client:
    """A worker's side of all servers."""

    def __init__(self, servers: list[str]) -> None:
        self.servers = servers

    def _parts(self, ids: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        """For each server, places in the numbers of each table."""
        n = len(self.servers)
        return [[(each % n == server).nonzero().flatten() for each in ids] for server in range(n)]

    def pull(self, step: int, ids: list[torch.Tensor], width: int) -> list[torch.Tensor]:
        rows = [torch.empty(len(each), width) for each in ids]
        parts, n = self._parts(ids), len(self.servers)
        asked = [
            rpc.rpc_async(server, pull, args=(step, [each[at] // n for each, at in zip(ids, part, strict=True)]))
            for server, part in zip(self.servers, parts, strict=True)
        ]
        for part, answer in zip(parts, asked, strict=True):
            for table, at, got in zip(rows, part, answer.wait(), strict=True):
                table[at] = got
        return rows

    def push(self, ids: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        n = len(self.servers)
        sent = []
        for server, part in zip(self.servers, self._parts(ids), strict=True):
            given = [(each[at] // n, g[at]) for each, g, at in zip(ids, gradients, part, strict=True)]
            sent.append(rpc.rpc_async(server, push, args=(given,)))
        torch.futures.wait_all(sent)


def main() -> None:
    global shard
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
    rank, size, here = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    if rank % here == 0:
        shard = Shard(-(-options.rows // (size // here)), options.width, size)
    port = int(os.environ["MASTER_PORT"]) + 1
    rpc.init_rpc(
        f"worker{rank}",
        rank=rank,
        world_size=size,
        # Only the wire: hosts on one machine would find each other's shared memory. Pulls wait on a thread of the server each.
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=4 * size,
            init_method=f"tcp://{os.environ['MASTER_ADDR']}:{port}",
            _transports=["uv"],
            _channels=["basic"],
        ),
    )
    client = Client([f"worker{server}" for server in range(0, size, here)])
    dense = nn.Sequential(nn.Linear(options.width, 2560), nn.Tanh(), nn.Linear(2560, options.width))
    model = nn.parallel.DistributedDataParallel(dense, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=RATE)
    dice = torch.Generator().manual_seed(rank + 1)
    took = []
    for step in range(options.warm + options.steps):
        counts = (options.tokens, options.tokens, options.tokens * 4 // 5)
        seen, following, sampled = (words(dice, n, options.rows) for n in counts)
        start = time.perf_counter()
        optimizer.zero_grad()
        both = [torch.unique(ids, return_inverse=True) for ids in (seen, torch.cat([following, sampled]))]
        ids = [each for each, _ in both]
        tables = [rows.requires_grad_() for rows in client.pull(step, ids, options.width)]
        context = model(tables[0][both[0][1]].mean(dim=0, keepdim=True))
        score = (tables[1][both[1][1]] * context).sum(dim=1)
        ((score[: options.tokens] ** 2).mean() + (score[options.tokens :] ** 2).mean()).backward()
        client.push(ids, [rows.grad for rows in tables])
        optimizer.step()
        if step >= options.warm:
            took.append((time.perf_counter() - start) * 1e3)
    took.sort()
    steps = options.warm + options.steps
    line = json.dumps({"rank": rank, "size": size, "ms": took[len(took) // 2], "steps": steps})
    # One write: lines of several ranks in one pipe stay whole.
    os.write(1, f"{line}\n".encode())
    dist.barrier()
    rpc.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
