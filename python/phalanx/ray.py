"""Ranks as actors of a Ray cluster; Ray itself is imported by the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx._actors import PLACEMENTS, Actors, Wish, start_timeout_s


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    workers: int,
    cpus_per_worker: int = 1,
    placement: str = "PACK",
) -> list[Any]:
    """Runs ``fn(*args, **kwargs)`` on ``workers`` ranks in a Ray cluster and returns the results in rank order.

    Each rank is an actor with ``cpus_per_worker`` CPUs of a placement group. ``placement`` is ``"PACK"``, ``"SPREAD"``,
    ``"STRICT_PACK"`` or ``"STRICT_SPREAD"``. Ranks of one node are neighbours. The function calls ``init()`` itself.
    Variables named ``PHALANX_*`` that are settings are the same on every rank as here.

    An exception on a rank, and the death of a rank, are raised here as :class:`phalanx.RankFailedError`, and the other
    ranks are ended. If the cluster has no place for the ranks within ``PHALANX_START_TIMEOUT`` seconds (60), this is
    an :class:`phalanx.InitializationError`. Without ``ray.init()`` before, Ray is initialized as by ``ray.init()``.
    """
    for name, value in (("workers", workers), ("cpus_per_worker", cpus_per_worker)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"phalanx.ray.run: {name} must be a whole number from 1, not {value!r}")
    if placement not in PLACEMENTS:
        raise ValueError(f"phalanx.ray.run: placement must be one of {', '.join(PLACEMENTS)}, not {placement!r}")
    if not callable(fn):
        raise TypeError(f"phalanx.ray.run: fn must be a function, not {fn!r}")
    wish = Wish("phalanx.ray.run", workers, 1, cpus_per_worker, placement, start_timeout_s(), {})
    actors = Actors(wish)
    is_done = False
    try:
        results = actors.call(fn, args, kwargs)
        is_done = True
        return results
    finally:
        actors.end(kindly=is_done)


__all__ = ["run"]
