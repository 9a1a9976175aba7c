"""Parameters that are unfrozen or added later are reduced on all ranks."""

from __future__ import annotations

import pytest
import torch
from drift import LR, Branches, alike, batch, bits, close, loss_of, wrapped
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx import MismatchError


def unfrozen(how: str) -> list[list[float]]:
    net = Branches()
    for p in [*net.stem.parameters(), *net.idle.parameters()]:
        p.requires_grad_(False)
    model, optimizer = wrapped(net, how)
    for step in range(4):
        if step == 2:
            for p in net.stem.parameters():
                p.requires_grad = True
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


def unfrozen_alone(n: int) -> list[list[float]]:
    net = Branches()
    for p in [*net.stem.parameters(), *net.idle.parameters()]:
        p.requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.5)
    for step in range(4):
        if step == 2:
            for p in net.stem.parameters():
                p.requires_grad = True
        optimizer.zero_grad()
        (torch.stack([loss_of(net, step, r) for r in range(n)]).sum() / n).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_unfrozen_parameters_are_followed(n: int, how: str) -> None:
    close(alike(run_ranks(n, unfrozen, how)), unfrozen_alone(n))


def added() -> list[list[float]]:
    net = Branches()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.left.parameters(), lr=LR))
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": list(net.stem.parameters()), "lr": 0.1})
        optimizer.zero_grad()
        (net(batch(step, hvd.rank()), 0) ** 2).mean().backward()
        optimizer.step()
    return bits(net)


def test_added_parameters_are_followed(n: int) -> None:
    trained = alike(run_ranks(n, added))
    assert trained[0] != bits(Branches())[0]


def given_to_the_model() -> list[list[float]]:
    net = Branches()
    model = hvd.DistributedDataParallel(net)
    net.head = torch.nn.Linear(3, 1)
    with torch.no_grad():
        net.head.weight.fill_(0.5)
        net.head.bias.fill_(0.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for step in range(3):
        optimizer.zero_grad()
        (net.head(model(batch(step, hvd.rank()), 0).expand(-1, 3)) ** 2).mean().backward()
        optimizer.step()
    return bits(net)


def test_layers_given_to_a_wrapped_model_are_followed(n: int) -> None:
    alike(run_ranks(n, given_to_the_model))


def unfrozen_on_one_rank(how: str) -> str:
    net = Branches()
    for p in net.stem.parameters():
        p.requires_grad_(False)
    model, optimizer = wrapped(net, how)
    for step in range(2):
        if step == 1 and hvd.rank() == 1:
            net.stem.weight.requires_grad_(True)
        optimizer.zero_grad()
        try:
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        except MismatchError as error:
            return str(error)
    return "nothing was said"


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_a_parameter_unfrozen_on_one_rank_is_named_on_all(n: int, how: str) -> None:
    text = alike(run_ranks(n, unfrozen_on_one_rank, how))
    assert "stem.weight" in text and "rank 1" in text  # REDUCE-3


def added_before_the_step() -> list[list[float]]:
    table, first = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Parameter(torch.zeros(2))
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([table.weight], lr=1.0), [("b", table.weight)])
    table(torch.tensor([hvd.rank() % 4])).sum().backward()
    optimizer.add_param_group({"params": [first]})
    first.grad = torch.full((2,), float(hvd.rank()))
    optimizer.step()
    return [first.tolist(), table.weight.detach().flatten().tolist()]


def test_a_parameter_added_between_pass_and_step_is_reduced(n: int) -> None:
    alike(run_ranks(n, added_before_the_step))
