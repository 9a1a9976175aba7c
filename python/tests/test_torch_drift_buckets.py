"""Every gradient is reduced once: in groups, in buckets, and with checkpoints."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from drift import LR, Branches, alike, batch, bits, close, each_way, loss_of, wrapped
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx import MismatchError


@each_way
def checkpointed(how: str, reentrant: bool) -> list[list[float]]:
    net = Branches()
    model, optimizer = wrapped(net, how)
    inner = net.stem.forward
    net.stem.forward = lambda x: torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=reentrant)  # type: ignore[method-assign]
    for step in range(3):
        optimizer.zero_grad()
        x = batch(step, hvd.rank()).requires_grad_()
        (model(x, hvd.rank() % 2) ** 2).mean().backward()
        optimizer.step()
    return bits(net)


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_recomputed_layers(n: int, how: str) -> None:
    close(alike(run_ranks(n, checkpointed, how, True)), alike(run_ranks(n, checkpointed, how, False)))


@each_way
def groups_in_two_passes() -> list[list[float]]:
    net = Branches()
    ps = [*net.left.parameters(), *net.right.parameters()]
    rest = [p for p in net.parameters() if all(p is not q for q in ps)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=LR), net.named_parameters(), op=hvd.Sum, groups=[ps, rest]
    )
    for step in range(2):
        optimizer.zero_grad()
        x = batch(step, hvd.rank())
        (net.left(x) ** 2).mean().backward()
        first = net.left.weight.grad.clone()
        (net.right(x) ** 2).mean().backward()
        assert torch.equal(net.left.weight.grad, first)
        optimizer.step()
    return bits(net)


def test_members_of_a_group_are_reduced_once(n: int) -> None:
    alike(run_ranks(n, groups_in_two_passes))


@each_way
def grouped_in_another_order() -> list[list[float]]:
    net = Branches()
    ps = [net.left.weight, net.left.bias, net.right.bias, net.right.weight]
    if hvd.rank() == 1:
        ps = [ps[0], *reversed(ps[1:])]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=LR), net.named_parameters(), op=hvd.Sum, groups=[ps]
    )
    for step in range(3):
        optimizer.zero_grad()
        x = batch(step, 0)
        (net.left(x) + 2 * net.right(x)).sum().backward()
        assert torch.allclose(net.right.weight.grad, 2 * net.left.weight.grad)
        assert torch.allclose(net.right.bias.grad, torch.tensor([8.0 * hvd.size()]))
        optimizer.step()
    return bits(net)


def test_members_of_groups_in_another_order_are_told_apart(n: int) -> None:
    alike(run_ranks(n, grouped_in_another_order))


@each_way
def two_checkpoints(uses_all: bool) -> list[list[float]]:
    torch.manual_seed(2)
    blocks = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(3)])
    extra = torch.nn.Linear(3, 3)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([*blocks.parameters(), *extra.parameters()], lr=0.01), op=hvd.Sum, backward_passes_per_step=1
    )
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.ones(2, 3, requires_grad=True)
        for block in blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
        if uses_all or hvd.rank() == 0:
            x = x + extra(torch.ones(2, 3))
        x.sum().backward()
        assert torch.allclose(blocks[2].bias.grad, torch.tensor([2.0 * hvd.size()] * 3))
        optimizer.step()
    return [p.detach().flatten().tolist() for p in [*blocks.parameters(), *extra.parameters()]]


@pytest.mark.parametrize("uses_all", [True, False])
def test_checkpoints_send_each_gradient_once(n: int, uses_all: bool) -> None:
    alike(run_ranks(n, two_checkpoints, uses_all))


@each_way
def other_caps() -> str:
    net = hvd.DistributedDataParallel(Branches(), bucket_cap_mb=25.0 if hvd.rank() else 1e-5)
    with pytest.raises(MismatchError, match="buckets of"):
        loss_of(net, 0, hvd.rank()).backward()
    return "told"


def test_other_buckets_on_ranks_are_told(n: int) -> None:
    """REDUCE-4."""
    alike(run_ranks(n, other_caps))


def calls_of_a_step(n_tensors: int) -> int:
    """How many Python functions one step calls."""
    ps = [torch.nn.Parameter(torch.ones(1)) for _ in range(n_tensors)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ps, lr=LR), groups=[ps])
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    for step in range(3):
        loss = torch.stack([p.sum() for p in ps]).sum()
        sys.setprofile(count if step == 2 else None)
        loss.backward()
        optimizer.step()
        sys.setprofile(None)
        optimizer.zero_grad()
    return calls


def test_groups_cost_as_much_as_they_have_members() -> None:
    few, many = (run_ranks(2, calls_of_a_step, count)[0] for count in (100, 400))
    assert many < 6 * few, (few, many)


def alone_in_its_bucket() -> list[float]:
    net = torch.nn.Linear(256, 256, bias=False)
    with torch.no_grad():
        net.weight.fill_(1.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=LR), net.named_parameters(), op=hvd.Sum)
    made: list[int] = []
    net.weight.register_post_accumulate_grad_hook(lambda p: made.append(p.grad.data_ptr()))
    x = torch.full((1, 256), float(hvd.rank() + 1))

    def train(set_to_none: bool) -> bool:
        """Whether the gradient is still in the memory in which the pass has made it."""
        optimizer.zero_grad(set_to_none=set_to_none)
        net(x).sum().backward()
        assert net.weight.grad is not None
        stays = net.weight.grad.data_ptr() == made[-1]
        assert net.weight.grad.unique().tolist() == [sum(range(1, hvd.size() + 1))]
        optimizer.step()
        return stays

    train(True)  # The first pass learns the order.
    # Made anew: reduced where it is. One that stays moves to the bucket once, and is made there from then on.
    assert [train(True), train(True)] == [True, True]
    assert [train(False), train(False), train(False)] == [False, True, True]
    assert train(True)
    return net.weight.flatten().tolist()


def test_a_gradient_alone_in_its_bucket_is_reduced_in_its_own_memory(n: int) -> None:
    """BUCKET-5."""
    alike(run_ranks(n, alone_in_its_bucket))


class Layouts(torch.nn.Module):
    """Small parameters: one in order, one laid out by channels, a scalar, one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.nn.Parameter(torch.zeros(3, 4))
        self.channels = torch.nn.Parameter(torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last))
        self.scalar = torch.nn.Parameter(torch.zeros(()))
        self.nothing = torch.nn.Parameter(torch.zeros(0, 5))


