"""``phalanx.run``: functions on ranks, from here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import phalanx


def test_results_come_back_in_rank_order() -> None:
    def work(x: int) -> tuple[int, int]:
        import phalanx

        phalanx.init()
        return phalanx.rank() * x, phalanx.size()

    assert phalanx.run(work, (10,), np=3, timeout_s=60) == [(0, 3), (10, 3), (20, 3)]


def test_an_exception_comes_back_with_its_rank_and_traceback() -> None:
    def work() -> None:
        import numpy

        import phalanx
        import phalanx.numpy

        phalanx.init()
        if phalanx.rank() == 1:
            raise KeyError("lost the plot")
        phalanx.numpy.allreduce(numpy.ones(3), name="never")

    with pytest.raises(phalanx.RankFailedError, match="rank 1: KeyError") as caught:
        phalanx.run(work, np=2, timeout_s=60)
    assert caught.value.rank == 1
    assert "lost the plot" in caught.value.traceback


def test_the_rank_that_died_is_named_and_not_those_that_tell_of_it() -> None:
    def work() -> None:
        import os

        import numpy

        import phalanx
        import phalanx.numpy

        phalanx.init()
        if phalanx.rank() == 1:
            os._exit(3)
        phalanx.numpy.allreduce(numpy.ones(3), name="never")

    with pytest.raises(phalanx.RankFailedError, match=r"^rank 1 died: its process ended with code 3") as caught:
        phalanx.run(work, np=3, timeout_s=60)
    assert caught.value.rank == 1
    assert "RankLostError" in caught.value.traceback


def test_a_rank_that_is_killed_is_named_though_the_others_never_notice() -> None:
    def work() -> None:
        import os
        import signal
        import threading

        if os.environ["PHALANX_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait(60)

    with pytest.raises(phalanx.RankFailedError, match=r"^rank 1 died: its process was killed by SIGKILL") as caught:
        phalanx.run(work, np=2, timeout_s=60)
    assert caught.value.rank == 1


def test_the_ranks_python_can_be_another(tmp_path: Path) -> None:
    other = tmp_path / "other-python"
    other.write_text(f'#!/bin/sh\nWRAPPED=1 exec {sys.executable} "$@"\n')
    other.chmod(0o755)

    def work() -> str | None:
        import os

        return os.environ.get("WRAPPED")

    assert phalanx.run(work, np=1, executable=other, timeout_s=60) == ["1"]


def test_a_function_from_a_module_beside_the_script_is_found(tmp_path: Path) -> None:
    (tmp_path / "beside_the_script.py").write_text("def work():\n    return 5\n")
    script = "import phalanx\nfrom beside_the_script import work\nprint(phalanx.run(work, np=1, timeout_s=60))\n"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[5]\n", done.stderr


def test_a_function_that_a_rank_cannot_read_comes_back_as_its_failure(tmp_path: Path) -> None:
    other = tmp_path / "other-python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    # Ranks with a Python of their own do not look where this one does.
    with pytest.raises(phalanx.RankFailedError, match=r"^rank 0: ModuleNotFoundError: No module named 'test_function'"):
        phalanx.run(test_results_come_back_in_rank_order, np=1, executable=other, timeout_s=60)


def test_arguments_that_mean_nothing_are_refused() -> None:
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="a whole number of ranks from 1"):
            phalanx.run(print, np=bad)  # type: ignore[arg-type]
