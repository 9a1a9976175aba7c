"""Mistakes and failures: the right exception on every rank, nothing hangs, and the engine goes on."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from ranks import launch, run_ranks

import phalanx
import phalanx.torch as hvd


def mismatches() -> None:
    r = hvd.rank()

    def differ(text: str, call: object) -> None:
        with pytest.raises(phalanx.MismatchError, match=text) as caught:
            call()  # type: ignore[operator]
        assert isinstance(caught.value, phalanx.PhalanxError)
        assert not isinstance(caught.value, phalanx.FailureError)
        assert caught.value.tensor is not None
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()

    differ("data types", lambda: hvd.allreduce(torch.ones(2, dtype=torch.float64 if r else torch.float32), name="a"))
    differ("shapes", lambda: hvd.allreduce(torch.ones(2 + r), name="a"))
    differ("shapes", lambda: hvd.allreduce(torch.ones([2] * (1 + (r == 0))), name="a"))
    differ("reduction", lambda: hvd.allreduce(torch.ones(2), name="a", op=hvd.Max if r else hvd.Min))
    differ("scale", lambda: hvd.allreduce(torch.ones(2), name="a", prescale_factor=1.0 + r))
    differ("root", lambda: hvd.broadcast(torch.ones(2), r % 2, name="b"))
    differ("shapes", lambda: hvd.broadcast(torch.ones(2 + r), 0, name="b"))
    differ("shapes", lambda: hvd.allgather(torch.ones(2, 2 + r), name="c"))
    differ("", lambda: hvd.allgather(torch.tensor(1.0), name="c"))
    differ("shapes", lambda: hvd.reducescatter(torch.ones(4 + r), name="d"))
    differ("shapes", lambda: hvd.alltoall(torch.ones(4, 1 + r), name="e"))


def arguments() -> None:
    n = hvd.size()

    def refused(text: str, call: object) -> None:
        with pytest.raises(ValueError, match=text):
            call()  # type: ignore[operator]

    refused("are not supported", lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64)))
    refused("meta", lambda: hvd.allreduce(torch.ones(2, device="meta")))
    refused("torch.Tensor", lambda: hvd.allreduce([1.0]))
    refused("average of bool", lambda: hvd.allreduce(torch.ones(2, dtype=torch.bool)))
    refused("root", lambda: hvd.broadcast(torch.ones(2), n))
    refused("one dimension", lambda: hvd.alltoall(torch.ones(n), torch.ones(1, n, dtype=torch.int32)))
    refused("whole numbers", lambda: hvd.alltoall(torch.ones(n), torch.ones(n)))
    refused("splits", lambda: hvd.alltoall(torch.ones(n), [1] * (n + 1)))
    refused("splits", lambda: hvd.alltoall(torch.ones(n), [2] * n))
    refused("divide evenly", lambda: hvd.alltoall(torch.ones(n + 1)))
    refused("without dimensions", lambda: hvd.reducescatter(torch.tensor(1.0)))
    refused("not registered", lambda: hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0])))
    with pytest.raises(phalanx.PhalanxError, match="Sum and Average"):
        hvd.reducescatter(torch.ones(n), op=hvd.Max)
    first = hvd.allreduce_async(torch.ones(1), name="twice")
    refused("already submitted", lambda: hvd.allreduce_async(torch.ones(1), name="twice"))
    hvd.synchronize(first)
    hvd.barrier()


def before_and_after() -> None:
    hvd.shutdown()
    for call in [hvd.rank, hvd.size, lambda: hvd.allreduce(torch.ones(1)), hvd.join]:
        with pytest.raises(ValueError, match="has not joined a world"):
            call()
        with pytest.raises(RuntimeError, match="has not joined a world"):
            call()
    for _ in range(5):
        hvd.init()
        hvd.init()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
        hvd.shutdown()
        hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init()


def one_shuts_down() -> str:
    if hvd.rank() == 1:
        hvd.shutdown()
        return ""
    with pytest.raises(phalanx.ShutDownError) as caught:
        hvd.allreduce(torch.ones(1))
    assert caught.value.rank == 1
    return str(caught.value)


def one_dies() -> tuple[int | None, str] | None:
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(phalanx.RankLostError) as caught:
        hvd.allreduce(torch.ones(1))
    with pytest.raises(phalanx.FailureError):
        hvd.allreduce(torch.ones(1))
    return caught.value.rank, str(caught.value)


def in_a_hook() -> None:
    p = torch.ones(2 + hvd.rank(), requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1), [("p", p)])
    with pytest.raises(phalanx.MismatchError, match=r"rank 0 has p \[2\] float32"):
        p.sum().backward()
        optimizer.step()


def in_a_child() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answers = []
        for call in [phalanx.rank, phalanx.init]:
            try:
                call()
                answers.append("nothing")
            except phalanx.ForkedError as error:
                answers.append(str(error))
        os.write(writer, "|".join(answers).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    assert text.count("the process that started it") == 2, text
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def interrupted() -> float:
    if hvd.rank() == 0:
        hvd.barrier()
        return 0.0
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    began = time.monotonic()
    handle = hvd.allreduce_async(torch.ones(1), name="nobody")
    with pytest.raises(KeyboardInterrupt):
        hvd.synchronize(handle)
    waited = time.monotonic() - began
    hvd.barrier()
    return waited


def test_mismatches_are_told_to_everybody_and_forgotten(n: int) -> None:
    run_ranks(n, mismatches)


def test_wrong_arguments_are_value_errors(n: int) -> None:
    run_ranks(n, arguments)


def test_calls_before_init_and_after_shutdown(n: int) -> None:
    run_ranks(n, before_and_after)


def test_a_shutdown_of_one_rank_is_told_to_all(n: int) -> None:
    texts = run_ranks(n, one_shuts_down)
    assert len(set(texts) - {""}) == 1


def test_a_killed_rank_is_named_by_all(n: int) -> None:
    results = run_ranks(n, one_dies, fresh=True)
    others = [r for i, r in enumerate(results) if i != 1]
    assert {rank for rank, _ in others} == {1}
    assert all("rank 1 is lost" in text for _, text in others)


def test_different_models_raise_in_the_optimizer(n: int) -> None:
    run_ranks(n, in_a_hook)


def test_a_forked_child_is_refused(n: int) -> None:
    """PY-3: the child can ask, so the lock is free there."""
    run_ranks(n, in_a_child)


def test_ctrl_c_ends_a_wait(n: int) -> None:
    """PY-2."""
    waits = run_ranks(n, interrupted, fresh=True)
    assert all(wait < 30 for wait in waits)


def test_an_exception_is_not_taken_for_a_shutdown(tmp_path: object) -> None:
    script = (
        "import phalanx, phalanx.numpy as pn, numpy as np\n"
        "phalanx.init()\n"
        "if phalanx.rank() == 1: raise KeyError('mine')\n"
        "try: pn.allreduce(np.ones(1))\n"
        "except phalanx.RankLostError as e: print('lost', e.rank, flush=True)\n"
    )
    import subprocess
    import sys

    run = launch(2, [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "KeyError: 'mine'" in output
    assert "lost 1" in output, output
