"""Collectives of numpy arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ranks import run_ranks

import phalanx
import phalanx.numpy as pn

TYPES = ["u1", "i1", "u2", "i2", "i4", "i8", "f2", "f4", "f8"]


def reductions() -> None:
    r, n = pn.rank(), pn.size()
    for name in TYPES:
        x = np.arange(5).astype(name) + np.dtype(name).type(r)
        all_ = np.stack([np.arange(5) + i for i in range(n)])
        for op, want in [
            (pn.Sum, all_.sum(0)),
            (pn.Min, all_.min(0)),
            (pn.Max, all_.max(0)),
            (pn.Average, all_.sum(0) / n),
        ]:
            got = pn.allreduce(x, op=op)
            assert got.dtype == x.dtype
            assert np.array_equal(got, want.astype(name)), (name, op, got, want)
    flags = np.array([r == 0, False, True])
    assert np.array_equal(pn.allreduce(flags, op=pn.Max), [True, False, True])
    assert pn.allreduce(np.float32(r), op=pn.Sum).shape == ()


def in_place_and_scaled() -> None:
    x = np.full(3, pn.rank() + 1.0)
    assert pn.allreduce(x, op=pn.Sum, prescale_factor=0.5, postscale_factor=3.0, out=x) is x
    assert np.array_equal(x, np.full(3, 1.5 * sum(range(1, pn.size() + 1))))
    with pytest.raises(ValueError, match="contiguous"):
        strided = np.zeros((4, 4))[:, ::2]
        pn.allreduce(strided, out=strided)
    with pytest.raises(ValueError, match="not supported"):
        pn.allreduce(np.zeros(2, dtype=complex))


def rows() -> None:
    r, n = pn.rank(), pn.size()
    got = pn.allgather(np.full((r + 1, 2), r))
    assert np.array_equal(got, np.concatenate([np.full((i + 1, 2), i) for i in range(n)]))
    got[0] = 7  # The result is ours to write.
    sent = np.repeat(np.arange(n), 2) + 10 * r
    got, received = pn.alltoall(sent, splits=[2] * n)
    assert received == [2] * n
    assert np.array_equal(got, np.repeat(np.arange(n) * 10, 2) + r)
    got = pn.reducescatter(np.arange(2 * n + 1.0), op=pn.Sum)
    share = 3 if r == 0 else 2
    first = 0 if r == 0 else 1 + 2 * r
    assert np.array_equal(got, n * np.arange(first, first + share))


def others() -> int:
    r, n = pn.rank(), pn.size()
    assert np.array_equal(pn.broadcast(np.array([r, 5]), n - 1), [n - 1, 5])
    a, b = pn.grouped_allreduce([np.ones(2), np.arange(3)], op=pn.Sum)
    assert np.array_equal(a, [n, n])
    assert np.array_equal(b, n * np.arange(3))
    pending = pn.allreduce_async(np.ones(1), name="x")
    assert pending.name == "allreduce.x"
    assert pending.wait(60.0)[0] == 1.0
    pn.barrier()
    return pn.join()


def groups_and_objects(path: str) -> None:
    r, n = pn.rank(), pn.size()
    a, b = pn.grouped_allgather([np.full(r + 1, r), np.array([[0.5 * r]])])
    assert np.array_equal(a, np.concatenate([np.full(i + 1, i) for i in range(n)]))
    assert np.array_equal(b, [[0.5 * i] for i in range(n)])
    a, b = pn.grouped_reducescatter([np.arange(n), np.ones((2 * n, 3))], op=pn.Sum, postscale_factor=2.0)
    assert np.array_equal(a, [2 * n * r])
    assert np.array_equal(b, np.full((2, 3), 2.0 * n))
    pending = pn.grouped_allgather_async([np.ones(1)], name="g")
    assert pending.name == "grouped_allgather.g"
    assert len(pending.wait(60.0)) == 1
    assert pn.broadcast_object({"from": r}, root_rank=n - 1) == {"from": n - 1}
    assert pn.allgather_object((r, "x")) == [(i, "x") for i in range(n)]
    assert (pn.cross_rank(), pn.cross_size()) == (0, 1)
    pn.start_timeline(path)
    pn.barrier()
    pn.stop_timeline()
    fixed = np.ones(2)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        pn.allreduce(fixed, out=fixed)
    assert np.array_equal(pn.allreduce(fixed), [1.0, 1.0])


def test_groups_objects_and_timelines(n: int, tmp_path: Path) -> None:
    run_ranks(n, groups_and_objects, str(tmp_path / "t.json"))
    assert (tmp_path / "t.json").exists()


def test_reductions_of_every_type(n: int) -> None:
    run_ranks(n, reductions)


def test_in_place_scaled_and_refused(n: int) -> None:
    run_ranks(n, in_place_and_scaled)


def test_rows_are_gathered_exchanged_and_scattered(n: int) -> None:
    run_ranks(n, rows)


def test_broadcast_groups_and_join(n: int) -> None:
    last = run_ranks(n, others)
    assert len(set(last)) == 1
    assert last[0] in range(n)


def test_a_world_of_one_needs_no_launcher() -> None:
    phalanx.init()
    assert (phalanx.rank(), phalanx.size(), phalanx.local_size(), phalanx.cross_size()) == (0, 1, 1, 1)
    assert np.array_equal(pn.allreduce(np.arange(3), op=pn.Sum), np.arange(3))
    phalanx.shutdown()
