"""What tests of Parallax's door train, and what one process would learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

WORDS, WIDTH, STEPS = 30, 3, 20


class Net(torch.nn.Module):
    def __init__(self, rows: bool = True, rest: bool = True) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.words = torch.nn.Embedding(WORDS, WIDTH, sparse=rows, dtype=torch.float64)
        self.out = torch.nn.Linear(WIDTH, 1, dtype=torch.float64) if rest else torch.nn.Flatten(0)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        made = self.out(self.words(ids).sum(1))
        return {"loss": made.square().mean(), "made": made}


def optimizer_of(net: torch.nn.Module, kind: str) -> torch.optim.Optimizer:
    if kind == "adagrad":
        return torch.optim.Adagrad(net.parameters(), lr=0.1, lr_decay=0.1)
    return torch.optim.SGD(net.parameters(), lr=0.1)


def batch(step: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (8, 3), generator=torch.Generator().manual_seed(step))


def alone(kind: str, n: int, average: bool) -> dict[str, torch.Tensor]:
    """What one process computes: dense gradients are averages over workers, rows averages or sums."""
    net = Net()
    optimizer = optimizer_of(net, kind)
    for step in range(STEPS):
        optimizer.zero_grad()
        net(batch(step))["loss"].backward()
        if not average:
            net.words.weight.grad *= n
        optimizer.step()
    return net.state_dict()


def says(call: Callable[[], Any]) -> str:
    with pytest.raises((ValueError, TypeError, AttributeError, OSError, KeyError, RuntimeError)) as caught:
        call()
    return str(caught.value)
