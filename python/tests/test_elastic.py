"""Going on after a failure: ranks restore, form anew, and come to the same end; mistakes are not retried."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from ranks import DEADLINE_S, launch, run_ranks

import phalanx
import phalanx.torch as hvd
from phalanx.elastic import ObjectState, run
from phalanx.exceptions import HostsUpdatedInterrupt

N_BATCHES = 6


def _model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters())


def _batch(i: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * i + hvd.rank()))


def _trained(fail: object) -> list[float]:
    """Parameters after training, during which `fail(batch, attempt)` may do harm."""
    model, optimizer = _model()
    attempts = []

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        attempts.append(state.batch)
        while state.batch < N_BATCHES:
            model(_batch(state.batch)).square().mean().backward()
            fail(state.batch, len(attempts))  # type: ignore[operator]
            optimizer.step()
            optimizer.zero_grad()
            state.batch += 1
            if state.batch % 2 == 0:
                state.commit()

    train(hvd.elastic.TorchState(model, optimizer, batch=0))
    return [len(attempts), *torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()]


def undisturbed() -> list[float]:
    return _trained(lambda _batch, _attempt: None)


def disturbed(how: str) -> list[float]:
    def fail(batch: int, attempt: int) -> None:
        if (batch, attempt) == (3, 1) and hvd.rank() == 1:
            if how == "raise":
                raise phalanx.PhalanxError("as a script does with HorovodInternalError")
            hvd.shutdown()
            raise phalanx.ShutDownError("of its own")

    return _trained(fail)


def harassed(seed: int) -> list[float]:
    """Attempt after attempt some ranks fail, at different places, in different ways, also several at once."""

    def fail(batch: int, attempt: int) -> None:
        # The same on all ranks: who fails in this attempt, when, and how.
        plan = random.Random(1000 * seed + attempt)
        victims = plan.sample(range(hvd.size()), plan.randint(1, hvd.size()))
        if attempt > 8 or hvd.rank() not in victims or batch < plan.randrange(N_BATCHES):
            return
        if plan.random() < 0.5:
            hvd.shutdown()
        raise phalanx.PhalanxError(f"attempt {attempt}")

    return _trained(fail)


def fails_at_the_very_end() -> int:
    attempts = []

    @run
    def work(state: ObjectState) -> int:
        attempts.append(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
        if hvd.rank() == hvd.size() - 1 and len(attempts) == 1:
            raise phalanx.PhalanxError("after everybody's last collective")
        return len(attempts)

    return work(ObjectState(phalanx.broadcast_object, phalanx.rank, batch=0))  # type: ignore[no-any-return]


def late_ranks() -> list[float]:
    """Rank 0 comes later than the stall limit: it meets the others, who wait for it in init()."""
    seen: list[float] = []

    @run
    def work(state: ObjectState) -> None:
        if not seen and hvd.rank() == 0:
            # Not a condition that this test waits for, but the fault itself: a rank that is busy elsewhere.
            time.sleep(2.0)
        seen.append(state.batch)
        state.batch += 1
        seen.append(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="late").item())

    work(ObjectState(phalanx.broadcast_object, phalanx.rank, batch=0))
    return seen


def mistakes() -> int:
    attempts = []

    @run
    def work(state: ObjectState) -> None:
        attempts.append(1)
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="shapes")

    with pytest.raises(phalanx.MismatchError, match="shapes"):
        work(ObjectState(phalanx.broadcast_object, phalanx.rank))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    return len(attempts)


def too_often() -> int:
    attempts = []

    @run(reset_limit=3)
    def work(state: ObjectState) -> None:
        attempts.append(1)
        raise phalanx.PhalanxError("every time")

    with pytest.raises(phalanx.RecoveryError, match=r"limit, 3; .*every time") as caught:
        work(ObjectState(phalanx.broadcast_object, phalanx.rank))
    assert isinstance(caught.value.__cause__, phalanx.PhalanxError)
    assert not isinstance(caught.value, phalanx.FailureError)
    return len(attempts)


def updated_hosts(update: int) -> list[object]:
    """Nothing is restored; rank 0 alone hears of it, and all ranks begin again."""
    seen: list[object] = []

    class Noted(ObjectState):
        def sync(self) -> None:
            seen.append("sync")
            super().sync()

    @run
    def work(state: Noted) -> None:
        seen.append(state.batch)
        if state.batch == 0:
            state.batch = 5
            if hvd.rank() == 0:
                state.on_hosts_updated(1.0, update)
            state.check_host_updates()

    state = Noted(phalanx.broadcast_object, phalanx.rank, batch=0)
    state.register_reset_callbacks([lambda: seen.append("reset")])
    work(state)
    return seen


def disagreeing_about_sync() -> list[object]:
    """One rank says skip, another does not: all of them synchronize, or the job would hang (ELASTIC-2)."""
    seen: list[object] = []

    @run
    def work(state: ObjectState) -> None:
        seen.append(state.batch)
        if len(seen) == 1:
            state.batch = 10 + hvd.rank()
            raise HostsUpdatedInterrupt(skip_sync=hvd.rank() != 0)

    work(ObjectState(phalanx.broadcast_object, phalanx.rank, batch=0))
    return seen


def process_sets() -> list[float]:
    outer = hvd.add_process_set([0])
    seen: list[float] = []

    @run
    def work(state: ObjectState) -> None:
        inner = hvd.add_process_set([1])
        hvd.barrier()
        if outer.included():
            seen.append(hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum, process_set=outer).item())
        if state.batch == 0:
            state.batch = 1
            state.save()
            raise phalanx.PhalanxError("once")
        assert (inner.process_set_id, inner.ranks) == (2, [1])

    work(ObjectState(phalanx.broadcast_object, phalanx.rank, batch=0))
    return seen


def samplers() -> list[list[int]]:
    r, n = hvd.rank(), hvd.size()
    sampler = hvd.elastic.ElasticSampler(range(22), shuffle=True, seed=3)
    taken: list[list[int]] = []

    @hvd.elastic.run
    def work(state: hvd.elastic.TorchState) -> None:
        for i, index in enumerate(state.sampler):
            hvd.allreduce(torch.ones(1), name="step")
            if len(taken) == 3 and state.failed == 0:
                state.failed = 1
                state.save()
                raise phalanx.PhalanxError("in the middle")
            taken.append([index])
            state.sampler.record_batch(i, 1)
            state.commit()

    work(hvd.elastic.TorchState(sampler=sampler, failed=0))
    assert sampler.processed_num >= 22
    sampler.set_epoch(1)
    assert len(sampler) == -(-22 // n)
    assert (sampler.processed_num, sampler.rank, sampler.num_replicas) == (0, r, n)
    return taken


def handlers() -> None:
    r = hvd.rank()
    model, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(float(r))
        other.weight.fill_(10.0 + r)
    items = [r]
    state = hvd.elastic.TorchState(model=model, items=items)
    state.sync()
    assert (model.weight.item(), state.items) == (0.0, [0])
    state.items.append(5)
    state.restore()
    assert state.items == [0]
    state.model = other
    with torch.no_grad():
        other.weight.fill_(0.0)
    state.restore()
    assert other.weight.item() == 10.0 + r
    state.sync()
    assert (state.model is other, other.weight.item()) == (True, 10.0)


LOST = """
import os, signal, sys, torch, phalanx, phalanx.torch as hvd
hvd.init()
@hvd.elastic.run
def train(state):
    while True:
        if hvd.rank() == 1 and state.batch == 3:
            {end}
        hvd.allreduce(torch.ones(1))
        state.batch += 1
