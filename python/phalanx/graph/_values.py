"""Element types and arrays, as they cross to the compiled module."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Given: TypeAlias = "tuple[int, list[int], bytearray]"
Lent: TypeAlias = "tuple[int, int, tuple[int, ...], Array]"

# By code.
_NAMES = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"]
_KINDS = ["U8", "I8", "U16", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "Bool"]


def code(dtype: Any) -> int:
    """The code of an element type, given as numpy or Paddle names it."""
    name = dtype if isinstance(dtype, str) and dtype in _NAMES else np.dtype(dtype).name
    if name not in _NAMES:
        raise TypeError(f"programs have no variables of {dtype!r}; there are {', '.join(_NAMES)}")
    return _NAMES.index(name)


def name(code: int) -> str:
    """The name of an element type."""
    return _NAMES[code]


def kind(dtype: Any) -> str:
    """An element type as it is written in programs."""
    return _KINDS[code(dtype)]


def lend(array: Array) -> Lent:
    """Address, code, shape and owner of an array, which is made contiguous if it is not."""
    array = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    return array.ctypes.data, code(array.dtype), array.shape, array


def receive(given: Given) -> Array:
    """An array of its own memory."""
    dtype, shape, elements = given
    array: Array = np.ndarray(tuple(shape), dtype=_NAMES[dtype], buffer=elements)
    return array


class Tensor:
    """A fetched value that is not an array yet."""

    def __init__(self, given: Given) -> None:
        self._given = given

    def numpy(self) -> Array:
        """The value as an array, without a copy."""
        return receive(self._given)

    def shape(self) -> list[int]:
        """Its dimensions."""
        return list(self._given[1])

    def lod(self) -> list[Any]:
        """Nothing: sequences come padded; :func:`unpad` takes them apart."""
        return []

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.numpy(), dtype=dtype)
