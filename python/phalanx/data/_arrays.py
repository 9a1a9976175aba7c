"""Files of arrays: MNIST's IDX format, and numpy's."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from collections.abc import Iterator
from os import PathLike
from typing import Any

from phalanx.data.dataset import Dataset
from phalanx.data.errors import DataError

#: The element types of IDX files, which are big-endian.
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def from_idx(images: str | PathLike[str], labels: str | PathLike[str] | None = None) -> Dataset[Any]:
    """The arrays of an IDX file, as MNIST has them; with ``labels`` as pairs of an array and its label.

    Files whose names end with ``.gz`` are unpacked. The files are read and checked now.
    """
    values = read_idx(os.fspath(images))
    if labels is None:
        return Dataset(lambda: (value.copy() for value in values))
    numbers = read_idx(os.fspath(labels))
    if numbers.ndim != 1:
        raise DataError(f"{os.fspath(labels)} has {numbers.ndim} dimensions, labels have one")
    if len(values) != len(numbers):
        raise DataError(
            f"{os.fspath(images)} has {len(values)} elements, but {os.fspath(labels)} has {len(numbers)} labels"
        )
    # Copies, so that what is done to an element is not seen in the next epoch.
    return Dataset(lambda: ((value.copy(), number) for value, number in zip(values, numbers, strict=True)))


def from_npy(path: str | PathLike[str]) -> Dataset[Any]:
    """The rows of an array that ``numpy.save`` wrote. The file is mapped, and rows are read when they are asked for."""
    import numpy as np

    name = os.fspath(path)
    try:
        values = np.load(name, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as why:
        raise DataError(f"{name} is not an array that numpy.save wrote: {why}") from why
    if not isinstance(values, np.ndarray):
        raise DataError(f"{name} holds several arrays: give the file of one, from numpy.save")
    if values.ndim == 0:
        raise DataError(f"{name} holds one number, not rows")

    def rows() -> Iterator[Any]:
        # Copies: a row must not keep the file open, nor be read-only.
        return (np.array(row)[()] for row in values)

    return Dataset(rows)


def read_idx(name: str) -> Any:
    """The array of an IDX file: two zero bytes, the type, the number of dimensions, the dimensions, the elements."""
    import numpy as np

    data = _bytes(name)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES or data[3] == 0:
        raise DataError(f"{name} is not an IDX file: it begins with {data[:4].hex(' ') or 'nothing'}")
    n_dims = data[3]
    begin = 4 + 4 * n_dims
    if len(data) < begin:
        raise DataError(f"{name} is damaged: it ends within its {n_dims} dimensions")
    dims = struct.unpack(f">{n_dims}I", data[4:begin])
    kind = np.dtype(_TYPES[data[2]])
    wanted = begin + math.prod(dims) * kind.itemsize
    if len(data) != wanted:
        raise DataError(f"{name} is damaged: dimensions {list(dims)} need {wanted} bytes, it has {len(data)}")
    return np.frombuffer(data, kind, offset=begin).reshape(dims).astype(kind.newbyteorder("="))


def _bytes(name: str) -> bytes:
    try:
        with gzip.open(name) if name.endswith(".gz") else open(name, "rb") as file:
            return file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as why:
        raise DataError(f"{name} is damaged: {why}") from why


__all__ = ["from_idx", "from_npy"]
