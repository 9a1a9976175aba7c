"""What programs do wrong, on one rank or on all: typed errors, nothing hangs, and the engine goes on."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from ranks import run_ranks

import phalanx
import phalanx.numpy as pn
import phalanx.torch as hvd


def _goes_on() -> None:
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def _refused(text: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=text):
        call()


def reductions_by_a_wrong_name() -> None:
    x, a = torch.ones(hvd.size()), np.ones(hvd.size())
    p = torch.ones(1, requires_grad=True)
    listed = "Average, Sum, Adasum, Min, Max, Product"
    for op in ["sum", 6, -1, True, 1.0, None]:
        calls: list[Callable[[], object]] = [
            lambda op=op: hvd.reducescatter(x, op=op),
            lambda op=op: hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1), op=op),
            lambda op=op: pn.allreduce(a, op=op),
            lambda op=op: pn.grouped_allreduce([a], op=op),
            lambda op=op: pn.reducescatter(a, op=op),
        ]
        if op is not None:
            calls += [lambda op=op: hvd.allreduce(x, op=op), lambda op=op: hvd.grouped_allreduce_([x], op=op)]
        for call in calls:
            _refused(listed, call)
    _goes_on()


def changes_that_autograd_does_not_see() -> None:
    leaf = torch.ones(2, requires_grad=True)
    inner = leaf * 2
    for call in [
        lambda: hvd.allreduce_(leaf),
        lambda: hvd.allreduce_async_(inner),
        lambda: hvd.grouped_allreduce_([torch.ones(1), leaf]),
        lambda: hvd.broadcast_(inner, 0),
    ]:
        _refused("autograd", call)
    with torch.no_grad():
        assert hvd.allreduce_(leaf, op=hvd.Sum).tolist() == [hvd.size()] * 2
    hvd.broadcast_(leaf, 0)
    hvd.allreduce_(leaf.detach())
    _goes_on()


def splits_of_any_width() -> None:
    n = hvd.size()
    x = torch.arange(n)
    types = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    for splits in [[1] * n, (1,) * n, np.ones(n, dtype=np.int64), *(torch.ones(n, dtype=t) for t in types)]:
        output, received = hvd.alltoall(x, splits)
        assert output.tolist() == [hvd.rank()] * n
        assert received.tolist() == [1] * n
        assert pn.alltoall(x.numpy(), splits)[1] == [1] * n
    wrong = [torch.ones(n), torch.ones(n, dtype=torch.bool), [1.0] * n, [True] * n, [-1] * n, ["1"] * n]
    for splits in wrong:
        _refused("whole numbers from 0", lambda splits=splits: hvd.alltoall(x, splits))
        _refused("whole numbers from 0", lambda splits=splits: pn.alltoall(x.numpy(), splits))
    _goes_on()


def threads() -> None:
    """Names keep the threads' operations apart, in whatever order they come."""
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for i in range(20):
                got = hvd.allreduce(torch.full((3,), float(k * i)), name=f"thread{k}.{i}", op=hvd.Sum)
                assert got.tolist() == [k * i * hvd.size()] * 3
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in running)
    assert not failures, failures
    _goes_on()


class _Oops(Exception):
    pass


class _Net(torch.nn.Module):
    def forward(self) -> torch.Tensor:
        return _loss(self)


def _net(*names: str) -> torch.nn.Module:
    net = _Net()
    for i, name in enumerate(names):
        net.register_parameter(name, torch.nn.Parameter(torch.full((2,), float(i))))
    return net


def _loss(net: torch.nn.Module) -> torch.Tensor:
    return torch.stack([(p * (hvd.rank() + 1)).sum() for p in net.parameters()]).sum()


def exceptions_in_hooks(wrap: str) -> None:
    """A hook of the program raises on all ranks in the middle of a pass; the next one is right again."""
    net = _net("a", "b", "c")
    handle = net.b.register_hook(lambda _grad: (_ for _ in ()).throw(_Oops("mine")))
    average = sum(range(1, hvd.size() + 1)) / hvd.size()
    model: torch.nn.Module = net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    if wrap == "optimizer":
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
    else:
        model = hvd.DistributedDataParallel(net, bucket_cap_mb=1e-6)
    for _ in range(2):
        with pytest.raises(_Oops):
            model().backward()
        if wrap == "optimizer":
            optimizer.synchronize()
        optimizer.zero_grad()
    handle.remove()
    for _ in range(2):
        model().backward()
        assert [p.grad.tolist() for p in net.parameters()] == [[average] * 2] * 3
        optimizer.step()
        optimizer.zero_grad()
    _goes_on()


