"""Programs that clip, unscale or search along a line decide the same on all ranks, whatever part of a model each rank uses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drift import LR, Branches, alike, bits, close, each_way, loss_of, wrapped
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx import MismatchError


@each_way
def clipped(how: str, options: dict[str, Any]) -> list[list[float]]:
    net = Branches()
    model, optimizer = wrapped(net, how, **options)
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


def clipped_alone(n: int) -> list[list[float]]:
    net = Branches()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.5)
    for step in range(6):
        optimizer.zero_grad()
        (torch.stack([loss_of(net, step, r) for r in range(n)]).sum() / n).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


@pytest.mark.parametrize(
    ("how", "options"),
    [("optimizer", {}), ("optimizer", {"groups": 2}), ("model", {})],
    ids=["optimizer", "groups", "model"],
)
def test_clipping_is_right_whatever_each_rank_has_used(n: int, how: str, options: dict[str, Any]) -> None:
    close(alike(run_ranks(n, clipped, how, options)), clipped_alone(n))  # REDUCE-1; momentum shows that BUCKET-3 holds


@each_way
def unscaled(with_inf: bool) -> tuple[list[list[float]], float]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(6):
        optimizer.zero_grad()
        loss = loss_of(net, step, hvd.rank())
        if with_inf and step == 2 and hvd.rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        scaler.step(optimizer)
        scaler.update()
    return bits(net), scaler.get_scale()


def test_unscaling_is_right_and_all_ranks_leave_out_the_same_steps(n: int) -> None:
    close(alike(run_ranks(n, unscaled, False))[0], clipped_alone(n))
    _, scale = alike(run_ranks(n, unscaled, True))
    assert scale == 512.0


@each_way
def clipped_without_a_batch() -> str:
    """A rank without a batch clips nothing, and gets everybody's gradients only in its step."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    try:
        for step in range(4):
            optimizer.zero_grad()
            if step != 1 or hvd.rank() != 0:
                loss_of(net, step, hvd.rank()).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
            optimizer.step()
    except MismatchError as error:
        return str(error)
    return "nothing was said"


def test_a_rank_that_could_not_clip_is_told_to_all(n: int) -> None:
    assert "changed after they were reduced" in alike(run_ranks(n, clipped_without_a_batch))


@each_way
def line_search() -> tuple[list[list[float]], int]:
    net = Branches()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.LBFGS(net.parameters(), max_iter=8, line_search_fn="strong_wolfe"), net.named_parameters()
    )
    n_calls = 0

    def closure() -> torch.Tensor:
        nonlocal n_calls
        n_calls += 1
        optimizer.zero_grad()
        loss = loss_of(net, 0, hvd.rank())
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    return bits(net), n_calls


def test_a_line_search_decides_the_same_on_all_ranks(n: int) -> None:
    alike(run_ranks(n, line_search))
