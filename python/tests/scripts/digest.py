"""A small training. Every rank prints a digest of the parameters' bits; ``train()`` is also called by itself."""

import hashlib
import sys

import torch

import phalanx.torch as hvd


def train():
    hvd.init()
    torch.manual_seed(hvd.rank())  # Ranks begin with different parameters and have different data.
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for _ in range(20):
        inputs, labels = torch.randn(32, 64), torch.randint(10, (32,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return f"digest of {hvd.size()} ranks: {hashlib.sha256(bits).hexdigest()}"


if __name__ == "__main__":
    sys.stdout.write(train() + "\n")  # At once, or the lines of two ranks may mix.
