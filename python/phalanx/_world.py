"""This process as a rank of its world: joining, leaving, rank and size."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from phalanx import _phalanx, _stack
from phalanx.process_sets import ProcessSet, _register, _unregister

_at_shutdown: list[Callable[[], None]] = []
#: What takes part in the others' work while this rank has joined; each gives what ends that.
_at_join: list[Callable[[], Callable[[], None]]] = []
_age = 0


def init(comm: Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None) -> None:
    """Joins the world that the launcher started; without a launcher, a world of one rank.

    A second call does nothing; after :func:`shutdown` it starts again. The environment is read by this call, not by
    the import.

    ``process_sets`` are registered by this call and must be the same on every rank; more can be added later. ``comm``
    exists for compatibility with Horovod: a list of all ranks, or ``None``.

    >>> import phalanx
    >>> phalanx.init()
    >>> phalanx.size()
    1
    """
    sets: list[ProcessSet] = []
    if process_sets is not None and not isinstance(process_sets, str):
        sets = [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in process_sets]
    elif process_sets not in (None, "dynamic"):
        raise ValueError(f"process_sets must be a list of process sets or 'dynamic', not {process_sets!r}")
    if len({tuple(s.ranks) for s in sets}) != len(sets):
        raise ValueError("a process set with the same ranks is given twice")
    _stack.install()
    if _phalanx.init([s.ranks for s in sets], _stack.where):
        _joined(sets)
    elif sets:
        raise ValueError("phalanx is already initialized; use add_process_set() for further process sets")
    if comm is not None and (not isinstance(comm, Sequence) or sorted(comm) != list(range(size()))):
        shutdown()
        raise ValueError(f"comm={comm!r} is not all ranks of the world; use process sets for parts of it")


def join_as(task: _phalanx.Task) -> None:
    """Joins the world as this task of a cluster, unless this process has joined one."""
    _stack.install()
    if _phalanx.init([], _stack.where, task):
        _joined([])


def join_with(n_local: int | None, options: str) -> bool:
    """Joins the world with the shape that DDL's options name; False if this process has joined already."""
    _stack.install()
    is_new = _phalanx.init([], _stack.where, None, (n_local, options))
    if is_new:
        _joined([])
    return is_new


def _joined(sets: list[ProcessSet]) -> None:
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    sys.exit = _noted_exit
    _register(sets)


def shutdown() -> None:
    """Ends all communication on all ranks; pending operations fail. :func:`init` may be called again."""
    global _age
    _age += 1
    _run_all([*_at_shutdown, _unregister, _phalanx.shutdown])


def _run_all(calls: Sequence[Callable[[], None]]) -> None:
    """Calls all of them, whatever one raises; the first exception is raised at the end."""
    first: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


def join() -> int:
    """Declares that this rank has no more data, and waits until all ranks have; returns the rank that was last.

    Until then this rank takes part in the others' operations: with zeros in an allreduce, without rows in an allgather.
    """
    global _age
    joined = _phalanx.join()
    ends = [begin() for begin in _at_join]
    last = joined.wait_joined()
    _run_all(ends)
    _age += 1
    _phalanx.alike_forget()
    return -1 if last is None else last


def age() -> int:
    """A number that changes with every shutdown and every join, when ranks start together again."""
    return _age


_exit = sys.exit
_exit_code: Any = None


def _noted_exit(status: Any = None) -> NoReturn:
    """As ``sys.exit``; stores the exit code, which exit handlers cannot get in another way."""
    global _exit_code
    _exit_code = status
    _exit(status)


def _at_exit() -> None:
    if getattr(sys, "last_type", None) is not None or _exit_code not in (None, 0, False):
        # An exception ends this process: the other ranks shall hear that, not of an orderly shutdown.
        _phalanx.abandon()
        return
    _run_all([*_at_shutdown, _phalanx.close])


def is_initialized() -> bool:
    """Whether :func:`init` was called and :func:`shutdown` was not called since."""
    return _phalanx.is_initialized()


def rank() -> int:
    """This process's rank in the world.

    >>> import phalanx
    >>> phalanx.init()
    >>> phalanx.rank()
    0
    """
    return _phalanx.place()[0]


def size() -> int:
    """The number of ranks in the world."""
    return _phalanx.place()[1]


def local_rank() -> int:
    """This process's rank among the ranks of its host."""
    return _phalanx.place()[2]


def local_size() -> int:
    """The number of ranks on this host."""
    return _phalanx.place()[3]


def cross_rank() -> int:
    """The index of this host among the hosts that have a rank with this local rank."""
    return _phalanx.place()[4]


def cross_size() -> int:
    """The number of hosts that have a rank with this local rank."""
    return _phalanx.place()[5]


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks."""
    return _phalanx.is_homogeneous()


def counters() -> dict[str, int]:
    """What the engine has done so far: operations, batches, bytes."""
    return _phalanx.counters()
