"""How many samples a second a model trains on, with made-up data.

phalanx run -np 2 python examples/torch_synthetic_benchmark.py --model conv
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import phalanx.torch as hvd


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(),
            nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(n_out),
        )
        self.around = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if stride > 1 or n_in != n_out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.around(x))


def conv() -> nn.Module:
    """A residual network for images of 32 x 32."""
    widths = [64, 64, 128, 256, 512]
    blocks = [Residual(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000)]
    return nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1), *blocks, *head)


def mlp() -> nn.Module:
    """25 million parameters and little to compute: the exchange of gradients is what counts."""
    layers = [nn.Flatten(), nn.Linear(3 * 32 * 32, 4096), nn.ReLU(), nn.Linear(4096, 2048), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2048, 1000))


MODELS = {"conv": conv, "mlp": mlp}
COMPRESSIONS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16, "bf16": hvd.Compression.bf16}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures training on made-up data.")
    parser.add_argument("--model", choices=MODELS, default="conv")
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the clock runs")
    parser.add_argument("--rounds", type=int, default=5, help="how often to measure")
    parser.add_argument("--steps", type=int, default=5, help="in each round")
    parser.add_argument("--compression", choices=COMPRESSIONS, default="none", help="of gradients on their way")
    parser.add_argument("--wrapper", choices=["optimizer", "model"], default="optimizer", help="what makes it distributed")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = MODELS[args.model]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compression = COMPRESSIONS[args.compression]
    if args.wrapper == "model":
        network: nn.Module = hvd.DistributedDataParallel(model, compression=compression)
    else:
        network = model
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    images = torch.randn(args.batch_size, 3, 32, 32)
    labels = torch.randint(0, 1000, (args.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()

    for _ in range(args.warmup):
        step()
    rates = []
    for _ in range(args.rounds):
        began = time.perf_counter()
        for _ in range(args.steps):
            step()
        rates.append(args.steps * args.batch_size / (time.perf_counter() - began))
        if hvd.rank() == 0:
            print(f"{rates[-1]:8.1f} samples/s a rank", flush=True)
    everybody = hvd.allreduce(torch.tensor(statistics.median(rates)), op=hvd.Sum).item()
    if hvd.rank() == 0:
        n = sum(p.numel() for p in model.parameters())
        print(f"{args.model}, {n / 1e6:.1f} M parameters, {hvd.size()} ranks: {everybody:.1f} samples/s in all (median)", flush=True)


if __name__ == "__main__":
    main()
