"""Handles: numbers for pending operations, as in Horovod."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

from phalanx import _phalanx, _world

Finish: TypeAlias = Callable[[list[_phalanx.Array], list[int]], Any]

#: Numbers are never used again, so that a handle from before a shutdown cannot hit an operation after it.
_numbers = itertools.count()
#: The next number, and the first one since the last shutdown.
_next = _first = 0
_under_way: dict[int, tuple[_phalanx.Operation, Finish]] = {}


def add(operation: _phalanx.Operation, finish: Finish) -> int:
    """A number for the operation; `finish` makes its result."""
    global _next
    number = next(_numbers)
    _next = number + 1
    _under_way[number] = (operation, finish)
    return number


def forget(handle: int) -> None:
    """Drops the handle; its result is not needed."""
    _under_way.pop(handle, None)


def poll(handle: int) -> bool:
    """Whether the operation is done, so that :func:`synchronize` would not wait."""
    if _entry(handle) is None:
        raise ValueError(
            f"the operation with handle {handle} is done and its result was already returned: call poll() before synchronize()"
        )
    return _under_way[handle][0].poll()


def synchronize(handle: int | Callable[[], Any]) -> Any:
    """Waits for the operation and returns its result; ``None`` if it was already returned, as in Horovod.

    It also accepts what :func:`sparse_allreduce_async` returns.
    """
    if callable(handle):
        return handle()
    entry = _entry(handle)
    if entry is None:
        return None
    operation, finish = entry
    try:
        arrays, rows = operation.wait()
    except Exception:
        forget(handle)
        raise
    forget(handle)
    return finish(arrays, rows)


def _entry(handle: int) -> tuple[_phalanx.Operation, Finish] | None:
    """The operation with this handle; ``None`` if its result was already returned."""
    if isinstance(handle, bool) or not isinstance(handle, int) or not 0 <= handle < _next:
        raise ValueError(f"{handle!r} is not a handle: pass what an _async function returned")
    if handle < _first:
        raise ValueError(f"the operation with handle {handle} ended with shutdown(): submit it again")
    return _under_way.get(handle)


def _clear() -> None:
    global _first
    _under_way.clear()
    _first = _next


_world._at_shutdown.append(_clear)
