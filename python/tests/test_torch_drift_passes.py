"""Ranks with different numbers of backward passes, or without a batch, end with the same bits, or all raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drift import Branches, alike, batch, bits, close, loss_of, wrapped
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx import MismatchError


def clipped_steps(passes: Callable[[Branches, Any, int], None], **options: Any) -> list[list[float]]:
    """Three steps of these backward passes, with gradients that are clipped before each step."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer", **options)
    for step in range(3):
        optimizer.zero_grad()
        passes(net, optimizer, step)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


def losses(net: Branches, step: int) -> list[torch.Tensor]:
    """Two losses over different parameters."""
    x = batch(step, hvd.rank())
    return [(net.left(x) ** 2).mean(), (net.right(x) ** 2).mean()]


def separate_losses() -> list[list[float]]:
    def passes(net: Branches, _: Any, step: int) -> None:
        for loss in losses(net, step):
            loss.backward()

    return clipped_steps(passes)


def one_loss() -> list[list[float]]:
    return clipped_steps(lambda net, _, step: sum(losses(net, step)).backward())  # type: ignore[union-attr]


def test_losses_with_a_pass_each_add_up(n: int) -> None:
    close(alike(run_ranks(n, separate_losses)), alike(run_ranks(n, one_loss)))


def uneven_passes() -> list[list[float]]:
    """A rank has one loss more than the others."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    for step in range(3):
        optimizer.zero_grad()
        x = batch(step, hvd.rank())
        (net.left(x) ** 2).mean().backward()
        if hvd.rank() == 0:
            (net.right(x) ** 2).mean().backward()
        optimizer.step()
    return bits(net)


def test_ranks_may_have_differently_many_losses(n: int) -> None:
    alike(run_ranks(n, uneven_passes))  # REDUCE-2, ROUND-1


def accumulated(n_passes: int) -> list[list[float]]:
    """Passes that add up use other parts of the model than the last one does."""

    def passes(net: Branches, _: Any, step: int) -> None:
        for i in range(n_passes):
            loss_of(net, step + i, hvd.rank()).backward()

    return clipped_steps(passes, backward_passes_per_step=n_passes)


def not_synchronized() -> list[list[float]]:
    def passes(net: Branches, optimizer: Any, step: int) -> None:
        with optimizer.no_sync():
            loss_of(net, step, hvd.rank()).backward()
        loss_of(net, step + 1, hvd.rank()).backward()

    return clipped_steps(passes)


def test_accumulated_gradients_are_complete_when_the_last_pass_ends(n: int) -> None:
    close(alike(run_ranks(n, accumulated, 2)), alike(run_ranks(n, not_synchronized)))


def without_a_batch() -> list[list[float]]:
    """A rank has no data for a step, and only calls it."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    for step in range(3):
        optimizer.zero_grad()
        if step != 1 or hvd.rank() != 0:
            loss_of(net, step, hvd.rank()).backward()
        optimizer.step()
    return bits(net)


def test_a_rank_without_a_batch_takes_part_in_the_step(n: int) -> None:
    alike(run_ranks(n, without_a_batch))


def one_step_more() -> str:
    """With nothing to train a step needs nobody, and so one rank is a step ahead."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    try:
        for step in range(3):
            for p in net.parameters():
                p.requires_grad_(step != 1)
            if step != 1:
                loss_of(net, step, hvd.rank()).backward()
            if step != 1 or hvd.rank() == 0:
                optimizer.step()
            optimizer.zero_grad()
    except MismatchError as error:
        return str(error)
    return "nothing was said"


def test_a_step_that_one_rank_makes_alone_is_told_to_all(n: int) -> None:
    text = alike(run_ranks(n, one_step_more))
    assert "finished steps" in text and "rank 0" in text  # REDUCE-3


def rejected_pass() -> str:
    """A rank throws its pass away, the others make a step of theirs."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    try:
        for step in range(3):
            loss_of(net, step, hvd.rank()).backward()
            if step != 1 or hvd.rank() != 0:
                optimizer.step()
            optimizer.zero_grad()
    except MismatchError as error:
        return str(error)
    return "nothing was said"


def test_a_pass_that_one_rank_throws_away_is_told_to_all(n: int) -> None:
    assert "without a step" in alike(run_ranks(n, rejected_pass))


def alone_after_all() -> None:
    """What one rank computes must not be added to what is everybody's."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    loss_of(net, 0, hvd.rank()).backward()
    with pytest.raises(AssertionError, match="a further backward pass"), optimizer.no_sync():
        loss_of(net, 0, hvd.rank()).backward()
    optimizer.zero_grad()
    loss_of(net, 0, hvd.rank()).backward()
    optimizer.step()
    hvd.check_equal(net)


def test_no_pass_of_its_own_after_the_reduced_one(n: int) -> None:
    run_ranks(n, alone_after_all)


def interrupted_elsewhere() -> list[list[float]]:
    """A pass ends with an exception, on each rank at another place; then training goes on."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    loss_of(net, 0, hvd.rank()).backward()
    optimizer.step()
    where = net.stem.weight if hvd.rank() == 0 else net.stem.bias
    hook = where.register_hook(lambda _grad: 1 // 0)
    optimizer.zero_grad()
    with pytest.raises(ZeroDivisionError):
        (net(batch(1, hvd.rank()), 0) ** 2).mean().backward()
    hook.remove()
    for step in range(2, 5):
        optimizer.zero_grad()
        loss_of(net, step, hvd.rank()).backward()
        optimizer.step()
    return bits(net)


def test_a_pass_that_ends_in_the_middle_leaves_nothing_behind(n: int) -> None:
    alike(run_ranks(n, interrupted_elsewhere))


def joined_in_the_first_epoch() -> list[list[float]]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    for epoch in range(3):
        n_batches = 0 if epoch == 0 and hvd.rank() == 1 else 2
        for step in range(n_batches):
            optimizer.zero_grad()
            (net(batch(step, hvd.rank()), 0) + net(batch(step, 5), 1)).sum().backward()
            optimizer.step()
        last = hvd.join()
        hvd.broadcast_parameters(net.state_dict(), root_rank=last)
    return bits(net)


def test_a_rank_that_joined_before_its_first_pass_learns_with_the_others(n: int) -> None:
    alike(run_ranks(n, joined_in_the_first_epoch))
