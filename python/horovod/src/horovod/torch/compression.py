"""Compression, under Horovod's module name."""

from __future__ import annotations

from phalanx.torch.compression import Compression

__all__ = ["Compression"]
