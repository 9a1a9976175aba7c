"""Initial values of parameters: the ``initializer`` of a ``ParamAttr``. Names that end in ``Initializer`` are aliases.

>>> Normal(scale=0.1)
Normal(loc=0.0, scale=0.1, seed=0)

With a ``seed``, the values are the same in every process and scope; 0 means the seed of the startup program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.graph._refused import number
from phalanx.graph.errors import ProgramError


class Initializer:
    """The base class."""

    def _form(self) -> Any:
        raise NotImplementedError

    def _form_of(self, shape: Sequence[int]) -> Any:
        """How it is written for a parameter of this shape."""
        return self._form()

    def _array(self, shape: Sequence[int], dtype: str) -> Any:
        """The values, if they are known before a program runs."""
        return None


class _Drawn(Initializer):
    """Random numbers, from the startup program or from a seed of their own."""

    seed: int

    def _form_of(self, shape: Sequence[int]) -> Any:
        return "Given" if self.seed else self._way(shape)

    def _form(self) -> Any:
        return self._way(())

    def _way(self, shape: Sequence[int]) -> Any:
        raise NotImplementedError

    def _array(self, shape: Sequence[int], dtype: str) -> Any:
        if not self.seed:
            return None
        return _drawn(self._way(shape), shape, np.random.default_rng(self.seed)).astype(dtype)


def _drawn(way: Any, shape: Sequence[int], random: np.random.Generator) -> Any:
    if way == "Xavier":
        way = _spread(True, 2.0 / max(sum(fans(shape)), 1))
    elif way == "Msra":
        way = _spread(False, 2.0 / max(fans(shape)[0], 1))
    ((which, form),) = way.items()
    if which == "Uniform":
        return random.uniform(form["low"], form["high"], shape)
    values = random.standard_normal(shape)
    while which == "TruncatedNormal" and (np.abs(values) > 2.0).any():
        far = np.abs(values) > 2.0
        values[far] = random.standard_normal(int(far.sum()))
    return form["mean"] + form["std"] * values


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """How many inputs and outputs an element of a layer with these weights has.

    >>> fans([3, 5]), fans([8, 3, 2, 2])
    ((3, 5), (12, 32))
    """
    if len(shape) < 2:
        n = shape[0] if shape else 1
        return n, n
    if len(shape) == 2:
        return shape[0], shape[1]
    places = math.prod(shape[2:])
    return shape[1] * places, shape[0] * places


@dataclass(frozen=True)
class Constant(Initializer):
    """One value everywhere."""

    value: float = 0.0
    force_cpu: bool = False

    def _form(self) -> Any:
        return {"Constant": float(self.value)}


@dataclass(frozen=True)
class Uniform(_Drawn):
    """Uniformly distributed between two numbers."""

    low: float = -1.0
    high: float = 1.0
    seed: int = 0
    diag_num: int = 0
    diag_step: int = 0
    diag_val: float = 1.0

    def __post_init__(self) -> None:
        if self.diag_num or self.diag_step:
            given = f"diag_num={self.diag_num}, diag_step={self.diag_step}"
            raise ProgramError(f"Uniform: {given} are not supported; use NumpyArrayInitializer for a diagonal")
        number("Uniform", "high", self.high, least=number("Uniform", "low", self.low))

    def _way(self, shape: Sequence[int]) -> Any:
        return {"Uniform": {"low": float(self.low), "high": float(self.high)}}


@dataclass(frozen=True)
class Normal(_Drawn):
    """Normally distributed with mean ``loc`` and standard deviation ``scale``."""

    loc: float = 0.0
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        number("Normal", "loc", self.loc)
        number("Normal", "scale", self.scale, least=0.0)

    def _way(self, shape: Sequence[int]) -> Any:
        return {"Normal": {"mean": float(self.loc), "std": float(self.scale)}}


@dataclass(frozen=True)
class TruncatedNormal(_Drawn):
    """Normally distributed, but drawn again beyond two standard deviations."""

    loc: float = 0.0
    scale: float = 1.0
    seed: int = 0

    def _way(self, shape: Sequence[int]) -> Any:
        return {"TruncatedNormal": {"mean": float(self.loc), "std": float(self.scale)}}


@dataclass(frozen=True)
class Xavier(_Drawn):
    """Uniform within ``sqrt(6 / (fan in + fan out))``, or normal with deviation ``sqrt(2 / (fan in + fan out))``."""

    uniform: bool = True
    fan_in: float | None = None
    fan_out: float | None = None
    seed: int = 0

    def _way(self, shape: Sequence[int]) -> Any:
        if self.uniform and self.fan_in is None and self.fan_out is None:
            return "Xavier"
        own = fans(shape)
        both = (own[0] if self.fan_in is None else self.fan_in) + (own[1] if self.fan_out is None else self.fan_out)
        return _spread(self.uniform, 2.0 / max(both, 1))


@dataclass(frozen=True)
class MSRA(_Drawn):
    """Uniform within ``sqrt(6 / fan in)``, or normal with deviation ``sqrt(2 / fan in)``."""

    uniform: bool = True
    fan_in: float | None = None
    seed: int = 0

    def _way(self, shape: Sequence[int]) -> Any:
        if not self.uniform and self.fan_in is None:
            return "Msra"
        return _spread(self.uniform, 2.0 / max(fans(shape)[0] if self.fan_in is None else self.fan_in, 1))


def _spread(uniform: bool, variance: float) -> Any:
    if uniform:
        limit = math.sqrt(3.0 * variance)
        return {"Uniform": {"low": -limit, "high": limit}}
    return {"Normal": {"mean": 0.0, "std": math.sqrt(variance)}}


class NumpyArrayInitializer(Initializer):
    """The numbers of an array."""

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value)

    def __repr__(self) -> str:
        return f"NumpyArrayInitializer({self.value.dtype}{list(self.value.shape)})"

    def _form(self) -> Any:
        return "Given"

    def _array(self, shape: Sequence[int], dtype: str) -> Any:
        if list(self.value.shape) != list(shape):
            raise ProgramError(
                f"NumpyArrayInitializer: the array is {list(self.value.shape)}, and the parameter {list(shape)}",
                wanted=str(list(shape)),
                got=str(list(self.value.shape)),
            )
        return self.value.astype(dtype)


@dataclass(frozen=True)
class Bilinear(Initializer):
    """Filters with which a transposed convolution makes images larger by interpolation."""

    def _form(self) -> Any:
        return "Given"

    def _array(self, shape: Sequence[int], dtype: str) -> Any:
        if len(shape) != 4 or shape[2] != shape[3]:
            raise ProgramError(f"Bilinear is for square filters [c, o, k, k], not {list(shape)}", got=str(list(shape)))
        k = shape[2]
        f = math.ceil(k / 2.0)
        center = (2 * f - 1 - f % 2) / (2.0 * f)
        line = 1.0 - np.abs(np.arange(k) / f - center)
        return np.broadcast_to(np.outer(line, line), tuple(shape)).astype(dtype)


@dataclass(frozen=True)
class Given(Initializer):
    """Not set by the program: set the value in the scope before the first run."""

    def _form(self) -> Any:
        return "Given"


ConstantInitializer = Constant
UniformInitializer = Uniform
NormalInitializer = Normal
TruncatedNormalInitializer = TruncatedNormal
XavierInitializer = Xavier
MSRAInitializer = MSRA
BilinearInitializer = Bilinear

__all__ = [
    "Bilinear",
    "BilinearInitializer",
    "Constant",
    "ConstantInitializer",
    "Given",
    "Initializer",
    "MSRA",
    "MSRAInitializer",
    "Normal",
    "NormalInitializer",
    "NumpyArrayInitializer",
    "TruncatedNormal",
    "TruncatedNormalInitializer",
    "Uniform",
    "UniformInitializer",
    "Xavier",
    "XavierInitializer",
]
