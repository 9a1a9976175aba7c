"""Sequences of different lengths; programs take them padded, together with their lengths.

>>> import numpy as np
>>> two = create_lod_tensor(np.arange(5), [[3, 2]])
>>> two.recursive_sequence_lengths(), two.lod()
([[3, 2]], [[0, 3, 5]])
>>> [part.tolist() for part in unpad(np.array([[7, 8, 0], [9, 0, 0]]), [2, 1])]
[[7, 8], [9]]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from phalanx.graph import _values
from phalanx.graph._values import Array
from phalanx.graph.errors import FeedError
from phalanx.graph.places import only_cpu

LEVELS = "sequences of sequences are not supported; use one level of lengths"


def lengths_of(name: str) -> str:
    """The name of the lengths of a variable with sequences."""
    return f"{name}@LENGTHS"


class LoDTensor:
    """Sequences one after the other, and the length of each."""

    def __init__(self, rows: Any = (), lengths: Sequence[int] = ()) -> None:
        self._rows: Array = np.asarray(rows)
        self._lengths = [int(n) for n in lengths]
        if self._lengths:
            self._check()

    def _check(self) -> None:
        n_rows = len(self._rows) if self._rows.ndim else 0
        if min(self._lengths, default=0) < 0 or sum(self._lengths) != n_rows:
            raise FeedError(f"sequences of the lengths {self._lengths} are not {n_rows} rows", got=str(self._lengths))

    def set(self, array: Any, place: Any = None) -> None:
        """Sets other rows. Without lengths they are fed as an array."""
        only_cpu(place)
        self._rows = np.asarray(array)

    def set_recursive_sequence_lengths(self, recursive_seq_lens: Sequence[Sequence[int]]) -> None:
        """Sets the length of each sequence."""
        self._lengths = _one_level(recursive_seq_lens)
        self._check()

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """The lengths, as the only level."""
        return [list(self._lengths)]

    def lod(self) -> list[list[int]]:
        """Where sequences begin, and where the last one ends."""
        return [[0, *accumulate(self._lengths)]]

    def shape(self) -> list[int]:
        """The dimensions of all rows together."""
        return list(self._rows.shape)

    def sequences(self) -> list[Array]:
        """Each of them."""
        self._check()
        starts = self.lod()[0]
        return [self._rows[a:b] for a, b in pairwise(starts)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self._rows, dtype=dtype)

    def __repr__(self) -> str:
        return f"LoDTensor({self._rows.dtype}{self.shape()}, lengths {self._lengths})"


def _one_level(recursive_seq_lens: Any) -> list[int]:
    levels = list(recursive_seq_lens)
    if levels and all(isinstance(n, (int, np.integer)) for n in levels):
        text = f"{levels} are lengths without a level around them; write [{levels}]"
        raise FeedError(text, wanted=str([levels]), got=str(levels))
    if len(levels) != 1:
        raise FeedError(f"{len(levels)} levels of lengths: {LEVELS}", got=str(levels))
    return [int(n) for n in levels[0]]


def create_lod_tensor(data: Any, recursive_seq_lens: Any, place: Any = None) -> LoDTensor:
    """From all rows and the lengths ``[[3, 2, …]]``, or from a list of sequences, whose lengths must be these."""
    only_cpu(place)
    lengths = _one_level(recursive_seq_lens)
    if isinstance(data, LoDTensor):
        data = np.asarray(data)
    if isinstance(data, (list, tuple)):
        parts = [_values.array(each, f"sequence {i}") for i, each in enumerate(data)]
        got = [len(each) if each.ndim else 0 for each in parts]
        if got != lengths:
            raise FeedError(f"the sequences have the lengths {got}, not {lengths}", wanted=str(lengths), got=str(got))
        data = np.concatenate(parts) if parts else np.zeros(0)
        # Paddle's way: a list of words is a column of them.
        data = data.reshape(-1, 1) if data.ndim == 1 else data
    return LoDTensor(data, lengths)


def create_random_int_lodtensor(
    recursive_seq_lens: Any, base_shape: Sequence[int], place: Any, low: int, high: int
) -> LoDTensor:
    """Random whole numbers from ``low`` to ``high``, both included, in sequences of these lengths."""
    only_cpu(place)
    lengths = _one_level(recursive_seq_lens)
    return LoDTensor(np.random.randint(low, high + 1, [sum(lengths), *base_shape], dtype="int64"), lengths)


def pad(
    name: str, sequences: Sequence[Any], time: int, row: tuple[int, ...], dtype: Any, site: str
) -> tuple[Array, Array]:
    """The sequences in one array ``[n, time, *row]``, padded with zeros, and their lengths."""
    padded = np.zeros([len(sequences), time, *row], dtype)
    lengths = np.zeros(len(sequences), "int64")
    wanted = f"sequences of {np.dtype(dtype)}{list(row)}, of {time} at most"
    for i, given in enumerate(sequences):
        own = np.atleast_1d(_values.array(given, f"`{name}`: sequence {i}", name))
        if len(own) > time:
            raise FeedError(
                f"`{name}`: sequence {i} has the length {len(own)}, but max_length is {time} (declared at {site}); "
                "shorten it, or declare a larger max_length",
                var=name,
                site=site,
                wanted=f"{time} at most",
                got=str(len(own)),
            )
        fits = own.size == len(own) * int(np.prod(row, dtype=int)) or len(own) == 0
        # An empty list has a type of its own, which says nothing.
        bad = _values.misfit(own, dtype) if own.size else None
        if not fits or bad is not None:
            got = f"{own.dtype}{list(own.shape)}{bad or ''}"
            raise FeedError(
                f"`{name}` wants {wanted} (declared at {site}); sequence {i} is {got}",
                var=name,
                site=site,
                wanted=wanted,
                got=got,
            )
        padded[i, : len(own)] = own.reshape(len(own), *row)
        lengths[i] = len(own)
    return padded, lengths


def unpad(padded: Any, lengths: Any) -> list[Array]:
    """Each sequence of a fetched array ``[n, time, …]`` without its padding."""
    rows, ends = np.asarray(padded), np.asarray(lengths).reshape(-1)
    if rows.ndim < 2 or len(rows) != len(ends) or (len(ends) and not 0 <= ends.min() <= ends.max() <= rows.shape[1]):
        raise FeedError(f"{list(rows.shape)} are not padded sequences of the lengths {ends.tolist()}")
    return [each[:end] for each, end in zip(rows, ends, strict=True)]


__all__ = ["LoDTensor", "create_lod_tensor", "create_random_int_lodtensor", "unpad"]
