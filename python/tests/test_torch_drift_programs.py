"""What programs do to optimizers and models is the same on all ranks, or refused."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from drift import LR, Branches, alike, bits, loss_of, trained, wrapped
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx import MismatchError


def wrapped_again(how: str) -> list[list[float]]:
    net = Branches()
    for step in range(3):
        model, optimizer = wrapped(net, how)
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    other = "model" if how == "optimizer" else "optimizer"
    with pytest.raises(ValueError, match="not both"):
        wrapped(net, other)
    return bits(net)


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_what_is_wrapped_again_belongs_to_the_new_wrapper(how: str) -> None:
    alike(run_ranks(2, wrapped_again, how))


@pytest.mark.parametrize("prepare", ["step hooks", "scheduler", "memory", "type", "list"])
def test_what_programs_do_is_the_same_on_all_ranks(n: int, prepare: str) -> None:
    """BUCKET-4, and what a new user has tried."""
    alike(run_ranks(n, trained, prepare))


def copied() -> list[list[float]]:
    net = hvd.DistributedDataParallel(Branches())
    average = copy.deepcopy(net)  # Never trained, as for averages of parameters.
    if hvd.rank() == 0:
        copy.deepcopy(net.module)
    second = copy.deepcopy(net)
    optimizer = torch.optim.SGD(second.parameters(), lr=LR)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(second, step, hvd.rank()).backward()
        optimizer.step()
    hvd.check_equal(second.module)
    assert bits(average) == bits(net)
    return bits(second)


def test_a_copy_of_a_model_is_reduced_too(n: int) -> None:
    alike(run_ranks(n, copied))


def refusals() -> str:
    net = Branches()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=LR), net.named_parameters())
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(optimizer)
    with pytest.raises(TypeError, match="save its state_dict"):
        pickle.dumps(optimizer)
    with pytest.raises(TypeError, match="save model.module"):
        pickle.dumps(hvd.DistributedDataParallel(torch.nn.Linear(1, 1)))
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=LR), gradient_predivide_factor=0.0)
    with pytest.raises(ValueError, match="a name as name="):
        hvd.allreduce(torch.ones(1), "grad")
    with pytest.raises(hvd.PhalanxError, match="ranks have different sizes or ops"):
        hvd.sparse_allreduce_async(torch.eye(2 + hvd.rank()).to_sparse(), "sizes", op=hvd.Sum)()
    with pytest.raises(hvd.PhalanxError, match="ranks have different sizes or ops"):
        hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "ops", op=hvd.Sum if hvd.rank() else hvd.Average)()
    x = torch.ones(1, requires_grad=True)
    with pytest.raises(hvd.PhalanxError, match="only sums and averages"):
        hvd.allreduce(x, op=hvd.Max).backward()
    other = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1 * (1 + hvd.rank()))
    hvd.broadcast_parameters({"w": other.param_groups[0]["params"][0].data}, 0)
    hvd.broadcast_parameters({"b": other.param_groups[0]["params"][1].data}, 0)
    with pytest.raises(MismatchError, match="lr of group 0"):
        hvd.check_equal(other)
    return "told"


def test_what_cannot_be_right_is_refused(n: int) -> None:
    alike(run_ranks(n, refusals))


def two_optimizers(kind: str) -> list[list[float]]:
    nets = [Branches(), Branches()]
    pairs = [wrapped(net, kind) for net in nets]
    for step in range(3):
        for model, optimizer in pairs:
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
        for _, optimizer in pairs:
            optimizer.step()
    assert bits(nets[0]) == bits(nets[1])
    return bits(nets[0])


@pytest.mark.parametrize("kind", ["optimizer", "model"])
def test_two_of_a_kind_do_not_collide(n: int, kind: str) -> None:
    alike(run_ranks(n, two_optimizers, kind))


def crossed() -> str:
    nets = [Branches(), Branches()]
    optimizers = [wrapped(net, "optimizer")[1] for net in nets]
    try:
        for i in (0, 1) if hvd.rank() == 0 else (1, 0):
            loss_of(nets[i], 0, hvd.rank()).backward()
            optimizers[i].step()
    except MismatchError as error:
        return str(error)
    return "nothing was said"


def test_optimizers_in_another_order_are_told_apart(n: int) -> None:
    assert "number" in alike(run_ranks(n, crossed))
