"""Parts of the world."""

from __future__ import annotations

import pytest
import torch
from ranks import run_ranks

import phalanx
import phalanx.torch as hvd


def sets() -> None:
    r, n = hvd.rank(), hvd.size()
    even = hvd.ProcessSet(range(0, n, 2))
    assert (even.process_set_id, even.size(), even.rank(), even.included()) == (None, None, None, None)
    hvd.add_process_set(even)
    odd = hvd.add_process_set(range(1, n, 2))
    assert str(odd) == f"ProcessSet(process_set_id=2, ranks={list(range(1, n, 2))}, mpi_comm=None)"
    mine = odd if r % 2 else even
    assert (mine.included(), mine.size(), mine.rank()) == (True, n // 2, r // 2)
    other = even if r % 2 else odd
    with pytest.raises(ValueError, match="check included"):
        other.rank()
    with pytest.raises(ValueError, match="not a member"):
        hvd.allreduce(torch.ones(1), process_set=other)
    total = hvd.allreduce(torch.tensor([float(r)]), op=hvd.Sum, process_set=mine)
    assert total.item() == sum(range(r % 2, n, 2))
    assert hvd.broadcast(torch.tensor([r]), mine.ranks[-1], process_set=mine).item() == mine.ranks[-1]
    with pytest.raises(ValueError, match="root"):
        hvd.broadcast(torch.tensor([r]), other.ranks[0], process_set=mine)
    hvd.barrier(process_set=mine)
    assert hvd.allgather(torch.tensor([r]), process_set=mine).tolist() == mine.ranks
    assert phalanx.allgather_object(r, process_set=mine) == mine.ranks
    for bad in [list(range(n)), even.ranks, [n], [0, 0], []]:
        with pytest.raises(ValueError):
            hvd.add_process_set(bad)
    with pytest.raises(ValueError, match="whole numbers"):
        hvd.ProcessSet(["a"])
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert hvd.remove_process_set(even)
    assert even.process_set_id is None
    assert not hvd.remove_process_set(even)
    assert hvd.add_process_set([0]).process_set_id == 1
    assert hvd.global_process_set.ranks == list(range(n))


def optimizer_of_a_set() -> float:
    r = hvd.rank()
    mine = hvd.add_process_set([0, 1])
    p = torch.zeros(1, requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], process_set=mine)
    (p * (r + 1)).sum().backward()
    optimizer.step()
    hvd.barrier()  # A rank that shuts down ends it for all, also for sets without it.
    return p.item()


def from_the_start() -> None:
    hvd.shutdown()
    with pytest.raises(ValueError, match="twice"):
        hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])])
    first, second = hvd.ProcessSet([0]), hvd.ProcessSet([1])
    hvd.init(process_sets=[first, second])
    assert (first.process_set_id, second.process_set_id) == (1, 2)
    hvd.shutdown()
    assert first.process_set_id is None
    hvd.init(process_sets="dynamic")


def test_sets_communicate_among_themselves() -> None:
    run_ranks(4, sets)


def test_an_optimizer_of_some_ranks() -> None:
    assert run_ranks(4, optimizer_of_a_set) == [-1.5, -1.5, -3.0, -4.0]


def test_sets_given_to_init(n: int) -> None:
    run_ranks(n, from_the_start)