@each_way
def gradients_of_any_layout(how: str) -> list[list[float]]:
    """Gradients are reduced element by element, wherever the pass or the program has put them."""
    net, n = Layouts(), hvd.size()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=LR), net.named_parameters(), op=hvd.Sum)
    counting = {name: torch.arange(p.numel(), dtype=torch.float32).view(p.shape) for name, p in net.named_parameters()}

    def moved(p: torch.Tensor) -> None:
        assert p.grad is not None
        if how == "strided":
            # Its elements are in another order in memory.
            p.grad = p.grad.t().contiguous().t()
        elif how == "expanded":
            p.grad = torch.ones(()).expand(p.shape) * (hvd.rank() + 1)
        elif how == "elsewhere":
            p.grad.data = p.grad.clone()

    net.plain.register_post_accumulate_grad_hook(moved)
    for _ in range(3):
        optimizer.zero_grad()
        sum((p * counting[name] * (hvd.rank() + 1)).sum() for name, p in net.named_parameters()).backward()  # type: ignore[union-attr]
        for name, p in net.named_parameters():
            total = sum(range(1, n + 1))
            wanted = torch.ones(3, 4) if how == "expanded" and name == "plain" else counting[name]
            assert p.grad is not None and torch.equal(p.grad, wanted * total), name
            assert p.grad._version > 0 or n == 1 or p.numel() == 0, "autograd does not know that it was written to"
        optimizer.step()
    return bits(net)


@pytest.mark.parametrize("how", ["plain", "strided", "expanded", "elsewhere"])
def test_small_gradients_of_any_layout(n: int, how: str) -> None:
    alike(run_ranks(n, gradients_of_any_layout, how))
