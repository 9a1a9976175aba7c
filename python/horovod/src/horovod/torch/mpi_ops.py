"""The collectives, under Horovod's module name."""

from __future__ import annotations

from phalanx.torch import *  # noqa: F403
from phalanx.torch import __all__ as _names
from phalanx.torch import is_homogeneous

__all__ = [*_names, "is_homogeneous"]
