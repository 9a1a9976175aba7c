"""Process sets: subsets of the world that communicate among themselves.

>>> import phalanx
>>> phalanx.init()
>>> phalanx.global_process_set.ranks
[0]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from phalanx import _phalanx


class ProcessSet:
    """A subset of the ranks of the world; register it with ``init(process_sets=...)`` or :func:`add_process_set`."""

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        if isinstance(ranks_or_comm, str) or not isinstance(ranks_or_comm, Iterable):
            raise ValueError(f"a process set must be a list of ranks, such as [0, 1], not {ranks_or_comm!r}")
        ranks = list(ranks_or_comm)
        if any(isinstance(r, bool) or not isinstance(r, int) or r < 0 for r in ranks):
            raise ValueError(f"a process set must be a list of ranks, whole numbers from 0, not {ranks!r}")
        self._ranks = sorted(ranks)
        self.process_set_id: int | None = None
        self.mpi_comm: Any = None

    @property
    def ranks(self) -> list[int]:
        """The ranks, in order."""
        if self.process_set_id == 0:
            return list(range(_phalanx.place()[1])) if _phalanx.is_initialized() else []
        return self._ranks

    def size(self) -> int | None:
        """The number of its ranks; ``None`` while it is not registered."""
        return None if self.process_set_id is None else len(self._checked_ranks())

    def rank(self) -> int | None:
        """This process's rank in the set; ``None`` while it is not registered."""
        if self.process_set_id is None:
            return None
        me = _phalanx.place()[0]
        ranks = self._checked_ranks()
        if me not in ranks:
            raise ValueError(f"rank {me} is not in {self}: check included() first")
        return ranks.index(me)

    def included(self) -> bool | None:
        """Whether this process is in the set; ``None`` while it is not registered."""
        return None if self.process_set_id is None else _phalanx.place()[0] in self._checked_ranks()

    def _checked_ranks(self) -> list[int]:
        _phalanx.place()
        return self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return self.process_set_id == other.process_set_id and self.ranks == other.ranks

    __hash__ = object.__hash__


#: All ranks.
global_process_set = ProcessSet([])
global_process_set.process_set_id = 0

_registered: list[ProcessSet] = []


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set. Every rank of the world calls it, members or not, with the same ranks."""
    process_set = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set} is already registered")
    process_set.process_set_id = _phalanx.add_process_set(process_set.ranks)
    _registered.append(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set. Every rank of the world calls it. False for the global process set or an unregistered one."""
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"remove_process_set() takes a ProcessSet from add_process_set(), not {process_set!r}")
    id = process_set.process_set_id
    if id is None or id == 0 or not _phalanx.remove_process_set(id):
        return False
    process_set.process_set_id = None
    _registered[:] = [s for s in _registered if s is not process_set]
    return True


def process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The id and the ranks of every process set."""
    return dict(_phalanx.process_sets())


def registered() -> list[ProcessSet]:
    """The registered process sets, in order of registration."""
    return list(_registered)


def checked_kind(process_set: Any) -> None:
    """Refuses what is not a process set; it need not be registered yet."""
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet, such as add_process_set() returns, not {process_set!r}")


def set_id(process_set: ProcessSet) -> int:
    """The number of a registered process set."""
    checked_kind(process_set)
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not registered: pass it to init() or add_process_set() first")
    return process_set.process_set_id


def _register(sets: Iterable[ProcessSet]) -> None:
    numbers = {tuple(ranks): id for id, ranks in _phalanx.process_sets()}
    for process_set in sets:
        process_set.process_set_id = numbers[tuple(process_set.ranks)]
        _registered.append(process_set)


def _unregister() -> None:
    for process_set in _registered:
        process_set.process_set_id = None
    _registered.clear()


__all__ = ["ProcessSet", "add_process_set", "global_process_set", "process_set_ids_and_ranks", "remove_process_set"]
