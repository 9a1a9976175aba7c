"""Batch normalization over all ranks, under Horovod's module name."""

from __future__ import annotations

from phalanx.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
