"""DDL's functions on real ranks, on one host and on several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import run_ranks

import phalanx
from phalanx import ddl

TYPES = ["u1", "i1", "u2", "i2", "i4", "i8", "f2", "f4", "f8", "?"]


def _fresh(mode: str | None, num_gpu: int | None = None) -> ddl.Learner:
    """Ranks of a test have joined already."""
    phalanx.shutdown()
    return ddl.init(num_gpu, mode)


def functions() -> None:
    learner = _fresh("-mode n:2x2", None)
    n, r = learner.size, learner.rank
    assert learner == (r, n, ddl.local_rank())
    with pytest.raises(RuntimeError, match="DDL has already been initialized."):
        ddl.init()
    assert np.array_equal(ddl.bcast(np.full(3, r), name="b"), np.zeros(3))
    for kind in TYPES:
        for length in [0, 1, 7, 12, 1003]:
            x = (np.arange(length) % 3 + r % 2).astype(kind)
            everyone = [(np.arange(length) % 3 + i % 2).astype(kind) for i in range(n)]
            wants = {"max": np.max(everyone, axis=0), "min": np.min(everyone, axis=0)}
            if kind != "?":
                wants["sum"] = np.sum(everyone, axis=0)
                wants["prod"] = np.prod(everyone, axis=0)
            for op, want in wants.items():
                got = ddl.allreduce(x, op=op, check=1e-6, name=f"{kind}.{length}.{op}")
                assert got.dtype == x.dtype
                assert np.array_equal(got, want.astype(kind)), (kind, length, op, got, want)
    xs = [np.full(i + 1, float(r)) for i in range(20)]
    for got, x in zip(ddl.allreduce_n(xs, op="avg", check=0.1), xs, strict=True):
        assert np.allclose(got, (n - 1) / 2)
        assert got.shape == x.shape
    pairs = ddl.grads_reduce([(np.ones(2) * r, "w"), (None, "v")])
    assert pairs[1] == (None, "v")
    assert np.allclose(pairs[0][0], (n - 1) / 2)
    assert ddl.coordinates() == (r % 2, r // 2)
    assert ddl.groups() == [[r // 2 * 2, r // 2 * 2 + 1], [r % 2, r % 2 + 2]]
    assert [line.ranks for line in ddl.report()] == [2, 2]
    assert ddl.AllReduce is ddl.allreduce
    ddl.finalize()


def named() -> None:
    """Arrays go by their names; gradients that only some ranks have are refused on all."""
    learner = _fresh(None)
    names = ["a", "b"] if learner.rank == 0 else ["b", "a"]
    xs = {"a": np.full(2, 1.0), "b": np.full(2, 10.0)}
    got = dict(zip(names, ddl.allreduce_n([xs[name] for name in names], names=names), strict=True))
    assert got["a"].tolist() == [2.0, 2.0]
    assert got["b"].tolist() == [20.0, 20.0]
    with pytest.raises(ValueError, match="'a' is given twice"):
        ddl.allreduce_n([xs["a"], xs["b"]], names=["a", "a"])
    pairs = [(np.ones(2), "w"), (None, "v")] if learner.rank == 0 else [(None, "w"), (np.ones(2), "v")]
    with pytest.raises(phalanx.MismatchError, match="gradients 0, 1 of 2 are None on some ranks"):
        ddl.grads_reduce(pairs)
    assert ddl.grads_reduce([(np.ones(2), "w")])[0][0].tolist() == [1.0, 1.0]
    ddl.finalize()


def test_arrays_go_by_name_and_missing_gradients_are_refused() -> None:
    run_ranks(2, named)


def test_functions_give_what_numpy_gives() -> None:
    run_ranks(4, functions)


def tensors() -> None:
    import torch

    learner = _fresh(None)
    x = torch.arange(6.0).reshape(2, 3) + learner.rank
    got = ddl.allreduce(x, op="avg", check=1e-6, name="t")
    assert torch.equal(got, torch.arange(6.0).reshape(2, 3) + (learner.size - 1) / 2)
    many = ddl.allreduce_n([x, x.bfloat16()], check=0.05, names=["a", "b"])
    assert many[1].dtype == torch.bfloat16
    assert torch.equal(ddl.bcast(x), torch.arange(6.0).reshape(2, 3))
    with pytest.raises(ValueError, match="mixed"):
        ddl.allreduce_n([x, np.ones(2)])
    ddl.finalize()


def test_tensors_of_torch_work_alike() -> None:
    pytest.importorskip("torch")
    run_ranks(2, tensors)


def wrong(folder: str) -> None:
    learner = _fresh("-mode r:2")
    os.chdir(folder)
    bad = np.array([1.0, float("nan") if learner.rank == 1 else 2.0])
    with pytest.raises(phalanx.CheckError, match="the input of rank 1 was not a finite number") as caught:
        ddl.allreduce(bad, check=0.1, name="bad")
    error = caught.value
    assert (error.tensor, error.index, error.rank) == ("bad", 1, 0)
    lines = [json.loads(line) for line in Path(f"ddl.dump{learner.rank:03}").read_text().splitlines()]
    assert (lines[0]["tensor"], lines[0]["tiers"], lines[1]["index"]) == ("bad", "2", 1)
    # The world goes on, and zeros pass.
    assert np.array_equal(ddl.allreduce(np.zeros(4), check=1e-9, name="zeros"), np.zeros(4))
    for value, why in [
        ({"op": "mean"}, "op must be sum"),
        ({"check": -1.0}, "check must be a fraction"),
        ({"mpi": True}, "MPI cannot be used: no MPI started this process"),
        ({"mpi": 1}, "mpi must be True or False"),
    ]:
        with pytest.raises(ValueError, match=why):
            ddl.allreduce(np.ones(1), **value)
    ddl.finalize()


def test_a_result_that_is_not_a_number_is_an_error_and_a_file_on_every_rank(tmp_path: Path) -> None:
    run_ranks(2, wrong, str(tmp_path))


SHAPE = "is not a shape like 8, 4x3 or 4x8x2 (one to four positive numbers joined by x)"
NO_MPI = (
    "MPI cannot be used: no MPI started this process: start it with mpirun of Open MPI or mpiexec of MPICH, "
    "or name the library in PHALANX_MPI_LIB (rank 0)"
)
REFUSED = {
    "-mode q:2": 'options: -mode "q:2": "q" is not a mode; b best way of each tier, n arena and rings, r rings, '
    "c halving, m MPI, p explore",
    "-mode n2": 'options: -mode "n2" has no shape: write a letter, a colon and a shape, as in -mode n:4x3',
    "-mode n:0": f'options: -mode "n:0": "0" {SHAPE}',
    "-mode n:1x1x1x1x2": f'options: -mode "n:1x1x1x1x2": "1x1x1x1x2" {SHAPE}',
    "-mode n:2x": f'options: -mode "n:2x": "2x" {SHAPE}',
    "-mode n:2x3": "shape 2x3 holds 6 ranks, but the world has 2",
    "-mode": "options: -mode needs a value: write -mode n:4x3",
    "-moed n:2": 'options: "-moed" is not an option of DDL; known: -mode -dump_iter -dev_sync -rebind_iter -dbg_level',
    "-dump_iter ten": 'options: -dump_iter "ten" cannot be used: write -dump_iter 100',
    "-rebind_iter -1": "options: -rebind_iter needs a value: write -rebind_iter 100",
    "-dev_sync 3": 'options: -dev_sync "3" cannot be used: write -dev_sync 0, 1 or 2',
    "-dbg_level 1 -dbg_level 1": "options: -dbg_level is given twice",
    "-mode m:2": f"-mode m needs MPI: {NO_MPI}",
}


def refused() -> None:
    phalanx.shutdown()
    rank = os.environ["PHALANX_RANK"]
    for mode, says in REFUSED.items():
        with pytest.raises(ValueError) as caught:
            ddl.init(None, mode)
        assert str(caught.value) == says
    with pytest.raises(ValueError) as caught:
        ddl.init(5, "-mode n:2")
    assert str(caught.value) == (
        f"num_gpu is 5, but the host of rank {rank} has 2 ranks: start as many ranks a host as you pass, or leave it out"
    )
    for num_gpu in [0, -1, True, 2.0, "2"]:
        with pytest.raises(ValueError, match="num_gpu must be a positive number or None"):
            ddl.init(num_gpu)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode must be DDL's option string"):
        ddl.init(2, 3)  # type: ignore[arg-type]
    assert ddl.init(2, "-mode c:2").size == 2
    for of in [2, -1, "0", True]:
        with pytest.raises(ValueError, match="must be a rank from 0 to 1"):
            ddl.coordinates(of)  # type: ignore[arg-type]
    ddl.finalize()
    with pytest.raises(phalanx.NotInitializedError):
        ddl.allreduce(np.ones(2))
    phalanx.init()
    with pytest.raises(phalanx.NotInitializedError, match="call phalanx.ddl.init\\(\\) instead of another init"):
        ddl.report()


def test_options_that_do_not_fit_are_refused_and_others_can_follow() -> None:
    run_ranks(2, refused)


def one_sided() -> None:
    learner = _fresh(None)
    with pytest.raises(phalanx.MismatchError, match="rank 0 has check 0.5, but rank 1 has no check"):
        ddl.allreduce(np.ones(2), check=0.5 if learner.rank == 0 else 0.0, name="w")
    assert ddl.allreduce(np.ones(2), check=0.5, name="w").tolist() == [2.0, 2.0]
    assert (ddl.report().baseline or "").startswith("all inputs gathered and reduced as f64 in rank order; not MPI: ")
    ddl.finalize()


def test_a_check_on_one_rank_only_is_an_error_on_all() -> None:
    run_ranks(2, one_sided)


def exact() -> None:
    learner = _fresh(None)
    big = 2**53 + 1
    x = np.array([big if learner.rank == 0 else 0])
    assert ddl.allreduce(x, check=1e-300, name="big").tolist() == [big]
    ddl.finalize()


def test_large_integers_pass_a_check() -> None:
    run_ranks(2, exact)


def unwritable(folder: str) -> None:
    learner = _fresh(None)
    os.chdir(folder)
    Path(f"ddl.dump{learner.rank:03}").mkdir(exist_ok=True)
    with pytest.raises(phalanx.CheckError):
        ddl.allreduce(np.array([float("nan")]), check=0.1, name="bad")
    ddl.finalize()


def test_a_dump_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    run_ranks(2, unwritable, str(tmp_path))


def unnamed() -> list[str]:
    _fresh("-mode n:2 -dump_iter 3")
    said: list[str] = []
    shown = ddl._phalanx.ddl_shown
    try:
        ddl._phalanx.ddl_shown = lambda words: said.append(shown(words)) or said[-1]  # type: ignore[assignment,func-returns-value]
        for _ in range(7):
            ddl.allreduce(np.ones(4))
            ddl.allreduce(np.ones(5))
            ddl.allreduce_n([np.ones(2), np.ones(3)])
    finally:
        ddl._phalanx.ddl_shown = shown
    ddl.finalize()
    return [text.splitlines()[0].split(" in ")[0] for text in said]


def test_arrays_without_names_are_told_apart_by_what_they_are() -> None:
    # The first comes again six times: three iterations, twice.
    assert run_ranks(2, unnamed) == [["DDL, 3 iterations"] * 2] * 2


def counted() -> None:
    phalanx.shutdown()
    for _ in range(2):
        ddl.init(None, "-mode r:2")
        assert [tier.way for tier in ddl.report()] == ["ring"]
        assert ddl.report()[0].bytes == 0
        ddl.allreduce(np.ones(100_000), name="w")
        assert ddl.report()[0].bytes == 800_000
        ddl.finalize()


def test_counters_begin_with_init() -> None:
    run_ranks(2, counted)


def dumped() -> list[str]:
    learner = _fresh("-mode r:2 -dump_iter 2")
    said: list[str] = []
    shown = ddl._phalanx.ddl_shown
    try:
        ddl._phalanx.ddl_shown = lambda words: said.append(shown(words)) or said[-1]  # type: ignore[assignment,func-returns-value]
        ddl.bcast(np.ones(100_000), name="weights")
        for _ in range(7):
            for name in ["a", "b"]:
                ddl.allreduce(np.ones(50_000), name=name)
    finally:
        ddl._phalanx.ddl_shown = shown
    assert learner.size == 2
    assert ddl.report()[0].seconds > 0
    ddl.finalize()
    return [text.splitlines()[1].rsplit(",", 1)[0] for text in said]


def test_each_dump_is_of_the_iterations_since_the_last_one() -> None:
    # A call sends half of the vector, twice: two iterations of two calls each.
    line = "  tier 0: 2 ranks, ring, 1600000 bytes in 8 messages"
    assert run_ranks(2, dumped) == [[line] * 3] * 2


def absent(folder: str) -> None:
    learner = _fresh("-mode r:2")
    said, end = Path(folder) / "said", time.monotonic() + 60
    if learner.rank == 1:
        while not said.exists():
            assert time.monotonic() < end, "rank 0 is not told"
            time.sleep(0.01)  # Rank 0 cannot tell it by a collective: this rank must be absent from them.
        return
    with pytest.raises(phalanx.StalledError, match="ddl.w") as caught:
        ddl.allreduce(np.ones(3), name="w")
    said.touch()
    assert list(caught.value.ranks) == [1]


def test_a_rank_that_never_calls_is_named_after_the_stall_time(tmp_path: Path) -> None:
    run_ranks(2, absent, str(tmp_path), fresh=True, env={"PHALANX_STALL_WARN": "1", "PHALANX_STALL_ABORT": "2"})


SILENT = """
import sys
import numpy as np
import phalanx.numpy as pn
pn.init()
for _ in range(3):
    pn.allreduce(np.ones(4))
"""


def test_a_file_for_exploring_without_ddl_is_said_to_have_no_effect(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "DDL_"))}
    env["PHALANX_EXPLORE"] = str(tmp_path / "found")
    run = [sys.executable, "-m", "phalanx", "run", "-np", "2", "--", sys.executable, "-c", SILENT]
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    said = (
        'PHALANX_EXPLORE has no effect here: only DDL explores. Start the program with ddl.init(mode="-mode p:SHAPE")'
    )
    assert done.stderr.count(said) == 1, done.stderr
    assert not (tmp_path / "found").exists()


SPOKEN = """
import sys
from phalanx import ddl
ddl.init(None, f"-mode r:2 -dbg_level {sys.argv[1]}")
"""


@pytest.mark.parametrize(("level", "n_lines"), [("0", 0), ("1", 1), ("2", 2)])
def test_ranks_say_where_they_are_if_they_are_asked(level: str, n_lines: int) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "DDL_"))}
    run = [sys.executable, "-m", "phalanx", "run", "-np", "2", "--", sys.executable, "-c", SPOKEN, level]
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("of 2 (ring), 1 hosts") == n_lines, done.stderr
