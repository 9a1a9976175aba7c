"""The search for the number of partitions with which steps are fastest, while a model trains."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from phalanx import _phalanx, _world
from phalanx.parallax import partitions
from phalanx.parallax._log import log
from phalanx.parallax.config import ParallaxConfig
from phalanx.torch.collectives import allgather
from phalanx.torch.served import ServedTables

#: Steps of a trial that warm up, and steps that count; as Parallax has them.
TRIAL = (50, 50)


class PartitionSearch:
    """Times steps, and cuts the tables anew after each trial, until it has found a number."""

    def __init__(self, least: int, most: int, hosts: int) -> None:
        self._core: _phalanx.PartitionSearch | None = _phalanx.PartitionSearch(max(least, hosts), least, most, *TRIAL)
        self.first = self._core.first

    @staticmethod
    def of(config: ParallaxConfig, sync: bool, heights: Sequence[int]) -> PartitionSearch | None:
        """The search that a configuration asks for, over tables of these rows; ``None`` if it asks for none, or it cannot be."""
        if not config.search_partitions:
            return None
        told = _world.rank() == 0
        if os.environ.get("PARALLAX_PARTITIONS", "").strip():
            why = "PARALLAX_PARTITIONS is set"
        elif not sync or config._ps.staleness is not None:
            why = "workers that are not in step cannot be timed together"
        elif not heights:
            why = "no table has sparse gradients"
        else:
            return PartitionSearch(partitions.wanted() or 1, min(heights), _world.cross_size())
        if told:
            log.warning("search_partitions does nothing: %s", why)
        return None

    def step(self, seconds: float, tables: ServedTables) -> None:
        """A step took this long; at the end of a trial all workers decide what comes next."""
        own = None if self._core is None else self._core.step(seconds)
        if own is None or self._core is None:
            return
        # Who has joined gives no row.
        every = allgather(torch.tensor([own], dtype=torch.float64), name="parallax.trial")
        if len(every) < _world.size():
            self._core = None
            if _world.rank() == 0:
                log.warning("search_partitions ends without a number: a worker has joined; partitions stay as they are")
            return
        wanted = self._core.end(float(every.sum()))
        tables.reshard(wanted)
        if _world.rank() == 0:
            found = self._core.found is not None
            log.info("search_partitions: %s %d partitions", "found" if found else "tries", wanted)
        if self._core.found is not None:
            self._core = None


__all__ = ["PartitionSearch"]