def different_models(how: str, between: bool) -> str:
    r = hvd.rank()
    mine = _net("a", "b") if r == 0 else _net("a", "c")
    if how == "shapes":
        mine = _net("a", "b")
        mine.b = torch.nn.Parameter(torch.ones(2 + r))
    if how == "frozen":
        mine = _net("a", "b")
        mine.b.requires_grad_(r != 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(mine.parameters(), lr=0.1), mine.named_parameters())
    texts = []
    for _ in range(2):
        with pytest.raises(phalanx.MismatchError, match="DistributedOptimizer: ranks differ") as caught:
            _loss(mine).backward()
            if between:
                hvd.allreduce(torch.ones(1), name="metric")
            optimizer.step()
        texts.append(str(caught.value))
        optimizer.zero_grad()
        _goes_on()
    calls = [
        lambda: hvd.broadcast_parameters(mine.named_parameters() if how != "frozen" else {f"x{r}": mine.a}, 0),
        lambda: hvd.DistributedDataParallel(mine),
        lambda: hvd.broadcast_optimizer_state(torch.optim.SGD(list(mine.parameters())[: 1 + (r == 0)], lr=0.1), 0),
    ]
    for call in calls:
        with pytest.raises(phalanx.MismatchError, match="ranks differ"):
            call()
        _goes_on()
    assert caught.value.ranks[0] == 0
    return texts[0]


def other_order() -> list[float]:
    """Order alone is no difference where ranks match by name; where it is one, it is told."""
    names = ["a", "b"] if hvd.rank() == 0 else ["b", "a"]
    net = _net(*names)
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters())
    _loss(net).backward()
    optimizer.step()
    with pytest.raises(phalanx.MismatchError, match="parameter 0"):
        hvd.DistributedDataParallel(net)
    with pytest.raises(phalanx.MismatchError, match="group"):
        grouped = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), groups=2)
        _loss(net).backward()
        grouped.step()
    return [*net.a.tolist(), *net.b.tolist()]


def joined_before_the_first_step() -> list[float]:
    """A rank without data in the first round is asked about its parameters in the second (PYACCORD-2)."""
    net = _net("a")
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters())
    for epoch in range(2):
        if epoch or hvd.rank():
            net.a.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        hvd.join()
        hvd.broadcast_parameters(net.state_dict(), 1)
    return net.a.tolist()


def sparse() -> None:
    indices = torch.tensor([[0, hvd.rank() + 1]])
    grad = torch.sparse_coo_tensor(indices, torch.ones(2, 2), (hvd.size() + 1, 2), check_invariants=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total = hvd.sparse_allreduce_async(grad, name="s", op=hvd.Sum)()
        p = torch.nn.Embedding(5, 2, sparse=True)
        hvd.broadcast_parameters(p.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(p.parameters(), lr=1.0), p.named_parameters())
        p(torch.tensor([0, hvd.rank()])).sum().backward()
        optimizer.step()
    assert total.to_dense().tolist() == [[hvd.size()] * 2] + [[1.0] * 2] * hvd.size()


def test_reductions_are_listed_when_one_is_misspelt(n: int) -> None:
    run_ranks(n, reductions_by_a_wrong_name)


def test_in_place_changes_of_what_requires_grad_are_refused(n: int) -> None:
    run_ranks(n, changes_that_autograd_does_not_see)


def test_splits_are_integers_of_any_width(n: int) -> None:
    run_ranks(n, splits_of_any_width)


def test_several_threads(n: int) -> None:
    run_ranks(n, threads)


@pytest.mark.parametrize("wrap", ["optimizer", "model"])
def test_exceptions_inside_hooks(n: int, wrap: str) -> None:
    run_ranks(n, exceptions_in_hooks, wrap)


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("how", ["names", "shapes", "frozen"])
def test_ranks_with_different_models(n: int, how: str, between: bool) -> None:
    assert len(set(run_ranks(n, different_models, how, between))) == 1  # PYACCORD-1


def test_ranks_with_another_order_of_parameters(n: int) -> None:
    results = run_ranks(n, other_order)
    assert results == [results[0]] * n


def test_a_rank_that_joined_before_its_first_step(n: int) -> None:
    results = run_ranks(n, joined_before_the_first_step)
    # The first round averages over all ranks, with zero from the one that joined.
    assert results == [[-(n - 1) / n - 1.0] * 2] * n


def test_sparse_tensors_without_a_warning(n: int) -> None:
    run_ranks(n, sparse)
