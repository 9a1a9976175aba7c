"""Optimizers and models on several ranks end where one process with the whole batch ends."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from ranks import run_ranks

import phalanx.torch as hvd

STEPS = 5
BATCH = 8


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True)


def optimizer_of(net: torch.nn.Module, kind: str) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.AdamW(net.parameters(), lr=0.01)
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def share(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = data(step)
    r, n = hvd.rank(), hvd.size()
    return x[r::n], y[r::n]


def alone(kind: str, passes: int = 1, clip: bool = False) -> list[torch.Tensor]:
    """One process with the whole batch. Gradients of several passes add up."""
    net = model()
    optimizer = optimizer_of(net, kind)
    for step in range(STEPS):
        optimizer.zero_grad()
        for i in range(passes):
            x, y = data(step * passes + i)
            torch.nn.functional.mse_loss(net(x), y).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def train(kind: str, passes: int = 1, clip: bool = False, **options: Any) -> list[torch.Tensor]:
    net = model()
    if hvd.rank() != 0:
        for p in net.parameters():
            torch.nn.init.zeros_(p)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    if options.get("groups") == "lists":
        ps = list(net.parameters())
        options["groups"] = [ps[:2], ps[3:]]
    optimizer = hvd.DistributedOptimizer(
        optimizer_of(net, kind), net.named_parameters(), backward_passes_per_step=passes, **options
    )
    assert isinstance(optimizer, torch.optim.AdamW if kind == "adam" else torch.optim.SGD)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for i in range(passes):
            x, y = share(step * passes + i)
            torch.nn.functional.mse_loss(net(x), y).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def data_parallel(accumulate: bool) -> list[torch.Tensor]:
    net = model()
    if hvd.rank() != 0:
        for p in net.parameters():
            torch.nn.init.ones_(p)
    parallel = hvd.DistributedDataParallel(net, bucket_cap_mb=0.0005)
    optimizer = optimizer_of(net, "sgd")
    for step in range(STEPS):
        optimizer.zero_grad()
        if accumulate:
            with parallel.no_sync():
                x, y = share(2 * step)
                torch.nn.functional.mse_loss(parallel(x), y).backward()
            x, y = share(2 * step + 1)
        else:
            x, y = share(step)
        torch.nn.functional.mse_loss(parallel(x), y).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def accumulated_without_sync() -> list[torch.Tensor]:
    net = model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(net, "sgd"), net.named_parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        with optimizer.no_sync():
            x, y = share(2 * step)
            torch.nn.functional.mse_loss(net(x), y).backward()
        x, y = share(2 * step + 1)
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def check(results: list[list[torch.Tensor]], want: list[torch.Tensor]) -> None:
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True)), "ranks differ"
    for a, b in zip(results[0], want, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-11), (a - b).abs().max()


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize(
    "options",
    [{}, {"groups": 2}, {"groups": "lists"}, {"gradient_predivide_factor": 2.0}],
    ids=["plain", "groups", "lists", "predivide"],
)
def test_ends_where_one_process_ends(n: int, kind: str, options: dict[str, Any]) -> None:
    check(run_ranks(n, train_with, kind, options), alone(kind))


def train_with(kind: str, options: dict[str, Any]) -> list[torch.Tensor]:
    return train(kind, **options)


def test_several_passes_add_up(n: int) -> None:
    check(run_ranks(n, train, "sgd", 3), alone("sgd", passes=3))


def test_clipping_after_backward_just_works(n: int) -> None:
    check(run_ranks(n, train, "sgd", 1, True), alone("sgd", clip=True))


def test_no_sync_accumulates(n: int) -> None:
    check(run_ranks(n, accumulated_without_sync), alone("sgd", passes=2))


@pytest.mark.parametrize("accumulate", [False, True])
def test_data_parallel_model(n: int, accumulate: bool) -> None:
    check(run_ranks(n, data_parallel, accumulate), alone("sgd", passes=2 if accumulate else 1))


def rules() -> None:
    net = model()
    named = list(net.named_parameters())
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    for bad, text in [
        ({"named_parameters": list(net.parameters())}, "tuples"),
        ({"named_parameters": [*named, named[0]]}, "more than once"),
        ({"named_parameters": named[1:]}, "no name"),
        ({"backward_passes_per_step": 0}, "> 0"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "predivide"),
        ({"groups": -1}, "positive"),
        ({"groups": "x"}, "positive"),
        ({"groups": [[1]]}, "torch.Tensor"),
        ({"groups": [[named[0][1]], [named[0][1]]]}, "once"),
    ]:
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(plain, **bad)
    optimizer = hvd.DistributedOptimizer(plain, named)
    x, y = share(0)

    def backward() -> None:
        torch.nn.functional.mse_loss(net(x), y).backward()

    backward()
    with pytest.raises(AssertionError, match="raise backward_passes_per_step"):
        backward()
    optimizer.zero_grad()
    backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Gradients that are complete are not reduced again, however often that is asked for.
        before = [p.grad.clone() for p in net.parameters()]
        optimizer.synchronize()
        optimizer.synchronize()
        assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), before, strict=True))
        optimizer.step()
        optimizer.zero_grad()
        backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.zero_grad()
    backward()
    optimizer.load_state_dict(optimizer.state_dict())
    hvd.barrier()
    optimizer.zero_grad()


def unused_on_some_ranks() -> list[float]:
    a, b = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    for layer in (a, b):
        torch.nn.init.ones_(layer.weight)
    named = [("a", a.weight), ("b", b.weight)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=1.0), named)
    used = a if hvd.rank() == 0 else b
    used(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    return [a.weight.item(), b.weight.item()]


def sparse(as_dense: bool) -> torch.Tensor:
    r = hvd.rank()
    table = torch.nn.Embedding(6, 2, sparse=True)
    torch.nn.init.ones_(table.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=as_dense
    )
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([0, r + 1])).sum().backward()
        optimizer.step()
    return table.weight.detach()


def adasum() -> list[torch.Tensor]:
    net = model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(net, "sgd"), net.named_parameters(), op=hvd.Adasum)
    for step in range(2):
        optimizer.zero_grad()
        x, y = data(step)  # The same everywhere: the combination of equal steps is that step.
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    with pytest.raises(AssertionError, match="Adasum"), optimizer.skip_synchronize():
        pass
    return [p.detach() for p in net.parameters()]


def test_rules_of_the_optimizer(n: int) -> None:
    run_ranks(n, rules)


def test_gradients_that_some_ranks_lack_count_as_zero(n: int) -> None:
    assert run_ranks(n, unused_on_some_ranks) == [[1 - 1 / n, 1 - (n - 1) / n]] * n


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(n: int, as_dense: bool) -> None:
    want = torch.ones(6, 2)
    want[0] -= 2.0
    want[1 : n + 1] -= 2.0 / n
    for got in run_ranks(n, sparse, as_dense):
        assert torch.allclose(got, want)


def test_adasum_of_equal_steps_is_that_step(n: int) -> None:
    net = model()
    optimizer = optimizer_of(net, "sgd")
    for step in range(2):
        optimizer.zero_grad()
        x, y = data(step)
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    check(run_ranks(n, adasum), [p.detach() for p in net.parameters()])


def state() -> None:
    r = hvd.rank()
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1 * (r + 1), betas=(0.5 + 0.1 * r, 0.9))
    if r == 0:
        x, y = data(0)
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"]) == (0.1, (0.5, 0.9))
    assert type(group["betas"]) is tuple
    moments = [optimizer.state[p]["exp_avg"] for p in net.parameters()]
    for moment in moments:
        assert torch.equal(moment, hvd.broadcast(moment, 0))
        assert moment.abs().sum() > 0
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(net.parameters()), 0)
    with pytest.raises(ValueError, match="takes a state_dict"):
        hvd.broadcast_parameters(5, 0)
    conv = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    with torch.no_grad():
        conv.weight.fill_(r)
    hvd.broadcast_parameters(conv.named_parameters(), 1)
    assert torch.equal(conv.weight, torch.ones_like(conv.weight))
    assert hvd.broadcast_object({"a": [r]}, 1, name="o") == {"a": [1]}
    assert hvd.allgather_object("x" * r) == ["x" * i for i in range(hvd.size())]


def test_state_of_optimizers_and_objects(n: int) -> None:
    run_ranks(n, state)
