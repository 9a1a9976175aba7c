"""How parameters begin: the ``initializer`` of a ``ParamAttr``. Those with ``Initializer`` at the end are the same.

>>> Normal(scale=0.1)
Normal(loc=0.0, scale=0.1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Initializer:
    """The base of them all."""

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
    """Evenly between two numbers."""

    low: float = -1.0
    high: float = 1.0

    def _form(self) -> Any:
        return {"Uniform": {"low": float(self.low), "high": float(self.high)}}


@dataclass(frozen=True)
class Normal(Initializer):
    """Around ``loc`` with deviation ``scale``."""

    loc: float = 0.0
    scale: float = 1.0

    def _form(self) -> Any:
        return {"Normal": {"mean": float(self.loc), "std": float(self.scale)}}


@dataclass(frozen=True)
class Xavier(Initializer):
    """Evenly within ``sqrt(6 / (fan in + fan out))``."""

    def _form(self) -> Any:
        return "Xavier"


@dataclass(frozen=True)
class MSRA(Initializer):
    """Normal with deviation ``sqrt(2 / fan in)``."""

    def _form(self) -> Any:
        return "Msra"


@dataclass(frozen=True)
class Given(Initializer):
    """Not by the program: the value must be set in the scope before the first run."""

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
