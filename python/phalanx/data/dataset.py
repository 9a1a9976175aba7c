"""Data sets: elements one after the other, from files to batches.

A data set is a recipe and holds no position; iterating begins anew. Methods return new data sets.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Generic, TypeVar

from phalanx._channel import Prefetch
from phalanx.data import _steps
from phalanx.data.errors import DataError, OutOfRangeError

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Pass:
    """One pass through the elements: its number, and what shuffling without a seed begins with."""

    epoch: int
    salt: int


Make = Callable[[Pass], Iterator[T]]


class Dataset(Generic[T]):
    """Elements from a list, or from a function that returns a new iterable with every call.

    Elements may be anything. ``map`` calls its function with one element, also if that is a tuple.

    >>> words = Dataset(["to", "be", "or", "not"])
    >>> list(words.map(str.upper).batch(3))
    [['TO', 'BE', 'OR'], ['NOT']]
    """

    def __init__(self, source: Iterable[T] | Callable[[], Iterable[T]]) -> None:
        self._make: Make[T] = partial(_made, _begin(source))
        self._n_shuffles = 0
        self._is_unseeded = False
        #: Number and index of each shard() that made it.
        self._shards: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def from_list(elements: Iterable[U]) -> Dataset[U]:
        """As :func:`phalanx.data.from_list`."""
        return from_list(elements)

    @staticmethod
    def list_files(pattern: str | PathLike[str] | Iterable[str | PathLike[str]]) -> Dataset[str]:
        """As :func:`phalanx.data.list_files`."""
        from phalanx.data._files import list_files

        return list_files(pattern)

    def map(self, fn: Callable[[T], U], num_threads: int | None = None) -> Dataset[U]:
        """Calls a function with each element; the results keep the order of the elements.

        With ``num_threads``, threads call it, which helps where it waits or releases the GIL. An error is a
        :class:`DataError` that names the element, counted from 0.
        """
        if not callable(fn):
            raise TypeError(f"map needs a function, not {fn!r}")
        if num_threads is None:
            return self._then(lambda at: _steps.mapped(self._make(at), fn))
        n_threads = _whole("num_threads", num_threads, 1)
        return self._then(lambda at: _steps.mapped_by_threads(self._make(at), fn, n_threads))

    def shard(self, num: int, index: int) -> Dataset[T]:
        """Every ``num``-th element, beginning with ``index``: for each of ``num`` ranks another part.

        All ranks must divide the same order. Shuffling before it without a seed is refused.

        >>> list(from_list(range(7)).shard(3, 0))
        [0, 3, 6]
        """
        num, index = _whole("num", num, 1), _whole("index", index, 0)
        if index >= num:
            raise ValueError(f"index must be below num={num}, not {index}")
        if self._is_unseeded:
            raise ValueError(
                "shuffle() before shard() gives every rank another order: write shard(..).shuffle(buffer_size), "
                "or shuffle(buffer_size, seed=..).shard(..) with the same seed on all ranks"
            )
        made = self._then(lambda at: _steps.sharded(self._make(at), num, index))
        made._shards = (*self._shards, (num, index))
        return made

    def shuffle(self, buffer_size: int, seed: int | None = None) -> Dataset[T]:
        """Chooses each element at random among the next ``buffer_size`` ones.

        The order is another one in each epoch of :meth:`repeat` and :meth:`iterator`. With a seed it depends on seed and
        epoch only; without, on a random number that is drawn for each iterator and that its state contains.
        """
        buffer_size = _whole("buffer_size", buffer_size, 1)
        number = self._n_shuffles
        if seed is not None:
            seed = _whole("seed", seed, None)

        def make(at: Pass) -> Iterator[T]:
            first = f"{at.salt}/{number}" if seed is None else f"{seed}"
            return _steps.shuffled(self._make(at), buffer_size, f"{first}/{at.epoch}")

        made = self._then(make)
        made._n_shuffles += 1
        made._is_unseeded |= seed is None
        return made

    def batch(self, size: int, drop_remainder: bool = False) -> Dataset[Any]:
        """Puts ``size`` elements together. The last batch may be smaller, or is dropped.

        Arrays and numbers of numpy are stacked to one array, tuples and dicts by their parts; other elements become a list.
        """
        size, drop = _whole("size", size, 1), bool(drop_remainder)
        return self._then(lambda at: _steps.batched(self._make(at), size, drop))

    def repeat(self, count: int | None = None) -> Dataset[T]:
        """All elements ``count`` times, as one epoch after the other; without a count (or with -1) for ever."""
        n = None if count is None or count == -1 else _whole("count", count, 0)

        def make(at: Pass) -> Iterator[T]:
            first = at.epoch * (1 if n is None else n)
            return _steps.repeated(lambda epoch: self._make(Pass(epoch, at.salt)), first, n)

        return self._then(make)

    def prefetch(self, n: int) -> Dataset[T]:
        """Reads up to ``n`` elements ahead, in one thread.

        The thread ends with the data, or when the iterator is closed or collected.
        """
        n = _whole("n", n, 1)
        return self._then(lambda at: Prefetch(lambda: self._make(at), n))

    def iterator(self, epoch: int = 0) -> DatasetIterator[T]:
        """The elements of an epoch, from the beginning: in epochs of other numbers :meth:`shuffle` has another order."""
        return DatasetIterator(self._make, _whole("epoch", epoch, 0))

    def make_one_shot_iterator(self) -> DatasetIterator[T]:
        """TensorFlow's name for ``iterator()``."""
        return self.iterator()

    def __iter__(self) -> DatasetIterator[T]:
        return self.iterator()

    def _then(self, make: Make[U]) -> Dataset[U]:
        made: Dataset[U] = Dataset.__new__(Dataset)
        made._make = make
        made._n_shuffles = self._n_shuffles
        made._is_unseeded = self._is_unseeded
        made._shards = self._shards
        return made


