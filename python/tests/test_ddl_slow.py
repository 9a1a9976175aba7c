"""A slow rank is the one that is named, and one whose core is taken by others moves to another core."""

from __future__ import annotations

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

HOG = "import sys\nprint(flush=True)\nwhile True: pass"
DEADLINE = 120.0


def _work(seconds: float) -> None:
    """As long on the processor, whatever else runs there."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _stderr_to(path: str) -> None:
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)


def slowed(folder: str) -> None:
    phalanx.shutdown()
    _stderr_to(f"{folder}/{phalanx_rank()}")
    learner = ddl.init(None, "-mode n:3 -dump_iter 3")
    for _ in range(4):
        if learner.rank == 1:
            _work(0.2)
        ddl.allreduce(np.ones(100), name="gradient")
    ddl.finalize()


def phalanx_rank() -> str:
    return os.environ["PHALANX_RANK"]


def test_the_slowed_rank_is_the_one_that_a_dump_names(tmp_path: Path) -> None:
    run_ranks(3, slowed, str(tmp_path), fresh=True)
    said = (tmp_path / "0").read_text()
    assert "rank 1 came last" in said, said
    assert "3 iterations" in said
    assert "tier 0: 3 ranks" in said, "with the way of each tier"
    assert (tmp_path / "1").read_text() == "", "rank 0 speaks for all"


def hogged(folder: str) -> None:
    phalanx.shutdown()
    _stderr_to(f"{folder}/{phalanx_rank()}")
    learner = ddl.init(None, "-mode n:2 -rebind_iter 2")
    cores = sorted(os.sched_getaffinity(0))
    mine = cores[learner.rank]
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {mine})
    hogs: list[subprocess.Popen[bytes]] = []
    try:
        if learner.rank == 0:
            # They inherit the core.
            for _ in range(6):
                hog = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE)
                assert hog.stdout is not None
                hog.stdout.readline()
                hogs.append(hog)
        calls, began, moved = 0, time.monotonic(), False
        while not moved:
            _work(0.02)
            ddl.allreduce(np.ones(10), name="gradient")
            calls += 1
            # On a busy machine the other one may be slow, too, and move: rebind.rs says who is.
            is_elsewhere = learner.rank == 0 and mine not in os.sched_getaffinity(0)
            # An iteration ends when the first tensor comes again: three checks of two.
            assert calls >= 7 or not is_elsewhere, calls
            # All ranks learn in the same call that it is over.
            moved = bool(ddl.allreduce(np.array([float(is_elsewhere)]), op="max", name="moved")[0])
            assert time.monotonic() - began < DEADLINE, "the rank did not move"
        others = {int(t): os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task")}
        assert all(cores == os.sched_getaffinity(0) for cores in others.values()), "all threads move"
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    ddl.finalize()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other core to move to")
def test_a_rank_whose_core_is_taken_moves_after_three_checks(tmp_path: Path) -> None:
    run_ranks(2, hogged, str(tmp_path), fresh=True)
    said = (tmp_path / "0").read_text()
    assert "DDL: rank 0 was slow in 3 checks running and moves from core " in said, said
