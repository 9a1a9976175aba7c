"""Initial values of parameters: the ``initializer`` of a ``ParamAttr``. Names that end in ``Initializer`` are aliases.

>>> Normal(scale=0.1)
Normal(loc=0.0, scale=0.1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Initializer:
    """The base class."""

    def _form(self) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Initializer):
    """One value everywhere."""

    value: float = 0.0

    def _form(self) -> Any:
        return {"Constant": float(self.value)}


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniformly distributed between two numbers."""

    low: float = -1.0
    high: float = 1.0

    def _form(self) -> Any:
        return {"Uniform": {"low": float(self.low), "high": float(self.high)}}


@dataclass(frozen=True)
class Normal(Initializer):
    """Normally distributed with mean ``loc`` and standard deviation ``scale``."""

    loc: float = 0.0
    scale: float = 1.0

    def _form(self) -> Any:
        return {"Normal": {"mean": float(self.loc), "std": float(self.scale)}}


@dataclass(frozen=True)
class Xavier(Initializer):
    """Uniformly distributed within ``sqrt(6 / (fan in + fan out))``."""

    def _form(self) -> Any:
        return "Xavier"


@dataclass(frozen=True)
class MSRA(Initializer):
    """Normally distributed with standard deviation ``sqrt(2 / fan in)``."""

    def _form(self) -> Any:
        return "Msra"


@dataclass(frozen=True)
class Given(Initializer):
    """Not set by the program: set the value in the scope before the first run."""

    def _form(self) -> Any:
        return "Given"


ConstantInitializer = Constant
UniformInitializer = Uniform
NormalInitializer = Normal
XavierInitializer = Xavier
MSRAInitializer = MSRA

__all__ = [
    "Constant",
    "ConstantInitializer",
    "Given",
    "Initializer",
    "MSRA",
    "MSRAInitializer",
    "Normal",
    "NormalInitializer",
    "Uniform",
    "UniformInitializer",
    "Xavier",
    "XavierInitializer",
]
