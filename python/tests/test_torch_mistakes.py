"""Mistakes that a new user made: ranks that differ after them are told, and nothing is wrong in silence."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks

import phalanx
import phalanx.numpy as pn
import phalanx.torch as hvd
from phalanx import MismatchError


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def wrapped(net: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), **{"lr": 0.1, **options}), net.named_parameters())


def a_pass(net: torch.nn.Module) -> None:
    net(torch.full((2, 4), 1.0 + hvd.rank())).pow(2).sum().backward()


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in caught]


def settings_that_differ(how: str) -> str:
    net = model()
    options: dict[str, Any] = {}
    if how == "weight decay":
        options = {"weight_decay": 0.1 * hvd.rank()}
    optimizer = wrapped(net, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(MismatchError) as error:
        for _ in range(3):
            optimizer.zero_grad()
            a_pass(net)
            optimizer.step()
            if how == "scheduler" and hvd.rank() == 0:
                scheduler.step()
            if how == "rate":
                optimizer.param_groups[0]["lr"] = 0.1 * (1 + hvd.rank())
    return str(error.value)


@pytest.mark.parametrize(("how", "named"), [("rate", "lr"), ("scheduler", "lr"), ("weight decay", "weight_decay")])
def test_settings_of_optimizers_that_differ_are_named_on_all_ranks(how: str, named: str) -> None:
    first, second = run_ranks(2, settings_that_differ, how)
    assert first == second
    assert f"{named} of group 0" in first


def outsiders(kind: str) -> list[str]:
    members = phalanx.add_process_set([0])
    net = model()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if kind == "optimizer":
            sgd = torch.optim.SGD(net.parameters(), lr=0.1)
            hvd.DistributedOptimizer(sgd, net.named_parameters(), process_set=members)
        else:
            hvd.DistributedDataParallel(net, process_set=members)
    phalanx.remove_process_set(members)
    return told(caught)


@pytest.mark.parametrize("kind", ["optimizer", "model"])
def test_a_rank_outside_of_the_process_set_is_told_that_it_trains_alone(kind: str) -> None:
    member, outsider = run_ranks(2, outsiders, kind)
    assert member == []
    assert len(outsider) == 1 and "rank 1 is not in the process set [0]" in outsider[0]


def new_parameters() -> list[str]:
    net = model()
    optimizer = wrapped(net)
    for _ in range(20):
        optimizer.zero_grad()
        a_pass(net)
        optimizer.step()
    torch.manual_seed(hvd.rank())
    head = torch.nn.Linear(2, 1)
    optimizer.add_param_group({"params": head.parameters()})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        head(net(torch.ones(1, 4))).sum().backward()
    return told(caught)


def test_new_parameters_that_differ_are_told_in_their_first_pass() -> None:
    first, _ = run_ranks(2, new_parameters)
    assert len(first) == 1 and "added.1" in first[0]


class Fails(torch.autograd.Function):
    """The identity, whose backward pass fails when it is told to."""

    fails = False

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if Fails.fails:
            raise RuntimeError("as ordered")
        return gradient


class Failing(torch.nn.Module):
    """A model whose backward pass can fail in the middle."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.before, self.after = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.after(Fails.apply(self.before(x)))
        return result


def step_after_a_failed_pass() -> list[str]:
    net = Failing()
    ddp = hvd.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(14):
            Fails.fails = step == 10
            optimizer.zero_grad()
            try:
                a_pass(ddp)
            except RuntimeError:
                assert Fails.fails
            optimizer.step()
    return told(caught)


def test_a_step_with_gradients_of_a_failed_pass_is_told_by_the_next_one() -> None:
    first, _ = run_ranks(2, step_after_a_failed_pass)
    assert len(first) == 1 and "different values" in first[0]


def states_in_another_order() -> str:
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    layers = [a, b] if hvd.rank() == 0 else [b, a]
    named = [*((f"a.{n}", p) for n, p in a.named_parameters()), *((f"b.{n}", p) for n, p in b.named_parameters())]
    sgd = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, named)
    with pytest.raises(MismatchError) as error:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return str(error.value)


def test_states_of_parameters_in_another_order_are_not_mixed_up() -> None:
    first, second = run_ranks(2, states_in_another_order)
    assert first == second
    assert "a.weight" in first


def broadcast_again() -> list[Any]:
    net = model()
    with pytest.raises(MismatchError):
        hvd.broadcast_parameters(net.state_dict(), root_rank=hvd.rank())
    with torch.no_grad():
        for p in net.parameters():
            p += hvd.rank()
    hvd.broadcast_parameters(net.state_dict(), root_rank=1)
    return [p.tolist() for p in net.parameters()]


def test_names_are_free_after_a_broadcast_that_failed() -> None:
    first, second = run_ranks(2, broadcast_again)
    assert first == second


def torchs_batch_norm() -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.SyncBatchNorm(2)))
    return told(caught)


def test_batch_normalization_of_torchs_process_groups_is_warned_of() -> None:
    for each in run_ranks(2, torchs_batch_norm):
        assert len(each) == 1 and "convert_sync_batchnorm" in each[0]


def scheduler_before_wrapping() -> list[str]:
    net = model()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1)
    optimizer = hvd.DistributedOptimizer(sgd, net.named_parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        a_pass(net)
        optimizer.step()
        scheduler.step()
    return told(caught)


def test_a_scheduler_made_before_wrapping_sees_the_steps() -> None:
    assert run_ranks(2, scheduler_before_wrapping) == [[], []]


def gradients_after_adding() -> list[bool]:
    net, head = model(), torch.nn.Linear(2, 1)
    optimizer = wrapped(net)
    optimizer.zero_grad(set_to_none=True)
    optimizer.add_param_group({"params": head.parameters()})
    return [p.grad is None for p in [*net.parameters(), *head.parameters()]]


def test_adding_parameters_gives_gradients_to_no_others() -> None:
    assert run_ranks(2, gradients_after_adding) == [[True] * 4 + [False] * 2] * 2


def overlapping() -> list[float]:
    a = np.arange(6.0) * (1 + pn.rank())
    pn.allreduce(a[:4], out=a[2:])
    return a[2:].tolist()


def test_results_may_lie_over_their_own_input() -> None:
    assert run_ranks(2, overlapping) == [[0.0, 1.5, 3.0, 4.5]] * 2


def replaced_under_way() -> list[Any]:
    net = model()
    ddp = hvd.DistributedDataParallel(net, bucket_cap_mb=1e-5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def halve(_: torch.Tensor) -> None:
        for p in net[2].parameters():
            p.grad = None if p.grad is None else p.grad / 2

    net[0].weight.register_post_accumulate_grad_hook(halve)
    for _ in range(3):
        optimizer.zero_grad()
        a_pass(ddp)
        optimizer.step()
    return [p.tolist() for p in net.parameters()]


def test_gradients_that_are_replaced_while_they_travel_are_still_everybodys() -> None:
    first, second = run_ranks(2, replaced_under_way)
    assert first == second


def expanded() -> list[Any]:
    net = model()
    optimizer = wrapped(net)
    for p in net.parameters():
        p.grad = torch.tensor(1.0 + hvd.rank()).expand_as(p)
    optimizer.step()
    return [p.grad.flatten()[0].item() for p in net.parameters() if p.grad is not None]


def test_gradients_whose_elements_share_their_memory_are_averaged() -> None:
    assert run_ranks(2, expanded) == [[1.5] * 4] * 2