try:
    train(hvd.elastic.TorchState(batch=0))
except phalanx.RecoveryError as error:
    print("beyond repair", error.rank, error, flush=True)
    raise
"""


@pytest.mark.parametrize("how", ["raise", "shutdown"])
def test_training_ends_with_the_same_parameters_after_a_failure(n: int, how: str) -> None:
    calm, troubled = run_ranks(n, undisturbed), run_ranks(n, disturbed, how)
    assert [(a[0], b[0]) for a, b in zip(calm, troubled, strict=True)] == [(1, 2)] * n
    assert {tuple(parameters[1:]) for parameters in calm + troubled} == {tuple(calm[0][1:])}


@pytest.mark.parametrize("seed", range(3))
def test_many_failures_in_a_row_change_nothing(n: int, seed: int) -> None:
    calm, troubled = run_ranks(n, undisturbed), run_ranks(n, harassed, seed)
    assert {tuple(parameters[1:]) for parameters in calm + troubled} == {tuple(calm[0][1:])}, f"seed {seed}"
    # Who is thrown back before it has begun does not count the attempt, and then follows another plan than the others.
    assert max(attempts for attempts, *_ in troubled) > 1, f"seed {seed}"


def test_a_rank_that_fails_after_the_others_are_done_is_not_left_alone(n: int) -> None:
    assert run_ranks(n, fails_at_the_very_end) == [2] * n  # ELASTIC-3


def test_ranks_that_come_late_meet_the_others_again(n: int) -> None:
    results = run_ranks(n, late_ranks, fresh=True, env={"PHALANX_STALL_ABORT": "0.5", "PHALANX_STALL_WARN": "0.2"})
    # Everybody was thrown back, and began again with what was saved.
    assert results == [[0, 0, float(n)]] * n


def test_mistakes_are_raised_and_not_retried(n: int) -> None:
    assert run_ranks(n, mistakes) == [1] * n  # ELASTIC-1


def test_resets_have_a_limit(n: int) -> None:
    assert run_ranks(n, too_often) == [4] * n  # ELASTIC-1


@pytest.mark.parametrize(("update", "wanted"), [(1, ["sync", 0, "reset", 5]), (2, ["sync", 0, "reset", "sync", 5])])
def test_updated_hosts_restore_nothing(n: int, update: int, wanted: list[object]) -> None:
    assert run_ranks(n, updated_hosts, update) == [wanted] * n


def test_ranks_agree_whether_to_synchronize(n: int) -> None:
    assert run_ranks(n, disagreeing_about_sync) == [[0, 10]] * n  # ELASTIC-2


def test_process_sets_come_back(n: int) -> None:
    assert run_ranks(n, process_sets) == [[1.0, 1.0] if r == 0 else [] for r in range(n)]


def test_samplers_take_every_sample_once_in_spite_of_a_failure(n: int) -> None:
    taken = [index for rank in run_ranks(n, samplers) for (index,) in rank]
    assert set(taken) == set(range(22))
    assert len(taken) == n * -(-22 // n)


def test_handlers_follow_their_values(n: int) -> None:
    run_ranks(n, handlers)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "raise KeyError('mine')", "hvd.shutdown()"])
def test_a_lost_rank_ends_the_job_with_a_reason(end: str) -> None:
    script = LOST.format(end=end)
    job = launch(2, [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        text, _ = job.communicate(timeout=DEADLINE_S)
    finally:
        if job.poll() is None:
            os.kill(job.pid, signal.SIGTERM)
            job.wait()
    assert job.returncode != 0
    assert "beyond repair" in text, text
    assert "Start the job again" in text, text