class DatasetIterator(Iterator[T]):
    """The position in a data set. Reading begins with the first element that is asked for.

    The state is plain numbers: the epoch, how many elements were taken, and what shuffling without a seed began with. Loading
    it reads that many elements again and drops them. It fits the same data set, with the same shard; :class:`Sampler` has
    positions that another number of ranks can continue.

    >>> elements = iter(from_list("abcd").shuffle(4))
    >>> first, state = next(elements), elements.state_dict()
    >>> again = from_list("abcd").shuffle(4).iterator()
    >>> again.load_state_dict(state)
    >>> list(again) == list(elements)
    True
    """

    def __init__(self, make: Make[T], epoch: int) -> None:
        self._make = make
        self._pass = Pass(epoch, random.SystemRandom().getrandbits(63))
        self._n_taken = 0
        self._elements: Iterator[T] | None = None
        self._is_closed = False
        self._has_failed = False

    def __next__(self) -> T:
        if self._has_failed:
            raise DataError("the iterator has already failed; start another one")
        if self._is_closed:
            raise StopIteration
        try:
            if self._elements is None:
                self._elements = self._make(self._pass)
            element = next(self._elements)
        except StopIteration:
            self.close()
            raise
        except BaseException:
            # What follows must not pass for the end of the data.
            self._has_failed = True
            self.close()
            raise
        self._n_taken += 1
        return element

    def get_next(self) -> T:
        """The next element, or an :class:`OutOfRangeError` at the end."""
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError(f"all {self._n_taken} elements were taken") from None

    def state_dict(self) -> dict[str, int]:
        """The position, as plain numbers."""
        return {"epoch": self._pass.epoch, "elements": self._n_taken, "salt": self._pass.salt}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes to a saved position; only before the first element is taken."""
        if self._elements is not None or self._is_closed:
            raise ValueError("a position can be loaded only before the first element is taken: start another iterator")
        if state.keys() != {"epoch", "elements", "salt"}:
            raise ValueError(f"the state of an iterator has epoch, elements and salt, not {', '.join(map(str, state))}")
        epoch, n, salt = (_whole(key, state[key], 0) for key in ("epoch", "elements", "salt"))
        self._pass = Pass(epoch, salt)
        while self._n_taken < n:
            try:
                next(self)
            except StopIteration:
                raise DataError(f"the position is behind element {n}, but there are only {self._n_taken}") from None

    def close(self) -> None:
        """Ends the iteration and the threads behind it; elements that were read ahead are lost."""
        self._is_closed = True
        elements, self._elements = self._elements, None
        close = getattr(elements, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> DatasetIterator[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def from_list(elements: Iterable[T]) -> Dataset[T]:
    """A data set of the elements that a list, an array or any other iterable has now.

    >>> list(from_list("abc"))
    ['a', 'b', 'c']
    """
    return Dataset(list(elements))


def _begin(source: Any) -> Callable[[], Iterable[Any]]:
    if callable(source):
        begin: Callable[[], Iterable[Any]] = source
        return begin
    if not hasattr(source, "__iter__"):
        raise TypeError(f"a data set needs a list or a function that returns an iterable, not {source!r}")
    if iter(source) is source:
        raise ValueError(
            f"{type(source).__name__} can be read only once: give a list, or a function that returns a new iterator"
        )
    return lambda: source


def _made(begin: Callable[[], Iterable[T]], at: Pass) -> Iterator[T]:
    del at  # What is given has the same elements in every epoch.
    return iter(begin())


def _whole(name: str, value: Any, least: int | None) -> int:
    is_whole = not isinstance(value, bool) and hasattr(value, "__index__")
    if not is_whole or (least is not None and operator.index(value) < least):
        least_text = "" if least is None else f" from {least}"
        raise ValueError(f"{name} must be a whole number{least_text}, not {value!r}")
    return operator.index(value)


__all__ = ["Dataset", "DatasetIterator", "from_list"]
