"""``phalanx.run``: functions on ranks, from here."""

from __future__ import annotations

import phalanx
import pytest


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
