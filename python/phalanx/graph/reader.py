"""Readers: functions that return a new iterable with every call.

>>> numbers = lambda: iter(range(7))
>>> list(batch(numbers, 3)())
[[0, 1, 2], [3, 4, 5], [6]]
>>> sorted(shuffle(numbers, 4)()) == list(range(7))
True
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from phalanx.graph.errors import FeedError

Reader = Callable[[], Iterable[Any]]


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Callable[[], Iterator[list[Any]]]:
    """Groups samples into lists of ``batch_size``; the last list may be shorter, or is dropped."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise FeedError(f"batch_size={batch_size!r}; it must be a whole number from 1", got=repr(batch_size))

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

    def mixed() -> Iterator[Any]:
        dice = random.Random(seed) if seed is not None else random
        for samples in batch(reader, buf_size)():
            dice.shuffle(samples)
            yield from samples

    return mixed


__all__ = ["batch", "shuffle"]
