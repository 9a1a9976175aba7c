"""Which part of the data is this worker's.

>>> from phalanx.parallax import shard
>>> shard.create_num_shards_and_shard_id()
(1, 0)
>>> list(shard.shard([1, 2, 3]))
[1, 2, 3]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from phalanx import _phalanx


def create_num_shards_and_shard_id() -> tuple[int, int]:
    """The number of shards and this worker's; ``(1, 0)`` in a process that no launcher has started."""
    if _phalanx.is_initialized():
        rank, size = _phalanx.place()[:2]
        return size, rank
    task = _phalanx.Task.from_env()
    if task is None or task.is_ps or task.is_evaluator:
        return 1, 0
    _, workers, index = task.numbers
    return workers, index


def shard(ds: Iterable[Any]) -> Any:
    """Every ``num_shards``-th element, from this worker's number on: a data set of ours, or a view of any other.

    Call it before shuffling, so that shards are disjoint and together are all.
    """
    if isinstance(ds, Mapping):
        raise TypeError("the entries of a dict have no numbers: give shard a list of them")
    n, at = create_num_shards_and_shard_id()
    own = getattr(ds, "shard", None)
    if callable(own):
        return own(n, at)
    if not isinstance(ds, Iterable) and not hasattr(ds, "__getitem__"):
        raise TypeError(f"shard takes a data set or another iterable, not a {type(ds).__name__}")
    if hasattr(ds, "__getitem__") and hasattr(ds, "__len__"):
        return _Taken(ds, n, at)
    return _Passed(ds, n, at)


class _Taken:
    """Elements that have numbers."""

    def __init__(self, ds: Any, n: int, at: int) -> None:
        self._ds, self._n, self._at = ds, n, at

    def __len__(self) -> int:
        return len(range(self._at, len(self._ds), self._n))

    def __getitem__(self, i: int | slice) -> Any:
        places = range(self._at, len(self._ds), self._n)
        return [self._ds[place] for place in places[i]] if isinstance(i, slice) else self._ds[places[i]]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


class _Passed:
    """Elements that come one after the other."""

    def __init__(self, ds: Iterable[Any], n: int, at: int) -> None:
        self._ds, self._n, self._at = ds, n, at

    def __iter__(self) -> Iterator[Any]:
        return (one for i, one in enumerate(self._ds) if i % self._n == self._at)


__all__ = ["create_num_shards_and_shard_id", "shard"]
