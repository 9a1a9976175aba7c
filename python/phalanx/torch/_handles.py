"""Numbers for operations that are under way, as Horovod has them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

from phalanx import _phalanx, _world

Finish: TypeAlias = Callable[[list[_phalanx.Array], list[int]], Any]

_numbers = itertools.count()
_under_way: dict[int, tuple[_phalanx.Operation, Finish]] = {}


def add(operation: _phalanx.Operation, finish: Finish) -> int:
    """A number for the operation; `finish` makes its result."""
    number = next(_numbers)
    _under_way[number] = (operation, finish)
    return number


def forget(handle: int) -> None:
    """Nobody will ask for it any more."""
    _under_way.pop(handle, None)


def poll(handle: int) -> bool:
    """Whether the operation is done, so that :func:`synchronize` would not wait."""
    if handle not in _under_way:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return _under_way[handle][0].poll()


def synchronize(handle: int) -> Any:
    """Waits for the operation and gives its result; ``None`` if that was given before."""
    entry = _under_way.get(handle)
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


def _clear() -> None:
    global _numbers
    _under_way.clear()
    _numbers = itertools.count()


_world._at_shutdown.append(_clear)
