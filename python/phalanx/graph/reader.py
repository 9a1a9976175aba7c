"""Readers: functions that return a new iterable with every call.

>>> numbers = lambda: iter(range(7))
>>> list(batch(numbers, 3)())
[[0, 1, 2], [3, 4, 5], [6]]
>>> sorted(shuffle(numbers, 4)()) == list(range(7))
True
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

from phalanx._channel import Prefetch
from phalanx.graph.errors import FeedError

Reader = Callable[[], Iterable[Any]]


def _function(reader: Any) -> Reader:
    if not callable(reader):
        raise TypeError(
            f"a reader is a function that returns an iterable, so that each epoch begins anew; got a "
            f"{type(reader).__name__}: write lambda: …"
        )
    made: Reader = reader
    return made


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Callable[[], Iterator[list[Any]]]:
    """Groups samples into lists of ``batch_size``; the last list may be shorter, or is dropped."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise FeedError(f"batch_size={batch_size!r}; it must be a whole number from 1", got=repr(batch_size))

    _function(reader)

    def batches() -> Iterator[list[Any]]:
        samples: list[Any] = []
        for sample in reader():
            samples.append(sample)
            if len(samples) == batch_size:
                yield samples
                samples = []
        if samples and not drop_last:
            yield samples

    return batches


def shuffle(reader: Reader, buf_size: int, *, seed: int | None = None) -> Callable[[], Iterator[Any]]:
    """Shuffles samples within windows of ``buf_size``; with a seed all epochs have the same order."""
    if isinstance(buf_size, bool) or not isinstance(buf_size, int) or buf_size < 1:
        raise FeedError(f"buf_size={buf_size!r}; it must be a whole number from 1", got=repr(buf_size))

    _function(reader)

    def mixed() -> Iterator[Any]:
        dice = random.Random(seed) if seed is not None else random
        for samples in batch(reader, buf_size)():
            dice.shuffle(samples)
            yield from samples

    return mixed


def _is_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FeedError(f"{name}={value!r}; it must be a whole number from 1", got=repr(value))


def buffered(reader: Reader, size: int) -> Callable[[], Iterator[Any]]:
    """Reads up to ``size`` samples ahead in a thread. Errors of the reader are raised where they would be without it."""
    _is_count("size", size)
    _function(reader)
    return lambda: Prefetch(lambda: iter(reader()), size, None, (StopIteration,))


def map_readers(func: Callable[..., Any], *readers: Reader) -> Callable[[], Iterator[Any]]:
    """The function of a sample of each reader, one after the other, until one of them ends.

    >>> list(map_readers(lambda a, b: a + b, lambda: iter([1, 2]), lambda: iter([10, 20]))())
    [11, 22]
    """
    given = [_function(reader) for reader in readers]
    return lambda: (func(*samples) for samples in zip(*(reader() for reader in given), strict=False))


def chain(*readers: Reader) -> Callable[[], Iterator[Any]]:
    """All samples of the first reader, then those of the next.

    >>> list(chain(lambda: iter([1]), lambda: iter([2, 3]))())
    [1, 2, 3]
    """
    given = [_function(reader) for reader in readers]
    return lambda: itertools.chain.from_iterable(reader() for reader in given)


class ComposeNotAligned(ValueError):
    """Readers that are composed have different numbers of samples."""


def compose(*readers: Reader, check_alignment: bool = True) -> Callable[[], Iterator[Any]]:
    """Tuples of a sample of each reader; samples that are tuples are joined.

    >>> list(compose(lambda: iter([(1, 2)]), lambda: iter([3]))())
    [(1, 2, 3)]
    """

    given = [_function(reader) for reader in readers]

    def joined() -> Iterator[Any]:
        end = object()
        for samples in itertools.zip_longest(*(reader() for reader in given), fillvalue=end):
            if any(sample is end for sample in samples):
                if check_alignment:
                    raise ComposeNotAligned(
                        "a reader has fewer samples than another; pass check_alignment=False to end there"
                    )
                return
            yield tuple(itertools.chain.from_iterable(s if isinstance(s, tuple) else (s,) for s in samples))

    return joined


def firstn(reader: Reader, n: int) -> Callable[[], Iterator[Any]]:
    """The first ``n`` samples.

    >>> list(firstn(lambda: iter(range(9)), 2)())
    [0, 1]
    """
    _function(reader)
    return lambda: itertools.islice(iter(reader()), n)


def cache(reader: Reader) -> Callable[[], Iterator[Any]]:
    """Keeps all samples in memory after they were read the first time."""
    kept: list[Any] | None = None
    _function(reader)

    def samples() -> Iterator[Any]:
        nonlocal kept
        if kept is None:
            kept = list(reader())
        return iter(kept)

    return samples


def xmap_readers(
    mapper: Callable[[Any], Any], reader: Reader, process_num: int, buffer_size: int, order: bool = False
) -> Callable[[], Iterator[Any]]:
    """The function of each sample, computed by ``process_num`` threads, ``buffer_size`` samples ahead.

    With ``order`` samples come in the order of the reader, without it as soon as they are ready. An error of the reader
    is raised after all samples before it.
    """
    _is_count("process_num", process_num)
    _is_count("buffer_size", buffer_size)
    _function(reader)

    def mapped() -> Iterator[Any]:
        with ThreadPoolExecutor(process_num) as threads:
            given = iter(reader())
            running: list[Future[Any]] = []
            ended: list[Exception | None] = []

            def more() -> None:
                """Takes the next sample; if the reader fails, those before it come first."""
                try:
                    running.append(threads.submit(mapper, next(given)))
                except StopIteration:
                    ended.append(None)
                except Exception as why:
                    ended.append(why)

            try:
                while len(running) < buffer_size and not ended:
                    more()
                while running:
                    done = running[0] if order else next(as_completed(running))
                    running.remove(done)
                    if not ended:
                        more()
                    yield done.result()
            finally:
                for each in running:
                    each.cancel()
            if ended[0] is not None:
                raise ended[0]

    return mapped


__all__ = [
    "ComposeNotAligned",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "shuffle",
    "xmap_readers",
]
