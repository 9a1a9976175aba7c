"""Collectives of numpy arrays.

>>> import numpy as np
>>> import phalanx.numpy as pn
>>> pn.init()
>>> pn.allreduce(np.array([1.0, 2.0]), op=pn.Sum)
array([1., 2.])

Every function has an asynchronous form that returns a :class:`Pending`. Do not use the array until that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from phalanx import _phalanx
from phalanx._arguments import checked_root, checked_splits
from phalanx._options import Options
from phalanx._world import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    join,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from phalanx.objects import allgather_object, broadcast_object
from phalanx.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set, set_id
from phalanx.reductions import Adasum, Average, Max, Min, Product, Sum
from phalanx.timeline import start_timeline, stop_timeline

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
T = TypeVar("T")

_CODES = {
    np.dtype(name): code
    for code, name in enumerate(["u1", "i1", "u2", "i2", "i4", "i8", "f2", None, "f4", "f8", "?"])
    if name is not None
}


class Pending(Generic[T]):
    """A submitted operation. Keep it until :meth:`wait` has returned the result."""

    def __init__(self, operation: _phalanx.Operation, finish: Callable[[list[_phalanx.Array], list[int]], T]) -> None:
        self._operation = operation
        self._finish = finish

    @property
    def name(self) -> str:
        """The name that all ranks use for it."""
        return self._operation.name

    def poll(self) -> bool:
        """Whether it is done."""
        return self._operation.poll()

    def wait(self, timeout_s: float | None = None) -> T:
        """Waits for the result; :class:`TimeoutError` if that takes longer than the timeout."""
        return self._finish(*self._operation.wait(timeout_s))


def _lend(array: Array, *, writable: bool = False) -> tuple[int, int, tuple[int, ...], Array]:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"expected an array, not {type(array).__name__}: numpy.asarray() makes one")
    code = _CODES.get(array.dtype)
    if code is None:
        raise ValueError(f"arrays of {array.dtype} are not supported: convert the array with .astype() first")
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous: pass numpy.ascontiguousarray(array)")
    if writable and not array.flags.writeable:
        raise ValueError("the array is read-only: pass a copy")
    return array.ctypes.data, code, array.shape, array


def _contiguous(array: Array) -> Array:
    # Unlike numpy.ascontiguousarray, leaves an array without dimensions as it is.
    return np.asarray(array, order="C")


def _apart(array: Array, out: Array | None) -> Array:
    """What is sent: the array itself, or a copy if only a part of it is overwritten with results."""
    if out is array:
        return array
    array = _contiguous(array)
    return array.copy() if out is not None and np.may_share_memory(array, out) else array


def _sent(
    kind: str,
    arrays: Sequence[Array],
    finish: Callable[[list[_phalanx.Array], list[int]], T],
    options: Options,
    *,
    results: Sequence[Array] | None = None,
    **more: Any,
) -> Pending[T]:
    is_in_place = kind in ("allreduce", "broadcast") and results is None
    outputs = None if results is None else [_lend(result, writable=True) for result in results]
    lent = [_lend(array, writable=is_in_place) for array in arrays]
    return Pending(options.submit(kind, lent, outputs, **more), finish)


def _made(arrays: list[_phalanx.Array], _rows: list[int]) -> Array:
    return np.asarray(arrays[0])


def _all_made(arrays: list[_phalanx.Array], _rows: list[int]) -> list[Array]:
    return [np.asarray(array) for array in arrays]


def allreduce_async(
    array: Array,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Array | None = None,
) -> Pending[Array]:
    """As :func:`allreduce`, without waiting."""
    array = _apart(array, out)
    result = np.empty_like(array) if out is None else out
    outputs = None if result is array else [result]
    options = Options(name, process_set, False, op, prescale_factor, postscale_factor)
    return _sent("allreduce", [array], lambda _arrays, _rows: result, options, results=outputs)


def allreduce(
    array: Array,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Array | None = None,
) -> Array:
    """Reduces the arrays of all ranks to their average, sum, minimum, maximum or product. ``out=array``: in place.

    >>> import numpy as np
    >>> import phalanx.numpy as pn
    >>> pn.init()
    >>> pn.allreduce(np.arange(3.0), op=pn.Average, postscale_factor=2.0)
    array([0., 2., 4.])
    """
    return allreduce_async(array, name, op, prescale_factor, postscale_factor, process_set, out).wait()


def grouped_allreduce_async(
    arrays: Sequence[Array],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Pending[list[Array]]:
    """As :func:`grouped_allreduce`, without waiting."""
    inputs = [_contiguous(array) for array in arrays]
    results = [np.empty_like(array) for array in inputs]
    options = Options(name, process_set, True, op, prescale_factor, postscale_factor)

    def finish(_arrays: list[_phalanx.Array], _rows: list[int]) -> list[Array]:
        return results

    return _sent("allreduce", inputs, finish, options, results=results)


def grouped_allreduce(
    arrays: Sequence[Array],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduces several arrays as one operation: all of them, or none.

    >>> import numpy as np
    >>> import phalanx.numpy as pn
    >>> pn.init()
    >>> pn.grouped_allreduce([np.ones(1), np.zeros(2)])
    [array([1.]), array([0., 0.])]
    """
    return grouped_allreduce_async(arrays, name, op, prescale_factor, postscale_factor, process_set).wait()


