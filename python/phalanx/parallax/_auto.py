"""``run_option=None``: whether tables with sparse gradients go to servers."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx import _phalanx, _world
from phalanx.distributed._words import exchanged
from phalanx.parallax._log import log

#: The option of a training whose first step has not been measured.
AUTO = "AUTO"


def first_choice(table_bytes: int) -> tuple[str, str]:
    """What is clear before the first step, and why; :data:`AUTO` where that step is measured. All workers call it and choose alike.

    ``table_bytes`` is what all tables take on a worker, with the states of their rules.
    """
    hosts, servers = _phalanx.hosts()
    if hosts > 1:
        return AUTO, "the first step is measured: what each way would take decides"
    if servers:
        return "HYBRID", f"{servers} processes that only serve were started; on one host nothing is measured"
    nothing = "one host sends nothing between hosts, so nothing is measured"
    if _world.size() == 1:
        return "MPI", f"{nothing}, and no server is needed"
    told = exchanged("parallax.memory", _phalanx.free_memory(), None, "reading the free memory")
    free = min((each for each in told if each is not None), default=None)
    if free is not None and free < table_bytes:
        why = f"{free >> 20} MiB are free and the tables take {table_bytes >> 20} MiB on each worker: a server has them once"
        return "HYBRID", f"{nothing}; {why}"
    return "MPI", f"{nothing}, and no server is needed"


def measured(graph: _phalanx.GraphProgram, fed: Sequence[tuple[str, str, Sequence[_phalanx.Lent]]]) -> _phalanx.Rates:
    """Rates of links and memory, and the rows that the first step of all workers touches."""
    return _phalanx.GraphTables.measured(graph, fed)


def predicted(tables: Sequence[tuple[str, int, _phalanx.Lent]]) -> tuple[float, float]:
    """Seconds of a step with gathered rows, and with tables on servers, for the rows that the first step of all workers has touched."""
    return _phalanx.predicted(tables)


def tell(option: str, why: str) -> None:
    """Worker 0 says what was chosen."""
    if _world.rank() == 0:
        log.info("run_option=None chooses %s: %s", option, why)


__all__ = ["AUTO", "first_choice", "measured", "predicted", "tell"]
