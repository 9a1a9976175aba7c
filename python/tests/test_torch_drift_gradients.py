"""Gradients that the program holds, lays out or shares keep their values on all ranks."""

from __future__ import annotations

import pytest
import torch
from drift import LR, Branches, alike, bits, each_way, loss_of, wrapped
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx import MismatchError


@each_way
def held_gradients(is_alias: bool) -> tuple[bool, list[list[float]]]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    kept = []
    for step in range(5):
        optimizer.zero_grad()
        loss_of(net, step, hvd.rank()).backward()
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        kept.append([(g.flatten() if is_alias else g, g.clone().flatten()) for g in grads])
        optimizer.step()
    return all(torch.equal(g.flatten(), copy) for grads in kept for g, copy in grads), bits(net)


@pytest.mark.parametrize("is_alias", [False, True])
def test_gradients_of_earlier_steps_stay_what_they_were(n: int, is_alias: bool) -> None:
    """BUCKET-2."""
    is_unchanged, _ = alike(run_ranks(n, held_gradients, is_alias))
    assert is_unchanged


@each_way
def gradients_of_the_programs_own() -> list[list[float]]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    flat = torch.zeros(sum(p.numel() for p in net.parameters()))
    at = 0
    for p in net.parameters():
        p.grad = flat[at : at + p.numel()].view(p.shape)
        at += p.numel()
    held = [p.grad for p in net.parameters()]
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        loss_of(net, step, hvd.rank()).backward()
        assert all(p.grad is grad for p, grad in zip(net.parameters(), held, strict=True))
        assert torch.equal(hvd.allreduce(flat.clone(), name="flat"), flat)
        assert flat.abs().sum() > 0
        optimizer.step()
    return bits(net)


def test_gradients_that_are_parts_of_a_tensor_stay_so(n: int) -> None:
    """BUCKET-2: programs that lay out gradients themselves see the results there."""
    alike(run_ranks(n, gradients_of_the_programs_own))


@each_way
def channels_last() -> list[list[float]]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))
    net = net.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        net(x).square().mean().backward()
        assert net[0].weight.grad.stride() == net[0].weight.stride()
        optimizer.step()
    return bits(net)


def test_layouts_are_kept(n: int) -> None:
    alike(run_ranks(n, channels_last))


@each_way
def another_layout() -> str:
    net = torch.nn.Conv2d(3, 4, 3)
    if hvd.rank() == 1:
        net = net.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    with pytest.raises(MismatchError, match="strides"):
        net(torch.ones(1, 3, 8, 8)).sum().backward()
        optimizer.step()
    return "told"


def test_another_layout_on_one_rank_is_told(n: int) -> None:
    alike(run_ranks(n, another_layout))


@each_way
def hooked(how: str) -> tuple[list[list[float]], float]:
    net = torch.nn.Linear(3, 1)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(1.0)
    model, optimizer = wrapped(net, how)
    for p in net.parameters():

        def double(p: torch.Tensor) -> None:
            assert p.grad is not None
            p.grad = p.grad * 2

        p.register_post_accumulate_grad_hook(double)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((1, 3), float(hvd.rank() + 1))).sum().backward()
    assert net.weight.grad is not None
    return [net.weight.grad.flatten().tolist()], 2 * (hvd.size() + 1) / 2


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_hooks_of_the_program_come_before_gradients_travel(n: int, how: str) -> None:
    grads, wanted = alike(run_ranks(n, hooked, how))
    assert grads == [[wanted] * 3]


@each_way
def alias_of_a_gradient() -> list[float]:
    net = torch.nn.Linear(2, 1, bias=False)
    flat = torch.zeros(2)
    net.weight.grad = flat.detach().view(1, 2).detach()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters())
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        net(torch.full((1, 2), float(hvd.rank()))).sum().backward()
        assert torch.equal(flat, net.weight.grad.flatten())
        optimizer.step()
    return flat.tolist()


def test_memory_that_the_program_shares_with_a_gradient_has_the_result(n: int) -> None:
    """BUCKET-2."""
    assert alike(run_ranks(n, alias_of_a_gradient)) == [(n - 1) / 2] * 2


@each_way
def sparse_on_one_rank() -> list[list[float]]:
    torch.manual_seed(0)
    table, other = torch.nn.Embedding(6, 2, sparse=True), torch.nn.Linear(1, 1)
    net = torch.nn.ModuleList([table, other])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=LR), net.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        part = table(torch.tensor([1, 2])) if hvd.rank() == 0 else other(torch.ones(1, 1))
        part.sum().backward()
        optimizer.step()
    return bits(net)


def test_a_sparse_gradient_that_one_rank_has_in_the_first_step(n: int) -> None:
    """REDUCE-4: one rank alone knows that the gradient is sparse."""
    alike(run_ranks(n, sparse_on_one_rank))
