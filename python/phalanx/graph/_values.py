"""Element types and arrays, as they cross to the compiled module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from phalanx.graph.errors import FeedError, FetchError, ProgramError

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Given: TypeAlias = "tuple[int, list[int], bytearray]"
Lent: TypeAlias = "tuple[int, int, tuple[int, ...], Array]"

# By code.
_NAMES = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"]
_KINDS = ["U8", "I8", "U16", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "Bool"]


def code(dtype: Any) -> int:
    """The code of an element type, given as numpy or Paddle names it."""
    name = dtype
    if not isinstance(dtype, str) or dtype not in _NAMES:
        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = None
    if name not in _NAMES:
        raise TypeError(f"programs have no variables of {dtype!r}; choose one of {', '.join(_NAMES)}")
    return _NAMES.index(name)


def name(code: int) -> str:
    """The name of an element type."""
    return _NAMES[code]


def kind(dtype: Any) -> str:
    """An element type as it is written in programs."""
    return _KINDS[code(dtype)]


def largest(dtype: str) -> float:
    """The largest number of a floating-point type."""
    return float(np.finfo(dtype).max)


def constant(value: Any, dtype: Any, what: str) -> float:
    """A number that a program writes down as a fraction, refused if a type of whole numbers would get another one.

    >>> constant(3, "int64", "fill_constant"), constant(0.5, "float32", "fill_constant")
    (3.0, 0.5)
    """
    made = float(value)
    if np.dtype(name(code(dtype))).kind in "iu":
        limits = np.iinfo(name(code(dtype)))
        if not made.is_integer() or int(made) != value or not limits.min <= int(made) <= limits.max:
            raise ProgramError(
                f"{what}: {value!r} is no whole number that {name(code(dtype))} holds and a program can write down, "
                "which are all up to 2 ** 53; feed it, or add up smaller ones",
                got=repr(value),
            )
    elif not np.isfinite(made):
        raise ProgramError(f"{what}: {value!r} cannot be written in a program; use a finite number", got=repr(value))
    return made


def array(given: Any, what: str, var: str | None = None) -> Array:
    """What was given as an array; ``what`` says what it is."""
    try:
        return np.asarray(given)
    except ValueError:
        got = type(given).__name__
        raise FeedError(f"{what} is a {got} whose parts differ in shape, and no array", var=var, got=got) from None


def changed(array: Array, dtype: Any) -> str | None:
    """The first number that would be another one in this type, if it is a type of whole numbers.

    >>> changed(np.array([1.0, 2.5]), "int64"), changed(np.array([300]), "uint8"), changed(np.array([7.0]), "int8")
    ('2.5', '300', None)
    """
    if np.dtype(dtype).kind not in "iu":
        return None
    if array.dtype.kind == "O":
        # Numbers that are too large for any type of numpy's, or no numbers.
        return next((repr(each) for each in array.ravel() if not _holds(dtype, each)), None)
    with np.errstate(invalid="ignore"):
        odd = array[array.astype(dtype) != array]
    return repr(odd[0].item()) if len(odd) else None


def _holds(dtype: Any, one: Any) -> bool:
    try:
        return bool(np.asarray(one, dtype) == one)
    except (OverflowError, TypeError, ValueError):
        return False


def misfit(array: Array, dtype: Any) -> str | None:
    """Why an array does not fit this type: the number that does not fit, or nothing if the type itself is the reason."""
    kind = np.dtype(dtype).kind
    if array.dtype.kind not in "iub" if kind in "iu" else not np.can_cast(array.dtype, dtype, "same_kind"):
        return ""
    bad = changed(array, dtype)
    return None if bad is None else f" with {bad}, which {np.dtype(dtype)} cannot hold"


def as_wanted(array: Array, dtype: str, shape: Sequence[int]) -> Array:
    """An array as a variable wants it, if nothing is lost: of a wider type; one number in the shape of one number.

    >>> as_wanted(np.arange(2, dtype="int32"), "int64", [2]).dtype.name
    'int64'
    >>> as_wanted(np.array([0.5]), "float32", [])
    array(0.5, dtype=float32)
    """
    wanted = np.dtype(dtype)
    # A number of Python's is a float64, and it is taken, too.
    is_one = array.size == 1 and all(d == 1 for d in shape)
    is_wider = wanted.kind == array.dtype.kind or wanted.kind + array.dtype.kind == "iu"
    if is_wider and np.can_cast(array.dtype, wanted, "same_kind" if is_one and wanted.kind == "f" else "safe"):
        array = array.astype(wanted, copy=False)
    return array.reshape(tuple(shape)) if is_one else array


def lend(array: Array) -> Lent:
    """Address, code, shape and owner of an array, which is made contiguous if it is not."""
    array = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    if array.dtype.kind == "b":
        # Other bytes than 0 and 1 are no booleans for compiled code.
        array = array.view("uint8") != 0
    return array.ctypes.data, code(array.dtype), array.shape, array


def receive(given: Given) -> Array:
    """An array of its own memory. One number is an array of one, as in Paddle."""
    dtype, shape, elements = given
    if _NAMES[dtype] == "bfloat16":
        raise FetchError('numpy has no bfloat16: fetch layers.cast(x, "float32") of it', got="bfloat16")
    array: Array = np.ndarray(tuple(shape) or (1,), dtype=_NAMES[dtype], buffer=elements)
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
        return list(self._given[1]) or [1]

    def lod(self) -> list[Any]:
        """Nothing: sequences come padded; :func:`unpad` takes them apart."""
        return []

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.numpy(), dtype=dtype)
