"""The names of ``fluid.core`` that Paddle's scripts use."""

from __future__ import annotations

from phalanx.graph.errors import EOFException
from phalanx.graph.lod import LoDTensor
from phalanx.graph.places import CPUPlace
from phalanx.graph.scope import Scope

__all__ = ["CPUPlace", "EOFException", "LoDTensor", "Scope"]
