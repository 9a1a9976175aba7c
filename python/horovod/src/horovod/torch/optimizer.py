"""The optimizer, under Horovod's module name."""

from __future__ import annotations

from phalanx.torch.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
