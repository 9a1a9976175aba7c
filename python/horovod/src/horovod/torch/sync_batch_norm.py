"""Batch normalisation over all ranks, under Horovod's module name."""

from __future__ import annotations

from phalanx.torch.sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
