"""Models and comparisons for tests of drift: ranks use different parts of a model, and must end with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

import phalanx.torch as hvd
from phalanx.torch import _bucket, _reducer

LR = 0.5
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Branches(torch.nn.Module):
    """A model of which ranks use different parts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = torch.nn.Linear(3, 3)
        self.left, self.right, self.idle = (torch.nn.Linear(3, 1) for _ in range(3))

    def forward(self, x: torch.Tensor, way: int) -> torch.Tensor:
        hidden = torch.tanh(self.stem(x))
        return (self.left if way == 0 else self.right)(hidden)


def batch(step: int, r: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + r))


def loss_of(net: torch.nn.Module, step: int, r: int) -> torch.Tensor:
    return (net(batch(step, r), (r + step) % 2) ** 2).mean() * (1 + 3 * r)


def bits(net: torch.nn.Module) -> list[list[float]]:
    return [p.detach().double().flatten().tolist() for p in net.parameters()]


def alike(results: list[Any]) -> Any:
    assert all(result == results[0] for result in results), "ranks differ"
    return results[0]


def close(a: list[list[float]], b: list[list[float]]) -> None:
    for x, y in zip(a, b, strict=True):
        assert torch.allclose(torch.tensor(x), torch.tensor(y), rtol=1e-5, atol=1e-6)


def wrapped(net: torch.nn.Module, how: str, **options: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.5)
    if how == "optimizer":
        return net, hvd.DistributedOptimizer(optimizer, net.named_parameters(), **options)
    return hvd.DistributedDataParallel(net, bucket_cap_mb=1e-5, **options), optimizer


def trained(prepare: str) -> list[list[float]]:
    """Three steps of a model to which the program does something; the same must be right without ranks."""
    net = Branches()
    base: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    scheduler = torch.optim.lr_scheduler.StepLR(base, 1, 0.5) if prepare == "scheduler" else None
    optimizer = hvd.DistributedOptimizer(base, net.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if prepare == "step hooks":
        calls = []
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for step in range(4):
        optimizer.zero_grad()
        loss_of(net, step, hvd.rank()).backward()
        if prepare == "memory":
            for p in net.parameters():
                if p.grad is not None:
                    p.grad.data = p.grad.data.clone()
        if prepare == "type" and step == 1:
            net.double().float()
        if prepare == "list" and step == 1:
            torch.manual_seed(5)
            net.left = torch.nn.Linear(3, 1)
            ps = optimizer.param_groups[0]["params"]
            ps[:] = list(net.parameters())
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    if prepare == "step hooks":
        assert len(calls) == 4
    if scheduler is not None:
        assert optimizer.param_groups[0]["lr"] == LR / 16
        assert base.param_groups[0] is optimizer.param_groups[0]
    hvd.check_equal(optimizer)
    return bits(net)


def each_way(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """What a rank does, with gradients in their buckets, with each alone in a bucket (BUCKET-5), and with gradients that stay where they
    are: the results are the same."""

    @wraps(function)
    def all_ways(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        small, cap = _bucket._SMALL, _reducer._BUCKET_BYTES
        try:
            _bucket._SMALL = 0
            in_buckets = function(*args, **kwargs)
            _reducer._BUCKET_BYTES = 1
            alone = function(*args, **kwargs)
        finally:
            _bucket._SMALL, _reducer._BUCKET_BYTES = small, cap
        apart = function(*args, **kwargs)
        assert apart == in_buckets == alone
        return apart

    return all_ways
