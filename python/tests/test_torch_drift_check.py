"""A difference between ranks is found by the next check, and the error names it."""

from __future__ import annotations

import pytest
import torch
from drift import Branches, alike, loss_of, wrapped
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx import MismatchError


def drifting(what: str) -> tuple[str, tuple[int, ...], str | None]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    loss_of(net, 0, hvd.rank()).backward()
    optimizer.step()
    hvd.check_equal(net)
    hvd.check_equal(optimizer)
    hvd.check_equal(net.state_dict())
    with torch.no_grad():
        if hvd.rank() == hvd.size() - 1:
            net.left.weight[0, 1] += 1e-7 if what != "state" else 0.0
            optimizer.state[net.left.weight]["momentum_buffer"] += 1e-3
    with pytest.raises(MismatchError) as caught:
        hvd.check_equal({"model": net, "optimizer": optimizer, "state": optimizer}[what])
    with pytest.raises(ValueError, match="a model, an optimizer"):
        hvd.check_equal(5)
    return str(caught.value), caught.value.ranks, caught.value.tensor


@pytest.mark.parametrize("what", ["model", "optimizer", "state"])
def test_a_difference_is_told_with_its_parameter_ranks_and_digests(n: int, what: str) -> None:
    text, ranks, tensor = alike(run_ranks(n, drifting, what))
    assert ranks == (0, n - 1)
    assert tensor == ("momentum_buffer of left.weight" if what == "state" else "left.weight")
    digests = [word for word in text.split() if len(word) == 16 and set(word) <= set("0123456789abcdef")]
    assert len(set(digests)) == 2


def checked_while_training(how: str) -> tuple[int, str]:
    net = Branches()
    model, optimizer = wrapped(net, how)
    for step in range(9):
        try:
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        except MismatchError as error:
            return step, str(error)
        if step == 3 and hvd.rank() == 1:
            with torch.no_grad():
                net.right.bias += 1.0
    return -1, "nothing was said"


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_a_drift_is_found_at_the_next_check(how: str) -> None:
    step, text = alike(run_ranks(2, checked_while_training, how, fresh=True, env={"PHALANX_CHECK": "3"}))
    assert step == 5
    assert "right.bias" in text and "step 6" in text
