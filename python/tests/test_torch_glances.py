"""Ranks compare their parameters by themselves, and warn, without waiting for anybody who does something else."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from ranks import run_ranks

torch = pytest.importorskip("torch")

import phalanx.torch as hvd  # noqa: E402


def trained(kind: str, steps: int, broadcast: bool, drift_at: int = -1) -> tuple[list[str], list[Any]]:
    """The warnings of this rank, and its parameters."""
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 2)
    own = model
    if kind == "wrapper":
        model = hvd.DistributedDataParallel(model)
    elif broadcast:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    if kind == "optimizer":
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=own.named_parameters())
    elif kind == "adasum":
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=own.named_parameters(), op=hvd.Adasum)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.full((1, 3), float(hvd.rank() + 1))).sum().backward()
            optimizer.step()
            if step == drift_at and hvd.rank() == 1:
                with torch.no_grad():
                    own.bias += 1
    return [str(w.message) for w in caught if "different values" in str(w.message)], [
        p.tolist() for p in own.parameters()
    ]


@pytest.mark.parametrize("kind", ["optimizer", "adasum"])
def test_parameters_that_were_not_broadcast_are_told_once_in_the_first_pass(kind: str) -> None:
    (told, ps), (others, theirs) = run_ranks(2, trained, kind, 3, False)
    assert ps != theirs
    assert len(told) == 1 and others == []
    assert "reduction 1:" in told[0] and "broadcast_parameters" in told[0]
    assert "PHALANX_CHECK" in told[0]


@pytest.mark.parametrize("kind", ["optimizer", "wrapper"])
def test_ranks_that_drift_later_are_told_in_the_next_hundredth_pass(kind: str) -> None:
    (told, _), (others, _) = run_ranks(2, trained, kind, 102, True, 70)
    assert len(told) == 1 and others == []
    assert "reduction 101" in told[0] and "bias" in told[0]


@pytest.mark.parametrize("kind", ["optimizer", "wrapper"])
def test_ranks_that_are_alike_are_told_nothing(kind: str) -> None:
    for told, _ in run_ranks(2, trained, kind, 102, True):
        assert told == []


def test_it_can_be_turned_off() -> None:
    for told, _ in run_ranks(2, trained, "optimizer", 3, False, fresh=True, env={"PHALANX_CHECK": "0"}):
        assert told == []


def joined() -> int:
    """Ranks make different numbers of steps, three times, so that their counts differ."""
    model = torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    steps = 0
    for _ in range(3):
        for _ in range(40 + 10 * hvd.rank()):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            steps += 1
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    return steps


def test_ranks_that_joined_in_between_still_compare_together() -> None:
    assert run_ranks(2, joined) == [120, 150]
