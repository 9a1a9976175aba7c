"""Which Horovod's interface this is."""

from __future__ import annotations

__version__ = "0.28.1"
