"""How fast a rank trains, and how much of the time it waits: one line from time to time, on request (`PHALANX_THROUGHPUT`).

>>> line("DistributedOptimizer", n_passes=1240, passes=248, seconds=10.0, waited=0.6, n_ranks=2)
'phalanx: DistributedOptimizer: pass 1240, 24.8 passes/s, 40.3 ms each, 6 % of it waiting for gradients, 2 ranks'
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from phalanx import _phalanx
from phalanx.process_sets import ProcessSet


def line(what: str, *, n_passes: int, passes: int, seconds: float, waited: float, n_ranks: int) -> str:
    """What is printed: ``passes`` of them took ``seconds``."""
    each, share = seconds / passes, waited / seconds
    return (
        f"phalanx: {what}: pass {n_passes}, {passes / seconds:.1f} passes/s, {each * 1e3:.1f} ms each, "
        f"{share:.0%} of it waiting for gradients, {n_ranks} ranks"
    ).replace("%", " %")


class Throughput:
    """Measures the passes of one optimizer or model."""

    def __init__(self, what: str, process_set: ProcessSet) -> None:
        self._what, self._set = what, process_set
        self._began, self._waited, self._passes, self._n_passes = 0.0, 0.0, 0, 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In it, a pass waits for the gradients of other ranks and ends."""
        interval = _phalanx.throughput_every()
        if not interval:
            yield
            return
        begin = perf_counter()
        yield
        end = perf_counter()
        self._n_passes += 1
        if not self._began:
            # The first pass ranks agree and learn; it would say nothing about the others.
            self._began = end
            return
        self._waited += end - begin
        self._passes += 1
        if end - self._began >= interval:
            if _phalanx.place()[0] == min(self._set.ranks):
                self._say(end - self._began)
            self._began, self._waited, self._passes = end, 0.0, 0

    def _say(self, seconds: float) -> None:
        n_ranks = len(self._set.ranks)
        text = line(
            self._what,
            n_passes=self._n_passes,
            passes=self._passes,
            seconds=seconds,
            waited=self._waited,
            n_ranks=n_ranks,
        )
        print(text, file=sys.stderr, flush=True)
