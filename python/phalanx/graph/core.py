"""What Paddle's scripts look for in ``fluid.core``."""

from __future__ import annotations

from phalanx.graph.errors import EOFException
from phalanx.graph.lod import LoDTensor
from phalanx.graph.places import CPUPlace
from phalanx.graph.scope import Scope

__all__ = ["CPUPlace", "EOFException", "LoDTensor", "Scope"]
