"""Into how many partitions tables on servers are cut."""

from __future__ import annotations

import os

_asked: list[Partitioner] = []


class Partitioner:
    """The fewest partitions that a program wants; all tables are cut alike."""

    def __init__(self, min_num_partitions: int) -> None:
        self.min_num_partitions = min_num_partitions

    def __repr__(self) -> str:
        return f"Partitioner({self.min_num_partitions})"


def get_partitioner(min_num_partitions: int) -> Partitioner:
    """Asks for at least this many partitions of every table; of several calls, the largest number counts.

    ``PARALLAX_PARTITIONS`` in the environment wins over all of them. Call it before :func:`parallel_run`.

    >>> from phalanx import parallax
    >>> parallax.get_partitioner(2)
    Partitioner(2)
    """
    n = min_num_partitions
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"min_num_partitions must be a whole number from 1, not {n!r}")
    made = Partitioner(n)
    _asked.append(made)
    return made


def wanted() -> int | None:
    """How many partitions to make; ``None`` where nobody has asked."""
    told = os.environ.get("PARALLAX_PARTITIONS", "").strip()
    if told:
        if not told.isdigit() or int(told) < 1:
            raise ValueError(f"PARALLAX_PARTITIONS={told} is not a number of partitions; write a whole number from 1")
        return int(told)
    return max((one.min_num_partitions for one in _asked), default=None)


__all__ = ["Partitioner", "get_partitioner"]
