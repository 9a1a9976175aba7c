"""What each method of a data set does to an iterator of elements. No function here knows files, ranks or data sets.

>>> list(sharded(iter("abcde"), 2, 1))
['b', 'd']
>>> list(batched(iter("abcde"), 2, drop_remainder=True))
[['a', 'b'], ['c', 'd']]
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from phalanx.data.errors import DataError

T = TypeVar("T")
U = TypeVar("U")


def mapped(elements: Iterator[T], fn: Callable[[T], U]) -> Iterator[U]:
    """Calls the function with each element, in this thread."""
    with closed_after(elements):
        for i, element in enumerate(elements):
            yield _result(partial(fn, element), fn, i)


def mapped_by_threads(elements: Iterator[T], fn: Callable[[T], U], n_threads: int) -> Iterator[U]:
    """Calls the function in threads and keeps the order. Elements are taken in this thread.

    When the iterator is closed, each thread ends after the call that it is in.
    """
    pool = ThreadPoolExecutor(n_threads, thread_name_prefix="phalanx-map")
    calls: deque[Future[U]] = deque()
    failure: Exception | None = None
    is_over = False
    n_done = 0
    try:
        with closed_after(elements):
            while True:
                while not is_over and len(calls) < 2 * n_threads:
                    try:
                        calls.append(pool.submit(fn, next(elements)))
                    except StopIteration:
                        is_over = True
                    except Exception as why:
                        # The elements before it come first.
                        failure, is_over = why, True
                if not calls:
                    break
                yield _result(calls.popleft().result, fn, n_done)
                n_done += 1
        if failure is not None:
            raise failure
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _result(call: Callable[[], U], fn: Callable[..., U], i: int) -> U:
    try:
        return call()
    except Exception as why:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise DataError(f"map({name}) failed at element {i}: {type(why).__name__}: {why}") from why


def sharded(elements: Iterator[T], num: int, index: int) -> Iterator[T]:
    """Every ``num``-th element, beginning with ``index``."""
    with closed_after(elements):
        yield from islice(elements, index, None, num)


def shuffled(elements: Iterator[T], buffer_size: int, seed: str) -> Iterator[T]:
    """Each element is chosen among the next ``buffer_size`` ones that are left."""
    # The only method whose numbers are promised to be the same in every version of Python.
    dice = random.Random(seed).random
    with closed_after(elements):
        buffer = list(islice(elements, buffer_size))
        for element in elements:
            at = int(dice() * len(buffer))
            yield buffer[at]
            buffer[at] = element
        while buffer:
            at = int(dice() * len(buffer))
            buffer[at], buffer[-1] = buffer[-1], buffer[at]
            yield buffer.pop()


def batched(elements: Iterator[Any], size: int, drop_remainder: bool) -> Iterator[Any]:
    """``size`` elements as one."""
    with closed_after(elements):
        i = 0
        while group := list(islice(elements, size)):
            if len(group) == size or not drop_remainder:
                yield stacked(group, f"batch {i}")
            i += 1


def stacked(group: list[Any], where: str) -> Any:
    """Arrays and numbers of numpy become one array, tuples and dicts are stacked by their parts, anything else is a list."""
    first = group[0]
    if isinstance(first, tuple):
        if any(not isinstance(one, tuple) or len(one) != len(first) for one in group):
            raise DataError(f"{where}: the first element is a tuple of {len(first)} parts, others are not")
        return tuple(stacked(list(part), where) for part in zip(*group, strict=True))
    if isinstance(first, dict):
        if any(not isinstance(one, dict) or one.keys() != first.keys() for one in group):
            raise DataError(f"{where}: the first element is a dict with the keys {list(first)}, others are not")
        return {key: stacked([one[key] for one in group], where) for key in first}
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(first, (numpy.ndarray, numpy.generic)):
        return group
    forms = [f"{one.dtype}{list(one.shape)}" if hasattr(one, "dtype") else type(one).__name__ for one in group]
    if odd := next((form for form in forms if form != forms[0]), None):
        raise DataError(f"{where}: the first element is {forms[0]}, element {forms.index(odd)} of the batch is {odd}")
    return numpy.stack(group)


def repeated(make: Callable[[int], Iterator[T]], first: int, count: int | None) -> Iterator[T]:
    """The elements of one epoch after the other."""
    epoch = first
    while count is None or epoch < first + count:
        is_empty = True
        with closed_after(make(epoch)) as elements:
            for element in elements:
                is_empty = False
                yield element
        if is_empty and count is None:
            raise DataError("repeat() without a count would never end: there are no elements to repeat")
        epoch += 1


@contextmanager
def closed_after(elements: Iterator[T]) -> Iterator[Iterator[T]]:
    """Closes an iterator, if it can be closed, when its user is done: threads behind it end then."""
    try:
        yield elements
    finally:
        close = getattr(elements, "close", None)
        if close is not None:
            close()
