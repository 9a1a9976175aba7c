"""What is accepted acts; what cannot act is refused with what to write instead."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks

import phalanx.numpy as pn
import phalanx.torch as hvd
from phalanx import PhalanxError


def refused(text: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=text):
        call()


def goes_on() -> None:
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def misspoken() -> None:
    net, x = torch.nn.Linear(2, 1), torch.ones(2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for root in (-1, hvd.size(), 0.5, "0", True, None):
        refused("root_rank must be one of the ranks 0", lambda root=root: hvd.broadcast(x, root))
        refused("root_rank must be one of the ranks 0", lambda root=root: hvd.broadcast_(x, root))
        refused("root_rank must be one of the ranks 0", lambda root=root: pn.broadcast(np.ones(1), root))
        refused("root_rank must be one of the ranks 0", lambda root=root: hvd.broadcast_object(1, root))
        refused(
            "root_rank must be one of the ranks 0", lambda root=root: hvd.broadcast_parameters(net.state_dict(), root)
        )
        refused(
            "root_rank must be one of the ranks 0", lambda root=root: hvd.broadcast_optimizer_state(optimizer, root)
        )
    for bad in (5, [0, 1], None):
        for call in (
            lambda bad=bad: hvd.allreduce(x, process_set=bad),
            lambda bad=bad: hvd.allgather(x, process_set=bad),
            lambda bad=bad: hvd.broadcast(x, 0, process_set=bad),
            lambda bad=bad: hvd.alltoall(x, process_set=bad),
            lambda bad=bad: hvd.reducescatter(x, process_set=bad),
            lambda bad=bad: hvd.barrier(process_set=bad),
            lambda bad=bad: hvd.allgather_object(1, process_set=bad),
            lambda bad=bad: hvd.broadcast_object(1, process_set=bad),
            lambda bad=bad: hvd.DistributedOptimizer(optimizer, process_set=bad),
            lambda bad=bad: hvd.DistributedDataParallel(net, process_set=bad),
            lambda bad=bad: hvd.check_equal(net, process_set=bad),
            lambda bad=bad: pn.allreduce(np.ones(1), process_set=bad),
        ):
            refused("process_set must be a ProcessSet", call)
    refused("not registered", lambda: hvd.DistributedOptimizer(optimizer, process_set=hvd.ProcessSet([0])))
    refused("whole numbers from 0", lambda: hvd.ProcessSet([-1, 0]))
    refused(r"such as \[0, 1\]", lambda: hvd.add_process_set(5))
    refused("add_process_set", lambda: hvd.remove_process_set(5))
    refused("wraps a torch.optim.Optimizer, not a Linear", lambda: hvd.DistributedOptimizer(net))
    refused("wraps a torch.nn.Module, not a SGD", lambda: hvd.DistributedDataParallel(optimizer))
    refused("not the model", lambda: hvd.DistributedOptimizer(optimizer, net))
    refused("entry step is a int", lambda: hvd.broadcast_parameters({"step": 3, "w": x}, 0))
    refused("entry 0 is a float", lambda: hvd.broadcast_parameters([0.5], 0))
    refused("the model of the optimizer", lambda: hvd.broadcast_optimizer_state(optimizer, 0, model=3))
    foreign = torch.nn.Parameter(torch.ones(3))
    refused("does not have", lambda: hvd.DistributedOptimizer(optimizer, groups=[[foreign]]))
    goes_on()


def handles() -> None:
    for bad in (None, 12345678, -1, "0", True):
        refused("is not a handle", lambda bad=bad: hvd.synchronize(bad))
        refused("is not a handle", lambda bad=bad: hvd.poll(bad))
    grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1, 2), (3, 2), check_invariants=False)
    assert hvd.synchronize(hvd.sparse_allreduce_async(grad, op=hvd.Sum)).to_dense()[1].tolist() == [hvd.size()] * 2
    early = hvd.allreduce_async(torch.ones(1), name="early")
    assert hvd.synchronize(early).item() == 1.0
    assert hvd.synchronize(early) is None
    late = hvd.allreduce_async(torch.ones(1), name="late")
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    again = hvd.allreduce_async(torch.full((1,), 2.0), name="again")
    for old in (early, late):
        assert again != old
        refused("ended with shutdown", lambda old=old: hvd.synchronize(old))
    assert hvd.synchronize(again).item() == 2.0


def secretive() -> list[str]:
    """One rank has an object that nobody can pickle."""
    told = []
    bad = threading.Lock() if hvd.rank() == 1 else "fine"
    for call in (lambda: hvd.broadcast_object(bad, root_rank=1), lambda: hvd.allgather_object(bad)):
        with pytest.raises(PhalanxError) as caught:
            call()
        assert caught.value.rank == 1
        told.append(str(caught.value))
    assert hvd.broadcast_object({"a": 1}, 0) == {"a": 1}
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
    return told


def different_roots() -> None:
    with pytest.raises(PhalanxError, match="rank 0 names root 0, rank 1 root 1"):
        hvd.broadcast_object("x", root_rank=hvd.rank())
    assert hvd.broadcast_object(None, root_rank=1) is None
    goes_on()


def in_pieces() -> None:
    n, r = hvd.size(), hvd.rank()
    whole = torch.arange(12.0).reshape(3, 4) + r
    t = whole.t()
    assert not t.is_contiguous()
    sums = torch.arange(12.0).reshape(3, 4).t() * n + sum(range(n))
    assert torch.equal(hvd.allreduce(t, op=hvd.Sum), sums)
    assert torch.equal(hvd.grouped_allreduce([t, t[::2]], op=hvd.Sum)[1], sums[::2])
    assert torch.equal(hvd.allgather(t)[4 * r : 4 * r + 4], t)
    assert torch.equal(hvd.broadcast(t, 0), torch.arange(12.0).reshape(3, 4).t())
    assert torch.equal(hvd.alltoall(t.repeat(n, 1)[:, ::2])[:4], torch.arange(12.0).reshape(3, 4).t()[:, ::2])
    rows = whole.repeat(n, 1)[:, ::2]
    assert torch.equal(
        hvd.reducescatter(rows, op=hvd.Sum), (torch.arange(12.0).reshape(3, 4) * n + sum(range(n)))[:, ::2]
    )
    p = whole.clone().requires_grad_()
    hvd.allreduce(p.t()).sum().backward()
    assert p.grad is not None
    inner = whole[:, ::2]
    hvd.allreduce_(inner, op=hvd.Sum)
    assert torch.equal(whole[:, ::2], (torch.arange(12.0).reshape(3, 4) * n + sum(range(n)))[:, ::2])
    hvd.broadcast_(whole.t(), 0)


def normalized() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 1), torch.nn.Sequential(torch.nn.BatchNorm2d(2)), torch.nn.Flatten()
    )
    weight = net[1][0].weight
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(net)
    assert converted is net
    assert type(net[1][0]) is hvd.SyncBatchNorm
    assert net[1][0].weight is weight
    x = torch.randn(3, 1, 2, 2, generator=torch.Generator().manual_seed(hvd.rank()))
    net(x)
    mean = net[1][0].running_mean.tolist()
    assert all(m == mean for m in hvd.allgather_object(mean))
    assert type(hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(2))) is hvd.SyncBatchNorm
    refused("process_set", lambda: hvd.SyncBatchNorm.convert_sync_batchnorm(net, process_group=object()))
    refused("takes a model", lambda: hvd.SyncBatchNorm.convert_sync_batchnorm([net]))


def as_torchs_class() -> None:
    def made(**words: Any) -> hvd.DistributedDataParallel:
        return hvd.DistributedDataParallel(torch.nn.Linear(2, 1), **words)

    cpu = torch.device("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(device_ids=None, output_device=None, find_unused_parameters=True, broadcast_buffers=False, bucket_cap_mb=1)
        made(device_ids=[cpu], output_device=cpu, device_mesh=None, mixed_precision=None)
    for word in ("static_graph", "gradient_as_bucket_view", "check_reduction"):
        with pytest.warns(UserWarning, match=word):
            made(**{word: True})
    refused("cuda:0.*cpu", lambda: made(device_ids=[0]))
    refused("process_set", lambda: made(process_group=object()))
    refused("dim=1", lambda: made(dim=1))
    refused("> 0", lambda: made(bucket_cap_mb=-1))
    refused("pass process_set", lambda: made(device_mesh=object()))
    refused("autocast", lambda: made(mixed_precision=object()))
    refused("True or False", lambda: made(find_unused_parameters="yes"))
    with pytest.raises(TypeError, match="bucket_cap"):
        made(bucket_cap=1)
    apart = torch.nn.Linear(2, 1)
    with torch.no_grad():
        apart.weight.fill_(hvd.rank())
    hvd.DistributedDataParallel(apart, init_sync=False)
    assert apart.weight[0, 0].item() == hvd.rank()
    hvd.DistributedDataParallel(apart)
    assert apart.weight[0, 0].item() == 0.0


def adasum_words() -> None:
    p = torch.nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ValueError, match="leave groups out"):
        hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1), op=hvd.Adasum, groups=2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1), op=hvd.Adasum, backward_passes_per_step=2)
    for _ in range(2):
        p.sum().backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        p.sum().backward()
    optimizer.step()
    for _ in range(2):
        p.sum().backward()
    optimizer.step()
    table = torch.nn.Embedding(4, 2, sparse=True)
    torch.nn.init.ones_(table.weight)
    # AdamW takes no sparse gradients: the step succeeds only if they were made dense.
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(table.parameters(), lr=0.1), op=hvd.Adasum, sparse_as_dense=True
    )
    optimizer.zero_grad()
    table(torch.tensor([1])).sum().backward()
    optimizer.step()
    assert table.weight[1, 0].item() < 1.0
    hvd.check_equal(optimizer)


def as_horovods() -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    assert all(p.grad is not None for p in net.parameters())
    assert optimizer._parameter_names == {net.weight: "weight", net.bias: "bias"}
    assert optimizer.op == hvd.Average
    assert optimizer.process_set is hvd.global_process_set
    assert (optimizer.sparse_as_dense, optimizer.gradient_predivide_factor) == (False, 1.0)
    assert optimizer.backward_passes_per_step == 1
    assert optimizer._requires_update == set(net.parameters())
    assert optimizer._handles == {}
    optimizer.zero_grad()
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert all(p.grad is not None for p in net.parameters())
    unnamed = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    assert list(unnamed._parameter_names.values()) == ["allreduce.noname.0.0", "allreduce.noname.0.1"]
    for dtype in (torch.float32, torch.int32, torch.uint8, torch.bool):
        with pytest.raises(RuntimeError, match="Sum and Average"):
            hvd.reducescatter(torch.ones(hvd.size(), dtype=dtype), op=hvd.Adasum)
    goes_on()


def skipping_without_need() -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    net(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match=r"optimizer.synchronize\(\) first"), optimizer.skip_synchronize():
        optimizer.step()
    optimizer.step()


@pytest.mark.parametrize(
    "function",
    [
        misspoken,
        handles,
        different_roots,
        in_pieces,
        normalized,
        as_torchs_class,
        adasum_words,
        as_horovods,
        skipping_without_need,
    ],
)
def test_doors(function: Callable[[], None]) -> None:
    run_ranks(2, function)


def test_an_object_that_cannot_be_sent_is_told_to_all(n: int) -> None:
    results = run_ranks(n, secretive)
    assert all(result == results[0] for result in results)
    for text in results[0]:
        assert "rank 1" in text and "lock" in text
