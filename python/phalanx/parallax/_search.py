"""The search for the number of partitions with which steps are fastest, while a model trains."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from phalanx import _phalanx, _world
from phalanx.parallax import partitions
from phalanx.parallax._log import log
from phalanx.parallax.config import ParallaxConfig

#: Steps of a trial that warm up, and steps that count; as Parallax has them.
TRIAL = (50, 50)


def is_wanted(config: ParallaxConfig, sync: bool, has_tables: bool) -> bool:
    """Whether a configuration asks for a search, and it can be; worker 0 says why not."""
    if not config.search_partitions:
        return False
    if os.environ.get("PARALLAX_PARTITIONS", "").strip():
        why = "PARALLAX_PARTITIONS is set"
    elif not sync or config._ps.staleness is not None:
        why = "workers that are not in step cannot be timed together"
    elif not has_tables:
        why = "no table has sparse gradients"
    else:
        return True
    if _world.rank() == 0:
        log.warning("search_partitions does nothing: %s", why)
    return False


def tell(partitions: int | None, is_found: bool) -> None:
    """Worker 0 says what comes next."""
    if _world.rank() == 0 and partitions is None:
        log.warning("search_partitions ends: no number that was tried can be had; partitions stay as they are")
    elif _world.rank() == 0:
        log.info("search_partitions: %s %d partitions", "found" if is_found else "tries", partitions)


class Cuttable(Protocol):
    """Tables that can be cut anew."""

    def admits(self, partitions: int) -> str | None:
        """Why this rank cannot have its part of that number of partitions, if it cannot."""

    def reshard(self, partitions: int) -> None:
        """Cuts them."""


Gather = Callable[[float], Sequence[float]]


def settle(wanted: int | None, refused: Callable[[], int | None], tables: Cuttable, gather: Gather) -> int | None:
    """Cuts tables into as many partitions as a trial wants if all workers can have them, or as `refused` says; tells how many."""
    while wanted is not None:
        why = tables.admits(wanted)
        if why is not None:
            log.info("search_partitions: %d partitions are not tried: %s", wanted, why)
        if not any(gather(0.0 if why is None else 1.0)):
            try:
                tables.reshard(wanted)
            except ValueError as why:
                # A server has no room for it, on all ranks alike; the tables are as they were.
                log.info("search_partitions: %d partitions are not tried: %s", wanted, why)
            else:
                return wanted
        wanted = refused()
    return None


class PartitionSearch:
    """Times steps, and cuts the tables anew after each trial, until it has found a number."""

    def __init__(self, least: int, most: int, hosts: int) -> None:
        self._core: _phalanx.PartitionSearch | None = _phalanx.PartitionSearch(max(least, hosts), least, most, *TRIAL)
        self.first = self._core.first

    @staticmethod
    def of(config: ParallaxConfig, sync: bool, heights: Sequence[int]) -> PartitionSearch | None:
        """The search that a configuration asks for, over tables of these rows; ``None`` if it asks for none, or it cannot be."""
        if not is_wanted(config, sync, bool(heights)):
            return None
        return PartitionSearch(partitions.wanted() or 1, min(heights), _phalanx.hosts()[0])

    def step(self, seconds: float, gather: Gather, tables: Cuttable) -> None:
        """A step took this long; at the end of a trial all workers decide what comes next. A worker that has joined gives no number."""
        own = None if self._core is None else self._core.step(seconds)
        if own is None or self._core is None:
            return
        every = gather(own)
        if len(every) < _world.size():
            self._core = None
            if _world.rank() == 0:
                log.warning("search_partitions ends without a number: a worker has joined; partitions stay as they are")
            return
        core = self._core
        tell(settle(core.end(sum(every)), core.refused, tables, gather), core.found is not None)
        if core.found is not None:
            self._core = None


__all__ = ["PartitionSearch"]