def allgather_async(
    array: Array, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Pending[Array]:
    """As :func:`allgather`, without waiting."""
    return _sent("allgather", [_contiguous(array)], _made, Options(name, process_set))


def allgather(array: Array, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Concatenates the rows of all ranks in rank order; ranks may have different numbers of rows.

    >>> import numpy as np
    >>> import phalanx.numpy as pn
    >>> pn.init()
    >>> pn.allgather(np.array([[1, 2]]))
    array([[1, 2]])
    """
    return allgather_async(array, name, process_set).wait()


def grouped_allgather_async(
    arrays: Sequence[Array], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Pending[list[Array]]:
    """As :func:`grouped_allgather`, without waiting."""
    options = Options(name, process_set, grouped=True)
    return _sent("allgather", [_contiguous(array) for array in arrays], _all_made, options)


def grouped_allgather(
    arrays: Sequence[Array], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Gathers several arrays as one operation: all of them, or none.

    >>> import numpy as np
    >>> import phalanx.numpy as pn
    >>> pn.init()
    >>> pn.grouped_allgather([np.array([1]), np.array([2.5])])
    [array([1]), array([2.5])]
    """
    return grouped_allgather_async(arrays, name, process_set).wait()


def broadcast_async(
    array: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: Array | None = None,
) -> Pending[Array]:
    """As :func:`broadcast`, without waiting."""
    array = _apart(array, out)
    result = np.empty_like(array) if out is None else out
    outputs = None if result is array else [result]
    root = checked_root(root_rank, process_set)
    options = Options(name, process_set)
    return _sent("broadcast", [array], lambda _arrays, _rows: result, options, results=outputs, root=root)


def broadcast(
    array: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: Array | None = None,
) -> Array:
    """Returns the array of ``root_rank``, a rank of the world, on every rank.

    >>> import numpy as np
    >>> import phalanx.numpy as pn
    >>> pn.init()
    >>> pn.broadcast(np.array([7]), root_rank=0)
    array([7])
    """
    return broadcast_async(array, root_rank, name, process_set, out).wait()


def alltoall_async(
    array: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Pending[tuple[Array, list[int]]]:
    """As :func:`alltoall`, without waiting."""

    def finish(arrays: list[_phalanx.Array], rows: list[int]) -> tuple[Array, list[int]]:
        return np.asarray(arrays[0]), rows

    options = Options(name, process_set)
    return _sent("alltoall", [_contiguous(array)], finish, options, splits=checked_splits(splits))


def alltoall(
    array: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Array, list[int]]:
    """Sends ``splits[r]`` rows to each rank r; returns the received rows and how many came from each rank.

    >>> import numpy as np
    >>> import phalanx.numpy as pn
    >>> pn.init()
    >>> pn.alltoall(np.array([1, 2, 3]), splits=[2])
    (array([1, 2]), [2])
    """
    return alltoall_async(array, splits, name, process_set).wait()


def reducescatter_async(
    array: Array,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Pending[Array]:
    """As :func:`reducescatter`, without waiting."""
    options = Options(name, process_set, False, op, prescale_factor, postscale_factor)
    return _sent("reducescatter", [_contiguous(array)], _made, options)


def reducescatter(
    array: Array,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Reduces the rows and returns to each rank its share of them.

    >>> import numpy as np
    >>> import phalanx.numpy as pn
    >>> pn.init()
    >>> pn.reducescatter(np.array([1.0, 2.0]), op=pn.Sum)
    array([1., 2.])
    """
    return reducescatter_async(array, name, op, process_set, prescale_factor, postscale_factor).wait()


def grouped_reducescatter_async(
    arrays: Sequence[Array],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Pending[list[Array]]:
    """As :func:`grouped_reducescatter`, without waiting."""
    options = Options(name, process_set, True, op, prescale_factor, postscale_factor)
    return _sent("reducescatter", [_contiguous(array) for array in arrays], _all_made, options)


def grouped_reducescatter(
    arrays: Sequence[Array],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """Reduces and scatters several arrays as one operation: all of them, or none.

    >>> import numpy as np
    >>> import phalanx.numpy as pn
    >>> pn.init()
    >>> pn.grouped_reducescatter([np.array([1.0]), np.array([2.0, 3.0])], op=pn.Sum)
    [array([1.]), array([2., 3.])]
    """
    return grouped_reducescatter_async(arrays, name, op, process_set, prescale_factor, postscale_factor).wait()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the set has called it."""
    _phalanx.submit("barrier", [], process_set=set_id(process_set), awaited=True).wait()


__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Pending",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
